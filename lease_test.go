package idempotent_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/storetest"
)

// sleepOp is an operation that takes d and says how its context ended.
func sleepOp(d time.Duration, cause *error) func(context.Context) (idempotent.Class, string) {
	return func(ctx context.Context) (idempotent.Class, string) {
		select {
		case <-time.After(d):
		case <-ctx.Done():
			*cause = context.Cause(ctx)
		}
		return idempotent.ClassSuccess, "done"
	}
}

// C006, B67: an operation longer than its lease stays in flight.
func TestC006_LeaseIsRenewedWhileTheOperationRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuardBench(t, idempotent.WithLease(200*time.Millisecond))
		var cause error
		go func() { _, _, _ = b.Run(context.Background(), "k", sleepOp(time.Second, &cause)) }()
		synctest.Wait()
		for range 19 {
			time.Sleep(50 * time.Millisecond)
			_, _, err := b.Run(t.Context(), "k", b.succeed(""))
			var inFlight *idempotent.InFlightError
			require.ErrorAs(t, err, &inFlight)
			require.Equal(t, 200*time.Millisecond, inFlight.RetryAfter, "never beyond the lease")
		}
		time.Sleep(time.Second)
		rec, replayed, err := b.Run(t.Context(), "k", b.succeed(""))
		require.NoError(t, err)
		require.True(t, replayed)
		require.Equal(t, "done", rec.Result)
		require.NoError(t, cause)
		require.Zero(t, b.runs.Load())
		require.Equal(t, 15, b.store.Calls(storetest.OpRenew), "at a third of the lease, to the end of the operation")
	})
}

func TestShortOperationIsNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuardBench(t, idempotent.WithLease(3*time.Second))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		before := runtime.NumGoroutine()
		_, _, err := b.Run(ctx, "k", func(context.Context) (idempotent.Class, string) {
			time.Sleep(999 * time.Millisecond)
			require.LessOrEqual(t, runtime.NumGoroutine(), before)
			return idempotent.ClassSuccess, ""
		}, idempotent.WithCallDetached())
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.Zero(t, b.store.Calls(storetest.OpRenew))
	})
}

// C007: renewals end with the work.
func TestC007_RenewalsEndWithTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuardBench(t, idempotent.WithLease(3*time.Millisecond), idempotent.WithSuccessRetention(50*time.Millisecond))
		before := runtime.NumGoroutine()
		for range 500 {
			_, _, err := b.Run(t.Context(), "k"+time.Now().String(), b.succeed(""))
			require.NoError(t, err)
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		require.LessOrEqual(t, runtime.NumGoroutine(), before)
		require.Zero(t, b.store.Calls(storetest.OpRenew))

		// A second claim of one key is renewed like the first.
		var cause error
		for range 2 {
			renewed := b.store.Calls(storetest.OpRenew)
			_, _, err := b.Run(t.Context(), "again", sleepOp(10*time.Millisecond, &cause))
			require.NoError(t, err)
			require.Greater(t, b.store.Calls(storetest.OpRenew), renewed+5)
			time.Sleep(100 * time.Millisecond)
		}
	})
}

// C008: a failed renewal does not end the renewals, whatever the store says but
// lost.
func TestC008_FailedRenewalIsTriedAgain(t *testing.T) {
	for _, fault := range []error{errBoom, idempotent.ErrFull, idempotent.ErrCorrupt, idempotent.ErrClosed} {
		bubble(t, fault.Error(), func(t *testing.T) {
			b := newGuardBench(t, idempotent.WithLease(300*time.Millisecond), idempotent.WithTakeOver())
			failures := 0
			b.store.Before(storetest.OpRenew, func(context.Context, string) error {
				if failures++; failures <= 2 {
					return fault
				}
				return nil
			})
			var cause error
			_, _, err := b.Run(t.Context(), "k", sleepOp(time.Second, &cause))
			require.NoError(t, err)
			require.NoError(t, cause)
			if errors.Is(fault, errBoom) {
				require.Equal(t, 2, b.events.count(idempotent.EventStoreError))
			}
			require.Zero(t, b.events.count(idempotent.EventLost))
		})
	}
}

