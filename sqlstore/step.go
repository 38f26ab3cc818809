package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/idempotent-go/idempotent"
)

// querier is what the steps need of a *sql.DB, and a caller's *sql.Tx or
// *sql.Conn has it too.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// graceOfFree is how long the row of a freed key stays for a sweep to find. It
// is longer than any statement is on its way.
const graceOfFree = time.Minute

// mostLooks bounds how often a step looks again because somebody else has
// changed the row in between. Each time somebody else has got on.
const mostLooks = 100

var errContended = errors.New("the row has changed at every look")

// read looks at key.
func (t *statements) read(ctx context.Context, q querier, key string) (row, int64, error) {
	r, now, err := scanRow(q.QueryRowContext(ctx, t.look, rowName(key)))
	if err != nil {
		return row{}, 0, err
	}
	return r, now, r.check(key)
}

// load is the step of Load.
func (t *statements) load(ctx context.Context, q querier, key string) (idempotent.Entry, bool, error) {
	r, now, err := t.read(ctx, q, key)
	if err != nil {
		return idempotent.Entry{}, false, err
	}
	e, found := r.entry(now)
	return e, found, nil
}

// claim is the step of Claim. It looks first: a replay and a conflict are one
// statement that writes nothing.
func (t *statements) claim(ctx context.Context, q querier, key string, c idempotent.Claim) (idempotent.Entry, bool, error) {
	p, claimed, err := t.settle(ctx, q, key, decideClaim(key, c))
	if err != nil {
		return idempotent.Entry{}, false, err
	}
	return p.claim(claimed), claimed, nil
}

// renewal is the step of Renew.
func (t *statements) renewal(ctx context.Context, q querier, key, owner string, lease time.Duration) error {
	d := micros(lease)
	done, err := t.change(ctx, q, t.renew, d, d, rowName(key), []byte(key), []byte(owner))
	if done || err != nil {
		return err
	}
	_, _, err = t.settle(ctx, q, key, decideRenew(owner, d))
	return err
}

// completion is the step of Complete.
func (t *statements) completion(ctx context.Context, q querier, key, owner string, o idempotent.Outcome) error {
	done, err := t.finish(ctx, q, key, owner, o)
	if done || err != nil {
		return err
	}
	_, _, err = t.settle(ctx, q, key, decideComplete(key, owner, o))
	return err
}

// finish completes a claim that is there, and reports whether it is.
func (t *statements) finish(ctx context.Context, q querier, key, owner string, o idempotent.Outcome) (bool, error) {
	d := micros(o.Retention)
	return t.change(ctx, q, t.complete, statusOf(o), []byte(o.Result), d, d, rowName(key), []byte(key), []byte(owner))
}

// freeing is the step of Release.
func (t *statements) freeing(ctx context.Context, q querier, key, owner string) error {
	done, err := t.change(ctx, q, t.release, micros(graceOfFree), rowName(key), []byte(key), []byte(owner))
	if done || err != nil {
		return err
	}
	_, _, err = t.settle(ctx, q, key, decideRelease(owner))
	return err
}

// removal is the step of Delete. The row stays, free, so that the next fence is
// larger than its own.
func (t *statements) removal(ctx context.Context, q querier, key string) error {
	none := []byte{}
	_, err := t.change(ctx, q, t.remove, []byte(key), none, none, none, micros(graceOfFree), rowName(key))
	return err
}

// change runs a statement that changes one row or none, and says which.
func (t *statements) change(ctx context.Context, q querier, text string, args ...any) (bool, error) {
	n, err := affected(ctx, q, text, args...)
	return n == 1, err
}

// affected runs a statement and returns how many rows it has changed. All of
// them change the version of a row, so that MySQL counts what it found and what
// it changed alike, whatever clientFoundRows says.
func affected(ctx context.Context, q querier, text string, args ...any) (int64, error) {
	res, err := q.ExecContext(ctx, text, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// plan is what a decision makes of a row that was looked at.
type plan struct {
	seen  row
	now   int64 // of the look
	next  row   // what stands afterwards
	write bool  // next is to be stored; it is what was seen otherwise
}

// plan looks at key and decides.
func (t *statements) plan(ctx context.Context, q querier, key string, decide decision) (plan, error) {
	seen, now, err := t.read(ctx, q, key)
	if err != nil {
		return plan{}, err
	}
	next, write, err := decide(seen, now)
	next.found = next.found || write
	return plan{seen, now, next, write}, err
}

// store writes what p says if the row is still the one that was looked at, and
// reports whether it was: look and store are one step.
func (t *statements) store(ctx context.Context, q querier, key string, p plan) (bool, error) {
	args := append(p.next.values(), rowName(key), []byte(key))
	if !p.seen.found {
		return t.change(ctx, q, t.insert, args...)
	}
	return t.change(ctx, q, t.replace, append(args, p.seen.fence, p.seen.version)...)
}

// claim returns the entry that a claim by p answers with.
func (p plan) claim(claimed bool) idempotent.Entry {
	now := p.now
	if claimed {
		// A lease that was over when it began to run would read as lapsed. What is
		// seen of a row may be younger than the look's clock.
		now = min(now, p.next.set)
	}
	e, _ := p.next.entry(now)
	return e
}

// settle takes a decision on what a look has found and stores it, and looks again
// where somebody else was quicker. It returns the last plan, and whether that was
// stored. The common course of renewal, completion and release does not come
// here: it is one statement.
func (t *statements) settle(ctx context.Context, q querier, key string, decide decision) (plan, bool, error) {
	for range mostLooks {
		p, err := t.plan(ctx, q, key, decide)
		if err != nil || !p.write {
			return p, false, err
		}
		if db, ok := q.(*sql.DB); ok && t.alone {
			var done bool
			err := alone(ctx, db, func(q querier) (err error) {
				p, done, err = t.settle(ctx, q, key, decide)
				return err
			})
			return p, done, err
		}
		if done, err := t.store(ctx, q, key, p); done || err != nil {
			return p, done, err
		}
	}
	return plan{}, false, fmt.Errorf("%w of %d", errContended, mostLooks)
}

// alone runs f in a transaction that has SQLite's one lock from its beginning.
// A write that waits for the lock would otherwise store the time of a look from
// before, and a claim might have lapsed when it is stored.
func alone(ctx context.Context, db *sql.DB, f func(querier) error) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_, err = conn.ExecContext(ctx, "BEGIN IMMEDIATE")
	if err == nil {
		err = f(conn)
	}
	if err == nil {
		_, err = conn.ExecContext(ctx, "COMMIT")
	}
	if err == nil {
		return nil
	}
	// Also where ctx has ended: nobody may be given a connection in the midst of a
	// transaction.
	if _, fault := conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK"); fault != nil {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	}
	return err
}
