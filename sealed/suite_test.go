package sealed_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/redisstore"
	"github.com/idempotent-go/idempotent/sealed"
	"github.com/idempotent-go/idempotent/storetest"
)

func mem(t testing.TB) *memstore.Store {
	s := memstore.New(memstore.WithLogger(slog.New(slog.DiscardHandler)))
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// key returns a key whose secret is made of its id.
func key(id string) sealed.Key {
	return sealed.Key{ID: id, Secret: bytes.Repeat([]byte(id+"."), 32)}
}

func keys(t testing.TB, ids ...string) sealed.Keys {
	t.Helper()
	var all []sealed.Key
	for _, id := range ids {
		all = append(all, key(id))
	}
	k, err := sealed.NewKeys(all...)
	require.NoError(t, err)
	return k
}

// A sealed store keeps the contract. The second handle seals by itself, as
// another process does: what either sends twice the store below recognises.
func TestContract(t *testing.T) {
	for name, opts := range map[string][]sealed.Option{
		"": nil, ", without compression": {sealed.WithoutCompression()},
	} {
		t.Run("memory"+name, func(t *testing.T) {
			storetest.Run(t, func(t *testing.T) storetest.Harness {
				inner := mem(t)
				open := func() idempotent.Store { return sealed.New(inner, keys(t, "a", "b"), opts...) }
				return storetest.Harness{Store: open(), Second: open, Wrap: synctest.Test}
			})
		})
	}
	t.Run("Redis", func(t *testing.T) {
		addr := redistest.Start(t).Addr
		storetest.Run(t, func(t *testing.T) storetest.Harness {
			client := redis.NewClient(&redis.Options{Addr: addr})
			t.Cleanup(func() { _ = client.Close() })
			prefix := t.Name() + ":"
			inner := redisstore.New(client, redisstore.WithPrefix(prefix))
			t.Cleanup(func() { _ = inner.Close() })
			open := func() idempotent.Store { return sealed.New(inner, keys(t, "a", "b")) }
			return storetest.Harness{
				Store: open(), Second: open,
				Corrupt: func(key string, c storetest.Corruption) error {
					return corrupt(t.Context(), client, prefix+key, key, c)
				},
			}
		})
	})
}

// corrupt damages the hash called name.
func corrupt(ctx context.Context, client *redis.Client, name, key string, c storetest.Corruption) error {
	claim, err := client.HGet(ctx, name, "claim").Result()
	if err != nil {
		return err
	}
	switch c {
	case storetest.Foreign:
		other := strings.Replace(claim, "\n"+key, "\n"+strings.Repeat("o", len(key)), 1)
		return client.HSet(ctx, name, "claim", other).Err()
	case storetest.Missing:
		return client.HDel(ctx, name, "result").Err()
	case storetest.Newer:
		return client.HSet(ctx, name, "claim", "2"+claim[1:]).Err()
	default:
		return client.Set(ctx, name, "no hash", time.Hour).Err()
	}
}
