package storetest

import "github.com/idempotent-go/idempotent"

// The rule about stores that have only so much room.
var roomCases = []testCase{
	{
		name: "FloodEvictsNoClaim",
		why:  "A claim, lapsed or not, is never evicted for room, and an outcome is never refused for room nor evicts itself, however many others there are.",
		run: func(c *trial) {
			flood := 12_000 // more than a memory store keeps by default
			if c.Wrap == nil {
				flood = 500
			}
			running, lapsed, done := c.key(), c.key(), c.key()
			c.claim(running, hold(alice))
			c.claim(lapsed, lapse(alice))
			c.claim(done, hold(alice))
			c.Advance(past)
			for range flood {
				key := c.key()
				c.complete(key, alice, succeeded("result"), nil)
				c.reads(key, alice, idempotent.Success, false, "result")
			}
			_, err := idempotent.Sweep(c.ctx, c.Store)
			c.is("Sweep", err, nil)
			c.running(running, alice)
			c.abandoned(lapsed, alice)
			c.refuse(running, hold(bob))
			c.refuse(lapsed, hold(bob))
			c.complete(done, alice, succeeded("result"), nil)
			c.reads(done, alice, idempotent.Success, false, "result")
			c.claim(c.key(), hold(bob)) // finished entries make room for it
		},
	},
}
