package storetest

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/idempotent-go/idempotent"
)

// The rules about durations and the clock.
var timeCases = []testCase{
	{
		name: "LapseIsDecidedWhenRead",
		why:  "A lease is over at its end, by the store's own clock: not before, and without a sweep.",
		run: func(c *trial) {
			if c.Wrap == nil {
				c.Skipf("only a fake clock stops one nanosecond early; the harness has no Wrap")
			}
			key := c.key()
			c.claim(key, hold(alice))
			c.Advance(long - time.Nanosecond)
			c.running(key, alice)
			c.refuse(key, takeOver(hold(bob)))
			c.Advance(time.Nanosecond)
			c.abandoned(key, alice)
		},
	},
	{
		name: "C019_DurationsAreNotMixedUp",
		why:  "Lease, Keep and retention are taken in the unit they are given in: seconds, milliseconds and fractions of both.",
		run: func(c *trial) {
			for _, d := range []time.Duration{
				time.Second, 1500 * time.Millisecond, 1300 * time.Millisecond, 90 * time.Minute, 36 * time.Hour, 45 * 24 * time.Hour,
			} {
				key := c.key()
				cl := hold(alice)
				cl.Lease = d
				e := c.claim(key, cl)
				c.lasts("the end of the lease", e.Timestamp, e.Expires, d)
				c.renew(key, alice, 2*d, nil)
				e = c.running(key, alice)
				if got := e.Expires.Sub(e.Timestamp); got < 2*d-slack {
					c.Errorf("the renewed lease ends %v after the claim; want %v after the renewal", got, 2*d)
				}
				o := succeeded("result")
				o.Retention = 3 * d
				c.complete(key, alice, o, nil)
				e = c.load(key)
				c.lasts("the end of the retention", e.Timestamp, e.Expires, 3*d)
			}
		},
	},
	{
		name: "C045_FractionsOfAMillisecond",
		why:  "A duration need not be a whole number of milliseconds; it is kept to within one, and never rounded to nothing.",
		run: func(c *trial) {
			for _, d := range []time.Duration{
				1500*time.Millisecond + 500*time.Microsecond, time.Minute + time.Nanosecond, time.Minute - time.Nanosecond,
			} {
				key := c.key()
				cl := hold(alice)
				cl.Lease, cl.Keep = d, d
				e := c.claim(key, cl)
				c.lasts("the end of the lease", e.Timestamp, e.Expires, d)
				c.renew(key, alice, d, nil)
				o := succeeded("result")
				o.Retention = d
				c.complete(key, alice, o, nil)
				e = c.load(key)
				c.lasts("the end of the retention", e.Timestamp, e.Expires, d)
			}
		},
	},
	{
		name: "ShortestDurations",
		why:  "One millisecond is the shortest duration, and it is one: accepted, and over soon.",
		run: func(c *trial) {
			claimed, renewed, done := c.key(), c.key(), c.key()
			cl := hold(alice)
			cl.Lease, cl.Keep = time.Millisecond, time.Millisecond+time.Nanosecond
			c.claim(claimed, cl)
			c.claim(renewed, hold(alice))
			c.renew(renewed, alice, time.Millisecond, nil)
			o := succeeded("result")
			o.Retention = time.Millisecond
			c.complete(done, alice, o, nil)
			c.Advance(past)
			c.absent(claimed)
			c.abandoned(renewed, alice)
			c.absent(done)
		},
	},
	{
		name: "LongestDurations",
		why:  "Very long durations end late; they do not overflow into the past, the sum of lease and Keep neither.",
		run: func(c *trial) {
			for _, d := range []time.Duration{math.MaxInt64, math.MaxInt64 - 1, math.MaxInt64 / 2, 1 << 62} {
				key := c.key()
				cl := takeOver(hold(alice))
				cl.Lease, cl.Keep = d, d
				c.endless(c.claim(key, cl))
				c.refuse(key, takeOver(hold(bob)))
				c.renew(key, alice, d, nil)
				c.endless(c.running(key, alice))
				c.claim(key, cl)
				c.endless(c.running(key, alice))
				o := succeeded("result")
				o.Retention = d
				c.complete(key, alice, o, nil)
				c.endless(c.reads(key, alice, idempotent.Success, false, "result"))
			}
		},
	},
	{
		name: "LongestKeep",
		why:  "An abandoned claim that is to be remembered for ever is, and can still be taken over.",
		run: func(c *trial) {
			key := c.key()
			cl := takeOver(lapse(alice))
			cl.Keep = math.MaxInt64
			c.claim(key, cl)
			c.Advance(past)
			c.endless(c.abandoned(key, alice))
			c.claim(key, takeOver(hold(bob)))
		},
	},
	{
		name: "TimesOfAnEntry",
		why:  "Timestamp says when the status was set, Claimed when the key was first claimed, Expires when the status ends by itself.",
		run: func(c *trial) {
			key := c.key()
			held := c.claim(key, takeOver(lapse(alice)))
			if !near(held.Claimed, held.Timestamp) {
				c.Errorf("claimed %v, set pending %v; want one moment", held.Claimed, held.Timestamp)
			}
			c.lasts("pending: the end of the lease", held.Timestamp, held.Expires, short)
			c.Advance(past)
			lapsed := c.abandoned(key, alice)
			c.lasts("abandoned: the lapse", held.Timestamp, lapsed.Timestamp, short)
			c.lasts("abandoned: the end of Keep", lapsed.Timestamp, lapsed.Expires, long)
			taken := c.claim(key, takeOver(hold(bob)))
			c.lasts("taken over: the end of the lease", taken.Timestamp, taken.Expires, long)
			c.Advance(tick)
			c.complete(key, bob, succeeded("result"), nil)
			done := c.load(key)
			c.lasts("finished: the end of the retention", done.Timestamp, done.Expires, long)
			for _, e := range []idempotent.Entry{lapsed, taken, done} {
				if !near(e.Claimed, held.Claimed) {
					c.Errorf("%+v: first claimed %v; want %v", e, e.Claimed, held.Claimed)
				}
			}
		},
	},
	{
		name: "C046_C129_OneClock",
		why:  "All times of all entries come from one clock, the store's, through every handle: a later step has a later time.",
		run: func(c *trial) {
			first, second := c.key(), c.key()
			a := c.claim(first, hold(alice))
			c.Advance(tick)
			b := c.with(c.Second()).claim(second, hold(alice))
			if d := b.Timestamp.Sub(a.Timestamp); d < tick-slack || d > long {
				c.Errorf("claimed %v after the claim before, through the other handle; want at least %v and no hour", d, tick)
			}
			c.complete(second, alice, succeeded("result"), nil)
			done := c.load(second)
			if d := done.Timestamp.Sub(b.Timestamp); d < -slack || d > long {
				c.Errorf("completed %v after the claim through the other handle; want a moment", d)
			}
		},
	},
}

