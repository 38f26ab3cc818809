package idempotent

import (
	"context"
	"errors"
	"time"
)

// execute runs a claimed operation and settles what becomes of it.
func (g *Guard) execute(ctx context.Context, e Entry, sent time.Time, c *call, op work) (rec Record) {
	x := op.execution()
	x.Execution = Execution{Key: e.Key, Owner: e.Owner, Trace: e.Trace, Fence: e.Fence}
	x.begin(ctx, c.detached)
	x.lease.g, x.lease.x = g, x
	began := time.Now()
	x.lease.start(sent)

	var class Class
	var result string
	returned := false
	// Nothing is recovered here: a panic or a runtime.Goexit goes on with its
	// own stack, after the outcome is recorded.
	defer func() {
		end := x.lease.stop()
		class = settledClass(class, x.conclude(), returned)
		x.ctx.end(nil)
		rec = Record{Class: class, Result: result, Claimed: e.Claimed, Completed: time.Now()}
		g.settle(settlement{
			x: x, class: class, outcome: g.outcome(class, result, c.fingerprint),
			took: rec.Completed.Sub(began), ended: rec.Completed, end: end, told: x.lease.lost,
		})
	}()
	class, result = op.do(&x.ctx)
	returned = true
	return rec
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
	ended   time.Time     // when it returned
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
func (g *Guard) settle(s settlement) {
	goesOn := false
	defer func() { // also on a panic, of the store or of an observer
		if !goesOn {
			g.drain.end()
		}
	}()
	err := g.settleOnce(&s.x.settling, &s, s.ended, g.storeTimeout)
	if g.settled(&s, err) {
		return
	}
	goesOn = true
	go g.settleLater(s, err)
}

// settleLater goes on where the first attempt has failed with err.
func (g *Guard) settleLater(s settlement, err error) {
	defer g.drain.end()
	now := time.Now()
	if !now.Before(s.end) {
		// The lease ended under the operation, which went on because nobody
		// else could run. Its outcome deserves as many attempts as another's.
		s.end = now.Add(g.lease)
	}
	for pause := settleFirst; ; pause = min(2*pause, settleMost) {
		left := time.Until(s.end)
		if left <= 0 {
			g.unsettled(&s, err)
			return
		}
		time.Sleep(min(jitter(pause), left))
		if left = time.Until(s.end); left <= 0 {
			continue
		}
		err = g.settleOnce(new(lateContext), &s, time.Now(), min(g.storeTimeout, left))
		if g.settled(&s, err) {
			return
		}
	}
}

func (g *Guard) settleOnce(bounded *lateContext, s *settlement, now time.Time, timeout time.Duration) error {
	if s.class == ClassRelease {
		return g.stepIn(&s.x.after, bounded, "release", s.x.Key, now, timeout, func(ctx context.Context) error {
			return g.store.Release(ctx, s.x.Key, s.x.Owner)
		})
	}
	return g.stepIn(&s.x.after, bounded, "complete", s.x.Key, now, timeout, func(ctx context.Context) error {
		return g.store.Complete(ctx, s.x.Key, s.x.Owner, s.outcome)
	})
}

// settled reports whether the store has decided, and tells of it.
func (g *Guard) settled(s *settlement, err error) bool {
	switch {
	case err == nil && s.class == ClassRelease:
		g.log.tell(&s.x.after, s.event(EventReleased, nil))
	case err == nil:
		g.log.tell(&s.x.after, s.event(EventCompleted, nil))
	case errors.Is(err, ErrReleased): // nothing of the operation stands either
		s.class = ClassRelease
		g.log.tell(&s.x.after, s.event(EventReleased, err))
	case !definite(err), errors.Is(err, ErrFull):
		return false // a full store may have room for the next attempt
	default:
		if errors.Is(err, ErrLost) && !s.told {
			g.log.tell(&s.x.after, s.event(EventLost, err))
		}
		g.unsettled(s, err)
	}
	return true
}

// unsettled tells that an outcome will never be recorded. The key then reads
// as what the store has, an abandoned claim at worst.
func (g *Guard) unsettled(s *settlement, err error) {
	g.log.tell(&s.x.after, s.event(EventNotRecorded, err))
}

func (s *settlement) event(kind EventKind, err error) Event {
	e := Event{Kind: kind, Key: s.x.Key, Owner: s.x.Owner, Trace: s.x.Trace, Took: s.took, Err: err}
	if s.class != ClassRelease {
		e.Status, e.Unknown = s.outcome.Status, s.outcome.Unknown
	}
	return e
}
