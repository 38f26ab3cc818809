package sqlstore

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"
)

// How often a statement is sent again that the database has undone because of
// others (a deadlock, a serialization failure, a busy file), and the pauses
// before. The time that SQLite itself waits for a busy file comes on top.
const (
	mostTries  = 10
	retryFirst = 5 * time.Millisecond
	retryMost  = 100 * time.Millisecond
)

// do takes one step on the database.
func do[T any](ctx context.Context, s *Store, op string, f func(querier) (T, error)) (T, error) {
	if err := s.open(ctx); err != nil {
		var none T
		return none, err
	}
	return call(ctx, func() (T, error) {
		for pause, tries := retryFirst, 1; ; pause, tries = min(2*pause, retryMost), tries+1 {
			value, err := f(s.db)
			// Every step may be sent twice, so that it does no harm to take it
			// again from its first statement.
			if err == nil || tries == mostTries || s.dialect.classify(err) != faultRetry || !rest(ctx, jitter(pause)) {
				return value, s.explain(op, err)
			}
		}
	})
}

// call returns what f returns, or ctx's error as soon as ctx ends. Not every
// driver gives up a read that has begun when its context ends: lib/pq first has
// the server tell it that the statement was cancelled. So f gets a goroutine of
// its own where ctx can end. That costs about a microsecond, against tens for
// the round trip.
func call[T any](ctx context.Context, f func() (T, error)) (T, error) {
	if ctx.Done() == nil {
		return f()
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := f()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		if r.err != nil && kind(r.err) == nil {
			// What a driver says of a statement that it gave up is in words of
			// its own.
			r.err = cmp.Or(ended(ctx), r.err)
		}
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// ended returns why ctx has ended, or nil. A driver that has given the deadline
// to its socket may notice the end first, before the timer of the context has
// run.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return nil
}

// rest pauses for d and returns true, or false as soon as ctx ends.
func rest(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// jitter returns between half of d and d, so that those who started together do
// not stay together.
func jitter(d time.Duration) time.Duration { return d - rand.N(d/2+1) }
