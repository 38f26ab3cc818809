package idempotent

import (
	"context"
	"fmt"
	"time"
)

// Janitor sweeps a store at an interval until it is closed. It is made by
// [NewJanitor] and safe for concurrent use.
type Janitor struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// NewJanitor starts one goroutine that sweeps s every interval, first after
// one interval, until [Janitor.Close]. A sweep that fails is simply repeated
// at the next interval: nothing depends on it. NewJanitor panics on a nil
// Sweeper and on an interval below [MinDuration].
func NewJanitor(s Sweeper, interval time.Duration) *Janitor {
	if isNil(s) {
		panic("idempotent: NewJanitor: the Sweeper is nil")
	}
	if interval < MinDuration {
		panic(fmt.Sprintf("idempotent: NewJanitor: the interval is %v; it must be at least %v", interval, MinDuration))
	}
	ctx, cancel := context.WithCancel(context.Background())
	j := &Janitor{cancel: cancel, done: make(chan struct{})}
	go j.run(ctx, s, interval)
	return j
}

// Close stops the sweeping and returns when its goroutine has ended; a sweep
// under way is told to stop through its context. It may be called more than
// once, also concurrently, and always returns nil.
func (j *Janitor) Close() error {
	j.cancel()
	<-j.done
	return nil
}

func (j *Janitor) run(ctx context.Context, s Sweeper, interval time.Duration) {
	defer close(j.done)
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			_, _ = s.Sweep(ctx)
		}
	}
}
