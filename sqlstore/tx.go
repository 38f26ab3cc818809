package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/idempotent-go/idempotent"
)

// Errors of operations in a transaction. They come inside of an
// [*idempotent.StoreError], with the driver's own error in the chain.
var (
	// ErrRolledBack: the transaction could not be committed and certainly was
	// not. Nothing happened and the key is free; try again with the same key.
	ErrRolledBack = errors.New("sqlstore: the transaction was rolled back")

	// ErrCommitUnknown: the database has not said in time whether the
	// transaction was committed. All of it was, or nothing; another call with
	// the same key is told which, and runs the operation where it was not.
	ErrCommitUnknown = errors.New("sqlstore: it is not known whether the transaction was committed")
)

var (
	errNested = fmt.Errorf("%w: an operation in a transaction may not begin another one with its context", idempotent.ErrInvalid)
	errHeld   = fmt.Errorf("%w: an answer longer than WithMaxResponse cannot wait for the commit; the transaction was rolled back", idempotent.ErrInvalid)
	errEnded  = errors.New("the operation has ended the transaction itself")
	errGone   = errors.New("the claim is not in the transaction any more")
	errPanic  = errors.New("the operation has panicked")
)

// TxGuard runs operations at most once per key, each in a transaction that also
// holds its claim and its outcome: all three are committed or none, so that a
// key whose process died is free again and nothing is left to find out. It is
// made by [NewTxGuard] and safe for concurrent use.
//
// It is an [idempotent.Guard] over a view of the Store whose claim begins the
// transaction and whose completion commits it. The transaction takes the place
// of the lease. Options, events, logs, keys and records are those of the guard,
// and the entries lie in the same table in the same format: a Guard over the
// Store answers repeats of what a TxGuard has recorded, and the reverse.
//
//	what becomes of the operation        business writes   record
//	success                              committed         committed with them
//	definite failure                     rolled back       committed
//	unknown, said by [idempotent.Unknown] rolled back      committed
//	error, released, 5xx, panic          rolled back       none: the key is free
//
// The rolling back is to a savepoint where there is a record, so that no other
// caller gets the key in between.
//
// A duplicate that comes while the transaction is open waits for its end where
// the database makes it, for up to half of [idempotent.WithStoreTimeout], and
// is answered with the record, or runs where there is none. After that it is an
// [*idempotent.InFlightError]; [idempotent.WithCallWait] waits on. SQLite has one
// writer at a time: duplicates wait as everybody does, for its busy_timeout.
//
// The database may undo a transaction because of others: a deadlock, a
// serialization failure. The operation is then run again in a new one, up to
// [WithTries] times. So an operation may be called more than once, but at most
// one of its calls is committed: what it does outside of the transaction, such
// as sending mail, it must be able to repeat.
//
// An operation must not commit or roll back the transaction itself, nor run
// statements that do (CREATE TABLE in MySQL), nor have a savepoint of its own named
// idempotent_claimed, and should return the errors of its statements: MySQL goes on
// without a transaction after a deadlock.
type TxGuard struct {
	store  *Store
	guard  *idempotent.Guard
	begin  sql.TxOptions
	tries  int
	guards []idempotent.Option
}

// TxOption changes a setting of [NewTxGuard].
type TxOption func(*TxGuard)

// WithIsolation sets the isolation level of the transactions; the database's
// default by default. The promise holds at every level that the driver knows;
// the stricter ones run operations again more often.
func WithIsolation(level sql.IsolationLevel) TxOption {
	return func(g *TxGuard) { g.begin.Isolation = level }
}

// WithTries sets how often an operation is called whose transaction the database
// undoes because of others; 10 times by default, after pauses that double from
// 5 to 100 milliseconds. 1 never repeats. It panics below 1.
func WithTries(n int) TxOption {
	if n < 1 {
		panic(fmt.Sprintf("sqlstore: WithTries: %d is no number of calls; 1 never repeats", n))
	}
	return func(g *TxGuard) { g.tries = n }
}

// WithGuard sets options of the guard inside, such as
// [idempotent.WithSuccessRetention] and [idempotent.WithObserver]. Of the lease
// only the reports of long operations depend. [idempotent.WithStoreTimeout]
// bounds what comes before the operation and, anew, what comes after it.
func WithGuard(opts ...idempotent.Option) TxOption {
	return func(g *TxGuard) { g.guards = append(g.guards, opts...) }
}

// NewTxGuard returns a TxGuard on the database and the table of s. It panics on
// a nil s.
func NewTxGuard(s *Store, opts ...TxOption) *TxGuard {
	if s == nil {
		panic("sqlstore: NewTxGuard: the Store is nil")
	}
	g := &TxGuard{store: s, tries: mostTries}
	for _, opt := range opts {
		opt(g)
	}
	g.guard = idempotent.New(txStore{s}, g.guards...)
	return g
}

// Drain refuses new operations and waits for those that run; see
// [idempotent.Guard.Drain].
func (g *TxGuard) Drain(ctx context.Context) error { return g.guard.Drain(ctx) }

