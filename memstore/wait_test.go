package memstore

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

type waited struct {
	entry idempotent.Entry
	found bool
	err   error
	took  time.Duration
}

// wait starts n waiters of "k" and returns when they all wait.
func wait(ctx context.Context, s *Store, n int) <-chan waited {
	results := make(chan waited, n)
	start := time.Now()
	for range n {
		go func() {
			e, found, err := s.Wait(ctx, "k")
			results <- waited{e, found, err, time.Since(start)}
		}()
	}
	synctest.Wait()
	return results
}

func TestWait(t *testing.T) {
	t.Parallel()
	takeOver := claimBy("a")
	takeOver.TakeOver = true
	tests := map[string]struct {
		during func(*testing.T, *Store, context.CancelFunc) // a second after the claim by a, its lease a minute
		want   string
		took   time.Duration
		err    error
	}{
		"completed": {func(t *testing.T, s *Store, _ context.CancelFunc) {
			mustComplete(t, s, "k", "a", success("r"))
		}, "success", time.Second, nil},
		"released": {func(t *testing.T, s *Store, _ context.CancelFunc) {
			require.NoError(t, s.Release(t.Context(), "k", "a"))
		}, "", time.Second, nil},
		"deleted": {func(t *testing.T, s *Store, _ context.CancelFunc) {
			require.NoError(t, s.Delete(t.Context(), "k"))
		}, "", time.Second, nil},
		"lapsed": {func(*testing.T, *Store, context.CancelFunc) {}, "failed", time.Minute, nil},
		"renewed": {func(t *testing.T, s *Store, _ context.CancelFunc) {
			require.NoError(t, s.Renew(t.Context(), "k", "a", time.Hour))
		}, "failed", time.Hour + time.Second, nil},
		"renewed for less": {func(t *testing.T, s *Store, _ context.CancelFunc) {
			require.NoError(t, s.Renew(t.Context(), "k", "a", time.Second))
		}, "failed", 2 * time.Second, nil},
		"given up": {func(_ *testing.T, _ *Store, cancel context.CancelFunc) { cancel() }, "", time.Second, context.Canceled},
		"closed":   {func(_ *testing.T, s *Store, _ context.CancelFunc) { _ = s.Close() }, "", time.Second, idempotent.ErrClosed},
	}
	for name, tt := range tests {
		for _, background := range []time.Duration{0, time.Minute} {
			t.Run(name+"/"+background.String(), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					s := newStore(t, WithSweepInterval(background))
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					mustClaim(t, s, "k", takeOver)
					results := wait(ctx, s, 10)
					time.Sleep(time.Second)
					require.Empty(t, results, "still running")
					tt.during(t, s, cancel)
					for range 10 {
						got := <-results
						require.ErrorIs(t, got.err, tt.err)
						require.Equal(t, tt.want, string(got.entry.Status))
						require.Equal(t, tt.want != "", got.found)
						if tt.took != 0 {
							require.Equal(t, tt.took, got.took)
						}
					}
				})
			})
		}
	}
}

func TestWaitWithNothingToWaitFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		_, found, err := s.Wait(t.Context(), "k")
		require.NoError(t, err)
		require.False(t, found)
		mustClaim(t, s, "k", claimBy("a"))
		time.Sleep(time.Minute)
		e, found, err := s.Wait(t.Context(), "k")
		require.NoError(t, err)
		require.True(t, found)
		require.True(t, e.Unknown)
	})
}

// A claim that another owner takes over is still running.
func TestWaitGoesOnAfterTakeOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		c := claimBy("a")
		c.TakeOver = true
		mustClaim(t, s, "k", c)
		results := wait(t.Context(), s, 1)
		// Replace the slot by hand, before the lapse that wakes the waiter.
		f, err := s.find(t.Context(), "k")
		require.NoError(t, err)
		c.Owner = "b"
		_, ok := s.takeOver(f, c)
		require.True(t, ok)
		synctest.Wait()
		require.Empty(t, results)
		mustComplete(t, s, "k", "b", success("r"))
		require.Equal(t, "b", (<-results).entry.Owner)
	})
}

func TestWaitersLeaveNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		mustClaim(t, s, "k", claimBy("a"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for range 10 {
			<-wait(ctx, s, 1)
		}
		require.NoError(t, s.Release(t.Context(), "k", "a"))
		requireEmpty(t, s)
	})
}