// endless expects an entry to end in a hundred years or later.
func (c *trial) endless(e idempotent.Entry) {
	c.Helper()
	if left := e.Expires.Sub(e.Timestamp); left < 100*365*24*time.Hour {
		c.Errorf("%+v ends %v after it was set; want it to last", e, left)
	}
}

// The rules about fences.
var fenceCases = []testCase{
	{
		name: "FenceIsTheClock",
		why:  "A first fence is about the store's clock in microseconds, so that it is larger than those that were forgotten.",
		run: func(c *trial) {
			for range 3 {
				e := c.claim(c.key(), hold(alice))
				if d := time.UnixMicro(e.Fence).Sub(e.Timestamp); d.Abs() > time.Second {
					c.Errorf("the fence is %d, %v away from %v; want the clock in microseconds", e.Fence, d, e.Timestamp)
				}
			}
		},
	},
	{
		name: "FenceGrows",
		why:  "Every claim of a key has a larger fence than the one before, across take-over, release, Keep, retention and removal.",
		run: func(c *trial) {
			key := c.key()
			var last int64
			grown := func(how string, e idempotent.Entry) {
				c.Helper()
				if e.Fence <= last {
					c.Errorf("%s: the fence is %d after %d; want it larger", how, e.Fence, last)
				}
				last = e.Fence
			}
			grown("first claim", c.claim(key, takeOver(lapse(alice))))
			c.Advance(past)
			grown("take-over", c.claim(key, takeOver(hold(bob))))
			c.release(key, bob, nil) // gained by take-over: lapses
			grown("take-over after release", c.claim(key, takeOver(forget(carol))))
			c.Advance(past)
			grown("claim past Keep", c.claim(key, hold(alice)))
			c.Advance(tick)
			c.release(key, alice, nil)
			grown("claim after release", c.claim(key, hold(bob)))
			o := succeeded("result")
			o.Retention = short
			c.complete(key, bob, o, nil)
			c.Advance(past)
			grown("claim past retention", c.claim(key, hold(carol)))
			c.Advance(tick)
			if d, ok := c.Store.(idempotent.Deleter); ok {
				c.is("Delete", d.Delete(c.ctx, key), nil)
				grown("claim after Delete", c.claim(key, hold(alice)))
			}
		},
	},
	{
		name: "FenceStandsStill",
		why:  "Only a new claim has a new fence: renewal, a repeated or refused claim, completion and a stranger's attempts do not.",
		run: func(c *trial) {
			key := c.key()
			want := c.claim(key, hold(alice)).Fence
			c.Advance(tick)
			c.renew(key, alice, long, nil)
			c.claim(key, hold(alice))
			c.refuse(key, takeOver(hold(bob)))
			c.release(key, bob, idempotent.ErrLost)
			c.complete(key, alice, unknown(""), nil)
			c.complete(key, alice, succeeded("result"), nil)
			if got := c.load(key).Fence; got != want {
				c.Errorf("the fence is %d; want %d, that of the claim", got, want)
			}
		},
	},
}