// InTx runs fn at most once per key, in a transaction of g, and returns its
// result; repeats get the recorded one. It is [idempotent.Do] with fn's writes,
// the claim and the outcome in one transaction.
//
// fn's writes count if fn returns nil and InTx does too. Where fn returns an
// error nothing has happened and the key is free, but for one that wraps
// [idempotent.ErrFailed] (or after [idempotent.Fail]): its writes are rolled
// back, and repeats get an [*idempotent.FailedError]. A panic rolls back and goes
// on. [idempotent.WithCallClassify] is asked first; an error that it calls
// unknown is recorded as unknown, without fn's writes.
//
// Results and errors are otherwise those of Do, with a StoreError that wraps
// [ErrRolledBack] or [ErrCommitUnknown] besides, and [idempotent.ErrInvalid] with
// the context of another operation in a transaction. fn's transaction serves
// until fn returns; cancelling ctx does not end it, but ends what fn does with
// its own ctx. fn may be called more than once; see [TxGuard].
func InTx[T any](ctx context.Context, g *TxGuard, key string, fn func(ctx context.Context, tx *sql.Tx) (T, error), opts ...idempotent.CallOption) (T, error) {
	var value T
	if g == nil || fn == nil {
		return value, fmt.Errorf("%w: the guard or the function is nil", idempotent.ErrInvalid)
	}
	var err error
	undone := g.transact(ctx, func(ctx context.Context) {
		value, err = idempotent.Do(ctx, g.guard, key, func(ctx context.Context) (T, error) {
			return inUnit(ctx, fn)
		}, opts...)
	})
	if undone != nil {
		var none T
		return none, undone
	}
	if r, ok := err.(undoneError); ok {
		err = r.error
	}
	return value, err
}

// inUnit calls fn with the transaction of ctx.
func inUnit[T any](ctx context.Context, fn func(context.Context, *sql.Tx) (T, error)) (T, error) {
	u := unitOf(ctx)
	var value T
	var err error
	u.operate(func() { value, err = fn(ctx, u.tx) })
	u.saw(err)
	if err != nil && !errors.Is(err, idempotent.ErrFailed) {
		err = undoneError{err}
	}
	return value, err
}

// undoneError tells [idempotent.Do] that nothing has happened, where nobody says
// otherwise. Callers do not see it.
type undoneError struct{ error }

func (e undoneError) Unwrap() []error { return []error{e.error, idempotent.ErrReleased} }

// Run runs op at most once per key, in a transaction of g. It is
// [idempotent.Guard.Run] with op's writes, the claim and the outcome in one
// transaction, which is rolled back unless op says success; see [TxGuard] for
// the classes and [InTx] for the errors.
func (g *TxGuard) Run(ctx context.Context, key string, op func(ctx context.Context, tx *sql.Tx) (idempotent.Class, string), opts ...idempotent.CallOption) (rec idempotent.Record, replayed bool, err error) {
	if op == nil {
		return rec, false, fmt.Errorf("%w: the operation is nil", idempotent.ErrInvalid)
	}
	undone := g.transact(ctx, func(ctx context.Context) {
		rec, replayed, err = g.guard.Run(ctx, key, func(ctx context.Context) (class idempotent.Class, result string) {
			u := unitOf(ctx)
			u.operate(func() { class, result = op(ctx, u.tx) })
			return class, result
		}, opts...)
	})
	if undone != nil {
		return idempotent.Record{}, false, undone
	}
	return rec, replayed, err
}

// Tx returns the transaction of the operation that ctx was given to, and false
// where there is none: outside of operations, after their end, and for requests
// that [TxGuard.Middleware] lets pass without a key.
func Tx(ctx context.Context) (*sql.Tx, bool) {
	if u := unitOf(ctx); u != nil && u.now() == txOpen {
		return u.tx, true
	}
	return nil, false
}

// Again reports whether err says that the database has undone the transaction of
// ctx because of others, and has the operation run again if so and if it was not
// the last try; what it answers is then dropped. It is for handlers, whose
// errors nobody else sees, and for operations of [TxGuard.Run]: call it with the
// errors of statements, and return where it reports true. InTx asks it of the
// function's error by itself.
func Again(ctx context.Context, err error) bool {
	u := unitOf(ctx)
	return u != nil && u.saw(err)
}

// transact calls run, which hands its context to the guard, with a new unit of
// work, and again where the database has undone that because of others. Its
// error says that the unit was to be committed and was not, or not for certain:
// what the guard has returned then does not count.
func (g *TxGuard) transact(ctx context.Context, run func(context.Context)) error {
	for pause, try := retryFirst, 1; ; pause, try = min(2*pause, retryMost), try+1 {
		u := newUnit(ctx, g, try == g.tries)
		u.do(ctx, run)
		err, again := u.verdict()
		if !again || !rest(ctx, jitter(pause)) {
			return err
		}
	}
}
