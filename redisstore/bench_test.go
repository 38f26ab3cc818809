package redisstore_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/redisstore"
)

// What a request looks like in the measurements of size and speed: a key of 90
// bytes, and an answer with a body of 512 bytes.
var (
	benchKey    = "POST:/v1/orders:user-1234:" + strings.Repeat("k", 64)
	benchResult = strings.Repeat("h", 47) + strings.Repeat("b", 512)
	benchClaim  = idempotent.Claim{
		Owner: strings.Repeat("o", 22), Fingerprint: "j1:" + strings.Repeat("f", 43), Trace: "7d3f0c5a-91be",
		Lease: 30 * time.Second, Keep: 24 * time.Hour,
	}
	benchOutcome = idempotent.Outcome{
		Status: idempotent.Success, Result: benchResult, Fingerprint: benchClaim.Fingerprint, Retention: 24 * time.Hour,
	}
)

// benchKeyOf returns the key of the nth request.
func benchKeyOf(n int64) string { return fmt.Sprintf("%s%08d", benchKey[:82], n) }

// unlock is how a lock in Redis is usually given back.
var unlock = redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)

// BenchmarkRatio measures P12 and P13. One iteration is a round in which every
// contender makes the same number of steps, one contender after the other; each
// ratio is the median of the rounds:
//
//	fresh/2ping   claim and complete, to two PINGs
//	fresh/lock    claim and complete, to SET NX, GET, SET and unlock by script
//	replay/ping   claim of a finished key, to one PING
//
// As in the guard, every call has a context with a deadline:
//
//	go test -run '^$' -bench Ratio -benchtime 11x ./redisstore
func BenchmarkRatio(b *testing.B) {
	for _, goroutines := range []int{1, 64} {
		b.Run(fmt.Sprintf("goroutines=%d", goroutines), func(b *testing.B) {
			client := newClient(b, redistest.Shared(b).Addr, func(o *redis.Options) { o.PoolSize = 64 })
			prefix := newPrefix()
			s := newStore(b, client, redisstore.WithPrefix(prefix))
			steps := benchSteps(b, s, client, prefix)
			const rounds = 4096
			took := map[string][]float64{}
			for _, step := range steps { // connections made, scripts loaded
				benchRound(b, step.f, goroutines, rounds)
			}
			b.ResetTimer()
			for b.Loop() {
				for _, step := range steps {
					took[step.name] = append(took[step.name], float64(benchRound(b, step.f, goroutines, rounds)))
				}
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(took["ping"])/rounds, "ns/ping")
			ratio := func(name string, times float64, to string) {
				var r []float64
				for i, d := range took[name] {
					r = append(r, d/times/took[to][i])
				}
				b.ReportMetric(median(r), fmt.Sprintf("%s/%s", name, strings.TrimPrefix(fmt.Sprint(times, to), "1")))
			}
			ratio("fresh", 2, "ping")
			ratio("fresh", 1, "lock")
			ratio("replay", 1, "ping")
		})
	}
}

type benchStep struct {
	name string
	f    func(ctx context.Context) error
}

// benchSteps returns what BenchmarkRatio compares.
func benchSteps(b testing.TB, s *redisstore.Store, client *redis.Client, prefix string) []benchStep {
	done := benchKeyOf(0)
	_, _, err := s.Claim(b.Context(), done, benchClaim)
	require.NoError(b, err)
	require.NoError(b, s.Complete(b.Context(), done, benchClaim.Owner, benchOutcome))
	var next atomic.Int64
	duplicate := benchClaim
	duplicate.Owner = strings.Repeat("d", 22)
	return []benchStep{
		{"ping", func(ctx context.Context) error { return client.Ping(ctx).Err() }},
		{"fresh", func(ctx context.Context) error {
			key := benchKeyOf(next.Add(1))
			_, ok, err := s.Claim(ctx, key, benchClaim)
			if err != nil || !ok {
				return fmt.Errorf("claim: %v, %w", ok, err)
			}
			return s.Complete(ctx, key, benchClaim.Owner, benchOutcome)
		}},
		{"replay", func(ctx context.Context) error {
			e, ok, err := s.Claim(ctx, done, duplicate)
			if err != nil || ok || e.Result != benchResult {
				return fmt.Errorf("replay: %v, %w", ok, err)
			}
			return nil
		}},
		{"lock", func(ctx context.Context) error {
			name := prefix + benchKeyOf(next.Add(1))
			lock := "lock:" + name
			if err := client.SetArgs(ctx, lock, benchClaim.Owner, redis.SetArgs{Mode: "NX", TTL: benchClaim.Lease}).Err(); err != nil {
				return err
			}
			if err := client.Get(ctx, name).Err(); err != redis.Nil {
				return fmt.Errorf("get: %w", err)
			}
			if err := client.Set(ctx, name, benchResult, benchOutcome.Retention).Err(); err != nil {
				return err
			}
			return unlock.Run(ctx, client, []string{lock}, benchClaim.Owner).Err()
		}},
	}
}

