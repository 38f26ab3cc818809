package idempotent

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Moving returns a store for the time in which a program moves from one store
// to another without a stop and without a double run. It claims in the old
// store, then in the new, and answers with either's record. The program goes
// through three versions: one that uses old alone, one that uses Moving, and
// one that uses new alone. The first and the second may run side by side, and
// so may the second and the third; the first and the third never. When the last
// instance of the first version has ended, wait for one retention, the longest
// that is in use, and one lease before the first instance of the third starts:
// what the first version recorded is in old only.
//
// What the pair says of a key, where each store says something of its own:
//
//	                 new: absent  running    known      unknown
//	old: absent           absent  running    known      unknown
//	     running         running  running    known      running
//	     known             known  known      new's      known
//	     unknown         unknown  running    known      unknown
//
// An operation runs once both stores are claimed; what is claimed in old but
// not in new is freed again. Completion is recorded in old, then in new; a
// release frees new, then old. A process that dies in between leaves an
// abandoned claim in one of them, which is unknown, never free. An owner who
// has lost one claim has lost both. A fence is the larger of both, and grows for
// a key from version to version where the clocks of the stores agree to within
// the pause between two claims of it. Times are those of the store whose record
// is answered.
//
// A store that fails refuses: Moving answers only where both do. A fresh call
// costs two calls of each store, and a replay one.
//
// Old must be shared by the versions that use it: a memory store of one process
// is not. The store is a [Waiter], a [Pinger] and a [Deleter], as far as both
// are; it is no [Sweeper], so that each store that needs one gets its own
// [Janitor], and no [Lister]: each store lists its own; [Stores] returns both.
// Old and new stay the caller's to close. Moving panics on nil.
func Moving(old, new Store) Store {
	if isNil(old) || isNil(new) {
		panic("idempotent: Moving: a store is nil; it takes an old and a new one")
	}
	return &moving{old: old, new: new}
}

type moving struct {
	old, new Store
}

var (
	_ Store     = (*moving)(nil)
	_ Waiter    = (*moving)(nil)
	_ Pinger    = (*moving)(nil)
	_ Deleter   = (*moving)(nil)
	_ Composite = (*moving)(nil)
)

// reading is what one store said of a key.
type reading struct {
	entry Entry
	found bool
}

// rank orders readings: of two, the higher one says more.
func (r reading) rank() int {
	switch {
	case !r.found:
		return 0
	case r.entry.Unknown:
		return 1
	case r.entry.Status == Pending:
		return 2
	}
	return 3
}

// merge returns what both readings say together. Of two that say as much old's
// stands where both are of one execution, as it did before new had its own.
// Otherwise new's does: they differ only where new was taken over by the version
// that uses it alone.
func merge(old, new reading) reading {
	r := new
	if old.rank() > new.rank() || old.rank() == new.rank() && old.entry.Owner == new.entry.Owner {
		r = old
	}
	r.entry.Fence = max(old.entry.Fence, new.entry.Fence)
	return r
}

// Load returns what both stores say of key.
func (m *moving) Load(ctx context.Context, key string) (Entry, bool, error) {
	old, new, err := m.look(ctx, key)
	if err != nil {
		return Entry{}, false, err
	}
	r := merge(old, new)
	return r.entry, r.found, nil
}

// look reads key in both stores.
func (m *moving) look(ctx context.Context, key string) (old, new reading, err error) {
	if old.entry, old.found, err = m.old.Load(ctx, key); err == nil {
		old, new, err = m.lookOn(ctx, key, old)
	}
	return old, new, err
}

// lookOn reads key in new, when old was read. An outcome that was recorded in
// both meanwhile is read in old, where everybody finds it from now on.
func (m *moving) lookOn(ctx context.Context, key string, old reading) (_, new reading, err error) {
	new.entry, new.found, err = m.new.Load(ctx, key)
	if err == nil && old.entry.Status == Pending && new.rank() > old.rank() {
		old.entry, old.found, err = m.old.Load(ctx, key)
	}
	return old, new, err
}

