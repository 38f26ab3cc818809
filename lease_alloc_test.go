//go:build !race

package idempotent

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// P16: a lease that needs no renewal has one timer, no goroutine, and two
// allocations besides itself: the timer, and the function that it calls. The
// race detector allocates on its own account.
func TestLease_Allocations(t *testing.T) {
	g := &Guard{settings: settings{lease: time.Hour}}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	x := &execution{}
	const runs = 1000
	leases := make([]lease, runs+1)
	next, goroutines, now := 0, 0, time.Now()
	before := runtime.NumGoroutine()
	require.LessOrEqual(t, testing.AllocsPerRun(runs, func() {
		l := &leases[next]
		next++
		l.g, l.x, l.ctx, l.cancel = g, x, ctx, cancel
		l.start(now, now)
		goroutines = max(goroutines, runtime.NumGoroutine())
		l.stop()
	}), 2.0)
	require.LessOrEqual(t, goroutines, before)
}
