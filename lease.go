package idempotent

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"
)

const (
	// renewals is how many renewals fit into one lease, so that one may fail
	// without harm.
	renewals = 3
	// longRunning is how many leases an operation runs before it is reported,
	// and again before each further report.
	longRunning = 10
)

// lease keeps one claim alive while its operation runs. It costs a place in the
// leaseClock; a goroutine exists only while a renewal is being sent.
type lease struct {
	g     *Guard
	x     *execution
	began time.Time // when the claim was sent

	due   time.Time // when the clock wakes it; guarded by the clock
	place int       // in the clock's queue, from 1; 0: not there; guarded by the clock

	mu      sync.Mutex // guards the fields below
	end     time.Time  // until then the claim stands for certain
	report  time.Time  // when the operation has run for long (again)
	abort   context.CancelFunc
	lost    bool // the operation has been told
	stopped bool
}

// start begins to renew a claim that was sent at sent: a claim's lease runs
// from a moment after that, so counting from it errs on the safe side.
func (l *lease) start(sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.began = sent
	l.end = sent.Add(l.g.lease)
	l.report = sent.Add(l.long())
	l.g.leases.set(l, sent.Add(l.g.lease/renewals))
}

// stop ends the renewals and returns until when the claim stands. A renewal
// that is under way is aborted; should it arrive all the same, the contract
// makes it harmless.
func (l *lease) stop() (end time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	l.g.leases.drop(l)
	if l.abort != nil {
		l.abort()
	}
	return l.end
}

// long is after how much time an operation is reported.
func (l *lease) long() time.Duration {
	return longRunning * min(l.g.lease, math.MaxInt64/longRunning)
}

// limit is when the operation must end because somebody else may run: at the
// end of the lease where take-over is allowed, otherwise when the abandoned
// claim is forgotten.
func (l *lease) limit() time.Time {
	if l.g.takeOver {
		return l.end
	}
	return l.end.Add(l.g.successRetention)
}

// tick runs in a goroutine of its own and sends one renewal.
func (l *lease) tick() {
	l.mu.Lock()
	if l.stopped || l.lost {
		l.mu.Unlock()
		return
	}
	// The operation is still registered: after it, too, a store is in use
	// until its last renewal has ended.
	l.g.drain.fork()
	defer l.g.drain.end()
	now := time.Now()
	left := l.limit().Sub(now)
	if left <= 0 {
		l.lose(errUnrenewed)
		return
	}
	long := !now.Before(l.report)
	if long {
		l.report = now.Add(l.long())
	}
	// Should the store not obey the context, another tick finds that out.
	l.g.leases.set(l, now.Add(left))
	ctx, abort := context.WithCancel(&l.x.after)
	l.abort = abort
	l.mu.Unlock()
	defer abort()

	if long {
		l.tell(EventLongRunning, nil)
	}
	// A reply that is lost must leave time for another attempt.
	err := l.g.step(ctx, "renew", l.x.Key, min(l.g.storeTimeout, l.g.lease/renewals), func(ctx context.Context) error {
		return l.g.store.Renew(ctx, l.x.Key, l.x.Owner, l.g.lease)
	})

	l.mu.Lock()
	if l.stopped || l.lost {
		l.mu.Unlock()
		return
	}
	var next time.Time
	switch {
	case err == nil:
		l.end = now.Add(l.g.lease)
		next = now.Add(l.g.lease / renewals)
	case errors.Is(err, ErrLost):
		l.lose(err)
		return
	default:
		next = time.Now().Add(jitter(l.g.lease / 10))
		if limit := l.limit(); limit.Before(next) {
			next = limit
		}
	}
	l.g.leases.set(l, next)
	l.mu.Unlock()
}

var errUnrenewed = errors.New("idempotent: the lease ended without a renewal")

// lose tells the operation that its claim is gone. It is called with the lock
// held, at most once, and gives it back.
func (l *lease) lose(why error) {
	l.lost = true
	l.mu.Unlock()
	l.x.ctx.end(ErrLost)
	l.tell(EventLost, why)
}

func (l *lease) tell(kind EventKind, err error) {
	l.g.log.tell(&l.x.after, Event{Kind: kind, Key: l.x.Key, Owner: l.x.Owner, Trace: l.x.Trace, Status: Pending, Age: time.Since(l.began), Err: err})
}
