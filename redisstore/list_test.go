package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/redisstore"
)

// listed goes through all pages and returns what they have, sorted, and their
// number.
func listed(t testing.TB, s *redisstore.Store, q idempotent.ListQuery) (keys, corrupt []string, pages int) {
	t.Helper()
	for {
		page, err := s.List(t.Context(), q)
		require.NoError(t, err)
		pages++
		for _, e := range page.Entries {
			keys = append(keys, e.Key)
		}
		corrupt = append(corrupt, page.Corrupt...)
		if q.Cursor = page.Next; q.Cursor == "" {
			slices.Sort(keys)
			slices.Sort(corrupt)
			return slices.Compact(keys), slices.Compact(corrupt), pages
		}
	}
}

// What lies under the prefix and is none of the store's records is named, with
// the types that Redis has, and names that no key has.
func TestListOfForeignNames(t *testing.T) {
	t.Parallel()
	s, client, prefix := onServer(t)
	ctx := t.Context()
	claimed(t, s, "ours", "a")
	require.NoError(t, client.Set(ctx, prefix+"text", "x", time.Minute).Err())
	require.NoError(t, client.RPush(ctx, prefix+"list", "x").Err())
	require.NoError(t, client.HSet(ctx, prefix+"hash", "status", "pending").Err())
	require.NoError(t, client.HSet(ctx, prefix+"hash2", "x", "y").Err())
	require.NoError(t, client.Set(ctx, prefix+"{brace}", "x", time.Minute).Err())
	require.NoError(t, client.Set(ctx, prefix+"half!", "x", time.Minute).Err())
	require.NoError(t, client.Set(ctx, prefix, "x", time.Minute).Err())
	keys, corrupt, _ := listed(t, s, idempotent.ListQuery{})
	require.Equal(t, []string{"ours"}, keys)
	require.Equal(t, []string{"", "half!", "hash", "hash2", "list", "text", "{brace}"}, corrupt)
	for _, key := range []string{"hash", "list", "text"} {
		_, _, err := s.Load(ctx, key)
		require.ErrorIs(t, err, idempotent.ErrCorrupt, key)
	}
}

// A prefix of the store, and one of a query, are literal, whatever bytes they
// have.
func TestListPrefixes(t *testing.T) {
	t.Parallel()
	client := newClient(t, redistest.Shared(t).Addr)
	odd := newPrefix() + "[a-z]*?\\^{tag}\xff:"
	s := newStore(t, client, redisstore.WithPrefix(odd))
	near := newStore(t, client, redisstore.WithPrefix(strings.Replace(odd, "[a-z]", "b", 1)))
	for _, s := range []*redisstore.Store{s, near} {
		for _, key := range []string{"\xff\xfea", "\xff\xfeb", "\xffa", "{a}", "!(a}", "!a"} {
			claimed(t, s, key, "a")
		}
	}
	for prefix, want := range map[string][]string{
		"\xff\xfe": {"\xff\xfea", "\xff\xfeb"},
		"{":        {"{a}"},
		"!":        {"!(a}", "!a"},
		"!(":       {"!(a}"},
		"":         {"!(a}", "!a", "{a}", "\xffa", "\xff\xfea", "\xff\xfeb"},
	} {
		keys, corrupt, _ := listed(t, s, idempotent.ListQuery{Prefix: prefix, Limit: 2})
		require.Equal(t, want, keys, "%q", prefix)
		require.Empty(t, corrupt)
	}
}

