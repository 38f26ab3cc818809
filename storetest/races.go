package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/idempotent-go/idempotent"
)

// rounds says how often a race is run: often where the store lives in the
// process, less where each call crosses a network.
func (c *trial) rounds() int {
	if c.Wrap == nil {
		return 20
	}
	return 200
}

// handle returns one of the two handles, so that races cross them.
func (c *trial) handle(i int) idempotent.Store {
	if i%2 == 0 {
		return c.Store
	}
	return c.Second()
}

// race runs all functions at once, behind one barrier and in any order, and
// returns when they have ended.
func race(fns ...func()) {
	fns = slices.Clone(fns)
	rand.Shuffle(len(fns), func(i, j int) { fns[i], fns[j] = fns[j], fns[i] })
	start := make(chan struct{})
	var wg sync.WaitGroup
	for _, fn := range fns {
		wg.Go(func() {
			<-start
			fn()
		})
	}
	close(start)
	wg.Wait()
}

// attempt is the answer to one of several claims at once.
type attempt struct {
	entry   idempotent.Entry
	claimed bool
	err     error
}

// claimers returns n functions that claim key, each for an owner of its own,
// and the place where their answers are found afterwards.
func (c *trial) claimers(n int, key string, cl idempotent.Claim) ([]func(), []attempt) {
	fns, answers := make([]func(), n), make([]attempt, n)
	for i := range fns {
		s, a := c.handle(i), &answers[i]
		own := cl
		own.Owner = fmt.Sprint("claimer-", i)
		fns[i] = func() { a.entry, a.claimed, a.err = s.Claim(c.ctx, key, own) }
	}
	return fns, answers
}

// winner returns the owner whose claim was the one that was claimed, "" where
// none was. Errors and a second winner fail the case.
func (c *trial) winner(answers []attempt) string {
	c.Helper()
	won := ""
	for _, a := range answers {
		switch {
		case a.err != nil:
			c.Errorf("Claim = %v; want no error: to lose is an answer", a.err)
		case a.claimed && won != "":
			c.Errorf("%q and %q both claimed the key", won, a.entry.Owner)
		case a.claimed:
			won = a.entry.Owner
		}
	}
	return won
}

