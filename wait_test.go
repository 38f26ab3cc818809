package idempotent_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/storetest"
)

// plainStore hides every optional ability of a store.
type plainStore struct{ idempotent.Store }

func TestRunWaits(t *testing.T) {
	for name, abilities := range map[string]func(idempotent.Store) idempotent.Store{
		"notified": func(s idempotent.Store) idempotent.Store { return s },
		"polling":  func(s idempotent.Store) idempotent.Store { return plainStore{s} },
	} {
		bubble(t, name, func(t *testing.T) {
			mem := memstore.New()
			defer mem.Close()
			g := idempotent.New(abilities(mem))
			run := func(key string, wait time.Duration, class idempotent.Class, took time.Duration) (rec idempotent.Record, replayed bool, err error) {
				return g.Run(context.Background(), key, func(context.Context) (idempotent.Class, string) {
					time.Sleep(took)
					return class, "done"
				}, idempotent.WithCallWait(wait))
			}
			go func() { _, _, _ = run("k", 0, idempotent.ClassSuccess, 5*time.Second) }()
			synctest.Wait()
			began := time.Now()
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() {
					rec, replayed, err := run("k", 10*time.Second, idempotent.ClassSuccess, 0)
					if err != nil || !replayed || rec.Result != "done" {
						t.Errorf("got %+v, %v, %v", rec, replayed, err)
					}
				})
			}
			wg.Wait()
			require.LessOrEqual(t, time.Since(began), 6*time.Second)

			// Too short a wait ends with the truth of that moment.
			go func() { _, _, _ = run("slow", 0, idempotent.ClassSuccess, 5*time.Second) }()
			synctest.Wait()
			began = time.Now()
			_, _, err := run("slow", 2*time.Second, idempotent.ClassSuccess, 0)
			var inFlight *idempotent.InFlightError
			require.ErrorAs(t, err, &inFlight)
			require.Equal(t, 2*time.Second, time.Since(began))

			// A waiter obeys its own context.
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_, _, err = g.Run(ctx, "slow", nothing, idempotent.WithCallWait(time.Minute))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.False(t, errors.As(err, new(*idempotent.StoreError)))

			// B39: a released key is claimed by exactly one of the waiters.
			go func() { _, _, _ = run("released", 0, idempotent.ClassRelease, time.Second) }()
			synctest.Wait()
			var mu sync.Mutex
			fresh := 0
			for range 10 {
				wg.Go(func() {
					_, replayed, err := run("released", time.Minute, idempotent.ClassSuccess, time.Second)
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						t.Error(err)
					}
					if !replayed {
						fresh++
					}
				})
			}
			wg.Wait()
			require.Equal(t, 1, fresh)
			require.NoError(t, g.Drain(context.Background()))
		})
	}
}

func nothing(context.Context) (idempotent.Class, string) { return idempotent.ClassSuccess, "" }

// C014: a key that never stays free does not hold a waiter past its deadline.
func TestC014_WaitIsBoundedByItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuardBench(t)
		ctx, stop := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				for ctx.Err() == nil {
					_, _, _ = b.Run(ctx, "k", func(context.Context) (idempotent.Class, string) {
						time.Sleep(time.Millisecond)
						return idempotent.ClassRelease, ""
					}, idempotent.WithCallWait(time.Hour))
				}
			})
		}
		for range 100 {
			began := time.Now()
			_, _, _ = b.Run(t.Context(), "k", func(context.Context) (idempotent.Class, string) { return idempotent.ClassRelease, "" },
				idempotent.WithCallWait(200*time.Millisecond))
			require.LessOrEqual(t, time.Since(began), 400*time.Millisecond)
		}
		stop()
		wg.Wait()
	})
}

