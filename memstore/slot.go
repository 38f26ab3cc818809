package memstore

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/idempotent-go/idempotent"
)

// phase says what a slot is. It moves
//
//	busy -> pending              a claim is in the map and gets its fence
//	pending -> busy -> done      an outcome is recorded
//	pending -> busy -> dead      the claim is taken over
//	done    -> busy -> dead      an unknown outcome is settled
//	pending, done   -> dead      removed
//
// and a dead slot never moves again. Busy is a matter of a few instructions,
// in which one goroutine alone writes the slot or puts another in its place.
type phase uint64

const (
	busy    phase = iota // look again; what a new slot is
	dead                 // no longer, or about to be no longer, in the map
	pending              // claimed; word.end is the end of the lease
	done                 // finished; word.end is the end of the retention
)

// word is a slot's phase and the instant at which that ends, in one value, so
// that one compare-and-swap decides between a renewal, a completion and a
// take-over that meet.
type word uint64

func newWord(p phase, end int64) word { return word(end)<<2 | word(p) }

func (w word) phase() phase { return phase(w & 3) }
func (w word) end() int64   { return int64(w >> 2) }

// slot is the entry of one key under one owner. Another owner, or another
// outcome, gets another slot: what was read of a slot stays true.
//
// A slot is 128 bytes, two cache lines, and one more byte would make it 144.
type slot struct {
	state   atomic.Uint64                 // a word
	waiters atomic.Pointer[chan struct{}] // closed when the claim ends; made by the first who waits

	// Set before the slot is in the map.
	texts   string // key, owner, fingerprint and trace
	cuts    [3]int // where owner, fingerprint and trace begin
	claimed int64  // when this owner got the key
	first   int64  // when the first owner did
	keep    int64  // nanoseconds
	fence   int64  // set once the slot has its place in the map

	// Set while the slot is busy, valid once it is done.
	completed int64
	result    string
	segment   *segment // where the queue has it
	place     uint8    // and where in there
	success   bool
	unknown   bool

	takeOver bool        // may be taken over; set before the slot is in the map
	reported atomic.Bool // a sweep has counted it as abandoned
}

// newSlot returns a busy slot that nobody else has seen. The texts are copied, all
// into one string: a caller may have made its own over a buffer that it uses
// again. With an owner that is never empty the sum is a new string always.
func newSlot(key, owner, fingerprint, trace string, at int64) *slot {
	ownerAt := len(key)
	fingerprintAt := ownerAt + len(owner)
	return &slot{
		texts:   key + owner + fingerprint + trace,
		cuts:    [3]int{ownerAt, fingerprintAt, fingerprintAt + len(fingerprint)},
		claimed: at,
		first:   at,
	}
}

func (sl *slot) key() string         { return sl.texts[:sl.cuts[0]] }
func (sl *slot) owner() string       { return sl.texts[sl.cuts[0]:sl.cuts[1]] }
func (sl *slot) fingerprint() string { return sl.texts[sl.cuts[1]:sl.cuts[2]] }
func (sl *slot) trace() string       { return sl.texts[sl.cuts[2]:] }

// takenOver reports whether the claim was taken over from another owner, which
// is not before that one's lease has lapsed.
func (sl *slot) takenOver() bool { return sl.claimed > sl.first }

func (sl *slot) load() word { return word(sl.state.Load()) }

func (sl *slot) store(w word) { sl.state.Store(uint64(w)) }

func (sl *slot) swap(old, w word) bool { return sl.state.CompareAndSwap(uint64(old), uint64(w)) }

// past reports whether the slot under w is absent for everybody at instant now.
func (sl *slot) past(w word, now int64) bool {
	if w.phase() == pending {
		return now >= w.end()+sl.keep
	}
	return now >= w.end()
}

// textBytes is what the slot counts against the byte bound before it has a
// result.
func (sl *slot) textBytes() int64 { return int64(len(sl.texts)) }

func (sl *slot) status() idempotent.Status {
	if sl.success {
		return idempotent.Success
	}
	return idempotent.Failed
}

