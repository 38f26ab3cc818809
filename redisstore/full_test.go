package redisstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
)

// A server at its maxmemory that evicts nothing (rule 5, B71).
func TestFullServer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := newClient(t, server.Addr)
	s := newStore(t, client)
	ctx := t.Context()
	take := idempotent.Claim{Owner: "a", Fingerprint: "f", Lease: time.Millisecond, Keep: time.Hour, TakeOver: true}
	_, _, err := s.Claim(ctx, "abandoned", take)
	require.NoError(t, err)
	for _, key := range []string{"renewed", "completed", "released", "gone", "waited"} {
		claimed(t, s, key, "a")
	}
	claimed(t, s, "finished", "a")
	require.NoError(t, s.Complete(ctx, "finished", "a", success("r")))
	require.NoError(t, s.Delete(ctx, "gone"))

	require.NoError(t, client.Set(ctx, "ballast", strings.Repeat("b", 1<<20), 0).Err())
	require.NoError(t, client.ConfigSet(ctx, "maxmemory", "1mb").Err())
	require.ErrorContains(t, client.Set(ctx, "x", "y", 0).Err(), "OOM")

	_, ok, err := s.Claim(ctx, "new", claim("a"))
	requireOnly(t, err, idempotent.ErrFull)
	require.False(t, ok)
	require.Zero(t, client.Exists(ctx, "idempotent:new").Val(), "nothing was claimed")
	take.Owner = "b"
	_, ok, err = s.Claim(ctx, "abandoned", take)
	requireOnly(t, err, idempotent.ErrFull)
	require.False(t, ok)
	e, _, err := s.Load(ctx, "abandoned")
	require.NoError(t, err)
	require.Equal(t, "a", e.Owner)

	e, ok, err = s.Claim(ctx, "finished", claim("b"))
	require.NoError(t, err, "replays go on")
	require.False(t, ok)
	require.Equal(t, "r", e.Result)
	claimed(t, s, "renewed", "a") // sent again
	require.NoError(t, s.Renew(ctx, "renewed", "a", time.Hour))
	require.NoError(t, s.Complete(ctx, "completed", "a", success(strings.Repeat("r", 1<<20))))
	require.NoError(t, s.Release(ctx, "released", "a"))
	require.NoError(t, s.Complete(ctx, "gone", "a", success("late")), "C021: also where the claim is gone")
	require.Positive(t, client.PTTL(ctx, "idempotent:gone").Val())
	e, _, err = s.Load(ctx, "gone")
	require.NoError(t, err)
	require.Equal(t, "late", e.Result)

	s.NeverPoll()
	waited := wait(t, s, "waited")
	redistest.Eventually(t, "subscribed", s.Subscribed)
	require.NoError(t, s.Complete(ctx, "waited", "a", success("r")))
	require.Equal(t, "r", result(t, waited).Result, "a waiter that could not leave a mark polls")
	require.NoError(t, s.Delete(ctx, "finished"))

	require.NoError(t, client.ConfigSet(ctx, "maxmemory", "0").Err())
	claimed(t, s, "new", "a")
}
