package idempotent_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/storetest"
)

// B66: a store that fails at completion takes nothing from the caller.
func TestB66_CompletionIsRepeatedInTheBackground(t *testing.T) {
	bubble(t, "until the store answers", func(t *testing.T) {
		b := newGuardBench(t)
		b.store.Before(storetest.OpComplete, func(context.Context, string) error { return errBoom })
		rec, replayed, err := b.Run(t.Context(), "k", b.succeed("once"))
		require.NoError(t, err)
		require.False(t, replayed)
		require.Equal(t, "once", rec.Result)

		time.Sleep(5 * time.Second)
		_, _, err = b.Run(t.Context(), "k", b.succeed(""))
		var inFlight *idempotent.InFlightError
		require.ErrorAs(t, err, &inFlight)

		b.store.Before(storetest.OpComplete, nil)
		time.Sleep(5 * time.Second)
		rec, replayed, err = b.Run(t.Context(), "k", b.succeed(""))
		require.NoError(t, err)
		require.True(t, replayed)
		require.Equal(t, "once", rec.Result)
		require.EqualValues(t, 1, b.runs.Load())
		require.Equal(t, 1, b.events.count(idempotent.EventCompleted))
		require.Zero(t, b.events.count(idempotent.EventNotRecorded))
	})
	bubble(t, "or the lease ends", func(t *testing.T) {
		b := newGuardBench(t)
		b.store.Before(storetest.OpComplete, func(context.Context, string) error { return errBoom })
		_, _, err := b.Run(t.Context(), "k", b.succeed("once"))
		require.NoError(t, err)
		time.Sleep(29 * time.Second)
		require.Zero(t, b.events.count(idempotent.EventNotRecorded))
		time.Sleep(2 * time.Second)
		require.Equal(t, 1, b.events.count(idempotent.EventNotRecorded))
		tried := b.store.Calls(storetest.OpComplete)
		require.Greater(t, tried, 10)
		require.LessOrEqual(t, tried, 40, "with growing pauses")
		b.store.Before(storetest.OpComplete, nil)
		time.Sleep(time.Minute)
		require.Equal(t, tried, b.store.Calls(storetest.OpComplete))
		_, _, err = b.Run(t.Context(), "k", b.succeed(""))
		require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
		e, _ := b.load(t, "k")
		require.Equal(t, 24*time.Hour, e.Expires.Sub(e.Timestamp), "an abandoned claim is kept as long as a success")
		require.EqualValues(t, 1, b.runs.Load())
	})
	for _, sentinel := range []error{idempotent.ErrLost, idempotent.ErrClosed, idempotent.ErrCorrupt, idempotent.ErrNewerFormat, idempotent.ErrInvalid} {
		bubble(t, "or says "+sentinel.Error(), func(t *testing.T) {
			b := newGuardBench(t)
			b.store.Before(storetest.OpComplete, func(context.Context, string) error { return sentinel })
			began := time.Now()
			rec, _, err := b.Run(t.Context(), "k", b.succeed("once"))
			require.NoError(t, err)
			require.Equal(t, "once", rec.Result)
			require.NoError(t, b.Drain(t.Context()))
			require.Zero(t, time.Since(began))
			require.Equal(t, 1, b.store.Calls(storetest.OpComplete))
			require.ErrorIs(t, b.events.last(t, idempotent.EventNotRecorded).Err, sentinel)
		})
	}
	bubble(t, "or has undone the operation too", func(t *testing.T) {
		b := newGuardBench(t)
		b.store.Before(storetest.OpComplete, func(context.Context, string) error {
			return fmt.Errorf("%w: deadlock", idempotent.ErrReleased)
		})
		_, _, err := b.Run(t.Context(), "k", b.succeed("once"))
		require.NoError(t, err)
		require.NoError(t, b.Drain(t.Context()))
		require.Equal(t, []idempotent.EventKind{idempotent.EventClaimed, idempotent.EventReleased}, b.events.kinds())
		released := b.events.last(t, idempotent.EventReleased)
		require.ErrorContains(t, released.Err, "deadlock")
		require.Empty(t, released.Status)
	})
	bubble(t, "a full store is asked again", func(t *testing.T) {
		b := newGuardBench(t)
		b.store.Before(storetest.OpComplete, func(context.Context, string) error { return idempotent.ErrFull })
		_, _, err := b.Run(t.Context(), "k", b.succeed("once"))
		require.NoError(t, err)
		b.store.Before(storetest.OpComplete, nil)
		time.Sleep(time.Second)
		e, _ := b.load(t, "k")
		require.Equal(t, idempotent.Success, e.Status)
	})
	bubble(t, "a stalled store holds the caller for one timeout", func(t *testing.T) {
		b := newGuardBench(t)
		b.store.Before(storetest.OpComplete, func(ctx context.Context, _ string) error {
			<-ctx.Done()
			return ctx.Err()
		})
		began := time.Now()
		_, _, err := b.Run(t.Context(), "k", b.succeed("once"))
		require.NoError(t, err)
		require.Equal(t, idempotent.DefaultStoreTimeout, time.Since(began))
	})
	bubble(t, "and its last attempt ends with the lease", func(t *testing.T) {
		b := newGuardBench(t)
		b.store.Before(storetest.OpComplete, func(ctx context.Context, _ string) error {
			<-ctx.Done()
			return ctx.Err()
		})
		began := time.Now()
		_, _, err := b.Run(t.Context(), "k", b.succeed("once"))
		require.NoError(t, err)
		require.NoError(t, b.Drain(t.Context()))
		require.Equal(t, idempotent.DefaultLease, time.Since(began))
		require.Equal(t, 1, b.events.count(idempotent.EventNotRecorded))
		require.Zero(t, b.events.count(idempotent.EventCompleted))
	})
	bubble(t, "a lost reply changes nothing", func(t *testing.T) {
		b := newGuardBench(t)
		lost := false
		b.store.After(storetest.OpComplete, func(context.Context, string) error {
			if lost {
				return nil
			}
			lost = true
			return errBoom
		})
		_, _, err := b.Run(t.Context(), "k", b.succeed("once"))
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.Equal(t, 1, b.events.count(idempotent.EventCompleted))
		require.Equal(t, 2, b.store.Calls(storetest.OpComplete))
	})
	bubble(t, "also after the lease has ended under the operation", func(t *testing.T) {
		b := newGuardBench(t, idempotent.WithLease(time.Second))
		b.store.Before(storetest.OpRenew, func(context.Context, string) error { return errBoom })
		b.store.Before(storetest.OpComplete, func(context.Context, string) error { return errBoom })
		var cause error
		_, _, err := b.Run(t.Context(), "k", sleepOp(10*time.Second, &cause))
		require.NoError(t, err)
		b.store.Before(storetest.OpComplete, nil)
		time.Sleep(500 * time.Millisecond)
		e, _ := b.load(t, "k")
		require.Equal(t, idempotent.Success, e.Status, "the process is alive and knows the outcome")
	})
}

