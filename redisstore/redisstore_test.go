package redisstore_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/redisstore"
)

func TestNewPanics(t *testing.T) {
	t.Parallel()
	var none *redis.Client
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { _ = client.Close() })
	for _, c := range []struct {
		name string
		f    func()
		want string
	}{
		{"nil client", func() { redisstore.New(nil) }, "redisstore: New: the client is nil"},
		{"C051 typed nil client", func() { redisstore.New(none) }, "redisstore: New: the client is nil"},
		{"empty prefix", func() { redisstore.WithPrefix("") }, "redisstore: WithPrefix: the prefix is empty"},
		{
			"no replicas", func() { redisstore.WithReplicas(0, time.Second) },
			"redisstore: WithReplicas: the number is 0; it must be at least 1",
		},
		{
			"no time", func() { redisstore.WithReplicas(1, 0) },
			"redisstore: WithReplicas: the timeout is 0s; it must be at least 1ms",
		},
		{
			"replicas on another client",
			func() {
				redisstore.New(struct{ redis.UniversalClient }{client}, redisstore.WithReplicas(1, time.Second))
			},
			"redisstore: WithReplicas: a struct { redis.UniversalClient } cannot keep two commands on one connection",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			require.PanicsWithValue(t, c.want, c.f)
		})
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	s, client, _ := onServer(t)
	claimed(t, s, "k", "a")
	waited := make(chan error, 1)
	go func() {
		_, _, err := s.Wait(context.Background(), "k")
		waited <- err
	}()
	redistest.Eventually(t, "the wait is on", func() bool { return s.Waiting() == 1 })

	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	require.ErrorIs(t, <-waited, idempotent.ErrClosed)
	for name, f := range calls(s) {
		require.ErrorIs(t, f(t.Context()), idempotent.ErrClosed, name)
	}
	require.NoError(t, client.Ping(t.Context()).Err(), "the client stays open")
}

// calls has one valid call of every method.
func calls(s *redisstore.Store) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"load":     func(ctx context.Context) error { _, _, err := s.Load(ctx, "k"); return err },
		"claim":    func(ctx context.Context) error { _, _, err := s.Claim(ctx, "k", claim("a")); return err },
		"renew":    func(ctx context.Context) error { return s.Renew(ctx, "k", "a", time.Minute) },
		"complete": func(ctx context.Context) error { return s.Complete(ctx, "k", "a", success("r")) },
		"release":  func(ctx context.Context) error { return s.Release(ctx, "k", "a") },
		"delete":   func(ctx context.Context) error { return s.Delete(ctx, "k") },
		"wait":     func(ctx context.Context) error { _, _, err := s.Wait(ctx, "k"); return err },
		"ping":     s.Ping,
		"list":     func(ctx context.Context) error { _, err := s.List(ctx, idempotent.ListQuery{}); return err },
	}
}

func TestEndedContext(t *testing.T) {
	t.Parallel()
	s, client, prefix := onServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, f := range calls(s) {
		require.ErrorIs(t, f(ctx), context.Canceled, name)
	}
	require.Zero(t, client.Exists(t.Context(), prefix+"k").Val())
}

func TestInvalid(t *testing.T) {
	t.Parallel()
	s, client, prefix := onServer(t)
	ctx := t.Context()
	for name, err := range map[string]error{
		"load":        func() error { _, _, err := s.Load(ctx, ""); return err }(),
		"wait":        func() error { _, _, err := s.Wait(ctx, ""); return err }(),
		"delete":      s.Delete(ctx, ""),
		"claim":       func() error { _, _, err := s.Claim(ctx, "", claim("a")); return err }(),
		"claim owner": func() error { _, _, err := s.Claim(ctx, "k", claim("")); return err }(),
		"claim lease": func() error {
			_, _, err := s.Claim(ctx, "k", idempotent.Claim{Owner: "a", Keep: time.Hour})
			return err
		}(),
		"renew":          s.Renew(ctx, "", "a", time.Hour),
		"renew lease":    s.Renew(ctx, "k", "a", time.Microsecond),
		"complete":       s.Complete(ctx, "k", "", success("")),
		"complete never": s.Complete(ctx, "k", "a", idempotent.Outcome{Status: idempotent.Pending, Retention: time.Hour}),
		"release":        s.Release(ctx, "k", ""),
	} {
		require.ErrorIs(t, err, idempotent.ErrInvalid, name)
	}
	require.Zero(t, client.Exists(ctx, prefix, prefix+"k").Val())
}

