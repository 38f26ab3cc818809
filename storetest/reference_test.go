package storetest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/model"
)

// step decides one call; that of a good store is [model.State.Step].
type step func(s model.State, now time.Time, e model.Event) (model.State, model.Answer)

// reference is the simplest store that keeps the contract: a mutex around the
// model. Its first fields are the places in which tests plant faults.
type reference struct {
	step    step
	clock   func() time.Time
	context func(ctx context.Context) error // what ends a call before the decision
	name    func(key string) string         // under which a key is stored
	keep    func(text string) string        // what is stored of an owner, a fingerprint and a trace
	sweep   func(s model.State, now time.Time, counted bool) (model.State, idempotent.Swept)
	refuse  func(op model.Op, damage error) error // the answer to a call on a damaged entry; nil: go on
	split   func(changed bool) error              // look and store are two steps; an error gives up; nil: one step

	mu      sync.Mutex // guards all below
	states  map[string]model.State
	counted map[string]bool // abandoned claims that a sweep has reported
	damaged map[string]error
}

func newReference() *reference {
	return &reference{
		step:    model.State.Step,
		clock:   time.Now,
		context: func(ctx context.Context) error { return ctx.Err() },
		name:    strings.Clone,
		keep:    strings.Clone,
		sweep:   sweepOne,
		refuse:  func(_ model.Op, damage error) error { return damage },
		states:  make(map[string]model.State),
		counted: make(map[string]bool),
		damaged: make(map[string]error),
	}
}

// sweepOne is what a sweep does to one key, whose abandoned claim it may have
// counted before.
func sweepOne(s model.State, now time.Time, counted bool) (model.State, idempotent.Swept) {
	pending := s.Entry.Status == idempotent.Pending
	switch {
	case s.Entry.Status == "":
	case s.Gone(now) && pending:
		return model.State{Fence: s.Fence}, idempotent.Swept{}
	case s.Gone(now):
		return model.State{Fence: s.Fence}, idempotent.Swept{Expired: 1}
	case pending && s.Read(now).Unknown && !counted:
		return s, idempotent.Swept{Abandoned: 1}
	}
	return s, idempotent.Swept{}
}

func (r *reference) do(ctx context.Context, e model.Event) model.Answer {
	// Invalid arguments are found in any state, and before the context's end.
	if _, a := r.step(model.State{}, r.clock(), e); errors.Is(a.Err, idempotent.ErrInvalid) {
		return a
	}
	if err := r.context(ctx); err != nil {
		return model.Answer{Err: err}
	}
	name := r.name(e.Key)
	r.mu.Lock()
	defer r.mu.Unlock()
	if damage := r.damaged[name]; damage != nil && e.Op != model.Delete {
		if err := r.refuse(e.Op, damage); err != nil {
			return model.Answer{Err: err}
		}
	}
	before := r.states[name]
	if r.split != nil {
		r.mu.Unlock()
		time.Sleep(time.Nanosecond) // everybody looks before anybody stores
		r.mu.Lock()
		if err := r.split(r.states[name] != before); err != nil {
			return model.Answer{Err: err}
		}
	}
	e.Key, e.Owner = strings.Clone(e.Key), r.keep(e.Owner)
	e.Claim.Owner, e.Claim.Trace = r.keep(e.Claim.Owner), r.keep(e.Claim.Trace)
	e.Claim.Fingerprint, e.Outcome.Fingerprint = r.keep(e.Claim.Fingerprint), r.keep(e.Outcome.Fingerprint)
	after, answer := r.step(before, r.clock(), e)
	r.states[name] = after
	if after.Entry.Status != idempotent.Pending || e.Op == model.Claim && answer.OK {
		delete(r.counted, name)
	}
	if e.Op == model.Delete {
		delete(r.damaged, name)
	}
	return answer
}

func (r *reference) Load(ctx context.Context, key string) (idempotent.Entry, bool, error) {
	a := r.do(ctx, model.Event{Op: model.Load, Key: key})
	return a.Entry, a.OK, a.Err
}

func (r *reference) Claim(ctx context.Context, key string, c idempotent.Claim) (idempotent.Entry, bool, error) {
	a := r.do(ctx, model.Event{Op: model.Claim, Key: key, Claim: c})
	return a.Entry, a.OK, a.Err
}

func (r *reference) Renew(ctx context.Context, key, owner string, lease time.Duration) error {
	return r.do(ctx, model.Event{Op: model.Renew, Key: key, Owner: owner, Lease: lease}).Err
}

func (r *reference) Complete(ctx context.Context, key, owner string, o idempotent.Outcome) error {
	return r.do(ctx, model.Event{Op: model.Complete, Key: key, Owner: owner, Outcome: o}).Err
}

func (r *reference) Release(ctx context.Context, key, owner string) error {
	return r.do(ctx, model.Event{Op: model.Release, Key: key, Owner: owner}).Err
}

func (r *reference) Delete(ctx context.Context, key string) error {
	return r.do(ctx, model.Event{Op: model.Delete, Key: key}).Err
}

func (r *reference) Sweep(ctx context.Context) (swept idempotent.Swept, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, s := range r.states {
		after, n := r.sweep(s, r.clock(), r.counted[name])
		r.states[name] = after
		r.counted[name] = r.counted[name] || n.Abandoned > 0
		swept.Expired += n.Expired
		swept.Abandoned += n.Abandoned
	}
	return swept, ctx.Err()
}

// List goes by the names in their order; a cursor is "after " and the last name.
func (r *reference) List(ctx context.Context, q idempotent.ListQuery) (page idempotent.Page, err error) {
	size, err := q.Size()
	after, ok := strings.CutPrefix(q.Cursor, "after ")
	if err != nil || !ok && q.Cursor != "" {
		return page, errors.Join(idempotent.ErrInvalid, err)
	}
	if err := r.context(ctx); err != nil {
		return page, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(r.states)) {
		if name <= after || !strings.HasPrefix(name, q.Prefix) {
			continue
		}
		if len(page.Entries)+len(page.Corrupt) == size {
			page.Next = "after " + after
			break
		}
		after = name
		if r.damaged[name] != nil {
			page.Corrupt = append(page.Corrupt, name)
		} else if e := r.states[name].Read(r.clock()); e.Status != "" {
			e.Result = ""
			page.Entries = append(page.Entries, e)
		}
	}
	return page, nil
}

func (r *reference) corrupt(key string, c Corruption) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.damaged[r.name(key)] = idempotent.ErrCorrupt
	if c == Newer {
		r.damaged[r.name(key)] = idempotent.ErrNewerFormat
	}
	return nil
}

func (r *reference) harness() Harness { return Harness{Store: r, Corrupt: r.corrupt} }
