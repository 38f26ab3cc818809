package idempotent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/redisstore"
	"github.com/idempotent-go/idempotent/storetest"
)

// heapInUse returns the bytes in use when nothing is left to collect.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC() // what finalizers and pools kept
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Many times more keys than the store has room for, while slow requests run,
// others wait for them, and replies get lost: no claim is lost, and afterwards
// nothing is left but the entries that there is room for.
func TestFlood_ProtectedTraffic(t *testing.T) {
	const limit, slow, workers, lost = 10_000, 40, 4, 200
	keys := int64(100_000)
	if os.Getenv("IDEMPOTENT_LONG") == "1" {
		keys = 1_000_000
	}
	running := goleak.IgnoreCurrent()
	heap := heapInUse()

	mem := memstore.New(memstore.WithMaxEntries(limit), memstore.WithLogger(slog.New(slog.DiscardHandler)))
	store := storetest.NewFaulty(mem)
	store.After(storetest.OpClaim, func(_ context.Context, key string) error {
		if strings.HasPrefix(key, "lost") {
			return errOutage
		}
		return nil
	})
	g := idempotent.New(store, idempotent.WithLogger(slog.New(slog.DiscardHandler)))
	gate := newGate(t)
	defer releaseGates(t)
	var runs atomic.Int64
	h := g.Middleware(idempotent.Anonymous, idempotent.WithMaxWait(10*time.Minute))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := runs.Add(1)
		gate.pass()
		fmt.Fprintf(w, "%s %d", r.Header.Get("Idempotency-Key"), n)
	}))
	server := httptest.NewServer(h)
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}}
	b := &bench{t: t, server: server, client: client, world: memory}

	// What runs, and who waits for it.
	var first, waiters []*attempt
	for i := range slow {
		first = append(first, b.begin(order{key: fmt.Sprint("slow", i)}))
		b.receive("a handler", gate.entered)
	}
	for range idempotent.MaxWaitersPerKey + 50 {
		waiters = append(waiters, b.begin(order{key: "slow0", fields: []string{"Prefer", "wait=600"}}))
	}
	b.until("as many as may wait do, and the others were refused", func() bool {
		refused := 0
		for _, w := range waiters {
			select {
			case <-w.done:
				refused++
			default:
			}
		}
		all, keys := idempotent.Waiters(h)
		require.LessOrEqual(t, all, idempotent.MaxWaitersPerKey)
		require.LessOrEqual(t, keys, 1)
		return refused == 50 && all == idempotent.MaxWaitersPerKey
	})

	// The flood.
	lossy := g.With(idempotent.WithLease(100*time.Millisecond), idempotent.WithStoreTimeout(100*time.Millisecond))
	done := func(context.Context) (idempotent.Class, string) { return idempotent.ClassSuccess, "done" }
	var next atomic.Int64
	var flood sync.WaitGroup
	for range workers {
		flood.Go(func() {
			for i := next.Add(1); i <= keys; i = next.Add(1) {
				key := fmt.Sprint("flood", i)
				if _, replayed, err := g.Run(t.Context(), key, done); err != nil || replayed {
					t.Errorf("%s: replayed %v, %v", key, replayed, err)
					return
				}
				if i%100 == 0 {
					if _, replayed, err := g.Run(t.Context(), key, done); err != nil || !replayed {
						t.Errorf("%s again: replayed %v, %v", key, replayed, err)
						return
					}
				}
				if i <= lost {
					_, _, err := lossy.Run(t.Context(), fmt.Sprint("lost", i), done)
					var failed *idempotent.StoreError
					if !errors.As(err, &failed) {
						t.Errorf("lost%d: %v", i, err)
						return
					}
				}
				if n := mem.Len(); n > limit+limit/10+slow+lost+workers {
					t.Errorf("%d entries", n)
					return
				}
			}
		})
	}
	flood.Wait()

	// Nothing that ran was lost.
	gate.release()
	for i, a := range first {
		require.True(t, strings.HasPrefix(a.wait().body, fmt.Sprintf("slow%d ", i)))
	}
	answers := map[int]int{}
	for _, w := range waiters {
		a := w.wait()
		answers[a.status]++
		if a.status == http.StatusOK {
			require.True(t, a.replayed())
			require.Equal(t, first[0].answer.body, a.body)
		}
	}
	require.Equal(t, map[int]int{http.StatusOK: idempotent.MaxWaitersPerKey, http.StatusConflict: 50}, answers)
	require.EqualValues(t, slow, runs.Load())

	// Nothing is left in any table.
	b.until("claims whose reply was lost are freed", func() bool {
		left, runs := g.Unanswered()
		return left == 0 && !runs
	})
	for i := range lost {
		_, found, err := mem.Load(t.Context(), fmt.Sprint("lost", i+1))
		require.NoError(t, err)
		require.False(t, found)
	}
	b.until("all has ended", func() bool { return g.Running() == 0 })
	all, waitedFor := idempotent.Waiters(h)
	require.Zero(t, all)
	require.Zero(t, waitedFor)
	require.Zero(t, mem.Stats().Pending)
	require.LessOrEqual(t, mem.Len(), limit+limit/10)
	client.CloseIdleConnections()
	server.Close()
	require.Less(t, heapInUse()-heap, int64(64<<20), "bytes for about 11,000 small entries")
	require.NoError(t, g.Drain(t.Context()))
	require.NoError(t, mem.Close())
	goleak.VerifyNone(t, running)
}

