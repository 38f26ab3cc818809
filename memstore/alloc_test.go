//go:build !race

package memstore

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What the design rests on; the race detector allocates on its own account.
func TestAllocations(t *testing.T) {
	ctx := context.Background()
	t.Run("P1 replay", func(t *testing.T) {
		for _, background := range []time.Duration{0, time.Minute} {
			s := newStore(t, WithSweepInterval(background))
			finish(t, s, "k", success("r"))
			require.Zero(t, testing.AllocsPerRun(1000, func() { _, _, _ = s.Load(ctx, "k") }), "Load")
			c := claimBy("another")
			require.Zero(t, testing.AllocsPerRun(1000, func() { _, _, _ = s.Claim(ctx, "k", c) }), "Claim")
		}
	})
	t.Run("P2 claim and complete", func(t *testing.T) {
		s := newStore(t)
		keys := names("k", 1001)
		c, o := claimBy("owner"), success("r")
		next := 0
		require.LessOrEqual(t, testing.AllocsPerRun(1000, func() {
			_, _, _ = s.Claim(ctx, keys[next], c)
			_ = s.Complete(ctx, keys[next], "owner", o)
			next++
		}), 4.0)
	})
	t.Run("P3 conflict", func(t *testing.T) {
		s := newStore(t)
		mustClaim(t, s, "k", claimBy("owner"))
		c := claimBy("another")
		require.Zero(t, testing.AllocsPerRun(1000, func() { _, _, _ = s.Claim(ctx, "k", c) }))
	})
}

// P6: what an entry costs beyond its texts and its result, with all that map
// and queue need for it. The target is 300; a slot of the next size class would
// stay below that unseen. It is memory, not time: the same everywhere.
func TestBytesPerEntry(t *testing.T) {
	const entries = 100_000
	held := func() int {
		runtime.GC()
		runtime.GC() // what the first has found in pools and finalizers
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	s := newStore(t, WithMaxEntries(entries))
	keys := benchNames("key:", entries)
	before := held()
	for _, key := range keys {
		mustClaim(t, s, key, benchClaim)
		mustComplete(t, s, key, benchClaim.Owner, benchOutcome)
	}
	all := held() - before
	texts := s.Stats().Bytes - entries*len(benchOutcome.Result) // which is one constant
	require.Equal(t, entries, s.Len())
	require.LessOrEqual(t, (all-texts)/entries, 285, "bytes per entry")
	runtime.KeepAlive(keys)
}
