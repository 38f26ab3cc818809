package storetest

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/model"
)

// mutant is a store with one fault, and the cases that must find it.
type mutant struct {
	name  string
	plant func(r *reference, h *Harness)
	kills []string
}

// TestMutants shows that the suite finds what it is there to find: each named
// case must fail on each store with that fault.
func TestMutants(t *testing.T) {
	cases := make(map[string]testCase)
	for _, c := range allCases() {
		cases[c.name] = c
	}
	for _, m := range mutants() {
		t.Run(m.name, func(t *testing.T) {
			require.NotEmpty(t, m.kills)
			for _, name := range m.kills {
				c, ok := cases[name]
				require.True(t, ok, "no case has the name %q", name)
				rec := c.record(t, m.plant)
				require.True(t, rec.Failed(), "the case %s passes with this fault", name)
				require.Contains(t, rec.text(), c.why)
			}
		})
	}
}

// TestEveryCaseCanFail shows that no case is idle: each is named by a mutant.
func TestEveryCaseCanFail(t *testing.T) {
	var idle []string
	for _, c := range allCases() {
		if !slices.ContainsFunc(mutants(), func(m mutant) bool { return slices.Contains(m.kills, c.name) }) {
			idle = append(idle, c.name)
		}
	}
	require.Empty(t, idle, "no mutant is killed by these cases")
}

func TestCasesAreNamedAndExplained(t *testing.T) {
	seen := make(map[string]bool)
	for _, c := range allCases() {
		require.NotEmpty(t, c.name)
		require.False(t, seen[c.name], "two cases have the name %s", c.name)
		require.True(t, strings.HasSuffix(c.why, "."), "%s: the rule is no sentence: %q", c.name, c.why)
		seen[c.name] = true
	}
}

// record runs the case in a bubble, on a store with the fault planted.
func (tc testCase) record(t *testing.T, plant func(*reference, *Harness)) *recorder {
	t.Helper()
	rec := &recorder{}
	synctest.Test(t, func(t *testing.T) {
		rec.ctx = t.Context()
		r := newReference()
		h := r.harness()
		h.Wrap = synctest.Test
		plant(r, &h)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			tc.check(rec, h)
		}()
		<-ended
	})
	return rec
}

// recorder is a tb that notes what a case reports.
type recorder struct {
	ctx context.Context

	mu     sync.Mutex // guards all below
	failed bool
	lines  []string
}

func (r *recorder) Helper()                  {}
func (r *recorder) Context() context.Context { return r.ctx }

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.lines, "\n")
}

func (r *recorder) Logf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, fmt.Sprintf(format, args...))
}

func (r *recorder) Errorf(format string, args ...any) {
	r.Logf(format, args...)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Skipf(format string, args ...any) {
	r.Logf(format, args...)
	runtime.Goexit()
}

// on plants a fault into the decision of one operation.
func on(op model.Op, wrong step) func(*reference, *Harness) {
	return func(r *reference, _ *Harness) {
		right := r.step
		r.step = func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
			if _, a := right(s, now, e); e.Op != op || a.Err != nil && kind(a.Err) == idempotent.ErrInvalid {
				return right(s, now, e)
			}
			if s.Gone(now) {
				s = model.State{Fence: s.Fence}
			}
			return wrong(s, now, e)
		}
	}
}

// edit plants a fault that shows after the right decision, in the state.
func edit(op model.Op, wrong func(before, after *model.State, now time.Time, e model.Event)) func(*reference, *Harness) {
	return on(op, func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
		after, a := s.Step(now, e)
		wrong(&s, &after, now, e)
		if a.OK && op == model.Claim {
			a.Entry = after.Entry
		}
		return after, a
	})
}

// lost answers ErrLost where when says so.
func lost(op model.Op, when func(s model.State, now time.Time, e model.Event) bool) func(*reference, *Harness) {
	return on(op, func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
		if when(s, now, e) {
			return s, model.Answer{Err: idempotent.ErrLost}
		}
		return s.Step(now, e)
	})
}

// owned makes every call of op that of the owner of the key.
func owned(op model.Op) func(*reference, *Harness) {
	return on(op, func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
		if s.Entry.Status != "" {
			e.Owner = s.Entry.Owner
		}
		return s.Step(now, e)
	})
}

// free makes op find the key absent where when says so.
func free(op model.Op, when func(s model.State, now time.Time, e model.Event) bool) func(*reference, *Harness) {
	return on(op, func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
		if when(s, now, e) {
			s = model.State{Fence: s.Fence}
		}
		return s.Step(now, e)
	})
}

