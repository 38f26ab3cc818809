package storetest

import "github.com/idempotent-go/idempotent"

// The rules about entries that cannot be read.
var corruptionCases = []testCase{
	{
		name: "ForeignEntry",
		why:  "An entry carries its own key: one found under another name is ErrCorrupt, never an answer, and the key is not run.",
		run:  func(c *trial) { c.corrupted(Foreign, idempotent.ErrCorrupt, done, held) },
	},
	{
		name: "GarbageEntry",
		why:  "An entry that cannot be read is ErrCorrupt: no replay, and no run.",
		run:  func(c *trial) { c.corrupted(Garbage, idempotent.ErrCorrupt, done, held) },
	},
	{
		name: "C020_FinishedWithoutResult",
		why:  "A finished entry whose result is missing is ErrCorrupt, not in flight, not free and not an empty result.",
		run:  func(c *trial) { c.corrupted(Missing, idempotent.ErrCorrupt, done) },
	},
	{
		name: "NewerEntry",
		why:  "An entry of a newer format is ErrNewerFormat: another instance can read it, so it is neither answered nor run nor written over.",
		run:  func(c *trial) { c.corrupted(Newer, idempotent.ErrNewerFormat, done, held) },
	},
}

// held and done bring a key into a state that is then corrupted.
func held(c *trial, key string) { c.claim(key, hold(alice)) }

func done(c *trial, key string) {
	c.claim(key, hold(alice))
	c.complete(key, alice, succeeded("result"), nil)
}

// corrupted expects an entry that was damaged to be refused with want by every
// method that would answer with it, and to be left as it is by all others.
func (c *trial) corrupted(how Corruption, want error, states ...func(*trial, string)) {
	c.Helper()
	if c.Corrupt == nil {
		c.Skipf("the harness has no Corrupt")
	}
	for _, arrange := range states {
		for _, last := range append(calls(alice), calls(bob)...) {
			key := c.key()
			arrange(c, key)
			if err := c.Corrupt(key, how); err != nil {
				c.Fatalf("Corrupt(%v) = %v", how, err)
			}
			refused := func() {
				c.Helper()
				for _, s := range []idempotent.Store{c.Store, c.Second()} {
					c.is("Load of the entry ("+how.String()+")", loading("Load").send(c.ctx, s, key), want)
					c.is("Claim of the entry by its owner", claiming("Claim", hold(alice)).send(c.ctx, s, key), want)
					c.is("Claim of the entry", claiming("Claim", takeOver(hold(bob))).send(c.ctx, s, key), want)
				}
			}
			refused()
			if err := last.send(c.ctx, c.Store, key); err == nil {
				c.Errorf("%s of an entry that cannot be read (%v) = nil; want an error", last.name, how)
			}
			refused()
			if d, ok := c.Store.(idempotent.Deleter); ok {
				c.is("Delete", d.Delete(c.ctx, key), nil)
				c.absent(key)
				c.claim(key, hold(bob))
			}
		}
	}
}
