//go:build unix

package faultbench

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/redisstore"
	"github.com/idempotent-go/idempotent/storetest"
)

// newStore returns a store that ends with the test.
func newStore(t testing.TB, client redis.UniversalClient, opts ...redisstore.Option) *redisstore.Store {
	t.Helper()
	s := redisstore.New(client, opts...)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// contract runs the whole contract over client.
func contract(t *testing.T, client redis.UniversalClient) {
	var n atomic.Int64
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		prefix := redisstore.WithPrefix(fmt.Sprintf("c%d:", n.Add(1)))
		return storetest.Harness{
			Store:  newStore(t, client, prefix),
			Second: func() idempotent.Store { return newStore(t, client, prefix) },
		}
	})
}

func claim(owner string) idempotent.Claim {
	return idempotent.Claim{Owner: owner, Lease: time.Minute, Keep: time.Hour}
}

func success(result string) idempotent.Outcome {
	return idempotent.Outcome{Status: idempotent.Success, Result: result, Retention: time.Hour}
}

// eventually repeats f while it returns an error, each attempt bounded as the
// guard bounds it.
func eventually(t *testing.T, what string, f func(context.Context) error) {
	t.Helper()
	redistest.Eventually(t, what, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), idempotent.DefaultStoreTimeout)
		defer cancel()
		return f(ctx) == nil
	})
}

// remembers checks that keys claimed before a fail-over stand after it and can
// be finished, and that new ones can be claimed, all through s.
func remembers(t *testing.T, s *redisstore.Store, keys []string) {
	t.Helper()
	for _, key := range keys {
		eventually(t, "the store works again", func(ctx context.Context) error {
			e, found, err := s.Load(ctx, key)
			if err == nil {
				require.True(t, found, key)
				require.Equal(t, "before", e.Owner)
				require.Equal(t, idempotent.Pending, e.Status)
			}
			return err
		})
		eventually(t, "a claim is refused", func(ctx context.Context) error {
			_, ok, err := s.Claim(ctx, key, claim("after"))
			require.False(t, ok)
			return err
		})
		eventually(t, "its owner finishes", func(ctx context.Context) error { return s.Complete(ctx, key, "before", success("r")) })
		eventually(t, "another key is claimed", func(ctx context.Context) error {
			_, ok, err := s.Claim(ctx, "new-"+key, claim("after"))
			if err == nil {
				require.True(t, ok)
			}
			return err
		})
	}
}

func TestGroup(t *testing.T) {
	t.Parallel()
	g := StartGroup(t)
	client := g.Client(t)
	t.Run("the contract", func(t *testing.T) { contract(t, client) })
	s := newStore(t, client, redisstore.WithPrefix("group:"), redisstore.WithReplicas(1, 5*time.Second))
	claimAll := func(t *testing.T, keys ...string) []string {
		for _, key := range keys {
			_, ok, err := s.Claim(t.Context(), key, claim("before"))
			require.NoError(t, err)
			require.True(t, ok)
		}
		return keys
	}
	// Not the whole contract: its leases are shorter than a replica may take.
	t.Run("a replica is waited for", func(t *testing.T) {
		claimAll(t, "k1", "k2")
		require.Equal(t, "1", g.Other(g.Primary()).Must(t, "EXISTS", "group:k1"), "the replica has it")
		_, ok, err := s.Claim(t.Context(), "k1", claim("other"))
		require.NoError(t, err)
		require.False(t, ok)
		require.NoError(t, s.Renew(t.Context(), "k1", "before", time.Minute))
		require.NoError(t, s.Complete(t.Context(), "k1", "before", success("r")))
		e, ok, err := s.Claim(t.Context(), "k1", claim("other"))
		require.NoError(t, err)
		require.False(t, ok)
		require.Equal(t, "r", e.Result)
		require.NoError(t, s.Release(t.Context(), "k2", "before"))
		claimAll(t, "k2")
	})
	t.Run("an orderly fail-over is followed", func(t *testing.T) {
		keys := claimAll(t, "a", "b")
		old := g.Primary()
		require.NotNil(t, old)
		now := g.FailOver(t)
		require.NotSame(t, old, now)
		remembers(t, s, keys)
	})
	t.Run("a disconnected replica", func(t *testing.T) {
		primary := g.Primary()
		g.Disconnect(t, primary)
		hasty := newStore(t, client, redisstore.WithPrefix("hasty:"), redisstore.WithReplicas(1, 20*time.Millisecond))
		_, ok, err := hasty.Claim(t.Context(), "k", claim("a"))
		require.ErrorContains(t, err, "0 of 1 replicas acknowledged")
		require.False(t, ok)
		require.Equal(t, "0", g.Other(primary).Must(t, "EXISTS", "hasty:k"))
		g.Reconnect(t, primary)
		_, ok, err = s.Claim(t.Context(), "k", claim("a"))
		require.NoError(t, err)
		require.True(t, ok)
	})
	t.Run("the death of the primary is followed", func(t *testing.T) {
		keys := claimAll(t, "c", "d")
		old := g.Primary()
		old.Kill()
		g.AwaitFailOver(t, old)
		single := newStore(t, client, redisstore.WithPrefix("group:")) // there is no replica to wait for
		remembers(t, single, keys)
		g.Rejoin(t, old)
		require.NotSame(t, old, g.Primary())
		claimAll(t, "e")
	})
}

