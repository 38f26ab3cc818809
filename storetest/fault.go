package storetest

import (
	"context"
	"sync"
	"time"

	"github.com/idempotent-go/idempotent"
)

// Op names a method of a store.
type Op string

// The operations that a [Faulty] can make fail.
const (
	OpLoad     Op = "load"
	OpClaim    Op = "claim"
	OpRenew    Op = "renew"
	OpComplete Op = "complete"
	OpRelease  Op = "release"
	OpWait     Op = "wait"
	OpDelete   Op = "delete"
	OpSweep    Op = "sweep"
	OpPing     Op = "ping"
	OpList     Op = "list"
)

// Faulty is a store that fails on command, for tests of what is built on one.
// It is made by [NewFaulty], passes every call on to another store until it is
// told otherwise, and is safe for concurrent use.
//
// Hooks get the context and the key of the operation; the key of a sweep, of a
// ping and of a listing is empty. A hook is called concurrently where the store is, and may
// block to make the store slow, but no longer than until its context ends.
type Faulty struct {
	store idempotent.Store

	mu     sync.Mutex // guards all below
	before map[Op]hook
	after  map[Op]hook
	calls  map[Op]int
	down   error
}

var (
	_ idempotent.Store   = (*Faulty)(nil)
	_ idempotent.Waiter  = (*Faulty)(nil)
	_ idempotent.Deleter = (*Faulty)(nil)
	_ idempotent.Sweeper = (*Faulty)(nil)
	_ idempotent.Pinger  = (*Faulty)(nil)
	_ idempotent.Lister  = (*Faulty)(nil)
)

// hook is called with the context and the key of one operation.
type hook = func(ctx context.Context, key string) error

// NewFaulty returns a store that keeps its data in s. Optional abilities that
// s has not got fall back as package idempotent says. It panics on nil.
func NewFaulty(s idempotent.Store) *Faulty {
	if s == nil {
		panic("storetest: NewFaulty: the store is nil")
	}
	return &Faulty{store: s, before: make(map[Op]hook), after: make(map[Op]hook), calls: make(map[Op]int)}
}

// Before has fn called at the start of every op, in place of an earlier one.
// Where fn returns an error, that is the answer and the call is not sent: the
// store could not be reached. nil takes the hook away.
func (f *Faulty) Before(op Op, fn func(ctx context.Context, key string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before[op] = fn
}

// After has fn called at the end of every op that was sent, in place of an
// earlier one. Where fn returns an error, that is the answer, whatever the
// store said and did: the reply was lost. nil takes the hook away.
func (f *Faulty) After(op Op, fn func(ctx context.Context, key string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.after[op] = fn
}

// Down makes every operation fail with err, and sends none, until [Faulty.Up].
// Hooks are not called meanwhile. It panics on nil.
func (f *Faulty) Down(err error) {
	if err == nil {
		panic("storetest: Down: the error is nil; Up ends an outage")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = err
}

// Up ends what [Faulty.Down] began. Hooks are still there.
func (f *Faulty) Up() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = nil
}

// Calls returns how many times op was called so far, failed calls and calls
// that were not sent included.
func (f *Faulty) Calls(op Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

// Load implements [idempotent.Store].
func (f *Faulty) Load(ctx context.Context, key string) (e idempotent.Entry, found bool, err error) {
	err = f.do(ctx, OpLoad, key, func() (err error) {
		e, found, err = f.store.Load(ctx, key)
		return err
	})
	if err != nil {
		return idempotent.Entry{}, false, err
	}
	return e, found, nil
}

// Claim implements [idempotent.Store].
func (f *Faulty) Claim(ctx context.Context, key string, c idempotent.Claim) (e idempotent.Entry, claimed bool, err error) {
	err = f.do(ctx, OpClaim, key, func() (err error) {
		e, claimed, err = f.store.Claim(ctx, key, c)
		return err
	})
	if err != nil {
		return idempotent.Entry{}, false, err
	}
	return e, claimed, nil
}

// Renew implements [idempotent.Store].
func (f *Faulty) Renew(ctx context.Context, key, owner string, lease time.Duration) error {
	return f.do(ctx, OpRenew, key, func() error { return f.store.Renew(ctx, key, owner, lease) })
}

// Complete implements [idempotent.Store].
func (f *Faulty) Complete(ctx context.Context, key, owner string, o idempotent.Outcome) error {
	return f.do(ctx, OpComplete, key, func() error { return f.store.Complete(ctx, key, owner, o) })
}

// Release implements [idempotent.Store].
func (f *Faulty) Release(ctx context.Context, key, owner string) error {
	return f.do(ctx, OpRelease, key, func() error { return f.store.Release(ctx, key, owner) })
}

// Wait implements [idempotent.Waiter] by [idempotent.Wait] on the store below.
// It is one call of OpWait, whose looks at the store count as no OpLoad.
func (f *Faulty) Wait(ctx context.Context, key string) (e idempotent.Entry, found bool, err error) {
	err = f.do(ctx, OpWait, key, func() (err error) {
		e, found, err = idempotent.Wait(ctx, f.store, key)
		return err
	})
	if err != nil {
		return idempotent.Entry{}, false, err
	}
	return e, found, nil
}

// Delete implements [idempotent.Deleter] by [idempotent.Delete].
func (f *Faulty) Delete(ctx context.Context, key string) error {
	return f.do(ctx, OpDelete, key, func() error { return idempotent.Delete(ctx, f.store, key) })
}

// Sweep implements [idempotent.Sweeper] by [idempotent.Sweep].
func (f *Faulty) Sweep(ctx context.Context) (swept idempotent.Swept, err error) {
	err = f.do(ctx, OpSweep, "", func() (err error) {
		swept, err = idempotent.Sweep(ctx, f.store)
		return err
	})
	if err != nil {
		return idempotent.Swept{}, err
	}
	return swept, nil
}

// Ping implements [idempotent.Pinger] by [idempotent.Ping].
func (f *Faulty) Ping(ctx context.Context) error {
	return f.do(ctx, OpPing, "", func() error { return idempotent.Ping(ctx, f.store) })
}

// List implements [idempotent.Lister] by [idempotent.List].
func (f *Faulty) List(ctx context.Context, q idempotent.ListQuery) (page idempotent.Page, err error) {
	err = f.do(ctx, OpList, "", func() (err error) {
		page, err = idempotent.List(ctx, f.store, q)
		return err
	})
	if err != nil {
		return idempotent.Page{}, err
	}
	return page, nil
}

// do runs one operation with its hooks, which are called without the lock so
// that they may block and may set others.
func (f *Faulty) do(ctx context.Context, op Op, key string, send func() error) error {
	f.mu.Lock()
	f.calls[op]++
	before, after, down := f.before[op], f.after[op], f.down
	f.mu.Unlock()
	if down != nil {
		return down
	}
	if before != nil {
		if err := before(ctx, key); err != nil {
			return err
		}
	}
	err := send()
	if after != nil {
		if lost := after(ctx, key); lost != nil {
			return lost
		}
	}
	return err
}
