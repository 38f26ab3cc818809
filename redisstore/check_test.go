package redisstore_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/redisstore"
)

// sound is the configuration of a server with which nothing is wrong.
var sound = []string{"--appendonly", "yes", "--appendfsync", "always"}

// prompt starts to feed a replica at once.
var prompt = append([]string{"--repl-diskless-sync-delay", "0"}, sound...)

// brief returns what findings are about, without the sentences, and fails the
// test where one says nothing.
func brief(t *testing.T, found []redisstore.Finding) []string {
	t.Helper()
	list := []string{}
	for _, f := range found {
		require.NotEmpty(t, f.Breaks, f.Setting)
		require.NotEmpty(t, f.Fix, f.Setting)
		list = append(list, f.Setting+": "+f.Value)
	}
	return list
}

// checked checks s and fails the test where that leaves anything in the server.
func checked(t *testing.T, s *redisstore.Store, server *redistest.Server) []string {
	t.Helper()
	before, err := server.Do("DBSIZE")
	require.NoError(t, err)
	found, err := s.Check(t.Context())
	require.NoError(t, err)
	again, err := s.Check(t.Context())
	require.NoError(t, err)
	require.Equal(t, found, again)
	after, err := server.Do("DBSIZE")
	require.NoError(t, err)
	require.Equal(t, before, after, "nothing stays of a check")
	return brief(t, found)
}

func TestC040_CheckSettings(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, sound...)
	client := newClient(t, server.Addr)
	s := newStore(t, client)
	for _, c := range []struct {
		name string
		set  map[string]string
		want []string
	}{
		{"sound", nil, []string{}},
		{"sound, with a limit", map[string]string{"maxmemory": "100mb"}, []string{}},
		{"a policy that never acts", map[string]string{"maxmemory-policy": "allkeys-lru"}, []string{}},
		{"allkeys-lru", map[string]string{"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, []string{"maxmemory-policy: allkeys-lru"}},
		{"volatile-ttl", map[string]string{"maxmemory": "100mb", "maxmemory-policy": "volatile-ttl"}, []string{"maxmemory-policy: volatile-ttl"}},
		{"no AOF", map[string]string{"appendonly": "no"}, []string{"appendonly: no"}},
		{"snapshots only", map[string]string{"appendonly": "no", "save": "3600 1"}, []string{"appendonly: no"}},
		{"everysec", map[string]string{"appendfsync": "everysec"}, []string{"appendfsync: everysec"}},
		{"left to the system", map[string]string{"appendfsync": "no"}, []string{"appendfsync: no"}},
		{"not on rewrite", map[string]string{"no-appendfsync-on-rewrite": "yes"}, []string{"no-appendfsync-on-rewrite: yes"}},
		{
			"two, sorted",
			map[string]string{"maxmemory": "100mb", "maxmemory-policy": "allkeys-random", "appendonly": "no"},
			[]string{"appendonly: no", "maxmemory-policy: allkeys-random"},
		},
		{"too few replicas", map[string]string{"min-replicas-to-write": "1"}, []string{"min-replicas-to-write: more than are connected"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			usual := map[string]string{
				"maxmemory": "0", "maxmemory-policy": "noeviction", "appendonly": "yes", "appendfsync": "always",
				"no-appendfsync-on-rewrite": "no", "save": "", "min-replicas-to-write": "0",
			}
			for name, value := range c.set {
				usual[name] = value
			}
			for name, value := range usual {
				require.NoError(t, client.ConfigSet(t.Context(), name, value).Err())
			}
			require.Equal(t, c.want, checked(t, s, server))
		})
	}
}

// A full server refuses new keys, as promised, and is checked all the same.
func TestCheckFullServer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "no")
	client := newClient(t, server.Addr)
	require.NoError(t, client.Set(t.Context(), "ballast", strings.Repeat("b", 1<<20), 0).Err())
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "1mb").Err())
	require.Equal(t, []string{"appendonly: no"}, checked(t, newStore(t, client), server))
}

func TestC038_CheckRole(t *testing.T) {
	t.Parallel()
	primary, replica := redistest.Start(t, prompt...), redistest.Start(t, sound...)
	follow(t, replica, primary)
	client := newClient(t, replica.Addr)
	require.Equal(t, []string{"role: replica"}, checked(t, newStore(t, client), replica))
	require.Empty(t, checked(t, newStore(t, newClient(t, primary.Addr)), primary))

	// A user who may not read the role learns it from the refusal.
	_, err := replica.Do("ACL", "SETUSER", "default", "-info", "-config")
	require.NoError(t, err)
	require.Equal(t, []string{"role: replica"}, checked(t, newStore(t, client), replica))

	// One that takes writes tells nobody.
	_, err = replica.Do("ACL", "SETUSER", "default", "+@all")
	require.NoError(t, err)
	require.NoError(t, client.ConfigSet(t.Context(), "replica-read-only", "no").Err())
	require.Equal(t, []string{"role: replica"}, checked(t, newStore(t, client), replica))
}

