package idempotent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

type lateTestKey struct{}

var errLateTest = errors.New("cause")

// Whatever is asked, and in whatever order, a lateContext answers as the
// contexts of package context that it stands for.
func TestLateContext_IsLikeTheStandardOnes(t *testing.T) {
	parents := map[string]func() (context.Context, func()){
		"background": func() (context.Context, func()) { return context.Background(), func() {} },
		"cancelled later": func() (context.Context, func()) {
			ctx, cancel := context.WithCancelCause(context.WithValue(context.Background(), lateTestKey{}, "v"))
			return ctx, func() { cancel(errLateTest) }
		},
		"cancelled already": func() (context.Context, func()) {
			ctx, cancel := context.WithCancelCause(context.Background())
			cancel(errLateTest)
			return ctx, func() {}
		},
		"short deadline": func() (context.Context, func()) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			return ctx, cancel
		},
		"long deadline": func() (context.Context, func()) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
			return ctx, cancel
		},
	}
	// What happens between the looks.
	events := map[string]func(end func(error), endParent func()){
		"nothing":         func(func(error), func()) {},
		"end":             func(end func(error), _ func()) { end(nil) },
		"end for a cause": func(end func(error), _ func()) { end(ErrLost); end(nil) },
		"end of parent":   func(_ func(error), endParent func()) { endParent() },
		"time":            func(func(error), func()) { time.Sleep(time.Minute); synctest.Wait() },
		"time, then end":  func(end func(error), _ func()) { time.Sleep(time.Minute); synctest.Wait(); end(ErrLost) },
		"parent and end":  func(end func(error), endParent func()) { endParent(); end(ErrLost) },
	}
	type looks struct {
		err, cause     error
		value          any
		done           bool
		deadline       time.Time
		hasDeadline    bool
		child, afterOK bool
	}
	// Which of the methods are used first decides what exists when.
	orders := map[string]func(ctx context.Context, l *looks){
		"err":   func(ctx context.Context, l *looks) { l.err = ctx.Err() },
		"cause": func(ctx context.Context, l *looks) { l.cause = context.Cause(ctx) },
		"value": func(ctx context.Context, l *looks) { l.value = ctx.Value(lateTestKey{}) },
		"done": func(ctx context.Context, l *looks) {
			select {
			case <-ctx.Done():
				l.done = true
			default:
			}
		},
		"child": func(ctx context.Context, l *looks) {
			child, cancel := context.WithCancel(ctx)
			defer cancel()
			l.child = child.Err() != nil
		},
		"after": func(ctx context.Context, l *looks) {
			stop := context.AfterFunc(ctx, func() {})
			l.afterOK = stop()
		},
		"deadline": func(ctx context.Context, l *looks) { l.deadline, l.hasDeadline = ctx.Deadline() },
	}
	for parentName, parent := range parents {
		for _, detached := range []bool{false, true} {
			for _, timeout := range []time.Duration{0, time.Second, 90 * time.Second} {
				for eventName, event := range events {
					for first, early := range orders {
						synctest.Test(t, func(t *testing.T) {
							look := func(late bool) (before, after looks) {
								p, endParent := parent()
								var ctx context.Context
								var end func(error)
								var stop context.CancelFunc = func() {}
								if late {
									c := &lateContext{parent: p, detached: detached}
									if timeout > 0 {
										c.deadline = time.Now().Add(timeout)
									}
									ctx, end = c, c.end
								} else {
									if detached {
										p = context.WithoutCancel(p)
									}
									c, cancel := context.WithCancelCause(p)
									ctx, end = c, cancel
									if timeout > 0 {
										ctx, stop = context.WithTimeout(c, timeout)
									}
								}
								early(ctx, &before)
								event(end, endParent)
								early(ctx, &after) // this one first
								for _, ask := range orders {
									ask(ctx, &after)
								}
								end(nil)
								stop()
								endParent()
								return before, after
							}
							start := time.Now()
							wantBefore, wantAfter := look(false)
							took := time.Since(start)
							gotBefore, gotAfter := look(true)
							gotBefore.deadline, gotAfter.deadline = lateTestShift(gotBefore.deadline, took), lateTestShift(gotAfter.deadline, took)
							require.Equal(t, wantBefore, gotBefore, "%s, detached %v, %v, %s, first %s", parentName, detached, timeout, eventName, first)
							require.Equal(t, wantAfter, gotAfter, "%s, detached %v, %v, %s, first %s", parentName, detached, timeout, eventName, first)
						})
					}
				}
			}
		}
	}
}

// lateTestShift makes the deadlines of two looks one after the other equal.
func lateTestShift(t time.Time, by time.Duration) time.Time {
	if t.IsZero() {
		return t
	}
	return t.Add(-by)
}

// Those who wait are told, in whatever order waiting and end come.
func TestLateContext_WakesThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &lateContext{parent: t.Context()}
		child := &lateContext{parent: c}
		grandchild, cancel := context.WithCancel(child)
		defer cancel()
		detached := &lateContext{parent: child, detached: true}
		_ = detached.Done()
		for range 3 {
			go func() { <-child.Done() }()
			go func() { _ = child.Err(); <-c.Done() }()
		}
		c.end(ErrLost)
		<-grandchild.Done()
		require.Equal(t, ErrLost, context.Cause(grandchild))
		require.Equal(t, context.Canceled, child.Err())
		require.NoError(t, detached.Err())
		require.NoError(t, context.Cause(detached))
		detached.end(nil)
	})
}

// Neither the call of a store nor an operation pays for an end that nobody
// waits for.
func TestLateContext_CostsNothingWhereNobodyWaits(t *testing.T) {
	ctx := context.WithValue(t.Context(), lateTestKey{}, "v")
	room := make([]lateContext, 1001)
	i := 0
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		c := &room[i]
		i++
		c.parent, c.deadline = ctx, time.Now().Add(time.Hour)
		if c.Err() != nil || c.Value(lateTestKey{}) != "v" {
			t.Error("not the parent's")
		}
		c.end(nil)
	}))
}
