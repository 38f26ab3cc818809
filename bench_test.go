package idempotent_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
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
// baseline. Compare within one run only.

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

// benchKeys gives every benchmark keys of its own.
var benchKeys atomic.Int64

// benchKey is as long as a store name usually is.
func benchKey(n int64) string {
	return fmt.Sprintf("POST:/api/v1/orders:tenant-0042~user-000001234567:018f7a3e-5b1c-7c3d-9e2a-%012d", n)
}

func BenchmarkStore(b *testing.B) {
	b.Run("memory", func(b *testing.B) { storetest.Bench(b, benchMemory) })
	b.Run("redis", func(b *testing.B) { storetest.Bench(b, benchRedis) })
}

func BenchmarkRun(b *testing.B) {
	result := strings.Repeat("r", 512)
	op := func(context.Context) (idempotent.Class, string) { return idempotent.ClassSuccess, result }
	b.Run("bare", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			op(context.Background())
		}
	})
	benchStores(b, func(b *testing.B, s idempotent.Store) {
		g := idempotent.New(s)
		ctx := context.Background()
		fingerprint := idempotent.WithCallFingerprint("r1:0123456789abcdef")
		b.Run("fresh", func(b *testing.B) {
			benchParallel(b, func() error {
				_, replayed, err := g.Run(ctx, benchKey(benchKeys.Add(1)), op, fingerprint)
				return wantReplayed(replayed, false, err)
			})
		})
		b.Run("replay", func(b *testing.B) {
			_, _, err := g.Run(ctx, "replay", op, fingerprint)
			require.NoError(b, err)
			benchParallel(b, func() error {
				_, replayed, err := g.Run(ctx, "replay", op, fingerprint)
				return wantReplayed(replayed, true, err)
			})
		})
		b.Run("conflict", func(b *testing.B) {
			_, _, err := s.Claim(ctx, "conflict", idempotent.Claim{Owner: "other", Fingerprint: "r1:0123456789abcdef", Lease: time.Hour, Keep: time.Hour})
			require.NoError(b, err)
			benchParallel(b, func() error {
				_, _, err := g.Run(ctx, "conflict", op, fingerprint)
				return wantError[*idempotent.InFlightError](err)
			})
		})
		b.Run("mismatch", func(b *testing.B) {
			_, _, err := g.Run(ctx, "mismatch", op)
			require.NoError(b, err)
			benchParallel(b, func() error {
				if _, _, err := g.Run(ctx, "mismatch", op, fingerprint); err != idempotent.ErrKeyReused {
					return fmt.Errorf("got %w", err)
				}
				return nil
			})
		})
	})
}

func BenchmarkDo(b *testing.B) {
	fn := func(context.Context) (receipt, error) { return receipt{ID: "r1", Cents: 4200}, nil }
	b.Run("bare", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = fn(context.Background())
		}
	})
	benchStores(b, func(b *testing.B, s idempotent.Store) {
		g := idempotent.New(s)
		ctx := context.Background()
		b.Run("fresh", func(b *testing.B) {
			benchParallel(b, func() error {
				_, err := idempotent.Do(ctx, g, benchKey(benchKeys.Add(1)), fn)
				return err
			})
		})
		b.Run("replay", func(b *testing.B) {
			_, err := idempotent.Do(ctx, g, "replay", fn)
			require.NoError(b, err)
			benchParallel(b, func() error {
				_, err := idempotent.Do(ctx, g, "replay", fn)
				return err
			})
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
				benchParallel(b, func() error { return serve(next, benchKeys.Add(1), body, http.StatusCreated) })
			})
			benchStores(b, func(b *testing.B, s idempotent.Store) {
				h := idempotent.New(s).Middleware(idempotent.Anonymous)(next)
				b.Run("fresh", func(b *testing.B) {
					benchParallel(b, func() error { return serve(h, benchKeys.Add(1), body, http.StatusCreated) })
				})
				b.Run("replay", func(b *testing.B) {
					key := -benchKeys.Add(1)
					require.NoError(b, serve(h, key, body, http.StatusCreated))
					benchParallel(b, func() error { return serve(h, key, body, http.StatusCreated) })
				})
				b.Run("conflict", func(b *testing.B) {
					key := -benchKeys.Add(1) // b runs this several times
					running, end := make(chan struct{}), make(chan struct{})
					held := idempotent.New(s).Middleware(idempotent.Anonymous)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
						close(running)
						<-end
					}))
					go func() { _ = serve(held, key, body, http.StatusOK) }()
					<-running
					defer close(end)
					benchParallel(b, func() error { return serve(h, key, body, http.StatusConflict) })
				})
				b.Run("mismatch", func(b *testing.B) {
					key := -benchKeys.Add(1)
					require.NoError(b, serve(h, key, []byte("{}"), http.StatusCreated))
					benchParallel(b, func() error { return serve(h, key, body, http.StatusUnprocessableEntity) })
				})
			})
		})
	}
}

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

// benchParallel runs op from all processors.
func benchParallel(b *testing.B, op func() error) {
	b.Helper()
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := op(); err != nil {
				b.Error(err)
				return
			}
		}
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
