package redisstore_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/redisstore"
)

// monitor records the commands that clients send to a server; what scripts do
// inside is kept apart.
type monitor struct {
	mu     sync.Mutex
	sent   []string // "evalsha", without arguments
	inside []string
}

func newMonitor(t *testing.T, addr string) *monitor {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	m := &monitor{}
	r := bufio.NewReader(c)
	_, err = c.Write(redistest.Command("MONITOR"))
	require.NoError(t, err)
	_, err = r.ReadString('\n') // +OK
	require.NoError(t, err)
	var done sync.WaitGroup
	done.Go(func() {
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			// +1796073242.973170 [0 127.0.0.1:5000] "evalsha" ... or [0 lua]
			_, rest, _ := strings.Cut(line, "[")
			source, rest, _ := strings.Cut(rest, "] \"")
			command, _, _ := strings.Cut(rest, "\"")
			m.mu.Lock()
			if strings.HasSuffix(source, " lua") {
				m.inside = append(m.inside, strings.ToLower(command))
			} else {
				m.sent = append(m.sent, strings.ToLower(command))
			}
			m.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		_ = c.Close()
		done.Wait()
	})
	return m
}

// take returns what has arrived since the last call, up to a mark that it sends
// itself through client.
func (m *monitor) take(t *testing.T, client *redis.Client) (sent, inside []string) {
	t.Helper()
	require.NoError(t, client.Echo(t.Context(), "mark").Err())
	redistest.Eventually(t, "the mark arrives", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.sent) > 0 && m.sent[len(m.sent)-1] == "echo"
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	sent, inside = m.sent[:len(m.sent)-1], m.inside
	m.sent, m.inside = nil, nil
	return sent, inside
}

// C034 and P11: what each step sends, and what its script does.
func TestC034_Commands(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := newClient(t, server.Addr)
	s := newStore(t, client)
	ctx := t.Context()
	for _, f := range calls(s) { // scripts are loaded, connections made
		_ = f(ctx)
	}
	require.NoError(t, s.Delete(ctx, "k"))
	m := newMonitor(t, server.Addr)
	m.take(t, client)
	for _, c := range []struct {
		name   string
		step   func() error
		inside []string
	}{
		{"fresh claim", func() error { _, _, err := s.Claim(ctx, "k", claim("a")); return err }, []string{"exists", "time", "hset", "pexpireat"}},
		{"mismatch in flight", func() error {
			c := claim("b")
			c.Fingerprint = "another"
			_, _, err := s.Claim(ctx, "k", c)
			return err
		}, []string{"exists", "hmget", "time"}},
		{"in flight", func() error { _, _, err := s.Claim(ctx, "k", claim("b")); return err }, []string{"exists", "hmget", "time"}},
		{"load in flight", func() error { _, _, err := s.Load(ctx, "k"); return err }, []string{"exists", "hmget", "time"}},
		{"renewal", func() error { return s.Renew(ctx, "k", "a", time.Minute) }, []string{"hmget", "time", "pexpireat", "hset"}},
		{"completion", func() error { return s.Complete(ctx, "k", "a", success("r")) }, []string{"hmget", "time", "pexpireat", "hset"}},
		{"replay", func() error { _, _, err := s.Claim(ctx, "k", claim("b")); return err }, []string{"exists", "hmget"}},
		{"load", func() error { _, _, err := s.Load(ctx, "k"); return err }, []string{"exists", "hmget"}},
		{"wait for nothing", func() error { _, _, err := s.Wait(ctx, "k"); return err }, []string{"exists", "hmget"}},
		{"delete", func() error { return s.Delete(ctx, "k") }, []string{"hget", "del"}},
	} {
		require.NoError(t, c.step(), c.name)
		sent, inside := m.take(t, client)
		require.Equal(t, []string{"evalsha"}, sent, c.name)
		require.Equal(t, c.inside, inside, c.name)
	}
}

