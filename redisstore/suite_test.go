package redisstore_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/internal/redistest/damage"
	"github.com/idempotent-go/idempotent/redisstore"
	"github.com/idempotent-go/idempotent/storetest"
)

// harness returns a store with a prefix of its own on client.
func harness(t *testing.T, client redis.UniversalClient) storetest.Harness {
	prefix := newPrefix()
	open := func() *redisstore.Store { return newStore(t, client, redisstore.WithPrefix(prefix)) }
	return storetest.Harness{
		Store:   open(),
		Second:  func() idempotent.Store { return open() },
		Corrupt: damage.Records(client, prefix),
	}
}

// The whole contract, on every kind of server (C016, C050).
func TestC016_C036_C050_Store(t *testing.T) {
	t.Parallel()
	t.Run("server", func(t *testing.T) {
		t.Parallel()
		client := newClient(t, redistest.Shared(t).Addr)
		storetest.Run(t, func(t *testing.T) storetest.Harness { return harness(t, client) })
	})
	t.Run("auto-pipelining", func(t *testing.T) {
		t.Parallel()
		client, err := newClient(t, redistest.Shared(t).Addr).AutoPipeline()
		require.NoError(t, err)
		t.Cleanup(func() { _ = client.Close() })
		storetest.Run(t, func(t *testing.T) storetest.Harness { return harness(t, client) })
	})
	t.Run("C036 cluster", func(t *testing.T) {
		t.Parallel()
		server := redistest.StartCluster(t)
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr}, ReadOnly: true})
		t.Cleanup(func() { _ = client.Close() })
		storetest.Run(t, func(t *testing.T) storetest.Harness { return harness(t, client) })
	})
	t.Run("miniredis", func(t *testing.T) {
		t.Parallel()
		storetest.Run(t, func(t *testing.T) storetest.Harness {
			addr, advance := redistest.Mini(t)
			h := harness(t, newClient(t, addr))
			h.Advance = advance
			return h
		})
	})
}
