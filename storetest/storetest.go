// Package storetest proves that a backend keeps the contract of
// [idempotent.Store]. It holds every row of the state table and every rule as
// a case with a name and a sentence that says why the rule is there.
//
// A backend whose clock is that of a server, or of the machine, calls Run with
// nothing but the store:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) storetest.Harness {
//			s := mystore.New(connect(t))
//			t.Cleanup(func() { s.Close() })
//			return storetest.Harness{Store: s}
//		})
//	}
//
// Leases of cases that wait for a lapse are 50 ms long, all others ten minutes:
// the suite waits for real, several cases at a time, and takes a few seconds.
//
// A store that lives in the process runs on the fake clock of a
// [testing/synctest] bubble and takes no time at all:
//
//	return storetest.Harness{Store: s, Wrap: synctest.Test}
//
// The package also has a store that fails on command, [Faulty], and the
// benchmarks that every backend shares, [Bench].
package storetest

import (
	"sync"
	"testing"
	"time"

	"github.com/idempotent-go/idempotent"
)

// Harness is one store to be tested, and what the suite may do to it.
type Harness struct {
	// Store is the store under test, without data of other cases where it is
	// an [idempotent.Sweeper]. Others may share a server: keys are random.
	Store idempotent.Store

	// Second returns another handle on the same data, such as a second
	// connection. A case calls it once at most. nil: Store itself is used.
	Second func() idempotent.Store

	// Wrap runs a case, and calls the function it gets once; [synctest.Test]
	// fits. nil: it is called directly, up to eight cases at a time.
	Wrap func(*testing.T, func(*testing.T))

	// Advance lets a duration pass on the clock of this store and of no other
	// case's. A server double that tells the time by one clock and lets keys
	// expire by another needs both stopped, and moved together. nil:
	// [time.Sleep], which is fake time inside a synctest bubble.
	Advance func(time.Duration)

	// Corrupt damages what is stored under key, which then holds a running
	// claim or a success with a result. It returns an error where it cannot.
	// nil: the cases that need it are skipped.
	Corrupt func(key string, c Corruption) error
}

// Corruption is a way in which a stored entry can be damaged.
type Corruption int

// The corruptions.
const (
	Foreign Corruption = iota + 1 // another key's entry, stored under this key's name
	Garbage                       // something that is no entry at all
	Missing                       // a finished entry whose result is not there, which differs from an empty one
	Newer                         // an entry whose format number is one higher than the store knows
)

// String returns the name of the constant.
func (c Corruption) String() string {
	switch c {
	case Foreign:
		return "Foreign"
	case Garbage:
		return "Garbage"
	case Missing:
		return "Missing"
	case Newer:
		return "Newer"
	}
	return "Corruption(?)"
}

// atOnce is how many cases run at a time where they wait for a real clock.
const atOnce = 8

// Run checks the store that open returns against every case, each in a subtest
// of its own. A case that fails prints the rule it stands for.
//
// open is called once for each case, inside Wrap, so that the goroutines and
// timers of the store belong to the bubble; it registers what is to be closed
// with the Cleanup of the t it gets. Before that it is called once outside, to
// learn what Wrap is: that store is not used, and lives until Run ends.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	t.Helper()
	// Not in a subtest: the -run flag could then leave it out.
	wrap := open(t).Wrap
	if wrap != nil {
		for _, c := range allCases() {
			t.Run(c.name, func(t *testing.T) {
				wrap(t, func(t *testing.T) { c.check(t, open(t)) })
			})
		}
		return
	}
	// Cases sleep more than they work, so that the -parallel flag, which is
	// about processors, would make them wait for each other.
	var running sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for _, c := range allCases() {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			t.Run(c.name, func(t *testing.T) { c.check(t, open(t)) })
		})
	}
	running.Wait()
}
