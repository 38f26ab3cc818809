package faultbench_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
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

func init() { logging.Disable() } // outages are planned here

// outage is one way in which a store fails.
type outage struct {
	name   string
	played string // how the fault is made, for the document
	open   func(t *testing.T) *outageScene
	fail   func(s *outageScene)
	mend   func(s *outageScene)

	forgets    bool // entries are gone: what depends on them may run again
	unreadable bool // while it lasts nobody can read the store
	deaf       bool // the server does what it is asked to, and nobody hears of it
}

// outageScene is a store of its own for one cell of the matrix.
type outageScene struct {
	t      *testing.T
	name   string                // of the hash that the cell is about
	relay  *redistest.Relay      // between client and server
	server *redistest.Server     // holds the entries
	client redis.UniversalClient // of the library
	direct *redis.Client         // past relay and permissions

	refuses atomic.Bool // nobody listens where the client dials

	replica *redistest.Server // nil: none
	reload  chan struct{}     // closed when a DEBUG RELOAD has ended
}

// Who the library is in Redis, with the rights that redisstore asks for and no
// others.
const (
	outageUser     = "shop"
	outagePassword = "secret"
	outageRights   = "~idempotent:* &idempotent:* +evalsha +eval +hmget +hget +hset +hdel +exists +del +pexpireat +time +publish +subscribe +ping +wait"
)

