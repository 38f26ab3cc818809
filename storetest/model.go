package storetest

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/model"
)

// The cases that compare the store with the whole table at once.
var modelCases = []testCase{
	{
		name: "TableRandomly",
		why:  "Any sequence of calls gets the answers that the state table gives, whatever came before.",
		run: func(c *trial) {
			sequences, length := 40, 250
			if c.Wrap == nil {
				sequences, length = 1, 80
			}
			for range sequences {
				c.random(rand.Uint64(), length)
			}
		},
	},
	{
		name: "TableExhaustively",
		why:  "Every sequence of three calls, with and without a lapse in between, gets the answers that the state table gives.",
		run: func(c *trial) {
			if c.Wrap == nil {
				c.Skipf("it takes a fake clock; the harness has no Wrap")
			}
			c.exhaustive(3)
		},
	},
}

// follower sends calls to the store and to the model, and compares.
type follower struct {
	*trial
	keys  map[string]*followed
	log   []compared // of all calls, printed when an answer is wrong
	slack time.Duration
}

// followed is what the model knows of a key.
type followed struct {
	state model.State
	// fresh: the store has given the entry a fence that no answer has shown
	// yet. It holds the store's clock, so the model can only be near it.
	fresh bool
}

// compared is one call and both answers.
type compared struct {
	now       time.Time
	event     model.Event
	got, want model.Answer
}

func (c *trial) follow() *follower {
	f := &follower{trial: c, keys: make(map[string]*followed), slack: slack}
	if c.Wrap == nil {
		f.slack = 4 * slack // calls take time
	}
	return f
}

// random compares one random sequence of n calls on two keys, for three owners
// and two fingerprints.
func (c *trial) random(seed uint64, n int) {
	c.Helper()
	f := c.follow()
	r := rand.New(rand.NewPCG(seed, seed))
	keys := [2]string{c.key(), c.key()}
	for range n {
		i := r.IntN(len(keys))
		e := event(r, keys[i])
		f.pass(time.Millisecond) // so that fences grow across removal
		if r.IntN(4) == 0 {
			f.pass(past)
		}
		ok := f.step(e)
		if ok && r.IntN(4) == 0 {
			ok = f.step(e) // a lost reply
		}
		if c.Failed() {
			c.Fatalf("in the sequence of the seed %d:\n%v", seed, f.history())
		}
		if !ok {
			delete(f.keys, keys[i])
			keys[i] = c.key()
		}
	}
}

// event returns a random call.
func event(r *rand.Rand, key string) model.Event {
	pick := func(texts ...string) string { return texts[r.IntN(len(texts))] }
	last := func() time.Duration { return []time.Duration{short, long}[r.IntN(2)] }
	e := model.Event{Key: key, Owner: pick(alice, bob, carol)}
	switch n := r.IntN(20); {
	case n < 3:
		e.Op = model.Load
	case n < 10:
		e.Op = model.Claim
		e.Claim = idempotent.Claim{
			Owner:       e.Owner,
			Fingerprint: pick(print1, print1, print2),
			Trace:       pick("", "trace-1", "trace-2"),
			Lease:       last(),
			Keep:        last(),
			TakeOver:    r.IntN(4) > 0,
		}
	case n < 12:
		e.Op, e.Lease = model.Renew, last()
	case n < 16:
		e.Op = model.Complete
		o := []idempotent.Outcome{succeeded("result"), succeeded(""), failed("result"), unknown("result"), unknown("")}[r.IntN(5)]
		o.Fingerprint, o.Retention = pick(print1, print2), last()
		e.Outcome = o
	case n < 19:
		e.Op = model.Release
	default:
		e.Op = model.Delete
	}
	return e
}

// exhaustive compares every sequence of n calls out of a small alphabet, each
// on a key of its own, with the clock moved by past after each second one.
func (c *trial) exhaustive(n int) {
	c.Helper()
	var alphabet []model.Event
	for _, owner := range []string{alice, bob} {
		for _, cl := range []idempotent.Claim{hold(owner), takeOver(lapse(owner)), takeOver(forget(owner))} {
			alphabet = append(alphabet, model.Event{Op: model.Claim, Owner: owner, Claim: cl})
		}
		for _, o := range []idempotent.Outcome{succeeded("result"), failed("no"), unknown("")} {
			alphabet = append(alphabet, model.Event{Op: model.Complete, Owner: owner, Outcome: o})
		}
		alphabet = append(alphabet,
			model.Event{Op: model.Renew, Owner: owner, Lease: long},
			model.Event{Op: model.Release, Owner: owner})
	}
	f := c.follow()
	choices := 2 * len(alphabet) // with and without a lapse after the call
	for i := range power(choices, n) {
		key := c.key()
		f.log = f.log[:0]
		for range n {
			e := alphabet[i%choices/2]
			e.Key = key
			f.step(e)
			f.step(model.Event{Op: model.Load, Key: key})
			if i%2 == 1 {
				f.pass(past)
			} else {
				f.pass(time.Millisecond)
			}
			f.step(model.Event{Op: model.Load, Key: key})
			i /= choices
		}
		if c.Failed() {
			c.Fatalf("in a sequence of %d calls:\n%v", n, f.history())
		}
		delete(f.keys, key)
		if d, ok := c.Store.(idempotent.Deleter); ok {
			c.is("Delete", d.Delete(c.ctx, key), nil)
		}
	}
}

