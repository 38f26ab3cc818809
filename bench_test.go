package idempotent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/redisstore"
	"github.com/idempotent-go/idempotent/storetest"
)

// Every benchmark runs on memory and on Redis, side by side, next to its bare
// baseline, from one goroutine and from all processors. Keys have about 90
// bytes, results 512. Compare within one run only. Comparisons with other
// libraries are in the module benchmarks.

// benchStores calls f with a store of each kind.
func benchStores(b *testing.B, f func(b *testing.B, s idempotent.Store)) {
	b.Run("memory", func(b *testing.B) { f(b, benchMemory(b)) })
	b.Run("redis", func(b *testing.B) { f(b, benchRedis(b)) })
}

func benchMemory(b *testing.B) idempotent.Store {
	s := memstore.New(memstore.WithLogger(slog.New(slog.DiscardHandler)))
	b.Cleanup(func() { _ = s.Close() })
	return s
}

func benchRedis(b *testing.B) idempotent.Store {
	server := redistest.Start(b)
	client := redis.NewClient(&redis.Options{Addr: server.Addr, PoolSize: 128})
	b.Cleanup(func() { _ = client.Close() })
	s := redisstore.New(client)
	b.Cleanup(func() { _ = s.Close() })
	return s
}

const benchFingerprint = "r1:0123456789abcdef0123456789abcdef"

var benchResult = strings.Repeat("r", 512)

// benchKeys gives every benchmark keys of its own.
var benchKeys atomic.Int64

// benchKey is as long as a store name usually is: 90 bytes.
func benchKey(n int64) string {
	return fmt.Sprintf("POST:/api/v1/orders:tenant-0042~user-000001234567~eu:018f7a3e-5b1c-7c3d-9e2a-%012d", n)
}

// BenchmarkStoretest is what authors of stores run.
func BenchmarkStoretest(b *testing.B) {
	b.Run("memory", func(b *testing.B) { storetest.Bench(b, benchMemory) })
	b.Run("redis", func(b *testing.B) { storetest.Bench(b, benchRedis) })
}

// BenchmarkStore calls a store as the guard does, next to a bare map.
func BenchmarkStore(b *testing.B) {
	b.Run("bare/fresh", func(b *testing.B) {
		var m sync.Map
		benchModes(b, func() error {
			key := benchKey(benchKeys.Add(1))
			m.LoadOrStore(key, &idempotent.Entry{Key: key})
			return nil
		})
	})
	b.Run("bare/replay", func(b *testing.B) {
		var m sync.Map
		key := benchKey(benchKeys.Add(1))
		m.Store(key, &idempotent.Entry{Key: key})
		benchModes(b, func() error {
			if _, ok := m.Load(key); !ok {
				return errors.New("not found")
			}
			return nil
		})
	})
	benchStores(b, func(b *testing.B, s idempotent.Store) {
		ctx := context.Background()
		outcome := idempotent.Outcome{Status: idempotent.Success, Result: benchResult, Fingerprint: benchFingerprint, Retention: time.Hour}
		benchCalls(b, s, func(key, fingerprint string) (bool, error) {
			e, claimed, err := s.Claim(ctx, key, idempotent.Claim{Owner: "owner of the call", Fingerprint: fingerprint, Lease: time.Minute, Keep: time.Hour})
			switch {
			case err != nil:
				return false, err
			case claimed:
				return false, s.Complete(ctx, key, "owner of the call", outcome)
			case e.Fingerprint != fingerprint:
				return false, idempotent.ErrKeyReused
			case e.Status == idempotent.Pending:
				return false, &idempotent.InFlightError{}
			}
			return true, nil
		})
	})
}

func BenchmarkRun(b *testing.B) {
	op := func(context.Context) (idempotent.Class, string) { return idempotent.ClassSuccess, benchResult }
	b.Run("bare", func(b *testing.B) {
		benchModes(b, func() error {
			op(context.Background())
			return nil
		})
	})
	benchStores(b, func(b *testing.B, s idempotent.Store) {
		g := idempotent.New(s)
		ctx := context.Background()
		benchCalls(b, s, func(key, fingerprint string) (bool, error) {
			_, replayed, err := g.Run(ctx, key, op, idempotent.WithCallFingerprint(fingerprint))
			return replayed, err
		})
	})
}

func BenchmarkDo(b *testing.B) {
	type order struct{ ID, Note string }
	want := order{ID: "r1", Note: benchResult[:512-len(`{"ID":"r1","Note":""}`)]}
	fn := func(context.Context) (order, error) { return want, nil }
	b.Run("bare", func(b *testing.B) {
		benchModes(b, func() error {
			_, err := fn(context.Background())
			return err
		})
	})
	benchStores(b, func(b *testing.B, s idempotent.Store) {
		g := idempotent.New(s)
		ctx := context.Background()
		benchCalls(b, s, func(key, fingerprint string) (bool, error) {
			replayed := true
			got, err := idempotent.Do(ctx, g, key, func(ctx context.Context) (order, error) {
				replayed = false
				return fn(ctx)
			}, idempotent.WithCallFingerprint(fingerprint))
			if err == nil && got != want {
				err = fmt.Errorf("got %v", got)
			}
			return replayed, err
		})
	})
}

