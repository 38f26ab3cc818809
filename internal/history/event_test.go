package history

import (
	"errors"
	"fmt"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/model"
)

// kind says what happens in an event.
type kind uint8

const (
	sends     kind = iota // an execution sends a message for the first time
	resends               // sends again what it has no answer to
	succeeds              // its operation ends, and it sends what became of it
	doubts                // likewise, and nobody knows whether it happened
	withdraws             // likewise, and nothing happened; or it gives up its claim
	arrives               // a message arrives and is answered
	deaf                  // a message arrives and its answer is lost
	crashes
	passes // time, up to the next moment at which the entry changes by itself
	replicates
	failsOver
	evicts
	deletes
	settles
)

// event is one thing that happens. Nothing happens by itself: a message that
// never arrives is a lost one.
type event struct {
	kind    kind
	who     uint8
	message message
}

// enabled returns what may happen next.
func (c *configuration) enabled(w *world) []event {
	var events []event
	may := func(ok bool, e event) {
		if ok {
			events = append(events, e)
		}
	}
	for i := range c.executions {
		x, who := w.runs[i], uint8(i)
		// Equal executions begin in the order of their names.
		first := i == 0 || w.runs[i-1].phase != idle || c.another && i == c.executions-1
		may(x.phase == idle && first, event{sends, who, claimMessage})
		may(x.phase == claiming, event{withdraws, who, releaseMessage})
		may(x.phase == running && !x.renewed && c.renewals, event{sends, who, renewMessage})
		may(x.phase == running, event{succeeds, who, completeMessage})
		may(x.phase == running, event{doubts, who, completeMessage})
		may(x.phase == running, event{withdraws, who, releaseMessage})
		m, waits := x.waits()
		may(waits && w.left.resends > 0 && x.sends < 2, event{resends, who, m})
		for k, n := range x.under {
			may(n > 0, event{arrives, who, message(k)})
			may(n > 0 && waits && message(k) == m, event{deaf, who, message(k)})
		}
		may(waits || x.phase == running, event{kind: crashes, who: who})
	}
	_, passable := c.next(w)
	may(passable, event{kind: passes})
	there := !w.store.Gone(w.now)
	may(there && w.left.evictions > 0 && (c.anything || w.store.Entry.Status != idempotent.Pending), event{kind: evicts})
	may(there && w.left.deletes > 0, event{kind: deletes})
	may(w.left.failovers > 0 && c.seen(w.now, w.store) != c.seen(w.now, w.replica), event{kind: replicates})
	may(w.left.failovers > 0, event{kind: failsOver})
	may(c.settles && !w.settled && c.settleable(w), event{kind: settles})
	return events
}

// next returns the moment until which time may pass at once.
func (c *configuration) next(w *world) (time.Time, bool) {
	states := []model.State{w.store}
	if c.budget.failovers > 0 {
		states = append(states, w.replica)
	}
	var next time.Time
	ok := false
	for _, s := range states {
		for i, b := range s.Boundary() {
			if !b.After(w.now) || !next.IsZero() && !b.Before(next) {
				continue
			}
			next = b
			ok = c.forgets || s.Entry.Status == idempotent.Pending && i == 0
		}
	}
	return next, ok
}

// settleable reports whether an operator may say what became of the key: it is
// unknown, and whoever held it is dead or has said all that it knows.
func (c *configuration) settleable(w *world) bool {
	e := w.store.Read(w.now)
	if !e.Unknown {
		return false
	}
	return w.runs[index(e.Owner)].phase == crashed || w.store.Entry.Status != idempotent.Pending
}

