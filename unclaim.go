package idempotent

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// unclaims frees keys whose claim was sent and never (or too late) answered:
// nothing was run under them, so whoever owns such a claim must not be left to
// look like somebody whose process died. One goroutine serves all of them, and
// ends when there are none. All guards over one store share it.
type unclaims struct {
	mu      sync.Mutex // guards the fields below
	items   []*unclaimItem
	running bool
	wake    chan struct{} // closed when an item is added
}

// unclaimItem is one claim to free. Its owner is used for nothing else.
type unclaimItem struct {
	g          *Guard
	ctx        context.Context
	key, owner string
	until      time.Time // a release sent after this moment cannot be overtaken by the claim
	next       time.Time
	pause      time.Duration
	done       bool
}

const (
	unclaimFirst    = 100 * time.Millisecond
	unclaimMost     = 5 * time.Second
	unclaimParallel = 16 // calls at a time, so that a store that recovers is not flooded
)

// unclaim frees a claim in the background. It is sent at once, and repeated
// whatever the answer, until it has been answered by a call that was sent
// later than the store timeout plus one lease after the claim: one that lands
// late is then freed, too.
func (g *Guard) unclaim(ctx context.Context, key, owner string, sent time.Time) {
	g.drain.fork()
	now := time.Now()
	u := g.unclaims
	u.mu.Lock()
	defer u.mu.Unlock()
	u.items = append(u.items, &unclaimItem{
		g: g, ctx: context.WithoutCancel(ctx), key: key, owner: owner,
		until: sent.Add(g.storeTimeout).Add(g.lease), next: now, pause: unclaimFirst,
	})
	if !u.running {
		u.running = true
		u.wake = make(chan struct{})
		go u.run()
		return
	}
	close(u.wake)
	u.wake = make(chan struct{})
}

func (u *unclaims) run() {
	for {
		due, next, wake := u.due(time.Now())
		if wake == nil {
			return
		}
		if len(due) > 0 {
			var calls errgroup.Group
			calls.SetLimit(unclaimParallel)
			for _, item := range due {
				calls.Go(func() error {
					item.send()
					return nil
				})
			}
			_ = calls.Wait()
			continue
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-timer.C:
		case <-wake:
		}
		timer.Stop()
	}
}

// due drops what is done and returns what is to be sent now and when the next
// one is. Without any item left it ends the goroutine: wake is nil.
func (u *unclaims) due(now time.Time) (due []*unclaimItem, next time.Time, wake <-chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	left := u.items[:0]
	for _, item := range u.items {
		if item.done {
			item.g.drain.end()
			continue
		}
		left = append(left, item)
		if !item.next.After(now) {
			due = append(due, item)
		} else if next.IsZero() || item.next.Before(next) {
			next = item.next
		}
	}
	clear(u.items[len(left):])
	u.items = left
	if len(left) == 0 {
		u.items, u.running = nil, false
		return nil, next, nil
	}
	return due, next, u.wake
}

func (i *unclaimItem) send() {
	sent := time.Now()
	err := i.g.step(i.ctx, "release", i.key, i.g.storeTimeout, func(ctx context.Context) error {
		return i.g.store.Release(ctx, i.key, i.owner)
	})
	if (err == nil || definite(err)) && !sent.Before(i.until) {
		i.done = true
		return
	}
	i.next = time.Now().Add(jitter(i.pause))
	i.pause = min(2*i.pause, unclaimMost)
	if i.next.Before(i.until) {
		return
	}
	// The attempt that decides is sent as soon as it may be.
	if sent.Before(i.until) {
		i.next = i.until
	}
}