// On a server that is full of other names a page ends after a bounded number
// of steps, and is read in one round trip. Nothing is asked that would block.
func TestListIsBounded(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := newClient(t, server.Addr)
	s := newStore(t, client)
	ctx := t.Context()
	pipe := client.Pipeline()
	for i := range 20_000 {
		pipe.Set(ctx, fmt.Sprint("other", i), "x", 0)
	}
	_, err := pipe.Exec(ctx)
	require.NoError(t, err)
	var want []string
	for i := range 20 {
		key := fmt.Sprint("k", i)
		claimed(t, s, key, "a")
		if i%2 == 0 {
			require.NoError(t, s.Complete(ctx, key, "a", success("s3cr3t-result")))
		}
		want = append(want, key)
	}
	slices.Sort(want)
	keys, _, _ := listed(t, s, idempotent.ListQuery{})
	require.Equal(t, want, keys)

	m := newMonitor(t, server.Addr)
	m.take(t, client)
	empty := 0
	for q := (idempotent.ListQuery{}); ; {
		page, err := s.List(ctx, q)
		require.NoError(t, err)
		sent, inside := m.take(t, client)
		scans, reads := 0, 0
		for _, command := range sent {
			switch command {
			case "scan":
				scans++
			case "evalsha":
				reads++
			default:
				t.Fatalf("sent %s", command)
			}
		}
		require.LessOrEqual(t, scans, 32)
		require.Equal(t, reads, len(page.Entries))
		require.NotContains(t, inside, "hget", "results are left where they are")
		if len(page.Entries) == 0 {
			empty++
		}
		if q.Cursor = page.Next; q.Cursor == "" {
			break
		}
	}
	require.NotZero(t, empty, "the server has names enough for an empty page")
}

// Entries that stand are listed although the server grows and shrinks its table
// meanwhile; pages of one are where a SCAN returns more than fits.
func TestListWhileTheTableIsRehashed(t *testing.T) {
	t.Parallel()
	client := newClient(t, redistest.Start(t).Addr)
	s := newStore(t, client)
	ctx := t.Context()
	var want []string
	for i := range 300 {
		want = append(want, fmt.Sprintf("k%03d", i))
		claimed(t, s, want[i], "a")
	}
	for _, limit := range []int{1, 3, 40} {
		var keys []string
		others := 0
		for q := (idempotent.ListQuery{Limit: limit}); ; {
			page, err := s.List(ctx, q)
			require.NoError(t, err)
			require.LessOrEqual(t, len(page.Entries), limit)
			for _, e := range page.Entries {
				keys = append(keys, e.Key)
			}
			if q.Cursor = page.Next; q.Cursor == "" {
				break
			}
			pipe := client.Pipeline()
			for range 200 {
				if others/10_000%2 == 0 {
					pipe.Set(ctx, fmt.Sprint("other", others%10_000), "x", 0)
				} else {
					pipe.Del(ctx, fmt.Sprint("other", others%10_000))
				}
				others++
			}
			_, err = pipe.Exec(ctx)
			require.NoError(t, err)
		}
		slices.Sort(keys)
		require.Equal(t, want, slices.Compact(keys), "limit %d", limit)
	}
}

