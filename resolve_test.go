package idempotent_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/storetest"
)

// B84: an unknown outcome is settled by hand.
func TestResolve(t *testing.T) {
	abandon := func(t *testing.T, b *guardBench, key string, takeOvers int) idempotent.Entry {
		t.Helper()
		for i := range takeOvers + 1 {
			_, ok, err := b.store.Claim(t.Context(), key, idempotent.Claim{
				Owner: "dead" + string(rune('0'+i)), Fingerprint: "fp", Lease: time.Second, Keep: time.Hour, TakeOver: takeOvers > 0,
			})
			require.NoError(t, err)
			require.True(t, ok)
			time.Sleep(2 * time.Second)
		}
		e, _ := b.load(t, key)
		return e
	}
	recorded := func(t *testing.T, b *guardBench, key string) idempotent.Entry {
		t.Helper()
		_, _, err := b.Run(t.Context(), key, func(context.Context) (idempotent.Class, string) { return idempotent.ClassUnknown, "" },
			idempotent.WithCallFingerprint("fp"))
		require.NoError(t, err)
		e, _ := b.load(t, key)
		return e
	}
	for name, prepare := range map[string]func(*testing.T, *guardBench, string) idempotent.Entry{
		"recorded":             recorded,
		"abandoned":            func(t *testing.T, b *guardBench, key string) idempotent.Entry { return abandon(t, b, key, 0) },
		"abandoned, take-over": func(t *testing.T, b *guardBench, key string) idempotent.Entry { return abandon(t, b, key, 2) },
	} {
		bubble(t, name, func(t *testing.T) {
			b := newGuardBench(t)
			fp := idempotent.WithCallFingerprint("fp")

			e := prepare(t, b, "success")
			require.NoError(t, b.Resolve(t.Context(), "success", e.Owner, idempotent.ClassSuccess, "found"))
			require.NoError(t, b.Resolve(t.Context(), "success", e.Owner, idempotent.ClassSuccess, "found"), "repeated")
			rec, replayed, err := b.Run(t.Context(), "success", b.succeed(""), fp)
			require.NoError(t, err)
			require.True(t, replayed)
			require.Equal(t, "found", rec.Result)
			require.ErrorIs(t, b.Resolve(t.Context(), "success", "stranger", idempotent.ClassSuccess, "found"), idempotent.ErrLost)
			require.ErrorIs(t, b.Resolve(t.Context(), "success", e.Owner, idempotent.ClassFailure, ""), idempotent.ErrLost)
			require.ErrorIs(t, b.Resolve(t.Context(), "success", e.Owner, idempotent.ClassSuccess, "else"), idempotent.ErrLost)
			require.ErrorIs(t, b.Resolve(t.Context(), "success", e.Owner, idempotent.ClassRelease, ""), idempotent.ErrLost)

			e = prepare(t, b, "failure")
			require.NoError(t, b.Resolve(t.Context(), "failure", e.Owner, idempotent.ClassFailure, idempotent.EncodeFailure(errBoom)))
			err = b.Do(t.Context(), "failure", func(context.Context) error { return nil }, fp)
			var failed *idempotent.FailedError
			require.ErrorAs(t, err, &failed)
			require.Equal(t, "boom", failed.Text)

			e = prepare(t, b, "no text")
			require.NoError(t, b.Resolve(t.Context(), "no text", e.Owner, idempotent.ClassFailure, ""))
			err = b.Do(t.Context(), "no text", func(context.Context) error { return nil }, fp)
			require.ErrorIs(t, err, idempotent.ErrFailed)

			e = prepare(t, b, "no result")
			require.NoError(t, b.Resolve(t.Context(), "no result", e.Owner, idempotent.ClassSuccess, ""))
			_, err = idempotent.Do(t.Context(), b.Guard, "no result", func(context.Context) (int, error) { return 0, nil }, fp)
			require.ErrorIs(t, err, idempotent.ErrResultUnavailable)
			require.NoError(t, b.Do(t.Context(), "no result", func(context.Context) error { return errBoom }, fp))

			e = prepare(t, b, "value")
			value, err := idempotent.EncodeValue(42)
			require.NoError(t, err)
			require.NoError(t, b.Resolve(t.Context(), "value", e.Owner, idempotent.ClassSuccess, value))
			got, err := idempotent.Do(t.Context(), b.Guard, "value", func(context.Context) (int, error) { return 0, nil }, fp)
			require.NoError(t, err)
			require.Equal(t, 42, got)

			require.Zero(t, b.runs.Load())
			e = prepare(t, b, "release")
			require.NoError(t, b.Resolve(t.Context(), "release", e.Owner, idempotent.ClassRelease, ""))
			require.NoError(t, b.Resolve(t.Context(), "release", e.Owner, idempotent.ClassRelease, ""), "repeated")
			_, replayed, err = b.Run(t.Context(), "release", b.succeed("again"), fp)
			require.NoError(t, err)
			require.False(t, replayed)

			require.Equal(t, 6, b.events.count(idempotent.EventResolved))
			require.Equal(t, idempotent.Event{Kind: idempotent.EventResolved, Key: "release", Owner: e.Owner, Trace: e.Trace},
				b.events.last(t, idempotent.EventResolved))

			// It was forgotten meanwhile: what is recorded knows its request.
			e = prepare(t, b, "gone")
			b.store.After(storetest.OpLoad, func(ctx context.Context, key string) error { return b.store.Delete(ctx, key) })
			require.NoError(t, b.Resolve(t.Context(), "gone", e.Owner, idempotent.ClassFailure, "found"))
			b.store.After(storetest.OpLoad, nil)
			_, replayed, err = b.Run(t.Context(), "gone", b.succeed(""), fp)
			require.NoError(t, err)
			require.True(t, replayed)
			require.Equal(t, idempotent.Event{Kind: idempotent.EventResolved, Key: "gone", Owner: e.Owner, Trace: e.Trace, Status: idempotent.Failed},
				b.events.last(t, idempotent.EventResolved))
		})
	}
}

func TestResolveRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuardBench(t)
		ctx := t.Context()
		require.ErrorIs(t, b.Resolve(ctx, "", "o", idempotent.ClassSuccess, ""), idempotent.ErrInvalid)
		require.ErrorIs(t, b.Resolve(ctx, "k", "", idempotent.ClassSuccess, ""), idempotent.ErrInvalid)
		for _, c := range []idempotent.Class{idempotent.ClassDefault, idempotent.ClassUnknown, idempotent.Class(9)} {
			require.ErrorIs(t, b.Resolve(ctx, "k", "o", c, ""), idempotent.ErrInvalid)
		}
		require.ErrorIs(t, b.Resolve(ctx, "absent", "o", idempotent.ClassSuccess, ""), idempotent.ErrLost)
		_, ok := b.load(t, "absent")
		require.False(t, ok)

		_, _, err := b.Run(ctx, "k", func(context.Context) (idempotent.Class, string) { return idempotent.ClassUnknown, "" })
		require.NoError(t, err)
		require.ErrorIs(t, b.Resolve(ctx, "k", "stranger", idempotent.ClassSuccess, ""), idempotent.ErrLost)

		_, ok, err = b.store.Claim(ctx, "running", idempotent.Claim{Owner: "o", Lease: time.Minute, Keep: time.Hour})
		require.NoError(t, err)
		require.True(t, ok)
		var inFlight *idempotent.InFlightError
		require.ErrorAs(t, b.Resolve(ctx, "running", "o", idempotent.ClassRelease, ""), &inFlight)

		b.store.Down(errBoom)
		require.ErrorIs(t, b.Resolve(ctx, "k", "o", idempotent.ClassSuccess, ""), errBoom)
		b.store.Up()
		b.store.Before(storetest.OpComplete, func(context.Context, string) error { return errBoom })
		e, _ := b.load(t, "k")
		require.ErrorIs(t, b.Resolve(ctx, "k", e.Owner, idempotent.ClassSuccess, ""), errBoom)
		b.store.Before(storetest.OpComplete, nil)

		_, err = idempotent.EncodeValue(make(chan int))
		require.ErrorContains(t, err, "EncodeValue")
		require.Equal(t, "e", idempotent.EncodeFailure(nil))
		require.Zero(t, b.events.count(idempotent.EventResolved))
	})
}

// B84: a late owner settles the truth while nobody else has run.
func TestLateOwnerSettlesItsOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuardBench(t, idempotent.WithLease(time.Second))
		b.store.Before(storetest.OpRenew, func(context.Context, string) error { return errBoom })
		var cause error
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _, _ = b.Run(context.Background(), "k", sleepOp(5*time.Second, &cause))
		}()
		time.Sleep(2 * time.Second)
		_, _, err := b.Run(t.Context(), "k", b.succeed(""))
		require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
		require.Equal(t, 1, b.events.count(idempotent.EventAbandoned))
		<-done
		rec, replayed, err := b.Run(t.Context(), "k", b.succeed(""))
		require.NoError(t, err)
		require.True(t, replayed)
		require.Equal(t, "done", rec.Result)
	})
}

