package redisstore_test

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/internal/backendtest"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/redisstore"
)

func TestMain(m *testing.M) {
	logging.Disable() // outages are planned here
	backendtest.Parallel(16)
	code := m.Run()
	redistest.StopShared()
	os.Exit(code)
}

var prefixes atomic.Int64

// newPrefix returns a prefix that no other test of this binary uses.
func newPrefix() string { return fmt.Sprintf("t%d:", prefixes.Add(1)) }

// newClient returns a client of addr that ends with the test.
func newClient(t testing.TB, addr string, change ...func(*redis.Options)) *redis.Client {
	t.Helper()
	o := &redis.Options{Addr: addr, DisableIdentity: true}
	for _, f := range change {
		f(o)
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// newStore returns a store that ends with the test.
func newStore(t testing.TB, client redis.UniversalClient, opts ...redisstore.Option) *redisstore.Store {
	t.Helper()
	s := redisstore.New(client, opts...)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// onServer returns a store on the shared server, with a prefix and a client of
// its own.
func onServer(t testing.TB, opts ...redisstore.Option) (*redisstore.Store, *redis.Client, string) {
	t.Helper()
	prefix := newPrefix()
	client := newClient(t, redistest.Shared(t).Addr)
	return newStore(t, client, append([]redisstore.Option{redisstore.WithPrefix(prefix)}, opts...)...), client, prefix
}

// What the tests of both servers' stores have in common.
var (
	claim   = backendtest.Claim
	success = backendtest.Success
	claimed = backendtest.Claimed
	ctxFor  = backendtest.Within
)