// Took is the time of the operation, without that of the claim before it and
// of the bookkeeping after it.
func TestCompletedTellsTheTimeOfTheOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuardBench(t)
		b.store.Before(storetest.OpClaim, func(context.Context, string) error {
			time.Sleep(time.Second)
			return nil
		})
		b.store.Before(storetest.OpComplete, func(context.Context, string) error { return errBoom })
		var cause error
		_, _, err := b.Run(t.Context(), "k", sleepOp(5*time.Second, &cause))
		require.NoError(t, err)
		time.Sleep(5 * time.Second)
		b.store.Before(storetest.OpComplete, nil)
		require.NoError(t, b.Drain(t.Context()))
		e := b.events.last(t, idempotent.EventCompleted)
		require.Equal(t, 5*time.Second, e.Took)
		require.Equal(t, idempotent.Success, e.Status)
	})
}

// C009, C018: a release that fails is repeated, too.
func TestC009_C018_ReleaseIsRepeatedInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuardBench(t)
		b.store.Before(storetest.OpRelease, func(context.Context, string) error { return errBoom })
		_, _, err := b.Run(t.Context(), "k", func(context.Context) (idempotent.Class, string) { return idempotent.ClassRelease, "" })
		require.NoError(t, err)
		b.store.Before(storetest.OpRelease, nil)
		time.Sleep(time.Second)
		_, replayed, err := b.Run(t.Context(), "k", b.succeed(""))
		require.NoError(t, err)
		require.False(t, replayed)
		require.Equal(t, 1, b.events.count(idempotent.EventReleased))
	})
}

