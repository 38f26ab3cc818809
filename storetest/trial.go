package storetest

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"github.com/idempotent-go/idempotent"
)

// Durations of the cases. A case waits for the end of a short one and never
// depends on one that has not ended yet, so that a slow server fails nothing.
const (
	short = 50 * time.Millisecond  // over after past
	past  = 100 * time.Millisecond // with room for stores that read a coarse clock
	tick  = 20 * time.Millisecond  // enough to see a time that should not have moved
	long  = 10 * time.Minute       // never over

	// slack is what two readings of one time may differ by, since stores
	// round times as they like.
	slack = 5 * time.Millisecond

	// ceiling ends a wait for something that does not happen.
	ceiling = 30 * time.Second
)

// Owners and fingerprints. Keys are random, so that these need not be.
const (
	alice = "owner-a"
	bob   = "owner-b"
	carol = "owner-c"

	print1 = "fingerprint-1"
	print2 = "fingerprint-2"
)

// trial is one case under way. Its methods fail the case where the store does
// not answer as they say.
type trial struct {
	tb
	Harness
	ctx context.Context
}

func newTrial(t tb, h Harness) *trial {
	if h.Second == nil {
		h.Second = func() idempotent.Store { return h.Store }
	}
	if h.Advance == nil {
		h.Advance = time.Sleep
	}
	h.Second = sync.OnceValue(h.Second) // a handle may be a connection
	return &trial{tb: t, Harness: h, ctx: t.Context()}
}

// with returns the same trial on another handle.
func (c *trial) with(s idempotent.Store) *trial {
	other := *c
	other.Store = s
	return &other
}

// key returns a key that no other case uses.
func (c *trial) key() string { return "storetest:" + rand.Text() }

// hold is a claim that does not lapse during a case.
func hold(owner string) idempotent.Claim {
	return idempotent.Claim{Owner: owner, Fingerprint: print1, Trace: "trace-of-" + owner, Lease: long, Keep: long}
}

// lapse is a claim that has lapsed after past, and is remembered.
func lapse(owner string) idempotent.Claim {
	cl := hold(owner)
	cl.Lease = short
	return cl
}

// forget is a claim of which nothing is left after past.
func forget(owner string) idempotent.Claim {
	cl := lapse(owner)
	cl.Lease, cl.Keep = short/2, short/2
	return cl
}

// takeOver returns cl with permission to be taken over and to take over.
func takeOver(cl idempotent.Claim) idempotent.Claim {
	cl.TakeOver = true
	return cl
}

func succeeded(result string) idempotent.Outcome {
	return idempotent.Outcome{Status: idempotent.Success, Result: result, Fingerprint: print1, Retention: long}
}

func failed(result string) idempotent.Outcome {
	return idempotent.Outcome{Status: idempotent.Failed, Result: result, Fingerprint: print1, Retention: long}
}

func unknown(result string) idempotent.Outcome {
	return idempotent.Outcome{Status: idempotent.Failed, Unknown: true, Result: result, Fingerprint: print1, Retention: long}
}

// claim claims key and expects to get it.
func (c *trial) claim(key string, cl idempotent.Claim) idempotent.Entry {
	c.Helper()
	e, claimed, err := c.Store.Claim(c.ctx, key, cl)
	if err != nil || !claimed {
		c.Fatalf("Claim by %q = %+v, %v, %v; want it claimed", cl.Owner, e, claimed, err)
	}
	if e.Key != key || e.Status != idempotent.Pending || e.Unknown || e.Result != "" || e.Owner != cl.Owner {
		c.Errorf("Claim by %q returned the entry %+v; want its own pending one", cl.Owner, e)
	}
	return e
}

// refuse claims key and expects to get somebody's entry instead.
func (c *trial) refuse(key string, cl idempotent.Claim) idempotent.Entry {
	c.Helper()
	e, claimed, err := c.Store.Claim(c.ctx, key, cl)
	if err != nil || claimed {
		c.Fatalf("Claim by %q = %+v, %v, %v; want it refused with the entry", cl.Owner, e, claimed, err)
	}
	if e.Key != key || e.Status == "" {
		c.Errorf("Claim by %q was refused with the entry %+v; want the one of %q", cl.Owner, e, key)
	}
	return e
}