func TestCluster(t *testing.T) {
	t.Parallel()
	c := StartCluster(t)
	client := c.Client(t)
	t.Run("the contract", func(t *testing.T) { contract(t, client) })
	s := newStore(t, client, redisstore.WithPrefix("cluster:"))
	// claimAll claims keys on every primary.
	claimAll := func(t *testing.T, name string) (keys []string) {
		for i := range 12 {
			key := fmt.Sprint(name, i)
			_, ok, err := s.Claim(t.Context(), key, claim("before"))
			require.NoError(t, err)
			require.True(t, ok)
			keys = append(keys, key)
		}
		return keys
	}
	t.Run("waiters are told across nodes", func(t *testing.T) {
		listens := make([]*redis.PubSub, 3)
		for i, n := range c.Primaries {
			direct := redis.NewClient(&redis.Options{Addr: n.Addr, DisableIdentity: true})
			t.Cleanup(func() { _ = direct.Close() })
			listens[i] = direct.Subscribe(t.Context(), "cluster:ended")
			t.Cleanup(func() { _ = listens[i].Close() })
			_, err := listens[i].Receive(t.Context())
			require.NoError(t, err)
		}
		keys := claimAll(t, "wait")
		waiting := newStore(t, c.Client(t), redisstore.WithPrefix("cluster:"))
		ended := make(chan string, len(keys))
		for _, key := range keys {
			go func() {
				e, _, err := waiting.Wait(t.Context(), key)
				ended <- fmt.Sprint(key, " ", e.Result, " ", err)
			}()
		}
		for _, key := range keys {
			redistest.Eventually(t, "the waiter has left its mark", func() bool {
				return client.HExists(t.Context(), "cluster:"+key, "wait").Val()
			})
		}
		var want []string
		for _, key := range keys {
			require.NoError(t, s.Complete(t.Context(), key, "before", success("r")))
			want = append(want, key+" r <nil>")
		}
		var got []string
		for range keys {
			got = append(got, <-ended)
		}
		require.ElementsMatch(t, want, got)
		// Whichever node a waiter has subscribed at, it hears of every key.
		var names []string
		for _, key := range keys {
			names = append(names, "cluster:"+key)
		}
		for _, l := range listens {
			var heard []string
			for range names {
				m, err := l.ReceiveMessage(t.Context())
				require.NoError(t, err)
				heard = append(heard, m.Payload)
			}
			require.ElementsMatch(t, names, heard)
		}
		slots := map[int64]bool{}
		for _, name := range names {
			slots[client.ClusterKeySlot(t.Context(), name).Val()*3/16384] = true
		}
		require.Len(t, slots, 3, "the keys are on every primary")
	})
	t.Run("an orderly fail-over is followed", func(t *testing.T) {
		keys := claimAll(t, "orderly")
		old := c.Primaries[1]
		c.FailOver(t, 1)
		require.NotSame(t, old, c.Primaries[1])
		remembers(t, s, keys)
	})
	t.Run("a fail-over is followed by claims that wait for a replica", func(t *testing.T) {
		// Nothing else tells this client of the fail-over.
		other := c.Client(t, func(o *redis.ClusterOptions) { o.ClusterStateReloadInterval = time.Hour })
		waits := newStore(t, other, redisstore.WithPrefix("cluster:"), redisstore.WithReplicas(1, 5*time.Second))
		// The node that told it of the Cluster may not have heard of the last one.
		eventually(t, "it is claimed", func(ctx context.Context) error {
			_, ok, err := waits.Claim(ctx, "follows", claim("before"))
			if err == nil {
				require.True(t, ok)
			}
			return err
		})
		i := int(other.ClusterKeySlot(t.Context(), "cluster:follows").Val()) * 3 / 16384
		c.FailOver(t, i)
		eventually(t, "it is claimed at the new primary", func(ctx context.Context) error {
			_, ok, err := waits.Claim(ctx, "follows", claim("before"))
			if err == nil {
				require.True(t, ok)
			}
			return err
		})
	})
	t.Run("the death of a primary is followed", func(t *testing.T) {
		client.ReloadState(t.Context()) // it still takes an old primary for one
		// What is not replicated would be lost.
		s = newStore(t, client, redisstore.WithPrefix("cluster:"), redisstore.WithReplicas(1, 10*time.Second))
		redistest.Eventually(t, "the client knows the new primary", func() bool {
			node, err := client.MasterForKey(t.Context(), c.keyOf(t, client, 1))
			return err == nil && node.Options().Addr == c.Primaries[1].Addr
		})
		keys := claimAll(t, "death")
		s = newStore(t, client, redisstore.WithPrefix("cluster:"))
		c.Primaries[0].Kill()
		c.AwaitFailOver(t, 0)
		remembers(t, s, keys)
		c.Primaries[0].Revive(t)
		c.Primaries[0], c.Replicas[0] = c.Replicas[0], c.Primaries[0]
		c.AwaitReplica(t, 0)
		c.AwaitServing(t)
	})
}

