package waitroom

import (
	"context"
	"sync/atomic"
	"time"
)

// listen starts the listening where there is none and should be.
func (r *Room) listen() {
	if r.Listen == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unlisten != nil || r.ctx.Err() != nil {
		return
	}
	var ctx context.Context
	ctx, r.unlisten = context.WithCancel(r.ctx)
	r.done.Go(func() { r.keepListening(ctx) })
}

// rest ends the listening if still nobody waits.
func (r *Room) rest() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.targets) == 0 && r.unlisten != nil {
		r.unlisten()
		r.unlisten, r.told = nil, false
	}
}

// keepListening listens until ctx ends.
func (r *Room) keepListening(ctx context.Context) {
	var ready atomic.Bool // in this turn
	heard := Heard{
		Ready: func() {
			ready.Store(true)
			r.confirm(ctx, true)
		},
		End: r.wake,
	}
	for pause := listenFirst; ; pause = min(2*pause, listenMost) {
		least := r.Listen(ctx, heard)
		r.confirm(ctx, false)
		if ready.Swap(false) {
			pause = listenFirst
		}
		timer := time.NewTimer(jitter(max(pause, least)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// confirm notes whether ends are heard. Everybody looks again: what ended before
// was not heard, and a store may mark claims only while they are.
func (r *Room) confirm(ctx context.Context, told bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	r.told = told
	for _, t := range r.targets {
		t.look()
	}
}

// wake looks at the key whose end was told, if somebody here waits for it.
func (r *Room) wake(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.targets[name]; t != nil {
		t.look()
	}
}