// call is one method with arguments that some case sends it.
type call struct {
	name string
	send func(ctx context.Context, s idempotent.Store, key string) error
}

// claiming returns the call of Claim with cl.
func claiming(name string, cl idempotent.Claim) call {
	return call{name, func(ctx context.Context, s idempotent.Store, key string) error {
		e, claimed, err := s.Claim(ctx, key, cl)
		if err != nil && (claimed || e != idempotent.Entry{}) {
			return fmt.Errorf("claimed %v, entry %+v, although the error was %v", claimed, e, err)
		}
		return err
	}}
}

func renewing(name, owner string, lease time.Duration) call {
	return call{name, func(ctx context.Context, s idempotent.Store, key string) error {
		return s.Renew(ctx, key, owner, lease)
	}}
}

func completing(name, owner string, o idempotent.Outcome) call {
	return call{name, func(ctx context.Context, s idempotent.Store, key string) error {
		return s.Complete(ctx, key, owner, o)
	}}
}

func releasing(name, owner string) call {
	return call{name, func(ctx context.Context, s idempotent.Store, key string) error {
		return s.Release(ctx, key, owner)
	}}
}

func loading(name string) call {
	return call{name, func(ctx context.Context, s idempotent.Store, key string) error {
		e, found, err := s.Load(ctx, key)
		if err != nil && (found || e != idempotent.Entry{}) {
			return fmt.Errorf("found %v, entry %+v, although the error was %v", found, e, err)
		}
		return err
	}}
}

// calls returns every method of [idempotent.Store] with good arguments.
func calls(owner string) []call {
	return []call{
		loading("Load"),
		claiming("Claim", takeOver(hold(owner))),
		renewing("Renew", owner, 2*long),
		completing("Complete", owner, succeeded("result")),
		completing("Complete unknown", owner, unknown("perhaps")),
		releasing("Release", owner),
	}
}

// The rule about arguments that no store accepts.
var argumentCases = []testCase{
	{
		name: "InvalidKey",
		why:  "An empty key is ErrInvalid in every method, never an entry.",
		run: func(c *trial) {
			for _, call := range calls(alice) {
				c.is(call.name+" of the empty key", call.send(c.ctx, c.Store, ""), idempotent.ErrInvalid)
			}
			if d, ok := c.Store.(idempotent.Deleter); ok {
				c.is("Delete of the empty key", d.Delete(c.ctx, ""), idempotent.ErrInvalid)
			}
		},
	},
	{
		name: "InvalidArguments",
		why:  "An empty owner, a duration below a millisecond or an outcome that is none is ErrInvalid and changes nothing, in every state: never an entry that lives for ever.",
		run: func(c *trial) {
			bad := badCalls()
			c.inEveryState(func(state, key string, present bool) {
				check := func() {
					for _, call := range bad {
						c.is(call.name+" of a key that is "+state, call.send(c.ctx, c.Store, key), idempotent.ErrInvalid)
					}
				}
				if present {
					c.unchanged(key, check)
					return
				}
				check()
				c.absent(key)
			})
		},
	},
}

