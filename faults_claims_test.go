package idempotent_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/redisstore"
	"github.com/idempotent-go/idempotent/storetest"
)

// The tests of the files faults_*_test.go are named after the faults that
// docs/faults.md lists.

// shed answers as a server does that did nothing.
func shed(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "7")
	http.Error(w, "busy", http.StatusServiceUnavailable)
}

// However a claim is made, without any option it stands for a whole lease.
func TestC003_ClaimWithoutAnOptionStands(t *testing.T) {
	t.Parallel()
	g := idempotent.New(memory.open(t))
	ctx := t.Context()
	ways := map[string]func(ctx context.Context, key string, op func()) error{
		"Run": func(ctx context.Context, key string, op func()) error {
			_, _, err := g.Run(ctx, key, func(context.Context) (idempotent.Class, string) { op(); return 0, "" })
			return err
		},
		"Run with an empty option": func(ctx context.Context, key string, op func()) error {
			_, _, err := g.Run(ctx, key, func(context.Context) (idempotent.Class, string) { op(); return 0, "" }, idempotent.CallOption{})
			return err
		},
		"With": func(ctx context.Context, key string, op func()) error {
			_, _, err := g.With().Run(ctx, key, func(context.Context) (idempotent.Class, string) { op(); return 0, "" })
			return err
		},
		"Do": func(ctx context.Context, key string, op func()) error {
			_, err := idempotent.Do(ctx, g, key, func(context.Context) (int, error) { op(); return 1, nil })
			return err
		},
		"Guard.Do": func(ctx context.Context, key string, op func()) error {
			return g.Do(ctx, key, func(context.Context) error { op(); return nil })
		},
	}
	for name, call := range ways {
		entered, open := make(chan struct{}), make(chan struct{})
		var first sync.WaitGroup
		first.Go(func() {
			if err := call(ctx, name, func() { close(entered); <-open }); err != nil {
				t.Error(name, err)
			}
		})
		<-entered
		for range 50 {
			err := call(ctx, name, func() { t.Error(name, "ran a second time") })
			var inFlight *idempotent.InFlightError
			require.ErrorAs(t, err, &inFlight, name)
		}
		close(open)
		first.Wait()
	}
	t.Run("middleware", func(t *testing.T) {
		gate := newGate(t)
		var b *bench
		b = memory.bench(t, setup{handler: gated(&b, gate)})
		first := b.begin(order{key: "k"})
		b.receive("the handler", gate.entered)
		for range 50 {
			requireRefused(t, b.post("k"), "in-flight")
		}
		gate.release()
		requireFresh(t, first.wait(), 1)
	})
}

// A refusal that did nothing frees the key at once, and is never replayed.
func TestC009_C018_WhatDidNothingRunsAgain(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		var b *bench
		b = w.bench(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
			if b.runs.Load() == 1 {
				shed(w)
				return
			}
			b.created(w, r)
		}})
		refused := b.post("k")
		require.Equal(t, http.StatusServiceUnavailable, refused.status)
		require.Equal(t, "7", refused.header.Get("Retry-After"))
		b.requireAbsent("k")
		second := b.post("k")
		requireFresh(t, second, 2)
		third := b.post("k")
		requireReplay(t, second, third)
		require.Nil(t, third.header["Retry-After"])
		require.EqualValues(t, 2, b.runs.Load())
	})
}

// A release reaches the name that was claimed: nothing is left in the whole
// data base, whatever makes up the name.
func TestC010_ReleaseReachesTheNameClaimed(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]idempotent.HTTPOption{
		"defaults":        nil,
		"principal scope": {idempotent.WithPrincipalScope()},
		"key function":    {idempotent.WithKeyFunc(func(*http.Request, []byte) (string, error) { return "f{1}", nil })},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := miniredis.RunT(t)
			client := redis.NewClient(&redis.Options{Addr: server.Addr(), DisableIdentity: true})
			t.Cleanup(func() { _ = client.Close() })
			store := redisstore.New(client, redisstore.WithPrefix("p:"))
			t.Cleanup(func() { _ = store.Close() })
			var during []string
			b := memory.bench(t, setup{store: store, options: options, handler: func(w http.ResponseWriter, _ *http.Request) {
				during = server.Keys()
				shed(w)
			}})
			require.Equal(t, http.StatusServiceUnavailable, b.post(`"Key {1}:%"`).status)
			require.Len(t, during, 1)
			require.True(t, strings.HasPrefix(during[0], "p:"), during[0])
			require.Empty(t, server.Keys())
		})
	}
}

