package idempotent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// The optional abilities of a store. Each is found by one function below,
// which says what happens where it is missing. A store that wraps another one
// calls these functions, so that abilities pass through.

// Waiter is a Store that can be asked to tell when a claim ends.
type Waiter interface {
	// Wait returns as soon as no claim of key is running: at once where none
	// is, otherwise when it is completed, released, lapsed or gone. The
	// results are those of Load at that moment. It blocks until then or until
	// ctx ends, and returns ctx's error in that case.
	Wait(ctx context.Context, key string) (Entry, bool, error)
}

// Sweeper is a Store that does not forget by itself.
type Sweeper interface {
	// Sweep removes what is past its time and makes room where a bound is
	// exceeded. It may be called at any time, also concurrently.
	Sweep(ctx context.Context) (Swept, error)
}

// Swept counts what one sweep did.
type Swept struct {
	Expired   int // entries removed because their retention had passed
	Evicted   int // finished entries removed to make room
	Abandoned int // claims found lapsed for the first time
}

// Pinger is a Store that can tell whether it can be reached.
type Pinger interface {
	// Ping returns nil where the store answers.
	Ping(ctx context.Context) error
}

// Deleter is a Store from which an operator can remove a key.
type Deleter interface {
	// Delete removes key whatever its state, also a running claim: a
	// take-over by hand. Deleting an absent key is nil.
	Delete(ctx context.Context, key string) error
}

// Lister is a Store whose entries can be listed page by page, for people who
// look after it. Nothing that answers a request uses it.
type Lister interface {
	// List returns the next page of a listing; see [ListQuery] and [Page].
	// Other calls go on meanwhile: an entry that is there from the first page
	// to the last is listed at least once, one that comes or goes in between
	// may be missing, and one may be listed twice. The order is the store's.
	List(ctx context.Context, q ListQuery) (Page, error)
}

// Composite is a Store that keeps its entries in others, each of which is looked
// after for itself: its settings are checked, its entries listed and swept.
type Composite interface {
	// Stores returns them in the order in which the constructor takes them. A
	// store that only has copies is none of them.
	Stores() []Store
}

// ListQuery says which page is wanted. The zero value asks for the first page
// of everything. A negative Limit, and a Cursor that is none of the store's, are
// [ErrInvalid].
type ListQuery struct {
	Prefix string // only keys that begin with it; "" means all
	Cursor string // "" begins a listing; otherwise Next of the page before, with the same Prefix
	Limit  int    // entries a page; 0 means 100, and more than 1,000 mean 1,000
}

// The sizes of a page; see [ListQuery].
const (
	DefaultListLimit = 100
	MaxListLimit     = 1000
)

// Size returns how many entries q asks for, between 1 and [MaxListLimit]. A
// negative Limit is [ErrInvalid].
func (q ListQuery) Size() (int, error) {
	switch {
	case q.Limit < 0:
		return 0, fmt.Errorf("%w: ListQuery.Limit is %d; use 0 for %d entries a page", ErrInvalid, q.Limit, DefaultListLimit)
	case q.Limit == 0:
		return DefaultListLimit, nil
	}
	return min(q.Limit, MaxListLimit), nil
}

// Page is one page of a listing. It may hold fewer entries than were asked
// for, even none, and more may follow: only Next tells the end.
type Page struct {
	Entries []Entry  // as [Store.Load] returns them, but Result is ""
	Corrupt []string // keys of records that cannot be read; Load of one says why
	Next    string   // Cursor of the next page; "" where this was the last
}

// Ping reports whether s can be reached. A store that is no [Pinger] is asked
// for a key that nobody uses.
func Ping(ctx context.Context, s Store) error {
	if p, ok := s.(Pinger); ok {
		return p.Ping(ctx)
	}
	_, _, err := s.Load(ctx, "idempotent:ping")
	return err
}

// Delete removes key from s whatever its state; see [Deleter]. Where s is no
// Deleter it removes nothing and returns an error that matches
// [errors.ErrUnsupported].
func Delete(ctx context.Context, s Store, key string) error {
	d, ok := s.(Deleter)
	if !ok {
		return fmt.Errorf("idempotent: %T cannot delete a key: %w", s, errors.ErrUnsupported)
	}
	return d.Delete(ctx, key)
}

// List returns a page of the entries of s; see [Lister]. Where s is no Lister
// it returns an error that matches [errors.ErrUnsupported].
func List(ctx context.Context, s Store, q ListQuery) (Page, error) {
	l, ok := s.(Lister)
	if !ok {
		return Page{}, fmt.Errorf("idempotent: %T cannot list its entries: %w", s, errors.ErrUnsupported)
	}
	return l.List(ctx, q)
}

// Stores returns the stores in which s keeps its entries, none of which is a
// [Composite]: old and new for one that [Moving] made, and s alone where it is no
// Composite itself.
func Stores(s Store) []Store {
	c, ok := s.(Composite)
	if !ok {
		return []Store{s}
	}
	var all []Store
	for _, part := range c.Stores() {
		all = append(all, Stores(part)...)
	}
	return all
}

// Sweep sweeps s once. A store that is no [Sweeper] forgets by itself: nothing
// is done.
func Sweep(ctx context.Context, s Store) (Swept, error) {
	if w, ok := s.(Sweeper); ok {
		return w.Sweep(ctx)
	}
	return Swept{}, nil
}

// The pauses of Wait between two looks at a store that is no Waiter.
const (
	pollFirst = 5 * time.Millisecond
	pollMost  = 500 * time.Millisecond
)

// Wait blocks until no claim of key is running in s, and returns the entry as
// [Waiter] says. A store that is no Waiter is polled with [Store.Load], after
// pauses that double from 5 ms to 500 ms and carry 50 % jitter.
func Wait(ctx context.Context, s Store, key string) (Entry, bool, error) {
	if w, ok := s.(Waiter); ok {
		return w.Wait(ctx, key)
	}
	for pause := pollFirst; ; pause = min(2*pause, pollMost) {
		e, found, err := s.Load(ctx, key)
		if err != nil || !found || e.Status != Pending {
			return e, found, err
		}
		if err := sleep(ctx, jitter(pause)); err != nil {
			return Entry{}, false, err
		}
	}
}

// jitter returns between half of d and d, so that callers who started together
// do not stay together.
func jitter(d time.Duration) time.Duration {
	return d - rand.N(d/2+1)
}

// sleep pauses for d or until ctx ends, and then returns its error.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