// badCalls returns every method with each argument that no store accepts.
func badCalls() []call {
	bad := []call{
		claiming("Claim without an owner", hold("")),
		renewing("Renew without an owner", "", long),
		completing("Complete without an owner", "", succeeded("result")),
		releasing("Release without an owner", ""),
	}
	for _, d := range []time.Duration{0, -1, -long, math.MinInt64, 1, time.Millisecond - 1} {
		cl := hold(alice)
		cl.Lease = d
		bad = append(bad, claiming(fmt.Sprintf("Claim with the lease %v", d), cl))
		cl = hold(alice)
		cl.Keep = d
		bad = append(bad, claiming(fmt.Sprintf("Claim with the Keep %v", d), cl))
		bad = append(bad, renewing(fmt.Sprintf("Renew with the lease %v", d), alice, d))
		o := succeeded("result")
		o.Retention = d
		bad = append(bad, completing(fmt.Sprintf("Complete with the retention %v", d), alice, o))
	}
	for _, s := range []idempotent.Status{"", idempotent.Pending, "SUCCESS", "done", "absent"} {
		o := succeeded("result")
		o.Status = s
		bad = append(bad, completing(fmt.Sprintf("Complete with the status %q", s), alice, o))
	}
	o := succeeded("result")
	o.Unknown = true
	return append(bad, completing("Complete with an unknown success", alice, o))
}

// The rule about calls whose context is over.
var contextCases = []testCase{
	{
		name: "C002_EndedContext",
		why:  "A call whose context has ended returns the context's error and touches nothing, in every state.",
		run: func(c *trial) {
			cancelled, cancel := context.WithCancel(c.ctx)
			cancel()
			expired, cancel := context.WithTimeout(c.ctx, -time.Second)
			defer cancel()
			c.inEveryState(func(state, key string, present bool) {
				check := func() {
					for _, call := range append(calls(alice), calls(bob)...) {
						what := call.name + " of a key that is " + state
						c.is(what+", cancelled", call.send(cancelled, c.Store, key), context.Canceled)
						c.is(what+", past its deadline", call.send(expired, c.Store, key), context.DeadlineExceeded)
					}
				}
				if present {
					c.unchanged(key, check)
					return
				}
				check()
				c.absent(key)
			})
		},
	},
	{
		name: "EndOfContextAfterTheCall",
		why:  "What was decided stands: the end of the context that a call was made with ends neither the claim nor the outcome.",
		run: func(c *trial) {
			key := c.key()
			ctx, cancel := context.WithCancel(c.ctx)
			_, claimed, err := c.Store.Claim(ctx, key, hold(alice))
			cancel()
			if err != nil || !claimed {
				c.Fatalf("Claim = %v, %v; want it claimed", claimed, err)
			}
			c.running(key, alice)
			ctx, cancel = context.WithCancel(c.ctx)
			c.is("Complete", c.Store.Complete(ctx, key, alice, succeeded("result")), nil)
			cancel()
			c.reads(key, alice, idempotent.Success, false, "result")
		},
	},
}

// states are ways to bring a key into each state, alice being the one who has
// it where nothing else is said. The clock moves by past in between.
var states = []struct {
	name          string
	before, after func(c *trial, key string) // nil: nothing is done
	absent        bool
}{
	{name: "absent", absent: true},
	{
		name:   "running",
		before: func(c *trial, key string) { c.claim(key, hold(alice)) },
	},
	{
		name:   "lapsed",
		before: func(c *trial, key string) { c.claim(key, lapse(alice)) },
	},
	{
		name:   "lapsed, to be taken over",
		before: func(c *trial, key string) { c.claim(key, takeOver(lapse(alice))) },
	},
	{
		name:   "lapsed, another's, to be taken over",
		before: func(c *trial, key string) { c.claim(key, takeOver(lapse(bob))) },
	},
	{
		name:   "taken over",
		before: func(c *trial, key string) { c.claim(key, takeOver(lapse(bob))) },
		after:  func(c *trial, key string) { c.claim(key, takeOver(hold(alice))) },
	},
	{
		name:   "taken over and lapsed",
		before: func(c *trial, key string) { c.claim(key, takeOver(lapse(bob))) },
		after: func(c *trial, key string) {
			c.claim(key, takeOver(hold(alice)))
			c.release(key, alice, nil)
		},
	},
	{
		name:   "held by another",
		before: func(c *trial, key string) { c.claim(key, hold(bob)) },
	},
	{
		name: "a success",
		before: func(c *trial, key string) {
			c.claim(key, hold(alice))
			c.complete(key, alice, succeeded("result"), nil)
		},
	},
	{
		name: "a failure",
		before: func(c *trial, key string) {
			c.claim(key, hold(alice))
			c.complete(key, alice, failed("result"), nil)
		},
	},
	{
		name: "unknown",
		before: func(c *trial, key string) {
			c.claim(key, hold(alice))
			c.complete(key, alice, unknown("perhaps"), nil)
		},
	},
	{
		name: "another's success",
		before: func(c *trial, key string) {
			c.claim(key, hold(bob))
			c.complete(key, bob, succeeded("result"), nil)
		},
	},
	{
		name: "expired",
		before: func(c *trial, key string) {
			o := succeeded("result")
			o.Retention = short
			c.complete(key, alice, o, nil)
		},
		absent: true,
	},
	{
		name:   "forgotten",
		before: func(c *trial, key string) { c.claim(key, forget(alice)) },
		absent: true,
	},
}