// B65: a claim that was never answered frees itself, also when it lands late.
func TestB65_UnansweredClaimIsReleased(t *testing.T) {
	bubble(t, "the reply was lost", func(t *testing.T) {
		b := newGuardBench(t)
		b.store.After(storetest.OpClaim, func(context.Context, string) error { return errBoom })
		_, _, err := b.Run(t.Context(), "k", b.succeed(""))
		require.ErrorIs(t, err, errBoom)
		synctest.Wait()
		_, ok := b.load(t, "k")
		require.False(t, ok)
		require.Zero(t, b.runs.Load())
	})
	for _, delay := range []time.Duration{3 * time.Second, 10 * time.Second, 31 * time.Second} {
		bubble(t, "it lands after "+delay.String(), func(t *testing.T) {
			mem := memstore.New()
			late := &lateClaims{Store: mem, delay: delay}
			g := idempotent.New(late, idempotent.WithLogger(slog.New(slog.DiscardHandler)))
			_, _, err := g.Run(t.Context(), "k", func(context.Context) (idempotent.Class, string) {
				t.Error("the operation ran")
				return idempotent.ClassSuccess, ""
			})
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NoError(t, g.Drain(t.Context()))
			require.True(t, late.landed.Load())
			_, ok, err := mem.Load(t.Context(), "k")
			require.NoError(t, err)
			require.False(t, ok)
			require.NoError(t, mem.Close())
		})
	}
	bubble(t, "another attempt is not disturbed", func(t *testing.T) {
		b := newGuardBench(t)
		b.store.Before(storetest.OpClaim, func(context.Context, string) error { return errBoom })
		_, _, err := b.Run(t.Context(), "k", b.succeed(""))
		require.ErrorIs(t, err, errBoom)
		b.store.Before(storetest.OpClaim, nil)
		_, replayed, err := b.Run(t.Context(), "k", b.succeed("second"))
		require.NoError(t, err)
		require.False(t, replayed)
		time.Sleep(time.Hour)
		rec, replayed, err := b.Run(t.Context(), "k", b.succeed(""))
		require.NoError(t, err)
		require.True(t, replayed)
		require.Equal(t, "second", rec.Result)
	})
	bubble(t, "an answer later than the lease is none", func(t *testing.T) {
		b := newGuardBench(t, idempotent.WithLease(time.Second))
		b.store.After(storetest.OpClaim, func(context.Context, string) error {
			time.Sleep(1500 * time.Millisecond)
			return nil
		})
		began := time.Now()
		_, _, err := b.Run(t.Context(), "k", b.succeed(""))
		var storeErr *idempotent.StoreError
		require.ErrorAs(t, err, &storeErr)
		synctest.Wait()
		_, ok := b.load(t, "k")
		require.False(t, ok)
		require.Zero(t, b.runs.Load())
		require.NoError(t, b.Drain(t.Context()))
		require.Equal(t, idempotent.DefaultStoreTimeout+time.Second, time.Since(began), "released like one without an answer")
	})
	bubble(t, "an answer within the lease is one", func(t *testing.T) {
		b := newGuardBench(t, idempotent.WithLease(time.Second))
		b.store.After(storetest.OpClaim, func(context.Context, string) error {
			time.Sleep(999 * time.Millisecond)
			return nil
		})
		_, replayed, err := b.Run(t.Context(), "k", b.succeed("once"))
		require.NoError(t, err)
		require.False(t, replayed)
		require.EqualValues(t, 1, b.runs.Load())
	})
	bubble(t, "for as long as it may land, and no longer", func(t *testing.T) {
		b := newGuardBench(t)
		b.store.After(storetest.OpClaim, func(context.Context, string) error { return errBoom })
		began := time.Now()
		_, _, err := b.Run(t.Context(), "k", b.succeed(""))
		require.ErrorIs(t, err, errBoom)
		require.NoError(t, b.Drain(t.Context()))
		require.Equal(t, idempotent.DefaultStoreTimeout+idempotent.DefaultLease, time.Since(began))
		require.LessOrEqual(t, b.store.Calls(storetest.OpRelease), 25, "with growing pauses")
	})
	bubble(t, "at once, also while others wait for their next attempt", func(t *testing.T) {
		b := newGuardBench(t)
		b.store.After(storetest.OpClaim, func(context.Context, string) error { return errBoom })
		_, _, err := b.Run(t.Context(), "first", b.succeed(""))
		require.ErrorIs(t, err, errBoom)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		_, _, err = b.Run(t.Context(), "second", b.succeed(""))
		require.ErrorIs(t, err, errBoom)
		synctest.Wait()
		_, ok := b.load(t, "second")
		require.False(t, ok)
	})
	bubble(t, "some at a time", func(t *testing.T) {
		b := newGuardBench(t)
		b.store.After(storetest.OpClaim, func(context.Context, string) error { return errBoom })
		var now, most atomic.Int64
		b.store.Before(storetest.OpRelease, func(context.Context, string) error {
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(time.Second)
			now.Add(-1)
			return nil
		})
		for i := range 50 {
			_, _, err := b.Run(t.Context(), "k"+string(rune('A'+i)), b.succeed(""))
			require.ErrorIs(t, err, errBoom)
		}
		require.NoError(t, b.Drain(t.Context()))
		require.EqualValues(t, 16, most.Load())
	})
	bubble(t, "a long outage ends", func(t *testing.T) {
		b := newGuardBench(t)
		b.store.After(storetest.OpClaim, func(context.Context, string) error {
			b.store.Down(errBoom)
			return errBoom
		})
		for _, key := range []string{"a", "b", "c"} {
			b.store.Up()
			_, _, err := b.Run(t.Context(), key, b.succeed(""))
			require.ErrorIs(t, err, errBoom)
		}
		time.Sleep(time.Hour)
		b.store.After(storetest.OpClaim, nil)
		b.store.Up()
		time.Sleep(10 * time.Second)
		for _, key := range []string{"a", "b", "c"} {
			_, ok := b.load(t, key)
			require.False(t, ok)
		}
		require.NoError(t, b.Drain(t.Context()))
	})
}

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuardBench(t)
		_, _, err := b.Run(t.Context(), "done", b.succeed("done"))
		require.NoError(t, err)
		var cause error
		go func() { _, _, _ = b.Run(context.Background(), "slow", sleepOp(10*time.Second, &cause)) }()
		synctest.Wait()

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = b.Drain(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "1 still running")

		// B83: no new claims, but replays and the truth about running ones.
		_, _, err = b.Run(t.Context(), "new", b.succeed(""))
		require.ErrorIs(t, err, idempotent.ErrClosed)
		_, ok := b.load(t, "new")
		require.False(t, ok)
		rec, replayed, err := b.Run(t.Context(), "done", b.succeed(""))
		require.NoError(t, err)
		require.True(t, replayed)
		require.Equal(t, "done", rec.Result)
		_, _, err = b.Run(t.Context(), "slow", b.succeed(""))
		var inFlight *idempotent.InFlightError
		require.ErrorAs(t, err, &inFlight)
		_, _, err = b.Run(t.Context(), "done", b.succeed(""), idempotent.WithCallFingerprint("other"))
		require.ErrorIs(t, err, idempotent.ErrKeyReused)

		// A duplicate may still wait for a running one.
		rec, replayed, err = b.Run(t.Context(), "slow", b.succeed(""), idempotent.WithCallWait(time.Minute))
		require.NoError(t, err)
		require.True(t, replayed)
		require.Equal(t, "done", rec.Result)
		require.NoError(t, b.Drain(t.Context()))
		require.NoError(t, b.Drain(t.Context()))
		require.NoError(t, cause)
	})
	bubble(t, "waits for bookkeeping", func(t *testing.T) {
		b := newGuardBench(t)
		b.store.Before(storetest.OpComplete, func(context.Context, string) error { return errBoom })
		_, _, err := b.Run(t.Context(), "k", b.succeed(""))
		require.NoError(t, err)
		go func() {
			time.Sleep(5 * time.Second)
			b.store.Before(storetest.OpComplete, nil)
		}()
		require.NoError(t, b.Drain(t.Context()))
		e, _ := b.load(t, "k")
		require.Equal(t, idempotent.Success, e.Status)
	})
	bubble(t, "waits for a renewal under way", func(t *testing.T) {
		mem := memstore.New()
		defer mem.Close()
		store := &stubbornRenewals{Store: mem, takes: 5 * time.Second}
		g := idempotent.New(store, idempotent.WithLease(3*time.Second))
		var cause error
		_, _, err := g.Run(t.Context(), "k", sleepOp(1500*time.Millisecond, &cause))
		require.NoError(t, err)
		require.EqualValues(t, 1, store.underWay.Load())
		require.NoError(t, g.Drain(t.Context()))
		require.Zero(t, store.underWay.Load(), "the store may be closed now")
		time.Sleep(time.Minute)
		require.EqualValues(t, 1, store.sent.Load(), "the last one")
	})
	bubble(t, "and does not let it take its time", func(t *testing.T) {
		b := newGuardBench(t, idempotent.WithLease(3*time.Second))
		b.store.Before(storetest.OpRenew, func(ctx context.Context, _ string) error {
			<-ctx.Done()
			return ctx.Err()
		})
		_, _, err := b.Run(t.Context(), "k", sleepOp(1500*time.Millisecond, new(error)))
		require.NoError(t, err)
		began := time.Now()
		require.NoError(t, b.Drain(t.Context()))
		require.Zero(t, time.Since(began))
		require.Zero(t, b.events.count(idempotent.EventStoreError), "it was the guard that left")
	})
	bubble(t, "is done, and its context ends at that moment", func(t *testing.T) {
		for range 20 { // select takes any of what is ready
			b := newGuardBench(t)
			ctx, cancel := context.WithCancel(t.Context())
			go func() { _, _, _ = b.Run(context.Background(), "k", sleepOp(time.Second, new(error))) }()
			synctest.Wait()
			require.NoError(t, b.Drain(doneFunc{ctx, func() {
				time.Sleep(2 * time.Second)
				cancel()
			}}))
		}
	})
	bubble(t, "takes over nothing", func(t *testing.T) {
		b := newGuardBench(t, idempotent.WithTakeOver(), idempotent.WithLease(time.Second))
		_, ok, err := b.store.Claim(t.Context(), "k", idempotent.Claim{Owner: "dead", Lease: time.Second, Keep: time.Hour, TakeOver: true})
		require.NoError(t, err)
		require.True(t, ok)
		require.NoError(t, b.Drain(t.Context()))
		time.Sleep(2 * time.Second)
		_, _, err = b.Run(t.Context(), "k", b.succeed(""))
		require.ErrorIs(t, err, idempotent.ErrClosed, "another instance can take it over")
		require.Zero(t, b.runs.Load())
	})
}

