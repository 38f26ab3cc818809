package storetest

import (
	"fmt"
	"strings"
	"unsafe"

	"github.com/idempotent-go/idempotent"
)

// The rules about what keys, results and other texts may hold, and about who
// may change them.
var contentCases = []testCase{
	{
		name: "C037_C070_OddKeys",
		why:  "A key is bytes: no text in it steers the store, is cut, folded or normalised, and two different keys never meet.",
		run: func(c *trial) {
			prefix := c.key()
			var keys []string
			for _, text := range oddTexts() {
				keys = append(keys, prefix+text, text+prefix)
			}
			keys = append(keys, prefix) // the prefix of all others is one of its own
			for i, key := range keys {
				cl := hold(alice)
				cl.Trace = fmt.Sprint(i)
				c.claim(key, cl)
			}
			for i, key := range keys {
				if e := c.refuse(key, hold(bob)); e.Trace != fmt.Sprint(i) {
					c.Errorf("the key %.60q is answered with the entry of key %s: %.60q", key, e.Trace, e.Key)
				}
				c.complete(key, alice, succeeded(fmt.Sprint("result ", i)), nil)
			}
			for i, key := range keys {
				c.reads(key, alice, idempotent.Success, false, fmt.Sprint("result ", i))
			}
		},
	},
	{
		name: "FullCycleOfOddKeys",
		why:  "Every method finds the entry of an odd key, renewal, release and removal too.",
		run: func(c *trial) {
			prefix := c.key()
			for _, text := range oddTexts() {
				key := prefix + text
				c.claim(key, hold(alice))
				c.renew(key, alice, long, nil)
				c.running(key, alice)
				c.release(key, alice, nil)
				c.absent(key)
			}
		},
	},
	{
		name: "C044_C082_OddResults",
		why:  "A result comes back byte for byte, whatever it looks like to the store's language, and an empty one is a result.",
		run: func(c *trial) {
			results := append(oddTexts(),
				"", "0", "-1", "15947634569000323", "1e400", "null", "false", "[]", "{}", "\"", "\x1f\x8b\x08\x00\x00\x00\x00\x00",
				strings.Repeat("r", 1<<20), strings.Repeat(allBytes(), 1<<12))
			for _, result := range results {
				outcomes := []idempotent.Outcome{succeeded(result), failed(result), unknown(result)}
				if len(result) > 1<<16 {
					outcomes = outcomes[:1]
				}
				for _, o := range outcomes {
					key := c.key()
					c.claim(key, hold(alice))
					c.complete(key, alice, o, nil)
					c.verbatim("the loaded result", c.with(c.Second()).load(key).Result, result)
					c.verbatim("the result in the answer to a claim", c.refuse(key, hold(bob)).Result, result)
					c.complete(key, alice, o, nil)
				}
			}
		},
	},
	{
		name: "OddOwnersFingerprintsAndTraces",
		why:  "Owner, fingerprint and trace are bytes that never run into each other, whatever separators they hold; empty fingerprints and traces are allowed.",
		run: func(c *trial) {
			texts := append(oddTexts(), "", "a:b", ":", "a|b", "3:abc", "0", "15947634569000323", "\x00", "\n", " ")
			for i, text := range texts {
				next := texts[(i+1)%len(texts)]
				for _, cl := range []idempotent.Claim{
					{Owner: "o" + text, Fingerprint: next, Trace: text},
					{Owner: text + "o", Fingerprint: text, Trace: next},
				} {
					cl.Lease, cl.Keep = long, long
					key := c.key()
					e := c.claim(key, cl)
					c.claims(e, cl)
					c.claims(c.load(key), cl)
					c.is("Renew by another", c.Store.Renew(c.ctx, key, cl.Owner+"x", long), idempotent.ErrLost)
					c.is("Complete", c.Store.Complete(c.ctx, key, cl.Owner, succeeded(text)), nil)
					done := c.load(key)
					c.claims(done, cl)
					c.verbatim("the result", done.Result, text)

					key = c.key() // as it is recorded where the claim was lost
					o := succeeded(text)
					o.Fingerprint = next
					c.is("Complete of an absent key", c.Store.Complete(c.ctx, key, cl.Owner, o), nil)
					done = c.load(key)
					if done.Owner != cl.Owner || done.Fingerprint != next {
						c.Errorf("the entry has the owner %q and the fingerprint %q; want %q and %q", done.Owner, done.Fingerprint, cl.Owner, next)
					}
				}
			}
		},
	},
	{
		name: "OddFingerprintsAtTakeOver",
		why:  "Fingerprints are compared byte for byte when a claim is taken over, empty ones too.",
		run: func(c *trial) {
			texts := append(oddTexts(), "", "0", "00", "nil")
			keys := make([]string, len(texts))
			for i, text := range texts {
				cl := takeOver(lapse(alice))
				cl.Fingerprint, keys[i] = text, c.key()
				c.claim(keys[i], cl)
			}
			c.Advance(past)
			for i, text := range texts {
				cl := takeOver(hold(bob))
				cl.Fingerprint = texts[(i+1)%len(texts)]
				c.refuse(keys[i], cl)
				cl.Fingerprint = text
				c.claim(keys[i], cl)
			}
		},
	},
	{
		name: "C130_KeyWhoseBytesChange",
		why:  "A key is copied on entry: a caller who builds one over a buffer and uses the buffer again changes nothing in the store.",
		run: func(c *trial) {
			key := c.key()
			for _, send := range []call{
				claiming("Claim", hold(alice)),
				renewing("Renew", alice, long),
				completing("Complete", alice, succeeded("result")),
			} {
				buffer := []byte(key)
				c.is(send.name, send.send(c.ctx, c.Store, unsafe.String(&buffer[0], len(buffer))), nil)
				clear(buffer)
				if e := c.load(key); e.Owner != alice {
					c.Errorf("after %s and a change of the caller's buffer the entry is %+v; want alice's", send.name, e)
				}
			}
			key = c.key() // recorded where the claim was lost
			buffer := []byte(key)
			c.complete(unsafe.String(&buffer[0], len(buffer)), alice, succeeded("result"), nil)
			clear(buffer)
			c.reads(key, alice, idempotent.Success, false, "result")
		},
	},
	{
		name: "C130_TextsWhoseBytesChange",
		why:  "Owner, fingerprint and trace are copied on entry, as the key is; only results are shared, since they are large.",
		run: func(c *trial) {
			cl := takeOver(lapse(alice))
			buffer := []byte(cl.Owner + cl.Fingerprint + cl.Trace)
			text := func(from, n int) string { return unsafe.String(&buffer[from], n) }
			overlaid := cl
			overlaid.Owner = text(0, len(cl.Owner))
			overlaid.Fingerprint = text(len(cl.Owner), len(cl.Fingerprint))
			overlaid.Trace = text(len(cl.Owner)+len(cl.Fingerprint), len(cl.Trace))

			claimed, taken, recorded := c.key(), c.key(), c.key()
			first := cl
			first.Owner = bob
			c.claim(taken, first)
			c.Advance(past)
			for _, key := range []string{claimed, taken} {
				_, ok, err := c.Store.Claim(c.ctx, key, overlaid)
				if err != nil || !ok {
					c.Fatalf("Claim = %v, %v; want it claimed", ok, err)
				}
			}
			o := succeeded("result")
			o.Fingerprint = overlaid.Fingerprint
			c.is("Complete", c.Store.Complete(c.ctx, recorded, overlaid.Owner, o), nil)
			clear(buffer)
			c.claims(c.load(claimed), cl)
			c.claims(c.load(taken), cl)
			cl.Trace = ""
			c.claims(c.load(recorded), cl)
		},
	},
	{
		name: "C131_EntriesAreValues",
		why:  "Whoever changes an entry, a claim or an outcome after the call changes nothing in the store.",
		run: func(c *trial) {
			key := c.key()
			cl := hold(alice)
			e := c.claim(key, cl)
			want := e
			cl.Owner, cl.Fingerprint, cl.Trace = bob, print2, "changed"
			e.Owner, e.Status, e.Fence = bob, idempotent.Success, 0
			c.same("the entry after a change of what Claim took and returned", c.load(key), want)
			o := succeeded("result")
			c.complete(key, alice, o, nil)
			o.Result, o.Status = "changed", idempotent.Failed
			e = c.load(key)
			want = e
			e.Result, e.Expires = "changed", e.Claimed
			shown := c.refuse(key, hold(bob))
			shown.Result, shown.Owner = "changed", bob
			c.same("the entry after a change of what Load and Claim returned", c.load(key), want)
			c.same("the next answer to a claim", c.refuse(key, hold(bob)), want)
		},
	},
	{
		name: "EmptyResultIsAResult",
		why:  "An empty result is told apart from none: such an outcome is complete, replayed, and not open to another.",
		run: func(c *trial) {
			key := c.key()
			c.claim(key, hold(alice))
			c.complete(key, alice, succeeded(""), nil)
			c.unchanged(key, func() {
				c.complete(key, alice, succeeded(""), nil)
				c.complete(key, alice, succeeded("not empty"), idempotent.ErrLost)
				c.refuse(key, takeOver(hold(bob)))
			})
			c.reads(key, alice, idempotent.Success, false, "")
		},
	},
}

