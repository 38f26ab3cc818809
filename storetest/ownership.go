package storetest

import "github.com/idempotent-go/idempotent"

// The rows of the table that begin with a Renew.
var renewCases = []testCase{
	{
		name: "RenewOfRunningKey",
		why:  "A renewal makes the lease run from now, and changes nothing else.",
		run: func(c *trial) {
			key := c.key()
			held := c.claim(key, hold(alice))
			c.Advance(past)
			c.renew(key, alice, long, nil)
			e := c.running(key, alice)
			if got := e.Expires.Sub(held.Expires); got < past-slack {
				c.Errorf("the lease ends %v later than before; want it to run from now", got)
			}
			e.Expires = held.Expires
			c.same("the entry but for its lease", e, held)
		},
	},
	{
		name: "RenewMayShortenTheLease",
		why:  "The lease is the one that the latest renewal asked for, also where that is the shorter one.",
		run: func(c *trial) {
			key := c.key()
			c.claim(key, hold(alice))
			c.renew(key, alice, short, nil)
			c.Advance(past)
			c.abandoned(key, alice)
		},
	},
	{
		name: "C016_RenewedLeaseDecides",
		why:  "A renewed claim stands for its renewed lease; the first one no longer counts.",
		run: func(c *trial) {
			key := c.key()
			c.claim(key, takeOver(lapse(alice)))
			c.renew(key, alice, long, nil)
			c.Advance(past)
			c.running(key, alice)
			c.refuse(key, takeOver(hold(bob)))
		},
	},
	{
		name: "RenewOfLapsedKey",
		why:  "An owner whose renewal comes late still holds the key while nobody else has claimed it.",
		run: func(c *trial) {
			key := c.key()
			held := c.claim(key, takeOver(lapse(alice)))
			c.Advance(past)
			c.renew(key, alice, long, nil)
			e := c.running(key, alice)
			if got := e.Expires.Sub(held.Expires); got < long {
				c.Errorf("the lease ends %v later than before; want it to run from now, %v", got, long)
			}
			c.refuse(key, takeOver(hold(bob)))
		},
	},
	{
		name: "RenewOfFinishedKey",
		why:  "A renewal that crosses the completion of its own owner is nil and does not touch the retention.",
		run: func(c *trial) {
			for _, o := range []idempotent.Outcome{succeeded("result"), failed("no"), unknown("perhaps")} {
				key := c.key()
				c.claim(key, hold(alice))
				c.complete(key, alice, o, nil)
				c.unchanged(key, func() { c.renew(key, alice, 2*long, nil) })
			}
		},
	},
	{
		name: "RenewOfAbsentKey",
		why:  "A renewal never makes a claim: where nothing is left it is ErrLost, and nothing appears.",
		run: func(c *trial) {
			never, forgotten, expired := c.key(), c.key(), c.key()
			c.claim(forgotten, forget(alice))
			o := succeeded("old")
			o.Retention = short
			c.complete(expired, alice, o, nil)
			c.Advance(past)
			for _, key := range []string{never, forgotten, expired} {
				c.renew(key, alice, long, idempotent.ErrLost)
				c.absent(key)
			}
		},
	},
	{
		name: "RenewOfAnothersKey",
		why:  "Only the owner extends a claim; anybody else learns ErrLost, in every state.",
		run: func(c *trial) {
			running, lapsed, done := c.key(), c.key(), c.key()
			c.claim(running, hold(alice))
			c.claim(lapsed, takeOver(lapse(alice)))
			c.complete(done, alice, succeeded("result"), nil)
			c.Advance(past)
			for _, key := range []string{running, lapsed, done} {
				c.unchanged(key, func() { c.renew(key, bob, 2*long, idempotent.ErrLost) })
			}
		},
	},
}

