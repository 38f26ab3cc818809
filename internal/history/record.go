package history

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/model"
)

// patience is how long the search for an order of one key's calls may take.
const patience = time.Minute

// recorder records the calls of all clients of one store.
type recorder struct {
	tolerance time.Duration // between the store's clock and ours
	licence   licence

	order atomic.Int64 // of calls and answers

	mu      sync.Mutex // guards what follows
	history map[string][]porcupine.Operation
	wrong   []string // answers that no state gives
	calls   int
	open    int // of these, without a known answer
}

func newRecorder(tolerance time.Duration, l licence) *recorder {
	return &recorder{tolerance: tolerance, licence: l, history: map[string][]porcupine.Operation{}}
}

// handle is how one client reaches the store.
type handle struct {
	idempotent.Store
	client int
	// faults counts those that make what lies beneath send a call once more:
	// their beginnings and their ends. nil: it never does.
	faults func() int64
}

// fault returns the count, and whether there is one now.
func (h handle) fault() (n int64, now bool) {
	if h.faults == nil {
		return 0, false
	}
	n = h.faults()
	return n, n%2 == 1
}

// send sends a call and records it. It reports whether it is known how often it
// was carried out, and with what answer.
func (r *recorder) send(ctx context.Context, h handle, e model.Event) bool {
	ended := ctx.Err() != nil
	before, faulty := h.fault()
	op := porcupine.Operation{ClientId: h.client, Call: r.order.Add(1)}
	c := call{event: e, from: plain(time.Now().Add(-r.tolerance))}
	out := reply{Answer: invoke(ctx, h.Store, e)}
	c.to = plain(time.Now().Add(r.tolerance))
	op.Return = r.order.Add(1)
	after, _ := h.fault()
	resent := faulty || after != before

	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	out.known = out.Err == nil || errors.Is(out.Err, idempotent.ErrLost)
	switch {
	case ended:
		if !errors.Is(out.Err, ctx.Err()) {
			r.wrong = append(r.wrong, fmt.Sprintf("%v with an ended context answered %v", e, out.Answer))
		}
		return true
	case !out.known && !resent && unsent(out.Err):
		return false
	case !out.known && refused(out.Err):
		r.wrong = append(r.wrong, fmt.Sprintf("%v answered %v", e, out.Answer))
		return true
	}
	add := func(op porcupine.Operation, c call, out reply) {
		if !out.known {
			if e.Op == model.Load {
				return
			}
			r.open++
			op.Return, c.to = math.MaxInt64, c.to.Add(24*time.Hour)
		}
		op.Input, op.Output = c, out
		r.history[e.Key] = append(r.history[e.Key], op)
	}
	add(op, c, out)
	if resent {
		add(op, c, reply{})
	}
	return out.known && !resent
}

// unanswered returns how many calls of key have no known answer so far.
func (r *recorder) unanswered(key string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, op := range r.history[key] {
		if !op.Output.(reply).known {
			n++
		}
	}
	return n
}

// check fails the test where the calls of a key have no order.
func (r *recorder) check(t testing.TB) {
	t.Helper()
	if report := r.report(); report != "" {
		t.Fatal(report)
	}
}

// report returns what is wrong with the history, or "".
func (r *recorder) report() string {
	if len(r.wrong) > 0 {
		return strings.Join(r.wrong, "\n")
	}
	m := r.licence.porcupine()
	for key, ops := range r.history {
		switch porcupine.CheckOperationsTimeout(m, ops, patience) {
		case porcupine.Illegal:
			return fmt.Sprintf("no order of these calls of %q gives these answers:\n%sthe longest that does leaves out\n%s",
				key, list(ops), list(left(m, ops)))
		case porcupine.Unknown:
			return fmt.Sprintf("no end of the search for an order of these calls of %q:\n%s", key, list(ops))
		}
	}
	return ""
}

// left returns the calls that the longest order does not contain.
func left(m porcupine.Model, ops []porcupine.Operation) (out []porcupine.Operation) {
	_, info := porcupine.CheckOperationsVerbose(m, ops, patience)
	var longest []porcupine.Operation
	for _, partition := range info.PartialLinearizationsOperations() {
		for _, order := range partition {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	for _, op := range ops {
		if !slices.ContainsFunc(longest, func(o porcupine.Operation) bool { return o.Call == op.Call }) {
			out = append(out, op)
		}
	}
	return out
}

// list returns the calls, one a line, with their place in the order.
func list(ops []porcupine.Operation) string {
	ops = slices.Clone(ops)
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	var b strings.Builder
	const layout = "15:04:05.000000"
	for _, op := range ops {
		c, r := op.Input.(call), op.Output.(reply)
		if !r.known {
			fmt.Fprintf(&b, "%d-: client %d from %s: %v\n\tanswer unknown: %v\n", op.Call, op.ClientId, c.from.Format(layout), c.event, r.Err)
			continue
		}
		fmt.Fprintf(&b, "%d-%d: client %d from %s to %s: %v\n\tanswered %v\n",
			op.Call, op.Return, op.ClientId, c.from.Format(layout), c.to.Format(layout), c.event, r.Answer)
	}
	return b.String()
}

// unsent reports whether a call failed before anything was sent.
func unsent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// refused reports whether err is an answer that no call here may get.
func refused(err error) bool {
	return slices.ContainsFunc([]error{
		idempotent.ErrFull, idempotent.ErrCorrupt, idempotent.ErrNewerFormat, idempotent.ErrInvalid, idempotent.ErrClosed,
	}, func(target error) bool { return errors.Is(err, target) })
}

// invoke makes one call.
func invoke(ctx context.Context, s idempotent.Store, e model.Event) (a model.Answer) {
	switch e.Op {
	case model.Load:
		a.Entry, a.OK, a.Err = s.Load(ctx, e.Key)
	case model.Claim:
		a.Entry, a.OK, a.Err = s.Claim(ctx, e.Key, e.Claim)
	case model.Renew:
		a.Err = s.Renew(ctx, e.Key, e.Owner, e.Lease)
	case model.Complete:
		a.Err = s.Complete(ctx, e.Key, e.Owner, e.Outcome)
	case model.Release:
		a.Err = s.Release(ctx, e.Key, e.Owner)
	case model.Delete:
		a.Err = idempotent.Delete(ctx, s, e.Key)
	}
	return a
}