func TestPing(t *testing.T) {
	t.Parallel()
	s, _, _ := onServer(t)
	require.NoError(t, s.Ping(t.Context()))
	away := newStore(t, newClient(t, "127.0.0.1:1"))
	require.Error(t, away.Ping(ctxFor(t, 100*time.Millisecond)))
}

func TestC134_Delete(t *testing.T) {
	t.Parallel()
	s, client, prefix := onServer(t)
	ctx := t.Context()
	require.NoError(t, s.Delete(ctx, "k"), "absent")
	claimed(t, s, "k", "a")
	require.NoError(t, s.Delete(ctx, "k"))
	require.ErrorIs(t, s.Renew(ctx, "k", "a", time.Minute), idempotent.ErrLost)
	require.NoError(t, client.Set(ctx, prefix+"k", "no hash", 0).Err())
	require.NoError(t, s.Delete(ctx, "k"), "C134: also what cannot be read")
	require.Zero(t, client.Exists(ctx, prefix+"k").Val())
}

// The raw expiry in Redis, where no test double can mix up units.
func TestC019_C021_C045_C047_Expiry(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	ttl := func(c *redis.Client, name string) time.Duration { return c.PTTL(ctx, name).Val() }
	between := func(t *testing.T, got, least, most time.Duration) {
		t.Helper()
		require.GreaterOrEqual(t, got, least)
		require.LessOrEqual(t, got, most)
	}
	// A loaded machine may take its time between the two commands.
	const slack = 5 * time.Second

	t.Run("C019 C045 a claim stands for lease and keep", func(t *testing.T) {
		t.Parallel()
		for _, lease := range []time.Duration{90 * time.Second, 90*time.Second + 500*time.Microsecond} {
			s, client, prefix := onServer(t)
			e, ok, err := s.Claim(ctx, "k", idempotent.Claim{Owner: "a", Lease: lease, Keep: time.Minute})
			require.NoError(t, err)
			require.True(t, ok)
			between(t, e.Expires.Sub(e.Timestamp), lease, lease+time.Millisecond)
			between(t, ttl(client, prefix+"k"), lease+time.Minute-slack, lease+time.Minute+2*time.Millisecond)
		}
	})
	t.Run("C047 a completion gives the retention, a replay adds nothing", func(t *testing.T) {
		t.Parallel()
		s, client, prefix := onServer(t)
		claimed(t, s, "k", "a")
		require.NoError(t, s.Complete(ctx, "k", "a", success("r")))
		first := client.PExpireTime(ctx, prefix+"k").Val()
		between(t, ttl(client, prefix+"k"), time.Hour-slack, time.Hour+time.Millisecond)
		_, ok, err := s.Claim(ctx, "k", claim("b"))
		require.NoError(t, err)
		require.False(t, ok)
		require.Equal(t, first, client.PExpireTime(ctx, prefix+"k").Val())
	})
	t.Run("C021 also where the claim is gone", func(t *testing.T) {
		t.Parallel()
		s, client, prefix := onServer(t)
		require.NoError(t, s.Complete(ctx, "k", "a", success("r")))
		between(t, ttl(client, prefix+"k"), time.Hour-slack, time.Hour+time.Millisecond)
		e, ok, err := s.Load(ctx, "k")
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, "f", e.Fingerprint)
		require.Equal(t, e.Timestamp, e.Claimed)
		require.Equal(t, e.Timestamp.UnixMicro(), e.Fence)
	})
	t.Run("the longest durations", func(t *testing.T) {
		t.Parallel()
		s, client, prefix := onServer(t)
		e, ok, err := s.Claim(ctx, "k", idempotent.Claim{Owner: "a", Lease: math.MaxInt64, Keep: math.MaxInt64})
		require.NoError(t, err)
		require.True(t, ok)
		require.Greater(t, e.Expires.Sub(e.Timestamp), 99*365*24*time.Hour)
		require.Greater(t, ttl(client, prefix+"k"), 199*365*24*time.Hour)
		require.NoError(t, s.Renew(ctx, "k", "a", math.MaxInt64))
		o := success("r")
		o.Retention = math.MaxInt64
		require.NoError(t, s.Complete(ctx, "k", "a", o))
		require.Greater(t, ttl(client, prefix+"k"), 99*365*24*time.Hour)
	})
	t.Run("the end of a lease by take-over leaves keep", func(t *testing.T) {
		t.Parallel()
		s, client, prefix := onServer(t)
		c := idempotent.Claim{Owner: "a", Lease: time.Millisecond, Keep: time.Minute, TakeOver: true}
		_, _, err := s.Claim(ctx, "k", c)
		require.NoError(t, err)
		c.Owner, c.Lease = "b", time.Hour
		redistest.Eventually(t, "taken over", func() bool {
			_, ok, err := s.Claim(ctx, "k", c)
			require.NoError(t, err)
			return ok
		})
		require.NoError(t, s.Release(ctx, "k", "b"))
		between(t, ttl(client, prefix+"k"), time.Minute-slack, time.Minute+time.Millisecond)
		require.NoError(t, s.Release(ctx, "k", "b"), "sent again")
		e, _, err := s.Load(ctx, "k")
		require.NoError(t, err)
		require.True(t, e.Unknown)
	})
	t.Run("an entry that somebody made persistent stays readable", func(t *testing.T) {
		t.Parallel()
		s, client, prefix := onServer(t)
		claimed(t, s, "k", "a")
		require.True(t, client.Persist(ctx, prefix+"k").Val())
		require.NoError(t, s.Complete(ctx, "k", "a", success("r")))
		require.True(t, client.Persist(ctx, prefix+"k").Val())
		e, ok, err := s.Load(ctx, "k")
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, "r", e.Result)
	})
}

