package idempotent_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
)

// deriveIn returns what one execution under key derives.
func deriveIn(t *testing.T, g *idempotent.Guard, key string, steps ...string) (keys []string, owner string) {
	t.Helper()
	err := g.Do(context.Background(), key, func(ctx context.Context) error {
		x, _ := idempotent.FromContext(ctx)
		owner = x.Owner
		for _, step := range steps {
			keys = append(keys, idempotent.Derive(ctx, step))
		}
		idempotent.Release(ctx)
		return nil
	})
	require.NoError(t, err)
	return keys, owner
}

func TestDerive(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	g := idempotent.New(store)

	first, owner := deriveIn(t, g, "order:1", "charge", "mail")
	again, other := deriveIn(t, g, "order:1", "charge", "mail")
	require.NotEqual(t, owner, other, "two executions")
	require.Equal(t, first, again, "the same on every attempt")

	// Long names and steps end in a digest, and nothing of them is lost.
	long := strings.Repeat("x", 2000)
	seen := map[string]string{}
	for _, key := range []string{"order:1", "order:2", "order", long + "1", long + "2"} {
		for _, step := range []string{"charge", "mail", "1:charge", "1", long + "1", long + "2"} {
			keys, _ := deriveIn(t, g, key, step)
			require.Regexp(t, "^[0-9a-f]{64}$", keys[0])
			name := fmt.Sprintf("%.20s…%d %.20s…%d", key, len(key), step, len(step))
			require.Empty(t, seen[keys[0]], "%s", name)
			seen[keys[0]] = name
		}
	}
}

// A derived key must not change with a release: a repeat after the deploy
// would be a new call.
func TestDerive_Golden(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	keys, _ := deriveIn(t, idempotent.New(store), idempotent.StoreKey("POST", "/orders", "alice", "3f1c"), "charge")
	require.Equal(t, "6cb00ab809a3313e9215fc12715f9b88d0a5efe82cd594b4bafb8ddd4a246b52", keys[0])
}

func TestDerive_Nowhere(t *testing.T) {
	t.Parallel()
	require.Empty(t, idempotent.Derive(context.Background(), "charge"))
	store := memstore.New()
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	keys, _ := deriveIn(t, idempotent.New(store), "order:1", "")
	require.Empty(t, keys[0], "a forgotten step")
}

func TestDerive_Innermost(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	g := idempotent.New(store)
	alone, _ := deriveIn(t, g, "inner", "charge")
	require.NoError(t, g.Do(context.Background(), "outer", func(ctx context.Context) error {
		outside := idempotent.Derive(ctx, "charge")
		return g.Do(ctx, "inner", func(ctx context.Context) error {
			require.Equal(t, alone[0], idempotent.Derive(ctx, "charge"))
			require.NotEqual(t, outside, idempotent.Derive(ctx, "charge"))
			return nil
		})
	}))
}

func ExampleDerive() {
	store := memstore.New()
	defer store.Close()
	guard := idempotent.New(store)

	attempts := map[string]int{}
	for range 2 {
		_ = guard.Do(context.Background(), "order:17", func(ctx context.Context) error {
			// Sent along with the call to the payment provider, as its
			// Idempotency-Key.
			attempts[idempotent.Derive(ctx, "charge")]++
			idempotent.Release(ctx) // the provider was away: the next attempt runs
			return nil
		})
	}
	for key, n := range attempts {
		fmt.Println(len(key), "digits, the same on", n, "attempts")
	}
	// Output: 64 digits, the same on 2 attempts
}
