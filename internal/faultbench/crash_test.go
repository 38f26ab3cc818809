//go:build unix

package faultbench

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/redisstore"
)

// long reports whether the long runs are wanted, with IDEMPOTENT_LONG=1.
func long() bool { return os.Getenv("IDEMPOTENT_LONG") == "1" }

func times(short, long_ int) int {
	if long() {
		return long_
	}
	return short
}

// The requests of a till as they pass the relay: EVALSHA, or EVAL where the
// script is not known, with as many words as the script has arguments.
func isClaim(request []byte) bool    { return isScript(request, 3) }
func isComplete(request []byte) bool { return isScript(request, 5) }

func isScript(request []byte, arguments int) bool {
	words := fmt.Sprintf("*%d\r\n", 4+arguments) // command, script, 1, name of the hash
	return bytes.HasPrefix(request, []byte(words+"$7\r\nevalsha\r\n")) || bytes.HasPrefix(request, []byte(words+"$4\r\neval\r\n"))
}

// crash is one run: tills on a Redis behind a relay, and their customers.
type crash struct {
	t         *testing.T
	server    *redistest.Server
	relay     *redistest.Relay
	till      *process
	customers *customers
	ledger    func() map[string][]execution
	storeKey  func(key string) string
	store     *redisstore.Store // to look at, past the relay
	kills     []*kill
	lease     time.Duration
	since     time.Time // a till's claim from before is not cut short by this kill
}

// newCrash returns a run without anybody in it.
func newCrash(t *testing.T) *crash {
	t.Helper()
	c := &crash{t: t, server: redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")}
	c.relay = redistest.NewRelay(t, c.server.Addr)
	client := redis.NewClient(&redis.Options{Addr: c.server.Addr, DisableIdentity: true})
	t.Cleanup(func() { _ = client.Close() })
	c.store = newStore(t, client)
	return c
}

// newTillCrash returns a run with a till and customers.
func newTillCrash(t *testing.T) *crash {
	t.Helper()
	c := newCrash(t)
	c.till = newProcess(t, c.relay.Addr)
	c.ledger = func() map[string][]execution { return readLedger(t, c.till.ledger) }
	c.storeKey = func(key string) string { return idempotent.StoreKey(http.MethodPost, route, "till", key) }
	c.lease, c.since = lease, c.till.started
	c.customers = newCustomers(t, c.till.url)
	c.customers.enter(24)
	return c
}

// reach waits for the moment of the next kill: a random one, or one between two
// steps of some operation. The relay holds that operation there.
func (c *crash) reach() {
	before := c.customers.count()
	redistest.Eventually(c.t, "operations are answered", func() bool { return c.customers.count() > before })
	var caught <-chan struct{}
	switch len(c.kills) % 4 {
	case 0:
		caught = c.relay.HoldReply(done(c.first(isClaim))) // claimed, and the till does not know it
	case 1:
		caught = c.relay.HoldRequest(c.first(isComplete)) // in the ledger, and not in Redis
	case 2:
		caught = c.relay.HoldReply(done(c.first(isComplete))) // recorded, and not answered
	default:
		<-time.After(rand.N(100 * time.Millisecond))
		return
	}
	select {
	case <-caught:
	case <-time.After(10 * time.Second):
		c.t.Fatal("no operation came to the point where it was to be interrupted")
	}
}

// first narrows match down to operations whose first request is under way:
// a till also sends what was left over from the kill before.
func (c *crash) first(match func([]byte) bool) func([]byte) bool {
	return func(request []byte) bool {
		if !match(request) {
			return false
		}
		c.customers.mu.Lock()
		defer c.customers.mu.Unlock()
		for key, try := range c.customers.attempts {
			if try.first && bytes.Contains(request, []byte(c.storeKey(key))) {
				return true
			}
		}
		return false
	}
}

// done narrows match down to requests that were carried out: after a restart a
// server does not know the scripts.
func done(match func([]byte) bool) func(request, reply []byte) bool {
	return func(request, reply []byte) bool { return match(request) && reply[0] != '-' }
}

// look notes between which steps of the operations under way, at that moment,
// the kill came. The till and the server must not be in touch. A till that lives
// will answer all the same; of one that does not, an answer may still be on its
// way.
func (c *crash) look(underWay map[string]*attempt, lives bool) {
	ledger := c.ledger()
	k := &kill{}
	c.kills = append(c.kills, k)
	c.customers.mu.Lock()
	defer c.customers.mu.Unlock()
	for key, try := range underWay {
		e, found, err := c.store.Load(c.t.Context(), c.storeKey(key))
		require.NoError(c.t, err)
		switch {
		case !found || !lives && e.Claimed.Before(c.since):
		case e.Status == idempotent.Pending:
			require.LessOrEqual(c.t, time.Until(e.Expires), c.lease, "the claim outlives its lease")
			if len(ledger[key]) == 0 {
				k.claimLedger = true
			} else {
				k.ledgerCompletion = true
			}
		case e.Result != "":
			try.kill = k
			k.completionAnswer = k.completionAnswer || lives || try.lost
		}
	}
	c.since = time.Now()
}

// end lets the customers finish and returns the verdict, which it logs.
func (c *crash) end(strict bool) verdict {
	c.customers.close()
	v := judge(c.ledger(), c.customers.answers, strict)
	var total [3]int
	for _, k := range c.kills {
		for i, hit := range []bool{k.claimLedger, k.ledgerCompletion, k.completionAnswer} {
			if hit {
				total[i]++
			}
		}
	}
	c.t.Logf("operations %d (requests %d), faults injected %d (with an operation between claim and ledger %d, ledger and completion %d, completion and answer %d), "+
		"executions %d, ended as success %d, failed %d, outcome unknown %d, violations: %d",
		len(c.customers.answers), c.customers.sent, len(c.kills), total[0], total[1], total[2],
		v.executions, v.success, v.failed, v.unknown, len(v.twice)+len(v.disagree))
	for i, between := range []string{"claim and ledger", "ledger and completion", "completion and answer"} {
		require.NotZero(c.t, total[i], "no kill came between "+between)
	}
	return v
}

func (v verdict) require(t *testing.T) {
	t.Helper()
	require.Empty(t, v.twice)
	require.Empty(t, v.disagree)
	require.NotZero(t, v.success)
	require.NotZero(t, v.failed)
	require.NotZero(t, v.unknown, "a crash in an operation leaves a doubt")
}

// The process dies.
func TestC001_CrashOfTheProcess(t *testing.T) {
	t.Parallel()
	c := newTillCrash(t)
	for range times(10, 200) {
		c.reach()
		c.killTill()
	}
	c.end(true).require(t)
}

// killTill kills the till and starts another one.
func (c *crash) killTill() {
	underWay := c.customers.underWay()
	c.till.kill()
	c.relay.Cut() // what the dead one sent and the relay holds is lost
	c.look(underWay, false)
	c.relay.Mend()
	c.till.start(c.t)
}

// The server dies, and comes back with all that it has acknowledged.
func TestC039_CrashOfRedis(t *testing.T) {
	t.Parallel()
	c := newTillCrash(t)
	for range times(10, 200) {
		c.reach()
		underWay := c.customers.underWay()
		c.server.Kill()
		c.relay.Cut()
		c.server.Revive(t)
		c.look(underWay, true)
		c.relay.Mend()
	}
	v := c.end(false)
	require.Empty(t, v.twice)
	require.Empty(t, v.disagree)
	require.NotZero(t, v.success)
	require.NotZero(t, v.failed)
}

// What the crash tests look for they find: where the layer is missing or gives
// a key away twice, or where Redis forgets, the ledger says so.
func TestPlanted_RunsTwice(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, plant string
		fault       func(testing.TB, *redistest.Server)
	}{
		{"no middleware", plantBare, nil},
		{"a store that gives keys away twice", plantForgetful, nil},
		{"a Redis without a file", "", func(t testing.TB, s *redistest.Server) { s.Revive(t) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			till := newProcess(t, server.Addr, tillPlant+"="+c.plant)
			customers := newCustomers(t, till.url)
			customers.enter(4)
			redistest.Eventually(t, "operations are answered", func() bool { return customers.count() > 20 })
			if c.fault != nil {
				c.fault(t, server)
			}
			customers.close()
			v := judge(readLedger(t, till.ledger), customers.answers, true)
			require.NotEmpty(t, v.twice)
			t.Logf("operations %d, executions %d, found: %d ran twice", len(customers.answers), v.executions, len(v.twice))
		})
	}
}

