package storetest

import (
	"github.com/idempotent-go/idempotent"
)

// The rows of the table that begin with a Complete.
var completeCases = []testCase{
	{
		name: "CompleteOfRunningKey",
		why:  "The owner's outcome is recorded as it is, for its retention counted from now.",
		run: func(c *trial) {
			for _, o := range []idempotent.Outcome{succeeded("result"), failed("no"), unknown("perhaps")} {
				key := c.key()
				held := c.claim(key, hold(alice))
				c.Advance(tick)
				o.Retention = 3 * long
				c.complete(key, alice, o, nil)
				e := c.reads(key, alice, o.Status, o.Unknown, o.Result)
				c.lasts("the end of the retention", e.Timestamp, e.Expires, 3*long)
				if got := e.Timestamp.Sub(held.Timestamp); got < tick-slack {
					c.Errorf("completed %v after the claim; want the moment of completion, at least %v", got, tick)
				}
			}
		},
	},
	{
		name: "C048_CompletionKeepsWhatTheClaimSaid",
		why:  "Fingerprint, trace, owner, fence and the time of the first claim survive completion, so that an identical retry is told from another request.",
		run: func(c *trial) {
			for _, o := range []idempotent.Outcome{succeeded("result"), failed("no"), unknown("perhaps")} {
				key := c.key()
				held := c.claim(key, hold(alice))
				c.Advance(tick)
				o.Fingerprint = print2 // used only where the claim is gone
				c.complete(key, alice, o, nil)
				e := c.with(c.Second()).load(key)
				e.Status, e.Unknown, e.Result = held.Status, held.Unknown, held.Result
				e.Timestamp, e.Expires = held.Timestamp, held.Expires
				c.same("the entry but for its outcome", e, held)
			}
		},
	},
	{
		name: "CompleteOfLapsedKey",
		why:  "An owner who comes late still settles the truth while nobody else has run.",
		run: func(c *trial) {
			once, again := c.key(), c.key()
			held := c.claim(once, lapse(alice))
			c.claim(again, takeOver(lapse(alice)))
			c.Advance(past)
			c.abandoned(once, alice)
			for _, key := range []string{once, again} {
				c.complete(key, alice, succeeded("late"), nil)
				e := c.reads(key, alice, idempotent.Success, false, "late")
				c.lasts("the end of the retention", e.Timestamp, e.Expires, long)
				if e.Timestamp.Sub(held.Timestamp) < short {
					c.Errorf("completed %v; want a moment after the lapse of the claim made %v", e.Timestamp, held.Timestamp)
				}
				c.refuse(key, takeOver(hold(bob)))
			}
		},
	},
	{
		name: "C021_CompleteOfAbsentKey",
		why:  "A claim that was evicted, failed over, removed or forgotten leaves nobody else who ran: the outcome is recorded, with the fingerprint it carries.",
		run: func(c *trial) {
			never, forgotten, expired := c.key(), c.key(), c.key()
			c.claim(forgotten, forget(alice))
			c.claim(expired, hold(alice))
			brief := succeeded("old")
			brief.Retention = short
			c.complete(expired, alice, brief, nil)
			c.Advance(past)
			for _, key := range []string{never, forgotten, expired} {
				o := succeeded("result")
				o.Fingerprint = print2
				c.complete(key, alice, o, nil)
				e := c.reads(key, alice, idempotent.Success, false, "result")
				if e.Fingerprint != print2 || e.Trace != "" || e.Fence <= 0 || !near(e.Claimed, e.Timestamp) {
					c.Errorf("the entry is %+v; want the outcome's fingerprint, no trace, a fence, and first claimed when completed", e)
				}
				c.lasts("the end of the retention", e.Timestamp, e.Expires, long)
				c.unchanged(key, func() {
					c.complete(key, alice, o, nil)
					c.complete(key, bob, o, idempotent.ErrLost)
					c.refuse(key, hold(bob))
				})
			}
		},
	},
	{
		name: "CompleteUnknownOfAbsentKey",
		why:  "An unknown outcome of an absent key is recorded too, and its owner may still settle it.",
		run: func(c *trial) {
			key := c.key()
			c.complete(key, alice, unknown("perhaps"), nil)
			c.reads(key, alice, idempotent.Failed, true, "perhaps")
			c.complete(key, alice, failed("no"), nil)
			c.reads(key, alice, idempotent.Failed, false, "no")
		},
	},
	{
		name: "CompleteSettlesUnknown",
		why:  "A recorded unknown outcome is replaced by its owner's known one, whose retention counts anew.",
		run: func(c *trial) {
			for _, o := range []idempotent.Outcome{succeeded("it did"), failed("it did not"), succeeded("")} {
				key := c.key()
				held := c.claim(key, hold(alice))
				c.complete(key, alice, unknown("perhaps"), nil)
				before := c.load(key)
				c.Advance(tick)
				o.Retention = 2 * long
				c.complete(key, alice, o, nil)
				e := c.reads(key, alice, o.Status, false, o.Result)
				c.lasts("the end of the retention", e.Timestamp, e.Expires, 2*long)
				if e.Timestamp.Sub(before.Timestamp) < tick-slack {
					c.Errorf("set %v; want the moment at which it was settled, after %v", e.Timestamp, before.Timestamp)
				}
				if e.Fingerprint != held.Fingerprint || e.Trace != held.Trace || e.Fence != held.Fence || !near(e.Claimed, held.Claimed) {
					c.Errorf("the entry is %+v; want what the claim %+v said", e, held)
				}
			}
		},
	},
	{
		name: "CompleteUnknownOverUnknown",
		why:  "One unknown outcome is as good as another: the second one changes nothing, and is no error.",
		run: func(c *trial) {
			key := c.key()
			c.claim(key, hold(alice))
			c.complete(key, alice, unknown("first"), nil)
			c.unchanged(key, func() {
				other := unknown("second")
				other.Retention = 2 * long
				c.complete(key, alice, unknown("first"), nil)
				c.complete(key, alice, other, nil)
			})
		},
	},
	{
		name: "CompleteUnknownOverKnown",
		why:  "A known outcome is never made unknown again; the attempt changes nothing, and is no error.",
		run: func(c *trial) {
			for _, o := range []idempotent.Outcome{succeeded("result"), failed("no")} {
				key := c.key()
				c.claim(key, hold(alice))
				c.complete(key, alice, o, nil)
				c.unchanged(key, func() { c.complete(key, alice, unknown(o.Result), nil) })
			}
		},
	},
	{
		name: "CompleteAgain",
		why:  "The same outcome sent twice, because the reply was lost, is nil both times and counts its retention once.",
		run: func(c *trial) {
			for _, o := range []idempotent.Outcome{succeeded("result"), failed("no"), unknown("perhaps"), succeeded("")} {
				key := c.key()
				c.claim(key, hold(alice))
				c.complete(key, alice, o, nil)
				c.unchanged(key, func() {
					c.complete(key, alice, o, nil)
					o.Retention, o.Fingerprint = 2*long, print2
					c.complete(key, alice, o, nil)
				})
			}
		},
	},
	{
		name: "CompleteOtherwise",
		why:  "A known outcome never changes: another known one, of the same owner too, is ErrLost.",
		run: func(c *trial) {
			for _, o := range []idempotent.Outcome{succeeded("result"), failed("result"), succeeded("")} {
				key := c.key()
				c.claim(key, hold(alice))
				c.complete(key, alice, o, nil)
				c.unchanged(key, func() {
					for _, other := range []idempotent.Outcome{succeeded("result"), failed("result"), succeeded("other"), succeeded("")} {
						if other != o {
							c.complete(key, alice, other, idempotent.ErrLost)
						}
					}
				})
			}
		},
	},
	{
		name: "CompleteOfAnothersKey",
		why:  "Only the owner says what became of an operation: a stranger's outcome is ErrLost while it runs, after its lease, and when it is finished.",
		run: func(c *trial) {
			running, lapsed, done, doubtful := c.key(), c.key(), c.key(), c.key()
			c.claim(running, hold(alice))
			c.claim(lapsed, takeOver(lapse(alice)))
			c.complete(done, alice, succeeded("result"), nil)
			c.complete(doubtful, alice, unknown(""), nil)
			c.Advance(past)
			for _, key := range []string{running, lapsed, done, doubtful} {
				c.unchanged(key, func() {
					for _, o := range []idempotent.Outcome{succeeded("of another"), succeeded("result"), failed("no"), unknown("")} {
						c.complete(key, bob, o, idempotent.ErrLost)
					}
				})
			}
		},
	},
	{
		name: "C047_RetentionCountsFromCompletion",
		why:  "Neither a short nor a long lease shows in how long an outcome is kept, and a replay does not extend it.",
		run: func(c *trial) {
			kept, gone := c.key(), c.key()
			c.claim(kept, forget(alice)) // would be gone with its lease and Keep
			c.claim(gone, hold(alice))   // would be kept with its lease
			c.complete(kept, alice, succeeded("kept"), nil)
			brief := succeeded("gone")
			brief.Retention = past
			c.complete(gone, alice, brief, nil)
			c.Advance(past / 2)
			_, _, err := c.Store.Load(c.ctx, gone) // a replay
			c.is("Load", err, nil)
			c.Advance(past)
			c.absent(gone)
			c.reads(kept, alice, idempotent.Success, false, "kept")
		},
	},
}
