package redisstore_test

import (
	"bytes"
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/redisstore"
)

// Rule 2: the client resends by itself after a lost reply, and the second send
// answers as the first would have.
func TestLostReply(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for _, c := range []struct {
		name   string
		opts   []redisstore.Option
		before func(s *redisstore.Store) error
		step   func(s *redisstore.Store) error
		want   idempotent.Status
	}{
		{
			name: "claim",
			step: func(s *redisstore.Store) error {
				_, ok, err := s.Claim(ctx, "k", claim("a"))
				if err == nil && !ok {
					t.Error("the owner is told that somebody else has the key")
				}
				return err
			},
			want: idempotent.Pending,
		},
		{
			name:   "renew",
			before: func(s *redisstore.Store) error { _, _, err := s.Claim(ctx, "k", claim("a")); return err },
			step:   func(s *redisstore.Store) error { return s.Renew(ctx, "k", "a", time.Hour) },
			want:   idempotent.Pending,
		},
		{
			name:   "complete",
			before: func(s *redisstore.Store) error { _, _, err := s.Claim(ctx, "k", claim("a")); return err },
			step:   func(s *redisstore.Store) error { return s.Complete(ctx, "k", "a", success("r")) },
			want:   idempotent.Success,
		},
		{
			name:   "release",
			before: func(s *redisstore.Store) error { _, _, err := s.Claim(ctx, "k", claim("a")); return err },
			step:   func(s *redisstore.Store) error { return s.Release(ctx, "k", "a") },
			want:   "",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Shared(t)
			relay := redistest.NewRelay(t, server.Addr)
			prefix := newPrefix()
			s := newStore(t, newClient(t, relay.Addr), redisstore.WithPrefix(prefix))
			straight := newStore(t, newClient(t, server.Addr), redisstore.WithPrefix(prefix))
			// The script must be known: an EVAL after NOSCRIPT would be another command.
			for _, f := range calls(newStore(t, newClient(t, server.Addr), redisstore.WithPrefix(newPrefix()))) {
				_ = f(ctx)
			}
			if c.before != nil {
				require.NoError(t, c.before(s))
			}
			relay.SwallowReply(func(request []byte) bool { return bytes.Contains(request, []byte("evalsha")) })
			require.NoError(t, c.step(s))
			require.True(t, relay.Swallowed())
			e, _, err := straight.Load(ctx, "k")
			require.NoError(t, err)
			require.Equal(t, c.want, e.Status)
			if c.want != "" {
				require.Equal(t, "a", e.Owner)
			}
		})
	}
}

// A deadline ends a call that the client would let wait for its socket.
func TestDeadline(t *testing.T) {
	t.Parallel()
	const deadline = 50 * time.Millisecond
	clients := map[string]func(t *testing.T, addr string) redis.UniversalClient{
		"read time-out off": func(t *testing.T, addr string) redis.UniversalClient {
			return newClient(t, addr, func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = -1, -1 })
		},
		"read time-out 30 s": func(t *testing.T, addr string) redis.UniversalClient {
			return newClient(t, addr, func(o *redis.Options) { o.ReadTimeout = 30 * time.Second })
		},
		"context time-out": func(t *testing.T, addr string) redis.UniversalClient {
			return newClient(t, addr, func(o *redis.Options) { o.ReadTimeout, o.ContextTimeoutEnabled = -1, true })
		},
		"one connection": func(t *testing.T, addr string) redis.UniversalClient {
			return newClient(t, addr, func(o *redis.Options) { o.PoolSize, o.PoolTimeout, o.ReadTimeout = 1, time.Minute, time.Minute })
		},
		"ring": func(t *testing.T, addr string) redis.UniversalClient {
			r := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": addr}, ReadTimeout: time.Minute, HeartbeatFrequency: time.Hour})
			t.Cleanup(func() { _ = r.Close() })
			return r
		},
	}
	for name, open := range clients {
		for _, warm := range []bool{true, false} {
			t.Run(name+map[bool]string{true: "", false: ", first connection"}[warm], func(t *testing.T) {
				t.Parallel()
				relay := redistest.NewRelay(t, redistest.Shared(t).Addr)
				s := newStore(t, open(t, relay.Addr), redisstore.WithPrefix(newPrefix()))
				if warm {
					require.NoError(t, s.Ping(t.Context()))
				}
				relay.Stall()
				for name, f := range calls(s) {
					start := time.Now()
					require.ErrorIs(t, f(ctxFor(t, deadline)), context.DeadlineExceeded, name)
					require.Less(t, time.Since(start), 10*deadline, name)
				}
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(deadline, cancel)
				require.ErrorIs(t, s.Release(ctx, "k", "a"), context.Canceled, "no deadline: a cancellation")
				relay.Resume()
				redistest.Eventually(t, "it works again", func() bool {
					return s.Complete(t.Context(), "k2", "a", success("r")) == nil
				})
			})
		}
	}
}