// A renewal whose reply is lost must not eat the lease.
func TestStalledRenewalIsTriedAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		lease   time.Duration
		stalled time.Duration
	}{
		"short lease":         {300 * time.Millisecond, 100 * time.Millisecond},
		"short store timeout": {30 * time.Second, idempotent.DefaultStoreTimeout},
	} {
		bubble(t, name, func(t *testing.T) {
			b := newGuardBench(t, idempotent.WithLease(tt.lease), idempotent.WithTakeOver())
			stalled := time.Duration(0)
			b.store.Before(storetest.OpRenew, func(ctx context.Context, _ string) error {
				if stalled > 0 {
					return nil
				}
				began := time.Now()
				<-ctx.Done()
				stalled = time.Since(began)
				return ctx.Err()
			})
			var cause error
			_, _, err := b.Run(t.Context(), "k", sleepOp(10*tt.lease, &cause))
			require.NoError(t, err)
			require.NoError(t, cause)
			require.Equal(t, tt.stalled, stalled)
		})
	}
}

// Nor may a store that does not obey its context keep the operation going when
// somebody else may run.
func TestStubbornRenewalDoesNotHoldTheOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New()
		defer mem.Close()
		store := &stubbornRenewals{Store: mem, takes: time.Minute}
		events := &eventLog{}
		g := idempotent.New(store, idempotent.WithLease(3*time.Second), idempotent.WithTakeOver(), idempotent.WithObserver(events))
		began := time.Now()
		_, _, err := g.Run(t.Context(), "k", func(ctx context.Context) (idempotent.Class, string) {
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), idempotent.ErrLost)
			require.Equal(t, 3*time.Second, time.Since(began))
			time.Sleep(time.Second)
			_, ok, err := mem.Claim(context.Background(), "k", idempotent.Claim{Owner: "next", Lease: time.Hour, Keep: time.Hour, TakeOver: true})
			require.NoError(t, err)
			require.True(t, ok)
			time.Sleep(10 * time.Minute) // the renewal comes back meanwhile, and says lost, too
			return idempotent.ClassSuccess, ""
		})
		require.NoError(t, err)
		require.NoError(t, g.Drain(t.Context()))
		require.Equal(t, 1, events.count(idempotent.EventLost))
		require.EqualValues(t, 1, store.sent.Load())
	})
}

// Lost is lost: it is told once, and nothing is sent for it any more.
func TestLostIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuardBench(t, idempotent.WithLease(time.Second), idempotent.WithTakeOver())
		b.store.Before(storetest.OpRenew, func(context.Context, string) error { return idempotent.ErrLost })
		_, _, err := b.Run(t.Context(), "k", func(context.Context) (idempotent.Class, string) {
			time.Sleep(time.Minute) // it does not look at its context
			return idempotent.ClassSuccess, ""
		})
		require.NoError(t, err)
		require.Equal(t, 1, b.events.count(idempotent.EventLost))
		require.Equal(t, 1, b.store.Calls(storetest.OpRenew))
	})
}

func TestC006_LostClaimCancelsTheOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuardBench(t, idempotent.WithLease(300*time.Millisecond))
		var cause error
		began := time.Now()
		go func() {
			time.Sleep(150 * time.Millisecond)
			_ = idempotent.Delete(context.Background(), b.store, "k")
		}()
		rec, replayed, err := b.Run(t.Context(), "k", sleepOp(time.Hour, &cause), idempotent.WithCallDetached(), idempotent.WithCallFingerprint("fp"))
		require.ErrorIs(t, cause, idempotent.ErrLost)
		require.Equal(t, 200*time.Millisecond, time.Since(began), "at the next renewal")
		// The answer is not taken away, and nobody else has claimed: it is
		// recorded all the same.
		require.NoError(t, err)
		require.False(t, replayed)
		require.Equal(t, "done", rec.Result)
		e, ok := b.load(t, "k")
		require.True(t, ok)
		require.Equal(t, idempotent.Success, e.Status)
		synctest.Wait() // it is told after the operation has been
		require.Equal(t, 1, b.events.count(idempotent.EventLost))
		require.Equal(t, 1, b.events.count(idempotent.EventCompleted))
		_, _, err = b.Run(t.Context(), "k", b.succeed(""), idempotent.WithCallFingerprint("other"))
		require.ErrorIs(t, err, idempotent.ErrKeyReused, "the outcome knows its request although the claim was lost")
		_, replayed, err = b.Run(t.Context(), "k", b.succeed(""), idempotent.WithCallFingerprint("fp"))
		require.NoError(t, err)
		require.True(t, replayed)
	})
}