// The rows of the table that begin with a Release.
var releaseCases = []testCase{
	{
		name: "ReleaseOfRunningKey",
		why:  "A release says that nothing happened: the key is absent, and free for anybody.",
		run: func(c *trial) {
			key := c.key()
			c.claim(key, hold(alice))
			c.release(key, alice, nil)
			c.absent(key)
			other := hold(bob)
			other.Fingerprint = print2
			c.claim(key, other)
		},
	},
	{
		name: "ReleaseOfLapsedKey",
		why:  "A late owner still says that nothing happened, while nobody else has claimed.",
		run: func(c *trial) {
			key := c.key()
			c.claim(key, takeOver(lapse(alice)))
			c.Advance(past)
			c.release(key, alice, nil)
			c.absent(key)
		},
	},
	{
		name: "C017_ReleaseAfterTakeOver",
		why:  "The second owner did nothing, but the first one may have: the claim lapses now, and is remembered for its whole Keep.",
		run: func(c *trial) {
			key := c.key()
			c.claim(key, takeOver(lapse(alice)))
			c.Advance(past)
			held := c.claim(key, takeOver(hold(bob)))
			c.Advance(tick)
			c.release(key, bob, nil)
			e := c.abandoned(key, bob)
			c.lasts("the end of Keep", e.Timestamp, e.Expires, long)
			if !e.Timestamp.Before(held.Expires.Add(-long / 2)) {
				c.Errorf("the lease ended %v; want it to end at the release, long before %v", e.Timestamp, held.Expires)
			}
			c.unchanged(key, func() { c.release(key, bob, nil) }) // the lapse does not move
			c.refuse(key, hold(carol))
			c.claim(key, takeOver(hold(carol)))
		},
	},
	{
		name: "C017_ReleaseAfterTakeOverAndLapse",
		why:  "A release that comes later than the lapse leaves the lapse where it was.",
		run: func(c *trial) {
			key := c.key()
			c.claim(key, takeOver(lapse(alice)))
			c.Advance(past)
			c.claim(key, takeOver(lapse(bob)))
			c.Advance(past)
			c.unchanged(key, func() { c.release(key, bob, nil) })
			c.abandoned(key, bob)
		},
	},
	{
		name: "ReleaseAfterTakeOverAndRenewal",
		why:  "That a claim was gained by take-over is remembered through renewals and repeated claims.",
		run: func(c *trial) {
			key := c.key()
			c.claim(key, takeOver(lapse(alice)))
			c.Advance(past)
			c.claim(key, takeOver(hold(bob)))
			c.renew(key, bob, long, nil)
			c.claim(key, takeOver(hold(bob)))
			c.release(key, bob, nil)
			c.abandoned(key, bob)
		},
	},
	{
		name: "ReleaseOfUnknown",
		why:  "The owner of an unknown outcome who finds out that nothing happened frees the key.",
		run: func(c *trial) {
			key := c.key()
			c.claim(key, hold(alice))
			c.complete(key, alice, unknown("perhaps"), nil)
			c.release(key, alice, nil)
			c.absent(key)
			c.claim(key, hold(bob))
		},
	},
	{
		name: "ReleaseOfFinishedKey",
		why:  "A known outcome outlives every release of its owner, which is nil.",
		run: func(c *trial) {
			for _, o := range []idempotent.Outcome{succeeded("result"), failed("no")} {
				key := c.key()
				c.claim(key, hold(alice))
				c.complete(key, alice, o, nil)
				c.unchanged(key, func() { c.release(key, alice, nil) })
			}
		},
	},
	{
		name: "ReleaseOfAbsentKey",
		why:  "Releasing what is not there, for instance for the second time, is nil and makes nothing.",
		run: func(c *trial) {
			never, forgotten, expired := c.key(), c.key(), c.key()
			c.claim(forgotten, forget(alice))
			o := succeeded("old")
			o.Retention = short
			c.complete(expired, alice, o, nil)
			c.Advance(past)
			for _, key := range []string{never, forgotten, expired} {
				c.release(key, bob, nil)
				c.absent(key)
				c.release(key, alice, nil)
				c.absent(key)
			}
		},
	},
	{
		name: "ReleaseOfAnothersKey",
		why:  "Only the owner frees a key; anybody else learns ErrLost, in every state.",
		run: func(c *trial) {
			running, lapsed, done, doubtful := c.key(), c.key(), c.key(), c.key()
			c.claim(running, hold(alice))
			c.claim(lapsed, takeOver(lapse(alice)))
			c.complete(done, alice, succeeded("result"), nil)
			c.complete(doubtful, alice, unknown(""), nil)
			c.Advance(past)
			for _, key := range []string{running, lapsed, done, doubtful} {
				c.unchanged(key, func() { c.release(key, bob, idempotent.ErrLost) })
			}
		},
	},
}
