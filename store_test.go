package idempotent_test

import (
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/internal/redistest/damage"
	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/redisstore"
	"github.com/idempotent-go/idempotent/storetest"
)

// Every backend keeps the same contract.
func TestC016_C050_Stores(t *testing.T) {
	t.Run("memstore", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) storetest.Harness {
			s := memstore.New(memstore.WithLogger(slog.New(slog.DiscardHandler)))
			t.Cleanup(func() { _ = s.Close() })
			return storetest.Harness{Store: s, Wrap: synctest.Test}
		})
	})
	t.Run("redisstore", func(t *testing.T) {
		addr := redistest.Start(t).Addr
		storetest.Run(t, func(t *testing.T) storetest.Harness { return redisHarness(t, addr) })
	})
	t.Run("redisstore on miniredis", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) storetest.Harness {
			addr, advance := redistest.Mini(t)
			h := redisHarness(t, addr)
			h.Advance = advance
			return h
		})
	})
}

// redisHarness returns a store with a prefix of its own on the server at addr.
func redisHarness(t *testing.T, addr string) storetest.Harness {
	client := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = client.Close() })
	prefix := "test:" + t.Name() + ":"
	open := func() idempotent.Store {
		s := redisstore.New(client, redisstore.WithPrefix(prefix))
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	return storetest.Harness{
		Store:   open(),
		Second:  open,
		Corrupt: damage.Records(client, prefix),
	}
}