// follow makes replica follow primary and waits until it does.
func follow(t *testing.T, replica, primary *redistest.Server) {
	t.Helper()
	host, port, err := net.SplitHostPort(primary.Addr)
	require.NoError(t, err)
	_, err = replica.Do("REPLICAOF", host, port)
	require.NoError(t, err)
	redistest.Eventually(t, "the replica follows", func() bool {
		info, _ := primary.Do("INFO", "replication")
		return strings.Contains(info, "state=online")
	})
}

func TestCheckReplicas(t *testing.T) {
	t.Parallel()
	primary, replica := redistest.Start(t, prompt...), redistest.Start(t, sound...)
	client := newClient(t, primary.Addr)
	one := newStore(t, client, redisstore.WithReplicas(1, 100*time.Millisecond))
	require.Equal(t, []string{"replicas: 0 of the 1 of WithReplicas acknowledge within 100ms"}, checked(t, one, primary))
	follow(t, replica, primary)
	one = newStore(t, client, redisstore.WithReplicas(1, 10*time.Second))
	require.Empty(t, checked(t, one, primary))
	two := newStore(t, client, redisstore.WithReplicas(2, 500*time.Millisecond))
	require.Equal(t, []string{"replicas: 1 of the 2 of WithReplicas acknowledge within 500ms"}, checked(t, two, primary))
	require.Empty(t, checked(t, newStore(t, client), primary), "who does not ask for replicas needs none")
}

func TestC043_CheckPermissions(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := strings.Fields("+evalsha +eval +hmget +hget +hset +hdel +exists +del +pexpireat +time +publish +subscribe +ping +wait")
	check := func(t *testing.T, name string, rules ...string) ([]redisstore.Finding, []string) {
		t.Helper()
		_, err := server.Do(append([]string{"ACL", "SETUSER", name, "reset", "on", "nopass", "+hello", "+client"}, rules...)...)
		require.NoError(t, err)
		client := newClient(t, server.Addr, func(o *redis.Options) { o.Username, o.Password = name, "any" })
		s := newStore(t, client, redisstore.WithPrefix(name+":"))
		found, err := s.Check(t.Context())
		require.NoError(t, err)
		n, err := newClient(t, server.Addr).Keys(t.Context(), name+":*").Result()
		require.NoError(t, err)
		require.Empty(t, n, "nothing stays of a check")
		return found, brief(t, found)
	}
	t.Run("enough: nothing is read, and nothing is judged", func(t *testing.T) {
		t.Parallel()
		_, got := check(t, "enough", append(all, "~enough:*", "&enough:*")...)
		require.Empty(t, got)
	})
	t.Run("CONFIG forbidden, INFO allowed", func(t *testing.T) {
		t.Parallel()
		_, got := check(t, "info", append(all, "~info:*", "&info:*", "+info")...)
		require.Equal(t, []string{"appendonly: no"}, got)
	})
	t.Run("INFO forbidden, CONFIG allowed", func(t *testing.T) {
		t.Parallel()
		_, got := check(t, "config", append(all, "~config:*", "&config:*", "+config")...)
		require.Equal(t, []string{"appendonly: no"}, got)
	})
	for _, command := range all {
		if command == "+wait" {
			continue // nobody asks for replicas
		}
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			name := "without-" + command[1:]
			rules := append([]string{"~" + name + ":*", "&" + name + ":*"}, all...)
			found, got := check(t, name, append(rules, "-"+command[1:])...)
			require.Equal(t, []string{"permission: " + command + " is missing"}, got)
			require.Equal(t, "ACL SETUSER "+name+" "+command, found[0].Fix)

			_, err := server.Do("ACL", "SETUSER", name, command)
			require.NoError(t, err)
			client := newClient(t, server.Addr, func(o *redis.Options) { o.Username, o.Password = name, "any" })
			mended, err := newStore(t, client, redisstore.WithPrefix(name+":")).Check(t.Context())
			require.NoError(t, err)
			require.Empty(t, mended, "the fix is enough")
		})
	}
	for name, c := range map[string]struct {
		rules []string
		want  []string
	}{
		"no-key":     {[]string{"~other:*", "&no-key:*"}, []string{"permission: ~no-key:* is missing"}},
		"read-only":  {[]string{"%R~read-only:*", "&read-only:*"}, []string{"permission: ~read-only:* is missing"}},
		"no-channel": {[]string{"~no-channel:*"}, []string{"permission: &no-channel:* is missing"}},
		"two":        {[]string{"~two:*", "&two:*", "-time", "-hset"}, []string{"permission: +hset is missing", "permission: +time is missing"}},
		"nothing-can-be-undone": {
			[]string{"~nothing-can-be-undone:*", "&nothing-can-be-undone:*", "-pexpireat", "-del"},
			[]string{"permission: +del is missing", "permission: +pexpireat is missing"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, got := check(t, name, append(append([]string{}, all...), c.rules...)...)
			require.Equal(t, c.want, got)
		})
	}
	t.Run("WAIT, where replicas are asked for", func(t *testing.T) {
		t.Parallel()
		_, err := server.Do(append([]string{"ACL", "SETUSER", "no-wait", "on", "nopass", "+hello", "+client", "~*", "&*", "-wait"}, all[:len(all)-1]...)...)
		require.NoError(t, err)
		client := newClient(t, server.Addr, func(o *redis.Options) { o.Username, o.Password = "no-wait", "any" })
		found, err := newStore(t, client, redisstore.WithReplicas(1, time.Second)).Check(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"permission: +wait is missing"}, brief(t, found))
	})
}

