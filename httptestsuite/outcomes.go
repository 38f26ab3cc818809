package httptestsuite

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/idempotent-go/idempotent"
)

// replays expects that the operation runs once and its answer comes back.
func (c *trial) replays(reply Reply) {
	c.Helper()
	c.serve(setup{operate: as(reply)})
	first := c.post("k")
	c.fresh(first, reply.Status)
	c.replayOf(first, c.post("k"))
	c.ran(1)
}

// releases expects that every request runs.
func (c *trial) releases(reply Reply) {
	c.Helper()
	c.serve(setup{operate: as(reply)})
	for range 2 {
		c.fresh(c.post("k"), reply.Status)
	}
	c.ran(2)
}

// each runs fn for every status on a server of its own.
func (c *trial) each(fn func(c *trial, status int), statuses ...int) {
	c.Helper()
	for _, status := range statuses {
		fn(&trial{TB: c.TB, adapter: c.adapter, patience: c.patience}, status)
	}
}

// unavailable is a 503 that says when to come again.
func unavailable() Reply {
	reply := plain(http.StatusServiceUnavailable)
	reply.Header.Set("Retry-After", "7")
	return reply
}

var outcomeCases = []testCase{
	{
		name: "B55_Success",
		why:  "2xx and 3xx are successes and come back.",
		run: func(c *trial) {
			c.each(func(c *trial, status int) { c.replays(plain(status)) },
				http.StatusOK, http.StatusAccepted, http.StatusFound, http.StatusSeeOther)
		},
	},
	{
		name: "B56_DefiniteFailure",
		why:  "4xx is an answer that comes back.",
		run: func(c *trial) {
			c.each(func(c *trial, status int) { c.replays(plain(status)) },
				http.StatusBadRequest, http.StatusPaymentRequired, http.StatusNotFound, http.StatusConflict, http.StatusUnprocessableEntity)
		},
	},
	{
		name: "B56_FailureReturned",
		why:  "A handler that returns the framework's error of a 4xx has answered it: the answer is recorded and comes back.",
		run: func(c *trial) {
			c.each(func(c *trial, status int) { c.replays(Reply{Status: status, Returned: true}) },
				http.StatusBadRequest, http.StatusPaymentRequired, http.StatusUnprocessableEntity)
		},
	},
	{
		name: "B57_Released",
		why:  "A status that says that nothing was done frees the key.",
		run: func(c *trial) {
			c.each(func(c *trial, status int) { c.releases(plain(status)) },
				http.StatusUnauthorized, http.StatusTooEarly, http.StatusTooManyRequests)
			c.releases(unavailable())
		},
	},
	{
		name: "B57_ReleaseReturned",
		why:  "A handler that returns the framework's error of such a status frees the key, too.",
		run: func(c *trial) {
			c.each(func(c *trial, status int) { c.releases(Reply{Status: status, Returned: true}) },
				http.StatusUnauthorized, http.StatusTooManyRequests)
		},
	},
	{
		name: "B58_ServerErrors",
		why:  "Another 5xx may have happened: it comes back, and is never run again.",
		run: func(c *trial) {
			c.each(func(c *trial, status int) { c.replays(plain(status)) },
				http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout)
		},
	},
	{
		name: "B58_ServerErrorReturned",
		why:  "A handler that returns the framework's error of a 5xx may have done its work: it is never run again.",
		run: func(c *trial) {
			c.each(func(c *trial, status int) { c.replays(Reply{Status: status, Returned: true}) },
				http.StatusInternalServerError, http.StatusBadGateway)
		},
	},
	{
		name: "B58_RecordedAsUnknown",
		why:  "A 5xx is recorded as unknown, a 4xx as a failure, a 2xx as a success.",
		run: func(c *trial) {
			for status, want := range map[int]idempotent.Entry{
				http.StatusOK:                  {Status: idempotent.Success},
				http.StatusNotFound:            {Status: idempotent.Failed},
				http.StatusInternalServerError: {Status: idempotent.Failed, Unknown: true},
			} {
				c.each(func(c *trial, status int) {
					c.serve(setup{operate: as(plain(status))})
					c.fresh(c.post("k"), status)
					c.recorded("k", want.Status, want.Unknown)
				}, status)
			}
		},
	},
	{
		name: "B59_Classify",
		why:  "WithClassify sees status and fields of the answer and decides.",
		run: func(c *trial) {
			reply := plain(http.StatusInternalServerError)
			reply.Header.Set("X-Rolled-Back", "yes")
			c.serve(setup{operate: as(reply), options: []idempotent.HTTPOption{
				idempotent.WithClassify(func(status int, h http.Header) idempotent.Class {
					if status == http.StatusInternalServerError && h.Get("X-Rolled-Back") == "yes" {
						return idempotent.ClassRelease
					}
					return idempotent.ClassDefault
				}),
			}})
			for range 2 {
				c.fresh(c.post("k"), http.StatusInternalServerError)
			}
			c.ran(2)
		},
	},
	{
		name: "B60_Panic",
		why:  "A panic may have come after the work: it is recorded as unknown, goes on to the layers outside, and is never run again, also where the client's transport sends the request anew by itself.",
		run: func(c *trial) {
			for _, value := range []any{"a text", errors.New("an error"), http.ErrAbortHandler} {
				c := &trial{TB: c.TB, adapter: c.adapter, patience: c.patience}
				c.serve(setup{operate: func(_ context.Context, body []byte) Reply {
					if string(body) == someBody {
						return Reply{Panic: value}
					}
					return plain(http.StatusOK)
				}})
				c.fresh(c.send(request{key: "warm", body: `{}`}), http.StatusOK)
				// What the first client gets is the business of what
				// stands outside: an answer, or a connection that ends.
				_, _ = c.try(request{key: "k"})
				c.recorded("k", idempotent.Failed, true)
				a := c.post("k")
				c.refused(a, http.StatusInternalServerError, "operation-aborted")
				if !a.replayed() {
					c.Fatalf("the answer from the record has no marker: %v", a)
				}
				c.ran(2)
			}
		},
	},
	{
		name: "B61_SaidByTheHandler",
		why:  "What a handler says through its context beats the status.",
		run: func(c *trial) {
			said := map[string]func(context.Context){
				"release": idempotent.Release, "fail": idempotent.Fail, "succeed": idempotent.Succeed, "unknown": idempotent.Unknown,
			}
			var say func(context.Context)
			c.serve(setup{operate: func(ctx context.Context, _ []byte) Reply {
				if _, ok := idempotent.FromContext(ctx); !ok {
					return plain(http.StatusNotImplemented)
				}
				say(ctx)
				return plain(http.StatusOK)
			}})
			say = said["release"]
			for range 2 {
				c.fresh(c.post("release"), http.StatusOK)
			}
			c.ran(2)
			for _, want := range []struct {
				key     string
				status  idempotent.Status
				unknown bool
			}{{"fail", idempotent.Failed, false}, {"succeed", idempotent.Success, false}, {"unknown", idempotent.Failed, true}} {
				say = said[want.key]
				first := c.post(want.key)
				c.fresh(first, http.StatusOK)
				c.recorded(want.key, want.status, want.unknown)
				c.replayOf(first, c.post(want.key))
			}
			c.ran(5)
		},
	},
}

// recorded expects what the usual request under key has left in the store.
func (c *trial) recorded(key string, status idempotent.Status, unknown bool) {
	c.Helper()
	name := idempotent.StoreKey(http.MethodPost, "/orders", "alice", key)
	var e idempotent.Entry
	c.until(fmt.Sprint("there is an outcome of ", key), func() bool {
		var err error
		if e, _, err = c.store.Load(c.Context(), name); err != nil {
			c.Fatalf("Load: %v", err)
		}
		return e.Status != idempotent.Pending
	})
	if e.Status != status || e.Unknown != unknown {
		c.Fatalf("recorded is the status %q, unknown %v; want %q, %v", e.Status, e.Unknown, status, unknown)
	}
}