// A fail-over loses what was not replicated: here all that the primary took
// while its replica was cut off. Without WithReplicas operations then run
// again, and how many do is measured. With it no claim counts that the replica
// has not got, and none does.
func TestC039_FailOver(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, replicas string
	}{
		{"the replica is not waited for", ""},
		{"WithReplicas", "1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := StartGroup(t)
			till := newProcess(t, strings.Join(addrs(g.Sentinels), ","), tillReplicas+"="+c.replicas)
			const n = 24
			customers := newCustomers(t, till.url)
			customers.enter(n)
			cycles := times(1, 10)
			for range cycles {
				primary := g.Primary()
				require.NotNil(t, primary)
				executed := len(readLedger(t, till.ledger))
				redistest.Eventually(t, "operations are executed", func() bool { return len(readLedger(t, till.ledger)) > executed+n })
				g.Disconnect(t, primary)
				before := customers.count()
				redistest.Eventually(t, "operations are answered, or refused", func() bool { return customers.count() > before+2*n })
				primary.Kill()
				g.AwaitFailOver(t, primary)
				g.Rejoin(t, primary)
			}
			customers.close()
			v := judge(readLedger(t, till.ledger), customers.answers, false)
			violations := len(v.twice) + len(v.disagree)
			lost := ""
			if c.replicas == "" {
				violations = len(v.disagree)
				lost = fmt.Sprintf("lost by the fail-over as documented and run twice %d, ", len(v.twice))
			}
			t.Logf("operations %d (requests %d), faults injected %d, executions %d, ended as success %d, failed %d, outcome unknown %d, %sviolations: %d",
				len(customers.answers), customers.sent, 2*cycles, v.executions, v.success, v.failed, v.unknown, lost, violations)
			require.Empty(t, v.disagree)
			if c.replicas == "" {
				require.NotEmpty(t, v.twice, "nothing is lost: that WithReplicas loses nothing means nothing")
			} else {
				require.Empty(t, v.twice)
			}
			require.NotZero(t, v.success)
		})
	}
}
