package history

import (
	"errors"
	"fmt"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/model"
)

// judge returns which rule is broken by the decision on a message of execution
// i: before is the state that it met.
func (c *configuration) judge(w *world, table step, i int, m message, before model.State, call model.Event, a model.Answer) error {
	was, there := look(table, before, w.now)
	is, stays := look(table, w.store, w.now)
	mine := there && was.Owner == names[i]
	gained := a.OK && !mine

	// A superseded owner writes nothing.
	if there && !mine && m != claimMessage && (!errors.Is(a.Err, idempotent.ErrLost) || is != was) {
		return fmt.Errorf("a superseded owner wrote: %s became %s", reading(was), reading(is))
	}
	if there && !mine && m == claimMessage && !a.OK && (is != was || a.Entry != was) {
		return fmt.Errorf("a refused claim saw %s and left %s", reading(a.Entry), reading(is))
	}

	// Nobody is superseded but by a take-over that both requests allow.
	if there && gained {
		switch {
		case !before.TakeOver || !call.Claim.TakeOver || before.Entry.Status != idempotent.Pending || !was.Unknown:
			return fmt.Errorf("%s was taken over without permission", reading(was))
		case was.Fingerprint != is.Fingerprint:
			return errors.New("another request took the claim over")
		}
		w.paid++
		w.runs[index(was.Owner)].lost = true
	}

	// A run is not forgotten.
	if there && !stays && !c.forgetful() && w.ran() > 0 {
		return fmt.Errorf("nothing is left of %s, and somebody ran", reading(was))
	}

	// What was recorded stays as it is.
	if there && was.Status != idempotent.Pending && !was.Unknown && is != was {
		return fmt.Errorf("a record changed: %s became %s", reading(was), reading(is))
	}
	if mine && stays && (is.Claimed != was.Claimed || is.Fingerprint != was.Fingerprint || is.Trace != was.Trace) {
		return errors.New("a step of the owner changed what the claim said")
	}

	// Another request neither runs nor reads.
	if a.OK && a.Entry.Fingerprint != c.fingerprint(i) {
		return errors.New("a request runs on the claim of another one")
	}
	if m == claimMessage && !a.OK && a.Entry.Fingerprint != c.fingerprint(index(a.Entry.Owner)) {
		return errors.New("an answer carries another request's fingerprint")
	}

	// A replay is what its author recorded.
	if m == claimMessage && !a.OK && a.Entry.Status != idempotent.Pending && !a.Entry.Unknown {
		by, failed := author(a.Entry), a.Entry.Status == idempotent.Failed
		said := by == operator && failed && w.settled
		if by >= 0 && by < operator {
			x := w.runs[by]
			said = by == index(a.Entry.Owner) && !failed && x.said && !x.unknown
		}
		if !said {
			return fmt.Errorf("a replay that nobody recorded: %s, %q", reading(a.Entry), a.Entry.Result)
		}
	}

	// A completion that was accepted is there.
	if o := call.Outcome; m == completeMessage && a.Err == nil {
		known := is.Status == o.Status && is.Result == o.Result && is.Unknown == o.Unknown
		better := o.Unknown && stays && is.Status != idempotent.Pending && !is.Unknown
		if is.Owner != names[i] || !known && !better {
			return fmt.Errorf("an accepted completion left %s", reading(is))
		}
	}

	// Fences grow with every new claim and stay in between.
	switch {
	case gained && a.Entry.Fence <= w.fence:
		return fmt.Errorf("the fence is %d after %d", a.Entry.Fence, w.fence)
	case !gained && there && stays && is.Fence != was.Fence:
		return errors.New("a fence changed without a claim")
	}
	w.fence = max(w.fence, is.Fence)

	// A message that arrives twice in a row is answered the same, and changes
	// nothing more.
	again, b := table(w.store, w.now, call)
	if twice, _ := look(table, again, w.now); twice != is || b.OK != a.OK || !errors.Is(b.Err, a.Err) || b.Entry != a.Entry {
		return fmt.Errorf("sent twice, the second %v left %s instead of %s", call.Op, reading(twice), reading(is))
	}
	return nil
}

// always returns which rule is broken by the world itself.
func (c *configuration) always(w *world, table step) error {
	if n := w.ran(); n > 1+int(w.paid) {
		return fmt.Errorf("%d operations may have happened, and %d are allowed", n, 1+w.paid)
	}
	if n := len(w.answers()); n > 1+int(w.paid) {
		return fmt.Errorf("callers were told %d different outcomes", n)
	}
	return c.endless(w, table)
}

// endless reports a claim that time alone does not end.
func (c *configuration) endless(w *world, table step) error {
	e, ok := look(table, w.store, w.now)
	if !ok {
		return nil
	}
	end, gone := e.Expires, e.Expires
	if e.Status == idempotent.Pending {
		gone = end.Add(keep)
		if late, _ := look(table, w.store, w.now.Add(lease)); late.Status == idempotent.Pending {
			return errors.New("a claim is in flight after its lease")
		}
	}
	if gone.Sub(w.now) > lease+keep+retention {
		return errors.New("an entry outlives everything")
	}
	if late, ok := look(table, w.store, gone); ok {
		return fmt.Errorf("%s stays for ever", reading(late))
	}
	return nil
}
