// Package memstore keeps idempotency keys in the memory of one process.
//
// It serves a single process and forgets on restart: two processes, or a
// process and its successor, do not see each other's keys, unless the one ends
// in order and leaves a file to the other ([WithSnapshot]). Above its size it
// forgets the oldest finished entries, so that the real retention is the
// smaller of the one asked for and the size divided by the rate of new keys
// (10,000 entries at 100 keyed requests per second are 100 seconds). Where
// that is not enough, use a shared store.
package memstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idempotent-go/idempotent"
)

var (
	_ idempotent.Store   = (*Store)(nil)
	_ idempotent.Waiter  = (*Store)(nil)
	_ idempotent.Sweeper = (*Store)(nil)
	_ idempotent.Pinger  = (*Store)(nil)
	_ idempotent.Deleter = (*Store)(nil)
	_ idempotent.Lister  = (*Store)(nil)
)

// Store is an [idempotent.Store] in memory. It is made by [New], safe for
// concurrent use, and needs a [Store.Close] unless its background is off.
//
// Every method returns [idempotent.ErrClosed] after Close, ctx's error where
// ctx has ended, and [idempotent.ErrInvalid] for arguments that no store
// accepts. None but [Store.Wait] blocks.
type Store struct {
	slots  sync.Map // string to *slot
	clock  *clock
	closed atomic.Bool
	ended  chan struct{} // closed by Close, for those who wait

	maxEntries int
	maxBytes   int64
	maxAge     int64 // nanoseconds; forever where it is off
	minAge     int64 // nanoseconds
	logger     *slog.Logger
	observer   idempotent.Observer // nil: nobody is told
	janitor    *idempotent.Janitor // nil where the background is off
	snapshot   *snapshot           // nil where none is kept
	broken     error               // why the snapshot could not be read; such a store is closed
	closeOnce  sync.Once
	closeErr   error // set within closeOnce

	// What follows changes with every claim. It is kept off the cache lines
	// of what every replay reads.
	_     [64]byte
	tally tally
	bytes atomic.Int64
	fence atomic.Int64 // the largest given out; one for all keys, so that it outlives removal
	queue queue
	gone  bound // of the instants at which abandoned claims are past their Keep

	room     sync.Mutex // held while entries are evicted: two requests must not both forget a tenth
	owed     int        // of a tenth that is going, how many are still to go; guarded by room
	warned   bool       // early eviction has been logged; guarded by room
	warnedAt int64      // and when; guarded by room

	expired, evicted, evictedEarly, abandoned atomic.Int64
}

// Stats counts what a store holds and what it has forgotten since it was made.
type Stats struct {
	Entries      int // held now, running claims included
	Pending      int // of these, claims without an outcome, lapsed or not
	Bytes        int // held now: keys, owners, fingerprints, traces and results, without the store's own overhead
	Expired      int // removed because their time had passed
	Evicted      int // removed to make room
	EvictedEarly int // of these, with retention left
	Abandoned    int // claims whose lease was found to have lapsed, each counted once
}

// New returns a store, empty unless [WithSnapshot] gives it something. Without
// options it holds 10,000 entries or 256 MiB, and sweeps once a minute in a
// goroutine that [Store.Close] ends. It panics on options that contradict each
// other.
//
// Where the snapshot cannot be read, every method of the store but Len and
// Stats returns that error, which is logged too: the store neither answers nor
// claims anything, and its Close leaves the file as it is. [Open] tells at once.
func New(opts ...Option) *Store {
	s := open(opts)
	if s.broken != nil {
		s.logger.Error("memstore: the snapshot cannot be read: every call is refused", slog.Any("err", s.broken))
	}
	return s
}

// Open returns what [New] does, or the error that kept it from reading its
// snapshot; see [WithSnapshot]. Without a snapshot there is none.
func Open(opts ...Option) (*Store, error) {
	s := open(opts)
	if s.broken != nil {
		return nil, s.broken
	}
	return s, nil
}