func TestCheckRenamedCommands(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, append([]string{
		"--rename-command", "EVALSHA", "", "--rename-command", "HDEL", "", "--rename-command", "SUBSCRIBE", "",
		"--rename-command", "CONFIG", "",
	}, sound...)...)
	require.Equal(t, []string{
		"permission: evalsha is unknown to the server",
		"permission: hdel is unknown to the server",
		"permission: subscribe is unknown to the server",
	}, checked(t, newStore(t, newClient(t, server.Addr)), server))
}

func TestCheckVersion(t *testing.T) {
	t.Parallel()
	for version, want := range map[string][]string{
		"5.0.14":  {"version: 5.0.14"},
		"6.0.16":  {"version: 6.0.16"},
		"6.2.0":   {},
		"7.2.4":   {},
		"10.0.0":  {},
		"unknown": {},
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			f := redistest.NewFake(t, func(words []string) string {
				switch strings.ToUpper(words[0]) {
				case "INFO":
					text := "# Server\r\nredis_version:" + version + "\r\n"
					return fmt.Sprintf("$%d\r\n%s", len(text), text)
				case "CONFIG":
					return "*0"
				case "SUBSCRIBE":
					return "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1"
				case "EVALSHA", "EVAL":
					if len(words) == 5 { // the trial of commands
						return "$0\r\n"
					}
					// The steps must not be made on a server that is too old.
					return "-OOM command not allowed"
				}
				return "+PONG"
			})
			s := newStore(t, newClient(t, f.Addr, func(o *redis.Options) { o.MaxRetries, o.Protocol = -1, 2 }))
			found, err := s.Check(t.Context())
			require.NoError(t, err)
			require.Equal(t, want, brief(t, found))
		})
	}
}

// Every primary is looked at, and the ones alike share a line.
func TestCheckCluster(t *testing.T) {
	t.Parallel()
	config := append([]string{"--cluster-enabled", "yes"}, sound...)
	first, second := redistest.Start(t, config...), redistest.Start(t, config...)
	_, port, err := net.SplitHostPort(second.Addr)
	require.NoError(t, err)
	for _, step := range []struct {
		server *redistest.Server
		args   []string
	}{
		{first, []string{"CLUSTER", "ADDSLOTSRANGE", "0", "8000"}},
		{second, []string{"CLUSTER", "ADDSLOTSRANGE", "8001", "16383"}},
		{second, []string{"CLUSTER", "SET-CONFIG-EPOCH", "2"}},
		{first, []string{"CLUSTER", "MEET", "127.0.0.1", port}},
	} {
		_, err := step.server.Do(step.args...)
		require.NoError(t, err)
	}
	for _, server := range []*redistest.Server{first, second} {
		redistest.Eventually(t, "the cluster is up", func() bool {
			info, _ := server.Do("CLUSTER", "INFO")
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_size:2")
		})
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{first.Addr}, ReadOnly: true})
	t.Cleanup(func() { _ = client.Close() })
	s := newStore(t, client)
	check := func(s *redisstore.Store) []string {
		t.Helper()
		found, err := s.Check(t.Context())
		require.NoError(t, err)
		n, err := client.DBSize(t.Context()).Result()
		require.NoError(t, err)
		require.Zero(t, n)
		return brief(t, found)
	}
	require.Empty(t, check(s), "C041: reads from replicas are no finding")

	evict := func(server *redistest.Server) {
		for name, value := range map[string]string{"maxmemory": "100mb", "maxmemory-policy": "allkeys-lfu"} {
			_, err := server.Do("CONFIG", "SET", name, value)
			require.NoError(t, err)
		}
	}
	evict(second)
	require.Equal(t, []string{"maxmemory-policy: allkeys-lfu (" + second.Addr + ")"}, check(s))
	evict(first)
	both := []string{first.Addr, second.Addr}
	if both[0] > both[1] {
		both[0], both[1] = both[1], both[0]
	}
	require.Equal(t, []string{"maxmemory-policy: allkeys-lfu (" + strings.Join(both, ", ") + ")"}, check(s))

	// Permissions are a node's own.
	_, err = first.Do("ACL", "SETUSER", "default", "-pexpireat")
	require.NoError(t, err)
	require.Contains(t, check(s), "permission: +pexpireat is missing ("+first.Addr+")")

	// One slot for all entries: the other node does not matter.
	tagged := check(newStore(t, client, redisstore.WithPrefix("{one}:")))
	require.Equal(t, []string{"maxmemory-policy: allkeys-lfu"}, tagged[:1])
}

