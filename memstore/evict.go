package memstore

import (
	"context"
	"log/slog"
	"math"
	"time"

	"github.com/idempotent-go/idempotent"
)

// What one request, or one step of a sweep, may do for room. A thousand
// removals take less than a millisecond.
const (
	mostRemoved = 1000 // entries, and what shares a segment with the last
	mostVisited = 4096 // segments looked at for entries past their time
)

// sweepChunk is how many entries a sweep looks at before it asks whether to go
// on.
const sweepChunk = 256

// warnEvery is the least time between two warnings of early eviction.
const warnEvery = time.Minute

// Sweep removes what is past its time, reports claims that were abandoned
// since the last sweep, and then makes room where a bound is exceeded. It
// holds nobody up for longer than a thousand removals take, may be called at
// any time, also concurrently, and counts only what it did itself. It ends
// early with ctx and with [Store.Close], and returns what it has done until
// then together with the error.
func (s *Store) Sweep(ctx context.Context) (idempotent.Swept, error) {
	var n idempotent.Swept
	err := s.sweepAge(ctx, &n)
	for err == nil && s.over(s.maxEntries) {
		expired, evicted := s.makeRoom(ctx, s.maxEntries, nil)
		n.Expired += expired
		n.Evicted += evicted
		if expired+evicted == 0 {
			break
		}
		err = s.ready(ctx)
	}
	if n.Abandoned > 0 {
		s.logger.WarnContext(ctx, "memstore: claims abandoned: their lease lapsed without an outcome", slog.Int("claims", n.Abandoned))
	}
	return n, err
}

// sweepAge looks at every entry once.
func (s *Store) sweepAge(ctx context.Context, n *idempotent.Swept) error {
	err := s.ready(ctx)
	if err != nil {
		return err
	}
	now, seen := s.clock.now(), 0
	s.slots.Range(func(_, v any) bool {
		if seen++; seen%sweepChunk == 0 {
			if err = s.ready(ctx); err != nil {
				return false
			}
			now = s.clock.now()
		}
		f := found{slot: v.(*slot), now: now}
		f.word = f.slot.load()
		if p := f.word.phase(); p != pending && p != done {
			return true
		}
		if s.reportAbandoned(ctx, f) {
			n.Abandoned++
		}
		if f.slot.past(f.word, now) && s.expire(ctx, f) {
			n.Expired++
		}
		return true
	})
	return err
}

// expire removes an entry that is past its time.
func (s *Store) expire(ctx context.Context, f found) bool {
	if !s.remove(f.slot, f.word) {
		return false
	}
	s.expired.Add(1)
	s.reportAbandoned(ctx, f) // no sweep came by while it lay abandoned
	return true
}

// reportAbandoned counts f and tells the observer where it is an abandoned
// claim that nobody has reported yet.
func (s *Store) reportAbandoned(ctx context.Context, f found) bool {
	if f.word.phase() != pending || f.running() || !f.slot.reported.CompareAndSwap(false, true) {
		return false
	}
	s.abandoned.Add(1)
	s.observe(ctx, idempotent.EventAbandoned, f, f.slot.first)
	return true
}

// observe tells the observer what happened to f, which is as old as since says.
func (s *Store) observe(ctx context.Context, kind idempotent.EventKind, f found, since int64) {
	if s.observer == nil {
		return
	}
	e := s.entry(f)
	s.observer.Observe(ctx, idempotent.Event{
		Kind: kind, Key: e.Key, Owner: e.Owner, Trace: e.Trace, Status: e.Status, Unknown: e.Unknown,
		Age: time.Duration(f.now - since),
	})
}

// tolerated is how many entries a claim may find or make without having to
// make room. The tenth leaves the work to the sweep; it is not given where
// young entries are protected, since then the room may never be made.
func (s *Store) tolerated() int {
	if s.minAge > 0 || s.maxEntries > math.MaxInt-s.maxEntries/10 {
		return s.maxEntries
	}
	return s.maxEntries + s.maxEntries/10
}

// over reports whether the store holds more than entries, or too many bytes.
func (s *Store) over(entries int) bool {
	return s.Len() > entries || s.bytes.Load() > s.maxBytes
}

