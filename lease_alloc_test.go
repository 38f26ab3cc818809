//go:build !race

package idempotent

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// P16: a lease that needs no renewal has one timer, no goroutine, and two
// allocations: the timer, and the function that it calls. The lease itself is
// part of the execution. The race detector allocates on its own account.
func TestLease_Allocations(t *testing.T) {
	g := &Guard{settings: settings{lease: time.Hour}}
	const runs = 1000
	executions := make([]execution, runs+1)
	next, goroutines, now := 0, 0, time.Now()
	before := runtime.NumGoroutine()
	require.LessOrEqual(t, testing.AllocsPerRun(runs, func() {
		x := &executions[next]
		next++
		l := &x.lease
		l.g, l.x = g, x
		l.start(now, now)
		goroutines = max(goroutines, runtime.NumGoroutine())
		l.stop()
	}), 2.0)
	require.LessOrEqual(t, goroutines, before)
}