// oddTexts returns texts, none of them empty and no two equal, that have upset
// some store, its language or its wire format.
func oddTexts() []string {
	return []string{
		"{a}b", "}{", "{}", "a{", "{same}1", "{same}2", "a}b{c}",
		"nul\x00nul", "line\nfeed", "carriage\r\nreturn", "tab\t", " blank ", " blank", "blank ", "blank",
		"%", "%s%d%n", "%7B", "%00", "100%", "a:b:c", "a::b", "a/b/../c", "..", "a|b", "a,b", "a;b",
		"*", "?", "[a-z]", "h[^e]llo", "\\*", "\\", "'; DROP TABLE entries; --", "\"quoted\"", "`", "$1", "${x}", "_", "a_b%",
		"A", "a", "STRASSE", "straße", "İ", "ı", "K", "\u212a",
		"caf\u00e9", "cafe\u0301", "\ufeffbom", "\u200b", "\U0001F511", "\ufffd",
		"\xff", "\xc3\x28", "\xed\xa0\x80", "\xf8\x88\x80\x80\x80",
		"0", "-0", "1e3", "1000", "15947634569000323", "15947634569000324", "9007199254740993", "9007199254740992", "true", "nil", "false",
		strings.Repeat("k", 10_000), strings.Repeat("k", 10_000) + "1", allBytes(),
	}
}

