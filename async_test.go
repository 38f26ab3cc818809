package idempotent

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// B40: an answer longer than WithMaxResponse reaches nobody, in part neither,
// where the handler has ended before anybody looks: which of the two channels is
// seen first must not matter.
func TestAsync_AnswerTooLongOfAFastHandler(t *testing.T) {
	for range 100 {
		away := newAwayWriter(http.Header{}, 3)
		_, err := away.Write([]byte("too long"))
		require.NoError(t, err)
		require.True(t, away.end(), "nobody gets the answer")
		a := &asyncRun{started: make(chan struct{}), ended: make(chan struct{})}
		close(a.started)
		close(a.ended)
		require.True(t, a.left(t.Context(), away, nil))
	}
	for range 100 {
		away := newAwayWriter(http.Header{}, 3)
		_, err := away.Write([]byte("fit"))
		require.NoError(t, err)
		require.False(t, away.end())
		a := &asyncRun{started: make(chan struct{}), ended: make(chan struct{})}
		close(a.started)
		close(a.ended)
		require.False(t, a.left(t.Context(), away, nil))
	}
}