func TestWaitErrors(t *testing.T) {
	hold := func(t *testing.T, b *guardBench) {
		t.Helper()
		_, ok, err := b.store.Claim(t.Context(), "k", idempotent.Claim{Owner: "o", Lease: time.Hour, Keep: time.Hour})
		require.NoError(t, err)
		require.True(t, ok)
	}
	bubble(t, "outage", func(t *testing.T) {
		b := newGuardBench(t)
		hold(t, b)
		b.store.Before(storetest.OpWait, func(context.Context, string) error { return errBoom })
		rec, _, err := b.Run(t.Context(), "k", b.succeed(""), idempotent.WithCallWait(time.Minute))
		require.False(t, rec.Claimed.IsZero(), "so much is known")
		var storeErr *idempotent.StoreError
		require.ErrorAs(t, err, &storeErr)
		require.Equal(t, "wait", storeErr.Op)
		require.Equal(t, 1, b.events.count(idempotent.EventStoreError))
	})
	bubble(t, "closed", func(t *testing.T) {
		b := newGuardBench(t)
		hold(t, b)
		b.store.Before(storetest.OpWait, func(context.Context, string) error { return idempotent.ErrClosed })
		_, _, err := b.Run(t.Context(), "k", b.succeed(""), idempotent.WithCallWait(time.Minute))
		require.ErrorIs(t, err, idempotent.ErrClosed)
	})
	bubble(t, "corrupt", func(t *testing.T) {
		b := newGuardBench(t)
		hold(t, b)
		b.store.Before(storetest.OpWait, func(context.Context, string) error { return idempotent.ErrCorrupt })
		_, _, err := b.Run(t.Context(), "k", b.succeed(""), idempotent.WithCallWait(time.Minute))
		require.ErrorIs(t, err, idempotent.ErrCorrupt)
		require.ErrorIs(t, b.events.last(t, idempotent.EventStoreError).Err, idempotent.ErrCorrupt, "as where it is met by a claim")
	})
	bubble(t, "the claim is abandoned", func(t *testing.T) {
		b := newGuardBench(t)
		_, _, err := b.store.Claim(t.Context(), "k", idempotent.Claim{Owner: "dead", Lease: time.Second, Keep: time.Hour})
		require.NoError(t, err)
		began := time.Now()
		_, _, err = b.Run(t.Context(), "k", b.succeed(""), idempotent.WithCallWait(time.Minute))
		require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
		require.Equal(t, time.Second, time.Since(began).Round(10*time.Millisecond))
		require.Equal(t, 1, b.events.count(idempotent.EventWaited))
		require.Equal(t, time.Since(began), b.events.last(t, idempotent.EventWaited).Took)
	})
}

func TestAbilitiesFallBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New()
		defer mem.Close()
		plain := plainStore{mem}
		ctx := t.Context()
		require.NoError(t, idempotent.Ping(ctx, plain))
		require.ErrorIs(t, idempotent.Delete(ctx, plain, "k"), errors.ErrUnsupported)
		swept, err := idempotent.Sweep(ctx, plain)
		require.NoError(t, err)
		require.Zero(t, swept)

		faulty := storetest.NewFaulty(mem)
		faulty.Down(errBoom)
		require.ErrorIs(t, idempotent.Ping(ctx, plainStore{faulty}), errBoom)
		_, _, err = idempotent.Wait(ctx, plainStore{faulty}, "k")
		require.ErrorIs(t, err, errBoom)

		_, ok, err := mem.Claim(ctx, "k", idempotent.Claim{Owner: "o", Lease: time.Hour, Keep: time.Hour})
		require.NoError(t, err)
		require.True(t, ok)
		bounded, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		faulty.Up()
		before := faulty.Calls(storetest.OpLoad)
		_, _, err = idempotent.Wait(bounded, plainStore{faulty}, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		looks := faulty.Calls(storetest.OpLoad) - before
		require.Greater(t, looks, 100)
		require.LessOrEqual(t, looks, 250, "with growing pauses")
	})
}

type sweeperFunc func(context.Context) (idempotent.Swept, error)

func (f sweeperFunc) Sweep(ctx context.Context) (idempotent.Swept, error) { return f(ctx) }

func TestJanitorSweepsUntilClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sweeps := 0
		j := idempotent.NewJanitor(sweeperFunc(func(context.Context) (idempotent.Swept, error) {
			sweeps++
			return idempotent.Swept{}, errBoom // is only repeated
		}), time.Minute)
		time.Sleep(3*time.Minute + time.Second)
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { _ = j.Close() })
		}
		wg.Wait()
		require.NoError(t, j.Close())
		require.Equal(t, 3, sweeps)
		time.Sleep(time.Hour)
		require.Equal(t, 3, sweeps)
	})
	bubble(t, "close interrupts a sweep", func(t *testing.T) {
		j := idempotent.NewJanitor(sweeperFunc(func(ctx context.Context) (idempotent.Swept, error) {
			<-ctx.Done()
			return idempotent.Swept{}, ctx.Err()
		}), time.Minute)
		time.Sleep(2 * time.Minute)
		require.NoError(t, j.Close())
	})
}
