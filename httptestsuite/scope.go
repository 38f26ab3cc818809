package httptestsuite

import (
	"net/http"

	"github.com/idempotent-go/idempotent"
)

var scopeCases = []testCase{
	{
		name: "B17_PrincipalsAreApart",
		why:  "The same key of two principals is two operations: nobody is answered with what is another's.",
		run: func(c *trial) {
			c.serve(setup{})
			alice, bob := c.post("k", "X-User", "alice"), c.post("k", "X-User", "bob")
			c.fresh(alice, http.StatusCreated)
			c.fresh(bob, http.StatusCreated)
			if alice.body == bob.body {
				c.Fatalf("both were answered with %q; want a run each", bob.body)
			}
			c.replayOf(bob, c.post("k", "X-User", "bob"))
			c.replayOf(alice, c.post("k", "X-User", "alice"))
			// Another body is another operation, not a reuse.
			c.fresh(c.send(request{key: "k", body: `{"amount":2}`, fields: []string{"X-User", "carol"}}), http.StatusCreated)
			c.ran(3)
		},
	},
	{
		name: "B19_PrincipalFails",
		why:  "Without a principal nothing is run: 401 where nobody is logged in, 500 where it cannot be told.",
		run: func(c *trial) {
			c.serve(setup{})
			a := c.post("k", "X-User", "nobody")
			c.refused(a, http.StatusUnauthorized, "unauthenticated")
			if a.header.Get("WWW-Authenticate") == "" {
				c.Fatalf("a 401 without WWW-Authenticate")
			}
			c.refused(c.post("k", "X-User", "broken"), http.StatusInternalServerError, "internal")
			c.ran(0)
			c.untouched()
			c.fresh(c.post("k"), http.StatusCreated)
		},
	},
	{
		name: "B20_MethodAndPathAreApart",
		why:  "The same key on another method or path, as it was sent, is an operation of its own.",
		run: func(c *trial) {
			c.serve(setup{})
			for _, q := range []request{
				{key: "k"},
				{key: "k", method: http.MethodPatch},
				{key: "k", path: "/refunds"},
				{key: "k", path: "/refunds/a/b"},
				{key: "k", path: "/refunds/a%2Fb"},
				{key: "k", path: "/refunds/A/b"},
			} {
				first := c.send(q)
				c.fresh(first, http.StatusCreated)
				c.replayOf(first, c.send(q))
			}
			c.ran(6)
		},
	},
	{
		name: "B21_PrincipalScope",
		why:  "With WithPrincipalScope the same key on another method or path is refused.",
		run: func(c *trial) {
			c.serve(setup{options: []idempotent.HTTPOption{idempotent.WithPrincipalScope()}})
			c.replayOf(c.post("k"), c.post("k"))
			c.refused(c.send(request{key: "k", path: "/refunds"}), http.StatusUnprocessableEntity, "key-reused")
			c.refused(c.send(request{key: "k", method: http.MethodPatch}), http.StatusUnprocessableEntity, "key-reused")
			c.ran(1)
		},
	},
	{
		name: "B22_OtherBody",
		why:  "The same key with another body is 422, also while the first request runs.",
		run: func(c *trial) {
			var held *gate
			c.serve(setup{operate: c.held(&held)})
			held = c.gate()
			first := c.begin(request{key: "k"})
			c.reached(held)
			other := request{key: "k", body: `{"amount":2}`}
			c.refused(c.send(other), http.StatusUnprocessableEntity, "key-reused")
			held.open()
			a := first.wait()
			c.refused(c.send(other), http.StatusUnprocessableEntity, "key-reused")
			c.replayOf(a, c.post("k"))
			c.ran(1)
		},
	},
	{
		name: "B23_Query",
		why:  "Other query values are another request; the order of names is not.",
		run: func(c *trial) {
			c.serve(setup{})
			first := c.send(request{key: "k", path: "/orders?a=1&b=2&b=3"})
			c.replayOf(first, c.send(request{key: "k", path: "/orders?b=2&b=3&a=1"}))
			for _, query := range []string{"?a=1&b=3&b=2", "?a=2&b=2&b=3", "?a=1&b=2", ""} {
				c.refused(c.send(request{key: "k", path: "/orders" + query}), http.StatusUnprocessableEntity, "key-reused")
			}
			c.ran(1)
		},
	},
	{
		name: "B24_JSONSpelling",
		why:  "JSON that is spelt in another way is the same request; the adapter must leave type and body alone.",
		run: func(c *trial) {
			c.serve(setup{})
			first := c.send(request{key: "k", body: `{"a":"\u00e9","b":[1,2]}`})
			c.replayOf(first, c.send(request{key: "k", body: "{ \"b\": [1, 2],\n\"a\": \"é\" }"}))
			c.refused(c.send(request{key: "k", body: `{"a":"é","b":[2,1]}`}), http.StatusUnprocessableEntity, "key-reused")
			c.ran(1)
		},
	},
	{
		name: "B33_WhatChangesBetweenAttempts",
		why:  "Tokens, cookies and trace fields differ between attempts and make no other request.",
		run: func(c *trial) {
			c.serve(setup{})
			first := c.post("k", "Authorization", "Bearer 1", "Cookie", "s=1", "Traceparent", "00-1", "X-Request-Id", "1", "User-Agent", "a")
			c.replayOf(first, c.post("k", "Authorization", "Bearer 2", "Cookie", "s=2", "Traceparent", "00-2", "X-Request-Id", "2", "User-Agent", "b"))
			c.ran(1)
		},
	},
	{
		name: "B82_OtherMediaTypeOrCoding",
		why:  "The same bytes as another media type or in another coding are another request.",
		run: func(c *trial) {
			c.serve(setup{})
			c.fresh(c.post("k"), http.StatusCreated)
			c.refused(c.post("k", "Content-Type", "text/plain"), http.StatusUnprocessableEntity, "key-reused")
			c.refused(c.post("k", "Content-Encoding", "x-odd"), http.StatusUnprocessableEntity, "key-reused")
			c.ran(1)
		},
	},
}