// A take-over needs the guard's permission, the claim's own, and the same
// request.
func TestTakeOver(t *testing.T) {
	for name, tt := range map[string]struct {
		claim, guard bool
		fingerprint  string
		want         error
	}{
		"both":              {true, true, "fp", nil},
		"claim only":        {true, false, "fp", idempotent.ErrOutcomeUnknown},
		"guard only":        {false, true, "fp", idempotent.ErrOutcomeUnknown},
		"another request":   {true, true, "other", idempotent.ErrKeyReused},
		"while waiting for": {true, true, "fp", nil},
	} {
		bubble(t, name, func(t *testing.T) {
			var opts []idempotent.Option
			if tt.guard {
				opts = append(opts, idempotent.WithTakeOver())
			}
			b := newGuardBench(t, opts...)
			_, ok, err := b.store.Claim(t.Context(), "k", idempotent.Claim{Owner: "dead", Fingerprint: "fp", Lease: time.Second, Keep: time.Hour, TakeOver: tt.claim})
			require.NoError(t, err)
			require.True(t, ok)
			var wait []idempotent.CallOption
			if name == "while waiting for" {
				wait = append(wait, idempotent.WithCallWait(time.Minute))
			} else {
				time.Sleep(time.Second)
			}
			_, replayed, err := b.Run(t.Context(), "k", b.succeed("second"), append(wait, idempotent.WithCallFingerprint(tt.fingerprint))...)
			require.False(t, replayed)
			if !errors.Is(tt.want, err) {
				require.ErrorIs(t, err, tt.want)
			}
			want := 0
			if tt.want == nil {
				want = 1
			}
			require.EqualValues(t, want, b.runs.Load())
			require.Equal(t, want, b.events.count(idempotent.EventTakenOver))
		})
	}
}

// An outcome that was recorded as unknown is no abandoned claim, although both
// read as failed and unknown.
func TestEntry_Abandoned(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		entry idempotent.Entry
		want  bool
	}{
		{idempotent.Entry{}, false},
		{idempotent.Entry{Status: idempotent.Pending}, false},
		{idempotent.Entry{Status: idempotent.Success}, false},
		{idempotent.Entry{Status: idempotent.Failed}, false},
		{idempotent.Entry{Status: idempotent.Failed, Unknown: true, Result: "r"}, false},
		{idempotent.Entry{Status: idempotent.Failed, Unknown: true}, true},
	} {
		require.Equal(t, c.want, c.entry.Abandoned(), "%+v", c.entry)
	}
}

// B84: a late owner who records what happened, between Resolve's look and its
// release, keeps its word: nothing was freed, and nobody is told that it was.
func TestResolveReleaseMeetsALateOwner(t *testing.T) {
	for _, recorded := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := newGuardBench(t)
			ctx := t.Context()
			_, claimed, err := b.store.Claim(ctx, "k", idempotent.Claim{Owner: "late", Lease: time.Second, Keep: time.Hour})
			require.NoError(t, err)
			require.True(t, claimed)
			time.Sleep(2 * time.Second)
			if recorded {
				require.NoError(t, b.store.Complete(ctx, "k", "late", idempotent.Outcome{
					Status: idempotent.Failed, Unknown: true, Result: "?", Retention: time.Hour,
				}))
			}
			b.store.After(storetest.OpLoad, func(ctx context.Context, key string) error {
				b.store.After(storetest.OpLoad, nil)
				return b.store.Complete(ctx, key, "late", idempotent.Outcome{
					Status: idempotent.Success, Result: "done", Retention: time.Hour,
				})
			})
			require.ErrorIs(t, b.Resolve(ctx, "k", "late", idempotent.ClassRelease, ""), idempotent.ErrLost)
			require.Zero(t, b.events.count(idempotent.EventResolved))
			rec, replayed, err := b.Run(ctx, "k", b.succeed(""))
			require.NoError(t, err)
			require.True(t, replayed)
			require.Equal(t, "done", rec.Result)
			require.Zero(t, b.runs.Load())
		})
	}
}