func open(opts []Option) *Store {
	c := newConfig(opts)
	s := &Store{
		ended:      make(chan struct{}),
		maxEntries: c.maxEntries,
		maxBytes:   c.maxBytes,
		maxAge:     int64(c.maxAge),
		minAge:     int64(c.minAge),
		logger:     c.logger,
		observer:   c.observer,
	}
	s.queue.init()
	s.gone.forget()
	background := c.sweepInterval > 0
	if c.snapshot != "" {
		if s.broken = s.restore(c.snapshot, background); s.broken != nil {
			if s.clock != nil {
				s.clock.stop()
			}
			s.clock = newClock(false)
			s.closed.Store(true)
			return s
		}
	} else {
		s.clock = newClock(background)
	}
	if background {
		s.janitor = idempotent.NewJanitor(s, c.sweepInterval)
	}
	return s
}

// Close ends the background, wakes everybody who waits with
// [idempotent.ErrClosed], and returns when the background has ended. What the
// store held is then in its snapshot, or forgotten where it has none. It may be
// called more than once, also concurrently, and always returns what became of
// the snapshot: nil, an error that says why it could not be written (the one
// before is then still there), or why it could not be read. An
// [idempotent.Observer] must not call it.
//
// A claim, completion, release or removal that is under way when a store with
// a snapshot is closed may be told that whether it counts is not known. Drain
// the guard first, and there is none.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		s.closeErr = s.broken
		if s.broken != nil {
			return
		}
		s.closed.Store(true)
		close(s.ended)
		s.clock.stop()
		if s.janitor != nil {
			s.closeErr = s.janitor.Close()
		}
		if s.snapshot != nil {
			s.closeErr = errors.Join(s.closeErr, s.save())
		}
	})
	return s.closeErr
}

// Len returns how many entries the store holds: running, abandoned and
// finished ones, and those whose time has passed but that no sweep has met.
func (s *Store) Len() int {
	pending, finished := s.tally.load()
	return pending + finished
}

// Stats returns the store's counts. Each is exact; together they are those of
// one moment only while nothing else uses the store.
func (s *Store) Stats() Stats {
	pending, finished := s.tally.load()
	return Stats{
		Entries:      pending + finished,
		Pending:      pending,
		Bytes:        int(s.bytes.Load()),
		Expired:      int(s.expired.Load()),
		Evicted:      int(s.evicted.Load()),
		EvictedEarly: int(s.evictedEarly.Load()),
		Abandoned:    int(s.abandoned.Load()),
	}
}

// Load returns the entry of key, as [idempotent.Store] says. It allocates
// nothing.
func (s *Store) Load(ctx context.Context, key string) (e idempotent.Entry, ok bool, err error) {
	if err := validateKey(key); err != nil {
		return e, false, err
	}
	f, err := s.find(ctx, key)
	if err != nil || f.slot == nil {
		return e, false, err
	}
	s.tell(&e, f)
	return e, true, nil
}

// Claim claims key for c.Owner, as [idempotent.Store] says. Where the store is
// above its bounds it first forgets some of the oldest finished entries, at
// most about a thousand; where none may go it returns [idempotent.ErrFull].
// Running claims alone never exceed the bound on entries.
func (s *Store) Claim(ctx context.Context, key string, c idempotent.Claim) (e idempotent.Entry, claimed bool, err error) {
	if err := idempotent.ValidateKey(key, c.Owner); err != nil {
		return e, false, err
	}
	if err := c.Validate(); err != nil {
		return e, false, err
	}
	for {
		f, err := s.find(ctx, key)
		if err != nil {
			return e, false, err
		}
		refused := false
		switch {
		case f.slot == nil:
			if f, claimed, err = s.insert(ctx, key, c); err != nil {
				return e, false, err
			}
		case f.word.phase() == done:
			refused = true
		case f.slot.owner() == c.Owner:
			f, claimed = s.move(f, s.clock.after(f.now, c.Lease))
		case f.running() || !f.slot.takeOver || !c.TakeOver || f.slot.fingerprint() != c.Fingerprint:
			refused = true
		default:
			f, claimed = s.takeOver(f, c)
		}
		if claimed {
			if err := s.kept(); err != nil {
				return e, false, err
			}
		}
		if claimed || refused {
			s.tell(&e, f)
			return e, claimed, nil
		}
		// Somebody else was faster: decide again on what is there now.
	}
}

