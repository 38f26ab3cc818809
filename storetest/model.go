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
			if c.Wrap == nil {
				c.random(rand.Uint64(), 60)
				return
			}
			for range 40 {
				c.random(rand.Uint64(), 250)
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
	keys map[string]*followed
	log  []compared // of all calls, printed when an answer is wrong
}

// followed is what the model knows of a key.
type followed struct {
	state model.State
	// fresh: the store has given the entry a fence that no answer has shown
	// yet. It holds the store's clock, so the model can only be near it.
	fresh bool
	// blur is how much later than the model says the times of the entry may
	// be: the last call took that long, and no answer has shown them yet.
	blur time.Duration
}

// compared is one call and both answers.
type compared struct {
	now       time.Time
	event     model.Event
	got, want model.Answer
}

func (c *trial) follow() *follower {
	return &follower{trial: c, keys: make(map[string]*followed)}
}

// random compares one random sequence of n calls on two keys, for three owners
// and two fingerprints.
func (c *trial) random(seed uint64, n int) {
	c.Helper()
	f := c.follow()
	r := rand.New(rand.NewPCG(seed, seed))
	keys := [2]string{c.key(), c.key()}
	began := time.Now()
	for done := 0; done < n; {
		if c.Wrap == nil && time.Since(began) > ceiling {
			c.Skipf("calls take too long to be compared: %d of %d were, and were right", done, n)
		}
		i := r.IntN(len(keys))
		e := event(r, keys[i])
		f.pass(time.Millisecond) // so that fences grow across removal
		if r.IntN(4) == 0 {
			f.pass(past)
		}
		look := model.Event{Op: model.Load, Key: e.Key}
		ok := f.step(e) && (c.Wrap != nil || f.step(look)) // which shows the times
		if ok && r.IntN(4) == 0 {
			ok = f.step(e) && (c.Wrap != nil || f.step(look)) // a lost reply
		}
		if c.Failed() {
			c.Fatalf("in the sequence of the seed %d:\n%v", seed, f.history())
		}
		if ok {
			done++
		} else {
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
		f.Advance(tick)
	}
}

func (f *follower) nearBoundary(now time.Time) bool {
	for _, k := range f.keys {
		for _, b := range k.state.Boundary() {
			if d := b.Sub(now); d > -tick && d < tick {
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
	began := f.now()
	got := f.send(e)
	took := f.now().Sub(began)
	before := k.state
	after, want := before.Step(began.Add(-k.blur), e)
	if late, other := before.Step(began.Add(took), e); !sameDecision(after, late, want, other, took+k.blur) {
		return false
	}
	after, want = before.Step(began, e)
	f.log = append(f.log, compared{began, e, got, want})
	k.fresh = k.fresh || after.Entry.Fence != before.Entry.Fence
	k.state, k.blur = after, k.blur+took
	if got.OK == want.OK && kind(got.Err) == kind(want.Err) && (got.Entry.Status == "") == (want.Entry.Status == "") {
		if got.Entry.Status == "" {
			return true
		}
		f.fence(k, before.Fence, e, got, &want)
		if alike(got.Entry, want.Entry, slack+k.blur) {
			if f.Wrap == nil { // otherwise the model knows better, and sees times creep
				k.learn(got.Entry)
			}
			return true
		}
	}
	f.Errorf("%v\nanswered %v\nwant     %v", e, got, want)
	return true
}

// sameDecision reports whether the model decides the same at two moments that
// lie apart, but for fences and for times that differ by no more than that. A
// claim sent again and a new one of the same owner differ in nothing else than
// how old the first claim is.
func sameDecision(s1, s2 model.State, a1, a2 model.Answer, apart time.Duration) bool {
	for _, d := range []time.Duration{
		s1.Entry.Timestamp.Sub(s2.Entry.Timestamp), s1.Entry.Claimed.Sub(s2.Entry.Claimed), s1.Entry.Expires.Sub(s2.Entry.Expires),
	} {
		if d.Abs() > apart {
			return false
		}
	}
	plain := func(e idempotent.Entry) idempotent.Entry {
		e = timeless(e)
		e.Fence = 0
		return e
	}
	return a1.OK == a2.OK && kind(a1.Err) == kind(a2.Err) && plain(a1.Entry) == plain(a2.Entry) &&
		plain(s1.Entry) == plain(s2.Entry) && s1.Gained == s2.Gained && s1.TakeOver == s2.TakeOver && s1.Keep == s2.Keep
}

// fence compares a fence that an answer shows for the first time, and has the
// model know it from then on. last is the largest before the call.
func (f *follower) fence(k *followed, last int64, e model.Event, got model.Answer, want *model.Answer) {
	f.Helper()
	if !k.fresh {
		return
	}
	k.fresh = false
	if d := time.Duration(got.Entry.Fence-want.Entry.Fence) * time.Microsecond; d.Abs() > time.Second+k.blur {
		f.Errorf("the fence is %d; want about %d, the clock", got.Entry.Fence, want.Entry.Fence)
	}
	if e.Op == model.Claim && got.OK && got.Entry.Fence <= last {
		f.Errorf("the fence is %d after %d; want it larger", got.Entry.Fence, last)
	}
	want.Entry.Fence = got.Entry.Fence
	k.state.Entry.Fence, k.state.Fence = got.Entry.Fence, got.Entry.Fence
}

// learn takes over the times that an answer, compared before, has shown.
func (k *followed) learn(e idempotent.Entry) {
	k.blur = 0
	k.state.Entry.Claimed = e.Claimed
	if k.state.Entry.Status == idempotent.Pending && e.Unknown {
		k.state.Entry.Expires = e.Timestamp // the lapse
		return
	}
	k.state.Entry.Timestamp, k.state.Entry.Expires = e.Timestamp, e.Expires
}

// alike compares two entries whose times are known to within slack.
func alike(got, want idempotent.Entry, slack time.Duration) bool {
	for _, d := range []time.Duration{
		got.Timestamp.Sub(want.Timestamp), got.Claimed.Sub(want.Claimed), got.Expires.Sub(want.Expires),
	} {
		if d.Abs() > slack {
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
