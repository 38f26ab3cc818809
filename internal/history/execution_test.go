package history

import (
	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/model"
)

// message is what an execution sends.
type message uint8

const (
	claimMessage message = iota
	renewMessage
	completeMessage
	releaseMessage
	messages
)

func (m message) op() model.Op {
	return [...]model.Op{model.Claim, model.Renew, model.Complete, model.Release}[m]
}

// phase is how far an execution has come.
type phase uint8

const (
	idle       phase = iota
	claiming         // waits for the answer to its claim
	running          // its operation runs
	completing       // waits for the answer to its outcome
	releasing        // waits for the answer to its release
	ended
	crashed
)

// told is what the caller of an execution was answered.
type told uint8

const (
	toldNothing  told = iota
	toldOutcome       // a known outcome, its own or a replayed one
	toldUnknown       // the operation may have happened
	toldInFlight      // somebody else runs
	toldReused        // the key belongs to another request
	toldReleased      // nothing happened
)

// execution is one attempt of one caller, with an owner of its own. It claims,
// runs its operation where it got the key, and says what became of it.
type execution struct {
	phase   phase
	ran     bool            // the operation was started, and may have happened
	lost    bool            // somebody has taken its claim over
	unknown bool            // its outcome is one
	said    bool            // it has sent an outcome
	renewed bool            // it has sent a renewal
	sends   uint8           // how often it has sent what it waits for
	under   [messages]uint8 // what it has sent that may still arrive
	told    told
	from    uint8 // whose outcome, or whose claim, that was
}

// waits returns the message whose answer the execution waits for.
func (x execution) waits() (message, bool) {
	switch x.phase {
	case claiming:
		return claimMessage, true
	case completing:
		return completeMessage, true
	case releasing:
		return releaseMessage, true
	}
	return 0, false
}

// enter begins a phase.
func (x *execution) enter(p phase) {
	x.phase, x.sends = p, 0
	if p != running {
		x.renewed = false
	}
}

// outcome is what the execution sends in its completion.
func (x execution) outcome(i int) idempotent.Outcome {
	o := idempotent.Outcome{Status: idempotent.Success, Result: "result of " + names[i], Retention: retention}
	if x.unknown {
		o = idempotent.Outcome{Status: idempotent.Failed, Unknown: true, Result: "perhaps " + names[i], Retention: retention}
	}
	return o
}

// call is what execution i sends.
func (c *configuration) call(i int, m message, x execution) model.Event {
	e := model.Event{Op: m.op(), Key: "key", Owner: names[i]}
	switch m {
	case claimMessage:
		e.Claim = idempotent.Claim{
			Owner: names[i], Fingerprint: c.fingerprint(i), Trace: "trace of " + names[i],
			Lease: lease, Keep: keep, TakeOver: c.takeOver,
		}
	case renewMessage:
		e.Lease = lease
	case completeMessage:
		e.Outcome = x.outcome(i)
		e.Outcome.Fingerprint = c.fingerprint(i)
	}
	return e
}

// fingerprint is that of the request of execution i.
func (c *configuration) fingerprint(i int) string {
	if c.another && i == c.executions-1 {
		return "another request"
	}
	return "the request"
}
