package memstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

// longRun returns long where IDEMPOTENT_LONG asks for it.
func longRun(short, long int) int {
	if os.Getenv("IDEMPOTENT_LONG") == "1" {
		return long
	}
	return short
}

// heap returns the bytes in use when nothing is left to collect.
func heap() int64 {
	runtime.GC()
	runtime.GC() // what finalizers and pools kept
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// cycle claims and completes key; quicker than by the checks of require.
func cycle(t *testing.T, s *Store, key string, o idempotent.Outcome) {
	_, claimed, err := s.Claim(t.Context(), key, claimBy("owner"))
	if err == nil && claimed {
		err = s.Complete(t.Context(), key, "owner", o)
	}
	if err != nil || !claimed {
		t.Fatalf("%s: claimed %v, %v", key, claimed, err)
	}
}

// Far more keys than there is room for push out finished entries alone.
func TestFlood_RunningClaimsStay(t *testing.T) {
	const limit, held, workers = 10_000, 500, 8
	keys := longRun(100_000, 1_000_000)
	before := heap()
	s := newStore(t, WithMaxEntries(limit))
	ctx := t.Context()
	for i := range held {
		mustClaim(t, s, fmt.Sprint("held", i), claimBy("holder"))
	}
	var next atomic.Int64
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for {
				i := next.Add(1)
				if i > int64(keys) {
					return
				}
				key := fmt.Sprint("flood", i)
				if _, claimed, err := s.Claim(ctx, key, claimBy("owner")); err != nil || !claimed {
					t.Errorf("claim of %s: %v, %v", key, claimed, err)
					return
				}
				if i%16 == 0 {
					if err := s.Release(ctx, key, "owner"); err != nil {
						t.Error(err)
						return
					}
				} else if err := s.Complete(ctx, key, "owner", success("result")); err != nil {
					t.Error(err)
					return
				}
				if n := s.Len(); n > limit+limit/10+held+workers {
					t.Errorf("%d entries", n)
					return
				}
				if i%64 == 0 {
					key := fmt.Sprint("held", rand.IntN(held))
					if err := s.Renew(ctx, key, "holder", time.Minute); err != nil {
						t.Errorf("renewal of %s: %v", key, err)
						return
					}
				}
			}
		})
	}
	all.Wait()
	requireConsistent(t, s)
	require.Equal(t, held, s.Stats().Pending)
	require.GreaterOrEqual(t, s.Stats().Evicted, keys-keys/16-limit-limit/10-held)
	require.Less(t, heap()-before, int64(32<<20), "bytes for about 11,000 small entries")
	for i := range held {
		mustComplete(t, s, fmt.Sprint("held", i), "holder", success("late"))
	}
	for i := range held {
		requireStatus(t, s, idempotent.Success, fmt.Sprint("held", i))
	}
	s.slots.Range(func(key, _ any) bool {
		require.NoError(t, s.Delete(ctx, key.(string)))
		return true
	})
	requireEmpty(t, s)
}

// Keys that come and expire for ever leave the heap as it was, and a large
// result goes with its entry.
func TestC125_ChurnLeavesTheHeapFlat(t *testing.T) {
	keys := longRun(300_000, 10_000_000)
	synctest.Test(t, func(t *testing.T) {
		const batch = 5000
		s := newStore(t)
		short := success("r")
		short.Retention = time.Second
		churn := func(from, to int) {
			for i := from; i < to; i++ {
				cycle(t, s, fmt.Sprint("k", i), short)
				if i%batch == batch-1 {
					time.Sleep(time.Second)
					n, err := s.Sweep(t.Context())
					require.NoError(t, err)
					require.Equal(t, batch, n.Expired)
				}
			}
		}
		churn(0, keys/10)
		settled := heap()
		churn(keys/10, keys)
		require.Less(t, heap()-settled, int64(4<<20), "bytes more after nine times as many keys")
		requireEmpty(t, s)

		const large, results = 1 << 20, 64
		for i := range results {
			o := short
			o.Result = strings.Repeat("x", large)
			finish(t, s, fmt.Sprint("large", i), o)
		}
		full := heap()
		time.Sleep(time.Second)
		for i := range results { // no sweep: read once more
			requireAbsent(t, s, fmt.Sprint("large", i))
		}
		require.Greater(t, full-heap(), int64(results*large*9/10), "bytes that went with the entries")
	})
}

// duringSweep is a context that does something each time it is asked whether
// it has ended: a sweep asks between two chunks.
type duringSweep struct {
	context.Context
	do func(asked int) error
	n  int
}

func (c *duringSweep) Err() error { c.n++; return c.do(c.n) }

// Very many entries expire at one moment: claims go on between any two chunks
// of the sweep, and from other goroutines at any time, and it can be ended.
func TestC128_ClaimsGoOnDuringAMassExpiry(t *testing.T) {
	entries := longRun(30_000, 1_000_000)
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, WithMaxEntries(2*entries+1000))
		short := success("r")
		short.Retention = time.Minute
		for i := range entries {
			cycle(t, s, fmt.Sprint("k", i), short)
		}
		time.Sleep(time.Minute)

		// Ended after ten chunks; what it has not met stays counted.
		ended, err := s.Sweep(&duringSweep{Context: t.Context(), do: func(asked int) error {
			if asked > 10 {
				return context.Canceled
			}
			return nil
		}})
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, entries, s.Len()+ended.Expired)
		require.LessOrEqual(t, ended.Expired, 10*sweepChunk)

		stop := make(chan struct{})
		var traffic sync.WaitGroup
		for w := range 2 {
			traffic.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					key := fmt.Sprint("traffic", w, "-", i)
					_, claimed, err := s.Claim(t.Context(), key, claimBy("owner"))
					if err != nil || !claimed {
						t.Error(claimed, err)
						return
					}
					if err := s.Release(t.Context(), key, "owner"); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		between := 0
		rest, err := s.Sweep(&duringSweep{Context: t.Context(), do: func(asked int) error {
			key := fmt.Sprint("between", asked)
			mustClaim(t, s, key, claimBy("owner"))
			between++
			return s.Release(t.Context(), key, "owner")
		}})
		close(stop)
		traffic.Wait()
		require.NoError(t, err)
		require.GreaterOrEqual(t, between, (entries-ended.Expired)/sweepChunk)
		// What was claimed and released meanwhile may have been met as well.
		require.Equal(t, entries, ended.Expired+rest.Expired)
		requireEmpty(t, s)
	})
}
