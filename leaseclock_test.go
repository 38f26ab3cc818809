package idempotent_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/storetest"
)

// One clock serves leases of different lengths, whoever comes and goes
// meanwhile: each is renewed at thirds of its own length, and none after its
// operation has ended.
func TestLeasesOfOneClockAreRenewedEachInItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuardBench(t)
		type renewal struct {
			key string
			at  time.Duration
		}
		began := time.Now()
		renewed := make(chan renewal, 1000)
		b.store.After(storetest.OpRenew, func(_ context.Context, key string) error {
			renewed <- renewal{key, time.Since(began)}
			return nil
		})
		// Begun the longest first, and ended in another order than begun.
		leases := []time.Duration{90, 60, 30, 6, 45, 12, 75, 3}
		ends := []time.Duration{200, 10, 100, 50, 5, 0, 70, 4}
		want := map[renewal]bool{}
		for i, seconds := range leases {
			key, lease, end := fmt.Sprint("k", i), seconds*time.Second, ends[i]*time.Second+time.Millisecond
			g := b.With(idempotent.WithLease(lease))
			go func() {
				_, _, _ = g.Run(t.Context(), key, func(context.Context) (idempotent.Class, string) {
					time.Sleep(end)
					return idempotent.ClassSuccess, ""
				})
			}()
			synctest.Wait()
			for at := lease / 3; at < end; at += lease / 3 {
				want[renewal{key, at}] = true
			}
		}
		time.Sleep(2 * time.Millisecond)
		require.Equal(t, len(leases)-1, b.Leases(), "one has ended")
		time.Sleep(time.Hour)
		require.Zero(t, b.Leases(), "a lease leaves with its operation")
		close(renewed)
		got := map[renewal]bool{}
		for r := range renewed {
			require.False(t, got[r], "renewed twice: %v", r)
			got[r] = true
		}
		require.Equal(t, want, got)
	})
}