// Renew starts owner's lease anew, as [idempotent.Store] says.
func (s *Store) Renew(ctx context.Context, key, owner string, lease time.Duration) error {
	if err := idempotent.ValidateKey(key, owner); err != nil {
		return err
	}
	if err := idempotent.ValidateDuration("lease", lease); err != nil {
		return err
	}
	for {
		f, err := s.find(ctx, key)
		switch {
		case err != nil:
			return err
		case f.slot == nil, f.slot.owner() != owner:
			return idempotent.ErrLost
		case f.word.phase() == done:
			return nil
		}
		if _, ok := s.move(f, s.clock.after(f.now, lease)); ok {
			return nil
		}
	}
}

// Complete records owner's outcome, as [idempotent.Store] says. It is never
// refused for room: where it takes the store above its bounds, older finished
// entries go, at most about a thousand by this call.
//
// o.Result is kept as it is, not copied: a string cut from a larger one keeps
// all of that in memory, and only its own length counts against the bound.
func (s *Store) Complete(ctx context.Context, key, owner string, o idempotent.Outcome) error {
	if err := idempotent.ValidateKey(key, owner); err != nil {
		return err
	}
	if err := o.Validate(); err != nil {
		return err
	}
	for {
		f, err := s.find(ctx, key)
		if err != nil {
			return err
		}
		var finished *slot
		switch {
		case f.slot == nil:
			finished = s.record(key, owner, o)
		case f.slot.owner() != owner:
			return idempotent.ErrLost
		case f.word.phase() == pending:
			finished = s.complete(f, o)
		case o.Unknown, f.slot.outcomeIs(o):
			return s.kept()
		case !f.slot.unknown:
			return idempotent.ErrLost
		default:
			finished = s.settle(f, o)
		}
		if finished != nil {
			s.makeRoomAfter(ctx, finished)
			return s.kept()
		}
	}
}

// Release frees a key that owner holds, as [idempotent.Store] says.
func (s *Store) Release(ctx context.Context, key, owner string) error {
	if err := idempotent.ValidateKey(key, owner); err != nil {
		return err
	}
	for {
		f, err := s.find(ctx, key)
		switch {
		case err != nil:
			return err
		case f.slot == nil:
			return nil
		case f.slot.owner() != owner:
			return idempotent.ErrLost
		case f.word.phase() == done && !f.slot.unknown:
			return nil
		case f.word.phase() == pending && f.slot.takenOver():
			if !f.running() {
				return nil
			}
			if _, ok := s.move(f, f.now); ok {
				return s.kept()
			}
		default:
			if s.remove(f.slot, f.word) {
				return s.kept()
			}
		}
	}
}

// Delete removes key whatever its state; see [idempotent.Deleter]. The owner
// of a running claim learns of it at its next step.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := validateKey(key); err != nil {
		return err
	}
	for {
		f, err := s.find(ctx, key)
		if err != nil || f.slot == nil {
			return err
		}
		if s.remove(f.slot, f.word) {
			return s.kept()
		}
	}
}

// Ping returns nil until the store is closed.
func (s *Store) Ping(ctx context.Context) error { return s.ready(ctx) }

// ready returns why a call may not go on: the store is closed or ctx ended.
func (s *Store) ready(ctx context.Context) error {
	if s.closed.Load() {
		return s.refusal()
	}
	return ctx.Err()
}

// refusal is what a closed store says.
func (s *Store) refusal() error {
	if s.broken != nil {
		return s.broken
	}
	return idempotent.ErrClosed
}

func validateKey(key string) error {
	if key == "" {
		return errEmptyKey
	}
	return nil
}

var errEmptyKey = fmt.Errorf("%w: the key is empty", idempotent.ErrInvalid)
