package httptestsuite

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/storetest"
)

var errAway = errors.New("the store is away")

var troubleCases = []testCase{
	{
		name: "B64_StoreDownAtClaim",
		why:  "Without the store nothing runs: 503 with a pause. Requests without a key do not need it.",
		run: func(c *trial) {
			c.serve(setup{options: []idempotent.HTTPOption{idempotent.WithOptionalKey()}})
			c.store.Down(errAway)
			a := c.post("k")
			c.refused(a, http.StatusServiceUnavailable, "store-unavailable")
			c.pauses(a)
			c.ran(0)
			c.fresh(c.post(""), http.StatusCreated)
			c.store.Up()
			c.until("the key is free", func() bool { return c.post("k").status == http.StatusCreated })
			c.ran(2)
		},
	},
	{
		name: "B66_StoreDownAtCompletion",
		why:  "A client gets the answer of a run that cannot be recorded; duplicates are in flight until it is.",
		run: func(c *trial) {
			c.serve(setup{})
			c.store.Before(storetest.OpComplete, func(context.Context, string) error { return errAway })
			first := c.post("k")
			c.fresh(first, http.StatusCreated)
			a := c.post("k")
			c.refused(a, http.StatusConflict, "in-flight")
			c.pauses(a)
			c.store.Before(storetest.OpComplete, nil)
			c.until("the answer is recorded", func() bool { a = c.post("k"); return a.status == http.StatusCreated })
			c.replayOf(first, a)
			c.ran(1)
		},
	},
	{
		name: "B71_StoreFull",
		why:  "Without room nothing runs: 503 with a pause.",
		run: func(c *trial) {
			c.serve(setup{})
			c.store.Before(storetest.OpClaim, func(context.Context, string) error { return idempotent.ErrFull })
			a := c.post("k")
			c.refused(a, http.StatusServiceUnavailable, "store-full")
			c.pauses(a)
			c.ran(0)
		},
	},
	{
		name: "B80_RecordUnreadable",
		why:  "What cannot be read is neither an answer nor a reason to run.",
		run: func(c *trial) {
			c.serve(setup{})
			unreadable := func(context.Context, string) error { return idempotent.ErrCorrupt }
			c.store.Before(storetest.OpClaim, unreadable)
			c.store.Before(storetest.OpLoad, unreadable)
			c.refused(c.post("k"), http.StatusInternalServerError, "record-corrupt")
			c.ran(0)
		},
	},
	{
		name: "B83_Drain",
		why:  "While shutting down what runs is finished and recorded and replays are served; what is new is refused with a pause.",
		run: func(c *trial) {
			var held *gate
			c.serve(setup{operate: func(_ context.Context, body []byte) Reply {
				if string(body) == someBody {
					held.pass()
				}
				return c.created()
			}})
			held = c.gate()
			first := c.begin(request{key: "k"})
			c.reached(held)
			drained := make(chan error, 1)
			ctx, cancel := context.WithTimeout(c.Context(), c.patience)
			defer cancel()
			go func() { drained <- c.guard.Drain(ctx) }()
			var a answer
			n := 0
			c.until("new requests are refused", func() bool {
				n++
				a = c.send(request{key: fmt.Sprint("new-", n), body: "{}"})
				return a.status != http.StatusCreated
			})
			c.refused(a, http.StatusServiceUnavailable, "store-unavailable")
			c.pauses(a)
			held.open()
			done := first.wait()
			if err := <-drained; err != nil {
				c.Fatalf("Drain: %v", err)
			}
			c.replayOf(done, c.post("k"))
		},
	},
}