func TestC037_Slots(t *testing.T) {
	t.Parallel()
	server := redistest.StartCluster(t)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr}})
	t.Cleanup(func() { _ = client.Close() })
	ctx := t.Context()
	s := newStore(t, client)
	names := func(keys ...string) []string {
		var found []string
		for _, key := range keys {
			claimed(t, s, key, "a")
		}
		found, err := client.Keys(ctx, "*").Result()
		require.NoError(t, err)
		for _, key := range keys {
			require.NoError(t, s.Renew(ctx, key, "a", time.Minute))
			require.NoError(t, s.Complete(ctx, key, "a", success(key)))
			e, _, err := s.Load(ctx, key)
			require.NoError(t, err)
			require.Equal(t, key, e.Result)
			require.NoError(t, s.Delete(ctx, key))
		}
		return found
	}
	odd := []string{"{a}b", "}{", "{}", "a{", "!(a!)b", "!!", "!", "(a)b", "a", "{", "!(", "!!(", "\x00", "\xff\r\n", "*"}
	require.Len(t, names(odd...), len(odd), "no two keys meet in one name")

	var same []string
	for i := range 100 {
		same = append(same, fmt.Sprint("{same}", i))
	}
	slots := map[int64]bool{}
	for _, name := range names(same...) {
		slots[client.ClusterKeySlot(ctx, name).Val()] = true
	}
	require.Greater(t, len(slots), 50)

	// An operator may choose one slot for all.
	tagged := newStore(t, client, redisstore.WithPrefix("{one}:"))
	claimed(t, tagged, "}{x}", "a")
	require.Equal(t, []string{"{one}:!)!(x!)"}, client.Keys(ctx, "*").Val())
}

// Look-ups go to the primary although the client prefers replicas.
func TestC041_ReadsFromThePrimary(t *testing.T) {
	t.Parallel()
	primary := redistest.StartCluster(t)
	replica := redistest.Start(t, "--cluster-enabled", "yes")
	_, port, _ := strings.Cut(primary.Addr, ":")
	_, err := replica.Do("CLUSTER", "MEET", "127.0.0.1", port)
	require.NoError(t, err)
	id, err := primary.Do("CLUSTER", "MYID")
	require.NoError(t, err)
	redistest.Eventually(t, "the replica follows", func() bool {
		_, err := replica.Do("CLUSTER", "REPLICATE", id)
		return err == nil
	})
	redistest.Eventually(t, "the link is up", func() bool {
		info, _ := replica.Do("INFO", "replication")
		nodes, _ := primary.Do("CLUSTER", "SLOTS")
		state, _ := replica.Do("CLUSTER", "INFO")
		return strings.Contains(info, "master_link_status:up") && nodes != "" && strings.Contains(state, "cluster_state:ok")
	})
	for name, o := range map[string]*redis.ClusterOptions{
		// RouteByLatency sets ReadOnly as well; go-redis measures latencies with a
		// data race of its own, so it is not tried here.
		"ReadOnly":      {ReadOnly: true},
		"RouteRandomly": {RouteRandomly: true},
	} {
		t.Run(name, func(t *testing.T) {
			o.Addrs = []string{primary.Addr}
			client := redis.NewClusterClient(o)
			defer func() { _ = client.Close() }()
			redistest.Eventually(t, "the client knows the replica", func() bool {
				client.ReloadState(t.Context())
				n := 0
				_ = client.ForEachSlave(t.Context(), func(_ context.Context, _ *redis.Client) error { n++; return nil })
				return n == 1
			})
			direct := newClient(t, replica.Addr)
			m := newMonitor(t, replica.Addr)
			s := newStore(t, client, redisstore.WithPrefix(newPrefix()))
			for i := range 20 {
				key := fmt.Sprint(i)
				claimed(t, s, key, "a")
				require.NoError(t, s.Complete(t.Context(), key, "a", success("r")))
				_, found, err := s.Load(t.Context(), key)
				require.NoError(t, err)
				require.True(t, found)
			}
			sent, _ := m.take(t, direct)
			for _, command := range sent {
				require.NotContains(t, command, "eval")
			}
		})
	}
}

