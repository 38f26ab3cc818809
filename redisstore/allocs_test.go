//go:build !race

package redisstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What a step allocates in the client, go-redis and the name of a fresh key
// included. The ceilings hold what
// has been reached; the race detector allocates for itself.
func TestAllocations(t *testing.T) {
	// Not parallel: everything in the process is counted.
	s, client, prefix := onServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	t.Cleanup(cancel)
	ceilings := map[string]float64{"fresh": 32, "replay": 14}
	for _, step := range benchSteps(t, s, client, prefix) {
		ceiling, counted := ceilings[step.name]
		if !counted {
			continue
		}
		got := testing.AllocsPerRun(200, func() {
			if err := step.f(ctx); err != nil {
				t.Fatal(err)
			}
		})
		t.Logf("%s: %v allocations", step.name, got)
		require.LessOrEqual(t, got, ceiling, step.name)
	}
}
