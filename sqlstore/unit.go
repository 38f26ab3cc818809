package sqlstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/idempotent-go/idempotent"
)

// unit is one try of an operation and its transaction, on its way through the
// guard. It is found in the context.
type unit struct {
	g       *TxGuard
	ctx     context.Context // of the transaction: the caller's values, and an end of its own
	cancel  context.CancelFunc
	last    bool  // the operation is not run again
	outer   *unit // whose operation this one began in, or nil
	refuse  error // not nil: answered to every claim
	looking error // not nil: nothing is run any more, and this is answered where the key is free

	// Set by the claim, before the operation begins.
	claimedTx
	key, owner string

	settling sync.Mutex // the steps after the operation, one at a time
	found    txState    // of a commit in doubt; guarded by settling

	mu    sync.Mutex // guards the fields below
	state txState
	cause error // why the transaction is to be, or was, undone; or why it is in doubt
	again bool  // because of others
}

// txState is how far a unit's transaction is.
type txState int

const (
	txNone      txState = iota // not begun, or the key was somebody else's
	txOpen                     // the operation runs in it
	txCommitted                // with the record
	txReleased                 // rolled back, as the operation wanted
	txUndone                   // rolled back although it was to be committed
	txDoubt                    // nobody knows
)

type unitKey struct{}

func newUnit(ctx context.Context, g *TxGuard, last bool) *unit {
	u := &unit{g: g, last: last}
	// The caller's end must not tear a transaction whose record is being
	// written.
	u.ctx, u.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if outer := unitOf(ctx); outer != nil && outer.now() == txOpen {
		u.outer, u.refuse = outer, errNested
	}
	return u
}

// unitOf returns the unit of ctx, or nil.
func unitOf(ctx context.Context) *unit {
	u, _ := ctx.Value(unitKey{}).(*unit)
	return u
}

// do calls run with the unit in its context, and leaves no transaction open.
func (u *unit) do(ctx context.Context, run func(context.Context)) {
	defer u.cancel() // also rolls back where the guard has not come to a settlement
	run(context.WithValue(ctx, unitKey{}, u))
}

func (u *unit) now() txState {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.state
}

func (u *unit) become(state txState, cause error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.state, u.cause = state, cmp.Or(cause, u.cause)
}

// spoil has the transaction rolled back, whatever the operation says.
func (u *unit) spoil(cause error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.state == txOpen && u.cause == nil {
		u.cause = cause
	}
}

// saw notes an error that the operation has met, and reports whether the
// operation is to run again because of it.
func (u *unit) saw(err error) bool {
	if err == nil || u.last || u.g.store.dialect.classify(err) != faultRetry {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.state != txOpen || u.cause != nil && !u.again {
		return false
	}
	u.cause, u.again = err, true
	return true
}

// operate calls f, the operation, and has a panic of it roll back. Nothing is
// recovered: the panic, or the runtime.Goexit, goes on.
func (u *unit) operate(f func()) {
	returned := false
	defer func() {
		if !returned {
			u.spoil(errPanic)
		}
	}()
	f()
	returned = true
}

// verdict returns why the unit was not committed though it was to be, and
// whether to try again.
func (u *unit) verdict() (err error, again bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.state == txUndone && errors.Is(u.cause, idempotent.ErrInvalid):
		return u.cause, false
	case u.state == txUndone:
		return &idempotent.StoreError{Op: "complete", Err: fmt.Errorf("%w: %w", ErrRolledBack, u.cause)}, u.again
	case u.state == txDoubt:
		return &idempotent.StoreError{Op: "complete", Err: fmt.Errorf("%w: %w", ErrCommitUnknown, u.cause)}, false
	}
	return nil, false
}