// Claim claims key in old, then in new. The order is everybody's, so that of
// two who claim one goes on.
func (m *moving) Claim(ctx context.Context, key string, c Claim) (Entry, bool, error) {
	held, claimed, err := m.old.Claim(ctx, key, c)
	if err != nil {
		return Entry{}, false, err
	}
	old := reading{held, true}
	if !claimed {
		old, new, err := m.lookOn(ctx, key, old)
		if err != nil {
			return Entry{}, false, err
		}
		return merge(old, new).entry, false, nil
	}
	e, claimed, err := m.new.Claim(ctx, key, c)
	switch {
	case err != nil:
		return Entry{}, false, m.undo(ctx, key, c.Owner, err)
	case claimed:
		return merge(old, reading{e, true}).entry, true, nil
	case e.Owner == c.Owner:
		// Its own outcome, by a claim sent again. It happened: old must not
		// become free.
		return e, false, nil
	}
	if err := m.undo(ctx, key, c.Owner, nil); err != nil {
		return Entry{}, false, err
	}
	return e, false, nil
}

// undo frees owner's claim in old, of which new has none, and returns why. That
// the claim may be left is another error than a refusal, of which callers may
// conclude that nothing was claimed.
func (m *moving) undo(ctx context.Context, key, owner string, why error) error {
	if err := m.old.Release(ctx, key, owner); err != nil && !errors.Is(err, ErrLost) {
		return fmt.Errorf("idempotent: Moving: free the claim in the old store: %w", err)
	}
	return why
}

// Renew renews both claims, also where one store fails: the other one's claim
// need not lapse with it. Where old has been taken over new is left alone, so
// that who took old over is not kept from new.
func (m *moving) Renew(ctx context.Context, key, owner string, lease time.Duration) error {
	err := m.old.Renew(ctx, key, owner, lease)
	if errors.Is(err, ErrLost) {
		return err
	}
	return eitherLost(err, m.new.Renew(ctx, key, owner, lease))
}

// Complete records the outcome in old, and in new unless somebody else has old:
// the outcome there is then another one.
func (m *moving) Complete(ctx context.Context, key, owner string, o Outcome) error {
	err := m.old.Complete(ctx, key, owner, o)
	if errors.Is(err, ErrLost) {
		return err
	}
	return eitherLost(err, m.new.Complete(ctx, key, owner, o))
}

// eitherLost returns the error of a step that both stores were asked for: what
// is lost in one is lost.
func eitherLost(old, new error) error {
	if old == nil || errors.Is(new, ErrLost) {
		return new
	}
	return old
}

// Release frees both claims, the last one first, so that who can claim old finds
// new free. A failure comes before ErrLost: the step is to be sent again.
func (m *moving) Release(ctx context.Context, key, owner string) error {
	err := m.new.Release(ctx, key, owner)
	if old := m.old.Release(ctx, key, owner); old != nil && (err == nil || errors.Is(err, ErrLost)) {
		return old
	}
	return err
}

// Wait waits in the store in which a claim is running, until there is none.
func (m *moving) Wait(ctx context.Context, key string) (Entry, bool, error) {
	for {
		old, new, err := m.look(ctx, key)
		if err != nil {
			return Entry{}, false, err
		}
		r := merge(old, new)
		if !r.found || r.entry.Status != Pending {
			return r.entry, r.found, nil
		}
		running := m.new
		if old.found && old.entry.Status == Pending {
			running = m.old
		}
		if _, _, err := Wait(ctx, running, key); err != nil {
			return Entry{}, false, err
		}
	}
}

func (m *moving) Ping(ctx context.Context) error {
	return errors.Join(Ping(ctx, m.old), Ping(ctx, m.new))
}

// Delete removes key from both stores. It may be repeated where it failed.
func (m *moving) Delete(ctx context.Context, key string) error {
	for _, s := range [...]Store{m.old, m.new} {
		if _, ok := s.(Deleter); !ok {
			return fmt.Errorf("idempotent: a %T cannot delete a key: %w", s, errors.ErrUnsupported)
		}
	}
	return errors.Join(Delete(ctx, m.new, key), Delete(ctx, m.old, key))
}

// Stores returns old and new.
func (m *moving) Stores() []Store { return []Store{m.old, m.new} }