// vanishing removes each finished entry right after it has refused a claim, as
// an expiry at the worst moment does.
type vanishing struct {
	idempotent.Store
	mu sync.Mutex // held until the entry has gone: nobody else's claim must be removed
}

func (s *vanishing) Claim(ctx context.Context, key string, c idempotent.Claim) (idempotent.Entry, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, claimed, err := s.Store.Claim(ctx, key, c)
	if err == nil && !claimed && e.Status != idempotent.Pending {
		err = idempotent.Delete(ctx, s.Store, key)
	}
	return e, claimed, err
}

// A refused claim never turns into a run, also where what refused it has gone.
func TestC011_RefusedClaimNeverRuns(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		g := idempotent.New(&vanishing{Store: w.open(t)}, idempotent.WithStoreTimeout(patience)) // 200 wait for each other
		var running, runs, replays atomic.Int64
		var callers sync.WaitGroup
		start := make(chan struct{})
		for range 200 {
			callers.Go(func() {
				<-start
				_, replayed, err := g.Run(t.Context(), "k", func(context.Context) (idempotent.Class, string) {
					if running.Add(1) != 1 {
						t.Error("two ran at once")
					}
					runtime.Gosched()
					runs.Add(1)
					running.Add(-1)
					return idempotent.ClassSuccess, "done"
				})
				var inFlight *idempotent.InFlightError
				if err != nil && !errors.As(err, &inFlight) {
					t.Error(err)
				}
				if replayed {
					replays.Add(1)
				}
			})
		}
		close(start)
		callers.Wait()
		require.Positive(t, runs.Load())
		require.LessOrEqual(t, runs.Load(), 1+replays.Load(), "each run but the first needs a record that has gone")
	})
}

// Losing a race is an answer, not an outage.
func TestC012_LostRaceIsNoOutage(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		gate := newGate(t)
		var b *bench
		b = w.bench(t, setup{handler: gated(&b, gate)})
		var attempts []*attempt
		for range 50 {
			attempts = append(attempts, b.begin(order{key: "k"}))
		}
		b.receive("the handler", gate.entered)
		b.until("all others were refused", func() bool { return b.observed(idempotent.EventInFlight) == 49 })
		gate.release()
		answers := map[int]int{}
		for _, a := range attempts {
			answers[a.wait().status]++
		}
		require.Equal(t, map[int]int{http.StatusCreated: 1, http.StatusConflict: 49}, answers)
		require.Zero(t, b.observed(idempotent.EventStoreError))
	})
}

// Those who wait for an operation that panics are told what became of it.
func TestC015_FollowersOfAPanic(t *testing.T) {
	for name, end := range map[string]func(){
		"panic":  func() { panic(http.ErrAbortHandler) },
		"goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			eachStore(t, func(t *testing.T, w world) {
				gate := newGate(t)
				b := w.bench(t, setup{handler: func(http.ResponseWriter, *http.Request) { gate.pass(); end() }})
				leader := b.begin(order{key: "k"})
				b.receive("the handler", gate.entered)
				var followers []*attempt
				for range 10 {
					followers = append(followers, b.begin(order{key: "k", fields: []string{"Prefer", "wait=10"}}))
				}
				b.until("all wait", func() bool { return b.store.Calls(storetest.OpWait) == 10 })
				gate.release()
				for _, f := range followers {
					requireRefused(t, f.wait(), "operation-aborted", markedReplay)
				}
				b.receive("the end of the first request", leader.done)
				require.EqualValues(t, 1, b.runs.Load())
			})
		})
	}
}

