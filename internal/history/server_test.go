package history

import (
	"context"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/redisstore"
)

func TestMain(m *testing.M) {
	logging.Disable() // outages are planned here
	code := m.Run()
	redistest.StopShared()
	os.Exit(code)
}

const (
	// serverTolerance is between our clock and the one that a script reads.
	serverTolerance = 2 * time.Millisecond
	// serverLinger is how late Redis may notice that a key has expired: it
	// rounds up to milliseconds and compares with the clock of the last loop.
	serverLinger = 20 * time.Millisecond
)

// serverCrowd is the crowd of one round on a server.
var serverCrowd = crowd{keys: 8, clients: 3, calls: 12, short: 40 * time.Millisecond}

// reach returns a handle on a store of its own at addr, whose driver resends
// as often as retries says.
func reach(t *testing.T, addr string, client, retries int) handle {
	t.Helper()
	if retries == 0 {
		retries = -1 // which is how the driver spells it
	}
	c := redis.NewClient(&redis.Options{
		Addr: addr, DisableIdentity: true, MaxRetries: retries, DialerRetries: 1,
		DialTimeout: hurry, ReadTimeout: hurry, WriteTimeout: hurry,
		MinRetryBackoff: time.Millisecond, MaxRetryBackoff: 2 * time.Millisecond,
	})
	s := redisstore.New(c, redisstore.WithPrefix(t.Name()+":"))
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.NoError(t, c.Close())
	})
	return handle{Store: s, client: client}
}

// One server, and a relay in front of each client that delays, cuts and
// swallows replies.
func TestHistory_Relay(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	server := redistest.Shared(t)
	for _, kind := range []struct {
		name    string
		retries int
	}{
		{"clients resend", 0},
		{"the driver resends", 1},
	} {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			r := newRecorder(serverTolerance, licence{fences: 1, linger: serverLinger})
			var relays []*troubled
			var handles []handle
			for i := range serverCrowd.clients {
				relay := &troubled{Relay: redistest.NewRelay(t, server.Addr)}
				relays = append(relays, relay)
				h := reach(t, relay.Addr, i, kind.retries)
				if kind.retries > 0 {
					h.faults = relay.faults.Load
				}
				handles = append(handles, h)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var all sync.WaitGroup
			for _, relay := range relays {
				all.Go(func() { relay.trouble(ctx, rand.Uint64()) })
			}
			for range times(4) {
				serverCrowd.play(ctx, r, rand.Uint64(), handles)
			}
			cancel()
			all.Wait()
			r.check(t)
			t.Logf("%d calls in %d histories, %d without an answer", r.calls, len(r.history), r.open)
			for _, relay := range relays {
				t.Logf("%d delays, %d cuts, %d swallowed replies", relay.kinds[0], relay.kinds[1], relay.kinds[2])
			}
		})
	}
}

// A server that is killed and started again, and writes down what it does
// before it answers: nothing that was answered is lost.
func TestHistory_Restart(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	r := restarting(t, times(2), "--appendonly", "yes", "--appendfsync", "always", "--dir", t.TempDir())
	r.check(t)
	t.Logf("%d calls in %d histories, %d without an answer", r.calls, len(r.history), r.open)
}

// The same with a server that forgets everything: it is noticed.
func TestHistory_RestartWithLoss(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	for range 20 {
		if restarting(t, 1).report() != "" {
			return
		}
	}
	t.Fatal("a server that loses what it holds is not noticed")
}

// restarting records histories on a server that is killed and started again
// with config all the time.
func restarting(t *testing.T, rounds int, config ...string) *recorder {
	server := redistest.Start(t, config...)
	r := newRecorder(serverTolerance, licence{fences: 1, linger: serverLinger})
	var handles []handle
	for i := range serverCrowd.clients {
		handles = append(handles, reach(t, server.Addr, i, 0))
	}
	for range rounds {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			serverCrowd.play(t.Context(), r, rand.Uint64(), handles)
		}()
		for playing := true; playing; {
			rest(t.Context(), rand.N(100*time.Millisecond))
			server.Restart(t, config...)
			select {
			case <-ended:
				playing = false
			default:
			}
		}
	}
	return r
}
