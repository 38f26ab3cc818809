package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/idempotent-go/idempotent"
)

// mostPages ends a listing that has no end. Others may share a server, and a
// page may then be empty.
const mostPages = 10_000

// The rules about listings; see [idempotent.Lister].
var listCases = []testCase{
	{
		name: "ListShowsEveryState",
		why:  "A listing shows each key that is there as Load does, but for the result, and none that is not.",
		run: func(c *trial) {
			c.needsList()
			c.inEveryState(func(state, key string, present bool) {
				got, corrupt := c.lists(idempotent.ListQuery{Prefix: key}, nil)
				want := map[string]idempotent.Entry{}
				if present {
					e := c.load(key)
					e.Result = ""
					want[key] = e
				}
				c.sameKeys("the listing of a key that is "+state, got, want)
				for key, e := range want {
					c.same("the listed entry of a key that is "+state, got[key], e)
				}
				if len(corrupt) > 0 {
					c.Errorf("the listing of a key that is %s names %q as corrupt; want nothing", state, corrupt)
				}
			})
		},
	},
	{
		name: "ListForgetsAtOnce",
		why:  "A key that was released or deleted is listed no more.",
		run: func(c *trial) {
			c.needsList()
			ends := []func(key string){func(key string) { c.release(key, alice, nil) }}
			if _, ok := c.Store.(idempotent.Deleter); ok {
				ends = append(ends, func(key string) { c.is("Delete", idempotent.Delete(c.ctx, c.Store, key), nil) })
			}
			for _, end := range ends {
				key := c.key()
				want := map[string]idempotent.Entry{key: c.claim(key, hold(alice))}
				got, _ := c.lists(idempotent.ListQuery{Prefix: key}, nil)
				c.sameKeys("the listing of a claim", got, want)
				end(key)
				got, _ = c.lists(idempotent.ListQuery{Prefix: key}, nil)
				c.sameKeys("the listing afterwards", got, nil)
			}
		},
	},
	{
		name: "ListInPages",
		why:  "Pages of any size show the same entries, no page more than were asked for, and 0 and too many mean the defaults.",
		run: func(c *trial) {
			c.needsList()
			prefix := c.key()
			want := map[string]idempotent.Entry{}
			for i := range 23 {
				key := fmt.Sprint(prefix, i)
				c.claim(key, hold(alice))
				if i%2 == 0 {
					c.complete(key, alice, succeeded("result"), nil)
				}
				want[key] = c.load(key)
			}
			for _, limit := range []int{1, 2, 7, 100, 0, idempotent.MaxListLimit + 1} {
				got, _ := c.lists(idempotent.ListQuery{Prefix: prefix, Limit: limit}, nil)
				c.sameKeys(fmt.Sprintf("a listing in pages of %d", limit), got, want)
			}
		},
	},
	{
		name: "ListPrefixIsLiteral",
		why:  "A prefix selects the keys that begin with it, byte for byte: no character is a pattern, and letters differ in case.",
		run: func(c *trial) {
			c.needsList()
			base := c.key()
			parts := []string{
				"", "*", "?", "[a]", "[^a]", "[", "]", "a", "A", "b", "\\", "\\*", "%", "_", "\n", "\x00", "é", "É", "e",
				"'", "\"", "{a}", "{", "}", "!", "!!", "!(", " ", strings.Repeat("long", 70), strings.Repeat("long", 70) + "er",
			}
			all := map[string]idempotent.Entry{}
			for _, part := range parts {
				key := base + part + "tail"
				all[key] = c.claim(key, hold(alice))
			}
			for _, part := range append(parts, "none", "tai") {
				prefix := base + part
				want := maps.Clone(all)
				maps.DeleteFunc(want, func(key string, _ idempotent.Entry) bool { return !strings.HasPrefix(key, prefix) })
				got, _ := c.lists(idempotent.ListQuery{Prefix: prefix, Limit: 5}, nil)
				c.sameKeys(fmt.Sprintf("the listing under …%q", part), got, want)
			}
		},
	},
	{
		name: "ListWhileOthersComeAndGo",
		why:  "An entry that is there from the first page to the last is listed, although it is completed and others come and go between the pages.",
		run: func(c *trial) {
			c.needsList()
			prefix := c.key()
			want := map[string]idempotent.Entry{}
			var stay, leave []string
			for i := range 20 {
				key, other := fmt.Sprint(prefix, "m", i), fmt.Sprint(prefix, "a", i)
				c.claim(other, hold(bob))
				want[key] = c.claim(key, hold(alice))
				stay, leave = append(stay, key), append(leave, other)
			}
			n := 0
			got, _ := c.lists(idempotent.ListQuery{Prefix: prefix, Limit: 3}, func() {
				if n == len(stay) {
					return
				}
				c.release(leave[n], bob, nil)
				c.complete(stay[len(stay)-1-n], alice, succeeded("result"), nil)
				c.claim(fmt.Sprint(prefix, "z", n), hold(carol))
				n++
			})
			maps.DeleteFunc(got, func(key string, _ idempotent.Entry) bool { return !slices.Contains(stay, key) })
			c.sameKeys("the listing, without those that came or went", got, want)
		},
	},
	{
		name: "ListNamesWhatItCannotRead",
		why:  "An entry that cannot be read is named and does not end the listing.",
		run: func(c *trial) {
			c.needsList()
			if c.Corrupt == nil {
				c.Skipf("the harness has no Corrupt")
			}
			prefix := c.key()
			good := map[string]idempotent.Entry{}
			var bad []string
			for i, how := range []Corruption{Foreign, Garbage, Missing, Newer} {
				whole, damaged := fmt.Sprint(prefix, i), fmt.Sprint(prefix, i, "d")
				done(c, whole)
				done(c, damaged)
				if err := c.Corrupt(damaged, how); err != nil {
					c.Fatalf("Corrupt(%v) = %v", how, err)
				}
				good[whole], bad = c.load(whole), append(bad, damaged)
			}
			slices.Sort(bad)
			for _, limit := range []int{1, 3, 0} {
				got, corrupt := c.lists(idempotent.ListQuery{Prefix: prefix, Limit: limit}, nil)
				c.sameKeys("the entries beside damaged ones", got, good)
				if !slices.Equal(corrupt, bad) {
					c.Errorf("the listing names %q as corrupt; want %q", corrupt, bad)
				}
			}
		},
	},
	{
		name: "ListInvalid",
		why:  "A negative limit and a cursor that no store has given are ErrInvalid, and no page.",
		run: func(c *trial) {
			c.needsList()
			for _, q := range []idempotent.ListQuery{
				{Limit: -1},
				{Cursor: "no cursor"},
				{Cursor: "\x00"},
				{Cursor: " "},
			} {
				_, err := idempotent.List(c.ctx, c.Store, q)
				c.is(fmt.Sprintf("List(%+q)", fmt.Sprint(q)), err, idempotent.ErrInvalid)
			}
		},
	},
	{
		name: "ListWithEndedContext",
		why:  "A listing whose context has ended says so.",
		run: func(c *trial) {
			c.needsList()
			ctx, cancel := context.WithCancel(c.ctx)
			cancel()
			_, err := idempotent.List(ctx, c.Store, idempotent.ListQuery{})
			c.is("List, cancelled", err, context.Canceled)
		},
	},
}

