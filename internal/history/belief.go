package history

import (
	"errors"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/model"
)

// belief is what is known of a key: its state is between early and late, which
// differ in times and fences alone, and no later call was decided before at.
type belief struct {
	early, late model.State
	at          time.Time
}

// call is one call and when, by the store's clock, it was decided at the
// earliest and at the latest.
type call struct {
	event    model.Event
	from, to time.Time
}

// reply is what came of a call. Where it is not known, any answer will do.
type reply struct {
	model.Answer
	known bool
}

// licence is what a store may do that the model does not.
type licence struct {
	// fences is by how much a new fence may be larger than the clock or the
	// key's last one plus one: a store may count for all of its keys.
	fences int64
	// linger is how long a finished entry may be read after its retention.
	linger time.Duration
	// lags says that a decision is seen after its moment, as in a database, whose
	// statement reads the clock when it begins and is seen when it is committed.
	// The moments of calls that overlap need not have the order of the calls.
	lags bool
}

// beliefs are all that a key may be: one for each state that differs in more
// than times and fences.
type beliefs []belief

// porcupine returns the model as porcupine takes it. It is its own power set
// construction, since the one of porcupine keeps every two beliefs apart, and
// calls without an answer make thousands.
func (l licence) porcupine() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return beliefs{{}} },
		Step: func(state, input, output any) (bool, any) {
			next := state.(beliefs).after(input.(call), output.(reply), l)
			return len(next) > 0, next
		},
		Equal: func(a, b any) bool { return a.(beliefs).equal(b.(beliefs)) },
		Hash: func(state any) (h uint64) {
			for _, b := range state.(beliefs) {
				h ^= uint64(b.early.Entry.Expires.UnixNano()) ^ uint64(b.late.Entry.Fence)<<1 ^ uint64(len(b.early.Entry.Owner))
			}
			return h
		},
	}
}

// after returns what may be believed after c was answered with r. Nothing: the
// answer was wrong.
func (bs beliefs) after(c call, r reply, l licence) (next beliefs) {
	for _, b := range bs {
		for _, n := range b.after(c, r, l) {
			next = next.with(n)
		}
	}
	return next
}

// with adds a belief, or widens the one that differs in times and fences alone.
func (bs beliefs) with(n belief) beliefs {
	for i := range bs {
		if b := &bs[i]; b.like(n) {
			b.at = earliest(b.at, n.at)
			b.early = outer(b.early, n.early, false)
			b.late = outer(b.late, n.late, true)
			return bs
		}
	}
	return append(bs, n)
}

func (bs beliefs) equal(others beliefs) bool {
	if len(bs) != len(others) {
		return false
	}
	for _, b := range bs {
		if !slices.Contains(others, b) {
			return false
		}
	}
	return true
}

// after returns what may be believed after c was answered with r, once for each
// reading of the entry that the times allow.
func (b belief) after(c call, r reply, l licence) (next []belief) {
	from := c.from
	if !l.lags {
		from = latest(c.from, b.at)
	}
	if from.After(c.to) {
		return nil
	}
	for _, v := range b.views(from, c.to, l.linger) {
		n := belief{at: v.from}
		var first, last model.Answer
		n.early, first = v.early.Step(v.from, c.event)
		n.late, last = v.late.Step(v.to, c.event)
		if n.late.Fence != v.late.Fence {
			n.late.Fence += l.fences
			n.late.Entry.Fence += l.fences
			last.Entry.Fence = n.late.Entry.Fence
		}
		if r.known {
			if !between(r.Answer, first, last) {
				continue
			}
			n.learn(r.Entry)
		}
		next = append(next, n)
		if l.lags && looked(c.event) && b.early.Entry.Status != "" && n.early.Entry.Status == "" {
			// It was seen to be over, and nothing was changed: a decision of an
			// earlier moment, on the entry as it was then, may still be seen.
			next = append(next, b)
		}
	}
	return next
}

// looked reports whether e changes nothing where the entry is over.
func looked(e model.Event) bool {
	return e.Op == model.Load || e.Op == model.Renew || e.Op == model.Release
}

