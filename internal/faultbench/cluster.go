package faultbench

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent/internal/redistest"
)

// Cluster is three primaries that share the slots, and a replica of each. A
// node counts as down after a second.
type Cluster struct {
	Primaries []*redistest.Server // as they start
	Replicas  []*redistest.Server // of the primary of the same index
}

// StartCluster starts a Cluster whose nodes have config, and returns when it
// serves every slot and would survive the loss of a primary. It ends with the
// test.
func StartCluster(t testing.TB, config ...string) *Cluster {
	t.Helper()
	config = append([]string{"--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--repl-diskless-sync-delay", "0"}, config...)
	c := &Cluster{}
	for range 3 {
		c.Primaries = append(c.Primaries, redistest.Start(t, config...))
		c.Replicas = append(c.Replicas, redistest.Start(t, config...))
	}
	const slots, n = 16384, 3
	for i, p := range c.Primaries {
		p.Must(t, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(i*slots/n), strconv.Itoa((i+1)*slots/n-1))
	}
	nodes := c.nodes()
	for i, node := range nodes {
		node.Must(t, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1)) // or they begin by settling who is first
	}
	for i, node := range nodes {
		for _, other := range nodes[:i] {
			host, port, _ := net.SplitHostPort(other.Addr)
			node.Must(t, "CLUSTER", "MEET", host, port)
		}
	}
	for i, p := range c.Primaries {
		id := p.Must(t, "CLUSTER", "MYID")
		redistest.Eventually(t, "a replica knows its primary", func() bool {
			_, err := c.Replicas[i].Do("CLUSTER", "REPLICATE", id)
			return err == nil
		})
	}
	for i := range c.Primaries {
		c.AwaitReplica(t, i)
	}
	c.AwaitServing(t)
	return c
}

// Client returns a client of the Cluster. It ends with the test. It looks at
// the map of the slots every second: go-redis does that once a minute, and
// until then knows nothing of the successor of a primary that is gone, since
// nobody is left there to send it on.
func (c *Cluster) Client(t testing.TB, change ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	t.Helper()
	o := &redis.ClusterOptions{Addrs: addrs(c.nodes()), DisableIdentity: true, ClusterStateReloadInterval: time.Second}
	for _, f := range change {
		f(o)
	}
	client := redis.NewClusterClient(o)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// AwaitServing waits until every live node knows every slot to be served, and
// all nodes.
func (c *Cluster) AwaitServing(t testing.TB) {
	t.Helper()
	known := fmt.Sprintf("cluster_known_nodes:%d\r\n", len(c.nodes()))
	redistest.Eventually(t, "the cluster serves every slot", func() bool {
		for _, n := range c.nodes() {
			info, err := n.Do("CLUSTER", "INFO")
			if err == nil && !(strings.Contains(info, "cluster_state:ok") && strings.Contains(info, known)) {
				return false
			}
		}
		return true
	})
}

// AwaitReplica waits until the replica of index i follows.
func (c *Cluster) AwaitReplica(t testing.TB, i int) {
	t.Helper()
	redistest.Eventually(t, "a replica follows", func() bool {
		return says(c.Replicas[i], "replication", "role:slave") && says(c.Replicas[i], "replication", "master_link_status:up")
	})
}

// AwaitFailOver waits until the replica of index i is the primary and all slots
// are served.
func (c *Cluster) AwaitFailOver(t testing.TB, i int) {
	t.Helper()
	redistest.Eventually(t, "the replica is the primary", func() bool { return says(c.Replicas[i], "replication", "role:master") })
	c.AwaitServing(t)
}

// FailOver exchanges primary and replica of index i while both live: the
// replica is c.Primaries[i] afterwards.
func (c *Cluster) FailOver(t testing.TB, i int) {
	t.Helper()
	// For two seconds after one fail-over the others vote for no other one of
	// the same primary, and the request is lost.
	var asked time.Time
	redistest.Eventually(t, "primary and replica are exchanged", func() bool {
		if time.Since(asked) > 2500*time.Millisecond {
			asked = time.Now()
			c.Replicas[i].Must(t, "CLUSTER", "FAILOVER")
		}
		return says(c.Replicas[i], "replication", "role:master")
	})
	c.AwaitServing(t)
	c.Primaries[i], c.Replicas[i] = c.Replicas[i], c.Primaries[i]
	c.AwaitReplica(t, i)
}

func (c *Cluster) nodes() []*redistest.Server {
	return append(append([]*redistest.Server{}, c.Primaries...), c.Replicas...)
}