// B68, C005: after a take-over the late owner is told and writes nothing.
func TestB68_TakenOverOwnerWritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuardBench(t, idempotent.WithLease(300*time.Millisecond), idempotent.WithTakeOver())
		b.store.Before(storetest.OpRenew, func(context.Context, string) error { return errBoom })
		var cause error
		var first idempotent.Record
		done := make(chan error)
		began := time.Now()
		go func() {
			var err error
			first, _, err = b.Run(context.Background(), "k", func(ctx context.Context) (idempotent.Class, string) {
				<-ctx.Done()
				cause = context.Cause(ctx)
				if time.Since(began) != 300*time.Millisecond {
					t.Errorf("cancelled after %v", time.Since(began))
				}
				time.Sleep(time.Second) // it is slow to stop
				return idempotent.ClassSuccess, "first"
			})
			done <- err
		}()
		time.Sleep(500 * time.Millisecond)
		rec, replayed, err := b.Run(t.Context(), "k", b.succeed("second"))
		require.NoError(t, err)
		require.False(t, replayed)
		require.Equal(t, "second", rec.Result)
		require.Equal(t, 1, b.events.count(idempotent.EventTakenOver))

		require.NoError(t, <-done)
		require.ErrorIs(t, cause, idempotent.ErrLost)
		require.Equal(t, "first", first.Result, "the caller who has an answer keeps it")
		rec, replayed, err = b.Run(t.Context(), "k", b.succeed("third"))
		require.NoError(t, err)
		require.True(t, replayed)
		require.Equal(t, "second", rec.Result)
		require.Equal(t, 1, b.events.count(idempotent.EventLost))
		require.Equal(t, 1, b.events.count(idempotent.EventNotRecorded))
	})
}

// A lease runs from some moment after its request was sent, and nobody knows
// which: the guard counts from the sending.
func TestLeaseIsCountedFromTheSending(t *testing.T) {
	slow := func(context.Context, string) error {
		time.Sleep(200 * time.Millisecond)
		return nil
	}
	for name, tt := range map[string]struct {
		prepare func(b *guardBench)
		want    time.Duration
	}{
		"of the claim": {func(b *guardBench) {
			b.store.After(storetest.OpClaim, slow)
			b.store.Before(storetest.OpRenew, func(context.Context, string) error { return errBoom })
		}, 900 * time.Millisecond},
		"of the renewal": {func(b *guardBench) {
			b.store.After(storetest.OpRenew, func(ctx context.Context, key string) error {
				b.store.Before(storetest.OpRenew, func(context.Context, string) error { return errBoom })
				return slow(ctx, key)
			})
		}, 1200 * time.Millisecond},
	} {
		bubble(t, name, func(t *testing.T) {
			b := newGuardBench(t, idempotent.WithLease(900*time.Millisecond), idempotent.WithTakeOver())
			tt.prepare(b)
			began := time.Now()
			var cause error
			_, _, err := b.Run(t.Context(), "k", sleepOp(time.Hour, &cause))
			require.NoError(t, err)
			require.ErrorIs(t, cause, idempotent.ErrLost)
			require.Equal(t, tt.want, time.Since(began))
		})
	}
}

// The first renewal, too.
func TestFirstRenewalIsCountedFromTheSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuardBench(t, idempotent.WithLease(900*time.Millisecond))
		b.store.After(storetest.OpClaim, func(context.Context, string) error {
			time.Sleep(200 * time.Millisecond)
			return nil
		})
		began := time.Now()
		var first time.Duration
		b.store.Before(storetest.OpRenew, func(context.Context, string) error {
			if first == 0 {
				first = time.Since(began)
			}
			return nil
		})
		_, _, err := b.Run(t.Context(), "k", sleepOp(time.Second, new(error)))
		require.NoError(t, err)
		require.Equal(t, 300*time.Millisecond, first)
	})
}

// Without take-over nobody else can run before lapse + Keep, so the operation
// goes on until then.
func TestWithoutTakeOverTheOperationGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuardBench(t, idempotent.WithLease(time.Second), idempotent.WithSuccessRetention(time.Minute))
		b.store.Before(storetest.OpRenew, func(context.Context, string) error { return errBoom })
		var cause error
		began := time.Now()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _, _ = b.Run(context.Background(), "k", sleepOp(time.Hour, &cause))
		}()
		time.Sleep(30 * time.Second)
		_, _, err := b.Run(t.Context(), "k", b.succeed(""))
		require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
		require.Zero(t, b.runs.Load())
		<-done
		require.ErrorIs(t, cause, idempotent.ErrLost)
		require.Equal(t, 61*time.Second, time.Since(began))
	})
	bubble(t, "and a renewal revives the claim", func(t *testing.T) {
		b := newGuardBench(t, idempotent.WithLease(time.Second))
		b.store.Before(storetest.OpRenew, func(context.Context, string) error { return errBoom })
		var cause error
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _, _ = b.Run(context.Background(), "k", sleepOp(time.Minute, &cause))
		}()
		time.Sleep(30 * time.Second)
		b.store.Before(storetest.OpRenew, nil)
		time.Sleep(time.Second)
		_, _, err := b.Run(t.Context(), "k", b.succeed(""))
		var inFlight *idempotent.InFlightError
		require.ErrorAs(t, err, &inFlight)
		<-done
		require.NoError(t, cause)
	})
}

func TestLongRunningIsReportedAtEachTenLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuardBench(t, idempotent.WithLease(time.Second))
		var cause error
		_, _, err := b.Run(t.Context(), "k", sleepOp(35*time.Second, &cause))
		require.NoError(t, err)
		require.Equal(t, 3, b.events.count(idempotent.EventLongRunning))
		for _, e := range b.events.all() {
			if e.Kind == idempotent.EventLongRunning {
				require.GreaterOrEqual(t, e.Age, 10*time.Second)
			}
		}
	})
}

func TestVeryLongLeaseDoesNotOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const forever = time.Duration(1<<63 - 1)
		b := newGuardBench(t, idempotent.WithLease(forever), idempotent.WithSuccessRetention(forever), idempotent.WithStoreTimeout(forever))
		var cause error
		_, _, err := b.Run(t.Context(), "k", sleepOp(time.Hour, &cause))
		require.NoError(t, err)
		require.NoError(t, cause)
		require.Zero(t, b.events.count(idempotent.EventLongRunning))
		_, replayed, err := b.Run(t.Context(), "k", b.succeed(""))
		require.NoError(t, err)
		require.True(t, replayed)
	})
}

// Ten leases are more than a duration can hold.
func TestLongRunningDoesNotOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const year = 365 * 24 * time.Hour
		mem := memstore.New(memstore.WithSweepInterval(0))
		defer mem.Close()
		events := &eventLog{}
		g := idempotent.New(mem, idempotent.WithLease(50*year), idempotent.WithObserver(events))
		_, _, err := g.Run(t.Context(), "k", sleepOp(20*year, new(error)))
		require.NoError(t, err)
		require.Zero(t, events.count(idempotent.EventLongRunning))
	})
}

// B62: a client that hangs up does not cancel a detached operation; a deadline
// does.
func TestDetachedOperationKeepsValuesAndDeadline(t *testing.T) {
	type valueKey struct{}
	for _, detached := range []bool{true, false} {
		name, want := "attached", context.Canceled
		var opts []idempotent.CallOption
		if detached {
			name, want = "detached", context.DeadlineExceeded
			opts = append(opts, idempotent.WithCallDetached())
		}
		bubble(t, name, func(t *testing.T) {
			b := newGuardBench(t)
			ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), valueKey{}, "v"), time.Minute)
			go func() {
				time.Sleep(time.Second)
				cancel()
			}()
			var got error
			_, _, err := b.Run(ctx, "k", func(ctx context.Context) (idempotent.Class, string) {
				require.Equal(t, "v", ctx.Value(valueKey{}))
				<-ctx.Done()
				got = ctx.Err()
				return idempotent.ClassSuccess, "done"
			}, opts...)
			require.NoError(t, err)
			require.ErrorIs(t, got, want)
			e, _ := b.load(t, "k")
			require.Equal(t, idempotent.Success, e.Status, "recorded although the client has gone")
		})
	}
}

func TestOperationContextEndsWithTheOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuardBench(t)
		var kept context.Context
		_, _, err := b.Run(t.Context(), "k", func(ctx context.Context) (idempotent.Class, string) {
			kept = ctx
			return idempotent.ClassSuccess, ""
		})
		require.NoError(t, err)
		require.ErrorIs(t, kept.Err(), context.Canceled)
		idempotent.Release(kept) // too late
		e, ok := b.load(t, "k")
		require.True(t, ok)
		require.Equal(t, idempotent.Success, e.Status)
	})
}

func TestStoreErrorKeepsItsCause(t *testing.T) {
	err := error(&idempotent.StoreError{Op: "claim", Err: errBoom})
	require.ErrorIs(t, err, errBoom)
	require.Equal(t, "idempotent: store: claim: boom", err.Error())
	require.False(t, errors.Is(err, idempotent.ErrClosed))
}
