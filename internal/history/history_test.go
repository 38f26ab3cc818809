package history

import (
	"log/slog"
	"math/rand/v2"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
)

// times returns n, or more in a long run.
func times(n int) int {
	if os.Getenv(long) == "1" {
		return 20 * n
	}
	return n
}

// bubble records one history of a store in memory, in fake time.
func bubble(t *testing.T, seed uint64, interval, linger time.Duration, wrap func(idempotent.Store) idempotent.Store) *recorder {
	r := newRecorder(0, licence{fences: 1e6, linger: linger}) // one counter serves all keys
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(memstore.WithSweepInterval(interval), memstore.WithLogger(slog.New(slog.DiscardHandler)))
		defer func() { _ = s.Close() }()
		c := crowd{keys: 4, clients: 3, calls: 10, short: 40 * time.Millisecond}
		var handles []handle
		for i := range c.clients {
			handles = append(handles, handle{Store: wrap(s), client: i})
		}
		c.play(t.Context(), r, seed, handles)
	})
	return r
}

func plainStore(s idempotent.Store) idempotent.Store { return s }

func TestHistory_Memory(t *testing.T) {
	t.Parallel()
	for _, kind := range []struct {
		name             string
		interval, linger time.Duration
	}{
		{"exact clock", 0, 0},
		{"coarse clock", 50 * time.Millisecond, 10 * time.Millisecond},
	} {
		t.Run(kind.name, func(t *testing.T) {
			calls, open, histories := 0, 0, 0
			for range times(30) {
				seed := rand.Uint64()
				r := bubble(t, seed, kind.interval, kind.linger, plainStore)
				r.check(t)
				calls, open, histories = calls+r.calls, open+r.open, histories+len(r.history)
			}
			t.Logf("%d calls in %d histories, %d without an answer", calls, histories, open)
		})
	}
}