// Close ends the look that a wait has sent to a server that does not answer,
// although the look has a deadline.
func TestCloseEndsALook(t *testing.T) {
	t.Parallel()
	relay := redistest.NewRelay(t, redistest.Shared(t).Addr)
	s := redisstore.New(newClient(t, relay.Addr), redisstore.WithPrefix(newPrefix()))
	require.NoError(t, s.Ping(t.Context()))
	relay.Stall()
	waited := make(chan error, 1)
	go func() {
		_, _, err := s.Wait(t.Context(), "k")
		waited <- err
	}()
	redistest.Eventually(t, "the look is on its way", func() bool { return strings.Contains(stacks(), "redisstore.call[") })
	start := time.Now()
	require.NoError(t, s.Close())
	require.Less(t, time.Since(start), 2*time.Second, "a look may take five")
	require.ErrorIs(t, <-waited, idempotent.ErrClosed)
}

// The calls whose callers have left end with the client's own time-out, and
// Close ends everything else.
func TestNoGoroutineStays(t *testing.T) {
	// Not parallel: it looks at all goroutines.
	server := redistest.Shared(t)
	relay := redistest.NewRelay(t, server.Addr)
	client := redis.NewClient(&redis.Options{Addr: relay.Addr, ReadTimeout: 200 * time.Millisecond, MaxRetries: -1})
	s := redisstore.New(client, redisstore.WithPrefix(newPrefix()))
	claimed(t, s, "k", "a")
	relay.Stall()
	for range 20 {
		_, _, err := s.Load(ctxFor(t, time.Millisecond), "l")
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	redistest.Eventually(t, "the calls have ended", func() bool { return !strings.Contains(stacks(), "redisstore.call[") })
	relay.Resume()

	waited := wait(t, s, "k")
	redistest.Eventually(t, "subscribed", s.Subscribed)
	require.NoError(t, s.Complete(t.Context(), "k", "a", success("r")))
	require.Equal(t, "r", result(t, waited).Result)
	require.NoError(t, s.Close())
	redistest.Eventually(t, "nothing of the store runs", func() bool { return !strings.Contains(stacks(), "/redisstore.(*") })
	require.NoError(t, client.Close())
}

func stacks() string {
	b := make([]byte, 1<<20)
	return string(b[:runtime.Stack(b, true)])
}

func TestC051_C052_ServerAway(t *testing.T) {
	t.Parallel()
	relay := redistest.NewRelay(t, redistest.Shared(t).Addr)
	s := newStore(t, newClient(t, relay.Addr, func(o *redis.Options) { o.MaxRetries, o.DialerRetries = -1, 1 }),
		redisstore.WithPrefix(newPrefix()))
	claimed(t, s, "k", "a")
	relay.Cut()
	_, ok, err := s.Claim(t.Context(), "k", claim("a"))
	require.False(t, ok)
	requireOnly(t, err, nil)
	requireOnly(t, s.Complete(t.Context(), "k", "a", success("r")), nil)
	relay.Mend()
	redistest.Eventually(t, "it works again", func() bool { return s.Complete(t.Context(), "k", "a", success("r")) == nil })
}
