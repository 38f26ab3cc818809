package sqlstore_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/redisstore"
	"github.com/idempotent-go/idempotent/sqlstore"
	"github.com/idempotent-go/idempotent/sqlstore/internal/sqltest"
	"github.com/idempotent-go/idempotent/storetest"
)

// The same load on memory, on Redis and on each database. The servers that the
// benchmark starts do not wait for the disk; name your own by the environment.
func BenchmarkStore(b *testing.B) {
	b.Run("memory", func(b *testing.B) {
		storetest.Bench(b, func(b *testing.B) idempotent.Store {
			s := memstore.New(memstore.WithMaxEntries(1 << 24))
			b.Cleanup(func() { _ = s.Close() })
			return s
		})
	})
	b.Run("redis", func(b *testing.B) {
		client := redis.NewClient(&redis.Options{Addr: redistest.Start(b).Addr, PoolSize: 128})
		b.Cleanup(func() { _ = client.Close() })
		storetest.Bench(b, func(b *testing.B) idempotent.Store {
			if err := client.FlushDB(b.Context()).Err(); err != nil {
				b.Fatal(err)
			}
			s := redisstore.New(client)
			b.Cleanup(func() { _ = s.Close() })
			return s
		})
	})
	for _, kind := range sqltest.Kinds {
		b.Run(string(kind), func(b *testing.B) {
			d := sqltest.New(b, kind)
			if kind == sqltest.MySQL {
				d = d.With("interpolateParams", "true")
			}
			db := d.Open(b)
			storetest.Bench(b, func(b *testing.B) idempotent.Store {
				return newStore(b, db, kind, sqlstore.WithTable(newTable()))
			})
		})
	}
}