// ignore makes op do nothing, successfully, where when says so.
func ignore(op model.Op, when func(s model.State, now time.Time, e model.Event) bool) func(*reference, *Harness) {
	return on(op, func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
		if when(s, now, e) {
			return s, model.Answer{}
		}
		return s.Step(now, e)
	})
}

func always(model.State, time.Time, model.Event) bool { return true }

func absent(s model.State, _ time.Time, _ model.Event) bool { return s.Entry.Status == "" }

func pending(s model.State) bool { return s.Entry.Status == idempotent.Pending }

func lapsedNow(s model.State, now time.Time, _ model.Event) bool {
	return pending(s) && !now.Before(s.Entry.Expires)
}

func finished(s model.State, _ time.Time, _ model.Event) bool {
	return s.Entry.Status != "" && !pending(s)
}

func known(s model.State, now time.Time, e model.Event) bool {
	return finished(s, now, e) && !s.Entry.Unknown
}

func doubtful(s model.State, _ time.Time, _ model.Event) bool { return s.Entry.Unknown }

// allow makes a claim look to the model as one that may take over.
func allow(change func(s *model.State, e *model.Event)) func(*reference, *Harness) {
	return on(model.Claim, func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
		t := s
		if pending(s) && s.Entry.Owner != e.Claim.Owner {
			change(&t, &e)
		}
		after, a := t.Step(now, e)
		if !a.OK {
			return s.Step(now, model.Event{Op: model.Claim, Key: e.Key, Claim: e.Claim})
		}
		return after, a
	})
}

func renamed(name func(string) string) func(*reference, *Harness) {
	return func(r *reference, _ *Harness) { r.name = name }
}

func swept(wrong func(s model.State, now time.Time, counted bool) (model.State, idempotent.Swept)) func(*reference, *Harness) {
	return func(r *reference, _ *Harness) { r.sweep = wrong }
}

// rounded makes all durations go through a function.
func rounded(round func(time.Duration) time.Duration) func(*reference, *Harness) {
	return func(r *reference, _ *Harness) {
		right := r.step
		r.step = func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
			e.Claim.Lease, e.Claim.Keep = round(e.Claim.Lease), round(e.Claim.Keep)
			e.Lease, e.Outcome.Retention = round(e.Lease), round(e.Outcome.Retention)
			return right(s, now, e)
		}
	}
}

// waiter is a reference with a Wait of its own.
type waiter struct {
	*reference
	wait func(ctx context.Context, r *reference, key string) (idempotent.Entry, bool, error)
}

func (w waiter) Wait(ctx context.Context, key string) (idempotent.Entry, bool, error) {
	return w.wait(ctx, w.reference, key)
}

func waits(wait func(ctx context.Context, r *reference, key string) (idempotent.Entry, bool, error)) func(*reference, *Harness) {
	return func(r *reference, h *Harness) { h.Store = waiter{r, wait} }
}

// lister is a reference with a List of its own.
type lister struct {
	*reference
	list func(ctx context.Context, r *reference, q idempotent.ListQuery) (idempotent.Page, error)
}

func (l lister) List(ctx context.Context, q idempotent.ListQuery) (idempotent.Page, error) {
	return l.list(ctx, l.reference, q)
}

func lists(list func(ctx context.Context, r *reference, q idempotent.ListQuery) (idempotent.Page, error)) func(*reference, *Harness) {
	return func(r *reference, h *Harness) { h.Store = lister{r, list} }
}

// listed changes each page after the fact.
func listed(change func(r *reference, q idempotent.ListQuery, page *idempotent.Page)) func(*reference, *Harness) {
	return lists(func(ctx context.Context, r *reference, q idempotent.ListQuery) (idempotent.Page, error) {
		page, err := r.List(ctx, q)
		if err == nil {
			change(r, q, &page)
		}
		return page, err
	})
}

// caching is a second handle that remembers what it once saw.
type caching struct {
	*reference
	mu   sync.Mutex // guards seen
	seen map[string]idempotent.Entry
}

func (c *caching) Load(ctx context.Context, key string) (idempotent.Entry, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.seen[key]; ok {
		return e, true, nil
	}
	e, found, err := c.reference.Load(ctx, key)
	if found {
		c.seen[key] = e
	}
	return e, found, err
}

// pinger is a reference whose Ping fails.
type pinger struct{ *reference }

func (pinger) Ping(context.Context) error { return context.DeadlineExceeded }