// benchRound returns how long it takes goroutines together to make n steps.
func benchRound(b *testing.B, f func(context.Context) error, goroutines, n int) time.Duration {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	var done sync.WaitGroup
	start := time.Now()
	for range goroutines {
		done.Go(func() {
			for range n / goroutines {
				if err := f(ctx); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	done.Wait()
	return time.Since(start)
}

// median returns the middle of values.
func median[T cmp.Ordered](values []T) T {
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}

// BenchmarkStore counts what each step allocates in the client.
func BenchmarkStore(b *testing.B) {
	client := newClient(b, redistest.Shared(b).Addr)
	prefix := newPrefix()
	s := newStore(b, client, redisstore.WithPrefix(prefix))
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	b.Cleanup(cancel)
	for _, step := range benchSteps(b, s, client, prefix) {
		b.Run(step.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := step.f(ctx); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkWake measures P15: when a hundred waiters of a key have its outcome,
// counted from the beginning of the completion, with Wait and with a look every
// ten milliseconds:
//
//	go test -run '^$' -bench Wake -benchtime 20x ./redisstore
func BenchmarkWake(b *testing.B) {
	const waiters, pause = 100, 10 * time.Millisecond
	s, client, prefix := onServer(b)
	ctx := b.Context()
	poll := func(key string) error {
		for timer := time.NewTicker(pause); ; <-timer.C {
			e, _, err := s.Load(ctx, key)
			if err != nil || e.Status != idempotent.Pending {
				timer.Stop()
				return err
			}
		}
	}
	wait := func(key string) error { _, _, err := s.Wait(ctx, key); return err }
	var next int64
	round := func(await func(string) error, ready func(key string) bool) (call time.Duration, took []time.Duration) {
		next++
		key := benchKeyOf(next)
		_, _, err := s.Claim(ctx, key, benchClaim)
		require.NoError(b, err)
		ended := make(chan time.Time, waiters)
		var began, done sync.WaitGroup
		began.Add(waiters)
		for range waiters {
			done.Go(func() {
				began.Done()
				if err := await(key); err != nil {
					b.Error(err)
				}
				ended <- time.Now()
			})
		}
		began.Wait()
		redistest.Eventually(b, "all wait", func() bool { return ready(key) })
		start := time.Now()
		require.NoError(b, s.Complete(ctx, key, benchClaim.Owner, benchOutcome))
		call = time.Since(start)
		done.Wait()
		for range waiters {
			took = append(took, (<-ended).Sub(start))
		}
		return call, took
	}
	var calls, woken, polled []time.Duration
	for b.Loop() {
		call, took := round(wait, func(key string) bool {
			return s.Waiting() == waiters && client.HExists(ctx, prefix+key, "wait").Val()
		})
		calls, woken = append(calls, call), append(woken, took...)
		_, took = round(poll, func(string) bool { return true })
		polled = append(polled, took...)
	}
	p99 := func(d []time.Duration) time.Duration { slices.Sort(d); return d[len(d)*99/100] }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(median(woken)-median(calls))/1e6, "ms/median-call")
	b.ReportMetric(float64(median(calls))/1e6, "ms/call")
	b.ReportMetric(float64(p99(woken))/1e6, "ms/p99")
	b.ReportMetric(float64(p99(polled))/1e6, "ms/p99-polling")
}
