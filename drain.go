package idempotent

import (
	"context"
	"fmt"
	"sync"
)

// drain counts what must end before a process may stop: claims being made,
// operations, and bookkeeping. All guards over one store share it.
type drain struct {
	mu      sync.Mutex
	closing bool          // no new claim may begin
	running int           // what has begun and not ended
	idle    chan struct{} // closed when running reaches zero while closing
}

// begin registers a new claim; false while draining.
func (d *drain) begin() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing {
		return false
	}
	d.running++
	return true
}

// fork registers more work of something that has begun and not ended.
func (d *drain) fork() {
	d.mu.Lock()
	d.running++
	d.mu.Unlock()
}

func (d *drain) end() {
	d.mu.Lock()
	d.running--
	if d.running == 0 && d.idle != nil {
		close(d.idle)
		d.idle = nil
	}
	d.mu.Unlock()
}

// close refuses new claims from now on and returns a channel that is closed
// when nothing runs; nil where nothing does already.
func (d *drain) close() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closing = true
	if d.running > 0 && d.idle == nil {
		d.idle = make(chan struct{})
	}
	return d.idle
}

func (d *drain) left() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.running
}

// Drain prepares a guard, and every other one made from it with [Guard.With],
// for the end of the process. From now on new claims are refused with
// [ErrClosed], while recorded outcomes are still replayed. Drain blocks until
// running operations and the bookkeeping after them have ended, or until ctx
// ends: then it returns an error that wraps ctx's and gives the number left.
// It may be called again. Stop in this order: http.Server.Shutdown, Drain, the
// store, its client.
func (g *Guard) Drain(ctx context.Context) error {
	idle := g.drain.close()
	if idle == nil {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
	}
	if left := g.drain.left(); left > 0 {
		return fmt.Errorf("idempotent: drain: %d still running: %w", left, ctx.Err())
	}
	return nil // both at once
}
