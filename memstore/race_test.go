package memstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

// C022, C127: of many who claim at once, one gets the key.
func TestC022_C127_MutualExclusion(t *testing.T) {
	t.Parallel()
	const rounds, goroutines = 200, 200
	s := newStore(t)
	for round := range rounds {
		key := fmt.Sprint("k", round)
		var owners atomic.Int64
		var all sync.WaitGroup
		barrier := make(chan struct{})
		for i := range goroutines {
			all.Go(func() {
				owner := strconv.Itoa(i)
				<-barrier
				e, claimed, err := s.Claim(t.Context(), key, claimBy(owner))
				switch {
				case err != nil:
					t.Error(err)
				case claimed && e.Owner != owner, !claimed && e.Owner == owner:
					t.Error("claimed and owner disagree")
				case claimed:
					owners.Add(1)
				}
			})
		}
		close(barrier)
		all.Wait()
		require.EqualValues(t, 1, owners.Load())
	}
	require.Equal(t, rounds, s.Stats().Pending)
	requireConsistent(t, s)
}

// A fence grows from one owner to the next, also where a claim, or the outcome
// of a claim that is gone, was sent earlier and gets the key later.
func TestFenceGrowsAcrossRelease(t *testing.T) {
	t.Parallel()
	const goroutines, rounds = 8, 2_000
	for name, gain := range map[string]func(s *Store, owner string) (idempotent.Entry, bool, error){
		"claim": func(s *Store, owner string) (idempotent.Entry, bool, error) {
			return s.Claim(t.Context(), "k", claimBy(owner))
		},
		"outcome": func(s *Store, owner string) (idempotent.Entry, bool, error) {
			if err := s.Complete(t.Context(), "k", owner, unknown("")); err != nil {
				return idempotent.Entry{}, false, nil // another one's
			}
			return s.Load(t.Context(), "k")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			var last atomic.Int64 // written by the owner alone
			var all sync.WaitGroup
			for i := range goroutines {
				all.Go(func() {
					owner := strconv.Itoa(i)
					for range rounds {
						e, gained, err := gain(s, owner)
						if err != nil {
							t.Error(err)
							return
						}
						if !gained {
							runtime.Gosched()
							continue
						}
						if before := last.Swap(e.Fence); e.Fence <= before {
							t.Errorf("the fence is %d after %d", e.Fence, before)
							return
						}
						if err := s.Release(t.Context(), "k", owner); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
		})
	}
}

// holder counts who believes to own a key.
type holder struct{ n atomic.Int32 }

func (h *holder) enter(t *testing.T) {
	if n := h.n.Add(1); n != 1 {
		t.Errorf("%d owners at once", n)
	}
}

func (h *holder) leave() { h.n.Add(-1) }

// Owners come and go on a few keys while others read, wait, sweep and get in
// the way. While a lease stands nobody else is ever inside.
func TestRaceOneOwnerAtATime(t *testing.T) {
	t.Parallel()
	const keys, goroutines, steps = 4, 16, 2000
	s := newStore(t, WithMaxEntries(1000), WithSweepInterval(time.Millisecond))
	var inside [keys]holder
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			ctx := context.Background()
			for i := range steps {
				k := rand.IntN(keys)
				key, owner := fmt.Sprint("k", k), fmt.Sprint(g, ":", i)
				e, claimed, err := s.Claim(ctx, key, claimBy(owner))
				if err != nil {
					t.Error(err)
					return
				}
				if !claimed {
					if e.Status == idempotent.Failed && e.Unknown {
						// Only its owner may settle it.
						if err := s.Complete(ctx, key, owner, success("stolen")); err == nil {
							if got, _, _ := s.Load(ctx, key); got.Owner != owner {
								t.Error("completed what another owner holds")
							}
						}
					}
					if err := s.Release(ctx, key, owner); err != nil && err != idempotent.ErrLost {
						t.Error(err)
					}
					continue
				}
				inside[k].enter(t)
				if rand.IntN(4) == 0 {
					runtime.Gosched()
				}
				if err := s.Renew(ctx, key, owner, time.Minute); err != nil {
					t.Error("renew:", err)
				}
				inside[k].leave()
				if err := s.Release(ctx, key, owner); err != nil {
					t.Error("release:", err)
				}
			}
		})
	}
	done := make(chan struct{})
	var others sync.WaitGroup
	for range 2 {
		others.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				_, _ = s.Sweep(context.Background())
				_, _, _ = s.Load(context.Background(), "k0")
				ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
				_, _, _ = s.Wait(ctx, "k1")
				cancel()
			}
		})
	}
	all.Wait()
	close(done)
	others.Wait()
	require.NoError(t, s.Close())
	requireConsistent(t, s)
}

