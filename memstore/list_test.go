package memstore

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

// listed goes through all pages of limit entries and returns how often each key
// was there.
func listed(t testing.TB, s *Store, limit int, between func()) map[string]int {
	t.Helper()
	keys := map[string]int{}
	q := idempotent.ListQuery{Limit: limit}
	for {
		page, err := s.List(t.Context(), q)
		require.NoError(t, err)
		require.LessOrEqual(t, len(page.Entries), limit)
		require.Empty(t, page.Corrupt)
		for _, e := range page.Entries {
			keys[e.Key]++
		}
		if q.Cursor = page.Next; q.Cursor == "" {
			return keys
		}
		if between != nil {
			between()
		}
	}
}

// An entry that stands from the first page to the last is listed, whatever
// moves it between the pages, and whatever comes and goes beside it.
func TestListMissesNothingThatMoves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		const n = 700
		key := func(i int) string { return fmt.Sprint("k", i) }
		open := claimBy("first")
		open.TakeOver, open.Lease = true, time.Second
		for i := range n {
			mustClaim(t, s, key(i), open)
		}
		time.Sleep(2 * time.Second)
		open.Owner, open.Lease = "second", time.Minute
		moved, others := 0, 0
		keys := listed(t, s, 3, func() {
			for range 10 { // faster than the listing goes
				if moved == 3*n {
					break
				}
				// Backwards: most steps move entries that are still to come.
				switch i := key(n - 1 - moved%n); moved / n {
				case 0:
					mustClaim(t, s, i, open)
				case 1:
					mustComplete(t, s, i, "second", unknown("?"))
				case 2:
					mustComplete(t, s, i, "second", success("r"))
				}
				moved++
				finish(t, s, fmt.Sprint("other", others), success("r"))
				if others++; others > 3 {
					require.NoError(t, s.Delete(t.Context(), fmt.Sprint("other", others-3)))
				}
			}
		})
		require.Equal(t, 3*n, moved, "the listing outlasts all steps")
		for i := range n {
			require.NotZero(t, keys[key(i)], "%s was there all the time", key(i))
		}
		requireConsistent(t, s)
	})
}

// The same with steps that run at the same time: for the race detector, and for
// the moment between two places.
func TestListMissesNothingAtOnce(t *testing.T) {
	t.Parallel()
	const rounds, n, older = 10, 100, 200
	for round := range rounds {
		s := newStore(t, WithMaxEntries(older))
		for i := range older { // these are evicted meanwhile
			finish(t, s, fmt.Sprint("older", i), success("r"))
		}
		open := claimBy("first")
		open.TakeOver, open.Lease = true, time.Millisecond
		for i := range n {
			mustClaim(t, s, fmt.Sprint("k", i), open)
		}
		time.Sleep(2 * time.Millisecond) // real time: these are to be lapsed
		open.Owner, open.Lease = "second", time.Minute
		ctx, stop := context.WithCancel(context.Background())
		var churn, movers sync.WaitGroup
		for g := range 2 {
			churn.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					other := fmt.Sprintf("other %d %d", g, i)
					if _, _, err := s.Claim(context.Background(), other, claimBy("o")); err != nil {
						t.Error(err)
					}
					var err error
					if i%2 == 0 || i > older/2 {
						err = s.Release(context.Background(), other, "o")
					} else {
						err = s.Complete(context.Background(), other, "o", success("r"))
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		for g := range 2 {
			movers.Go(func() {
				for i := g; i < n; i += 2 {
					key := fmt.Sprint("k", n-1-i)
					if _, claimed, err := s.Claim(context.Background(), key, open); err != nil || !claimed {
						t.Errorf("take-over: %v, %v", claimed, err)
					}
					for _, o := range []idempotent.Outcome{unknown("?"), success("r")} {
						if err := s.Complete(context.Background(), key, "second", o); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		keys := listed(t, s, 5+round%7, nil)
		movers.Wait()
		stop()
		churn.Wait()
		for i := range n {
			require.NotZero(t, keys[fmt.Sprint("k", i)], "round %d: k%d was there all the time", round, i)
		}
		requireConsistent(t, s)
	}
}

// Pages are in the order of the keys, whatever their size, and none is doubled.
func TestListIsInOrder(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const n = 1000
	for i := range n {
		finish(t, s, fmt.Sprintf("k%03d", (i*7919)%n), success("r"))
	}
	finish(t, s, "other", success("r"))
	for _, limit := range []int{3, 99, 500, 1000} {
		var keys []string
		q := idempotent.ListQuery{Prefix: "k", Limit: limit}
		for {
			page, err := s.List(t.Context(), q)
			require.NoError(t, err)
			for _, e := range page.Entries {
				keys = append(keys, e.Key)
			}
			if q.Cursor = page.Next; q.Cursor == "" {
				break
			}
		}
		require.Len(t, keys, n)
		for i, key := range keys {
			require.Equal(t, fmt.Sprintf("k%03d", i), key)
		}
	}
}

// What a snapshot brings back is listed too.
func TestListAfterRestart(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/snapshot"
	s := New(WithSnapshot(path), WithLogger(quiet), WithSweepInterval(0))
	mustClaim(t, s, "a", claimBy("a"))
	finish(t, s, "b", success("r"))
	require.NoError(t, s.Close())
	s = newStore(t, WithSnapshot(path))
	require.Equal(t, map[string]int{"a": 1, "b": 1}, listed(t, s, 1, nil))
	requireConsistent(t, s)
}