// load reads the entry of key and expects one.
func (c *trial) load(key string) idempotent.Entry {
	c.Helper()
	e, found, err := c.Store.Load(c.ctx, key)
	if err != nil || !found {
		c.Fatalf("Load = %+v, %v, %v; want an entry", e, found, err)
	}
	if e.Key != key {
		c.Errorf("Load returned the entry of %q; want the one of %q", e.Key, key)
	}
	return e
}

// absent expects key to have no entry.
func (c *trial) absent(key string) {
	c.Helper()
	e, found, err := c.Store.Load(c.ctx, key)
	if err != nil || found {
		c.Fatalf("Load = %+v, %v, %v; want no entry", e, found, err)
	}
	if e != (idempotent.Entry{}) {
		c.Errorf("Load found nothing and returned the entry %+v; want the zero one", e)
	}
}

func (c *trial) renew(key, owner string, lease time.Duration, want error) {
	c.Helper()
	c.is("Renew by "+owner, c.Store.Renew(c.ctx, key, owner, lease), want)
}

func (c *trial) complete(key, owner string, o idempotent.Outcome, want error) {
	c.Helper()
	c.is("Complete by "+owner, c.Store.Complete(c.ctx, key, owner, o), want)
}

func (c *trial) release(key, owner string, want error) {
	c.Helper()
	c.is("Release by "+owner, c.Store.Release(c.ctx, key, owner), want)
}

// is expects an error that matches want, or none where want is nil.
func (c *trial) is(what string, err, want error) {
	c.Helper()
	if !errors.Is(err, want) {
		c.Fatalf("%s = %v; want %v", what, err, want)
	}
}

// reads expects key to be running, finished or abandoned as the fields say.
func (c *trial) reads(key, owner string, s idempotent.Status, unknown bool, result string) idempotent.Entry {
	c.Helper()
	e := c.load(key)
	if e.Owner != owner || e.Status != s || e.Unknown != unknown || e.Result != result {
		c.Errorf("the entry is %+v; want it %s, unknown %v, of %q with the result %q", e, s, unknown, owner, result)
	}
	return e
}

// running expects key to be held by owner, its lease running.
func (c *trial) running(key, owner string) idempotent.Entry {
	c.Helper()
	return c.reads(key, owner, idempotent.Pending, false, "")
}

// abandoned expects key to be held by owner, its lease lapsed.
func (c *trial) abandoned(key, owner string) idempotent.Entry {
	c.Helper()
	return c.reads(key, owner, idempotent.Failed, true, "")
}

// unchanged expects that do, which fails the case by itself where it answers
// wrongly, leaves the entry of key as it is, times included.
func (c *trial) unchanged(key string, do func()) {
	c.Helper()
	before := c.load(key)
	c.Advance(tick) // a time set anew would show
	do()
	c.same("the entry afterwards", c.load(key), before)
}

// same expects two entries to be equal.
func (c *trial) same(what string, got, want idempotent.Entry) {
	c.Helper()
	if !near(got.Timestamp, want.Timestamp) || !near(got.Claimed, want.Claimed) || !near(got.Expires, want.Expires) ||
		timeless(got) != timeless(want) {
		c.Errorf("%s is\n%+v; want\n%+v", what, got, want)
	}
}

// lasts expects a time and a later one to be d apart.
func (c *trial) lasts(what string, from, to time.Time, d time.Duration) {
	c.Helper()
	if !near(from.Add(d), to) {
		c.Errorf("%s is %v after %v; want %v", what, to.Sub(from), from, d)
	}
}

// timeless returns e without its times.
func timeless(e idempotent.Entry) idempotent.Entry {
	e.Timestamp, e.Claimed, e.Expires = time.Time{}, time.Time{}, time.Time{}
	return e
}

func near(a, b time.Time) bool { return a.Sub(b).Abs() <= slack }

// kind returns the error of the contract that err matches, err itself where
// there is none, and nil for nil.
func kind(err error) error {
	for _, known := range []error{
		idempotent.ErrLost, idempotent.ErrFull, idempotent.ErrCorrupt, idempotent.ErrNewerFormat,
		idempotent.ErrInvalid, idempotent.ErrClosed,
	} {
		if errors.Is(err, known) {
			return known
		}
	}
	return err
}