// Clients that send slowly, wait, or do not read their answer hold no claim
// and no connection to Redis: two connections are enough for everybody else.
func TestC042_SlowClientsHoldNothing(t *testing.T) {
	t.Parallel()
	const halves, waiters, deaf = 50, 50, 4
	pool := redis.NewClient(&redis.Options{Addr: redistest.Shared(t).Addr, DisableIdentity: true, PoolSize: 2, PoolTimeout: patience})
	t.Cleanup(func() { _ = pool.Close() })
	store := redisstore.New(pool, redisstore.WithPrefix(fmt.Sprintf("b%d:", redisPrefixes.Add(1))))
	t.Cleanup(func() { _ = store.Close() })
	gate := newGate(t)
	var b *bench
	var requests atomic.Int64
	large := strings.Repeat("0123456789abcdef", 6<<20/16) // more than the kernel takes off a server
	b = memory.bench(t, setup{
		store: store,
		outer: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				defer requests.Add(-1)
				next.ServeHTTP(w, r)
			})
		},
		options: []idempotent.HTTPOption{idempotent.WithMaxWait(10 * time.Minute), idempotent.WithMaxResponse(8 << 20)},
		handler: func(w http.ResponseWriter, r *http.Request) {
			switch key := r.Header.Get("Idempotency-Key"); {
			case key == "slow":
				gate.pass()
				b.created(w, r)
			case strings.HasPrefix(key, "deaf"):
				_, _ = io.WriteString(w, large)
			}
		},
	})

	// Half a body each.
	for i := range halves {
		b.raw(fmt.Sprintf("POST /orders HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: half%d\r\nContent-Length: 100\r\n\r\n%s", i, someBody))
	}
	b.until("the requests are there", func() bool { return requests.Load() == halves })
	b.requireUntouched()

	// Those who do not read.
	for i := range deaf {
		conn, err := b.dial(t.Context())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		require.NoError(t, conn.(*net.TCPConn).SetReadBuffer(4096))
		_, err = io.WriteString(conn, rawOrder(fmt.Sprintf("Idempotency-Key: deaf%d", i)))
		require.NoError(t, err)
	}
	for i := range deaf {
		b.untilSettled(fmt.Sprint("deaf", i))
	}
	require.EqualValues(t, halves+deaf, requests.Load(), "nobody has had an answer")

	// Those who wait.
	first := b.begin(order{key: "slow"})
	b.receive("the handler", gate.entered)
	var waiting []*attempt
	for range waiters {
		waiting = append(waiting, b.begin(order{key: "slow", fields: []string{"Prefer", "wait=600"}}))
	}
	b.until("all wait", func() bool { return b.store.Calls(storetest.OpWait) == waiters })

	for i := range 50 {
		require.Equal(t, http.StatusOK, b.post(fmt.Sprint("other", i)).status)
	}
	for i := range halves {
		b.requireAbsent(fmt.Sprint("half", i))
	}
	b.until("no connection is in use", func() bool {
		s := pool.PoolStats()
		return s.IdleConns == s.TotalConns
	})
	require.Zero(t, pool.PoolStats().Timeouts)
	require.LessOrEqual(t, pool.PoolStats().TotalConns, uint32(2))
	require.EqualValues(t, 1, b.running.Load(), "handlers that have not ended")

	gate.release()
	answer := first.wait()
	for _, w := range waiting {
		requireReplay(t, answer, w.wait())
	}
	require.Zero(t, b.observed(idempotent.EventStoreError))
}