func power(base, n int) int {
	p := 1
	for range n {
		p *= base
	}
	return p
}

// pass lets d pass, and more where some entry is about to change by itself:
// the model must not have to guess on which side of that the store is, and a
// store may answer with an outcome a few milliseconds past its retention.
func (f *follower) pass(d time.Duration) {
	f.Helper()
	f.Advance(d)
	for f.nearBoundary(f.now()) {
		f.Advance(f.slack)
	}
}

func (f *follower) nearBoundary(now time.Time) bool {
	for _, k := range f.keys {
		for _, b := range k.state.Boundary() {
			if d := b.Sub(now); d > -4*f.slack && d < 2*f.slack {
				return true
			}
		}
	}
	return false
}

// now returns the store's clock. Only that of a bubble is known without asking.
func (f *follower) now() time.Time {
	f.Helper()
	if f.Wrap != nil {
		return time.Now()
	}
	return f.claim(f.key(), forget("clock")).Timestamp
}

// step sends one call to both and compares the answers. It reports whether
// they could be compared: a call that took long may have been decided on either
// side of a boundary.
func (f *follower) step(e model.Event) bool {
	f.Helper()
	if _, ok := f.Store.(idempotent.Deleter); e.Op == model.Delete && !ok {
		e.Op = model.Load
	}
	k := f.keys[e.Key]
	if k == nil {
		k = &followed{}
		f.keys[e.Key] = k
	}
	now := f.now()
	got := f.send(e)
	if f.Wrap == nil && f.now().Sub(now) > f.slack {
		return false
	}
	before := k.state
	after, want := before.Step(now, e)
	f.log = append(f.log, compared{now, e, got, want})
	k.fresh = k.fresh || after.Entry.Fence != before.Entry.Fence
	if got.Entry.Status != "" && want.Entry.Status != "" && k.fresh {
		if d := time.Duration(got.Entry.Fence-want.Entry.Fence) * time.Microsecond; d.Abs() > time.Second {
			f.Errorf("the fence is %d; want about %d, the clock", got.Entry.Fence, want.Entry.Fence)
		}
		if e.Op == model.Claim && got.OK && got.Entry.Fence <= before.Fence {
			f.Errorf("the fence is %d after %d; want it larger", got.Entry.Fence, before.Fence)
		}
		k.fresh = false
		want.Entry.Fence = got.Entry.Fence
		after.Entry.Fence, after.Fence = got.Entry.Fence, got.Entry.Fence
	}
	k.state = after
	if got.OK != want.OK || kind(got.Err) != kind(want.Err) || !f.alike(got.Entry, want.Entry) {
		f.Errorf("%v\nanswered %v\nwant     %v", e, got, want)
	}
	return true
}

// alike compares two entries, whose times are known as well as the clock is.
func (f *follower) alike(got, want idempotent.Entry) bool {
	for _, d := range []time.Duration{
		got.Timestamp.Sub(want.Timestamp), got.Claimed.Sub(want.Claimed), got.Expires.Sub(want.Expires),
	} {
		if d.Abs() > f.slack {
			return false
		}
	}
	return timeless(got) == timeless(want)
}

// history returns the calls and answers of the key that was looked at last.
func (f *follower) history() string {
	var b strings.Builder
	for _, s := range f.log {
		if s.event.Key == f.log[len(f.log)-1].event.Key {
			fmt.Fprintf(&b, "%s %v\n\tgot  %v\n\twant %v\n", s.now.Format("15:04:05.000000"), s.event, s.got, s.want)
		}
	}
	return b.String()
}

// send sends one call to the store.
func (f *follower) send(e model.Event) (a model.Answer) {
	switch e.Op {
	case model.Load:
		a.Entry, a.OK, a.Err = f.Store.Load(f.ctx, e.Key)
	case model.Claim:
		a.Entry, a.OK, a.Err = f.Store.Claim(f.ctx, e.Key, e.Claim)
	case model.Renew:
		a.Err = f.Store.Renew(f.ctx, e.Key, e.Owner, e.Lease)
	case model.Complete:
		a.Err = f.Store.Complete(f.ctx, e.Key, e.Owner, e.Outcome)
	case model.Release:
		a.Err = f.Store.Release(f.ctx, e.Key, e.Owner)
	case model.Delete:
		a.Err = idempotent.Delete(f.ctx, f.Store, e.Key)
	}
	return a
}
