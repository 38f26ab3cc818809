package history

import (
	"github.com/idempotent-go/idempotent"
)

// configuration says what may happen in a world. In every one of them leases
// lapse, executions crash, and messages and answers are lost, late, and in any
// order. Messages are sent twice as far as the budget goes.
type configuration struct {
	name       string
	executions int
	renewals   bool // each execution may send one
	another    bool // the last execution makes another request
	takeOver   bool // all claims allow it
	forgets    bool // Keep and retention pass
	settles    bool // an operator says what became of an unknown outcome
	budget     budget

	anything     bool // claims are evicted as well
	acknowledged bool // a claim is answered when the replica has it

	limits []limit
}

// limit is something that the manual says can happen, and that can happen in a
// configuration.
type limit struct {
	says string
	goal goal
}

// goal is a state of the world that the promise without its limits excludes.
type goal struct {
	name    string
	reached func(*world) bool
}

var (
	twoRuns = goal{"two operations may have happened", func(w *world) bool { return w.ran() > 1 }}

	twoAnswers = goal{"two callers have different answers", func(w *world) bool { return len(w.answers()) > 1 }}

	anothersOutcome = goal{"what a caller was told is unknown is now another owner's outcome", func(w *world) bool {
		e := w.store.Read(w.now)
		for _, x := range w.runs {
			if x.phase == ended && x.told == toldUnknown && e.Status == idempotent.Success && index(e.Owner) != int(x.from) {
				return true
			}
		}
		return false
	}}

	heldAgain = goal{"an owner whose claim was taken over holds the key again, and still runs", func(w *world) bool {
		for i, x := range w.runs {
			if x.phase == running && x.lost && w.store.Entry.Owner == names[i] {
				return true
			}
		}
		return false
	}}

	lateRecord = goal{"a recorded outcome is gone, and nothing has run again", func(w *world) bool {
		for _, x := range w.runs {
			if x.phase == ended && x.said && !x.unknown && w.ran() == 1 && w.store.Read(w.now).Status == "" {
				return true
			}
		}
		return false
	}}
)

var configurations = []configuration{
	{name: "two executions", executions: 2, renewals: true, settles: true, budget: budget{resends: 2}},
	{name: "three executions", executions: 3},
	{name: "another request among them", executions: 3, another: true, settles: true},
	{
		name: "take-over", executions: 2, renewals: true, takeOver: true, budget: budget{resends: 1},
		limits: []limit{
			{"With take-over an operation may run again.", twoRuns},
			{"Callers may get different answers then.", twoAnswers},
			{"And an unknown reading may become another owner's outcome.", anothersOutcome},
			{"A claim that is sent again and arrives late takes over like any other.", heldAgain},
		},
	},
	{name: "take-over, another request among them", executions: 3, takeOver: true, another: true, limits: []limit{
		{"Only the same request takes over.", twoRuns},
	}},
	{
		name: "Keep and retention pass", executions: 2, forgets: true, budget: budget{resends: 1},
		limits: []limit{{"An abandoned claim is remembered for Keep, an outcome for its retention; then the key is free.", twoRuns}},
	},
	{
		name: "finished entries are evicted", executions: 2, budget: budget{resends: 1, evictions: 1},
		limits: []limit{{"A memory store above its size forgets the oldest finished entries.", twoRuns}},
	},
	{
		name: "anything is evicted", executions: 2, anything: true, budget: budget{resends: 1, evictions: 1},
		limits: []limit{{"A Redis that evicts throws running claims away as well.", twoRuns}},
	},
	{
		name: "Delete", executions: 2, budget: budget{resends: 1, deletes: 1},
		limits: []limit{{"Delete is a take-over by hand.", twoRuns}},
	},
	{
		name: "failover", executions: 2, budget: budget{failovers: 1},
		limits: []limit{{"A Redis failover can lose the newest writes, a claim for one.", twoRuns}, {"Or an outcome.", lateRecord}},
	},
	{
		name: "failover, claims wait for the replica", executions: 2, renewals: true, acknowledged: true, budget: budget{failovers: 1},
	},
}

// forgetful reports whether an entry may vanish in c although its time has not
// come.
func (c *configuration) forgetful() bool {
	return c.forgets || c.budget.evictions+c.budget.failovers+c.budget.deletes > 0
}