// keyOf returns a key of the primary of index i.
func (c *Cluster) keyOf(t *testing.T, client *redis.ClusterClient, i int) string {
	for n := 0; ; n++ {
		key := fmt.Sprint(n)
		if int(client.ClusterKeySlot(t.Context(), key).Val())*3/16384 == i {
			return key
		}
	}
}

// The faults of one server, as the store tells of them, and that each ends.
func TestFaults(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	client := redis.NewClient(&redis.Options{Addr: server.Addr, DisableIdentity: true})
	t.Cleanup(func() { _ = client.Close() })
	s := newStore(t, client)
	for _, c := range []struct {
		name       string
		begin, end func(testing.TB)
		want       string // of the error of a claim; "": none
	}{
		{"kill and restart", func(testing.TB) { server.Kill() }, server.Revive, "refused"},
		{"pause", server.Pause, server.Resume, context.DeadlineExceeded.Error()},
		{"full", server.Fill, server.Drain, idempotent.ErrFull.Error()},
		{"no permission", func(t testing.TB) { server.Revoke(t, "-evalsha") }, server.Grant, "NOPERM"},
		{"flushed scripts", server.FlushScripts, func(testing.TB) {}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, ok, err := s.Claim(t.Context(), c.name+" before", claim("a"))
			require.NoError(t, err)
			require.True(t, ok)
			c.begin(t)
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			_, ok, err = s.Claim(ctx, c.name+" during", claim("a"))
			require.Equal(t, c.want == "", ok)
			if c.want != "" {
				require.Error(t, err)
				// A client may use up its time with dialling again.
				require.True(t, strings.Contains(err.Error(), c.want) || c.name == "kill and restart", err)
			}
			c.end(t)
			eventually(t, "it works again", func(ctx context.Context) error { return s.Complete(ctx, c.name+" before", "a", success("r")) })
			e, _, err := s.Load(t.Context(), c.name+" before")
			require.NoError(t, err)
			require.Equal(t, "r", e.Result)
			require.True(t, e.Claimed.Before(e.Timestamp), "the claim was not forgotten")
		})
	}
}
