package history

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/model"
)

// mutant is a store with one rule broken: it has the store beneath do something
// else than was asked, or answers something else than that says.
type mutant struct {
	idempotent.Store
	mu    *sync.Mutex // held during a call: all but the rule is as it was
	plant plant
}

// plant makes a call in the place of the store.
type plant func(m mutant, ctx context.Context, e model.Event) model.Answer

// mutate returns what wraps a store, for the clients of one history.
func mutate(p plant) func(idempotent.Store) idempotent.Store {
	var mu sync.Mutex
	return func(s idempotent.Store) idempotent.Store { return mutant{s, &mu, p} }
}

func (m mutant) do(ctx context.Context, e model.Event) model.Answer {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.plant(m, ctx, e)
}

func (m mutant) Load(ctx context.Context, key string) (idempotent.Entry, bool, error) {
	a := m.do(ctx, model.Event{Op: model.Load, Key: key})
	return a.Entry, a.OK, a.Err
}

func (m mutant) Claim(ctx context.Context, key string, c idempotent.Claim) (idempotent.Entry, bool, error) {
	a := m.do(ctx, model.Event{Op: model.Claim, Key: key, Claim: c})
	return a.Entry, a.OK, a.Err
}

func (m mutant) Renew(ctx context.Context, key, owner string, lease time.Duration) error {
	return m.do(ctx, model.Event{Op: model.Renew, Key: key, Owner: owner, Lease: lease}).Err
}

func (m mutant) Complete(ctx context.Context, key, owner string, o idempotent.Outcome) error {
	return m.do(ctx, model.Event{Op: model.Complete, Key: key, Owner: owner, Outcome: o}).Err
}

func (m mutant) Release(ctx context.Context, key, owner string) error {
	return m.do(ctx, model.Event{Op: model.Release, Key: key, Owner: owner}).Err
}

func (m mutant) Delete(ctx context.Context, key string) error {
	return m.do(ctx, model.Event{Op: model.Delete, Key: key}).Err
}

// pass makes the call as it is.
func (m mutant) pass(ctx context.Context, e model.Event) model.Answer { return invoke(ctx, m.Store, e) }

// held returns the entry as the store beneath shows it.
func (m mutant) held(ctx context.Context, key string) idempotent.Entry {
	e, _, _ := m.Store.Load(ctx, key)
	return e
}

// clear removes the key.
func (m mutant) clear(ctx context.Context, key string) { _ = idempotent.Delete(ctx, m.Store, key) }

// on plants p in one method.
func on(op model.Op, p plant) plant {
	return func(m mutant, ctx context.Context, e model.Event) model.Answer {
		if e.Op != op || ctx.Err() != nil {
			return m.pass(ctx, e)
		}
		return p(m, ctx, e)
	}
}

// asOwner makes the call in the name of whoever holds the key.
func asOwner(m mutant, ctx context.Context, e model.Event) model.Answer {
	if owner := m.held(ctx, e.Key).Owner; owner != "" {
		e.Owner = owner
	}
	return m.pass(ctx, e)
}

// asAbsent makes the call as if the key were free, where when says so.
func asAbsent(when func(held idempotent.Entry, e model.Event) bool) plant {
	return func(m mutant, ctx context.Context, e model.Event) model.Answer {
		if held := m.held(ctx, e.Key); held.Status != "" && when(held, e) {
			m.clear(ctx, e.Key)
		}
		return m.pass(ctx, e)
	}
}

// changed makes another call.
func changed(change func(*model.Event)) plant {
	return func(m mutant, ctx context.Context, e model.Event) model.Answer {
		change(&e)
		return m.pass(ctx, e)
	}
}

// retold answers with another entry.
func retold(change func(*idempotent.Entry)) plant {
	return func(m mutant, ctx context.Context, e model.Event) model.Answer {
		a := m.pass(ctx, e)
		if a.Entry.Status != "" {
			change(&a.Entry)
		}
		return a
	}
}

