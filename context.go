package idempotent

import (
	"context"
	"sync"
	"time"
)

// lateContext is a context that makes what it needs for its end when somebody
// waits for that end. Most calls of a store in memory and most operations
// never do: for them it costs a part of the call's own memory and no timer.
// Each one serves once, since whoever was given it may keep it.
type lateContext struct {
	parent    context.Context
	detached  bool       // parent gives its values, not its end
	deadline  time.Time  // zero: none beside the parent's
	execution *execution // found under executionKey; nil: the parent's

	mu    sync.Mutex   // guards the fields below
	inner *madeContext // nil until the end matters
	ended bool
	cause error // of the end; nil for context.Canceled
}

// madeContext is the standard context behind a lateContext.
type madeContext struct {
	context.Context
	cancel context.CancelCauseFunc
	stop   context.CancelFunc // frees the timer
}

var _ context.Context = (*lateContext)(nil)

// Deadline returns the earlier one of its own and the parent's.
func (c *lateContext) Deadline() (deadline time.Time, ok bool) {
	if !c.detached {
		deadline, ok = c.parent.Deadline()
	}
	if !c.deadline.IsZero() && (!ok || c.deadline.Before(deadline)) {
		return c.deadline, true
	}
	return deadline, ok
}

// Done returns the channel that is closed at the end.
func (c *lateContext) Done() <-chan struct{} { return c.made().Done() }

// Err returns why the context has ended, or nil.
func (c *lateContext) Err() error {
	c.mu.Lock()
	quiet := c.inner == nil && !c.ended
	c.mu.Unlock()
	if quiet && (c.detached || c.parent.Err() == nil) && (c.deadline.IsZero() || time.Now().Before(c.deadline)) {
		return nil
	}
	// From here on one context says it, so that the answer stays the same.
	return c.made().Err()
}

// Value returns the execution, or what the parent has. Package context finds
// its own contexts this way, as for context.Cause.
func (c *lateContext) Value(key any) any {
	if c.execution != nil && key == (executionKey{}) {
		return c.execution
	}
	c.mu.Lock()
	inner := c.inner
	c.mu.Unlock()
	switch {
	case inner != nil:
		return inner.Value(key)
	case c.detached:
		return context.WithoutCancel(c.parent).Value(key) // does not find the parent's end either
	}
	return c.parent.Value(key)
}

// end ends the context: the first call counts. A nil cause is
// context.Canceled.
func (c *lateContext) end(cause error) {
	c.mu.Lock()
	if !c.ended {
		c.ended, c.cause = true, cause
	}
	inner := c.inner
	c.mu.Unlock()
	if inner != nil {
		inner.end(cause)
	}
}

// made returns the context behind this one.
func (c *lateContext) made() *madeContext {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner != nil {
		return c.inner
	}
	m := &madeContext{Context: c.parent, stop: func() {}}
	if c.detached {
		m.Context = context.WithoutCancel(c.parent)
	}
	m.Context, m.cancel = context.WithCancelCause(m.Context)
	if !c.deadline.IsZero() {
		m.Context, m.stop = context.WithDeadline(m.Context, c.deadline)
	}
	if c.ended {
		m.end(c.cause)
	}
	c.inner = m
	return m
}

func (m *madeContext) end(cause error) {
	m.cancel(cause)
	m.stop()
}
