package idempotent

import (
	"container/heap"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	unclaimFirst    = 100 * time.Millisecond
	unclaimMost     = 5 * time.Second
	unclaimParallel = 16 // calls at a time, so that a store that recovers is not flooded

	// unclaimBacklog is how many claims may wait to be freed. In a long outage
	// every request would add one: beyond this number a claim is refused
	// without being sent, so that there is nothing to free.
	unclaimBacklog = 10_000
)

var errBacklog = errors.New("too many claims have not been answered; nothing more is sent until the store answers")

// unclaims frees keys whose claim was sent and never (or too late) answered:
// nothing was run under them, so whoever owns such a claim must not be left to
// look like somebody whose process died. One goroutine serves all of them, and
// ends when there are none. All guards over one store share it.
type unclaims struct {
	wake chan struct{} // holds one signal: the queue has changed
	left atomic.Int64  // in the queue or being sent; read without the lock by every claim

	mu      sync.Mutex // guards the fields below
	queue   unclaimQueue
	running bool // the goroutine is there
}

func newUnclaims() *unclaims { return &unclaims{wake: make(chan struct{}, 1)} }

// unclaimItem is one claim to free. Its owner is used for nothing else.
type unclaimItem struct {
	g          *Guard
	key, owner string
	landed     time.Time // a release sent from this moment on cannot be overtaken by the claim
	next       time.Time
	pause      time.Duration
}

// unclaim frees a claim in the background. It is sent at once, and repeated
// whatever the answer, until it has been answered by a call that was sent when
// the claim had landed: one that lands late is then freed, too.
func (g *Guard) unclaim(key, owner string, landed time.Time) {
	g.drain.fork()
	u := g.unclaims
	u.mu.Lock()
	defer u.mu.Unlock()
	heap.Push(&u.queue, &unclaimItem{g: g, key: key, owner: owner, landed: landed, next: time.Now(), pause: unclaimFirst})
	u.left.Add(1)
	u.signal()
	if !u.running {
		u.running = true
		go u.run()
	}
}

// full reports whether no more claims should be sent.
func (u *unclaims) full() bool { return u.left.Load() >= unclaimBacklog }

// signal has the goroutine look at the queue again.
func (u *unclaims) signal() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

func (u *unclaims) run() {
	var calls errgroup.Group
	calls.SetLimit(unclaimParallel)
	for {
		item, pause, ended := u.take(time.Now())
		switch {
		case ended:
			return
		case item != nil:
			calls.Go(func() error {
				u.send(item)
				return nil
			})
			continue
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-u.wake:
		}
		timer.Stop()
	}
}

// take returns the item that is due, or how long to wait for one. Without any
// it ends the goroutine.
func (u *unclaims) take(now time.Time) (item *unclaimItem, pause time.Duration, ended bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.left.Load() == 0:
		u.running = false
		return nil, 0, true
	case len(u.queue) == 0:
		return nil, unclaimMost, false // a call that ends wakes
	case u.queue[0].next.After(now):
		return nil, u.queue[0].next.Sub(now), false
	}
	return heap.Pop(&u.queue).(*unclaimItem), 0, false
}

// send makes one attempt, and puts the item back unless it was the last one.
func (u *unclaims) send(item *unclaimItem) {
	done := false
	defer func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		if done {
			u.left.Add(-1)
			item.g.drain.end()
		} else {
			heap.Push(&u.queue, item)
		}
		u.signal()
	}()
	// Not the request's context: it would keep all of the request for as long
	// as the store is away.
	sent := time.Now()
	err := item.g.step(context.Background(), "release", item.key, item.g.storeTimeout, func(ctx context.Context) error {
		return item.g.store.Release(ctx, item.key, item.owner)
	})
	if (err == nil || definite(err)) && !sent.Before(item.landed) {
		done = true
		return
	}
	item.next = time.Now().Add(jitter(item.pause))
	item.pause = min(2*item.pause, unclaimMost)
	if sent.Before(item.landed) && item.next.After(item.landed) {
		item.next = item.landed // the attempt that decides is sent as soon as it may be
	}
}

// unclaimQueue is a heap of items by the time of their next attempt.
type unclaimQueue []*unclaimItem

func (q unclaimQueue) Len() int           { return len(q) }
func (q unclaimQueue) Less(i, j int) bool { return q[i].next.Before(q[j].next) }
func (q unclaimQueue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }

func (q *unclaimQueue) Push(x any) { *q = append(*q, x.(*unclaimItem)) }

func (q *unclaimQueue) Pop() any {
	old := *q
	last := len(old) - 1
	item := old[last]
	old[last] = nil
	*q = old[:last]
	return item
}