// allBytes returns each of the 256 bytes once.
func allBytes() string {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return string(b)
}

// verbatim compares two texts, and shows only where they part.
func (c *trial) verbatim(what, got, want string) {
	c.Helper()
	if got == want {
		return
	}
	i := 0
	for i < min(len(got), len(want)) && got[i] == want[i] {
		i++
	}
	c.Errorf("%s has %d bytes; want %d, and from byte %d on they differ: %.20q; want %.20q",
		what, len(got), len(want), i, got[i:], want[i:])
}

// claims expects the texts of an entry to be those of its claim.
func (c *trial) claims(e idempotent.Entry, cl idempotent.Claim) {
	c.Helper()
	c.verbatim("the owner", e.Owner, cl.Owner)
	c.verbatim("the fingerprint", e.Fingerprint, cl.Fingerprint)
	c.verbatim("the trace", e.Trace, cl.Trace)
}

// The rules about several handles on the same data.
var handleCases = []testCase{
	{
		name: "C025_TwoHandles",
		why:  "What one handle decides every other handle sees at once.",
		run: func(c *trial) {
			other := c.with(c.Second())
			key := c.key()
			held := c.claim(key, hold(alice))
			c.same("the entry through the other handle", other.load(key), held)
			other.refuse(key, hold(bob))
			other.renew(key, bob, long, idempotent.ErrLost)
			other.release(key, bob, idempotent.ErrLost)
			other.renew(key, alice, 2*long, nil)
			if e := c.running(key, alice); e.Expires.Sub(held.Expires) < long-slack {
				c.Errorf("the lease ends %v; want it renewed through the other handle", e.Expires)
			}
			other.complete(key, alice, succeeded("result"), nil)
			c.reads(key, alice, idempotent.Success, false, "result")
			c.complete(key, alice, succeeded("result"), nil)
			c.release(key, alice, nil)
			c.same("the outcome through the other handle", other.load(key), c.load(key))
		},
	},
	{
		name: "C024_PendingIsNotRemembered",
		why:  "A handle that has seen a key pending, abandoned or unknown sees what became of it at its next look: only known outcomes never change.",
		run: func(c *trial) {
			other := c.with(c.Second())
			freed, done, late, settled := c.key(), c.key(), c.key(), c.key()
			c.claim(freed, hold(alice))
			c.claim(done, hold(alice))
			c.claim(late, lapse(alice))
			c.claim(settled, hold(alice))
			c.complete(settled, alice, unknown("perhaps"), nil)
			c.Advance(past)
			other.running(freed, alice)
			other.running(done, alice)
			other.abandoned(late, alice)
			other.reads(settled, alice, idempotent.Failed, true, "perhaps")

			c.release(freed, alice, nil)
			for _, key := range []string{done, late, settled} {
				c.complete(key, alice, succeeded("result"), nil)
			}
			other.claim(freed, hold(bob))
			for _, key := range []string{done, late, settled} {
				other.reads(key, alice, idempotent.Success, false, "result")
			}
		},
	},
	{
		name: "TakeOverThroughAnotherHandle",
		why:  "A take-over through one handle is known to the owner who uses another.",
		run: func(c *trial) {
			other := c.with(c.Second())
			key := c.key()
			c.claim(key, takeOver(lapse(alice)))
			c.Advance(past)
			other.claim(key, takeOver(hold(bob)))
			c.renew(key, alice, long, idempotent.ErrLost)
			c.complete(key, alice, succeeded("of the first"), idempotent.ErrLost)
			other.complete(key, bob, succeeded("of the second"), nil)
			c.reads(key, bob, idempotent.Success, false, "of the second")
		},
	},
}
