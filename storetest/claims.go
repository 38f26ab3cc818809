package storetest

import (
	"time"

	"github.com/idempotent-go/idempotent"
)

// The rows of the table that begin with a Claim or a Load.
var claimCases = []testCase{
	{
		name: "ClaimOfAbsentKey",
		why:  "A claim of an absent key makes it pending, held by this owner, and says so.",
		run: func(c *trial) {
			key := c.key()
			c.absent(key)
			cl := hold(alice)
			e := c.claim(key, cl)
			if e.Fingerprint != cl.Fingerprint || e.Trace != cl.Trace {
				c.Errorf("the claimed entry is %+v; want the fingerprint and trace of %+v", e, cl)
			}
			c.same("the loaded entry", c.load(key), e)
		},
	},
	{
		name: "C002_C003_ClaimStandsForItsLease",
		why:  "A claim stands exactly for the lease it asked for: neither for ever nor free at once.",
		run: func(c *trial) {
			for range 50 {
				key := c.key()
				e := c.claim(key, hold(alice))
				c.lasts("the end of the lease", e.Timestamp, e.Expires, long)
				c.refuse(key, hold(bob))
			}
		},
	},
	{
		name: "C023_ClaimOfRunningKey",
		why:  "A running claim is not overwritten: another owner gets the entry, whose fingerprint is still the first one's.",
		run: func(c *trial) {
			key := c.key()
			held := c.claim(key, hold(alice))
			other := takeOver(hold(bob))
			other.Fingerprint = print2
			c.unchanged(key, func() {
				c.same("the entry shown to the other owner", c.refuse(key, other), held)
				c.same("the entry shown to the same request", c.refuse(key, hold(carol)), held)
			})
		},
	},
	{
		name: "ClaimAgainBySameOwner",
		why:  "A repeated send of a claim, whose reply was lost, is claimed again; its lease runs from now, the rest is unchanged.",
		run: func(c *trial) {
			key := c.key()
			held := c.claim(key, hold(alice))
			c.Advance(past)
			again := takeOver(hold(alice))
			again.Fingerprint, again.Trace, again.Keep, again.Lease = print2, "another trace", short, 2*long
			e := c.claim(key, again)
			if got := e.Expires.Sub(held.Expires); got < long+past-slack {
				c.Errorf("the lease ends %v later than before; want it to run from now, %v", got, again.Lease)
			}
			e.Expires = held.Expires
			c.same("the entry but for its lease", e, held)
		},
	},
	{
		name: "ClaimAgainBySameOwnerAfterLapse",
		why:  "Ownership does not end by the clock alone: the owner's repeated claim revives a lapsed one.",
		run: func(c *trial) {
			key := c.key()
			held := c.claim(key, lapse(alice))
			c.Advance(past)
			e := c.claim(key, hold(alice))
			if got := e.Expires.Sub(held.Expires); got < long {
				c.Errorf("the lease ends %v later than before; want it to run from now, %v", got, long)
			}
			e.Expires = held.Expires
			c.same("the entry but for its lease", e, held)
			c.refuse(key, hold(bob))
		},
	},
	{
		name: "ClaimAgainKeepsTakeOverOff",
		why:  "A repeated claim changes the lease only, so it cannot allow a take-over that the first one did not allow.",
		run: func(c *trial) {
			key := c.key()
			c.claim(key, lapse(alice))
			c.claim(key, takeOver(lapse(alice)))
			c.Advance(past)
			c.refuse(key, takeOver(hold(bob)))
			c.abandoned(key, alice)
		},
	},
	{
		name: "C001_ClaimOfLapsedKey",
		why:  "A lapsed claim is not free: it is read as failed and unknown, without a result, by Load and by every refused claim.",
		run: func(c *trial) {
			key := c.key()
			held := c.claim(key, lapse(alice))
			c.Advance(past)
			want := held
			want.Status, want.Unknown = idempotent.Failed, true
			want.Timestamp = held.Expires
			want.Expires = held.Expires.Add(long)
			c.same("the abandoned claim", c.load(key), want)
			c.same("the answer to another claim", c.refuse(key, hold(bob)), want)
			c.same("the answer to a take-over", c.refuse(key, takeOver(hold(bob))), want)
			c.same("the abandoned claim afterwards", c.load(key), want)
		},
	},
	{
		name: "C001_AbandonedClaimIsForgottenAfterKeep",
		why:  "An abandoned claim is remembered until lapse + Keep, not for a whole retention; then the key is absent.",
		run: func(c *trial) {
			key := c.key()
			c.claim(key, forget(alice))
			c.Advance(past)
			c.absent(key)
			c.claim(key, hold(bob))
		},
	},
	{
		name: "AbandonedClaimIsKeptForKeep",
		why:  "Keep, and not the lease, says how long an abandoned claim is remembered.",
		run: func(c *trial) {
			key := c.key()
			cl := lapse(alice)
			cl.Lease = time.Millisecond
			c.claim(key, cl)
			c.Advance(past)
			c.abandoned(key, alice)
			c.refuse(key, hold(bob))
		},
	},
	{
		name: "OwnKeyPastKeepIsClaimedAnew",
		why:  "Past Keep a key is absent for its former owner too, whose claim is then a first one.",
		run: func(c *trial) {
			key := c.key()
			held := c.claim(key, forget(alice))
			c.Advance(past)
			e := c.claim(key, hold(alice))
			if !e.Claimed.After(held.Claimed) || !near(e.Claimed, e.Timestamp) {
				c.Errorf("the entry says it was first claimed %v, set pending %v; want one new moment, after %v",
					e.Claimed, e.Timestamp, held.Claimed)
			}
		},
	},
	{
		name: "C049_ClaimOfFinishedKey",
		why:  "A finished entry is answered to every claim as it is, whatever the claim's owner, fingerprint and flags.",
		run: func(c *trial) {
			for _, o := range []idempotent.Outcome{succeeded("result"), failed("no"), unknown("perhaps")} {
				key := c.key()
				c.claim(key, hold(alice))
				c.complete(key, alice, o, nil)
				want := c.load(key)
				other := takeOver(hold(bob))
				other.Fingerprint = print2
				c.unchanged(key, func() {
					c.same("the answer to its owner", c.refuse(key, hold(alice)), want)
					c.same("the answer to the same request", c.refuse(key, takeOver(hold(bob))), want)
					c.same("the answer to another request", c.refuse(key, other), want)
				})
			}
		},
	},
	{
		name: "C124_ClaimOfExpiredKey",
		why:  "Past its retention an outcome is absent, whether or not anybody has swept: it is never replayed, and the key is free.",
		run: func(c *trial) {
			key := c.key()
			c.claim(key, hold(alice))
			o := succeeded("old")
			o.Retention = short
			c.complete(key, alice, o, nil)
			c.Advance(past)
			c.absent(key)
			e := c.claim(key, hold(bob))
			if !near(e.Claimed, e.Timestamp) {
				c.Errorf("the new entry says it was first claimed %v, set pending %v; want one moment", e.Claimed, e.Timestamp)
			}
		},
	},
	{
		name: "LoadChangesNothing",
		why:  "Load reads: it neither claims, nor extends a time, nor settles a lapsed claim.",
		run: func(c *trial) {
			running, lapsed, done := c.key(), c.key(), c.key()
			c.claim(running, hold(alice))
			c.claim(lapsed, takeOver(lapse(alice)))
			c.claim(done, hold(alice))
			c.complete(done, alice, succeeded("result"), nil)
			c.Advance(past)
			for _, key := range []string{running, lapsed, done} {
				c.unchanged(key, func() { c.load(key) })
			}
			c.claim(lapsed, takeOver(hold(bob)))
		},
	},
}

