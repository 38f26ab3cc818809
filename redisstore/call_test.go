package redisstore

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// lateTimer is a context whose deadline has passed and whose timer has not run.
type lateTimer struct{ context.Context }

func (lateTimer) Deadline() (time.Time, bool) { return time.Now().Add(-time.Microsecond), true }

// A socket that was given the deadline of a context may end before it.
func TestCallNamesTheDeadline(t *testing.T) {
	t.Parallel()
	timeout := func() (int, error) { return 0, os.ErrDeadlineExceeded }
	for _, endsItself := range []bool{false, true} {
		_, err := call(lateTimer{t.Context()}, endsItself, timeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = call(t.Context(), endsItself, timeout)
		require.Equal(t, os.ErrDeadlineExceeded, err, "the client's own time-out")
		_, err = call(lateTimer{t.Context()}, endsItself, func() (int, error) { return 1, nil })
		require.NoError(t, err, "an answer is one")
	}
}
