//go:build !race

package idempotent

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// P16: a lease that needs no renewal has no timer of its own, no goroutine, and
// no allocation. The lease itself is part of the execution. The race detector
// allocates on its own account.
func TestLease_Allocations(t *testing.T) {
	g := &Guard{settings: settings{lease: time.Hour}, leases: &leaseClock{}}
	const runs = 1000
	executions := make([]execution, runs+1)
	next, goroutines, now := 0, 0, time.Now()
	before := runtime.NumGoroutine()
	require.LessOrEqual(t, testing.AllocsPerRun(runs, func() {
		x := &executions[next]
		next++
		l := &x.lease
		l.g, l.x = g, x
		l.start(now)
		goroutines = max(goroutines, runtime.NumGoroutine())
		l.stop()
	}), 0.0)
	require.LessOrEqual(t, goroutines, before)
}
