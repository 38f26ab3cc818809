package faultbench

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent/internal/redistest"
)

// GroupName is what Sentinels call the primary of a [Group].
const GroupName = "main"

// Group is a primary with a replica, watched by three Sentinels. Two of them
// must agree that the primary is down; that takes half a second.
type Group struct {
	Nodes     []*redistest.Server // the first one starts as the primary
	Sentinels []*redistest.Server
}

// sentinelLines make a fail-over take a second or two instead of minutes.
const sentinelLines = "sentinel down-after-milliseconds " + GroupName + " 500\n" +
	"sentinel failover-timeout " + GroupName + " 1500"

// StartGroup starts a group whose nodes have config, and returns when a
// fail-over would work. It ends with the test.
func StartGroup(t testing.TB, config ...string) *Group {
	t.Helper()
	config = append([]string{"--repl-diskless-sync-delay", "0"}, config...)
	primary, replica := redistest.Start(t, config...), redistest.Start(t, config...)
	g := &Group{Nodes: []*redistest.Server{primary, replica}}
	host, port, _ := net.SplitHostPort(primary.Addr)
	replica.Must(t, "REPLICAOF", host, port)
	g.awaitLink(t, replica)
	for range 3 {
		s := redistest.StartSentinel(t, GroupName, primary.Addr, 2, sentinelLines)
		// Redis 7 can be told to look more often than every ten seconds; with
		// older ones all this takes longer.
		_, _ = s.Do("SENTINEL", "DEBUG", "INFO-PERIOD", "400", "PUBLISH-PERIOD", "200", "PING-PERIOD", "200",
			"ASK-PERIOD", "100", "MAX-DESYNC", "300")
		g.Sentinels = append(g.Sentinels, s)
	}
	g.awaitComplete(t)
	return g
}

// Client returns a client that asks the Sentinels for the primary. It ends
// with the test.
func (g *Group) Client(t testing.TB, change ...func(*redis.FailoverOptions)) *redis.Client {
	t.Helper()
	o := &redis.FailoverOptions{MasterName: GroupName, SentinelAddrs: addrs(g.Sentinels), DisableIdentity: true}
	for _, f := range change {
		f(o)
	}
	c := redis.NewFailoverClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Primary returns the node that all Sentinels hold for the primary and that
// holds itself for one; nil while they do not agree.
func (g *Group) Primary() *redistest.Server {
	var at string
	for _, s := range g.Sentinels {
		addr := primaryBy(s)
		if addr == "" || at != "" && addr != at {
			return nil
		}
		at = addr
	}
	i := slices.IndexFunc(g.Nodes, func(n *redistest.Server) bool { return n.Addr == at })
	if i < 0 || !says(g.Nodes[i], "replication", "role:master") {
		return nil
	}
	return g.Nodes[i]
}

// Other returns the node that n is not.
func (g *Group) Other(n *redistest.Server) *redistest.Server {
	if n == g.Nodes[0] {
		return g.Nodes[1]
	}
	return g.Nodes[0]
}

// Disconnect keeps what primary writes from now on from its replica, as a
// broken network does, while clients and Sentinels reach both. It ends with
// [Group.Reconnect], or when primary is restarted.
func (g *Group) Disconnect(t testing.TB, primary *redistest.Server) {
	t.Helper()
	login(t, g.Other(primary), "nobody")
	primary.Must(t, "CLIENT", "KILL", "TYPE", "replica")
	redistest.Eventually(t, "the replica is cut off", func() bool { return says(primary, "replication", "connected_slaves:0") })
}

// Reconnect ends [Group.Disconnect] and waits for the replica.
func (g *Group) Reconnect(t testing.TB, primary *redistest.Server) {
	t.Helper()
	login(t, g.Other(primary), "")
	g.awaitLink(t, g.Other(primary))
}

// AwaitFailOver waits until another node than old is the primary, and returns
// it. Something must have made the Sentinels act: the death of old, or
// [Group.FailOver].
func (g *Group) AwaitFailOver(t testing.TB, old *redistest.Server) *redistest.Server {
	t.Helper()
	var now *redistest.Server
	redistest.Eventually(t, "another node is the primary", func() bool {
		now = g.Primary()
		return now != nil && now != old
	})
	return now
}

// FailOver has a Sentinel exchange primary and replica while both live, and
// returns the new primary.
func (g *Group) FailOver(t testing.TB) *redistest.Server {
	t.Helper()
	old := g.Primary()
	var now *redistest.Server
	redistest.Eventually(t, "primary and replica are exchanged", func() bool {
		// A fail-over that takes long is given up, and then asked for again.
		if primaryBy(g.Sentinels[0]) == old.Addr {
			_, _ = g.Sentinels[0].Do("SENTINEL", "FAILOVER", GroupName)
		}
		now = g.Primary()
		return now != nil && now != old
	})
	g.awaitLink(t, old)
	return now
}

// Rejoin starts a dead node again and waits until the Sentinels have made it
// the replica.
func (g *Group) Rejoin(t testing.TB, dead *redistest.Server) {
	t.Helper()
	dead.Revive(t)
	login(t, g.Other(dead), "")
	g.awaitLink(t, dead)
	g.awaitComplete(t)
}

// login tells a replica how to introduce itself to its primary. Redis refuses a
// user that it does not know, and the replica tries again every second.
func login(t testing.TB, replica *redistest.Server, user string) {
	t.Helper()
	replica.Must(t, "CONFIG", "SET", "masteruser", user, "masterauth", user)
}

func (g *Group) awaitLink(t testing.TB, replica *redistest.Server) {
	t.Helper()
	redistest.Eventually(t, "the replica follows", func() bool { return says(replica, "replication", "master_link_status:up") })
}

// awaitComplete waits until each Sentinel knows the replica and the others.
func (g *Group) awaitComplete(t testing.TB) {
	t.Helper()
	redistest.Eventually(t, "each Sentinel knows all nodes", func() bool {
		for _, s := range g.Sentinels {
			if !says(s, "sentinel", "status=ok") || !says(s, "sentinel", "slaves=1,sentinels=3") {
				return false
			}
		}
		return true
	})
}

func primaryBy(sentinel *redistest.Server) string {
	c := redis.NewSentinelClient(&redis.Options{Addr: sentinel.Addr, DisableIdentity: true})
	defer func() { _ = c.Close() }()
	at, err := c.GetMasterAddrByName(context.Background(), GroupName).Result()
	if err != nil || len(at) != 2 {
		return ""
	}
	return net.JoinHostPort(at[0], at[1])
}

// says reports whether a section of the server's INFO contains text.
func says(s *redistest.Server, section, text string) bool {
	info, err := s.Do("INFO", section)
	return err == nil && strings.Contains(info, text)
}

func addrs(servers []*redistest.Server) []string {
	var list []string
	for _, s := range servers {
		list = append(list, s.Addr)
	}
	return list
}
