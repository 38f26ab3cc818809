package history

import (
	"errors"
	"slices"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/model"
)

// Durations of the explored world. Only their order matters: every event takes
// a tick, and no number of ticks reaches the end of a lease.
const (
	tick      = time.Millisecond
	lease     = time.Hour
	keep      = 10 * time.Hour
	retention = 100 * time.Hour
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// most is how many executions a world has room for.
const most = 3

// names of the executions, which are their owners too. The last one is the
// operator, who settles what became of a dead execution.
var names = [most + 1]string{"A", "B", "C", "operator"}

const operator = most

// step is the table, or one with a planted fault.
type step func(model.State, time.Time, model.Event) (model.State, model.Answer)

// world is everything there is: the executions, what they have under way, one
// key of a store, and what a replica knows of it.
type world struct {
	now     time.Time
	store   model.State
	replica model.State
	runs    [most]execution
	left    budget
	paid    uint8 // how often a limit has allowed one run more
	settled bool  // the operator has sent an outcome
	fence   int64 // the largest that any claim was answered
}

// budget is what may still happen in a world.
type budget struct {
	resends, evictions, failovers, deletes uint8
}

// ran returns how many operations may have happened.
func (w *world) ran() (n int) {
	for _, x := range w.runs {
		if x.ran {
			n++
		}
	}
	return n
}

// answers returns whose outcomes callers were told.
func (w *world) answers() (from []uint8) {
	for _, x := range w.runs {
		if x.told == toldOutcome && !slices.Contains(from, x.from) {
			from = append(from, x.from)
		}
	}
	return from
}

// look is what Load shows.
func look(table step, s model.State, now time.Time) (idempotent.Entry, bool) {
	_, a := table(s, now, model.Event{Op: model.Load, Key: "key"})
	return a.Entry, a.OK
}

// index returns the execution that owner names.
func index(owner string) int { return slices.Index(names[:], owner) }

// author returns who said what the entry records.
func author(e idempotent.Entry) int {
	for i, name := range names {
		if e.Result == "result of "+name {
			return i
		}
	}
	return -1
}

// seen is what of a state decides what can come of it.
type seen struct {
	status            idempotent.Status
	unknown, lapsed   bool
	takeOver, gained  bool
	owner, author, fp int8
}

func (c *configuration) seen(now time.Time, s model.State) seen {
	if s.Gone(now) {
		return seen{}
	}
	e := s.Entry
	k := seen{
		status: e.Status, unknown: e.Unknown, takeOver: s.TakeOver, gained: s.Gained,
		owner: int8(index(e.Owner)), author: int8(author(e)),
	}
	k.lapsed = e.Status == idempotent.Pending && s.Read(now).Unknown
	if e.Fingerprint == "another request" {
		k.fp = 1
	}
	return k
}

// place is what two worlds have in common from which the same can come.
// Instants count by their order, and fences not at all: each new one is
// compared with the largest before.
type place struct {
	store, replica seen
	order          [4]int8
	runs           [most]execution
	left           budget
	paid           uint8
	settled        bool
}

func (c *configuration) place(w *world) place {
	p := place{store: c.seen(w.now, w.store), runs: w.runs, left: w.left, paid: w.paid, settled: w.settled}
	if w.left.failovers == 0 {
		return p
	}
	p.replica = c.seen(w.now, w.replica)
	type end struct {
		at  time.Time
		tag int8
	}
	var ends []end
	for i, s := range []model.State{w.store, w.replica} {
		for j, b := range s.Boundary() {
			if b.After(w.now) {
				ends = append(ends, end{b, int8(1 + 2*i + j)})
			}
		}
	}
	slices.SortStableFunc(ends, func(a, b end) int { return a.at.Compare(b.at) })
	for i, e := range ends {
		p.order[i] = e.tag
	}
	return p
}

// what names an outcome.
func what(o idempotent.Outcome) string {
	if o.Unknown {
		return "unknown"
	}
	return string(o.Status)
}

// reading names an entry.
func reading(e idempotent.Entry) string {
	switch {
	case e.Status == "":
		return "absent"
	case e.Unknown:
		return "unknown, of " + e.Owner
	}
	return string(e.Status) + " of " + e.Owner
}

// answer names an answer.
func answer(m message, a model.Answer) string {
	switch {
	case a.Err != nil && errors.Is(a.Err, idempotent.ErrLost):
		return "lost"
	case a.Err != nil:
		return a.Err.Error()
	case a.OK:
		return "claimed"
	case m == claimMessage:
		return reading(a.Entry)
	}
	return "done"
}