// mutants are the broken rules.
var mutants = []struct {
	name  string
	plant plant
}{
	{"anybody renews", on(model.Renew, asOwner)},
	{"anybody completes", on(model.Complete, asOwner)},
	{"anybody releases", on(model.Release, asOwner)},
	{"a running claim is claimed", on(model.Claim, asAbsent(func(held idempotent.Entry, e model.Event) bool {
		return held.Status == idempotent.Pending && held.Owner != e.Claim.Owner
	}))},
	{"look and store are two steps", func(m mutant, ctx context.Context, e model.Event) model.Answer {
		if e.Op != model.Claim || ctx.Err() != nil || m.held(ctx, e.Key).Status != "" {
			return m.pass(ctx, e)
		}
		m.mu.Unlock()
		runtime.Gosched() // somebody else looks
		m.mu.Lock()
		m.clear(ctx, e.Key)
		return m.pass(ctx, e)
	}},
	{"a finished key is claimed", on(model.Claim, asAbsent(func(held idempotent.Entry, _ model.Event) bool {
		return held.Status == idempotent.Success
	}))},
	{"a lapsed claim is free", on(model.Claim, asAbsent(func(held idempotent.Entry, e model.Event) bool {
		return held.Abandoned() && held.Owner != e.Claim.Owner
	}))},
	{"a lapse is read as absent", on(model.Load, func(m mutant, ctx context.Context, e model.Event) model.Answer {
		a := m.pass(ctx, e)
		if a.Entry.Abandoned() {
			return model.Answer{}
		}
		return a
	})},
	{"a lapse is read as pending", on(model.Load, retold(func(e *idempotent.Entry) {
		if e.Abandoned() {
			e.Status, e.Unknown = idempotent.Pending, false
		}
	}))},
	{"taken over without permission", on(model.Claim, changed(func(e *model.Event) { e.Claim.TakeOver = true }))},
	{"never taken over", on(model.Claim, changed(func(e *model.Event) { e.Claim.TakeOver = false }))},
	{"taken over by another request", on(model.Claim, func(m mutant, ctx context.Context, e model.Event) model.Answer {
		if held := m.held(ctx, e.Key); held.Abandoned() {
			e.Claim.Fingerprint = held.Fingerprint
		}
		return m.pass(ctx, e)
	})},
	{"a take-over forgets the first claim", on(model.Claim, retold(func(e *idempotent.Entry) {
		if e.Status == idempotent.Pending {
			e.Claimed = e.Timestamp
		}
	}))},
	{"a repeated claim is refused", on(model.Claim, func(m mutant, ctx context.Context, e model.Event) model.Answer {
		if held := m.held(ctx, e.Key); held.Owner == e.Claim.Owner {
			return model.Answer{Entry: held}
		}
		return m.pass(ctx, e)
	})},
	{"a repeated claim is a new one", on(model.Claim, asAbsent(func(held idempotent.Entry, e model.Event) bool {
		return held.Status == idempotent.Pending && held.Owner == e.Claim.Owner
	}))},
	{"a repeated claim does not renew", on(model.Claim, func(m mutant, ctx context.Context, e model.Event) model.Answer {
		if held := m.held(ctx, e.Key); held.Owner == e.Claim.Owner && held.Status == idempotent.Pending {
			return model.Answer{Entry: held, OK: true}
		}
		return m.pass(ctx, e)
	})},
	{"the fingerprint is lost", on(model.Claim, changed(func(e *model.Event) { e.Claim.Fingerprint = "" }))},
	{"a late outcome has no fingerprint", on(model.Complete, changed(func(e *model.Event) { e.Outcome.Fingerprint = "" }))},
	{"the trace is lost", on(model.Load, retold(func(e *idempotent.Entry) { e.Trace = "" }))},
	{"a fence does not grow", on(model.Claim, func(m mutant, ctx context.Context, e model.Event) model.Answer {
		held := m.held(ctx, e.Key)
		a := m.pass(ctx, e)
		if a.OK && held.Fence > 0 {
			a.Entry.Fence = held.Fence
		}
		return a
	})},
	{"a renewal is lost", on(model.Renew, func(m mutant, ctx context.Context, e model.Event) model.Answer {
		if held := m.held(ctx, e.Key); held.Owner != e.Owner {
			return m.pass(ctx, e)
		}
		return model.Answer{}
	})},
	{"a renewal of nothing is accepted", on(model.Renew, func(m mutant, ctx context.Context, e model.Event) model.Answer {
		if m.held(ctx, e.Key).Status == "" {
			return model.Answer{}
		}
		return m.pass(ctx, e)
	})},
	{"a lapsed claim cannot be renewed", on(model.Renew, func(m mutant, ctx context.Context, e model.Event) model.Answer {
		if m.held(ctx, e.Key).Abandoned() {
			return model.Answer{Err: idempotent.ErrLost}
		}
		return m.pass(ctx, e)
	})},
	{"a lease is longer than asked", on(model.Claim, changed(func(e *model.Event) { e.Claim.Lease *= 2 }))},
	{"Keep is not kept", on(model.Claim, changed(func(e *model.Event) { e.Claim.Keep = idempotent.MinDuration }))},
	{"a retention is cut", on(model.Complete, changed(func(e *model.Event) { e.Outcome.Retention /= 2 }))},
	{"a completion is lost", on(model.Complete, func(m mutant, ctx context.Context, e model.Event) model.Answer {
		if held := m.held(ctx, e.Key); held.Status == idempotent.Pending && held.Owner == e.Owner {
			return model.Answer{}
		}
		return m.pass(ctx, e)
	})},
	{"a completion overwrites another", on(model.Complete, func(m mutant, ctx context.Context, e model.Event) model.Answer {
		if held := m.held(ctx, e.Key); held.Owner == e.Owner && held.Status != idempotent.Pending && !held.Unknown {
			m.clear(ctx, e.Key)
		}
		return m.pass(ctx, e)
	})},
	{"a late completion is refused", on(model.Complete, func(m mutant, ctx context.Context, e model.Event) model.Answer {
		if m.held(ctx, e.Key).Status == "" {
			return model.Answer{Err: idempotent.ErrLost}
		}
		return m.pass(ctx, e)
	})},
	{"a completion after a take-over is accepted", on(model.Complete, func(m mutant, ctx context.Context, e model.Event) model.Answer {
		if held := m.held(ctx, e.Key); held.Owner != e.Owner && held.Claimed != held.Timestamp && held.Status == idempotent.Pending {
			m.clear(ctx, e.Key)
		}
		return m.pass(ctx, e)
	})},
	{"an unknown outcome is final", on(model.Complete, func(m mutant, ctx context.Context, e model.Event) model.Answer {
		if held := m.held(ctx, e.Key); held.Unknown && held.Result != "" && held.Owner == e.Owner {
			return model.Answer{}
		}
		return m.pass(ctx, e)
	})},
	{"a result is altered", on(model.Complete, changed(func(e *model.Event) { e.Outcome.Result += "!" }))},
	{"no result is read as some", on(model.Load, retold(func(e *idempotent.Entry) { e.Result += " " }))},
	{"an unknown outcome is recorded as failed", on(model.Complete, changed(func(e *model.Event) { e.Outcome.Unknown = false }))},
	{"a release frees a finished key", on(model.Release, func(m mutant, ctx context.Context, e model.Event) model.Answer {
		if held := m.held(ctx, e.Key); held.Owner == e.Owner && held.Status == idempotent.Success {
			m.clear(ctx, e.Key)
		}
		return m.pass(ctx, e)
	})},
	{"a release after a take-over frees the key", on(model.Release, func(m mutant, ctx context.Context, e model.Event) model.Answer {
		if held := m.held(ctx, e.Key); held.Owner == e.Owner && held.Claimed != held.Timestamp && held.Status == idempotent.Pending {
			m.clear(ctx, e.Key)
		}
		return m.pass(ctx, e)
	})},
	{"a release is lost", on(model.Release, func(m mutant, ctx context.Context, e model.Event) model.Answer {
		if held := m.held(ctx, e.Key); held.Owner == e.Owner {
			return model.Answer{}
		}
		return m.pass(ctx, e)
	})},
	{"a call that was cancelled is made", func(m mutant, ctx context.Context, e model.Event) model.Answer {
		a := m.pass(context.WithoutCancel(ctx), e)
		if ctx.Err() != nil && !errors.Is(a.Err, idempotent.ErrInvalid) {
			return model.Answer{Err: ctx.Err()}
		}
		return a
	}},
	{"an answer is an old one", func() plant {
		var mu sync.Mutex
		last := map[string]model.Answer{}
		return on(model.Load, func(m mutant, ctx context.Context, e model.Event) model.Answer {
			a := m.pass(ctx, e)
			mu.Lock()
			defer mu.Unlock()
			old, ok := last[e.Key]
			last[e.Key] = a
			if ok {
				return old
			}
			return a
		})
	}()},
}

// Each broken rule is reported, and the store beneath is not.
func TestMutants(t *testing.T) {
	t.Parallel()
	const most = 200
	for _, mu := range mutants {
		t.Run(mu.name, func(t *testing.T) {
			t.Parallel()
			for n := range most {
				if r := bubble(t, rand.Uint64(), 0, 0, mutate(mu.plant)); r.report() != "" {
					t.Logf("reported in round %d", n+1)
					return
				}
			}
			t.Fatalf("not reported in %d rounds", most)
		})
	}
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		for range 30 {
			r := bubble(t, rand.Uint64(), 0, 0, mutate(mutant.pass))
			r.check(t)
			require.NotEmpty(t, r.history)
		}
	})
}