func TestCheckRing(t *testing.T) {
	t.Parallel()
	first, second := redistest.Start(t, sound...), redistest.Start(t)
	ring := func(addrs map[string]string) *redisstore.Store {
		r := redis.NewRing(&redis.RingOptions{Addrs: addrs})
		t.Cleanup(func() { _ = r.Close() })
		return newStore(t, r)
	}
	require.Empty(t, checked(t, ring(map[string]string{"a": first.Addr}), first))
	got := checked(t, ring(map[string]string{"a": first.Addr, "b": second.Addr}), second)
	require.Equal(t, []string{"appendonly: no (" + second.Addr + ")", "client: redis.Ring of 2 shards"}, got)
	_, err := first.Do("ACL", "SETUSER", "default", "-subscribe")
	require.NoError(t, err)
	require.Empty(t, checked(t, ring(map[string]string{"a": first.Addr}), first), "nobody subscribes on a Ring")
}

// other is a client of which nothing is known but its methods.
type other struct{ redis.UniversalClient }

func TestCheckOtherClient(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	require.Equal(t, []string{"appendonly: no"}, checked(t, newStore(t, other{newClient(t, server.Addr)}), server))
}

// A server that has no settings to read is judged by what can be tried.
func TestCheckMiniredis(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	found, err := newStore(t, newClient(t, server.Addr())).Check(t.Context())
	require.NoError(t, err)
	require.Empty(t, found)
	require.Empty(t, server.Keys())
}

func TestCheckErrors(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := redisstore.New(newClient(t, server.Addr))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Check(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, s.Close())
	_, err = s.Check(t.Context())
	require.ErrorIs(t, err, idempotent.ErrClosed)

	t.Run("away", func(t *testing.T) {
		t.Parallel()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		require.NoError(t, l.Close())
		s := newStore(t, newClient(t, l.Addr().String(), func(o *redis.Options) { o.MaxRetries, o.DialerRetries = -1, 1 }))
		_, err = s.Check(t.Context())
		require.ErrorContains(t, err, "redisstore: check: ")
	})
	for _, answer := range []string{"LOADING Redis is loading the dataset in memory", "NOAUTH Authentication required."} {
		t.Run(answer, func(t *testing.T) {
			t.Parallel()
			f := redistest.NewFake(t, func([]string) string { return "-" + answer })
			s := newStore(t, newClient(t, f.Addr, func(o *redis.Options) { o.MaxRetries, o.Protocol = -1, 2 }))
			_, err := s.Check(t.Context())
			require.ErrorContains(t, err, answer)
		})
	}
	t.Run("stalled", func(t *testing.T) {
		t.Parallel()
		relay := redistest.NewRelay(t, server.Addr)
		s := newStore(t, newClient(t, relay.Addr))
		require.NoError(t, s.Ping(t.Context()))
		relay.Stall()
		_, err := s.Check(ctxFor(t, 50*time.Millisecond))
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// The server that the README tells people to run keeps the promise.
func TestCheckServerOfREADME(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(readme), "\nredis-server ")
	require.True(t, found)
	line, _, _ := strings.Cut(rest, "\n")
	server := redistest.Start(t, strings.Fields(line)...)
	require.Empty(t, checked(t, newStore(t, newClient(t, server.Addr)), server))
}