// benchCalls measures every answer that a guard over s gives. Call runs an
// operation and says whether it was replayed.
func benchCalls(b *testing.B, s idempotent.Store, call func(key, fingerprint string) (bool, error)) {
	b.Helper()
	b.Run("fresh", func(b *testing.B) {
		benchModes(b, func() error {
			replayed, err := call(benchKey(benchKeys.Add(1)), benchFingerprint)
			return wantReplayed(replayed, false, err)
		})
	})
	finished := func(b *testing.B) string {
		key := benchKey(benchKeys.Add(1))
		_, err := call(key, benchFingerprint)
		require.NoError(b, err)
		return key
	}
	b.Run("replay", func(b *testing.B) {
		key := finished(b)
		benchModes(b, func() error {
			replayed, err := call(key, benchFingerprint)
			return wantReplayed(replayed, true, err)
		})
	})
	b.Run("conflict", func(b *testing.B) {
		key := benchKey(benchKeys.Add(1))
		_, _, err := s.Claim(context.Background(), key, idempotent.Claim{Owner: "other", Fingerprint: benchFingerprint, Lease: time.Hour, Keep: time.Hour})
		require.NoError(b, err)
		benchModes(b, func() error {
			_, err := call(key, benchFingerprint)
			return wantError[*idempotent.InFlightError](err)
		})
	})
	b.Run("mismatch", func(b *testing.B) {
		key := finished(b)
		benchModes(b, func() error {
			if _, err := call(key, "r1:another"); err != idempotent.ErrKeyReused {
				return fmt.Errorf("got %w", err)
			}
			return nil
		})
	})
}

func BenchmarkMiddleware(b *testing.B) {
	for _, size := range []int{512, 64 << 10} {
		answer := bytes.Repeat([]byte("a"), size)
		body := []byte(`{"item":"` + strings.Repeat("t", size-11) + `"}`)
		next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Location", "/orders/1")
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write(answer)
		})
		b.Run(fmt.Sprintf("%d B", size), func(b *testing.B) {
			b.Run("bare", func(b *testing.B) {
				benchModes(b, func() error { return serve(next, benchKeys.Add(1), body, http.StatusCreated) })
			})
			benchStores(b, func(b *testing.B, s idempotent.Store) {
				h := idempotent.New(s).Middleware(benchPrincipal)(next)
				b.Run("fresh", func(b *testing.B) {
					benchModes(b, func() error { return serve(h, benchKeys.Add(1), body, http.StatusCreated) })
				})
				b.Run("replay", func(b *testing.B) {
					key := -benchKeys.Add(1)
					require.NoError(b, serve(h, key, body, http.StatusCreated))
					benchModes(b, func() error { return serve(h, key, body, http.StatusCreated) })
				})
				b.Run("conflict", func(b *testing.B) {
					key := -benchKeys.Add(1) // b runs this several times
					running, end := make(chan struct{}), make(chan struct{})
					held := idempotent.New(s).Middleware(benchPrincipal)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
						close(running)
						<-end
					}))
					go func() { _ = serve(held, key, body, http.StatusOK) }()
					<-running
					defer close(end)
					benchModes(b, func() error { return serve(h, key, body, http.StatusConflict) })
				})
				b.Run("mismatch", func(b *testing.B) {
					key := -benchKeys.Add(1)
					require.NoError(b, serve(h, key, []byte("{}"), http.StatusCreated))
					benchModes(b, func() error { return serve(h, key, body, http.StatusUnprocessableEntity) })
				})
			})
		})
	}
}

// benchPrincipal makes store names of 90 bytes.
func benchPrincipal(*http.Request) (string, error) { return "tenant-0042~user-000001234567~eu", nil }

// serve sends one request to h in process, with a writer that costs little.
func serve(h http.Handler, key int64, body []byte, want int) error {
	r := &http.Request{
		Method: http.MethodPost, URL: &url.URL{Path: "/api/v1/orders"}, RequestURI: "/api/v1/orders",
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Host: "localhost",
		Header: http.Header{
			"Idempotency-Key": {fmt.Sprintf("018f7a3e-5b1c-7c3d-9e2a-%012d", key)},
			"Content-Type":    {"application/json"},
		},
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}
	w := discardWriter{header: make(http.Header)}
	h.ServeHTTP(&w, r)
	if w.status != want {
		return fmt.Errorf("got %d, want %d", w.status, want)
	}
	return nil
}

type discardWriter struct {
	header http.Header
	status int
}

func (w *discardWriter) Header() http.Header { return w.header }

func (w *discardWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
}

func (w *discardWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return len(p), nil
}

// WriteString is there as in the writer of net/http.
func (w *discardWriter) WriteString(s string) (int, error) {
	w.WriteHeader(http.StatusOK)
	return len(s), nil
}

// benchModes runs op from one goroutine, and from all processors.
func benchModes(b *testing.B, op func() error) {
	b.Helper()
	b.Run("serial", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := op(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := op(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}

func wantReplayed(got, want bool, err error) error {
	if err == nil && got != want {
		err = fmt.Errorf("replayed is %v", got)
	}
	return err
}

func wantError[E error](err error) error {
	if _, ok := err.(E); !ok {
		return fmt.Errorf("got %w", err)
	}
	return nil
}
