package memstore

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idempotent-go/idempotent"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

// newStore returns a store that is closed with the test, silent and without a
// background unless opts say otherwise.
func newStore(t testing.TB, opts ...Option) *Store {
	t.Helper()
	s := New(append([]Option{WithLogger(quiet), WithSweepInterval(0)}, opts...)...)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func claimBy(owner string) idempotent.Claim {
	return idempotent.Claim{Owner: owner, Fingerprint: "fp", Trace: "trace", Lease: time.Minute, Keep: time.Hour}
}

func success(result string) idempotent.Outcome {
	return idempotent.Outcome{Status: idempotent.Success, Result: result, Fingerprint: "fp", Retention: 24 * time.Hour}
}

func unknown(result string) idempotent.Outcome {
	return idempotent.Outcome{Status: idempotent.Failed, Unknown: true, Result: result, Fingerprint: "fp", Retention: 24 * time.Hour}
}

func mustClaim(t testing.TB, s *Store, key string, c idempotent.Claim) idempotent.Entry {
	t.Helper()
	e, claimed, err := s.Claim(context.Background(), key, c)
	require.NoError(t, err)
	require.True(t, claimed, "claimed")
	return e
}

func mustComplete(t testing.TB, s *Store, key, owner string, o idempotent.Outcome) {
	t.Helper()
	require.NoError(t, s.Complete(context.Background(), key, owner, o))
}

// finish claims and completes key.
func finish(t testing.TB, s *Store, key string, o idempotent.Outcome) {
	t.Helper()
	mustClaim(t, s, key, claimBy("owner"))
	mustComplete(t, s, key, "owner", o)
}

func load(t testing.TB, s *Store, key string) (idempotent.Entry, bool) {
	t.Helper()
	e, ok, err := s.Load(context.Background(), key)
	require.NoError(t, err)
	return e, ok
}

func requireAbsent(t testing.TB, s *Store, keys ...string) {
	t.Helper()
	for _, key := range keys {
		_, ok := load(t, s, key)
		require.False(t, ok, "%s is there", key)
	}
}

func requireStatus(t testing.TB, s *Store, want idempotent.Status, keys ...string) {
	t.Helper()
	for _, key := range keys {
		e, ok := load(t, s, key)
		require.True(t, ok, "%s is absent", key)
		require.Equal(t, want, e.Status, key)
	}
}

// requireEmpty checks that nothing is left of the entries there were: in the
// map, in the counts and in the queue.
func requireEmpty(t testing.TB, s *Store) {
	t.Helper()
	st := s.Stats()
	require.Zero(t, st.Entries, "entries")
	require.Zero(t, st.Pending, "pending")
	require.Zero(t, st.Bytes, "bytes")
	s.slots.Range(func(k, _ any) bool {
		require.Fail(t, "left in the map", "%v", k)
		return false
	})
	segments, places := queued(s)
	require.Equal(t, 1, segments, "segments of the queue")
	require.Zero(t, places, "places of the queue")
}

// requireConsistent checks that counts, map and queue tell the same, which
// they must while nobody uses the store.
func requireConsistent(t testing.TB, s *Store) {
	t.Helper()
	var want Stats
	finished := 0
	s.slots.Range(func(_, v any) bool {
		sl := v.(*slot)
		want.Entries++
		want.Bytes += int(sl.textBytes())
		switch sl.load().phase() {
		case pending:
			want.Pending++
		case done:
			finished++
			want.Bytes += len(sl.result)
			require.Same(t, sl, sl.segment.places[sl.place].Load(), "place in the queue")
		default:
			require.Fail(t, "neither pending nor done in the map")
		}
		return true
	})
	got := s.Stats()
	require.Equal(t, want, Stats{Entries: got.Entries, Pending: got.Pending, Bytes: got.Bytes})
	_, places := queued(s)
	require.Equal(t, finished, places, "finished entries in the queue")
}

func queued(s *Store) (segments, places int) {
	for seg := s.queue.after(nil); seg != nil; seg = s.queue.after(seg) {
		segments++
		for i := range seg.places {
			if seg.places[i].Load() != nil {
				places++
			}
		}
	}
	return segments, places
}

// events records what an observer is told.
type events struct {
	mu  sync.Mutex
	all []idempotent.Event
}

func (o *events) Observe(_ context.Context, e idempotent.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, e)
}

func (o *events) take() []idempotent.Event {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := o.all
	o.all = nil
	return all
}

// logged returns a logger and the text it has written; not for concurrent use.
func logged() (*slog.Logger, *bytes.Buffer) {
	var buf bytes.Buffer
	return slog.New(slog.NewTextHandler(&buf, nil)), &buf
}

// A slot is in the map before it has its fence. Whoever met it dead there would
// take it out of the map again, and the key would have two owners.
func TestNewSlotIsBusy(t *testing.T) {
	require.Equal(t, busy, newSlot("k", "owner", "", "", 0).load().phase())
}