// The rows about a lapsed claim that somebody else may have.
var takeOverCases = []testCase{
	{
		name: "TakeOver",
		why:  "A lapsed claim that allows it is taken over by a claim that asks for it with the same fingerprint: new owner, larger fence, the time of the first claim kept.",
		run: func(c *trial) {
			key := c.key()
			held := c.claim(key, takeOver(lapse(alice)))
			c.Advance(past)
			e := c.claim(key, takeOver(hold(bob)))
			if e.Fence <= held.Fence {
				c.Errorf("the fence is %d after %d; want it larger", e.Fence, held.Fence)
			}
			if e.Trace != hold(bob).Trace || e.Fingerprint != held.Fingerprint {
				c.Errorf("the entry is %+v; want the new trace and the old fingerprint", e)
			}
			if !near(e.Claimed, held.Claimed) {
				c.Errorf("first claimed %v; want %v, the first owner's", e.Claimed, held.Claimed)
			}
			if e.Timestamp.Sub(held.Timestamp) < short {
				c.Errorf("set pending %v; want the moment of the take-over, after %v", e.Timestamp, held.Expires)
			}
			c.lasts("the end of the lease", e.Timestamp, e.Expires, long)
			c.same("the loaded entry", c.load(key), e)
		},
	},
	{
		name: "TakeOverNeedsTheLapse",
		why:  "Nobody takes over a claim whose lease is running.",
		run: func(c *trial) {
			key := c.key()
			c.claim(key, takeOver(hold(alice)))
			c.unchanged(key, func() { c.refuse(key, takeOver(hold(bob))) })
		},
	},
	{
		name: "TakeOverNeedsTheFirstClaimsConsent",
		why:  "What may be run again is said by the claim that ran: without its TakeOver nobody takes over.",
		run: func(c *trial) {
			key := c.key()
			c.claim(key, lapse(alice))
			c.Advance(past)
			c.unchanged(key, func() { c.refuse(key, takeOver(hold(bob))) })
			c.abandoned(key, alice)
		},
	},
	{
		name: "TakeOverNeedsTheNewClaimsWish",
		why:  "A claim that does not ask for take-over gets the reading of the abandoned one.",
		run: func(c *trial) {
			key := c.key()
			c.claim(key, takeOver(lapse(alice)))
			c.Advance(past)
			c.unchanged(key, func() { c.refuse(key, hold(bob)) })
			c.abandoned(key, alice)
		},
	},
	{
		name: "C049_TakeOverNeedsTheSameFingerprint",
		why:  "Another request under the same key never runs in the place of the abandoned one.",
		run: func(c *trial) {
			key := c.key()
			c.claim(key, takeOver(lapse(alice)))
			c.Advance(past)
			for _, print := range []string{print2, "", print1 + " "} {
				other := takeOver(hold(bob))
				other.Fingerprint = print
				c.unchanged(key, func() { c.refuse(key, other) })
			}
			c.abandoned(key, alice)
			c.claim(key, takeOver(hold(bob)))
		},
	},
	{
		name: "TakeOverEndsWithKeep",
		why:  "Past Keep there is nothing to take over: the claim is a first one.",
		run: func(c *trial) {
			key := c.key()
			held := c.claim(key, takeOver(forget(alice)))
			c.Advance(past)
			e := c.claim(key, takeOver(hold(bob)))
			if !e.Claimed.After(held.Claimed) {
				c.Errorf("first claimed %v; want the new claim's moment, after %v", e.Claimed, held.Claimed)
			}
			c.release(key, bob, nil) // not gained by take-over, so it frees the key
			c.absent(key)
		},
	},
	{
		name: "TakeOverTwice",
		why:  "A claim gained by take-over is kept with the flags and durations of its own, and may be taken over again only as it says.",
		run: func(c *trial) {
			again, never := c.key(), c.key()
			c.claim(again, takeOver(lapse(alice)))
			c.claim(never, takeOver(lapse(alice)))
			c.Advance(past)
			second := takeOver(lapse(bob))
			c.claim(again, second)
			second.Keep = short / 2
			second.Lease = short / 2
			c.claim(never, second)
			c.Advance(past)
			e := c.claim(again, takeOver(hold(carol)))
			if got := e.Timestamp.Sub(e.Claimed); got < 2*short {
				c.Errorf("taken over %v after the first claim; want the first of three to be remembered", got)
			}
			c.absent(never) // by the Keep of the second claim
		},
	},
	{
		name: "C005_LateOwnerCannotTouchWhatWasTakenOver",
		why:  "Once another owner holds the key, nothing that the first one sends changes it: ErrLost, and the new owner's outcome is the one that is replayed.",
		run: func(c *trial) {
			key := c.key()
			c.claim(key, takeOver(lapse(alice)))
			c.Advance(past)
			c.claim(key, takeOver(hold(bob)))
			late := func() {
				c.renew(key, alice, 2*long, idempotent.ErrLost)
				c.complete(key, alice, succeeded("of the first"), idempotent.ErrLost)
				c.complete(key, alice, unknown(""), idempotent.ErrLost)
				c.release(key, alice, idempotent.ErrLost)
				c.refuse(key, takeOver(hold(alice)))
			}
			c.unchanged(key, late)
			c.running(key, bob)
			c.complete(key, bob, succeeded("of the second"), nil)
			c.unchanged(key, late)
			c.reads(key, bob, idempotent.Success, false, "of the second")
		},
	},
}