func TestC010_ReleaseLeavesNothing(t *testing.T) {
	t.Parallel()
	s, client, prefix := onServer(t)
	claimed(t, s, "{k}", "a")
	require.NoError(t, s.Release(t.Context(), "{k}", "a"))
	require.Empty(t, client.Keys(t.Context(), prefix+"*").Val())
}

func TestC044_BytesSurvive(t *testing.T) {
	t.Parallel()
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for name, result := range map[string]string{
		"digits": "15947634569000323", "every byte": string(all), "empty": "", "lines": "\n\n1 2\n",
		"a megabyte": strings.Repeat(string(all), 4096),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _, _ := onServer(t)
			c := idempotent.Claim{Owner: string(all), Fingerprint: string(all), Trace: "\n" + string(all), Lease: time.Hour, Keep: time.Hour}
			key := string(all)
			_, ok, err := s.Claim(t.Context(), key, c)
			require.NoError(t, err)
			require.True(t, ok)
			require.NoError(t, s.Renew(t.Context(), key, c.Owner, time.Hour))
			o := success(result)
			require.NoError(t, s.Complete(t.Context(), key, c.Owner, o))
			require.NoError(t, s.Complete(t.Context(), key, c.Owner, o), "sent again")
			e, ok, err := s.Load(t.Context(), key)
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, result, e.Result)
			require.Equal(t, []string{key, c.Owner, c.Fingerprint, c.Trace}, []string{e.Key, e.Owner, e.Fingerprint, e.Trace})
		})
	}
}

func TestWithReplicas(t *testing.T) {
	t.Parallel()
	primary := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	client := newClient(t, primary.Addr)
	ctx := t.Context()
	s := newStore(t, client, redisstore.WithReplicas(1, 10*time.Millisecond))

	_, ok, err := s.Claim(ctx, "k", claim("a"))
	require.ErrorContains(t, err, "redisstore: claim: 0 of 1 replicas acknowledged the claim within 10ms")
	require.False(t, ok)

	_, port, _ := strings.Cut(primary.Addr, ":")
	redistest.Start(t, "--replicaof", "127.0.0.1 "+port)
	redistest.Eventually(t, "the replica has the claim", func() bool {
		e, ok, err := s.Claim(ctx, "k", claim("a"))
		return err == nil && ok && e.Owner == "a"
	})
	e, ok, err := s.Claim(ctx, "k", claim("b"))
	require.NoError(t, err)
	require.False(t, ok)
	require.Equal(t, "a", e.Owner)

	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": primary.Addr}})
	t.Cleanup(func() { _ = ring.Close() })
	r := newStore(t, ring, redisstore.WithReplicas(1, time.Second))
	_, ok, err = r.Claim(ctx, "ring", claim("a"))
	require.NoError(t, err)
	require.True(t, ok)
}
