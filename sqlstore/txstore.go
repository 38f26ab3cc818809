package sqlstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/idempotent-go/idempotent"
)

var (
	_ idempotent.Store  = txStore{}
	_ idempotent.Waiter = txStore{}
	_ idempotent.Pinger = txStore{}
)

// txStore is a Store as the guard of a [TxGuard] sees it: its claim begins the
// transaction of the unit in the context, and what settles the claim ends it.
type txStore struct{ s *Store }

func (v txStore) Load(ctx context.Context, key string) (idempotent.Entry, bool, error) {
	return v.s.Load(ctx, key)
}

func (v txStore) Wait(ctx context.Context, key string) (idempotent.Entry, bool, error) {
	return v.s.Wait(ctx, key)
}

func (v txStore) Ping(ctx context.Context) error { return v.s.Ping(ctx) }

// Claim begins the unit's transaction and claims key in it. A claim that is not
// answered, or not in time, is none: nobody will commit it.
func (v txStore) Claim(ctx context.Context, key string, c idempotent.Claim) (idempotent.Entry, bool, error) {
	if err := idempotent.ValidateKey(key, c.Owner); err != nil {
		return idempotent.Entry{}, false, err
	}
	if err := c.Validate(); err != nil {
		return idempotent.Entry{}, false, err
	}
	u := unitOf(ctx)
	if u.refuse != nil {
		return idempotent.Entry{}, false, u.refuse
	}
	key = strings.Clone(key)
	c.Owner, c.Fingerprint, c.Trace = strings.Clone(c.Owner), strings.Clone(c.Fingerprint), strings.Clone(c.Trace)

	sent := time.Now()
	first, cancel := half(ctx)
	defer cancel()
	begun, err := v.s.claimTx(first, u.ctx, &u.g.begin, key, c)
	switch {
	case err == nil && !begun.claimed:
		return begun.entry, false, nil
	case err == nil && u.looking != nil:
		begun.rollback(ctx)
		return idempotent.Entry{}, false, u.looking
	case err == nil:
		u.claimedTx, u.key, u.owner = begun, key, c.Owner
		u.become(txOpen, nil)
		return begun.entry, true, nil
	case !errors.Is(err, errBlocked) || ended(ctx) != nil:
		return idempotent.Entry{}, false, v.s.explain("claim", err)
	}
	// Somebody's transaction has the row. Where the database answers otherwise,
	// that is why: the key is in flight.
	e, found, fault := v.s.Load(ctx, key)
	if fault != nil || found {
		return e, false, fault
	}
	if v.s.dialect == SQLite { // any writer may be in the way
		return idempotent.Entry{}, false, v.s.explain("claim", err)
	}
	return idempotent.Entry{
		Key: key, Status: idempotent.Pending, Fingerprint: c.Fingerprint,
		Timestamp: sent, Claimed: sent, Expires: time.Now().Add(c.Lease),
	}, false, nil
}

// Renew has nothing to do: the claim stands as long as the transaction is open.
func (v txStore) Renew(ctx context.Context, _, _ string, _ time.Duration) error {
	if u := unitOf(ctx); u == nil || u.now() != txOpen {
		return idempotent.ErrLost
	}
	return nil
}

// Complete records the outcome and commits. [idempotent.ErrReleased] says that the
// transaction was rolled back and that the operation is run again,
// [idempotent.ErrLost] that it was rolled back for good; any other error that it
// is in doubt, and then Complete may be called again to find out.
func (v txStore) Complete(ctx context.Context, _, _ string, o idempotent.Outcome) error {
	u := unitOf(ctx)
	if u == nil {
		return idempotent.ErrLost
	}
	u.settling.Lock()
	defer u.settling.Unlock()
	state := u.now()
	switch state {
	case txOpen:
		u.commit(ctx, o)
		if u.now() == txDoubt && u.find(ctx) != txDoubt {
			u.become(u.found, nil)
		}
		state = u.now()
	case txDoubt:
		// The caller has been told that nobody knows; this is for the log.
		state = u.find(ctx)
	}
	switch err, again := u.verdict(); {
	case state == txCommitted:
		return nil
	case state == txDoubt:
		return err
	case again:
		return fmt.Errorf("%w: %w", idempotent.ErrReleased, err)
	default:
		return errors.Join(idempotent.ErrLost, err)
	}
}

// Release rolls back. Of a claim that was not answered in time it has nothing to
// do: nobody will commit it.
func (v txStore) Release(ctx context.Context, _, _ string) error {
	u := unitOf(ctx)
	if u == nil {
		return nil
	}
	u.settling.Lock()
	defer u.settling.Unlock()
	if u.now() == txOpen {
		u.rollback(ctx)
		if u.why() == nil {
			u.become(txReleased, nil)
		} else {
			u.become(txUndone, nil)
		}
	}
	return nil
}

// why returns why the transaction is to be rolled back, or nil.
func (u *unit) why() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.cause
}

// undo rolls back what was to be committed.
func (u *unit) undo(ctx context.Context, cause error) {
	u.rollback(ctx)
	u.become(txUndone, cause)
	if !u.last && u.g.store.dialect.classify(cause) == faultRetry {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.again = true
	}
}