// outcomeIs reports whether the done slot has the known outcome o.
func (sl *slot) outcomeIs(o idempotent.Outcome) bool {
	return !sl.unknown && !o.Unknown && sl.status() == o.Status && sl.result == o.Result
}

// found is a slot as it was at one instant: pending or done, and not past its
// time. The zero value says that the key is absent.
type found struct {
	slot *slot
	word word
	now  int64 // exact where the slot is pending
}

// running reports whether a claim was found whose lease had not lapsed.
func (f found) running() bool { return f.word.phase() == pending && f.now < f.word.end() }

// find looks key up. Every method decides on what it returns, and calls it
// again where its own step came too late; it ends with ctx and with the store.
func (s *Store) find(ctx context.Context, key string) (found, error) {
	for {
		if err := s.ready(ctx); err != nil {
			return found{}, err
		}
		v, ok := s.slots.Load(key)
		if !ok {
			return found{}, nil
		}
		f := found{slot: v.(*slot)}
		f.word = f.slot.load()
		switch f.word.phase() {
		case dead:
			s.slots.CompareAndDelete(key, f.slot) // whoever buried it has not come to this yet
			continue
		case busy:
			runtime.Gosched()
			continue
		case pending:
			f.now = s.clock.now()
		case done:
			f.now = s.clock.roughly()
		}
		if !f.slot.past(f.word, f.now) {
			return f, nil
		}
		s.expire(ctx, f)
	}
}

// tell writes into e, which is zero, what callers are told of f. It is filled
// in place, since an entry is large and a replay is little more than that.
func (s *Store) tell(e *idempotent.Entry, f found) {
	sl, end := f.slot, f.word.end()
	e.Key = sl.key()
	e.Claimed = s.clock.time(sl.first)
	e.Expires = s.clock.time(end)
	e.Fingerprint = sl.fingerprint()
	e.Owner = sl.owner()
	e.Trace = sl.trace()
	e.Fence = sl.fence
	switch {
	case f.word.phase() == done:
		e.Status, e.Unknown, e.Result = sl.status(), sl.unknown, sl.result
		e.Timestamp = s.clock.time(sl.completed)
	case f.running():
		e.Status = idempotent.Pending
		e.Timestamp = s.clock.time(sl.claimed)
	default: // abandoned: it may have happened
		e.Status, e.Unknown = idempotent.Failed, true
		e.Timestamp = e.Expires
		e.Expires = s.clock.time(end + sl.keep)
	}
}

// insert claims an absent key, unless another caller is faster.
func (s *Store) insert(ctx context.Context, key string, c idempotent.Claim) (found, bool, error) {
	size := int64(len(key) + len(c.Owner) + len(c.Fingerprint) + len(c.Trace))
	if err := s.admit(ctx, size); err != nil {
		if _, taken := s.slots.Load(key); taken {
			return found{}, false, nil // a duplicate needs no room
		}
		return found{}, false, err
	}
	f := s.newClaim(key, c)
	if _, taken := s.slots.LoadOrStore(f.slot.key(), f.slot); taken {
		s.tally.add(-1, 0)
		s.bytes.Add(-size)
		return found{}, false, nil
	}
	// Not earlier: a claim that is overtaken here by one that is released again
	// would get the key later, with the smaller fence.
	f.slot.fence = s.nextFence(f.now)
	f.slot.store(f.word)
	s.gone.lower(f.word.end() + f.slot.keep)
	return f, true, nil
}

// newClaim returns the slot of a claim made now, without a fence, and the word
// under which it is pending.
func (s *Store) newClaim(key string, c idempotent.Claim) found {
	now := s.clock.now()
	sl := newSlot(key, c.Owner, c.Fingerprint, c.Trace, now)
	sl.keep = min(int64(c.Keep), forever)
	sl.takeOver = c.TakeOver
	return found{slot: sl, word: newWord(pending, s.clock.after(now, c.Lease)), now: now}
}

// nextFence returns a number larger than any before. It is one sequence for
// all keys, since a removed key leaves nothing that could remember its last.
func (s *Store) nextFence(now int64) int64 {
	micros := s.clock.micros(now)
	for {
		last := s.fence.Load()
		next := max(last+1, micros)
		if s.fence.CompareAndSwap(last, next) {
			return next
		}
	}
}

