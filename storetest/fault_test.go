package storetest

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

var errFault = errors.New("fault")

// faultyCalls are all methods of a Faulty, by operation.
var faultyCalls = []struct {
	op   Op
	key  string // that hooks are told
	call func(ctx context.Context, f *Faulty) error
}{
	{OpLoad, "key", func(ctx context.Context, f *Faulty) error {
		e, found, err := f.Load(ctx, "key")
		return zero(err, found, e)
	}},
	{OpClaim, "key", func(ctx context.Context, f *Faulty) error {
		e, claimed, err := f.Claim(ctx, "key", hold(alice))
		return zero(err, claimed, e)
	}},
	{OpRenew, "key", func(ctx context.Context, f *Faulty) error { return f.Renew(ctx, "key", alice, long) }},
	{OpComplete, "key", func(ctx context.Context, f *Faulty) error { return f.Complete(ctx, "key", alice, succeeded("result")) }},
	{OpWait, "key", func(ctx context.Context, f *Faulty) error {
		e, found, err := f.Wait(ctx, "key")
		return zero(err, found, e)
	}},
	{OpRelease, "key", func(ctx context.Context, f *Faulty) error { return f.Release(ctx, "key", alice) }},
	{OpSweep, "", func(ctx context.Context, f *Faulty) error {
		_, err := f.Sweep(ctx)
		return err
	}},
	{OpPing, "", func(ctx context.Context, f *Faulty) error { return f.Ping(ctx) }},
	{OpList, "", func(ctx context.Context, f *Faulty) error {
		page, err := f.List(ctx, idempotent.ListQuery{})
		return zero(err, page.Next != "" || page.Entries != nil || page.Corrupt != nil, idempotent.Entry{})
	}},
	{OpDelete, "key", func(ctx context.Context, f *Faulty) error { return f.Delete(ctx, "key") }},
}

// zero returns err, or another one where an error came with an answer.
func zero(err error, ok bool, e idempotent.Entry) error {
	if err != nil && (ok || e != idempotent.Entry{}) {
		return errors.New("an answer beside the error")
	}
	return err
}

func TestFaulty_PassesTheSuite(t *testing.T) {
	Run(t, func(*testing.T) Harness {
		r := newReference()
		h := r.harness()
		h.Store = NewFaulty(r)
		h.Wrap = synctest.Test
		return h
	})
}

func TestFaulty_Before(t *testing.T) {
	for _, c := range faultyCalls {
		t.Run(string(c.op), func(t *testing.T) {
			below := NewFaulty(newReference())
			f := NewFaulty(below)
			var got string
			f.Before(c.op, func(_ context.Context, key string) error {
				got = key
				return errFault
			})
			require.ErrorIs(t, c.call(t.Context(), f), errFault)
			require.Equal(t, c.key, got)
			require.Equal(t, 1, f.Calls(c.op), "a call that was not sent counts")
			require.Zero(t, below.Calls(c.op), "the call must not be sent")

			f.Before(c.op, nil)
			require.NotErrorIs(t, c.call(t.Context(), f), errFault)
			require.Equal(t, 1, below.Calls(c.op))
			require.Equal(t, 2, f.Calls(c.op))
		})
	}
}

func TestFaulty_After(t *testing.T) {
	for _, c := range faultyCalls {
		t.Run(string(c.op), func(t *testing.T) {
			below := NewFaulty(newReference())
			f := NewFaulty(below)
			sent := 0
			f.After(c.op, func(_ context.Context, key string) error {
				require.Equal(t, c.key, key)
				sent = below.Calls(c.op)
				return errFault
			})
			require.ErrorIs(t, c.call(t.Context(), f), errFault)
			require.Equal(t, 1, sent, "the hook is called after the call")

			f.After(c.op, func(context.Context, string) error { return nil })
			require.NotErrorIs(t, c.call(t.Context(), f), errFault)
			f.After(c.op, nil)
			require.NotErrorIs(t, c.call(t.Context(), f), errFault)
		})
	}
}

func TestFaulty_AfterLosesTheReplyOnly(t *testing.T) {
	f := NewFaulty(newReference())
	f.After(OpClaim, func(context.Context, string) error { return errFault })
	_, claimed, err := f.Claim(t.Context(), "key", hold(alice))
	require.ErrorIs(t, err, errFault)
	require.False(t, claimed)
	e, found, err := f.Load(t.Context(), "key")
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, alice, e.Owner)
}

func TestFaulty_AfterReplacesAnError(t *testing.T) {
	f := NewFaulty(newReference())
	f.After(OpRenew, func(context.Context, string) error { return errFault })
	require.ErrorIs(t, f.Renew(t.Context(), "key", alice, long), errFault)
	f.After(OpRenew, func(context.Context, string) error { return nil })
	require.ErrorIs(t, f.Renew(t.Context(), "key", alice, long), idempotent.ErrLost)
}

func TestFaulty_DownAndUp(t *testing.T) {
	below := NewFaulty(newReference())
	f := NewFaulty(below)
	hooked := 0
	for _, c := range faultyCalls {
		f.Before(c.op, func(context.Context, string) error { hooked++; return nil })
	}
	f.Down(errFault)
	for _, c := range faultyCalls {
		require.ErrorIs(t, c.call(t.Context(), f), errFault)
		require.Equal(t, 1, f.Calls(c.op))
		require.Zero(t, below.Calls(c.op), "%s must not be sent", c.op)
	}
	require.Zero(t, hooked)
	f.Up()
	for _, c := range faultyCalls {
		require.NotErrorIs(t, c.call(t.Context(), f), errFault)
		require.Equal(t, 1, below.Calls(c.op))
	}
	require.Equal(t, len(faultyCalls), hooked)
}

func TestFaulty_HookBlocksUntilItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFaulty(newReference())
		f.Before(OpClaim, func(ctx context.Context, _ string) error {
			<-ctx.Done()
			return ctx.Err()
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		claim := make(chan error)
		go func() {
			_, _, err := f.Claim(ctx, "key", hold(alice))
			claim <- err
		}()
		synctest.Wait()
		require.NoError(t, f.Ping(t.Context()), "other calls go on")
		f.Before(OpClaim, nil) // and hooks can be set
		require.ErrorIs(t, <-claim, context.DeadlineExceeded)
	})
}

func TestFaulty_FallsBackAsTheStoreBelow(t *testing.T) {
	f := NewFaulty(store{newReference()})
	require.ErrorIs(t, f.Delete(t.Context(), "key"), errors.ErrUnsupported)
	swept, err := f.Sweep(t.Context())
	require.NoError(t, err)
	require.Zero(t, swept)
	require.NoError(t, f.Ping(t.Context()))
	_, found, err := f.Wait(t.Context(), "key")
	require.NoError(t, err)
	require.False(t, found)
}

func TestFaulty_Misuse(t *testing.T) {
	require.PanicsWithValue(t, "storetest: NewFaulty: the store is nil", func() { NewFaulty(nil) })
	require.PanicsWithValue(t, "storetest: Down: the error is nil; Up ends an outage", func() { NewFaulty(newReference()).Down(nil) })
}