var outages = []outage{
	{
		name: "refused", played: "every connection ends, and nobody listens at the address that is dialled",
		open: openOutage(),
		fail: func(s *outageScene) {
			s.refuses.Store(true)
			s.relay.Cut()
		},
		mend: func(s *outageScene) {
			s.relay.Mend()
			s.refuses.Store(false)
		},
	},
	{
		name: "reset", played: "requests reach the server; instead of each reply the connection is reset, also of new connections",
		open: openOutage(),
		fail: func(s *outageScene) { s.relay.Reset() },
		mend: func(s *outageScene) { s.relay.Mend() },
		deaf: true,
	},
	{
		name: "stalled", played: "requests reach the server; replies are held until the fault is over",
		open: openOutage(),
		fail: func(s *outageScene) { s.relay.Stall() },
		mend: func(s *outageScene) { s.relay.Resume() },
		deaf: true,
	},
	{
		name: "slow", played: "every reply comes an eighth of the store time-out late",
		open: openOutage(),
		fail: func(s *outageScene) { s.relay.Delay(outageStoreTimeout / 8) },
		mend: func(s *outageScene) { s.relay.Delay(0) },
	},
	{
		name: "OOM", played: "more memory is used than `maxmemory`, with `noeviction`",
		open: openOutage(),
		fail: func(s *outageScene) {
			s.ballast()
			s.do("CONFIG", "SET", "maxmemory", "1mb")
		},
		mend: (*outageScene).unload,
	},
	{
		name: "READONLY", played: "`REPLICAOF` makes the server the replica of a primary that is not there",
		open: openOutage(),
		fail: func(s *outageScene) {
			host, port, _ := net.SplitHostPort(outageNowhere)
			s.do("REPLICAOF", host, port)
		},
		mend: func(s *outageScene) { s.do("REPLICAOF", "NO", "ONE") },
	},
	{
		name: "LOADING", played: "the server reloads its data (`DEBUG RELOAD`), slowed down by `key-load-delay`",
		// An answer comes between two keys, so these must not be packed.
		open: openOutage("--enable-debug-command", "yes", "--loading-process-events-interval-bytes", "1024", "--rdbcompression", "no"),
		fail: func(s *outageScene) {
			s.do("EVAL", "for i = 1, 1000 do redis.call('SET', 'ballast:' .. i, string.rep('x', 2000)) end", "0")
			s.do("CONFIG", "SET", "key-load-delay", "20000")
			s.reload = make(chan struct{})
			go func() {
				defer close(s.reload)
				_, _ = s.server.Do("DEBUG", "RELOAD")
			}()
			s.eventually("it loads", func() bool {
				_, err := s.server.Do("PING")
				return err != nil && strings.HasPrefix(err.Error(), "LOADING ")
			})
		},
		mend: func(s *outageScene) {
			s.do("CONFIG", "SET", "key-load-delay", "0")
			<-s.reload
			s.eventually("it has loaded", func() bool {
				_, err := s.server.Do("PING")
				return err == nil
			})
		},
		unreadable: true,
	},
	{
		name: "NOSCRIPT", played: "`SCRIPT FLUSH`",
		open: openOutage(),
		fail: func(s *outageScene) { s.do("SCRIPT", "FLUSH") },
		mend: func(*outageScene) {},
	},
	{
		name: "NOPERM", played: "`ACL SETUSER` takes `EVALSHA` and `EVAL` away",
		open: openOutage(),
		fail: func(s *outageScene) { s.do("ACL", "SETUSER", outageUser, "-evalsha", "-eval") },
		mend: func(s *outageScene) { s.do("ACL", "SETUSER", outageUser, "+evalsha", "+eval") },
	},
	{
		name: "evicted key", played: "`maxmemory` with `volatile-ttl` throws the entry out, then there is room again",
		open: openOutage(),
		fail: func(s *outageScene) {
			s.do("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
			s.ballast()
			s.do("CONFIG", "SET", "maxmemory", "1mb")
			s.eventually("the entry is evicted", func() bool { return s.do("EXISTS", s.name) == "0" })
			s.unload()
		},
		mend:    func(*outageScene) {},
		forgets: true,
	},
	{
		name: "flushed database", played: "`FLUSHALL`",
		open:    openOutage(),
		fail:    func(s *outageScene) { s.do("FLUSHALL") },
		mend:    func(*outageScene) {},
		forgets: true,
	},
	{
		name: "replica read", played: "a Cluster client that reads from replicas, and a replica that is cut off from its primary",
		open: openCluster,
		fail: func(s *outageScene) {
			s.do("ACL", "SETUSER", "default", "-psync", "-sync", "-replconf")
			s.do("CLIENT", "KILL", "TYPE", "replica")
			s.eventually("the replica is cut off", func() bool { return s.replication("master_link_status:down") })
		},
		mend: func(s *outageScene) {
			s.do("ACL", "SETUSER", "default", "+psync", "+sync", "+replconf")
			stats, err := s.replica.Do("INFO", "commandstats")
			require.NoError(s.t, err)
			require.Contains(s.t, stats, "cmdstat_get:", "the client reads from the replica")
			require.NotContains(s.t, stats, "cmdstat_eval", "C041: and the library does not")
		},
	},
}

// openOutage returns a function that opens a scene with one server.
func openOutage(config ...string) func(*testing.T) *outageScene {
	return func(t *testing.T) *outageScene {
		s := &outageScene{t: t, server: redistest.Start(t, config...)}
		s.do(append([]string{"ACL", "SETUSER", outageUser, "on", ">" + outagePassword}, strings.Fields(outageRights)...)...)
		s.relay = redistest.NewRelay(t, s.server.Addr)
		client := redis.NewClient(&redis.Options{
			Addr: s.server.Addr, Dialer: s.dial, Username: outageUser, Password: outagePassword, DisableIdentity: true,
		})
		s.client = client
		s.openDirect()
		s.ready()
		// More connections than one cell uses at a time: no step that meets the
		// fault has to open one first.
		var conns [6]*redis.Conn
		for i := range conns {
			conns[i] = client.Conn()
			require.NoError(t, conns[i].Ping(t.Context()).Err())
		}
		for _, c := range conns {
			require.NoError(t, c.Close())
		}
		return s
	}
}

// outageNowhere is an address of loopback at which nobody listens.
const outageNowhere = "127.0.0.1:1"

// dial is the dialer of the client.
func (s *outageScene) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	addr := s.relay.Addr
	if s.refuses.Load() {
		addr = outageNowhere
	}
	return (&net.Dialer{}).DialContext(ctx, network, addr)
}

// openCluster opens a scene with one primary that owns every slot, and its
// replica.
func openCluster(t *testing.T) *outageScene {
	s := &outageScene{t: t, server: redistest.StartCluster(t, "--repl-diskless-sync-delay", "0")}
	s.replica = redistest.Start(t, "--cluster-enabled", "yes")
	host, port, err := net.SplitHostPort(s.server.Addr)
	require.NoError(t, err)
	_, err = s.replica.Do("CLUSTER", "MEET", host, port)
	require.NoError(t, err)
	primary := s.do("CLUSTER", "MYID")
	s.eventually("the nodes have met", func() bool {
		_, err := s.replica.Do("CLUSTER", "REPLICATE", primary)
		return err == nil
	})
	s.eventually("the replica follows", func() bool { return s.replication("master_link_status:up") })
	s.openDirect()
	// A replica that has received nothing is no place to read from.
	require.NoError(t, s.direct.Set(t.Context(), "written", "", 0).Err())
	s.eventually("clients are told of the replica", func() bool {
		ranges, err := s.direct.Do(t.Context(), "CLUSTER", "SLOTS").Slice()
		require.NoError(t, err)
		require.Len(t, ranges, 1)
		return len(ranges[0].([]any)) == len([]string{"first slot", "last slot", "primary", "replica"})
	})
	s.client = redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{s.server.Addr}, ReadOnly: true, DisableIdentity: true,
	})
	s.ready()
	require.ErrorIs(t, s.client.Get(t.Context(), "absent").Err(), redis.Nil)
	return s
}

