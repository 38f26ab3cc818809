//go:build !race

package idempotent_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

// A replay from near allocates as little as one from the memory store itself.
func TestTiered_ReplayAllocatesNothing(t *testing.T) {
	b := newTier(t, tierMem(t))
	near := tierMem(t)
	store := idempotent.Tiered(near, b.far)
	b.store = store
	b.finish("k", tierOutcome)
	b.load("k")
	ctx, another := t.Context(), tierClaim
	another.Owner = "another"
	require.Zero(t, testing.AllocsPerRun(1000, func() { _, _, _ = store.Load(ctx, "k") }))
	require.Zero(t, testing.AllocsPerRun(1000, func() { _, _, _ = store.Claim(ctx, "k", another) }))
}
