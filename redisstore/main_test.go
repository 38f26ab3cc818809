package redisstore_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/redisstore"
)

func TestMain(m *testing.M) {
	logging.Disable() // outages are planned here
	// These tests wait for servers and lapses, not for a processor.
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = f.Value.Set("16")
	}
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

// claim is a claim with the usual times.
func claim(owner string) idempotent.Claim {
	return idempotent.Claim{Owner: owner, Fingerprint: "f", Trace: "t", Lease: time.Minute, Keep: time.Hour}
}

// success is an outcome with the usual times.
func success(result string) idempotent.Outcome {
	return idempotent.Outcome{Status: idempotent.Success, Result: result, Fingerprint: "f", Retention: time.Hour}
}

// claimed claims key for owner and fails the test where it is refused.
func claimed(t testing.TB, s idempotent.Store, key, owner string) idempotent.Entry {
	t.Helper()
	e, ok, err := s.Claim(t.Context(), key, claim(owner))
	require.NoError(t, err)
	require.True(t, ok)
	return e
}

// ctxFor returns a context that ends after d.
func ctxFor(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
