package main

import (
	"bytes"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/internal/redistest"
)

var executed = regexp.MustCompile(`msg=executed key=([0-9a-f]{16})`)

// A shop that keeps its keys in memory and is deployed again and again while
// clients send orders runs none of them twice, and answers each of them as
// before.
func TestRestartsUnderLoad(t *testing.T) {
	t.Parallel()
	binary := build(t)
	store := "memory:?min_age=10m&snapshot=" + filepath.Join(t.TempDir(), "shop.keys")
	const clients, restarts = 4, 4

	var now atomic.Pointer[process]
	now.Store(start(t, binary, "-store", store))
	var placed atomic.Int64
	var stop atomic.Bool
	var all sync.WaitGroup
	orders := make([]map[string]string, clients) // key to answer
	for i := range orders {
		orders[i] = map[string]string{}
		all.Go(func() {
			for n := 0; !stop.Load(); n++ {
				key := fmt.Sprintf("order-%d-%d", i, n)
				// The client of an order that was under way when the shop
				// stopped cannot know, and sends it again until it does.
				for a := (answer{}); a.status != 201; {
					a = now.Load().send(t.Context(), request{path: "/orders", token: ada, key: key, body: tea})
					orders[i][key] = a.body
					switch a.status {
					case 0, 201, 409, 503: // gone, done, running, stopping
					default:
						t.Errorf("%s: %v %s", key, a, a.body)
						return
					}
				}
				placed.Add(1)
			}
		})
	}
	var logs []string
	restart := func() {
		p := now.Load()
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
		code, log := p.wait()
		require.Equal(t, 0, code, log)
		logs = append(logs, log)
		now.Store(start(t, binary, "-store", store))
	}
	for range restarts {
		before := placed.Load()
		redistest.Eventually(t, "orders are placed", func() bool { return placed.Load() >= before+50 || t.Failed() })
		restart()
	}
	stop.Store(true)
	all.Wait()
	restart()
	sent := 0
	for _, some := range orders {
		for key, want := range some {
			a := now.Load().send(t.Context(), request{path: "/orders", token: ada, key: key, body: tea})
			require.Equal(t, "replay of 201", a.String(), key)
			require.Equal(t, want, a.body, key)
			sent++
		}
	}
	require.NoError(t, now.Load().cmd.Process.Signal(syscall.SIGTERM))
	_, log := now.Load().wait()
	logs = append(logs, log)
	times := map[string]int{}
	for _, m := range executed.FindAllStringSubmatch(strings.Join(logs, "\n"), -1) {
		times[m[1]]++
		require.Equal(t, 1, times[m[1]], "%s ran again", m[1])
	}
	require.Len(t, times, sent)
}

// The environment names the store of a shop that is told nothing else, and is
// never printed.
func TestStoreFromEnvironment(t *testing.T) {
	const secret = "pa55word"
	t.Setenv("IDEMPOTENCY_STORE", "redis://ada:"+secret+"@127.0.0.1:0")
	for want, args := range map[string][]string{
		"a port is not a number":                           {},
		"host is missing":                                  {"-store", "redis://"},
		"instead of $IDEMPOTENCY_STORE (default \"memory:": {"-h"},
	} {
		var stdout, stderr bytes.Buffer
		run(args, &stdout, &stderr)
		require.Contains(t, stderr.String(), want)
		require.NotContains(t, stderr.String()+stdout.String(), secret)
	}
}
