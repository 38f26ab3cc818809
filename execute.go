package idempotent

import (
	"context"
	"errors"
	"time"
)

// execute runs a claimed operation and settles what becomes of it.
func (g *Guard) execute(ctx context.Context, e Entry, sent time.Time, c *call, op func(context.Context) (Class, string)) (rec Record) {
	x := &execution{Execution: Execution{Key: e.Key, Owner: e.Owner, Trace: e.Trace, Fence: e.Fence}}
	if c.detached {
		var end context.CancelFunc
		ctx, end = detach(ctx)
		defer end()
	}
	opCtx, cancel := context.WithCancelCause(context.WithValue(ctx, executionKey{}, x))
	l := &lease{g: g, x: x, ctx: context.WithoutCancel(opCtx), cancel: cancel}
	began := time.Now()
	l.start(sent, began)

	var class Class
	var result string
	returned := false
	// Nothing is recovered here: a panic or a runtime.Goexit goes on with its
	// own stack, after the outcome is recorded.
	defer func() {
		end := l.stop()
		class = settledClass(class, x.conclude(), returned)
		cancel(nil)
		rec = Record{Class: class, Result: result, Claimed: e.Claimed, Completed: time.Now()}
		g.settle(l.ctx, settlement{
			x: x, class: class, outcome: g.outcome(class, result, c.fingerprint),
			took: rec.Completed.Sub(began), end: end, told: l.lost,
		})
	}()
	class, result = op(opCtx)
	returned = true
	return rec
}

// detach returns a context with ctx's values and deadline, but not its
// cancellation.
func detach(ctx context.Context) (context.Context, context.CancelFunc) {
	detached := context.WithoutCancel(ctx)
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithDeadline(detached, deadline)
	}
	return detached, func() {}
}

// settledClass is the one place that weighs how an operation ended: a panic
// beats what it said, which beats what it returned.
func settledClass(answered, said Class, returned bool) Class {
	switch {
	case !returned:
		return ClassUnknown
	case said != ClassDefault:
		return said
	case answered == ClassDefault:
		return ClassSuccess
	case answered < ClassDefault || answered > ClassRelease:
		return ClassUnknown // nonsense: in doubt, it may have happened
	}
	return answered
}

// settlement is the bookkeeping after one operation.
type settlement struct {
	x       *execution
	class   Class
	outcome Outcome
	took    time.Duration // of the operation alone
	end     time.Time     // until when the claim stands
	told    bool          // the operation has learnt that its claim is lost
}

// The pauses between two attempts to settle.
const (
	settleFirst = 50 * time.Millisecond
	settleMost  = 2 * time.Second
)

// settle records an outcome or frees the key: once before it returns, so that
// what a caller is answered is on record, and in the background until the
// lease ends where the store fails. It takes over the registration with drain.
func (g *Guard) settle(ctx context.Context, s settlement) {
	goesOn := false
	defer func() { // also on a panic, of the store or of an observer
		if !goesOn {
			g.drain.end()
		}
	}()
	err := g.settleOnce(ctx, s, g.storeTimeout)
	if g.settled(ctx, s, err) {
		return
	}
	now := time.Now()
	if !now.Before(s.end) {
		// The lease ended under the operation, which went on because nobody
		// else could run. Its outcome deserves as many attempts as another's.
		s.end = now.Add(g.lease)
	}
	goesOn = true
	go func() {
		defer g.drain.end()
		for pause := settleFirst; ; pause = min(2*pause, settleMost) {
			left := time.Until(s.end)
			if left <= 0 {
				g.unsettled(ctx, s, err)
				return
			}
			_ = sleep(ctx, min(jitter(pause), left)) // ctx never ends
			if left = time.Until(s.end); left <= 0 {
				continue
			}
			err = g.settleOnce(ctx, s, min(g.storeTimeout, left))
			if g.settled(ctx, s, err) {
				return
			}
		}
	}()
}

func (g *Guard) settleOnce(ctx context.Context, s settlement, timeout time.Duration) error {
	if s.class == ClassRelease {
		return g.step(ctx, "release", s.x.Key, timeout, func(ctx context.Context) error {
			return g.store.Release(ctx, s.x.Key, s.x.Owner)
		})
	}
	return g.step(ctx, "complete", s.x.Key, timeout, func(ctx context.Context) error {
		return g.store.Complete(ctx, s.x.Key, s.x.Owner, s.outcome)
	})
}

// settled reports whether the store has decided, and tells of it.
func (g *Guard) settled(ctx context.Context, s settlement, err error) bool {
	switch {
	case err == nil && s.class == ClassRelease:
		g.log.tell(ctx, s.event(EventReleased, nil))
	case err == nil:
		g.log.tell(ctx, s.event(EventCompleted, nil))
	case !definite(err), errors.Is(err, ErrFull):
		return false // a full store may have room for the next attempt
	default:
		if errors.Is(err, ErrLost) && !s.told {
			g.log.tell(ctx, s.event(EventLost, err))
		}
		g.unsettled(ctx, s, err)
	}
	return true
}

// unsettled tells that an outcome will never be recorded. The key then reads
// as what the store has, an abandoned claim at worst.
func (g *Guard) unsettled(ctx context.Context, s settlement, err error) {
	g.log.tell(ctx, s.event(EventNotRecorded, err))
}

func (s *settlement) event(kind EventKind, err error) Event {
	e := Event{Kind: kind, Key: s.x.Key, Owner: s.x.Owner, Trace: s.x.Trace, Took: s.took, Err: err}
	if s.class != ClassRelease {
		e.Status, e.Unknown = s.outcome.Status, s.outcome.Unknown
	}
	return e
}
