package redisstore_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/redisstore"
)

// wait waits for key in the background and returns where its entry comes; the
// zero Entry where the key is free.
func wait(t *testing.T, s *redisstore.Store, key string) <-chan idempotent.Entry {
	t.Helper()
	waited := make(chan idempotent.Entry, 1)
	before := s.Waiting()
	go func() {
		e, _, err := s.Wait(t.Context(), key)
		if err != nil {
			t.Errorf("Wait: %v", err)
		}
		waited <- e
	}()
	redistest.Eventually(t, "the wait is on", func() bool { return s.Waiting() > before })
	return waited
}

// marked reports whether a waiter has left its mark on key.
func marked(t *testing.T, c redis.UniversalClient, name string) func() bool {
	return func() bool { return c.HExists(t.Context(), name, "wait").Val() }
}

func TestWait(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lease time.Duration
		end   func(ctx context.Context, s *redisstore.Store) error
		want  idempotent.Status
	}{
		"completion": {time.Hour, func(ctx context.Context, s *redisstore.Store) error { return s.Complete(ctx, "{k}", "a", success("r")) }, idempotent.Success},
		"release":    {time.Hour, func(ctx context.Context, s *redisstore.Store) error { return s.Release(ctx, "{k}", "a") }, ""},
		"delete":     {time.Hour, func(ctx context.Context, s *redisstore.Store) error { return s.Delete(ctx, "{k}") }, ""},
		"lapse":      {300 * time.Millisecond, func(context.Context, *redisstore.Store) error { return nil }, idempotent.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, client, prefix := onServer(t)
			other := newStore(t, client, redisstore.WithPrefix(prefix))
			other.NeverPoll()
			_, _, err := s.Claim(t.Context(), "{k}", idempotent.Claim{Owner: "a", Lease: c.lease, Keep: time.Hour})
			require.NoError(t, err)
			waited := wait(t, other, "{k}")
			redistest.Eventually(t, "marked", func() bool { return marked(t, client, prefix+"!(k!)")() || len(waited) > 0 })
			require.NoError(t, c.end(t.Context(), s))
			require.Equal(t, c.want, result(t, waited).Status)
			require.Zero(t, other.Waiting(), "nothing is left of a waiter")
			require.False(t, marked(t, client, prefix+"!(k!)")() && name != "lapse")
		})
	}
}

// result returns what a wait brings, and fails the test where it brings nothing
// for ten seconds.
func result(t *testing.T, waited <-chan idempotent.Entry) (e idempotent.Entry) {
	t.Helper()
	redistest.Eventually(t, "the waiter is told", func() bool { return len(waited) > 0 })
	return <-waited
}

func TestWaitTakenOverClaimReleased(t *testing.T) {
	t.Parallel()
	s, client, prefix := onServer(t)
	c := idempotent.Claim{Owner: "a", Lease: time.Millisecond, Keep: time.Minute, TakeOver: true}
	_, _, err := s.Claim(t.Context(), "k", c)
	require.NoError(t, err)
	c.Owner, c.Lease = "b", time.Hour
	redistest.Eventually(t, "taken over", func() bool {
		_, ok, err := s.Claim(t.Context(), "k", c)
		return err == nil && ok
	})
	s.NeverPoll()
	waited := wait(t, s, "k")
	redistest.Eventually(t, "marked", marked(t, client, prefix+"k"))
	require.NoError(t, s.Release(t.Context(), "k", "b"))
	require.True(t, result(t, waited).Unknown)
}

func TestWaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s, _, _ := onServer(t)
	claimed(t, s, "k", "a")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, _, err := s.Wait(ctx, "k")
		ended <- err
	}()
	redistest.Eventually(t, "the wait is on", func() bool { return s.Waiting() == 1 })
	stays := wait(t, s, "k")
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.Equal(t, 1, s.Waiting(), "the other one stays")
	require.NoError(t, s.Complete(t.Context(), "k", "a", success("r")))
	require.Equal(t, "r", result(t, stays).Result)
}

func TestWaitMarkMakesNoHash(t *testing.T) {
	t.Parallel()
	s, client, prefix := onServer(t)
	_, found, err := s.Wait(t.Context(), "absent")
	require.NoError(t, err)
	require.False(t, found)
	require.Zero(t, client.Exists(t.Context(), prefix+"absent").Val())
	require.False(t, s.Subscribed(), "no subscription where nothing runs")
}

func TestWaitErrors(t *testing.T) {
	t.Parallel()
	s, client, prefix := onServer(t)
	require.NoError(t, client.Set(t.Context(), prefix+"k", "no hash", time.Minute).Err())
	_, _, err := s.Wait(t.Context(), "k")
	require.ErrorIs(t, err, idempotent.ErrCorrupt)
	require.Zero(t, s.Waiting())
}