// A key that is gone when its owner comes to finish is recorded all the same,
// unless somebody else has it by then. The owner's client has its answer either
// way.
func TestC021_KeyGoneAtTheEnd(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		for who, again := range map[string]bool{"nobody else": false, "somebody else": true} {
			t.Run(who, func(t *testing.T) {
				gate := newGate(t)
				var b *bench
				b = w.bench(t, setup{handler: func(w http.ResponseWriter, _ *http.Request) {
					n := b.runs.Load()
					if n == 1 {
						gate.pass()
					}
					fmt.Fprintf(w, "run %d", n)
				}})
				first := b.begin(order{key: "k"})
				b.receive("the handler", gate.entered)
				require.NoError(t, idempotent.Delete(t.Context(), b.inner, name("k")))
				want := "run 1"
				if again {
					want = "run 2"
					require.Equal(t, want, b.post("k").body)
				}
				gate.release()
				require.Equal(t, "run 1", first.wait().body)
				repeat := b.post("k")
				require.True(t, repeat.replayed())
				require.Equal(t, want, repeat.body)
				b.requireEntry("k", idempotent.ClassSuccess)
			})
		}
	})
}

// Two layers over one store are one: nothing is known to a layer alone.
func TestC025_TwoLayersOverOneStore(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		gate := newGate(t)
		var one *bench
		one = w.bench(t, setup{handler: gated(&one, gate)})
		two := w.bench(t, setup{store: one.inner})
		first := one.begin(order{key: "k"})
		one.receive("the handler", gate.entered)
		requireRefused(t, two.post("k"), "in-flight")
		requireRefused(t, two.send(order{key: "k", body: "{}"}), "key-reused")
		gate.release()
		answer := first.wait()
		requireReplay(t, answer, two.post("k"))
		requireReplay(t, answer, one.post("k"))
		require.Zero(t, two.runs.Load())
	})
}

// Whatever makes up a name, what was written under it is found under it.
func TestC026_NamesAreFoundAgain(t *testing.T) {
	t.Parallel()
	options := map[string][]idempotent.HTTPOption{
		"defaults":        nil,
		"principal scope": {idempotent.WithPrincipalScope()},
		"other header":    {idempotent.WithHeader("X-Operation")},
		"key function":    {idempotent.WithKeyFunc(func(r *http.Request, body []byte) (string, error) { return fmt.Sprint(len(body)), nil })},
		"other methods":   {idempotent.WithMethods("PUT")},
		"raw bodies":      {idempotent.WithFingerprint(idempotent.RawBody)},
	}
	prefixes := []string{"p:", "{tag}:", "a b/ü:", strings.Repeat("long", 100)}
	run := func(t *testing.T, store idempotent.Store) {
		i := 0
		for name, o := range options {
			i++
			b := memory.bench(t, setup{store: store, options: o})
			key := fmt.Sprintf("k{%d}:", i)
			method := "POST"
			if name == "other methods" {
				method = "PUT"
			}
			b.pair(order{method: method, path: fmt.Sprint("/orders/", i, "%2Fa:{b}"), key: key, fields: []string{"X-Operation", key}})
			require.EqualValues(t, 1, b.runs.Load(), name)
		}
	}
	t.Run("memstore", func(t *testing.T) { run(t, memory.open(t)) })
	for _, prefix := range prefixes {
		t.Run("redis "+prefix[:2], func(t *testing.T) {
			t.Parallel()
			client := redis.NewClient(&redis.Options{Addr: redistest.Shared(t).Addr, DisableIdentity: true})
			t.Cleanup(func() { _ = client.Close() })
			store := redisstore.New(client, redisstore.WithPrefix(prefix+fmt.Sprint(redisPrefixes.Add(1))))
			t.Cleanup(func() { _ = store.Close() })
			run(t, store)
		})
	}
}

// Who knows the four parts of a name can look at a stuck key and free it.
func TestC134_StuckKeyIsFreed(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{})
		b.die("k", false, false)
		requireRefused(t, b.post("k"), "in-flight")
		stuck := idempotent.StoreKey("POST", "/orders", "alice", "k")
		require.NoError(t, idempotent.Delete(t.Context(), b.inner, stuck))
		requireFresh(t, b.post("k"), 1)

		dead := b.die("lapsed", true, false)
		require.ErrorIs(t, b.guard.Resolve(t.Context(), dead.Key, "somebody else", idempotent.ClassRelease, ""), idempotent.ErrLost)
		requireRefused(t, b.post("lapsed"), "outcome-unknown")
		require.NoError(t, b.guard.Resolve(t.Context(), dead.Key, dead.Owner, idempotent.ClassRelease, ""))
		requireFresh(t, b.post("lapsed"), 2)
	})
}