// Leases lapse all the time and are taken over. Fences order the owners: who
// has completed held the largest fence there was, and everybody else is told.
func TestRaceTakeOver(t *testing.T) {
	t.Parallel()
	const rounds, goroutines = 150, 8
	s := newStore(t)
	for round := range rounds {
		key := fmt.Sprint("k", round)
		var largest atomic.Int64
		var completed atomic.Int32
		var winner atomic.Value
		var all sync.WaitGroup
		for g := range goroutines {
			all.Go(func() {
				ctx := context.Background()
				c := claimBy(strconv.Itoa(g))
				c.TakeOver, c.Lease = true, time.Millisecond
				for {
					e, claimed, err := s.Claim(ctx, key, c)
					if err != nil {
						t.Error(err)
						return
					}
					if !claimed && e.Status == idempotent.Success {
						return
					}
					if !claimed {
						_, _, _ = s.Wait(ctx, key)
						continue
					}
					for old := largest.Load(); e.Fence > old && !largest.CompareAndSwap(old, e.Fence); old = largest.Load() {
					}
					if rand.IntN(3) > 0 {
						_, _, _ = s.Wait(ctx, key) // until the lease has lapsed, or somebody else is through
					}
					if s.Renew(ctx, key, c.Owner, time.Millisecond) == nil && rand.IntN(2) == 0 {
						continue
					}
					switch err := s.Complete(ctx, key, c.Owner, success(c.Owner)); err {
					case nil:
						completed.Add(1)
						winner.Store(e)
						return
					case idempotent.ErrLost:
					default:
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		require.EqualValues(t, 1, completed.Load(), "completions")
		e, ok := load(t, s, key)
		require.True(t, ok)
		won := winner.Load().(idempotent.Entry)
		require.Equal(t, won.Owner, e.Owner)
		require.Equal(t, won.Owner, e.Result)
		require.Equal(t, largest.Load(), e.Fence)
	}
	requireConsistent(t, s)
}

// No outcome is lost while its retention lasts and nothing is evicted.
func TestRaceNothingRecordedIsLost(t *testing.T) {
	t.Parallel()
	const goroutines, each = 8, 2000
	s := newStore(t, WithMaxEntries(goroutines*each), WithSweepInterval(time.Millisecond))
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			ctx := context.Background()
			for i := range each {
				key, owner := fmt.Sprint(g, ":", i), fmt.Sprint("owner", i)
				want := success(key)
				if _, claimed, err := s.Claim(ctx, key, claimBy(owner)); !claimed || err != nil {
					t.Error("claim:", err)
				}
				switch i % 4 {
				case 0: // the claim is freed by hand, the owner comes late
					_ = s.Delete(ctx, key)
				case 1:
					_ = s.Complete(ctx, key, owner, unknown("u"))
				}
				if err := s.Complete(ctx, key, owner, want); err != nil {
					t.Error("complete:", err)
				}
				back := fmt.Sprint(g, ":", rand.IntN(i+1))
				if e, ok, err := s.Load(ctx, back); !ok || err != nil || e.Result != back || e.Status != idempotent.Success {
					t.Error("lost:", back, e, err)
				}
			}
		})
	}
	all.Wait()
	require.NoError(t, s.Close())
	require.Equal(t, goroutines*each, s.Len())
	require.Zero(t, s.Stats().Expired)
	requireConsistent(t, s)
}

// Everything at once on a store that is too small, with retentions that pass:
// counts, map and queue still tell the same, and the bound holds throughout.
func TestRaceEverything(t *testing.T) {
	t.Parallel()
	const bound, keys, goroutines, steps = 50, 200, 8, 3000
	s := newStore(t, WithMaxEntries(bound), WithMaxBytes(1<<20), WithSweepInterval(time.Millisecond), WithObserver(new(events)))
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			ctx := context.Background()
			for range steps {
				key, owner := strconv.Itoa(rand.IntN(keys)), strconv.Itoa(rand.IntN(3))
				c := claimBy(owner)
				c.Lease, c.Keep, c.TakeOver = time.Millisecond, time.Millisecond, true
				o := success(owner)
				o.Retention = time.Duration(1+rand.IntN(20)) * time.Millisecond
				u := o
				u.Status, u.Unknown = idempotent.Failed, true
				switch rand.IntN(10) {
				case 0, 1, 2:
					e, _, err := s.Claim(ctx, key, c)
					if err != nil && err != idempotent.ErrFull {
						t.Error(err)
					}
					if err == nil && e.Key != key {
						t.Error("entry of another key")
					}
				case 3:
					_ = s.Renew(ctx, key, owner, time.Millisecond)
				case 4, 5:
					_ = s.Complete(ctx, key, owner, o)
				case 6:
					_ = s.Complete(ctx, key, owner, u)
				case 7:
					_ = s.Release(ctx, key, owner)
				case 8:
					_ = s.Delete(ctx, key)
				case 9:
					if e, ok, _ := s.Load(ctx, key); ok && e.Key != key {
						t.Error("entry of another key")
					}
				}
				// A completion of an absent key counts before it makes room.
				if st := s.Stats(); st.Entries > bound+bound/10+st.Pending+goroutines {
					t.Error("above the bound:", st)
				}
			}
		})
	}
	all.Wait()
	require.NoError(t, s.Close())
	requireConsistent(t, s)
}

// C014: a call ends with its context however much goes on.
func TestC014_CallsEndWithTheirContext(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	stop := make(chan struct{})
	var all sync.WaitGroup
	for g := range 20 {
		all.Go(func() {
			owner := strconv.Itoa(g)
			for {
				select {
				case <-stop:
					return
				default:
				}
				_, _, _ = s.Claim(context.Background(), "k", claimBy(owner))
				_ = s.Release(context.Background(), "k", owner)
			}
		})
	}
	for range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		_, claimed, err := s.Claim(ctx, "k", claimBy("victim"))
		if err != nil {
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		if claimed {
			require.NoError(t, s.Release(t.Context(), "k", "victim"))
		}
		cancel()
	}
	close(stop)
	all.Wait()
	requireEmpty(t, s)
}
