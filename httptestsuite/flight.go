package httptestsuite

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/storetest"
)

// held is an operation that stops at the gate and then replies as usual.
func (c *trial) held(g **gate) func(context.Context, []byte) Reply {
	return func(context.Context, []byte) Reply {
		(*g).pass()
		return c.created()
	}
}

// waits waits until the attempt waits for the answer of another.
func (a *attempt) waits() {
	a.c.Helper()
	a.c.until("the duplicate waits", func() bool {
		select {
		case <-a.done:
			a.c.Fatalf("the duplicate got %v, %v; want it to wait", a.answer, a.err)
		default:
		}
		return a.c.store.Calls(storetest.OpWait) > 0
	})
}

var flightCases = []testCase{
	{
		name: "B35_SimultaneousRequests",
		why:  "Of equal requests at once exactly one runs; the others are in flight or get its answer.",
		run: func(c *trial) {
			c.serve(setup{})
			const many = 16
			var attempts []*attempt
			for range many {
				attempts = append(attempts, c.begin(request{key: "k"}))
			}
			fresh := 0
			for _, a := range attempts {
				switch a := a.wait(); {
				case a.status == http.StatusConflict:
					c.refused(a, http.StatusConflict, "in-flight")
				case a.status != http.StatusCreated || a.body != "run 1":
					c.Fatalf("got %v; want 201 with the one run, or 409", a)
				case !a.replayed():
					fresh++
				}
			}
			if fresh != 1 {
				c.Fatalf("%d answers were fresh; want one", fresh)
			}
			c.ran(1)
		},
	},
	{
		name: "B36_DuplicateInFlight",
		why:  "A duplicate of a running request is 409 with a pause, is told the trace of the first, and does not run.",
		run: func(c *trial) {
			var held *gate
			c.serve(setup{operate: c.held(&held)})
			held = c.gate()
			first := c.begin(request{key: "k", fields: []string{"X-Request-Id", "trace-1"}})
			c.reached(held)
			a := c.post("k", "X-Request-Id", "trace-2")
			doc := c.refused(a, http.StatusConflict, "in-flight")
			c.pauses(a)
			if doc["trace"] != "trace-1" || doc["retryable"] != true {
				c.Fatalf("the problem document is %s; want the trace of the first request, and retryable", a.body)
			}
			held.open()
			c.replayOf(first.wait(), c.post("k"))
			c.ran(1)
		},
	},
	{
		name: "B37_PreferWait",
		why:  "A duplicate that prefers to wait is answered with the replay as soon as there is one, and told that it waited.",
		run: func(c *trial) {
			var held *gate
			c.serve(setup{operate: c.held(&held)})
			held = c.gate()
			first := c.begin(request{key: "k"})
			c.reached(held)
			second := c.begin(request{key: "k", fields: []string{"Prefer", "wait=9"}})
			second.waits()
			held.open()
			a := second.wait()
			c.replayOf(first.wait(), a)
			if got := a.header.Get("Preference-Applied"); got != "wait=9" {
				c.Fatalf("Preference-Applied is %q; want wait=9", got)
			}
			c.ran(1)
		},
	},
	{
		name: "B38_WithWait",
		why:  "With WithWait duplicates wait for the answer without asking for it.",
		run: func(c *trial) {
			var held *gate
			c.serve(setup{operate: c.held(&held), options: []idempotent.HTTPOption{idempotent.WithWait(time.Minute)}})
			held = c.gate()
			first := c.begin(request{key: "k"})
			c.reached(held)
			second := c.begin(request{key: "k"})
			second.waits()
			held.open()
			c.replayOf(first.wait(), second.wait())
			c.ran(1)
		},
	},
	{
		name: "B40_RespondAsync",
		why:  "An operation whose client has left goes on with its own request while others come: an adapter whose framework uses requests again is idempotent.Synchronous.",
		run: func(c *trial) {
			var held *gate
			c.serve(setup{
				options: []idempotent.HTTPOption{idempotent.WithStatusURL("/operations")},
				operate: func(context.Context, []byte) Reply {
					reply := c.created()
					if reply.Body == "run 1" {
						held.pass()
					}
					return reply
				},
			})
			held = c.gate()
			first := c.begin(request{key: "k", fields: []string{"Prefer", "respond-async"}})
			c.reached(held)
			const others = 50
			for i := range others {
				if a := c.post(fmt.Sprint("other-", i)); a.status != http.StatusCreated || a.body != fmt.Sprint("run ", i+2) {
					c.Fatalf("got %v; want 201 and run %d", a, i+2)
				}
			}
			held.open()
			if a := first.wait(); a.status != http.StatusAccepted {
				c.fresh(a, http.StatusCreated)
			}
			var repeat answer
			c.until("the outcome is recorded", func() bool {
				repeat = c.post("k")
				return repeat.status != http.StatusConflict
			})
			if repeat.status != http.StatusCreated || !repeat.replayed() || repeat.body != "run 1" {
				c.Fatalf("the repeat got %v; want the replay of 201 and run 1", repeat)
			}
			c.ran(others + 1)
		},
	},
	{
		name: "B39_WaiterOfAReleasedKey",
		why:  "A waiter whose key is freed runs the operation itself.",
		run: func(c *trial) {
			var held *gate
			var refuse atomic.Bool
			refuse.Store(true)
			c.serve(setup{
				options: []idempotent.HTTPOption{idempotent.WithWait(time.Minute)},
				operate: func(context.Context, []byte) Reply {
					held.pass()
					if refuse.Swap(false) {
						return plain(http.StatusTooManyRequests)
					}
					return c.created()
				},
			})
			held = c.gate()
			first := c.begin(request{key: "k"})
			c.reached(held)
			second := c.begin(request{key: "k"})
			second.waits()
			held.open()
			c.fresh(first.wait(), http.StatusTooManyRequests)
			c.fresh(second.wait(), http.StatusCreated)
			c.ran(2)
		},
	},
	{
		name: "B62_ClientLeaves",
		why:  "A handler whose client hangs up is not cancelled: it finishes, and the retry gets its answer.",
		run: func(c *trial) {
			var held *gate
			var cancelled atomic.Bool
			c.serve(setup{operate: func(ctx context.Context, _ []byte) Reply {
				held.pass()
				cancelled.Store(ctx.Err() != nil)
				return c.created()
			}})
			held = c.gate()
			first := c.begin(request{key: "k"})
			c.reached(held)
			c.mu.Lock()
			came := c.came
			c.mu.Unlock()
			first.cancel()
			<-first.done
			if came.Done() != nil {
				// The server tells when it has seen that the client is gone;
				// one that does not is not waited for in vain.
				select {
				case <-came.Done():
				case <-time.After(c.patience):
				}
			}
			held.open()
			var a answer
			c.until("the answer is recorded", func() bool {
				a = c.post("k")
				return a.status != http.StatusConflict
			})
			if cancelled.Load() {
				c.Fatalf("the context of the handler ended with its client")
			}
			if a.status != http.StatusCreated || a.body != "run 1" || !a.replayed() {
				c.Fatalf("the retry got %v; want the replay of run 1", a)
			}
			c.ran(1)
		},
	},
}
