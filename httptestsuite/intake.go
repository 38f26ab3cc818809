package httptestsuite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/idempotent-go/idempotent"
)

var intakeCases = []testCase{
	{
		name: "B01_KeyMissing",
		why:  "A route that is wrapped needs a key: without one the answer is 400, and nothing is run or asked.",
		run: func(c *trial) {
			c.serve(setup{})
			for range 2 {
				a := c.post("")
				c.refused(a, http.StatusBadRequest, "key-missing")
				if !strings.Contains(a.header.Get("Link"), `rel="help"`) {
					c.Fatalf("Link is %q; want one to the documentation", a.header["Link"])
				}
			}
			c.ran(0)
			c.untouched()
		},
	},
	{
		name: "B02_OptionalKey",
		why:  "With WithOptionalKey a request without a key runs unprotected, and its answer is the handler's.",
		run: func(c *trial) {
			c.serve(setup{options: []idempotent.HTTPOption{idempotent.WithOptionalKey()}})
			for n := range int64(2) {
				a := c.post("")
				c.fresh(a, http.StatusCreated)
				if want := fmt.Sprint("run ", n+1); a.body != want {
					c.Fatalf("the body is %q; want %q", a.body, want)
				}
			}
			c.untouched()
			c.replayOf(c.post("k"), c.post("k"))
			c.ran(3)
		},
	},
	{
		name: "B03_KeyEmpty",
		why:  "A field that is there and empty is invalid, not missing.",
		run: func(c *trial) {
			c.serve(setup{options: []idempotent.HTTPOption{idempotent.WithOptionalKey()}})
			c.refused(c.post("", "Idempotency-Key", ""), http.StatusBadRequest, "key-invalid")
			c.refused(c.post("", "Idempotency-Key", "  "), http.StatusBadRequest, "key-invalid")
			c.ran(0)
			c.untouched()
		},
	},
	{
		name: "B04_QuotedAndBareAreOneKey",
		why:  "A key means the same as a quoted string and bare.",
		run: func(c *trial) {
			c.serve(setup{})
			c.replayOf(c.post(`"abc"`), c.post("abc"))
			c.ran(1)
		},
	},
	{
		name: "B06_B08_B09_KeyMalformed",
		why:  "A key that cannot be read, is too long, or has bytes that are not allowed is 400, and never ignored.",
		run: func(c *trial) {
			c.serve(setup{})
			for _, key := range []string{`"abc`, `"a\b"`, `"abc" x`, "a b", `a"b`, "k\xc3\xa9y", strings.Repeat("k", 256)} {
				c.refused(c.post(key), http.StatusBadRequest, "key-invalid")
			}
			c.ran(0)
			c.fresh(c.post(strings.Repeat("k", 255)), http.StatusCreated)
		},
	},
	{
		name: "B10_MoreThanOneKey",
		why:  "Two keys are one too many, equal or not, in two lines or in one: no field line may be lost on the way.",
		run: func(c *trial) {
			c.serve(setup{})
			c.refused(c.post("k", "Idempotency-Key", "k"), http.StatusBadRequest, "key-invalid")
			c.refused(c.post("k", "Idempotency-Key", "other"), http.StatusBadRequest, "key-invalid")
			c.refused(c.post("k, other"), http.StatusBadRequest, "key-invalid")
			c.refused(c.post("k", "X-Idempotency-Key", "other"), http.StatusBadRequest, "key-invalid")
			c.ran(0)
			c.fresh(c.post("", "X-Idempotency-Key", "k"), http.StatusCreated)
		},
	},
	{
		name: "B11_OtherMethodsPass",
		why:  "A key means nothing to methods that are not protected: the handler runs each time.",
		run: func(c *trial) {
			c.serve(setup{})
			methods := []string{http.MethodGet, http.MethodPut, http.MethodDelete}
			for n, method := range append(methods, methods...) {
				a := c.send(request{method: method, key: "k"})
				c.fresh(a, http.StatusCreated)
				if want := fmt.Sprint("run ", n+1); a.body != want {
					c.Fatalf("the body is %q; want %q", a.body, want)
				}
			}
			c.untouched()
		},
	},
	{
		name: "B12_MethodsExtended",
		why:  "WithMethods protects other methods in the place of the usual ones.",
		run: func(c *trial) {
			c.serve(setup{options: []idempotent.HTTPOption{idempotent.WithMethods(http.MethodPut)}})
			put := request{method: http.MethodPut, key: "k"}
			c.replayOf(c.send(put), c.send(put))
			c.ran(1)
		},
	},
	{
		name: "B14_StoreName",
		why:  "The store name is made of method, path as sent, principal and key, all four, so that a status query and an operator find the record.",
		run: func(c *trial) {
			c.serve(setup{})
			c.fresh(c.send(request{path: "/orders/a%2Fb;c?x=1", key: "k{1}", fields: []string{"X-User", "bob"}}), http.StatusCreated)
			name := idempotent.StoreKey(http.MethodPost, "/orders/a%2Fb;c", "bob", "k{1}")
			e, found, err := c.store.Load(c.Context(), name)
			if err != nil || !found || e.Status != idempotent.Success {
				c.Fatalf("under %s the store has %+v, %v, %v; want the success", name, e, found, err)
			}
		},
	},
	{
		name: "B15_KeyFunc",
		why:  "A key may come from the body, which the handler reads nevertheless.",
		run: func(c *trial) {
			c.serve(setup{
				options: []idempotent.HTTPOption{idempotent.WithKeyFunc(func(r *http.Request, body []byte) (string, error) {
					var order struct{ ID string }
					if err := json.Unmarshal(body, &order); err != nil {
						return "", errors.New("secret detail")
					}
					return order.ID, nil
				})},
				operate: func(_ context.Context, body []byte) Reply {
					reply := c.created()
					reply.Body = string(body)
					return reply
				},
			})
			first := c.send(request{body: `{"id":"k1"}`})
			if first.body != `{"id":"k1"}` {
				c.Fatalf("the handler read %q; want the body as it was sent", first.body)
			}
			c.replayOf(first, c.send(request{body: `{"id":"k1"}`}))
			c.refused(c.send(request{body: `{}`}), http.StatusBadRequest, "key-missing")
			a := c.send(request{body: `[`})
			c.refused(a, http.StatusBadRequest, "key-invalid")
			if strings.Contains(a.body, "secret") {
				c.Fatalf("the answer tells what the function said: %s", a.body)
			}
			c.ran(1)
		},
	},
	{
		name: "B16_B70_KeyPolicy",
		why:  "A key that the policy does not like is 400, one that is too old for it 412.",
		run: func(c *trial) {
			c.serve(setup{options: []idempotent.HTTPOption{idempotent.WithKeyPolicy(func(key string) error {
				switch key {
				case "old":
					return idempotent.ErrKeyExpired
				case "odd":
					return errors.New("odd")
				}
				return nil
			})}})
			c.refused(c.post("old"), http.StatusPreconditionFailed, "key-expired")
			c.refused(c.post("odd"), http.StatusBadRequest, "key-invalid")
			c.ran(0)
			c.fresh(c.post("k"), http.StatusCreated)
		},
	},
	{
		name: "B29_BodyTooLarge",
		why:  "A body above the limit is 413, announced or not, and nothing is claimed; one at the limit is not.",
		run: func(c *trial) {
			c.serve(setup{options: []idempotent.HTTPOption{idempotent.WithMaxBody(64)}})
			c.refused(c.send(request{key: "k", body: strings.Repeat("x", 65)}), http.StatusRequestEntityTooLarge, "body-too-large")
			r := c.build(c.Context(), request{key: "k", body: strings.Repeat("x", 65)})
			r.ContentLength, r.GetBody = -1, nil
			a, err := c.do(r)
			if err != nil {
				c.Fatalf("a body in chunks: %v; want an answer", err)
			}
			c.refused(a, http.StatusRequestEntityTooLarge, "body-too-large")
			c.ran(0)
			c.untouched()
			c.fresh(c.send(request{key: "k", body: strings.Repeat("x", 64)}), http.StatusCreated)
		},
	},
	{
		name: "B31_BodyCutShort",
		why:  "A request whose body did not arrive whole claims nothing: the retry runs.",
		run: func(c *trial) {
			c.serve(setup{})
			host := strings.TrimPrefix(c.url, "http://")
			conn, err := net.Dial("tcp", host)
			if err != nil {
				c.Fatalf("%v", err)
			}
			_, err = fmt.Fprintf(conn, "POST /orders HTTP/1.1\r\nHost: %s\r\nIdempotency-Key: k\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n{\"amount\"", host, len(someBody))
			if err != nil {
				c.Fatalf("%v", err)
			}
			if err = conn.(*net.TCPConn).CloseWrite(); err != nil {
				c.Fatalf("%v", err)
			}
			var none [1]byte
			for err == nil { // until the server has given it up
				_, err = conn.Read(none[:])
			}
			_ = conn.Close()
			c.ran(0)
			c.fresh(c.post("k"), http.StatusCreated)
			c.ran(1)
		},
	},
	{
		name: "B32_HandlerReadsTheBody",
		why:  "The handler reads the bytes that were sent, whether there are none, a few or nearly a mebibyte, announced or in chunks.",
		run: func(c *trial) {
			c.serve(setup{operate: func(_ context.Context, body []byte) Reply {
				reply := c.created()
				reply.Body = string(body)
				return reply
			}})
			for i, body := range []string{" { \"a\" : 1 }\n", "\x00\xff\r\n", strings.Repeat("0123456789abcdef", idempotent.DefaultMaxBody/16)} {
				whole := request{key: fmt.Sprint("whole-", i), body: body}
				first := c.send(whole)
				if first.status != http.StatusCreated || first.body != body {
					c.Fatalf("the handler read %d bytes, %.40q; want the %d sent, %.40q", len(first.body), first.body, len(body), body)
				}
				c.replayOf(first, c.send(whole))
				r := c.build(c.Context(), request{key: fmt.Sprint("chunks-", i), body: body})
				r.ContentLength, r.GetBody = -1, nil
				a, err := c.do(r)
				if err != nil || a.body != body {
					c.Fatalf("of a body in chunks the handler read %d bytes, %v; want the %d sent", len(a.body), err, len(body))
				}
			}
			r := c.build(c.Context(), request{key: "none"})
			r.Body, r.ContentLength, r.GetBody = nil, 0, nil
			a, err := c.do(r)
			if err != nil || a.status != http.StatusCreated || a.body != "" {
				c.Fatalf("without a body: %v, %v; want 201 and nothing", a, err)
			}
		},
	},
	{
		name: "B41_ExpectContinue",
		why:  "A client that waits for leave to send its body is refused without it where the key is wrong, and given it where it is right.",
		run: func(c *trial) {
			c.serve(setup{operate: func(_ context.Context, body []byte) Reply {
				reply := c.created()
				reply.Body = string(body)
				return reply
			}})
			const expect, leave = "100-continue", "100"
			for _, key := range []string{"", `"abc`} {
				a := c.post(key, "Expect", expect)
				if a.status != http.StatusBadRequest || !c.adapter.Buffered && len(a.interim) > 0 {
					c.Fatalf("got %q and then %v; want 400 and nothing before it", a.interim, a)
				}
			}
			c.ran(0)
			first := c.post("k", "Expect", expect)
			c.fresh(first, http.StatusCreated)
			if first.body != someBody || !slices.Equal(first.interim, []string{leave}) {
				c.Fatalf("got %q and then %v; want leave, and the body that was sent", first.interim, first)
			}
			c.replayOf(first, c.post("k", "Expect", expect))
			c.ran(1)
		},
	},
	{
		name: "Rule7_TraceSurvives",
		why:  "What a record keeps of a request is its own: a framework that uses the memory of requests again must not change it.",
		run: func(c *trial) {
			c.serve(setup{})
			c.fresh(c.post("k-0", "X-Request-Id", "trace-0", "X-User", "user-0"), http.StatusCreated)
			for i := 1; i < 10; i++ {
				n := fmt.Sprint(i)
				c.fresh(c.post("k-"+n, "X-Request-Id", "trace-"+n, "X-User", "user-"+n), http.StatusCreated)
			}
			for i := range 10 {
				n := fmt.Sprint(i)
				name := idempotent.StoreKey(http.MethodPost, "/orders", "user-"+n, "k-"+n)
				e, found, err := c.store.Load(c.Context(), name)
				if err != nil || !found || e.Key != name || e.Trace != "trace-"+n {
					c.Fatalf("under %s the store has %+v, %v, %v; want the trace %q", name, e, found, err, "trace-"+n)
				}
			}
		},
	},
}
