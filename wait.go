package idempotent

import (
	"context"
	"errors"
	"sync"
	"time"
)

// waiting is the wait of one call, which may have several parts when waiters
// of a released key compete for it.
type waiting struct {
	deadline time.Time // zero: has not begun
}

func (w *waiting) over() bool { return !w.deadline.IsZero() && !time.Now().Before(w.deadline) }

// await waits, as far as the call allows, until the claim e of somebody else
// has ended, and returns what is found then. Where it may not wait (any
// longer) it returns e itself.
func (g *Guard) await(ctx context.Context, e Entry, c *call, w *waiting) (Entry, finding, error) {
	if c.wait <= 0 || e.Fingerprint != c.fingerprint || w.over() {
		return e, held, nil
	}
	leave, ok := c.waiters.enter(e.Key)
	if !ok {
		return e, held, nil
	}
	defer leave()
	c.waited = true
	start := time.Now()
	if w.deadline.IsZero() {
		w.deadline = start.Add(c.wait)
	}
	bounded, cancel := context.WithDeadline(ctx, w.deadline)
	defer cancel()
	now, found, err := Wait(bounded, g.store, e.Key)
	g.log.tell(ctx, Event{Kind: EventWaited, Key: e.Key, Owner: e.Owner, Trace: c.trace, OwnerTrace: e.Trace, Took: time.Since(start)})
	switch {
	case err == nil && found:
		return now, held, nil
	case err == nil:
		return now, free, nil
	case ctx.Err() != nil:
		return e, held, ctx.Err()
	case errors.Is(err, context.DeadlineExceeded) && w.over():
		return e, held, nil
	}
	return e, held, g.sorted(ctx, "wait", e.Key, start, err)
}

// waiterLimit bounds how many calls wait at once, in all and for one key. Keys
// nobody waits for take no room.
type waiterLimit struct {
	most, mostPerKey int

	mu     sync.Mutex // guards the fields below
	all    int
	perKey map[string]int
}

// enter takes a place until leave is called; false where none is free. A nil
// limit always has one.
func (l *waiterLimit) enter(key string) (leave func(), ok bool) {
	if l == nil {
		return func() {}, true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all >= l.most || l.perKey[key] >= l.mostPerKey {
		return nil, false
	}
	if l.perKey == nil {
		l.perKey = make(map[string]int)
	}
	l.all++
	l.perKey[key]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.all--
		if l.perKey[key]--; l.perKey[key] == 0 {
			delete(l.perKey, key)
		}
	}, true
}