func TestListOnClusterAndRing(t *testing.T) {
	t.Parallel()
	var want []string
	for i := range 100 {
		want = append(want, fmt.Sprintf("k%03d", i))
	}
	onEvery := func(t *testing.T, client redis.UniversalClient, addrs []string) {
		t.Cleanup(func() { _ = client.Close() })
		s := newStore(t, client)
		for _, key := range want {
			claimed(t, s, key, "a")
		}
		for _, addr := range addrs {
			require.NotZero(t, newClient(t, addr).DBSize(t.Context()).Val(), "each node has some")
		}
		for _, limit := range []int{1, 7, 30, 100} {
			keys, _, _ := listed(t, s, idempotent.ListQuery{Limit: limit})
			require.Equal(t, want, keys)
		}
		page, err := s.List(t.Context(), idempotent.ListQuery{Limit: 1})
		require.NoError(t, err)
		require.Regexp(t, `^[0-9]+@[^,]*:[0-9]+`, page.Next, "the cursor names its node")
		for _, cursor := range []string{"0@127.0.0.1:1", "1@"} {
			_, err = s.List(t.Context(), idempotent.ListQuery{Cursor: cursor})
			require.ErrorIs(t, err, idempotent.ErrInvalid)
		}
	}
	servers := func(t *testing.T) []string {
		return []string{redistest.Start(t).Addr, redistest.Start(t).Addr, redistest.Start(t).Addr}
	}
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		addrs := servers(t)
		onEvery(t, redis.NewClusterClient(&redis.ClusterOptions{
			// Servers that know nothing of each other, each with a third.
			ClusterSlots: func(context.Context) (slots []redis.ClusterSlot, err error) {
				for i, addr := range addrs {
					slots = append(slots, redis.ClusterSlot{
						Start: i * 5462, End: min(i*5462+5461, 16383), Nodes: []redis.ClusterNode{{Addr: addr}},
					})
				}
				return slots, nil
			},
		}), addrs)
	})
	t.Run("ring", func(t *testing.T) {
		t.Parallel()
		addrs := servers(t)
		onEvery(t, redis.NewRing(&redis.RingOptions{
			Addrs: map[string]string{"one": addrs[0], "two": addrs[1], "three": addrs[2]},
		}), addrs)
	})
	t.Run("a client that does not tell", func(t *testing.T) {
		t.Parallel()
		client := newClient(t, redistest.Shared(t).Addr)
		s := newStore(t, struct{ redis.UniversalClient }{client})
		_, err := s.List(t.Context(), idempotent.ListQuery{})
		require.ErrorIs(t, err, errors.ErrUnsupported)
	})
}

func TestListCursors(t *testing.T) {
	t.Parallel()
	s, _, _ := onServer(t)
	for _, cursor := range []string{"0@", "7@", "18446744073709551615@", "0@,AAAAAAAAAAAA"} {
		_, err := s.List(t.Context(), idempotent.ListQuery{Cursor: cursor})
		require.NoError(t, err, cursor)
	}
	for _, cursor := range []string{
		"7", "@", "-1@", "07@", "+7@", "18446744073709551616@", "7@,", "7@,short", "7@,AAAAAAAAAA==", "7@,AAAAAAAAAAAAA",
		"7@127.0.0.1:6379", " 7@", "x@",
	} {
		_, err := s.List(t.Context(), idempotent.ListQuery{Cursor: cursor})
		require.ErrorIs(t, err, idempotent.ErrInvalid, cursor)
	}
}

// A server that has forgotten its scripts gets them again, and one whose user
// may not list says what is missing.
func TestListOnAnotherServer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin := newClient(t, server.Addr)
	ctx := t.Context()
	s := newStore(t, admin)
	for i := range 3 {
		claimed(t, s, fmt.Sprint("k", i), "a")
	}
	require.NoError(t, admin.ScriptFlush(ctx).Err())
	keys, corrupt, _ := listed(t, s, idempotent.ListQuery{})
	require.Equal(t, []string{"k0", "k1", "k2"}, keys)
	require.Empty(t, corrupt)

	const needed = "+evalsha +eval +hmget +hget +exists +time"
	user := func(name string, more ...string) *redisstore.Store {
		rules := strings.Fields("on nopass resetkeys ~idempotent:* -@all +hello +auth +client " + needed)
		args := []any{"acl", "setuser", name}
		for _, rule := range append(rules, more...) {
			args = append(args, rule)
		}
		require.NoError(t, admin.Do(ctx, args...).Err())
		return newStore(t, newClient(t, server.Addr, func(o *redis.Options) { o.Username, o.Password = name, "any" }))
	}
	require.NoError(t, s.Complete(ctx, "k0", "a", success("r"))) // HEXISTS is for what is finished
	for _, s := range []*redisstore.Store{user("none"), user("scan", "+scan"), user("read", "+hexists")} {
		_, err := s.List(ctx, idempotent.ListQuery{})
		require.ErrorContains(t, err, "+scan +hexists")
	}
	keys, _, _ = listed(t, user("both", "+scan", "+hexists"), idempotent.ListQuery{})
	require.Equal(t, []string{"k0", "k1", "k2"}, keys)
}
