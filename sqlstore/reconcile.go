package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idempotent-go/idempotent"
)

// AskFunc finds out what became of an operation, such as by asking a payment
// provider for the payment with this key. It returns
//
//	ClassSuccess   it happened: result is what repeats are answered with
//	ClassFailure   it definitely did not happen, and repeats are told so
//	ClassRelease   it did not happen: the key is free, and the next call runs
//	ClassDefault   nobody knows yet: ask again later
//
// and is asked again later too where it returns ClassUnknown or an error,
// whatever the class. Result is encoded as [idempotent.Guard.Resolve] says.
//
// Of an abandoned claim the process may still be alive, cut off from the
// database. "No such payment" may then mean "not yet": return a failure or a
// release only of what can no longer happen.
type AskFunc func(ctx context.Context, u Unknown) (c idempotent.Class, result string, err error)

// Defaults of [Reconcile].
const (
	DefaultReconcileAge   = 10 * time.Minute
	DefaultReconcileFirst = 10 * time.Second
	DefaultReconcileMost  = time.Hour
)

// ReconcileOption changes a setting of [Reconcile].
type ReconcileOption func(*reconciler)

// WithReconcileAge sets how long ago the lease of an abandoned claim must have
// ended before anybody is asked about it; the default is [DefaultReconcileAge].
// It should be longer than any operation takes: until then an owner who comes
// late settles the truth by himself. 0 asks at once. An outcome recorded as
// unknown has no age to wait for. It panics on a negative d.
func WithReconcileAge(d time.Duration) ReconcileOption {
	if d < 0 {
		panic(fmt.Sprintf("sqlstore: WithReconcileAge: %v is negative", d))
	}
	return func(r *reconciler) { r.age = d }
}

// WithReconcilePauses sets the pauses. First is that between two readings of the
// view, and before the second question about one outcome; both double up to most
// while the database fails, or while there is no answer. The defaults are
// [DefaultReconcileFirst] and [DefaultReconcileMost]; each pause carries 50 %
// jitter. It panics where first is not positive or most is less.
func WithReconcilePauses(first, most time.Duration) ReconcileOption {
	if first <= 0 || most < first {
		panic(fmt.Sprintf("sqlstore: WithReconcilePauses: %v and %v are no growing pauses", first, most))
	}
	return func(r *reconciler) { r.first, r.most = first, most }
}

// WithReconcileErrors has f told of every error after which [Reconcile] goes on:
// of the view, with a zero Unknown; of a question; and of a settlement. It is
// called from Reconcile's goroutine. By default nobody is told; settlements and
// failures of the store in them reach the guard's observer and log besides. It
// panics on a nil f.
func WithReconcileErrors(f func(ctx context.Context, u Unknown, err error)) ReconcileOption {
	if f == nil {
		panic("sqlstore: WithReconcileErrors: the function is nil")
	}
	return func(r *reconciler) { r.told = f }
}

// Reconcile settles unknown outcomes until ctx ends: it reads [Store.Unknowns],
// asks what became of each, one after the other, and settles what is answered by
// [idempotent.Guard.Resolve]. What has no answer is asked about again after a
// pause that doubles each time. Nothing is ever settled on an error.
//
// Several processes may run it on one table: a settlement compares the owner, so
// that the first answer stands, and an execution that has begun since is never
// touched. Each asks by itself, though.
//
// The guard is one over s, or over a store that ends in s. Reconcile blocks, and
// returns ctx's error, or [idempotent.ErrClosed] where s is closed. It remembers
// what it waits with: some hundred bytes and the key for each outcome that is
// still unknown. A panic of ask is not caught, and settles nothing. Reconcile
// panics on a nil argument.
func Reconcile(ctx context.Context, s *Store, g *idempotent.Guard, ask AskFunc, opts ...ReconcileOption) error {
	if s == nil || g == nil || ask == nil {
		panic("sqlstore: Reconcile: the store, the guard or the function is nil")
	}
	r := &reconciler{
		store: s, guard: g, ask: ask,
		age: DefaultReconcileAge, first: DefaultReconcileFirst, most: DefaultReconcileMost,
		told:    func(context.Context, Unknown, error) {},
		waiting: map[outcomeID]*question{},
	}
	for _, opt := range opts {
		opt(r)
	}
	for pause := r.first; ; {
		err := r.round(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, idempotent.ErrClosed):
			return err
		case err != nil:
			r.told(ctx, Unknown{}, err)
			pause = min(2*pause, r.most)
		default:
			pause = r.first
		}
		if !rest(ctx, jitter(pause)) {
			return ctx.Err()
		}
	}
}

// reconciler is one run of Reconcile.
type reconciler struct {
	store       *Store
	guard       *idempotent.Guard
	ask         AskFunc
	age         time.Duration
	first, most time.Duration
	told        func(context.Context, Unknown, error)

	rounds  int
	waiting map[outcomeID]*question
}

// outcomeID names an unknown outcome. A key has another owner with every claim.
type outcomeID struct{ key, owner string }

// question is one that was asked and not answered.
type question struct {
	pause time.Duration
	next  time.Time
	round int // that has last seen the outcome
}

// round looks at every unknown outcome once.
func (r *reconciler) round(ctx context.Context) error {
	r.rounds++
	for u, err := range r.store.Unknowns(ctx) {
		if err != nil {
			return err
		}
		if u.Abandoned && u.Ago < r.age {
			continue
		}
		id := outcomeID{u.Key, u.Owner}
		q := r.waiting[id]
		if q != nil {
			q.round = r.rounds
			if time.Now().Before(q.next) {
				continue
			}
		}
		settled := r.settle(ctx, u)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if settled {
			delete(r.waiting, id)
			continue
		}
		if q == nil {
			q = &question{pause: r.first, round: r.rounds}
			r.waiting[id] = q
		} else {
			q.pause = min(2*q.pause, r.most)
		}
		q.next = time.Now().Add(jitter(q.pause))
	}
	for id, q := range r.waiting {
		if q.round != r.rounds { // settled by somebody else, or forgotten
			delete(r.waiting, id)
		}
	}
	return nil
}

// settle asks what became of u, and reports whether nothing is left to be asked.
func (r *reconciler) settle(ctx context.Context, u Unknown) bool {
	c, result, err := r.ask(ctx, u)
	if err == nil && (c == idempotent.ClassDefault || c == idempotent.ClassUnknown) {
		return false
	}
	if err == nil {
		err = r.guard.Resolve(ctx, u.Key, u.Owner, c, result)
	} else {
		err = fmt.Errorf("sqlstore: Reconcile: ask: %w", err)
	}
	var running *idempotent.InFlightError
	switch {
	case err == nil:
		return true
	case errors.Is(err, idempotent.ErrLost), errors.As(err, &running):
		// Somebody else has settled it, or taken the key over.
		return true
	case ctx.Err() == nil:
		r.told(ctx, u, err)
	}
	return false
}
