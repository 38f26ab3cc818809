package idempotent

import (
	"container/heap"
	"sync"
	"time"
)

// leaseClock wakes leases when they are due. All guards over one store share
// it. It has one timer for all of them: most leases end before they are due,
// and a timer of its own costs each of them more than its place in a heap.
type leaseClock struct {
	mu    sync.Mutex // guards the fields below, and due and place of every lease
	queue leaseQueue
	timer *time.Timer // nil until the first lease
	rings time.Time   // when the timer fires; zero: it does not
}

// set has l woken at due. The latest call counts.
func (c *leaseClock) set(l *lease, due time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.due = due
	if l.place == 0 {
		heap.Push(&c.queue, l)
	} else {
		heap.Fix(&c.queue, l.place-1)
	}
	c.arm()
}

// drop forgets l. It may be about to be woken all the same.
func (c *leaseClock) drop(l *lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.place > 0 {
		heap.Remove(&c.queue, l.place-1)
	}
	// The timer is left as it is: it fires once for nothing, which is cheaper
	// than to set it anew for every operation.
}

// ring wakes the leases that are due, each in a goroutine of its own.
func (c *leaseClock) ring() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rings = time.Time{}
	now := time.Now()
	for len(c.queue) > 0 && !c.queue[0].due.After(now) {
		go heap.Pop(&c.queue).(*lease).tick()
	}
	c.arm()
}

// arm sees to it that the timer fires when the first lease is due.
func (c *leaseClock) arm() {
	if len(c.queue) == 0 {
		return
	}
	first := c.queue[0].due
	if !c.rings.IsZero() && !first.Before(c.rings) {
		return
	}
	c.rings = first
	if left := time.Until(first); c.timer == nil {
		c.timer = time.AfterFunc(left, c.ring)
	} else {
		c.timer.Reset(left)
	}
}

// leaseQueue is a heap of leases by the time at which they are due.
type leaseQueue []*lease

func (q leaseQueue) Len() int           { return len(q) }
func (q leaseQueue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }

func (q leaseQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i+1, j+1
}

func (q *leaseQueue) Push(x any) {
	l := x.(*lease)
	*q = append(*q, l)
	l.place = len(*q)
}

func (q *leaseQueue) Pop() any {
	old := *q
	last := len(old) - 1
	l := old[last]
	old[last] = nil
	*q = old[:last]
	l.place = 0
	return l
}