// stubbornRenewals is a store whose renewals take their time, whatever their
// context says.
type stubbornRenewals struct {
	idempotent.Store
	takes    time.Duration
	underWay atomic.Int32
	sent     atomic.Int32
}

func (s *stubbornRenewals) Renew(ctx context.Context, key, owner string, lease time.Duration) error {
	s.sent.Add(1)
	s.underWay.Add(1)
	defer s.underWay.Add(-1)
	time.Sleep(s.takes)
	return s.Store.Renew(context.WithoutCancel(ctx), key, owner, lease)
}

// doneFunc is a context that calls f when it is asked for its end.
type doneFunc struct {
	context.Context
	f func()
}

func (c doneFunc) Done() <-chan struct{} {
	c.f()
	return c.Context.Done()
}

// In a long outage the claims to free are bounded: beyond that nothing is sent,
// so that there is nothing to free.
func TestUnansweredClaimsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 10_000
		b := newGuardBench(t)
		b.store.Down(errBoom)
		var storeErr *idempotent.StoreError
		for i := range most + 100 {
			_, _, err := b.Run(t.Context(), fmt.Sprint("k", i), b.succeed(""))
			require.ErrorAs(t, err, &storeErr)
		}
		require.ErrorContains(t, storeErr, "too many claims have not been answered")
		require.Equal(t, most, b.store.Calls(storetest.OpClaim))
		require.Zero(t, b.runs.Load())

		b.store.Up()
		time.Sleep(idempotent.DefaultLease + 10*time.Second)
		_, _, err := b.Run(t.Context(), "k", b.succeed(""))
		require.NoError(t, err, "all of them have been freed")
	})
}

// lateClaims is a store that no claim reaches in time.
type lateClaims struct {
	idempotent.Store
	delay  time.Duration
	landed atomic.Bool
}

func (s *lateClaims) Claim(ctx context.Context, key string, c idempotent.Claim) (idempotent.Entry, bool, error) {
	go func() {
		time.Sleep(s.delay)
		_, ok, _ := s.Store.Claim(context.Background(), key, c)
		s.landed.Store(ok)
	}()
	<-ctx.Done()
	return idempotent.Entry{}, false, ctx.Err()
}