// inEveryState calls check with a key in each state.
func (c *trial) inEveryState(check func(state, key string, present bool)) {
	c.Helper()
	c.inEachState(1, func(state string, keys []string, present bool) { check(state, keys[0], present) })
}

// inEachState calls check for each state, with n keys in it.
func (c *trial) inEachState(n int, check func(state string, keys []string, present bool)) {
	c.Helper()
	keys := make([][]string, len(states))
	for i, s := range states {
		for range n {
			key := c.key()
			keys[i] = append(keys[i], key)
			if s.before != nil {
				s.before(c, key)
			}
		}
	}
	c.Advance(past)
	for i, s := range states {
		for _, key := range keys[i] {
			if s.after != nil {
				s.after(c, key)
			}
		}
		check(s.name, keys[i], !s.absent)
	}
}

// The rule about calls that are sent twice.
var resendCases = []testCase{
	{
		name: "EveryCallTwice",
		why:  "While nothing else has changed the entry, the second send of any call answers as the first one and changes nothing but the lease: clients resend after lost replies.",
		run: func(c *trial) {
			sends := append(calls(alice), completing("Complete as a failure", alice, failed("no")))
			c.inEachState(len(sends), func(state string, keys []string, _ bool) {
				c.twice(sends, keys, "of a key that is "+state)
			})
		},
	},
	{
		name: "ClaimTwiceAnswersTheSame",
		why:  "Both answers to a claim that was sent twice agree on who has the key, and show one entry.",
		run: func(c *trial) {
			c.inEveryState(func(state, key string, _ bool) {
				e1, claimed1, err := c.Store.Claim(c.ctx, key, takeOver(hold(alice)))
				c.is("the first Claim of a key that is "+state, err, nil)
				c.Advance(tick)
				e2, claimed2, err := c.Store.Claim(c.ctx, key, takeOver(hold(alice)))
				c.is("the second Claim of a key that is "+state, err, nil)
				if claimed1 != claimed2 {
					c.Errorf("of a key that is %s: claimed %v, then %v; want one answer", state, claimed1, claimed2)
				}
				if claimed2 {
					e2.Expires = e1.Expires
				}
				c.same("of a key that is "+state+": the second entry", e2, e1)
			})
		},
	},
}

// twice sends each call twice, to a key of its own, and compares.
func (c *trial) twice(sends []call, keys []string, which string) {
	c.Helper()
	type answer struct {
		err   error
		entry idempotent.Entry
		found bool
	}
	send := func(i int) (a answer) {
		a.err = sends[i].send(c.ctx, c.Store, keys[i])
		var err error
		a.entry, a.found, err = c.Store.Load(c.ctx, keys[i])
		c.is("Load", err, nil)
		return a
	}
	first := make([]answer, len(sends))
	for i := range sends {
		first[i] = send(i)
	}
	c.Advance(tick)
	for i := range sends {
		name, before, after := sends[i].name+" "+which, first[i], send(i)
		if kind(before.err) != kind(after.err) {
			c.Errorf("%s answered %v, then %v; want one answer", name, before.err, after.err)
		}
		if before.found != after.found {
			c.Errorf("%s left an entry: %v, then %v; want one state", name, before.found, after.found)
		}
		if before.entry.Status == idempotent.Pending && after.entry.Status == idempotent.Pending {
			after.entry.Expires = before.entry.Expires
		}
		c.same(name+": the entry after the second", after.entry, before.entry)
	}
}
