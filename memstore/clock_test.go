package memstore

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

func TestCoarseClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newClock(true)
		defer c.stop()
		lag := func() time.Duration { return time.Duration(c.now() - c.roughly()) }
		require.Zero(t, lag())
		for range 100 {
			time.Sleep(3 * time.Millisecond)
			require.GreaterOrEqual(t, lag(), time.Duration(0))
			require.LessOrEqual(t, lag(), tick)
		}
		time.Sleep(time.Hour)
		require.EqualValues(t, off, c.coarse.Load(), "it stands still while nobody asks")
		require.Zero(t, lag())
	})
}

// Leases are decided by the exact clock, also where replays are not.
func TestLeasesReadTheRealClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, WithSweepInterval(time.Minute))
		c := claimBy("a")
		c.Lease = time.Millisecond
		finish(t, s, "other", success("r"))
		requireStatus(t, s, idempotent.Success, "other") // sets the coarse clock going
		mustClaim(t, s, "k", c)
		time.Sleep(time.Millisecond - 1)
		requireStatus(t, s, idempotent.Pending, "k")
		time.Sleep(time.Nanosecond)
		requireStatus(t, s, idempotent.Failed, "k")
	})
}