func (s *outageScene) openDirect() {
	s.direct = redis.NewClient(&redis.Options{Addr: s.server.Addr, DisableIdentity: true})
	s.t.Cleanup(func() { _ = s.direct.Close() })
}

// ready opens a connection of the library's client, and has the server know
// every script, as one that has been in use does.
func (s *outageScene) ready() {
	s.t.Cleanup(func() { _ = s.client.Close() })
	require.NoError(s.t, s.client.Ping(s.t.Context()).Err())
	store := redisstore.New(s.direct)
	defer func() { require.NoError(s.t, store.Close()) }()
	ctx := s.t.Context()
	_, _, err := store.Claim(ctx, "known", idempotent.Claim{Owner: "o", Lease: time.Minute, Keep: time.Minute})
	require.NoError(s.t, err)
	_, _, err = store.Load(ctx, "known")
	require.NoError(s.t, err)
	require.NoError(s.t, store.Renew(ctx, "known", "o", time.Minute))
	require.NoError(s.t, store.Complete(ctx, "known", "o", idempotent.Outcome{Status: idempotent.Success, Retention: time.Minute}))
	require.NoError(s.t, store.Release(ctx, "known", "o"))
	require.NoError(s.t, store.Delete(ctx, "known"))
}

// do sends a command past the relay.
func (s *outageScene) do(args ...string) string {
	s.t.Helper()
	got, err := s.server.Do(args...)
	require.NoError(s.t, err)
	return got
}

func (s *outageScene) eventually(what string, holds func() bool) {
	s.t.Helper()
	redistest.Eventually(s.t, what, holds)
}

// ballast takes a megabyte that has no expiry.
func (s *outageScene) ballast() { s.do("SET", "ballast", strings.Repeat("b", 1<<20)) }

func (s *outageScene) unload() {
	s.do("CONFIG", "SET", "maxmemory", "0")
	s.do("DEL", "ballast")
}

func (s *outageScene) replication(line string) bool {
	info, err := s.replica.Do("INFO", "replication")
	return err == nil && strings.Contains(info, line)
}

// left says what is stored under the name, and fails the test where it would
// stay for ever.
func (s *outageScene) left() string {
	s.t.Helper()
	ctx := s.t.Context()
	s.requireExpiries()
	status, err := s.direct.HGet(ctx, s.name, "status").Result()
	if errors.Is(err, redis.Nil) {
		return "nothing"
	}
	require.NoError(s.t, err)
	within, text := outageRetention, "the retention"
	if status == "pending" {
		within, text = within+outageLeaseMost, "lease + retention"
	}
	ttl := s.direct.PTTL(ctx, s.name).Val()
	require.Positive(s.t, ttl)
	require.Less(s.t, ttl, within+time.Second, "the expiry is rounded up")
	return fmt.Sprintf("%s, expires within %s", status, text)
}

// requireExpiries fails the test where an entry would stay for ever.
func (s *outageScene) requireExpiries() {
	s.t.Helper()
	ctx := s.t.Context()
	names, err := s.direct.Keys(ctx, "idempotent:*").Result()
	require.NoError(s.t, err)
	for _, name := range names {
		ttl, err := s.direct.PTTL(ctx, name).Result()
		require.NoError(s.t, err)
		require.NotEqual(s.t, time.Duration(-1), ttl, name)
	}
}

// until is the end of the running claim's lease by the server's clock in
// microseconds, and 0 where there is none to be read.
func (s *outageScene) until() int64 {
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer cancel()
	text, _ := s.direct.HGet(ctx, s.name, "time").Result()
	_, until, _ := strings.Cut(text, " ")
	n, _ := strconv.ParseInt(until, 10, 64)
	return n
}
