package redisstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/redisstore"
)

// The forms in which servers hand on an error from inside a script: Redis 7 and
// Valkey, Redis 6.2, and miniredis.
var forms = map[string]string{
	"7":           "-%s script: 8b4289e06ce7ed7209adf6c226369575f1246d38, on @user_script:1.",
	"6.2":         "-ERR Error running script (call to f_8b4289e06ce7ed7209adf6c226369575f1246d38): @user_script:1: %s",
	"6.2, hyphen": "-ERR Error running script (call to f_8b4289e06ce7ed7209adf6c226369575f1246d38): @user_script:1: @user_script: 1: -%s",
}

func TestErrors(t *testing.T) {
	t.Parallel()
	const (
		full  = "OOM command not allowed when used memory > 'maxmemory'."
		wrong = "WRONGTYPE Operation against a key holding the wrong kind of value"
	)
	for _, c := range []struct {
		name, answer  string
		claim, renew  error // wanted in the chain
		text, notText string
	}{
		{name: "full", answer: full, claim: idempotent.ErrFull, text: "maxmemory"},
		{name: "wrong type", answer: wrong, claim: idempotent.ErrCorrupt, renew: idempotent.ErrCorrupt},
		{name: "user", answer: "ERR The user executing the script can't run this command or subcommand", text: "ACL SETUSER"},
		{name: "user, code", answer: "NOPERM The user executing the script can't run this command", text: "+pexpireat"},
		{name: "C038 replica", answer: "READONLY You can't write against a read only replica.", text: "READONLY"},
		{name: "lost primary", answer: "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", text: "MASTERDOWN"},
		{name: "too few replicas", answer: "NOREPLICAS Not enough good replicas to write.", text: "NOREPLICAS"},
		{name: "full in a text", answer: "ERR something about OOM command", notText: "store full"},
	} {
		for form, layout := range forms {
			t.Run(c.name+" "+form, func(t *testing.T) {
				t.Parallel()
				f := redistest.NewFake(t, func([]string) string { return strings.Replace(layout, "%s", c.answer, 1) })
				client := newClient(t, f.Addr, func(o *redis.Options) { o.MaxRetries, o.Protocol = -1, 2 })
				s := newStore(t, client)
				_, ok, err := s.Claim(t.Context(), "k", claim("a"))
				require.Error(t, err)
				require.False(t, ok)
				requireOnly(t, err, c.claim)
				require.Contains(t, err.Error(), c.text)
				if c.notText != "" {
					require.NotContains(t, err.Error(), c.notText)
				}
				var server redis.Error
				require.ErrorAs(t, err, &server, "C092: the server's own error stays in the chain")
				requireOnly(t, s.Renew(t.Context(), "k", "a", time.Minute), c.renew)
				requireOnly(t, s.Complete(t.Context(), "k", "a", success("r")), c.renew)
				requireOnly(t, s.Release(t.Context(), "k", "a"), c.renew)
			})
		}
	}
	for _, answer := range []string{
		"LOADING Redis is loading the dataset in memory", "CLUSTERDOWN The cluster is down",
		"TRYAGAIN Multiple keys request during rehashing of slot", "NOAUTH Authentication required.",
	} {
		t.Run(answer, func(t *testing.T) {
			t.Parallel()
			f := redistest.NewFake(t, func([]string) string { return "-" + answer })
			s := newStore(t, newClient(t, f.Addr, func(o *redis.Options) { o.MaxRetries, o.Protocol = -1, 2 }))
			_, _, err := s.Claim(t.Context(), "k", claim("a"))
			requireOnly(t, err, nil)
			require.ErrorContains(t, err, "redisstore: claim: "+answer)
		})
	}
	for _, answer := range []string{"$0\r\n", "$1\r\n?", "$1\r\n+", ":1", "*0"} {
		t.Run("no answer of ours "+answer, func(t *testing.T) {
			t.Parallel()
			f := redistest.NewFake(t, func([]string) string { return answer })
			s := newStore(t, newClient(t, f.Addr, func(o *redis.Options) { o.MaxRetries, o.Protocol = -1, 2 }))
			_, ok, err := s.Claim(t.Context(), "k", claim("a"))
			require.Error(t, err)
			require.False(t, ok)
		})
	}
}

// requireOnly fails unless err is an error whose chain has want and none of the
// others that a guard branches on.
func requireOnly(t *testing.T, err, want error) {
	t.Helper()
	require.Error(t, err)
	for _, e := range []error{
		idempotent.ErrLost, idempotent.ErrFull, idempotent.ErrCorrupt, idempotent.ErrNewerFormat,
		idempotent.ErrInvalid, idempotent.ErrClosed,
	} {
		if e == want {
			require.ErrorIs(t, err, e)
		} else {
			require.NotErrorIs(t, err, e)
		}
	}
}

func TestC035_NoScript(t *testing.T) {
	t.Parallel()
	t.Run("flushed before each step", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		client := newClient(t, server.Addr)
		s := newStore(t, client)
		ctx := t.Context()
		flush := func() { require.NoError(t, client.ScriptFlush(ctx).Err()) }
		flush()
		claimed(t, s, "k", "a")
		flush()
		require.NoError(t, s.Renew(ctx, "k", "a", time.Minute))
		flush()
		require.NoError(t, s.Complete(ctx, "k", "a", success("r")))
		flush()
		_, ok, err := s.Load(ctx, "k")
		require.NoError(t, err)
		require.True(t, ok)
		claimed(t, s, "l", "a")
		flush()
		require.NoError(t, s.Release(ctx, "l", "a"))
		flush()
		require.NoError(t, s.Delete(ctx, "k"))
	})
	t.Run("a server that never knows a script", func(t *testing.T) {
		t.Parallel()
		f := redistest.NewFake(t, func(words []string) string {
			if strings.EqualFold(words[0], "EVALSHA") {
				return "-NOSCRIPT No matching script. Please use EVAL."
			}
			return "$1\r\n+"
		})
		s := newStore(t, newClient(t, f.Addr, func(o *redis.Options) { o.Protocol = 2 }))
		require.NoError(t, s.Renew(t.Context(), "k", "a", time.Minute))
	})
	t.Run("a restart", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		s := newStore(t, newClient(t, server.Addr))
		claimed(t, s, "k", "a")
		server.Restart(t)
		claimed(t, s, "k", "b")
	})
}

