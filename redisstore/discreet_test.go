package redisstore_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
)

// C088: errors end in logs, and no text of them shows a key, an owner or a
// result.
func TestC088_ErrorsShowNoKey(t *testing.T) {
	t.Parallel()
	const key = "POST:/s3cr3t-path:s3cr3t-user:s3cr3t-key"
	all := func(t *testing.T, addr string, want string) {
		t.Helper()
		s := newStore(t, newClient(t, addr, func(o *redis.Options) { o.MaxRetries, o.Protocol = -1, 2 }))
		ctx := t.Context()
		c := idempotent.Claim{Owner: "s3cr3t-owner", Fingerprint: "s3cr3t-print", Trace: "s3cr3t-trace", Lease: time.Minute, Keep: time.Minute}
		_, _, err := s.Claim(ctx, key, c)
		_, _, loadErr := s.Load(ctx, key)
		_, _, waitErr := s.Wait(ctx, key)
		for step, err := range map[string]error{
			"claim": err, "load": loadErr, "wait": waitErr,
			"renew":    s.Renew(ctx, key, c.Owner, time.Minute),
			"complete": s.Complete(ctx, key, c.Owner, success("s3cr3t-result")),
			"release":  s.Release(ctx, key, c.Owner),
			"delete":   s.Delete(ctx, key),
		} {
			require.ErrorContains(t, err, "redisstore: "+step+": ")
			require.ErrorContains(t, err, want, step)
			require.NotContains(t, err.Error(), "s3cr3t", step)
			require.NotContains(t, fmt.Sprintf("%v %+v", err, err), "s3cr3t", step)
		}
		_, err = s.Check(ctx)
		if err != nil {
			require.NotContains(t, err.Error(), "s3cr3t")
		}
	}
	t.Run("a server that repeats what it does not know", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t, "--rename-command", "EVALSHA", "", "--rename-command", "EVAL", "")
		all(t, server.Addr, "ERR unknown command 'evalsha'…")
	})
	t.Run("a proxy that names the hash", func(t *testing.T) {
		t.Parallel()
		f := redistest.NewFake(t, func(words []string) string {
			name := ""
			for _, w := range words {
				if strings.HasPrefix(w, "idempotent:POST") {
					name = w
				}
			}
			return "-ERR no shard has " + name + " now"
		})
		all(t, f.Addr, "ERR no shard has "+idempotent.LogKey(key)+" now")
	})
	t.Run("a reply that is the middle of a record", func(t *testing.T) {
		t.Parallel()
		f := redistest.NewFake(t, func([]string) string { return "1 4 5 6 7 POST:/s3cr3t-path:s3cr3t-user:s3cr3t-key" })
		all(t, f.Addr, "redis: ")
	})
}
