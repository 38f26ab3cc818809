package storetest

import (
	"context"
	"fmt"
	"time"

	"github.com/idempotent-go/idempotent"
)

// waited is the answer of a Wait.
type waited struct {
	entry idempotent.Entry
	found bool
	err   error
}

// wait starts to wait for key, and returns where the answer arrives.
func (c *trial) wait(ctx context.Context, key string) <-chan waited {
	answer := make(chan waited, 1)
	go func() {
		var w waited
		w.entry, w.found, w.err = idempotent.Wait(ctx, c.Store, key)
		answer <- w
	}()
	return answer
}

// renewedWhileWaitedFor starts to wait for key, which is renewed for lease and
// then for long, and reports whether that came well before the end of lease: a
// slow server may need longer.
func (c *trial) renewedWhileWaitedFor(ctx context.Context, key string, lease time.Duration) (answer <-chan waited, inTime bool) {
	c.Helper()
	c.claim(key, hold(alice))
	answer = c.wait(ctx, key)
	c.Advance(tick)
	began := time.Now()
	c.renew(key, alice, lease, nil)
	c.Advance(tick)
	c.renew(key, alice, long, nil)
	return answer, time.Since(began) < lease/2
}

// wakes starts to wait for key, lets wake happen and returns what the wait
// found. A wait that does not return fails the case.
func (c *trial) wakes(key string, wake func()) waited {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.ctx, ceiling)
	defer cancel()
	const waiters = 3
	var answers [waiters]<-chan waited
	for i := range answers {
		answers[i] = c.with(c.handle(i)).wait(ctx, key)
	}
	c.Advance(tick) // so that they most likely wait; it holds in any order
	wake()
	var w waited
	for _, answer := range answers {
		if w = <-answer; w.err != nil {
			c.Fatalf("Wait = %v; want it to return when no claim is running", w.err)
		}
	}
	return w
}