// move gives a pending slot another end of its lease.
func (s *Store) move(f found, end int64) (found, bool) {
	w := newWord(pending, end)
	if !f.slot.swap(f.word, w) {
		return found{}, false
	}
	if end < f.word.end() {
		s.gone.lower(end + f.slot.keep)
		f.slot.wake() // whoever waits has set a timer for the old end
	}
	f.word = w
	return f, true
}

// takeOver puts a new claim in the place of an abandoned one.
func (s *Store) takeOver(f found, c idempotent.Claim) (found, bool) {
	taken := s.newClaim(f.slot.key(), c)
	sl := taken.slot
	sl.first = f.slot.first
	sl.fence = s.nextFence(taken.now)
	sl.store(taken.word)
	if !s.replace(f, sl) {
		return found{}, false
	}
	s.bytes.Add(sl.textBytes() - f.slot.textBytes())
	s.gone.lower(taken.word.end() + sl.keep)
	return taken, true
}

// replace puts sl in the place of what was found, which is dead afterwards.
// The old slot is revoked before the new one can be seen, and the key is never
// absent in between.
func (s *Store) replace(f found, sl *slot) bool {
	if !f.slot.swap(f.word, newWord(busy, 0)) {
		return false
	}
	s.slots.CompareAndSwap(sl.key(), f.slot, sl) // nobody else touches a busy slot's place
	if f.word.phase() == done {
		s.queue.drop(f.slot)
	}
	f.slot.store(newWord(dead, 0))
	f.slot.wake()
	return true
}

// complete records the outcome of a pending slot and returns it, or nil where
// it has moved meanwhile.
func (s *Store) complete(f found, o idempotent.Outcome) *slot {
	if !f.slot.swap(f.word, newWord(busy, 0)) {
		return nil
	}
	s.tally.add(-1, 1)
	return s.finish(f.slot, o, f.now)
}

// record stores the outcome of a claim that is gone and returns its slot, or
// nil where the key is no longer absent.
func (s *Store) record(key, owner string, o idempotent.Outcome) *slot {
	now := s.clock.now()
	sl := newSlot(key, owner, o.Fingerprint, "", now)
	if _, taken := s.slots.LoadOrStore(sl.key(), sl); taken {
		return nil
	}
	sl.fence = s.nextFence(now) // not earlier; see insert
	s.tally.add(0, 1)
	s.bytes.Add(sl.textBytes())
	return s.finish(sl, o, now)
}

// settle records the known outcome that replaces an unknown one. Its slot is a
// new one, since readers may be looking at the old.
func (s *Store) settle(f found, o idempotent.Outcome) *slot {
	old := f.slot
	sl := &slot{
		texts: old.texts, cuts: old.cuts,
		claimed: old.claimed, first: old.first, fence: old.fence,
	}
	if !s.replace(f, sl) {
		return nil
	}
	s.bytes.Add(-int64(len(old.result)))
	return s.finish(sl, o, s.clock.now())
}

// finish writes the outcome into a busy slot and makes it done.
func (s *Store) finish(sl *slot, o idempotent.Outcome, now int64) *slot {
	end := s.clock.after(now, min(o.Retention, time.Duration(s.maxAge)))
	sl.success = o.Status == idempotent.Success
	sl.unknown = o.Unknown
	sl.result = o.Result
	sl.completed = now
	s.bytes.Add(int64(len(o.Result)))
	s.queue.push(sl, end)
	sl.store(newWord(done, end))
	sl.wake()
	return sl
}

// remove makes the key absent, provided that the slot is still under w.
func (s *Store) remove(sl *slot, w word) bool {
	if !sl.swap(w, newWord(dead, 0)) {
		return false
	}
	size := sl.textBytes()
	if w.phase() == done {
		size += int64(len(sl.result))
		s.queue.drop(sl)
		s.tally.add(0, -1)
	} else {
		s.tally.add(-1, 0)
	}
	s.bytes.Add(-size)
	s.slots.CompareAndDelete(sl.key(), sl)
	sl.wake()
	return true
}
