package memstore

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

// C120: the background ends with Close, which may be called by anybody at any
// time.
func TestC120_Close(t *testing.T) {
	t.Parallel()
	s := New()
	finish(t, s, "k", success("r"))
	requireStatus(t, s, idempotent.Success, "k")
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for name, err := range everyMethod(t.Context(), s) {
		require.ErrorIs(t, err, idempotent.ErrClosed, name)
	}
	require.Equal(t, 1, s.Len())
}

func TestC120_ThousandStores(t *testing.T) {
	t.Parallel()
	for range 1000 {
		s := New(WithSweepInterval(time.Millisecond))
		finish(t, s, "k", success("r"))
		require.NoError(t, s.Close())
	}
}

// C122: an interval of 0 is no background at all, not a ticker that panics.
func TestC122_NoBackground(t *testing.T) {
	before := runtime.NumGoroutine()
	s := New(WithSweepInterval(0))
	finish(t, s, "k", success("r"))
	requireStatus(t, s, idempotent.Success, "k")
	require.LessOrEqual(t, runtime.NumGoroutine(), before)
	require.Nil(t, s.clock.timer)
	require.NoError(t, s.Close())
}