// happen returns the world after e, and e in words. The error is a rule that
// is broken.
func (c *configuration) happen(w world, table step, e event) (world, string, error) {
	if e.kind != passes {
		w.now = w.now.Add(tick)
	}
	x, name := &w.runs[e.who], names[e.who]
	send := func(m message) {
		x.under[m]++
		x.sends++
	}
	switch e.kind {
	case sends:
		if e.message == claimMessage {
			x.enter(claiming)
		}
		x.renewed = e.message == renewMessage
		send(e.message)
		return w, fmt.Sprintf("%s sends %v", name, e.message.op()), nil
	case resends:
		w.left.resends--
		send(e.message)
		return w, fmt.Sprintf("%s sends %v again", name, e.message.op()), nil
	case succeeds, doubts:
		x.enter(completing)
		x.said, x.unknown = true, e.kind == doubts
		send(completeMessage)
		return w, fmt.Sprintf("%s sends Complete: %s", name, what(x.outcome(int(e.who)))), nil
	case withdraws:
		text := name + " gives up its claim and sends Release"
		if x.phase == running {
			text = name + "'s operation did nothing, and it sends Release"
		}
		x.enter(releasing)
		x.ran = false
		send(releaseMessage)
		return w, text, nil
	case crashes:
		x.enter(crashed)
		return w, name + " crashes", nil
	case arrives, deaf:
		return c.arrive(w, table, e)
	case passes:
		before := w.store
		gone := before.Gone(w.now)
		w.now, _ = c.next(&w)
		text := "time passes: the lease ends"
		if !gone && w.store.Gone(w.now) {
			w.paid++
			text = "time passes: the retention ends"
			if before.Entry.Status == idempotent.Pending {
				text = "time passes: Keep ends"
			}
		}
		return w, text, nil
	case replicates:
		w.replica = w.store
		return w, "the replica catches up", nil
	case failsOver:
		w.left.failovers--
		if c.seen(w.now, w.store) != c.seen(w.now, w.replica) && !c.acknowledged {
			w.paid++
		}
		w.store = w.replica
		return w, "failover: the replica takes over", nil
	case evicts:
		w.left.evictions--
		w.paid++
		w.store = model.State{} // and with it the fence
		return w, "the entry is evicted", nil
	case deletes:
		w.left.deletes--
		w.paid++
		w.store, _ = table(w.store, w.now, model.Event{Op: model.Delete, Key: "key"})
		return w, "the operator deletes the key", nil
	case settles:
		w.settled = true
		owner := w.store.Entry.Owner
		return c.settle(w, table, owner)
	}
	panic("history: no such event")
}

// settle has the operator say that the operation of owner failed.
func (c *configuration) settle(w world, table step, owner string) (world, string, error) {
	o := idempotent.Outcome{Status: idempotent.Failed, Result: "result of operator", Retention: retention}
	text := fmt.Sprintf("the operator settles %s's outcome: failed", owner)
	before := w.store
	after, a := table(before, w.now, model.Event{Op: model.Complete, Key: "key", Owner: owner, Outcome: o})
	w.store = after
	if got, _ := look(table, after, w.now); a.Err != nil || got.Result != o.Result || got.Unknown {
		return w, text, fmt.Errorf("an outcome that was settled reads %s", reading(got))
	}
	return w, text, c.always(&w, table)
}

// arrive is the arrival of a message: the table decides.
func (c *configuration) arrive(w world, table step, e event) (world, string, error) {
	i := int(e.who)
	x, name := &w.runs[i], names[i]
	x.under[e.message]--
	call := c.call(i, e.message, *x)
	before := w.store
	after, a := table(before, w.now, call)
	w.store = after
	if c.acknowledged && e.message == claimMessage && a.OK {
		w.replica = after // or the claim would be answered with an error
	}
	text := fmt.Sprintf("%s's %v arrives: %s", name, e.message.op(), answer(e.message, a))
	broken := c.judge(&w, table, i, e.message, before, call, a)

	m, waits := x.waits()
	switch {
	case !waits || m != e.message:
		if waits || x.phase == running && e.message == renewMessage {
			break
		}
		text += ", which nobody hears"
	case e.kind == deaf:
		text += ", and the answer is lost"
	default:
		c.hear(&w, i, a)
	}
	return w, text, errors.Join(broken, c.always(&w, table))
}

// hear gives execution i the answer that it waited for.
func (c *configuration) hear(w *world, i int, a model.Answer) {
	x := &w.runs[i]
	switch x.phase {
	case claiming:
		if a.OK {
			x.enter(running)
			x.ran = true
			return
		}
		x.enter(ended)
		x.from = uint8(index(a.Entry.Owner))
		switch {
		case a.Entry.Fingerprint != c.fingerprint(i):
			x.told = toldReused
		case a.Entry.Status == idempotent.Pending:
			x.told = toldInFlight
		case a.Entry.Unknown:
			x.told = toldUnknown
		default:
			x.told, x.from = toldOutcome, uint8(author(a.Entry))
		}
	case completing:
		// Whoever has an answer gets it, recorded or not.
		x.enter(ended)
		x.told, x.from = toldOutcome, uint8(i)
		if x.unknown {
			x.told = toldUnknown
		}
	case releasing:
		x.enter(ended)
		x.told = toldReleased
	}
}