// The rule that each method is one atomic decision.
var raceCases = []testCase{
	{
		name: "C011_C012_C022_ClaimsAtOnce",
		why:  "Of any number of claims at once exactly one is claimed, and all others get its entry: no second one, no none, no error.",
		run: func(c *trial) {
			for range c.rounds() {
				key := c.key()
				fns, answers := c.claimers(200, key, hold(""))
				race(fns...)
				won := c.winner(answers)
				if won == "" {
					c.Fatalf("none of %d claims was claimed", len(answers))
				}
				for _, a := range answers {
					if a.entry.Owner != won || a.entry.Status != idempotent.Pending {
						c.Errorf("a claim was answered %+v; want the running claim of %q", a.entry, won)
					}
				}
				c.running(key, won)
				if c.Failed() {
					return
				}
			}
		},
	},
	{
		name: "C013_ClaimAgainstComplete",
		why:  "A claim that meets a completion gets the running claim or the outcome, never the key and never something in between.",
		run: func(c *trial) {
			for range c.rounds() {
				key := c.key()
				c.claim(key, takeOver(hold(alice)))
				fns, answers := c.claimers(8, key, takeOver(hold("")))
				var err error
				race(append(fns, func() { err = c.Store.Complete(c.ctx, key, alice, succeeded("result")) })...)
				c.is("Complete", err, nil)
				if won := c.winner(answers); won != "" {
					c.Errorf("%q claimed a key that was never free", won)
				}
				for _, a := range answers {
					running := a.entry.Status == idempotent.Pending && a.entry.Result == ""
					done := a.entry.Status == idempotent.Success && a.entry.Result == "result"
					if a.entry.Owner != alice || !running && !done {
						c.Errorf("a claim was answered %+v; want the running claim or the outcome", a.entry)
					}
				}
				c.reads(key, alice, idempotent.Success, false, "result")
			}
		},
	},
	{
		name: "ClaimAgainstRelease",
		why:  "Of the claims that meet a release at most one is claimed, and the release is nil either way: it freed the owner's claim and no other.",
		run: func(c *trial) {
			for range c.rounds() {
				key := c.key()
				c.claim(key, hold(alice))
				fns, answers := c.claimers(8, key, hold(""))
				var err error
				race(append(fns, func() { err = c.Store.Release(c.ctx, key, alice) })...)
				c.is("Release", err, nil)
				won := c.winner(answers)
				for _, a := range answers {
					if a.entry.Status != idempotent.Pending || a.entry.Owner != alice && a.entry.Owner != won {
						c.Errorf("a claim was answered %+v; want the claim of %q or of %q", a.entry, alice, won)
					}
				}
				if won == "" {
					c.absent(key)
				} else {
					c.running(key, won)
				}
			}
		},
	},
	{
		name: "TakeOversAtOnce",
		why:  "Of any number of owners who would take over exactly one does; the others get its running claim.",
		run: func(c *trial) {
			for _, key := range c.lapsed(c.rounds()) {
				fns, answers := c.claimers(50, key, takeOver(hold("")))
				race(fns...)
				won := c.winner(answers)
				if won == "" {
					c.Fatalf("none of %d claims took over", len(answers))
				}
				for _, a := range answers {
					if a.entry.Owner != won {
						c.Errorf("a claim was answered %+v; want the running claim of %q", a.entry, won)
					}
				}
				c.running(key, won)
			}
		},
	},
	{
		name: "RenewAgainstTakeOver",
		why:  "Where a late renewal meets a take-over one of them wins and the other one is told.",
		run: func(c *trial) {
			for _, key := range c.lapsed(c.rounds()) {
				fns, answers := c.claimers(2, key, takeOver(hold("")))
				var err error
				race(append(fns, func() { err = c.Store.Renew(c.ctx, key, alice, long) })...)
				if won := c.winner(answers); won != "" {
					c.is("Renew of what was taken over", err, idempotent.ErrLost)
					c.running(key, won)
				} else {
					c.is("Renew of what was not taken over", err, nil)
					c.running(key, alice)
				}
			}
		},
	},
	{
		name: "CompleteAgainstTakeOver",
		why:  "Where a late outcome meets a take-over, either it is recorded and answered to the others, or it is refused and another owner runs: never both.",
		run: func(c *trial) {
			for _, key := range c.lapsed(c.rounds()) {
				fns, answers := c.claimers(2, key, takeOver(hold("")))
				var err error
				race(append(fns, func() { err = c.Store.Complete(c.ctx, key, alice, succeeded("late")) })...)
				if won := c.winner(answers); won != "" {
					c.is("Complete of what was taken over", err, idempotent.ErrLost)
					c.running(key, won)
					continue
				}
				c.is("Complete of what was not taken over", err, nil)
				for _, a := range answers {
					if a.entry.Status != idempotent.Success || a.entry.Result != "late" {
						c.Errorf("a claim was answered %+v; want the outcome", a.entry)
					}
				}
				c.reads(key, alice, idempotent.Success, false, "late")
			}
		},
	},
	{
		name: "ReleaseAgainstTakeOver",
		why:  "Where a late release meets a take-over, it frees the first owner's claim or is refused; it never frees the second one's.",
		run: func(c *trial) {
			for _, key := range c.lapsed(c.rounds()) {
				fns, answers := c.claimers(2, key, takeOver(hold("")))
				var err error
				race(append(fns, func() { err = c.Store.Release(c.ctx, key, alice) })...)
				if err != nil {
					c.is("Release of what was taken over", err, idempotent.ErrLost)
				}
				won := c.winner(answers)
				if won == "" {
					c.Fatalf("nobody has claimed a key that was lapsed or free; the release was answered %v", err)
				}
				c.running(key, won)
			}
		},
	},
	{
		name: "C039_CompletionsOfLostClaim",
		why:  "Of several owners who finish a key whose claim was lost one is recorded, and all others are told ErrLost.",
		run: func(c *trial) {
			for range c.rounds() {
				key := c.key()
				errs := make([]error, 8)
				fns := make([]func(), len(errs))
				for i := range fns {
					s := c.handle(i)
					fns[i] = func() { errs[i] = s.Complete(c.ctx, key, fmt.Sprint("owner-", i), succeeded(fmt.Sprint(i))) }
				}
				race(fns...)
				e := c.load(key)
				for i, err := range errs {
					var want error
					if e.Owner != fmt.Sprint("owner-", i) {
						want = idempotent.ErrLost
					} else if e.Result != fmt.Sprint(i) {
						c.Errorf("owner-%d has the result %q", i, e.Result)
					}
					c.is(fmt.Sprintf("Complete by owner-%d, the key being that of %s,", i, e.Owner), err, want)
				}
			}
		},
	},
	{
		name: "DifferentOutcomesAtOnce",
		why:  "Of two known outcomes of one owner one is recorded, and the other one is ErrLost.",
		run: func(c *trial) {
			for range c.rounds() {
				key := c.key()
				c.claim(key, hold(alice))
				var yes, no error
				race(
					func() { yes = c.handle(0).Complete(c.ctx, key, alice, succeeded("yes")) },
					func() { no = c.handle(1).Complete(c.ctx, key, alice, failed("no")) },
				)
				if e := c.load(key); e.Status == idempotent.Success {
					c.is("the outcome that is recorded", yes, nil)
					c.is("the outcome that is not", no, idempotent.ErrLost)
				} else {
					c.is("the outcome that is recorded", no, nil)
					c.is("the outcome that is not", yes, idempotent.ErrLost)
				}
			}
		},
	},
	{
		name: "CompleteAgainstRelease",
		why:  "An outcome that crosses a release of its own owner is recorded, in whichever order they arrive.",
		run: func(c *trial) {
			for range c.rounds() {
				key := c.key()
				c.claim(key, hold(alice))
				var completed, released error
				race(
					func() { completed = c.handle(0).Complete(c.ctx, key, alice, succeeded("result")) },
					func() { released = c.handle(1).Release(c.ctx, key, alice) },
				)
				c.is("Complete", completed, nil)
				c.is("Release", released, nil)
				c.reads(key, alice, idempotent.Success, false, "result")
			}
		},
	},
	{
		name: "C007_RenewAgainstComplete",
		why:  "A renewal that crosses the completion never brings the claim back, nor does it shorten or lengthen the retention.",
		run: func(c *trial) {
			for range c.rounds() {
				key := c.key()
				c.claim(key, hold(alice))
				o := succeeded("result")
				o.Retention = 3 * long
				var completed, renewed error
				race(
					func() { completed = c.handle(0).Complete(c.ctx, key, alice, o) },
					func() { renewed = c.handle(1).Renew(c.ctx, key, alice, long) },
				)
				c.is("Complete", completed, nil)
				c.is("Renew", renewed, nil)
				e := c.reads(key, alice, idempotent.Success, false, "result")
				c.lasts("the end of the retention", e.Timestamp, e.Expires, 3*long)
			}
		},
	},
	{
		name: "C013_CyclesAgainstSweeps",
		why:  "Sweeps at any time remove nothing that is running or kept, so that each of many cycles on the same keys holds what it claimed.",
		run: func(c *trial) {
			keys := []string{c.key(), c.key(), c.key()}
			var fns []func()
			for i := range 6 {
				s := c.handle(i)
				fns = append(fns, func() {
					owner := fmt.Sprint("owner-", i)
					for n := range c.rounds() {
						key := keys[(i+n)%len(keys)]
						_, claimed, err := s.Claim(c.ctx, key, hold(owner))
						if err == nil && claimed {
							runtime.Gosched() // let a sweep come between
							err = errors.Join(s.Renew(c.ctx, key, owner, long), s.Release(c.ctx, key, owner))
						}
						if err != nil {
							c.Errorf("%s: a cycle of claim, renewal and release failed: %v", owner, err)
						}
						if _, err := idempotent.Sweep(c.ctx, s); err != nil {
							c.Errorf("Sweep = %v", err)
						}
					}
				})
			}
			race(fns...)
			for _, key := range keys {
				c.absent(key)
			}
		},
	},
	{
		name: "C014_BusyKeyHoldsNobodyUp",
		why:  "No call waits for others to stop: on a key that is claimed and released without a pause, each one ends within its context.",
		run: func(c *trial) {
			key := c.key()
			done := make(chan struct{})
			var fns []func()
			for i := range 8 {
				owner := fmt.Sprint("owner-", i)
				s := c.handle(i)
				fns = append(fns, func() {
					for {
						select {
						case <-done:
							return
						default:
						}
						_, _, err := s.Claim(c.ctx, key, hold(owner))
						if err = errors.Join(err, ignoreLost(s.Release(c.ctx, key, owner))); err != nil {
							c.Errorf("%s: %v", owner, err)
							return
						}
					}
				})
			}
			race(append(fns, func() {
				defer close(done)
				for range 100 {
					ctx, cancel := context.WithTimeout(c.ctx, ceiling)
					began := time.Now()
					_, _, err := c.Store.Claim(ctx, key, hold(alice))
					err = errors.Join(err, ignoreLost(c.Store.Release(ctx, key, alice)))
					cancel()
					if err != nil {
						c.Errorf("a claim and a release on a busy key took %v: %v", time.Since(began), err)
						return
					}
				}
			})...)
		},
	},
}

// lapsed returns n keys whose claims, alice's, may be taken over.
func (c *trial) lapsed(n int) []string {
	c.Helper()
	keys := make([]string, n)
	for i := range keys {
		keys[i] = c.key()
		c.claim(keys[i], takeOver(lapse(alice)))
	}
	c.Advance(past)
	return keys
}

// ignoreLost returns err unless it says that somebody else has the key.
func ignoreLost(err error) error {
	if errors.Is(err, idempotent.ErrLost) {
		return nil
	}
	return err
}
