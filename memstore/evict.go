package memstore

import (
	"context"
	"log/slog"
	"math"
	"time"

	"github.com/idempotent-go/idempotent"
)

// What one request, or one step of a sweep, may do for room. Five hundred
// removals take about a third of a millisecond.
const (
	mostRemoved = 500  // entries, and what shares a segment with the last
	mostVisited = 4096 // segments looked at for entries past their time
)

// sweepChunk is how many entries a sweep looks at before it asks whether to go
// on.
const sweepChunk = 256

// warnEvery is the least time between two warnings of early eviction.
const warnEvery = time.Minute

// Sweep removes what is past its time, reports claims that were abandoned
// since the last sweep, and then makes room where a bound is exceeded. It
// holds nobody up for longer than 500 removals take, may be called at
// any time, also concurrently, and counts only what it did itself. It ends
// early with ctx and with [Store.Close], and returns what it has done until
// then together with the error.
func (s *Store) Sweep(ctx context.Context) (idempotent.Swept, error) {
	var n idempotent.Swept
	err := s.sweepAge(ctx, &n)
	for err == nil {
		expired, evicted, _ := s.makeRoom(ctx, s.maxEntries, nil, true)
		if expired+evicted == 0 {
			break
		}
		n.Expired += expired
		n.Evicted += evicted
		err = s.ready(ctx)
	}
	if n.Abandoned > 0 {
		s.logger.WarnContext(ctx, "memstore: claims abandoned: their lease lapsed without an outcome", slog.Int("claims", n.Abandoned))
	}
	return n, err
}

// sweepAge looks at every entry once. Claims have no order of their own: they
// are few, or short, so that going through all entries once in a while costs
// less than keeping one.
func (s *Store) sweepAge(ctx context.Context, n *idempotent.Swept) error {
	err := s.ready(ctx)
	if err != nil {
		return err
	}
	s.gone.forget()
	now, seen := s.clock.now(), 0
	s.slots.Range(func(_, v any) bool {
		if seen++; seen%sweepChunk == 0 {
			if err = s.ready(ctx); err != nil {
				s.gone.lower(now) // the rest has not been looked at
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
		switch {
		case f.slot.past(f.word, now):
			if s.expire(ctx, f) {
				n.Expired++
			}
		case f.word.phase() == pending:
			s.gone.lower(f.word.end() + f.slot.keep)
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
	var e idempotent.Entry
	s.tell(&e, f)
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
	claims, _ := s.tally.add(1, 0)
	s.bytes.Add(size)
	if claims <= s.maxEntries && !s.over(s.tolerated()) {
		return nil
	}
	if s.roomForClaim(ctx) || s.forgetAbandoned(ctx) && s.roomForClaim(ctx) {
		return nil
	}
	s.tally.add(-1, 0)
	s.bytes.Add(-size)
	return idempotent.ErrFull
}

// roomForClaim reports whether the claim that has just been counted fits, and
// makes room for it.
func (s *Store) roomForClaim(ctx context.Context) bool {
	if claims, _ := s.tally.load(); claims > s.maxEntries {
		return false // whatever else goes
	}
	// Whoever has removed all that one request may is let in, even where a
	// large result has left more to do for those who follow. So is a claim
	// that fitted a moment ago: those who have come since make their own room.
	_, _, full := s.makeRoom(ctx, s.tolerated(), nil, false)
	return !full
}

// forgetAbandoned removes claims that are past their Keep and reports whether
// there were any. It goes through all entries and is the last resort before a
// claim is refused; the bound spares most of those claims the way.
func (s *Store) forgetAbandoned(ctx context.Context) bool {
	var n idempotent.Swept
	if s.gone.due(s.clock.now()) {
		_ = s.sweepAge(ctx, &n)
	}
	return n.Expired > 0
}

// makeRoomAfter makes room after an outcome was recorded, and spares it.
func (s *Store) makeRoomAfter(ctx context.Context, finished *slot) {
	if s.over(s.tolerated()) {
		s.makeRoom(ctx, s.tolerated(), finished, false)
	}
}

// makeRoom removes entries while the store is over: those past their time,
// and then the oldest tenth of the finished ones, or more until both bounds
// are met. It removes no more than about mostRemoved and leaves the rest of
// the tenth to the next call; never spared, and none younger than WithMinAge. A
// request that had to wait here and finds the room made has nothing to do; a
// sweep goes on with what is left of the tenth.
// The store is full where it is still over and nothing is left that may go.
func (s *Store) makeRoom(ctx context.Context, entries int, spared *slot, sweep bool) (expired, evicted int, full bool) {
	s.room.Lock()
	defer s.room.Unlock()
	now := s.clock.now()
	if s.over(entries) { // nobody else has made it while we waited
		expired = s.removeExpired(ctx, now, spared)
	}
	if !s.over(entries) && (s.owed == 0 || !sweep) {
		return expired, 0, false
	}
	if s.owed == 0 {
		_, finished := s.tally.load()
		s.owed = (finished + 9) / 10
	}
	evicted, all := s.removeOldest(ctx, now, mostRemoved-expired, spared)
	s.owed = max(0, s.owed-evicted)
	if all {
		s.owed = 0
	}
	return expired, evicted, all && s.over(entries)
}

// removeExpired removes finished entries that are past their time. It costs one
// load where there is none.
func (s *Store) removeExpired(ctx context.Context, now int64, spared *slot) (n int) {
	if !s.queue.earliest.due(now) {
		return 0
	}
	s.queue.earliest.forget()
	visited := 0
	for seg := s.queue.after(nil); seg != nil; seg = s.queue.after(seg) {
		if n >= mostRemoved || visited == mostVisited {
			s.queue.earliest.lower(now) // the rest has not been looked at
			break
		}
		visited++
		seg.expired(now, func(sl *slot, w word) bool {
			if sl == spared || !s.expire(ctx, found{slot: sl, word: w, now: now}) {
				return false
			}
			n++
			return true
		})
		s.queue.earliest.lower(seg.earliest.at.Load())
	}
	return n
}

// removeOldest removes the finished entries that were completed first: what is
// owed, more where a bound is still exceeded, and at most most. It reports
// whether that was all that may go.
func (s *Store) removeOldest(ctx context.Context, now int64, most int, spared *slot) (n int, all bool) {
	early := eviction{option: "WithMaxBytes"}
	if s.Len() > s.maxEntries {
		early.option = "WithMaxEntries"
	}
	defer func() { s.warn(ctx, now, early) }()
	for seg := s.queue.after(nil); seg != nil; seg = s.queue.after(seg) {
		for i := range seg.places {
			if n >= most || n >= s.owed && !s.over(s.maxEntries) {
				return n, false
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
				return n, true // all that follow are younger still
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
	return n, true
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