// commit writes the record and commits. Failures and unknown outcomes are
// recorded without what the operation has written.
func (u *unit) commit(ctx context.Context, o idempotent.Outcome) {
	if cause := u.why(); cause != nil {
		u.undo(ctx, cause)
		return
	}
	first, cancel := half(ctx)
	defer cancel()
	err := call1(first, func() error {
		if o.Status == idempotent.Failed {
			if _, err := u.tx.ExecContext(first, rollbackToSavepoint); err != nil {
				return err
			}
		}
		there, err := u.g.store.text.finish(first, u.tx, u.key, u.owner, o)
		if err == nil && !there {
			return errGone
		}
		return err
	})
	switch {
	case errors.Is(err, sql.ErrTxDone):
		// Committed, with a claim that nobody will complete, or rolled back.
		u.become(txDoubt, errEnded)
		return
	case err != nil:
		u.undo(ctx, err)
		return
	}
	err = call1(first, u.tx.Commit)
	switch {
	case err == nil:
		u.become(txCommitted, nil)
	case u.g.store.dialect.classify(err) == faultRetry:
		u.undo(ctx, err) // the database says so
	default:
		u.become(txDoubt, err)
	}
}

// find asks what became of the commit, by a claim in another transaction: that
// is not answered as long as the first one may still land. It needs settling.
func (u *unit) find(ctx context.Context) txState {
	if u.found != txNone {
		return u.found
	}
	probe := idempotent.Claim{Owner: rand.Text(), Lease: time.Minute, Keep: time.Minute}
	begun, err := u.g.store.claimTx(ctx, context.WithoutCancel(ctx), nil, u.key, probe)
	switch {
	case err != nil:
		return txDoubt
	case begun.claimed:
		begun.rollback(ctx)
		u.found = txUndone
	case begun.entry.Owner != u.owner: // somebody else has had the key since
		u.found = txUndone
	case begun.entry.Status == idempotent.Pending: // see errEnded
		return txDoubt
	default:
		u.found = txCommitted
	}
	return u.found
}

// Statements in an operation's transaction, in every dialect. A savepoint of the
// operation's with the same name would take the place of this one, and what was
// written before it would stay.
const (
	savepoint           = "SAVEPOINT idempotent_claimed"
	rollbackToSavepoint = "ROLLBACK TO SAVEPOINT idempotent_claimed"
)

// errBlocked: a claim that was sent has not been answered in time.
var errBlocked = errors.New("the claim waits for another transaction")

// claimedTx is what claimTx returns: a transaction only where it has claimed.
type claimedTx struct {
	tx      *sql.Tx
	end     context.CancelFunc // of its life
	entry   idempotent.Entry
	claimed bool
}

// rollback ends the transaction. What the database does not hear of in time ends
// with the connection: without a COMMIT nothing lands.
func (c claimedTx) rollback(ctx context.Context) {
	_ = call1(ctx, c.tx.Rollback)
	c.end()
}

// claimTx looks at key and claims it in a transaction, which ends with life at
// the latest; it looks anew where somebody else was quicker, or where the
// database has undone the transaction because of others. Unless the key is
// claimed there is no transaction. ctx bounds the call; errBlocked says that it
// ended after the claim was sent.
//
// The look comes before the transaction: a replay needs none, and under stricter
// isolation a look in it would lock the place of an absent row for all who look,
// so that none of them could insert.
func (s *Store) claimTx(ctx, life context.Context, begin *sql.TxOptions, key string, c idempotent.Claim) (claimedTx, error) {
	for pause, tries := retryFirst, 1; ; pause, tries = min(2*pause, retryMost), tries+1 {
		if err := s.open(ctx); err != nil {
			return claimedTx{}, err
		}
		got, err := s.claimTxOnce(ctx, life, begin, key, c)
		if err == nil || errors.Is(err, errBlocked) || tries == mostTries || s.dialect.classify(err) != faultRetry || !rest(ctx, jitter(pause)) {
			return got, err
		}
	}
}

func (s *Store) claimTxOnce(ctx, life context.Context, begin *sql.TxOptions, key string, c idempotent.Claim) (claimedTx, error) {
	for range mostLooks {
		p, err := call(ctx, func() (plan, error) { return s.text.plan(ctx, s.db, key, decideClaim(key, c)) })
		if err != nil || !p.write {
			return claimedTx{entry: p.claim(false)}, err
		}
		got, err := s.storeTx(ctx, life, begin, key, p)
		if got.claimed || err != nil {
			return got, err
		}
	}
	return claimedTx{}, fmt.Errorf("%w of %d", errContended, mostLooks)
}

// storeTx stores a planned claim in a new transaction. It returns nothing where
// somebody else was quicker.
func (s *Store) storeTx(ctx, life context.Context, begin *sql.TxOptions, key string, p plan) (got claimedTx, err error) {
	// database/sql rolls back when the context that a transaction was begun with
	// ends: whatever a driver is still at, nothing of it stays.
	life, cancel := context.WithCancel(life)
	stop := context.AfterFunc(ctx, cancel)
	defer func() {
		if !got.claimed {
			cancel()
		}
	}()
	tx, err := call(ctx, func() (*sql.Tx, error) { return s.db.BeginTx(life, begin) })
	if err != nil {
		return claimedTx{}, err
	}
	claimed, err := call(ctx, func() (bool, error) {
		ok, err := s.text.store(ctx, tx, key, p)
		if err == nil && ok {
			_, err = tx.ExecContext(ctx, savepoint)
		}
		return ok, err
	})
	if claimed && err == nil && stop() {
		return claimedTx{tx, cancel, p.claim(true), true}, nil
	}
	if ended(ctx) != nil {
		return claimedTx{}, fmt.Errorf("%w: %w", errBlocked, cmp.Or(err, ended(ctx)))
	}
	_ = call1(ctx, tx.Rollback)
	return claimedTx{}, err
}

// half returns a context with half of the time that is left of ctx, so that
// something can be asked about what has not been answered until then.
func half(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, time.Until(deadline)/2)
}

// call1 is call for what has no result.
func call1(ctx context.Context, f func() error) error {
	_, err := call(ctx, func() (struct{}, error) { return struct{}{}, f() })
	return err
}
