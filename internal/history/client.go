package history

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/model"
)

// mostOpen is how many calls of a key may be without a known answer before its
// clients call no more. What each has under way may add two. Such a call may have
// happened at any later time: with a dozen the search for an order takes seconds,
// and with a few more it has no end.
const mostOpen = 6

// client makes random calls on one key: mostly in its own name, now and then in
// that of another client, as a resent call or a process that has been taken for
// dead does.
type client struct {
	handle
	recorder *recorder
	rand     *rand.Rand
	clients  int           // that share the key
	short    time.Duration // a lease, a Keep or a retention that ends soon
}

// play makes n calls on key.
func (c *client) play(ctx context.Context, key string, n int) {
	for done := 0; done < n && ctx.Err() == nil; done++ {
		e := c.event(key)
		for range 1 + c.rand.IntN(5)/4 { // one in five is sent twice
			if c.recorder.unanswered(key) >= mostOpen {
				return
			}
			if !c.recorder.send(c.context(ctx), c.handle, e) {
				rest(ctx, c.short/2)
			}
		}
		switch c.rand.IntN(6) {
		case 0:
			rest(ctx, c.short/4)
		case 1:
			rest(ctx, c.short) // the very end of a lease that begins now
		case 2:
			rest(ctx, 2*c.short)
		}
	}
}

// context returns the context of one call: one in ten has ended before it, and
// one in ten ends meanwhile.
func (c *client) context(ctx context.Context) context.Context {
	switch c.rand.IntN(10) {
	case 0:
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		return ctx
	case 1:
		ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
		go cancel()
		return ctx
	}
	return ctx
}

// event returns a random call.
func (c *client) event(key string) model.Event {
	owner := c.client
	if c.rand.IntN(4) == 0 {
		owner = c.rand.IntN(c.clients)
	}
	e := model.Event{Key: key, Owner: fmt.Sprintf("owner-%d", owner)}
	switch n := c.rand.IntN(40); {
	case n < 9:
		e.Op = model.Load
	case n < 22:
		e.Op = model.Claim
		e.Claim = idempotent.Claim{
			Owner:       e.Owner,
			Fingerprint: pick(c.rand, "print-1", "print-1", "print-1", "print-2"),
			Trace:       pick(c.rand, "", "trace-1"),
			Lease:       c.duration(),
			Keep:        c.duration(),
			TakeOver:    c.rand.IntN(4) > 0,
		}
	case n < 27:
		e.Op, e.Lease = model.Renew, c.duration()
	case n < 34:
		e.Op = model.Complete
		e.Outcome = idempotent.Outcome{
			Status:      pick(c.rand, idempotent.Success, idempotent.Success, idempotent.Failed),
			Result:      pick(c.rand, e.Owner, e.Owner, ""),
			Fingerprint: pick(c.rand, "print-1", "print-2"),
			Retention:   c.duration(),
		}
		e.Outcome.Unknown = e.Outcome.Status == idempotent.Failed && c.rand.IntN(2) == 0
	case n < 39:
		e.Op = model.Release
	default:
		e.Op = model.Delete
	}
	return e
}

func (c *client) duration() time.Duration {
	return pick(c.rand, c.short, c.short, 3*c.short, time.Minute)
}

func pick[T any](r *rand.Rand, choices ...T) T { return choices[r.IntN(len(choices))] }

// rest lets d pass, or the time until ctx ends. Leases are to lapse here; no
// check depends on how long it really takes.
func rest(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