// admit counts one more claim of size bytes, after making room where that is
// needed. On [idempotent.ErrFull] it has counted nothing.
func (s *Store) admit(ctx context.Context, size int64) error {
	running, _ := s.tally.add(1, 0)
	s.bytes.Add(size)
	if running <= s.maxEntries {
		if !s.over(s.tolerated()) {
			return nil
		}
		// Whoever has removed all that one request may is let in, even if a
		// large completion left more to do for those who follow.
		expired, evicted := s.makeRoom(ctx, s.tolerated(), nil)
		if expired+evicted >= mostRemoved || !s.over(s.tolerated()) {
			return nil
		}
	}
	s.tally.add(-1, 0)
	s.bytes.Add(-size)
	return idempotent.ErrFull
}

// makeRoomAfter makes room after an outcome was recorded, and spares it.
func (s *Store) makeRoomAfter(ctx context.Context, finished *slot) {
	if s.over(s.tolerated()) {
		s.makeRoom(ctx, s.tolerated(), finished)
	}
}

// makeRoom removes entries while the store is over: those past their time,
// and then, until both bounds are met, the oldest tenth of the finished ones
// or more. It removes no more than about mostRemoved, never spared, and none
// that is younger than WithMinAge.
func (s *Store) makeRoom(ctx context.Context, entries int, spared *slot) (expired, evicted int) {
	s.room.Lock()
	defer s.room.Unlock()
	if !s.over(entries) {
		return 0, 0 // somebody else has made it while we waited
	}
	now := s.clock.now()
	expired = s.removeExpired(ctx, now, spared)
	if s.over(entries) {
		evicted = s.removeOldest(ctx, now, mostRemoved-expired, spared)
	}
	return expired, evicted
}

// removeExpired removes finished entries that are past their time.
func (s *Store) removeExpired(ctx context.Context, now int64, spared *slot) (n int) {
	visited := 0
	for seg := s.queue.after(nil); seg != nil && n < mostRemoved && visited < mostVisited; seg = s.queue.after(seg) {
		visited++
		seg.expired(now, func(sl *slot, w word) bool {
			if sl == spared || !s.expire(ctx, found{slot: sl, word: w, now: now}) {
				return false
			}
			n++
			return true
		})
	}
	return n
}

// removeOldest removes the finished entries that were completed first: a tenth
// of them, more where a bound is still exceeded, and at most most.
func (s *Store) removeOldest(ctx context.Context, now int64, most int, spared *slot) (n int) {
	early := eviction{option: "WithMaxBytes"}
	if s.Len() > s.maxEntries {
		early.option = "WithMaxEntries"
	}
	defer func() { s.warn(ctx, now, early) }()
	_, finished := s.tally.load()
	tenth := (finished + 9) / 10
	for seg := s.queue.after(nil); seg != nil; seg = s.queue.after(seg) {
		for i := range seg.places {
			if n >= most || n >= tenth && !s.over(s.maxEntries) {
				return n
			}
			sl := seg.places[i].Load()
			if sl == nil || sl == spared {
				continue
			}
			w := sl.load()
			if w.phase() != done {
				continue
			}
			if now-sl.completed < s.minAge {
				return n // all that follow are younger still
			}
			if !s.remove(sl, w) {
				continue
			}
			n++
			s.evicted.Add(1)
			if now < w.end() {
				early.entries++
				early.youngest = max(early.youngest, sl.completed)
				s.evictedEarly.Add(1)
				s.observe(ctx, idempotent.EventEvicted, found{slot: sl, word: w, now: now}, sl.completed)
			}
		}
	}
	return n
}

// eviction is what one removeOldest has removed early.
type eviction struct {
	entries  int
	youngest int64  // when the last of them was completed
	option   string // the bound that was exceeded
}

// warn logs an early eviction, unless one has been logged lately.
func (s *Store) warn(ctx context.Context, now int64, early eviction) {
	if early.entries == 0 || s.warned && now-s.warnedAt < int64(warnEvery) {
		return
	}
	s.warned, s.warnedAt = true, now
	s.logger.WarnContext(ctx, "memstore: entries evicted before their retention passed: repeats of their keys will run again",
		slog.Int("evicted", early.entries),
		slog.Int64("evicted_in_all", s.evictedEarly.Load()),
		slog.Duration("age_of_youngest", time.Duration(now-early.youngest)),
		slog.String("option", early.option))
}
