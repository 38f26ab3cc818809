package memstore

import (
	"sync"
	"sync/atomic"
)

// segmentSize is how many finished entries share one piece of the queue. One
// entry that stays while its neighbours go keeps all of the piece, 2 KiB.
const segmentSize = 256

const _ = uint8(segmentSize - 1) // slot.place holds it

// queue keeps the finished entries in the order of their completion. Places
// are taken at the end by one atomic addition, so that completions which meet
// may stand in the wrong order, apart by no more than they were in time.
//
// Entries that go leave their place empty, and a segment whose places have all
// been left is unlinked at once: claims that come and go do not make it grow.
type queue struct {
	mu   sync.Mutex // guards the links between segments, not their places
	head *segment
	tail atomic.Pointer[segment] // changed under mu

	earliest bound // of the ends of retention in all segments
}

type segment struct {
	prev, next *segment     // guarded by queue.mu; next stays when the segment is unlinked, for those who stand on it
	unlinked   bool         // guarded by queue.mu
	taken      atomic.Int32 // places given out; more than there are while the next segment is made
	left       atomic.Int32 // places that are empty again
	earliest   bound        // of the ends of retention in here
	places     [segmentSize]atomic.Pointer[slot]
}

func newSegment() *segment {
	seg := new(segment)
	seg.earliest.forget()
	return seg
}

func (q *queue) init() {
	q.head = newSegment()
	q.tail.Store(q.head)
	q.earliest.forget()
}

// push gives a busy slot, whose retention will end at end, the last place.
func (q *queue) push(sl *slot, end int64) {
	for {
		seg := q.tail.Load()
		i := seg.taken.Add(1) - 1
		if i >= segmentSize {
			q.grow(seg)
			continue
		}
		sl.segment, sl.place = seg, uint8(i)
		seg.places[i].Store(sl)
		seg.earliest.lower(end)
		q.earliest.lower(end)
		return
	}
}

// drop empties the place of a slot that has been done.
func (q *queue) drop(sl *slot) {
	seg := sl.segment
	seg.places[sl.place].Store(nil)
	if seg.left.Add(1) == segmentSize {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.unlink(seg)
	}
}

// grow appends a segment to seg, unless that has been done.
func (q *queue) grow(seg *segment) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.tail.Load() != seg {
		return
	}
	next := newSegment()
	next.prev, seg.next = seg, next
	q.tail.Store(next)
	if seg.left.Load() == segmentSize {
		q.unlink(seg) // it could not go while it was the last
	}
}

// unlink takes an empty segment out. The caller holds mu.
func (q *queue) unlink(seg *segment) {
	if seg.unlinked || seg == q.tail.Load() {
		return
	}
	seg.unlinked = true
	if seg.prev == nil {
		q.head = seg.next
	} else {
		seg.prev.next = seg.next
	}
	seg.next.prev = seg.prev
	seg.prev = nil
}

// after returns the segment that follows seg, the first one after nil, and nil
// after the last.
func (q *queue) after(seg *segment) *segment {
	q.mu.Lock()
	defer q.mu.Unlock()
	if seg == nil {
		return q.head
	}
	return seg.next
}

// expired calls remove, which reports whether it did, for each slot in seg
// whose retention has passed at now. It costs one load where there is none.
func (seg *segment) expired(now int64, remove func(*slot, word) bool) {
	if !seg.earliest.due(now) {
		return
	}
	seg.earliest.forget()
	for i := range seg.places {
		sl := seg.places[i].Load()
		if sl == nil {
			continue
		}
		switch w := sl.load(); {
		case w.phase() != done:
			seg.earliest.lower(now) // its end is not known yet: look again next time
		case now < w.end() || !remove(sl, w):
			seg.earliest.lower(w.end())
		}
	}
}