// The optional abilities, through the functions that find them.
var abilityCases = []testCase{
	{
		name: "WaitReturnsAtOnce",
		why:  "Where no claim is running there is nothing to wait for: Wait returns at once what Load returns.",
		run: func(c *trial) {
			c.inEveryState(func(state, key string, present bool) {
				if state == "running" || state == "taken over" || state == "held by another" {
					return
				}
				ctx, cancel := context.WithTimeout(c.ctx, ceiling)
				defer cancel()
				began := time.Now()
				e, found, err := idempotent.Wait(ctx, c.Store, key)
				if err != nil || found != present {
					c.Fatalf("Wait for a key that is %s = %+v, %v, %v; want found %v", state, e, found, err, present)
				}
				if took := time.Since(began); took > ceiling/2 {
					c.Errorf("Wait for a key that is %s took %v; want it to return at once", state, took)
				}
				if found {
					c.same("the entry that Wait found of a key that is "+state, e, c.load(key))
				}
			})
		},
	},
	{
		name: "WaitWakesAtCompletion",
		why:  "Everybody who waits gets the outcome as soon as it is recorded.",
		run: func(c *trial) {
			for _, o := range []idempotent.Outcome{succeeded("result"), failed("no"), unknown("perhaps")} {
				key := c.key()
				c.claim(key, hold(alice))
				w := c.wakes(key, func() { c.complete(key, alice, o, nil) })
				if !w.found {
					c.Fatalf("Wait found nothing; want the outcome")
				}
				c.same("the entry that Wait found", w.entry, c.load(key))
			}
		},
	},
	{
		name: "WaitWakesAtRelease",
		why:  "Everybody who waits learns that the key is free.",
		run: func(c *trial) {
			key := c.key()
			c.claim(key, hold(alice))
			if w := c.wakes(key, func() { c.release(key, alice, nil) }); w.found {
				c.Errorf("Wait found %+v; want nothing", w.entry)
			}
		},
	},
	{
		name: "WaitWakesAtLapse",
		why:  "The end of the lease ends the wait, with the reading of the abandoned claim, although nobody calls the store.",
		run: func(c *trial) {
			key := c.key()
			c.claim(key, lapse(alice))
			w := c.wakes(key, func() { c.Advance(past) })
			if !w.found || w.entry.Status != idempotent.Failed || !w.entry.Unknown || w.entry.Owner != alice {
				c.Errorf("Wait found %v, %+v; want the abandoned claim", w.found, w.entry)
			}
		},
	},
	{
		name: "WaitOutlastsRenewal",
		why:  "A renewed claim is still running: the end of its first lease ends no wait, and a shortened lease ends it early.",
		run: func(c *trial) {
			ctx, cancel := context.WithTimeout(c.ctx, ceiling)
			defer cancel()
			key, lease := c.key(), 3*past
			answer, inTime := c.renewedWhileWaitedFor(ctx, key, lease)
			for !inTime {
				key, lease = c.key(), 2*lease
				answer, inTime = c.renewedWhileWaitedFor(ctx, key, lease)
			}
			c.Advance(lease + past)
			select {
			case w := <-answer:
				c.Fatalf("Wait = %+v while the claim was running", w)
			default:
			}
			c.renew(key, alice, short, nil)
			c.Advance(past)
			if w := <-answer; w.err != nil || !w.found || !w.entry.Unknown {
				c.Errorf("Wait = %+v; want the abandoned claim", w)
			}
		},
	},
	{
		name: "WaitThroughTakeOver",
		why:  "Who waits sees the claim end, whoever takes it over at that moment, and never an outcome that is not there.",
		run: func(c *trial) {
			key := c.key()
			c.claim(key, takeOver(lapse(alice)))
			w := c.wakes(key, func() {
				c.Advance(past)
				c.claim(key, takeOver(hold(bob)))
				c.complete(key, bob, succeeded("of the second"), nil)
			})
			abandoned := w.entry.Unknown && w.entry.Owner == alice
			done := w.entry.Status == idempotent.Success && w.entry.Owner == bob
			if !w.found || !abandoned && !done {
				c.Errorf("Wait found %v, %+v; want the abandoned claim or the second owner's outcome", w.found, w.entry)
			}
		},
	},
	{
		name: "WaitEndsWithItsContext",
		why:  "A waiter obeys its own context, and its leaving changes nothing for anybody else.",
		run: func(c *trial) {
			key := c.key()
			c.claim(key, hold(alice))
			ctx, cancel := context.WithCancel(c.ctx)
			answer := c.wait(ctx, key)
			c.Advance(tick)
			cancel()
			c.is("Wait, cancelled", (<-answer).err, context.Canceled)
			_, _, err := idempotent.Wait(ctx, c.Store, key)
			c.is("Wait, cancelled before", err, context.Canceled)
			ctx, cancel = context.WithTimeout(c.ctx, tick)
			defer cancel()
			c.is("Wait, until its deadline", (<-c.wait(ctx, key)).err, context.DeadlineExceeded)
			c.running(key, alice)
			w := c.wakes(key, func() { c.complete(key, alice, succeeded("result"), nil) })
			if w.entry.Result != "result" {
				c.Errorf("Wait found %+v; want the outcome", w.entry)
			}
		},
	},
	{
		name: "WaitInvalidKey",
		why:  "An empty key is ErrInvalid also where one would wait for it.",
		run: func(c *trial) {
			_, _, err := idempotent.Wait(c.ctx, c.Store, "")
			c.is("Wait for the empty key", err, idempotent.ErrInvalid)
		},
	},
	{
		name: "Ping",
		why:  "A store that can be reached says so, and a ping leaves nothing behind; one whose context has ended says that.",
		run: func(c *trial) {
			c.is("Ping", idempotent.Ping(c.ctx, c.Store), nil)
			c.is("Ping of the other handle", idempotent.Ping(c.ctx, c.Second()), nil)
			ctx, cancel := context.WithCancel(c.ctx)
			cancel()
			c.is("Ping, cancelled", idempotent.Ping(ctx, c.Store), context.Canceled)
		},
	},
	{
		name: "C134_Delete",
		why:  "An operator frees a key whatever its state, for anybody; deleting an absent one is nil, and so is deleting twice.",
		run: func(c *trial) {
			c.needsDelete()
			c.inEveryState(func(state, key string, _ bool) {
				for range 2 {
					c.is("Delete of a key that is "+state, idempotent.Delete(c.ctx, c.Store, key), nil)
					c.absent(key)
				}
				c.claim(key, hold(carol))
			})
		},
	},
	{
		name: "DeleteOfRunningKey",
		why:  "Delete is a take-over by hand: the owner's renewal is told ErrLost, and its outcome is recorded while nobody else has claimed.",
		run: func(c *trial) {
			c.needsDelete()
			alone, claimed := c.key(), c.key()
			for _, key := range []string{alone, claimed} {
				c.claim(key, hold(alice))
				c.is("Delete", idempotent.Delete(c.ctx, c.Store, key), nil)
				c.renew(key, alice, long, idempotent.ErrLost)
			}
			c.complete(alone, alice, succeeded("late"), nil)
			c.reads(alone, alice, idempotent.Success, false, "late")
			c.claim(claimed, hold(bob))
			c.unchanged(claimed, func() {
				c.complete(claimed, alice, succeeded("late"), idempotent.ErrLost)
				c.release(claimed, alice, idempotent.ErrLost)
			})
		},
	},
	{
		name: "DeleteForgetsTakeOver",
		why:  "A key claimed after a removal is a first claim: its release frees it, although the removed one was gained by take-over.",
		run: func(c *trial) {
			c.needsDelete()
			key := c.key()
			c.claim(key, takeOver(lapse(alice)))
			c.Advance(past)
			c.claim(key, takeOver(hold(bob)))
			c.is("Delete", idempotent.Delete(c.ctx, c.Store, key), nil)
			c.claim(key, hold(carol))
			c.release(key, carol, nil)
			c.absent(key)
		},
	},
	{
		name: "DeleteWithEndedContext",
		why:  "A removal whose context has ended removes nothing.",
		run: func(c *trial) {
			c.needsDelete()
			key := c.key()
			c.claim(key, hold(alice))
			ctx, cancel := context.WithCancel(c.ctx)
			cancel()
			c.unchanged(key, func() { c.is("Delete", idempotent.Delete(ctx, c.Store, key), context.Canceled) })
		},
	},
	{
		name: "WaitWakesAtDelete",
		why:  "Everybody who waits learns that an operator has freed the key.",
		run: func(c *trial) {
			c.needsDelete()
			key := c.key()
			c.claim(key, hold(alice))
			w := c.wakes(key, func() { c.is("Delete", idempotent.Delete(c.ctx, c.Store, key), nil) })
			if w.found {
				c.Errorf("Wait found %+v; want nothing", w.entry)
			}
		},
	},
	{
		name: "C123_SweepRemovesWhatIsPastItsTime",
		why:  "A sweep removes outcomes past their retention, counts each once, and is never needed for them to be absent.",
		run: func(c *trial) {
			c.needsSweep()
			const n = 5
			for i := range n {
				o := succeeded(fmt.Sprint(i))
				o.Retention = short
				c.complete(c.key(), alice, o, nil)
			}
			c.Advance(past)
			c.sweeps("the first sweep", idempotent.Swept{Expired: n})
			c.sweeps("the second sweep", idempotent.Swept{})
		},
	},
	{
		name: "SweepCountsAbandonedOnce",
		why:  "Each abandoned claim is reported by exactly one sweep, and stays what it is.",
		run: func(c *trial) {
			c.needsSweep()
			key, open := c.key(), c.key()
			c.claim(key, hold(alice))
			c.claim(open, takeOver(hold(alice)))
			c.sweeps("the sweep before the lapse", idempotent.Swept{})
			c.renew(key, alice, short, nil)
			c.renew(open, alice, short, nil)
			c.Advance(past)
			c.sweeps("the first sweep", idempotent.Swept{Abandoned: 2})
			c.sweeps("the second sweep", idempotent.Swept{})
			c.abandoned(key, alice)
			c.refuse(key, takeOver(hold(bob)))
			c.claim(open, takeOver(hold(bob)))
			c.complete(key, alice, succeeded("late"), nil)
			c.reads(key, alice, idempotent.Success, false, "late")
		},
	},
	{
		name: "SweepTouchesNothingElse",
		why:  "A sweep changes no entry that is running, abandoned, known or unknown.",
		run: func(c *trial) {
			c.needsSweep()
			c.inEveryState(func(_, key string, present bool) {
				sweep := func() {
					_, err := idempotent.Sweep(c.ctx, c.Store)
					c.is("Sweep", err, nil)
				}
				if present {
					c.unchanged(key, sweep)
					return
				}
				sweep()
				c.absent(key)
			})
		},
	},
	{
		name: "SweepForgetsPastKeep",
		why:  "After lapse + Keep a sweep leaves nothing of an abandoned claim, and the key is free.",
		run: func(c *trial) {
			c.needsSweep()
			key := c.key()
			c.claim(key, forget(alice))
			c.Advance(past)
			for range 2 {
				_, err := idempotent.Sweep(c.ctx, c.Store)
				c.is("Sweep", err, nil)
				c.absent(key)
			}
			c.claim(key, hold(bob))
		},
	},
}

func (c *trial) needsDelete() {
	c.Helper()
	if _, ok := c.Store.(idempotent.Deleter); !ok {
		c.Skipf("%T is no Deleter", c.Store)
	}
}

func (c *trial) needsSweep() {
	c.Helper()
	if _, ok := c.Store.(idempotent.Sweeper); !ok {
		c.Skipf("%T is no Sweeper: it forgets by itself", c.Store)
	}
}

// sweeps sweeps once and compares the counts.
func (c *trial) sweeps(what string, want idempotent.Swept) {
	c.Helper()
	got, err := idempotent.Sweep(c.ctx, c.Store)
	c.is("Sweep", err, nil)
	if got != want {
		c.Errorf("%s counted %+v; want %+v", what, got, want)
	}
}