func TestC038_WrongRole(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := newStore(t, newClient(t, server.Addr))
	ctx := t.Context()
	claimed(t, s, "held", "a")

	_, err := server.Do("REPLICAOF", "127.0.0.1", "1")
	require.NoError(t, err)
	_, ok, err := s.Claim(ctx, "k", claim("a"))
	require.False(t, ok)
	requireOnly(t, err, nil)
	require.ErrorContains(t, err, "READONLY")
	requireOnly(t, s.Renew(ctx, "held", "a", time.Minute), nil)
	requireOnly(t, s.Complete(ctx, "held", "a", success("r")), nil)
	requireOnly(t, s.Release(ctx, "held", "a"), nil)

	_, err = server.Do("CONFIG", "SET", "replica-serve-stale-data", "no")
	require.NoError(t, err)
	_, _, err = s.Load(ctx, "held")
	requireOnly(t, err, nil)
	require.ErrorContains(t, err, "MASTERDOWN")

	_, err = server.Do("REPLICAOF", "NO", "ONE")
	require.NoError(t, err)
	claimed(t, s, "k", "a")
	require.NoError(t, s.Complete(ctx, "held", "a", success("r")))
}

func TestClusterDown(t *testing.T) {
	t.Parallel()
	server := redistest.StartCluster(t)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr}, MaxRedirects: -1})
	t.Cleanup(func() { _ = client.Close() })
	s := newStore(t, client)
	claimed(t, s, "k", "a")
	_, err := server.Do("CLUSTER", "FLUSHSLOTS")
	require.ErrorContains(t, err, "DB must be empty")
	_, err = server.Do("FLUSHALL")
	require.NoError(t, err)
	_, err = server.Do("CLUSTER", "FLUSHSLOTS")
	require.NoError(t, err)
	redistest.Eventually(t, "the cluster is down", func() bool {
		_, _, err := s.Claim(t.Context(), "k", claim("a"))
		return err != nil && strings.Contains(err.Error(), "CLUSTERDOWN")
	})
	_, err = server.Do("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	require.NoError(t, err)
	redistest.Eventually(t, "the cluster is up", func() bool {
		_, ok, err := s.Claim(t.Context(), "k", claim("a"))
		return err == nil && ok
	})
}

func TestC043_Permissions(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	const all = "+evalsha +eval +hmget +hget +hset +hdel +exists +del +pexpireat +time +publish +subscribe +ping +wait"
	user := func(t *testing.T, name, rules string) *redisstore.Store {
		t.Helper()
		_, err := server.Do(append([]string{"ACL", "SETUSER", name, "on", "nopass", "+hello", "+client"}, strings.Fields(rules)...)...)
		require.NoError(t, err)
		client := newClient(t, server.Addr, func(o *redis.Options) { o.Username, o.Password = name, "any" })
		return newStore(t, client, redisstore.WithPrefix(name+":"))
	}
	t.Run("what the error asks for is enough", func(t *testing.T) {
		t.Parallel()
		s := user(t, "enough", "~enough:* &enough:* "+all)
		claimed(t, s, "k", "a")
		waited := wait(t, s, "k")
		redistest.Eventually(t, "subscribed", s.Subscribed)
		require.NoError(t, s.Renew(t.Context(), "k", "a", time.Minute))
		require.NoError(t, s.Complete(t.Context(), "k", "a", success("r")))
		require.Equal(t, "r", result(t, waited).Result)
		require.NoError(t, s.Delete(t.Context(), "k"))
		require.NoError(t, s.Ping(t.Context()))
	})
	for name, rules := range map[string]string{
		"no-scripting": "~no-scripting:* &no-scripting:* +@all -@scripting",
		"no-key":       "~other:* &no-key:* " + all,
		"no-hset":      "~no-hset:* &no-hset:* " + all + " -hset",
		"no-expiry":    "~no-expiry:* &no-expiry:* " + all + " -pexpireat",
		"no-time":      "~no-time:* &no-time:* " + all + " -time",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := user(t, name, rules)
			_, ok, err := s.Claim(t.Context(), "k", claim("a"))
			require.False(t, ok)
			requireOnly(t, err, nil)
			require.ErrorContains(t, err, "the Redis user lacks a permission (ACL SETUSER … ~"+name+":* &"+name+":* "+all+")")
			n, err := server.Do("EXISTS", name+":k")
			require.NoError(t, err)
			require.Equal(t, "0", n, "C034: nothing stays without an expiry")
		})
	}
	t.Run("no channel: waiters poll, completions stand", func(t *testing.T) {
		t.Parallel()
		s := user(t, "no-channel", "~no-channel:* "+all)
		claimed(t, s, "k", "a")
		// Somebody who may subscribe waits as well, so that the completion publishes.
		_, err := server.Do("HSET", "no-channel:k", "wait", "1")
		require.NoError(t, err)
		waited := wait(t, s, "k")
		require.NoError(t, s.Complete(t.Context(), "k", "a", success("r")))
		require.Equal(t, "r", result(t, waited).Result)
		require.False(t, s.Subscribed())
	})
}