// needsList skips the case where the store, or one below it, lists nothing.
func (c *trial) needsList() {
	c.Helper()
	_, err := idempotent.List(c.ctx, c.Store, idempotent.ListQuery{Limit: 1})
	if errors.Is(err, errors.ErrUnsupported) {
		c.Skipf("%T is no Lister: %v", c.Store, err)
	}
}

// lists goes through all pages and returns the entries by key and, sorted, the
// keys of those that could not be read. Handles take turns. between is called
// between two pages.
func (c *trial) lists(q idempotent.ListQuery, between func()) (map[string]idempotent.Entry, []string) {
	c.Helper()
	size, err := q.Size()
	c.is("Size", err, nil)
	entries := map[string]idempotent.Entry{}
	var corrupt []string
	for i := range mostPages {
		page, err := idempotent.List(c.ctx, c.handle(i), q)
		c.is("List", err, nil)
		if n := len(page.Entries) + len(page.Corrupt); n > size {
			c.Errorf("a page has %d entries; want %d at most", n, size)
		}
		for _, e := range page.Entries {
			entries[e.Key] = e
		}
		for _, key := range page.Corrupt {
			if !slices.Contains(corrupt, key) {
				corrupt = append(corrupt, key)
			}
		}
		if q.Cursor = page.Next; q.Cursor == "" {
			slices.Sort(corrupt)
			return entries, corrupt
		}
		if between != nil {
			between()
		}
	}
	c.Fatalf("the listing has no end: %d pages, %d entries", mostPages, len(entries))
	return nil, nil
}

// sameKeys expects entries of the same keys.
func (c *trial) sameKeys(what string, got, want map[string]idempotent.Entry) {
	c.Helper()
	g, w := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want))
	if !slices.Equal(g, w) {
		c.Errorf("%s has the keys\n%q; want\n%q", what, g, w)
	}
}