// A subscription ends when nobody has waited for a while, and comes back.
func TestWaitSubscription(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	relay := redistest.NewRelay(t, server.Addr)
	s := newStore(t, newClient(t, relay.Addr))
	s.NeverPoll()
	s.RestAfter(time.Millisecond)
	other := newStore(t, newClient(t, server.Addr))
	channels := func() string { n, _ := server.Do("PUBSUB", "CHANNELS"); return n }

	claimed(t, other, "k", "a")
	waited := wait(t, s, "k")
	redistest.Eventually(t, "subscribed", s.Subscribed)
	relay.Cut()
	redistest.Eventually(t, "noticed", func() bool { return !s.Subscribed() })
	relay.Mend()
	redistest.Eventually(t, "subscribed again or told", func() bool { return s.Subscribed() || len(waited) == 1 })
	if len(waited) == 0 {
		require.NoError(t, other.Complete(t.Context(), "k", "a", success("r")))
		require.Equal(t, "r", result(t, waited).Result)
	}
	redistest.Eventually(t, "it rests", func() bool { return !s.Subscribed() })
	redistest.Eventually(t, "unsubscribed at the server", func() bool { return channels() == "0" })

	claimed(t, other, "l", "a")
	waited = wait(t, s, "l")
	redistest.Eventually(t, "subscribed", s.Subscribed)
	require.NoError(t, other.Complete(t.Context(), "l", "a", success("r")))
	require.Equal(t, "r", result(t, waited).Result)
}

// P11: what 100 waiters of one key cost, counted at the server.
func TestWaitCommands(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := newClient(t, server.Addr)
	s := newStore(t, client)
	claimed(t, s, "k", "a")
	before := scriptCalls(t, client)
	const waiters = 100
	var done sync.WaitGroup
	for range waiters {
		done.Go(func() {
			e, found, err := s.Wait(t.Context(), "k")
			if err != nil || !found || e.Result != "r" {
				t.Errorf("Wait = %v, %v, %v", e, found, err)
			}
		})
	}
	redistest.Eventually(t, "subscribed", s.Subscribed)
	redistest.Eventually(t, "marked", marked(t, client, "idempotent:k"))
	require.NoError(t, s.Complete(t.Context(), "k", "a", success("r")))
	done.Wait()
	got := scriptCalls(t, client) - before - 1
	t.Logf("%d commands for %d waiters", got, waiters)
	require.LessOrEqual(t, got, waiters*3/2)
}

// scriptCalls returns how many scripts the server has run.
func scriptCalls(t *testing.T, c *redis.Client) int {
	t.Helper()
	info := c.Info(t.Context(), "commandstats").Val()
	sum := 0
	for _, name := range []string{"eval", "evalsha"} {
		if _, rest, ok := strings.Cut(info, "cmdstat_"+name+":calls="); ok {
			number, _, _ := strings.Cut(rest, ",")
			n, err := strconv.Atoi(number)
			require.NoError(t, err)
			sum += n
		}
	}
	return sum
}

func TestC042_WaitersHoldNoConnection(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := newClient(t, server.Addr, func(o *redis.Options) { o.PoolSize = 2 })
	s := newStore(t, client)
	claimed(t, s, "slow", "a")
	ctx, leave := context.WithCancel(t.Context())
	var done, left sync.WaitGroup
	for i := range 100 {
		done.Go(func() { _, _, _ = s.Wait(t.Context(), "slow") })
		key := fmt.Sprint("left", i)
		claimed(t, s, key, "a")
		left.Go(func() { _, _, _ = s.Wait(ctx, key) })
	}
	redistest.Eventually(t, "all wait", func() bool { return s.Waiting() == 200 })
	redistest.Eventually(t, "subscribed", s.Subscribed)
	for i := range 50 {
		key := fmt.Sprint("other", i)
		claimed(t, s, key, "a")
		require.NoError(t, s.Complete(t.Context(), key, "a", success("r")))
	}
	require.Equal(t, 101, s.Targets())
	leave()
	left.Wait()
	require.Equal(t, 1, s.Targets(), "those who left took their keys with them")
	require.NoError(t, s.Complete(t.Context(), "slow", "a", success("r")))
	done.Wait()
	require.Zero(t, s.Targets())
	require.Zero(t, s.Waiting())
	require.Zero(t, client.PoolStats().Timeouts)
}

func TestWaitOnRingPolls(t *testing.T) {
	t.Parallel()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": redistest.Shared(t).Addr}})
	t.Cleanup(func() { _ = ring.Close() })
	s := newStore(t, ring, redisstore.WithPrefix(newPrefix()))
	claimed(t, s, "k", "a")
	waited := wait(t, s, "k")
	require.NoError(t, s.Complete(t.Context(), "k", "a", success("r")))
	require.Equal(t, "r", result(t, waited).Result)
}