// Entries that cannot be read stop every step and are left as they are (C020,
// B80, rules 8 and 9).
func TestC020_Unreadable(t *testing.T) {
	t.Parallel()
	client := newClient(t, redistest.Shared(t).Addr)
	ctx := t.Context()
	const good = "1 1 1\nka\n1 1 3600000 0\nft\n1796073242973170 0 0"
	at := fmt.Sprintf("%d %d", time.Now().UnixMicro(), time.Now().Add(time.Hour).UnixMicro())
	for name, c := range map[string]struct {
		fields []string
		want   error
	}{
		"newer":                   {[]string{"status", "success", "time", at, "result", "r", "claim", "2" + good[1:]}, idempotent.ErrNewerFormat},
		"newer, other fields":     {[]string{"claim", "12 whatever"}, idempotent.ErrNewerFormat},
		"newer, pending":          {[]string{"status", "pending", "time", at, "claim", "2" + good[1:]}, idempotent.ErrNewerFormat},
		"format 0":                {[]string{"status", "success", "time", at, "result", "r", "claim", "0" + good[1:]}, idempotent.ErrCorrupt},
		"no format":               {[]string{"status", "success", "time", at, "result", "r", "claim", "garbage"}, idempotent.ErrCorrupt},
		"no claim":                {[]string{"status", "success", "time", at, "result", "r"}, idempotent.ErrCorrupt},
		"no status":               {[]string{"time", at, "result", "r", "claim", good}, idempotent.ErrCorrupt},
		"no time":                 {[]string{"status", "success", "result", "r", "claim", good}, idempotent.ErrCorrupt},
		"C020 no result":          {[]string{"status", "success", "time", at, "claim", good}, idempotent.ErrCorrupt},
		"somebody else's hash":    {[]string{"name", "value"}, idempotent.ErrCorrupt},
		"other status":            {[]string{"status", "running", "time", at, "result", "r", "claim", good}, idempotent.ErrCorrupt},
		"other time":              {[]string{"status", "success", "time", "yesterday", "result", "r", "claim", good}, idempotent.ErrCorrupt},
		"other time, pending":     {[]string{"status", "pending", "time", "yesterday", "claim", good}, idempotent.ErrCorrupt},
		"cut":                     {[]string{"status", "pending", "time", at, "claim", good[:len(good)-1]}, idempotent.ErrCorrupt},
		"cut, finished":           {[]string{"status", "success", "time", at, "result", "r", "claim", good[:len(good)-1]}, idempotent.ErrCorrupt},
		"too long":                {[]string{"status", "pending", "time", at, "claim", good + "x"}, idempotent.ErrCorrupt},
		"another key":             {[]string{"status", "success", "time", at, "result", "r", "claim", strings.Replace(good, "ka", "Ka", 1)}, idempotent.ErrCorrupt},
		"another key, pending":    {[]string{"status", "pending", "time", at, "claim", strings.Replace(good, "ka", "Ka", 1)}, idempotent.ErrCorrupt},
		"another key, other text": {[]string{"status", "failed", "time", at, "result", "", "claim", strings.NewReplacer("ka", "\n\n", "ft", "\n\n").Replace(good)}, idempotent.ErrCorrupt},
		"another key, digest":     {[]string{"status", "pending", "time", at, "claim", strings.Replace(good, "1 1 1\nk", "1 17 1\n#AqpHT73Ec3xoEIf6", 1)}, idempotent.ErrCorrupt},
		"key too short":           {[]string{"status", "pending", "time", at, "claim", strings.Replace(good, "\nk", "\n", 1)}, idempotent.ErrCorrupt},
		"owner too long":          {[]string{"status", "pending", "time", at, "claim", strings.Replace(good, "ka", "kaa", 1)}, idempotent.ErrCorrupt},
		"trace too long":          {[]string{"status", "pending", "time", at, "claim", strings.Replace(good, "ft", "ftt", 1)}, idempotent.ErrCorrupt},
		"no first claim":          {[]string{"status", "pending", "time", at, "claim", strings.Replace(good, "1796073242973170 0", "0", 1)}, idempotent.ErrCorrupt},
		"lengths beyond all":      {[]string{"status", "pending", "time", at, "claim", strings.Replace(good, "1 1 3", "18446744073709551616 9 3", 1)}, idempotent.ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prefix := newPrefix()
			s := newStore(t, client, redisstore.WithPrefix(prefix))
			require.NoError(t, client.HSet(ctx, prefix+"k", c.fields).Err())
			before := client.HGetAll(ctx, prefix+"k").Val()
			all := calls(s)
			delete(all, "ping")
			remove := all["delete"]
			delete(all, "delete")
			delete(all, "list") // it names the record
			page, err := s.List(ctx, idempotent.ListQuery{})
			require.NoError(t, err)
			require.Equal(t, idempotent.Page{Corrupt: []string{"k"}}, page)
			for name, f := range all {
				requireOnly(t, f(ctx), c.want)
				require.Equal(t, before, client.HGetAll(ctx, prefix+"k").Val(), name)
			}
			require.NoError(t, remove(ctx))
			claimed(t, s, "k", "a")
		})
	}
}
