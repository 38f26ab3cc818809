// Package damage damages records of package redisstore. It is apart from
// redistest, which the client module links without a Redis client.
package damage

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent/storetest"
)

// Records returns what damages the records of a redisstore with that prefix,
// for [storetest.Harness]. It knows the form in which they are kept.
func Records(client redis.UniversalClient, prefix string) func(key string, c storetest.Corruption) error {
	return func(key string, c storetest.Corruption) error {
		ctx, name := context.Background(), prefix+key
		claim, err := client.HGet(ctx, name, "claim").Result()
		if err != nil {
			return err
		}
		switch c {
		case storetest.Foreign:
			// Of the same length, or the record would be no record.
			return client.HSet(ctx, name, "claim", strings.Replace(claim, "\n"+key, "\n"+strings.Repeat("o", len(key)), 1)).Err()
		case storetest.Garbage:
			return client.Set(ctx, name, "no hash", time.Hour).Err()
		case storetest.Missing:
			return client.HDel(ctx, name, "result").Err()
		case storetest.Newer:
			return client.HSet(ctx, name, "claim", "2"+claim[1:]).Err()
		}
		return fmt.Errorf("damage: no such corruption: %v", c)
	}
}