// view is a belief together with one reading of the entry, and when the store
// may have read it so.
type view struct {
	early, late model.State
	from, to    time.Time
}

// views returns the readings of the entry that are possible between two
// moments. In each, early is so read at from, and late at to.
func (b belief) views(from, to time.Time, linger time.Duration) (views []view) {
	add := func(early, from, late, to time.Time) {
		v := view{b.early, b.late, from, to}
		v.early.Entry.Expires, v.late.Entry.Expires = early, late
		views = append(views, v)
	}
	early, late := b.early.Entry.Expires, b.late.Entry.Expires
	const moment = time.Nanosecond
	var rest time.Duration // after the end, before it is gone
	switch b.early.Entry.Status {
	case "":
		add(early, from, late, to)
		return views
	case idempotent.Pending:
		rest, linger = b.early.Keep, 0
	default:
		late = late.Add(linger)
	}
	if from.Before(late) { // its end has not come, or has not been noticed
		first := latest(early, from.Add(moment-linger))
		add(first, earliest(from, first.Add(-moment)), late, earliest(to, late.Add(-moment)))
	}
	if rest > 0 && !to.Before(early) && from.Before(late.Add(rest)) { // it has lapsed
		first, last := latest(early, from.Add(moment-rest)), earliest(late, to)
		add(first, latest(from, first), last, earliest(to, last.Add(rest-moment)))
	}
	if !to.Before(early.Add(rest)) { // it is gone
		add(early, latest(from, early.Add(rest)), earliest(late, to.Add(-rest)), to)
	}
	return views
}

// like reports whether two beliefs differ in times and fences alone.
func (b belief) like(o belief) bool {
	return unmeasured(b.early.Entry) == unmeasured(o.early.Entry) &&
		b.early.Keep == o.early.Keep && b.early.TakeOver == o.early.TakeOver && b.early.Gained == o.early.Gained
}

// outer returns a with the times and fences of b where they are further out.
func outer(a, b model.State, late bool) model.State {
	further, e := earliest, &a.Entry
	if late {
		further = latest
	}
	if b.Fence > a.Fence == late {
		a.Fence = b.Fence
	}
	if b.Entry.Fence > e.Fence == late {
		e.Fence = b.Entry.Fence
	}
	e.Timestamp = further(e.Timestamp, b.Entry.Timestamp)
	e.Claimed = further(e.Claimed, b.Entry.Claimed)
	e.Expires = further(e.Expires, b.Entry.Expires)
	return a
}

// learn believes what an answer shows.
func (b *belief) learn(e idempotent.Entry) {
	if e.Status == "" {
		return
	}
	for _, s := range []*model.State{&b.early, &b.late} {
		s.Fence, s.Entry.Fence = e.Fence, e.Fence
		s.Entry.Claimed = plain(e.Claimed)
		if s.Entry.Status == idempotent.Pending && e.Unknown {
			s.Entry.Expires = plain(e.Timestamp) // the lapse
			continue
		}
		s.Entry.Timestamp, s.Entry.Expires = plain(e.Timestamp), plain(e.Expires)
	}
}

// between reports whether got is an answer between two that differ in times
// and fences alone.
func between(got, first, last model.Answer) bool {
	if got.OK != first.OK || !errors.Is(got.Err, first.Err) || (got.Err == nil) != (first.Err == nil) {
		return false
	}
	within := func(t, from, to time.Time) bool { return !t.Before(from) && !t.After(to) }
	g, f, l := got.Entry, first.Entry, last.Entry
	return within(g.Timestamp, f.Timestamp, l.Timestamp) && within(g.Claimed, f.Claimed, l.Claimed) &&
		within(g.Expires, f.Expires, l.Expires) && f.Fence <= g.Fence && g.Fence <= l.Fence &&
		unmeasured(g) == unmeasured(f)
}

// unmeasured returns e without times and fence.
func unmeasured(e idempotent.Entry) idempotent.Entry {
	e.Timestamp, e.Claimed, e.Expires, e.Fence = time.Time{}, time.Time{}, time.Time{}, 0
	return e
}

// plain returns t so that equal instants are equal values.
func plain(t time.Time) time.Time { return t.Round(0).UTC() }

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
