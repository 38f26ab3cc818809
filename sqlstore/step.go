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

// read looks at key. latest is for looks after one that has been overtaken.
func (t *statements) read(ctx context.Context, q querier, key string, latest bool) (row, int64, error) {
	text := t.look
	if latest {
		text = t.lookLatest
	}
	r, now, err := scanRow(q.QueryRowContext(ctx, text, rowName(key)))
	if err != nil {
		return row{}, 0, err
	}
	return r, now, r.check(key)
}

// load is the step of Load.
func (t *statements) load(ctx context.Context, q querier, key string) (idempotent.Entry, bool, error) {
	r, now, err := t.read(ctx, q, key, false)
	if err != nil {
		return idempotent.Entry{}, false, err
	}
	e, found := r.entry(now)
	return e, found, nil
}

// claim is the step of Claim. It looks first: a replay and a conflict are one
// statement that writes nothing.
func (t *statements) claim(ctx context.Context, q querier, key string, c idempotent.Claim) (idempotent.Entry, bool, error) {
	r, now, claimed, err := t.settle(ctx, q, key, decideClaim(key, c))
	if err != nil {
		return idempotent.Entry{}, false, err
	}
	if claimed {
		now = r.set // or a lease that was over when it began to run would read as lapsed
	}
	e, _ := r.entry(now)
	return e, claimed, nil
}

// renewal is the step of Renew.
func (t *statements) renewal(ctx context.Context, q querier, key, owner string, lease time.Duration) error {
	d := micros(lease)
	done, err := t.change(ctx, q, t.renew, d, d, rowName(key), []byte(key), []byte(owner))
	if done || err != nil {
		return err
	}
	_, _, _, err = t.settle(ctx, q, key, decideRenew(owner, d))
	return err
}

// completion is the step of Complete.
func (t *statements) completion(ctx context.Context, q querier, key, owner string, o idempotent.Outcome) error {
	done, err := t.finish(ctx, q, key, owner, o)
	if done || err != nil {
		return err
	}
	_, _, _, err = t.settle(ctx, q, key, decideComplete(key, owner, o))
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
	_, _, _, err = t.settle(ctx, q, key, decideRelease(owner))
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

// settle takes a decision on what a look has found, and writes it if the row is
// still the same: look and store are one step. It returns the row that stands
// and the time of the look. The common course of renewal, completion and release
// does not come here: it is one statement.
func (t *statements) settle(ctx context.Context, q querier, key string, decide decision) (row, int64, bool, error) {
	for looks := range mostLooks {
		r, now, err := t.read(ctx, q, key, looks > 0)
		if err != nil {
			return row{}, 0, false, err
		}
		next, write, err := decide(r, now)
		if err != nil || !write {
			return next, now, false, err
		}
		if db, ok := q.(*sql.DB); ok && t.alone {
			var done bool
			err := alone(ctx, db, func(q querier) (err error) {
				next, now, done, err = t.settle(ctx, q, key, decide)
				return err
			})
			return next, now, done, err
		}
		args := append(next.values(), rowName(key), []byte(key))
		text := t.insert
		if r.found {
			text, args = t.replace, append(args, r.fence, r.version)
		}
		done, err := t.change(ctx, q, text, args...)
		if err != nil {
			return row{}, 0, false, err
		}
		if done {
			next.found = true
			return next, now, true, nil
		}
	}
	return row{}, 0, false, fmt.Errorf("%w of %d", errContended, mostLooks)
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
