package httptestsuite

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/idempotent-go/idempotent"
)

// as is an operation that always replies the same.
func as(reply Reply) func(context.Context, []byte) Reply {
	return func(context.Context, []byte) Reply { return reply }
}

var replayCases = []testCase{
	{
		name: "B42_B43_RetryAfterSuccess",
		why:  "The retry gets status, fields and body of the first answer, marked, as often as it comes; the first answer has no marker.",
		run: func(c *trial) {
			c.serve(setup{})
			first := c.post("k")
			c.fresh(first, http.StatusCreated)
			if first.body != "run 1" || first.header.Get("Location") != "/orders/1" {
				c.Fatalf("the first answer is %v; want that of the handler", first)
			}
			for range 3 {
				c.replayOf(first, c.post("k"))
			}
			c.fresh(c.post("other"), http.StatusCreated)
			c.ran(2)
		},
	},
	{
		name: "B42_LargeAnswer",
		why:  "An answer of the largest size that is kept comes back byte for byte.",
		run: func(c *trial) {
			body := strings.Repeat("0123456789\nabcd\x00", idempotent.DefaultMaxResponse/16)
			c.serve(setup{operate: as(Reply{
				Status: http.StatusOK, Header: http.Header{"Content-Type": {"application/octet-stream"}}, Body: body,
			})})
			first := c.post("k")
			c.fresh(first, http.StatusOK)
			if first.body != body {
				c.Fatalf("the first answer has %d bytes; want the %d of the handler", len(first.body), len(body))
			}
			c.replayOf(first, c.post("k"))
			c.ran(1)
		},
	},
	{
		name: "B43_MarkerOfTheHandler",
		why:  "Only a replay is marked, whatever the handler sets.",
		run: func(c *trial) {
			reply := plain(http.StatusOK)
			reply.Header.Set("Idempotent-Replayed", "true")
			c.serve(setup{operate: as(reply)})
			first := c.post("k")
			c.fresh(first, http.StatusOK)
			c.replayOf(first, c.post("k"))
		},
	},
	{
		name: "B44_FieldsOfOneMessage",
		why:  "A date and the fields of a connection belong to one message; the length is that of the body.",
		run: func(c *trial) {
			reply := plain(http.StatusOK)
			reply.Header.Set("Server-Timing", "db;dur=5")
			reply.Header.Set("X-Kept", "yes")
			c.serve(setup{operate: as(reply)})
			c.post("k")
			a := c.post("k")
			if a.header["Server-Timing"] != nil || a.header.Get("X-Kept") != "yes" || !a.replayed() {
				c.Fatalf("the replay is %v; want X-Kept and no Server-Timing", a)
			}
			if a.length != int64(len(a.body)) {
				c.Fatalf("the replay declares %d bytes and has %d", a.length, len(a.body))
			}
			if _, err := http.ParseTime(a.header.Get("Date")); err != nil || len(a.header["Date"]) != 1 {
				c.Fatalf("the replay has the dates %q; want its own", a.header["Date"])
			}
		},
	},
	{
		name: "B45_Cookies",
		why:  "Cookies reach the first client alone.",
		run: func(c *trial) {
			reply := plain(http.StatusOK)
			reply.Header["Set-Cookie"] = []string{"a=1; Path=/", "b=2; Path=/"}
			c.serve(setup{operate: as(reply)})
			first := c.post("k")
			if got := first.header["Set-Cookie"]; !slices.Equal(got, reply.Header["Set-Cookie"]) {
				c.Fatalf("the first answer sets the cookies %q; want both", got)
			}
			a := c.post("k")
			if a.header["Set-Cookie"] != nil {
				c.Fatalf("the replay sets the cookies %q; want none", a.header["Set-Cookie"])
			}
			c.replayOf(first, a)
		},
	},
	{
		name: "B45_ReplayCookies",
		why:  "With WithReplayCookies cookies come back, all of them.",
		run: func(c *trial) {
			reply := plain(http.StatusOK)
			reply.Header["Set-Cookie"] = []string{"a=1; Path=/", "b=2; Path=/"}
			c.serve(setup{operate: as(reply), options: []idempotent.HTTPOption{idempotent.WithReplayCookies()}})
			c.post("k")
			if a := c.post("k"); !slices.Equal(a.header["Set-Cookie"], reply.Header["Set-Cookie"]) || !a.replayed() {
				c.Fatalf("the replay is %v; want both cookies", a)
			}
		},
	},
	{
		name: "B46_FieldsAsFirstSent",
		why:  "Every value of a field comes back, in its order, and a type of one's own as it was.",
		run: func(c *trial) {
			c.serve(setup{operate: as(Reply{
				Status: http.StatusOK,
				Header: http.Header{
					"Content-Type": {"application/vnd.shop+json"}, "Link": {"</a>; rel=a", "</b>; rel=b", "</a>; rel=a"},
					"X-Empty": {""}, "Etag": {`"v1"`}, "Cache-Control": {"private"},
				},
				Body: `{}`,
			})})
			first := c.post("k")
			c.fresh(first, http.StatusOK)
			if got, want := first.header["Link"], []string{"</a>; rel=a", "</b>; rel=b", "</a>; rel=a"}; !slices.Equal(got, want) {
				c.Fatalf("the first answer has Link %q; want %q", got, want)
			}
			if got := first.header.Get("Content-Type"); got != "application/vnd.shop+json" {
				c.Fatalf("the first answer has the type %q; want that of the handler", got)
			}
			if first.header["X-Empty"] == nil {
				c.Fatalf("the first answer has lost a field without a text")
			}
			c.replayOf(first, c.post("k"))
		},
	},
	{
		name: "B47_NoContent",
		why:  "A status without content has none in the replay either.",
		run: func(c *trial) {
			c.serve(setup{operate: as(Reply{Status: http.StatusNoContent, Header: http.Header{"X-Kept": {"yes"}}})})
			first := c.post("k")
			c.fresh(first, http.StatusNoContent)
			a := c.post("k")
			c.replayOf(first, a)
			if a.body != "" || a.header["Content-Length"] != nil {
				c.Fatalf("the replay is %v; want neither body nor length", a)
			}
			c.ran(1)
		},
	},
	{
		name: "B48_Trailers",
		why:  "Trailers come back as trailers.",
		run: func(c *trial) {
			reply := plain(http.StatusOK)
			reply.Header["Trailer"] = []string{"X-Sum"}
			reply.Trailer = http.Header{"X-Sum": {"42"}}
			c.serve(setup{operate: as(reply)})
			first, again := c.post("k"), c.post("k")
			for which, a := range map[string]answer{"first answer": first, "replay": again} {
				if a.status != http.StatusOK || a.body != reply.Body {
					c.Fatalf("the %s is %v; want that of the handler", which, a)
				}
				if !c.adapter.Buffered && (!maps.EqualFunc(a.trailer, reply.Trailer, slices.Equal) || a.header["X-Sum"] != nil) {
					c.Fatalf("the %s has the trailers %v after %v; want %v", which, a.trailer, a, reply.Trailer)
				}
			}
			c.replayOf(first, again)
			c.ran(1)
		},
	},
	{
		name: "B49_InterimAnswers",
		why:  "An interim answer reaches the first client before the answer; a replay has none.",
		run: func(c *trial) {
			reply := plain(http.StatusCreated)
			reply.Hints = []string{"</style.css>; rel=preload"}
			c.serve(setup{operate: as(reply)})
			first := c.post("k")
			c.fresh(first, http.StatusCreated)
			if want := []string{"103 </style.css>; rel=preload"}; !c.adapter.Buffered && !slices.Equal(first.interim, want) {
				c.Fatalf("the first client got %q before the answer; want %q", first.interim, want)
			}
			again := c.post("k")
			c.replayOf(first, again)
			if first.header["Link"] != nil || again.header["Link"] != nil || len(again.interim) > 0 {
				c.Fatalf("got %v, and in the replay %q and then %v; want the hint once and for itself", first, again.interim, again)
			}
			c.ran(1)
		},
	},
	{
		name: "B50_Flush",
		why:  "What a handler flushes reaches its client at once; the replay has the whole.",
		run: func(c *trial) {
			arrived := c.gate()
			c.serve(setup{operate: func(context.Context, []byte) Reply {
				reply := plain(http.StatusOK)
				reply.Body = "begin,"
				reply.Rest = func() string {
					if c.adapter.Buffered {
						return "end"
					}
					select {
					case <-arrived.opened:
						return "end"
					case <-time.After(c.patience):
						return "nobody got the beginning"
					}
				}
				return reply
			}})
			res, err := c.client.Do(c.build(c.Context(), request{key: "k"}))
			if err != nil {
				c.Fatalf("%v; want an answer", err)
			}
			defer func() { _ = res.Body.Close() }()
			var got strings.Builder
			part := make([]byte, 64)
			for err == nil {
				var n int
				n, err = res.Body.Read(part)
				got.Write(part[:n])
				if strings.HasPrefix(got.String(), "begin,") {
					arrived.open()
				}
			}
			if got.String() != "begin,end" {
				c.Fatalf("the first client got %q; want the beginning, and the end after it", got.String())
			}
			a := c.post("k")
			if a.status != http.StatusOK || a.body != "begin,end" || !a.replayed() || a.header.Get("Content-Type") != res.Header.Get("Content-Type") {
				c.Fatalf("the replay is %v; want the whole", a)
			}
			c.ran(1)
		},
	},
	{
		name: "B51_NotReplayable",
		why:  "An answer above the cap reaches the first client whole; a repeat is told that it cannot be repeated, and does not run.",
		run: func(c *trial) {
			reply := plain(http.StatusCreated)
			reply.Header.Set("Location", "/orders/1")
			reply.Body = strings.Repeat("0123456789", 20)
			c.serve(setup{operate: as(reply), options: []idempotent.HTTPOption{idempotent.WithMaxResponse(100)}})
			first := c.post("k")
			c.fresh(first, http.StatusCreated)
			if first.body != reply.Body || first.header.Get("Location") != "/orders/1" {
				c.Fatalf("the first client got %v; want the whole answer", first)
			}
			a := c.post("k")
			doc := c.refused(a, http.StatusConflict, "result-unavailable")
			if doc["original_status"] != float64(http.StatusCreated) || doc["location"] != "/orders/1" {
				c.Fatalf("the problem document is %s; want the status and the place of the first answer", a.body)
			}
			c.ran(1)
		},
	},
	{
		name: "B53_FieldsOfOuterLayers",
		why:  "What a layer outside sets is of this attempt, in a first answer, a replay and a refusal.",
		run: func(c *trial) {
			c.serve(setup{})
			for n, a := range []answer{c.post("k"), c.post("k"), c.post("")} {
				want := fmt.Sprint("attempt ", n+1)
				if got := a.header["X-Attempt"]; len(got) != 1 || got[0] != want {
					c.Fatalf("answer %d has X-Attempt %q; want %q", n+1, got, want)
				}
			}
			c.ran(1)
		},
	},
	{
		name: "B53_FieldsSetAgain",
		why:  "What the handler sets over a field of a layer outside is the handler's, in the replay too.",
		run: func(c *trial) {
			reply := plain(http.StatusOK)
			reply.Header.Set("X-Attempt", "of the handler")
			c.serve(setup{operate: as(reply)})
			for range 2 {
				if a := c.post("k"); !slices.Equal(a.header["X-Attempt"], []string{"of the handler"}) {
					c.Fatalf("X-Attempt is %q; want that of the handler", a.header["X-Attempt"])
				}
			}
			c.ran(1)
		},
	},
	{
		name: "B54_ReplayHook",
		why:  "A hook may answer in place of the record, which stays.",
		run: func(c *trial) {
			c.serve(setup{options: []idempotent.HTTPOption{
				idempotent.WithReplayHook(func(w http.ResponseWriter, r *http.Request, status int) bool {
					if r.Header.Get("X-Revoked") == "" {
						return false
					}
					w.Header().Set("X-Recorded", fmt.Sprint(status))
					http.Error(w, "not any more", http.StatusForbidden)
					return true
				}),
			}})
			first := c.post("k", "X-Revoked", "yes")
			c.fresh(first, http.StatusCreated)
			a := c.post("k", "X-Revoked", "yes")
			if a.status != http.StatusForbidden || a.body != "not any more\n" || a.header.Get("X-Recorded") != "201" {
				c.Fatalf("got %v; want the answer of the hook", a)
			}
			c.replayOf(first, c.post("k"))
			c.ran(1)
		},
	},
}
