package idempotent_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/redisstore"
	"github.com/idempotent-go/idempotent/storetest"
)

// hang is a hook that makes a call of the store last until it is given up.
func hang(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

func fail(context.Context, string) error { return errOutage }

func TestB64_StoreDownAtClaim(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		for name, down := range map[string]struct {
			begin func(*storetest.Faulty)
			end   func(*storetest.Faulty)
		}{
			"refused":   {func(s *storetest.Faulty) { s.Down(errOutage) }, (*storetest.Faulty).Up},
			"timed out": {func(s *storetest.Faulty) { s.Before(storetest.OpClaim, hang) }, func(s *storetest.Faulty) { s.Before(storetest.OpClaim, nil) }},
			"error without end": {
				func(s *storetest.Faulty) {
					s.Before(storetest.OpClaim, func(context.Context, string) error { return context.DeadlineExceeded })
				},
				func(s *storetest.Faulty) { s.Before(storetest.OpClaim, nil) },
			},
			"closed": {
				func(s *storetest.Faulty) {
					s.Before(storetest.OpClaim, func(context.Context, string) error { return idempotent.ErrClosed })
				},
				func(s *storetest.Faulty) { s.Before(storetest.OpClaim, nil) },
			},
		} {
			t.Run(name, func(t *testing.T) {
				b := w.bench(t, setup{
					guard:   []idempotent.Option{idempotent.WithStoreTimeout(500 * time.Millisecond), idempotent.WithLease(time.Second)},
					options: []idempotent.HTTPOption{idempotent.WithOptionalKey()},
				})
				first := b.post("recorded")
				requireFresh(t, first, 1)
				down.begin(b.store)
				for _, o := range []order{{key: "k"}, {key: "k", fields: []string{"Prefer", "wait=5"}}, {key: "recorded"}} {
					a := b.send(o)
					requireRefused(t, a, "store-unavailable")
					require.NotContains(t, a.body, "secret-address")
				}
				require.EqualValues(t, 1, b.runs.Load(), "nothing runs under a key")
				a := b.send(order{}) // without a key
				requireFresh(t, a, 2)
				down.end(b.store)
				b.requireAbsent("k")
				requireReplay(t, first, b.post("recorded"))
				requireFresh(t, b.post("k"), 3)
				b.requireEntry("k", idempotent.ClassSuccess)
			})
		}
	})
	t.Run("a real server that is gone", func(t *testing.T) {
		server := redistest.Start(t)
		b := memory.bench(t, setup{store: openRedis(t, server.Addr)})
		requireFresh(t, b.post("k"), 1)
		server.Stop()
		requireRefused(t, b.post("k"), "store-unavailable")
		requireRefused(t, b.post("k2"), "store-unavailable")
		require.EqualValues(t, 1, b.runs.Load())
	})
}

// tardy is a store whose claims are answered with an error at once, or when
// they are given up, and carried out after a delay. It belongs into a bubble.
type tardy struct {
	idempotent.Store
	mu    sync.Mutex // guards delay
	delay time.Duration
	done  sync.WaitGroup
}

func (s *tardy) Claim(ctx context.Context, key string, c idempotent.Claim) (idempotent.Entry, bool, error) {
	s.mu.Lock()
	delay := s.delay
	s.mu.Unlock()
	if delay < 0 {
		return s.Store.Claim(ctx, key, c)
	}
	s.done.Go(func() {
		<-time.After(delay)
		_, _, _ = s.Store.Claim(context.WithoutCancel(ctx), key, c)
	})
	<-ctx.Done()
	return idempotent.Entry{}, false, ctx.Err()
}

// A request whose time is over before it is claimed runs nothing and claims
// nothing.
func TestB64_ContextOver(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{outer: withDeadline(-time.Second)})
		requireRefused(t, b.post("k", "X-Deadline", "1"), "store-unavailable")
		b.requireAbsent("k")
		require.Zero(t, b.runs.Load())
		require.Zero(t, b.observed(idempotent.EventStoreError), "the store did not fail")
		requireFresh(t, b.post("k"), 1)
	})
}

func TestB65_ClaimWithoutAReply(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{guard: []idempotent.Option{
			idempotent.WithStoreTimeout(400 * time.Millisecond), idempotent.WithLease(800 * time.Millisecond),
		}})
		// It landed, and the reply was lost.
		b.store.After(storetest.OpClaim, fail)
		requireRefused(t, b.post("k"), "store-unavailable")
		b.store.After(storetest.OpClaim, nil)
		b.until("released", func() bool { return b.absent("k") })
		// It landed, the reply was lost, and the store is down for a while.
		b.store.After(storetest.OpClaim, hang)
		b.store.Before(storetest.OpRelease, fail)
		requireRefused(t, b.post("k2"), "store-unavailable")
		b.store.After(storetest.OpClaim, nil)
		require.False(t, b.absent("k2"))
		b.store.Before(storetest.OpRelease, nil)
		b.until("released", func() bool { return b.absent("k2") })
		require.Zero(t, b.runs.Load())
		requireFresh(t, b.post("k"), 1)
		requireFresh(t, b.post("k2"), 2)
		// What is released in the background is ours alone.
		require.NoError(t, b.guard.Drain(context.Background()))
		b.requireEntry("k", idempotent.ClassSuccess)
		b.requireEntry("k2", idempotent.ClassSuccess)
	})
	t.Run("it lands late", func(t *testing.T) {
		// The store timeout is 2 s and the lease 30 s.
		for _, delay := range []time.Duration{
			0, 1999 * time.Millisecond, 2001 * time.Millisecond, 3 * time.Second, 10 * time.Second, 29 * time.Second, 31999 * time.Millisecond,
		} {
			t.Run(delay.String(), func(t *testing.T) {
				onFakeTimeOf(t, func(t *testing.T, w world) {
					s := &tardy{Store: w.open(t), delay: delay}
					t.Cleanup(s.done.Wait)
					b := w.bench(t, setup{store: s})
					requireRefused(t, b.post("k"), "store-unavailable")
					b.pass(delay)
					b.pass(40*time.Second - delay)
					synctest.Wait()
					b.requireAbsent("k")
					require.Zero(t, b.runs.Load())
					s.mu.Lock()
					s.delay = -1
					s.mu.Unlock()
					requireFresh(t, b.post("k"), 1)
					require.NoError(t, b.guard.Drain(t.Context()))
				})
			})
		}
	})
	t.Run("another attempt meanwhile", func(t *testing.T) {
		onFakeTimeOf(t, func(t *testing.T, w world) {
			s := &tardy{Store: w.open(t), delay: 10 * time.Second}
			t.Cleanup(s.done.Wait)
			b := w.bench(t, setup{store: s})
			requireRefused(t, b.post("k"), "store-unavailable")
			s.mu.Lock()
			s.delay = -1
			s.mu.Unlock()
			first := b.post("k") // before the first claim lands
			requireFresh(t, first, 1)
			b.pass(time.Minute)
			requireReplay(t, first, b.post("k"))
			b.requireEntry("k", idempotent.ClassSuccess)
			require.EqualValues(t, 1, b.runs.Load())
		})
	})
}

func TestB66_StoreDownAtCompletion(t *testing.T) {
	eachClock(t, func(t *testing.T, w world) {
		for _, hook := range []func(context.Context, string) error{fail, hang} {
			timeout := 2 * time.Second
			if !w.fake {
				timeout = 400 * time.Millisecond
			}
			b := w.bench(t, setup{guard: []idempotent.Option{idempotent.WithStoreTimeout(timeout)}})
			b.store.Before(storetest.OpComplete, hook)
			first := b.post("k")
			requireFresh(t, first, 1) // the client has its answer
			require.Equal(t, idempotent.Pending, b.requireEntry("k", idempotent.ClassDefault).Status)
			requireRefused(t, b.post("k"), "in-flight")
			calls := b.store.Calls(storetest.OpComplete)
			b.until("tried again", func() bool { return b.store.Calls(storetest.OpComplete) > calls })
			b.store.Before(storetest.OpComplete, nil)
			b.untilSettled("k")
			b.requireEntry("k", idempotent.ClassSuccess)
			requireReplay(t, first, b.post("k"))
			require.EqualValues(t, 1, b.runs.Load())
			require.Zero(t, b.observed(idempotent.EventNotRecorded))
		}
	})
	t.Run("until the lease ends", func(t *testing.T) {
		eachClockOf(t, func(t *testing.T, w world) {
			b := w.bench(t, setup{guard: []idempotent.Option{idempotent.WithLease(w.lease())}})
			b.store.Before(storetest.OpComplete, fail)
			first := b.post("k")
			requireFresh(t, first, 1)
			b.until("given up", func() bool { return b.observed(idempotent.EventNotRecorded) == 1 })
			b.until("lapsed", func() bool {
				e, _ := b.load(name("k"))
				return e.Status == idempotent.Failed
			})
			e, _ := b.load(name("k"))
			require.True(t, e.Unknown)
			require.Empty(t, e.Result)
			for range 2 {
				requireRefused(t, b.post("k"), "outcome-unknown")
			}
			b.store.Before(storetest.OpComplete, nil)
			requireRefused(t, b.post("k"), "outcome-unknown")
			require.EqualValues(t, 1, b.runs.Load())
			require.NoError(t, b.guard.Drain(context.Background()))
		})
	})
	t.Run("recorded, and the reply lost", func(t *testing.T) {
		eachStoreOf(t, func(t *testing.T, w world) {
			b := w.bench(t, setup{})
			b.store.After(storetest.OpComplete, fail)
			first := b.post("k")
			requireFresh(t, first, 1)
			b.requireEntry("k", idempotent.ClassSuccess)
			requireReplay(t, first, b.post("k"))
			b.store.After(storetest.OpComplete, nil)
			require.NoError(t, b.guard.Drain(context.Background()))
			requireReplay(t, first, b.post("k"))
		})
	})
	t.Run("a release", func(t *testing.T) {
		eachStoreOf(t, func(t *testing.T, w world) {
			b := w.bench(t, setup{handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) }})
			b.store.Before(storetest.OpRelease, fail)
			require.Equal(t, http.StatusTooManyRequests, b.post("k").status)
			requireRefused(t, b.post("k"), "in-flight")
			b.store.Before(storetest.OpRelease, nil)
			b.until("released", func() bool { return b.absent("k") })
			require.Equal(t, http.StatusTooManyRequests, b.post("k").status)
			require.EqualValues(t, 2, b.runs.Load())
		})
	})
}

func TestB67_HandlerOutlivesTheLease(t *testing.T) {
	eachClock(t, func(t *testing.T, w world) {
		g := newGate(t)
		var b *bench
		lease := 2 * w.lease() // a busy machine must have the time to renew
		b = w.bench(t, setup{guard: []idempotent.Option{idempotent.WithLease(lease)}, handler: gated(&b, g)})
		renewals := 12 // four leases
		if !w.fake {
			renewals = 4
		}
		failing := 0
		b.store.Before(storetest.OpRenew, func(context.Context, string) error {
			if failing++; w.fake && failing%3 == 0 {
				return errOutage // one that fails does no harm
			}
			return nil
		})
		first := b.begin(order{key: "k"})
		b.receive("the handler", g.entered)
		claimed := b.requireEntry("k", idempotent.ClassDefault)
		for i := range renewals {
			b.until("renewed", func() bool { return b.store.Calls(storetest.OpRenew) > i })
			requireRefused(t, b.post("k"), "in-flight")
		}
		e := b.requireEntry("k", idempotent.ClassDefault)
		require.Equal(t, claimed.Owner, e.Owner)
		require.True(t, e.Expires.After(claimed.Claimed.Add(lease)), "it has outlived its first lease")
		require.Equal(t, claimed.Claimed, e.Claimed)
		g.release()
		requireFresh(t, first.wait(), 1)
		requireReplay(t, first.answer, b.post("k"))
		require.EqualValues(t, 1, b.runs.Load())
		b.requireEntry("k", idempotent.ClassSuccess)
		require.Zero(t, b.observed(idempotent.EventLost))
	})
	t.Run("long running is reported", func(t *testing.T) {
		onFakeTimeOf(t, func(t *testing.T, w world) {
			var b *bench
			b = w.bench(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
				<-time.After(21 * idempotent.DefaultLease)
				b.created(w, r)
			}})
			requireFresh(t, b.post("k"), 1)
			require.Equal(t, 2, b.observed(idempotent.EventLongRunning))
		})
	})
	t.Run("without renewals nobody else runs either", func(t *testing.T) {
		onFakeTimeOf(t, func(t *testing.T, w world) {
			g := newGate(t)
			var b *bench
			b = w.bench(t, setup{handler: gated(&b, g)})
			b.store.Before(storetest.OpRenew, fail)
			first := b.begin(order{key: "k"})
			b.receive("the handler", g.entered)
			b.pass(idempotent.DefaultLease - time.Second)
			requireRefused(t, b.post("k"), "in-flight")
			b.pass(2 * time.Second)
			requireRefused(t, b.post("k"), "outcome-unknown")
			b.pass(time.Hour)
			requireRefused(t, b.post("k"), "outcome-unknown")
			g.release()
			requireFresh(t, first.wait(), 1)
			requireReplay(t, first.answer, b.post("k")) // its late owner has settled it
			require.EqualValues(t, 1, b.runs.Load())
		})
	})
}

func TestB68_ClaimLost(t *testing.T) {
	// The handler waits for the end of its context, notes the cause, waits for
	// the test, and answers.
	open := func(t *testing.T, w world, opts ...idempotent.Option) (b *bench, causes chan error, g *gate) {
		causes, g = make(chan error, 10), newGate(t)
		b = w.bench(t, setup{
			guard: append(opts, idempotent.WithLease(w.lease())),
			handler: func(w http.ResponseWriter, r *http.Request) {
				n := b.runs.Load()
				if n == 1 {
					g.entered <- struct{}{}
					<-r.Context().Done()
					causes <- context.Cause(r.Context())
					<-g.open
				}
				w.WriteHeader(http.StatusCreated)
				fmt.Fprintf(w, "run %d", n)
			},
		})
		return b, causes, g
	}
	eachClock(t, func(t *testing.T, w world) {
		b, causes, g := open(t, w)
		first := b.begin(order{key: "k"})
		b.receive("the handler", g.entered)
		require.NoError(t, idempotent.Delete(t.Context(), b.inner, name("k"))) // an operator
		require.ErrorIs(t, next(b, causes), idempotent.ErrLost)
		b.until("reported", func() bool { return b.observed(idempotent.EventLost) == 1 })
		second := b.post("k")
		require.Equal(t, "run 2", second.body)
		e := b.requireEntry("k", idempotent.ClassSuccess)
		g.release()
		require.Equal(t, "run 1", first.wait().body, "the first client has its own answer")
		require.NoError(t, b.guard.Drain(context.Background()))
		require.Equal(t, e, b.requireEntry("k", idempotent.ClassSuccess), "the newer record is intact")
		requireReplay(t, second, b.post("k"))
		require.EqualValues(t, 2, b.runs.Load())
	})
	t.Run("removed, and nobody else came", func(t *testing.T) {
		eachClockOf(t, func(t *testing.T, w world) {
			b, causes, g := open(t, w)
			first := b.begin(order{key: "k"})
			b.receive("the handler", g.entered)
			require.NoError(t, idempotent.Delete(t.Context(), b.inner, name("k")))
			require.ErrorIs(t, next(b, causes), idempotent.ErrLost)
			g.release()
			requireReplay(t, first.wait(), b.post("k"))
			b.requireEntry("k", idempotent.ClassSuccess)
			require.EqualValues(t, 1, b.runs.Load())
		})
	})
	t.Run("taken over", func(t *testing.T) {
		eachClockOf(t, func(t *testing.T, w world) {
			b, causes, g := open(t, w, idempotent.WithTakeOver())
			b.store.Before(storetest.OpRenew, fail)
			first := b.begin(order{key: "k"})
			b.receive("the handler", g.entered)
			old := b.requireEntry("k", idempotent.ClassDefault)
			require.ErrorIs(t, next(b, causes), idempotent.ErrLost)
			b.until("lapsed", func() bool {
				e, _ := b.load(name("k"))
				return e.Status != idempotent.Pending
			})
			second := b.post("k")
			require.Equal(t, "run 2", second.body)
			require.Nil(t, second.header["Idempotent-Replayed"])
			e := b.requireEntry("k", idempotent.ClassSuccess)
			require.Greater(t, e.Fence, old.Fence)
			require.Equal(t, old.Claimed, e.Claimed)
			require.NotEqual(t, old.Owner, e.Owner)
			g.release()
			require.Equal(t, "run 1", first.wait().body)
			require.NoError(t, b.guard.Drain(context.Background()))
			require.Equal(t, e, b.requireEntry("k", idempotent.ClassSuccess))
			requireReplay(t, second, b.post("k"))
			require.Equal(t, 1, b.observed(idempotent.EventTakenOver))
			require.EqualValues(t, 2, b.runs.Load())
		})
	})
	t.Run("lost with nothing written", func(t *testing.T) {
		onFakeTimeOf(t, func(t *testing.T, w world) {
			entered := make(chan struct{}, 1)
			b := w.bench(t, setup{handler: func(_ http.ResponseWriter, r *http.Request) {
				entered <- struct{}{}
				<-r.Context().Done()
			}})
			first := b.begin(order{key: "k"})
			b.receive("the handler", entered)
			require.NoError(t, idempotent.Delete(t.Context(), b.inner, name("k")))
			requireRefused(t, first.wait(), "outcome-unknown")
			requireRefused(t, b.post("k"), "outcome-unknown", markedReplay)
			b.requireEntry("k", idempotent.ClassUnknown)
		})
	})
}

func TestB69_ProcessDies(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		for _, takeOver := range []bool{false, true} { // of the process that died
			b := w.bench(t, setup{})
			b.die("inside", false, takeOver)
			doc := requireRefused(t, b.post("inside"), "in-flight")
			require.Equal(t, "trace-of-the-dead", doc.Trace)

			e := b.die("after", true, takeOver)
			require.True(t, e.Unknown)
			for _, o := range []order{{key: "after"}, {key: "after", fields: []string{"Prefer", "wait=5"}}, {key: `"after"`}} {
				a := b.send(o)
				doc := requireRefused(t, a, "outcome-unknown")
				require.Nil(t, a.header["Preference-Applied"])
				require.NotNil(t, doc.FirstSeen)
			}
			require.Equal(t, e, b.must("after"))
			require.Zero(t, b.runs.Load())
		}
	})
	t.Run("fields of layers outside do not speak for the refusal", func(t *testing.T) {
		b := memory.bench(t, setup{outer: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				for _, name := range []string{
					"Retry-After", "Idempotent-Replayed", "ETag", "Last-Modified", "Content-Encoding", "Content-Length", "Content-Digest", "Cache-Control", "Content-Type", "Expires",
				} {
					w.Header().Set(name, "120")
				}
				w.Header().Set("Link", "</style.css>; rel=preload")
				next.ServeHTTP(w, r)
			})
		}})
		b.die("dead", true, false)
		b.die("running", false, false)
		a := b.post("dead")
		requireRefused(t, a, "outcome-unknown") // and no Retry-After
		require.Contains(t, a.header["Link"], "</style.css>; rel=preload")
		require.Nil(t, a.header["Last-Modified"])
		require.Nil(t, a.header["Expires"])
		require.Nil(t, a.header["Content-Digest"])
		requireRefused(t, b.post("running"), "in-flight")
		requireRefused(t, b.send(order{key: "dead", body: "{}"}), "key-reused")
		requireRefused(t, b.send(order{}), "key-missing")
	})
	t.Run("a waiter sees the lapse", func(t *testing.T) {
		eachClockOf(t, func(t *testing.T, w world) {
			b := w.bench(t, setup{})
			_, claimed, err := b.inner.Claim(t.Context(), name("k"), idempotent.Claim{
				Owner: "dead", Fingerprint: b.fingerprint(), Lease: w.lease(), Keep: time.Hour,
			})
			require.NoError(t, err)
			require.True(t, claimed)
			o := order{key: "k", fields: []string{"Prefer", "wait=10"}}
			var a answer
			b.until("lapsed", func() bool {
				a = b.send(o)
				return a.status != 409 || !strings.Contains(a.body, "in-flight")
			})
			requireRefused(t, a, "outcome-unknown")
			require.Zero(t, b.runs.Load())
		})
	})
	t.Run("take-over", func(t *testing.T) {
		eachStoreOf(t, func(t *testing.T, w world) {
			b := w.bench(t, setup{guard: []idempotent.Option{idempotent.WithTakeOver()}})
			b.die("inside", false, true)
			requireRefused(t, b.post("inside"), "in-flight")
			b.die("after", true, true)
			requireRefused(t, b.send(order{key: "after", body: "{}"}), "key-reused")
			requireFresh(t, b.post("after"), 1)
			b.requireEntry("after", idempotent.ClassSuccess)
			b.die("first-did-not-allow", true, false)
			requireRefused(t, b.post("first-did-not-allow"), "outcome-unknown")
			require.EqualValues(t, 1, b.runs.Load())
		})
	})
}

// must is the entry under key.
func (b *bench) must(key string) idempotent.Entry {
	b.t.Helper()
	e, found := b.load(name(key))
	require.True(b.t, found)
	return e
}

func uuidV7(made time.Time) string {
	return fmt.Sprintf("%08x-%04x-7abc-8def-0123456789ab", made.UnixMilli()>>16, made.UnixMilli()&0xffff)
}

func TestB70_Expiry(t *testing.T) {
	eachClock(t, func(t *testing.T, w world) {
		var s setup
		if !w.fake {
			s.guard = []idempotent.Option{idempotent.WithSuccessRetention(300 * time.Millisecond)}
		}
		b := w.bench(t, s)
		first := b.post("k")
		requireFresh(t, first, 1)
		if w.fake {
			b.pass(24*time.Hour - time.Second)
			requireReplay(t, first, b.post("k"))
			b.pass(2 * time.Second) // a replay does not extend anything
		}
		b.until("free", func() bool { return b.absent("k") })
		requireFresh(t, b.send(order{key: "k", body: "{}"}), 2) // another request may use it
	})
	t.Run("key policy", func(t *testing.T) {
		eachStoreOf(t, func(t *testing.T, w world) {
			b := w.bench(t, setup{options: []idempotent.HTTPOption{idempotent.WithKeyPolicy(idempotent.KeyMaxAge(time.Hour))}})
			now := time.Now()
			for _, key := range []string{uuidV7(now.Add(-2 * time.Hour)), `"` + uuidV7(now.Add(-61*time.Minute)) + `"`, strings.ToUpper(uuidV7(now.Add(-2 * time.Hour))), uuidV7(time.UnixMilli(0))} {
				requireRefused(t, b.post(key), "key-expired")
			}
			b.requireUntouched()
			for i, key := range []string{
				uuidV7(now), uuidV7(now.Add(-59 * time.Minute)), uuidV7(now.Add(time.Hour)), "no-uuid", "0b6e1d2c-4b0f-4f6e-9d3c-2f1a0b9c8d7e",
				uuidV7(now.Add(-2*time.Hour)) + "0", strings.ReplaceAll(uuidV7(now.Add(-2*time.Hour)), "-", ""),
			} {
				requireFresh(t, b.post(key), i+1)
				require.True(t, b.post(key).replayed())
			}
		})
	})
	t.Run("a policy of one's own", func(t *testing.T) {
		b := memory.bench(t, setup{options: []idempotent.HTTPOption{idempotent.WithKeyPolicy(func(string) error {
			return fmt.Errorf("policy-secret: %w", idempotent.ErrKeyExpired)
		})}})
		a := b.post("k")
		requireRefused(t, a, "key-expired")
		require.NotContains(t, a.body, "policy-secret")
		b.requireUntouched()
	})
	t.Run("a recorded answer of an old key", func(t *testing.T) {
		onFakeTimeOf(t, func(t *testing.T, w world) {
			b := w.bench(t, setup{options: []idempotent.HTTPOption{idempotent.WithKeyPolicy(idempotent.KeyMaxAge(time.Hour))}})
			key := uuidV7(time.Now())
			requireFresh(t, b.post(key), 1)
			b.pass(2 * time.Hour)
			requireRefused(t, b.post(key), "key-expired")
			require.EqualValues(t, 1, b.runs.Load())
		})
	})
}

// small opens a memory store with room for 20 entries, without background.
func small(t *testing.T, logs io.Writer, opts ...memstore.Option) *memstore.Store {
	t.Helper()
	s := memstore.New(append([]memstore.Option{
		memstore.WithMaxEntries(20), memstore.WithSweepInterval(0), memstore.WithLogger(slog.New(slog.NewTextHandler(logs, nil))),
	}, opts...)...)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func TestB71_StoreFull(t *testing.T) {
	onFakeTime(t, func(t *testing.T, w world) {
		var logs lockedBuffer
		s := small(t, &logs)
		g := newGate(t)
		var b *bench
		b = w.bench(t, setup{store: s, handler: func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Slow") != "" {
				g.pass()
			}
			if r.Header.Get("X-Fail") != "" {
				w.WriteHeader(http.StatusNotFound) // kept for 2 h
				return
			}
			b.created(w, r)
		}})
		// Five that expire, five in flight, ten more.
		for i := range 5 {
			b.post(fmt.Sprintf("short-%d", i), "X-Fail", "1")
			b.pass(time.Second)
		}
		var slow []*attempt
		for i := range 5 {
			slow = append(slow, b.begin(order{key: fmt.Sprintf("slow-%d", i), fields: []string{"X-Slow", "1"}}))
			b.receive("the handler", g.entered)
		}
		firsts := map[string]answer{}
		for i := range 10 {
			key := fmt.Sprintf("long-%d", i)
			firsts[key] = b.post(key)
			require.Equal(t, 201, firsts[key].status)
			b.pass(time.Second)
		}
		b.pass(3 * time.Hour)
		// The expired ones go first.
		for i := range 7 {
			require.Equal(t, 201, b.post(fmt.Sprintf("new-%d", i)).status)
			b.pass(time.Second)
		}
		for key, first := range firsts {
			requireReplay(t, first, b.post(key))
		}
		require.Zero(t, s.Stats().EvictedEarly)
		require.NotContains(t, logs.String(), "evicted")
		// Then the oldest tenth of the finished ones, counted and logged.
		runs := b.runs.Load()
		for i := range 3 {
			require.Equal(t, 201, b.post(fmt.Sprintf("newer-%d", i)).status)
			b.pass(time.Second)
		}
		require.Positive(t, s.Stats().EvictedEarly)
		require.Contains(t, logs.String(), "evicted")
		require.LessOrEqual(t, s.Len(), 22)
		b.requireAbsent("long-0")
		requireReplay(t, firsts["long-9"], b.post("long-9"))
		require.Equal(t, runs+3, b.runs.Load())
		// Those in flight never go.
		for i := range 5 {
			requireRefused(t, b.post(fmt.Sprintf("slow-%d", i)), "in-flight")
		}
		g.release()
		for i, a := range slow {
			require.Equal(t, 201, a.wait().status)
			requireReplay(t, a.answer, b.post(fmt.Sprintf("slow-%d", i)))
		}
	})
	t.Run("nothing can go", func(t *testing.T) {
		onFakeTimeOf(t, func(t *testing.T, w world) {
			var logs lockedBuffer
			s := small(t, &logs)
			g := newGate(t)
			var b *bench
			b = w.bench(t, setup{store: s, handler: func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("X-Slow") != "" {
					g.pass()
				}
				b.created(w, r)
			}})
			first := b.post("existing")
			var slow []*attempt
			for i := range 20 {
				slow = append(slow, b.begin(order{key: fmt.Sprintf("slow-%d", i), fields: []string{"X-Slow", "1"}}))
				b.receive("the handler", g.entered)
			}
			runs := b.runs.Load()
			for range 3 {
				requireRefused(t, b.post("new"), "store-full")
				b.requireAbsent("new")
			}
			requireReplay(t, first, b.post("existing"))
			requireRefused(t, b.post("slow-0"), "in-flight")
			require.Equal(t, runs, b.runs.Load())
			// A completion is never refused.
			g.release()
			for i, a := range slow {
				require.Equal(t, 201, a.wait().status)
				requireReplay(t, a.answer, b.post(fmt.Sprintf("slow-%d", i)))
			}
			require.Equal(t, 201, b.post("new").status)
		})
	})
	t.Run("young entries are kept", func(t *testing.T) {
		onFakeTimeOf(t, func(t *testing.T, w world) {
			var logs lockedBuffer
			s := small(t, &logs, memstore.WithMinAge(time.Hour))
			b := w.bench(t, setup{store: s})
			firsts := map[string]answer{}
			for i := range 20 {
				key := fmt.Sprintf("k%d", i)
				firsts[key] = b.post(key)
				require.Equal(t, 201, firsts[key].status)
			}
			requireRefused(t, b.post("new"), "store-full")
			b.requireAbsent("new")
			for key, first := range firsts {
				requireReplay(t, first, b.post(key))
			}
			require.EqualValues(t, 20, b.runs.Load())
			require.Zero(t, s.Stats().Evicted)
			b.pass(time.Hour + time.Second)
			require.Equal(t, 201, b.post("new").status)
			require.Positive(t, s.Stats().EvictedEarly)
		})
	})
}

func TestB71_RedisFull(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr, DisableIdentity: true})
	t.Cleanup(func() { _ = client.Close() })
	s := redisstore.New(client)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	g := newGate(t)
	var b *bench
	b = memory.bench(t, setup{store: s, handler: func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Slow") != "" {
			g.pass()
		}
		b.created(w, r)
	}})
	first := b.post("existing")
	requireFresh(t, first, 1)
	slow := b.begin(order{key: "slow", fields: []string{"X-Slow", "1"}})
	b.receive("the handler", g.entered)
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "1kb").Err())
	require.ErrorContains(t, client.Set(t.Context(), "filler", "x", 0).Err(), "OOM")
	for range 3 {
		requireRefused(t, b.post("new"), "store-full")
		b.requireAbsent("new")
	}
	require.EqualValues(t, 2, b.runs.Load())
	requireReplay(t, first, b.post("existing"))
	requireRefused(t, b.post("slow"), "in-flight")
	g.release()
	require.Equal(t, 201, slow.wait().status)
	requireReplay(t, slow.answer, b.post("slow"))
	b.requireEntry("slow", idempotent.ClassSuccess)
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "0").Err())
	requireFresh(t, b.post("new"), 3)
}

func TestB80_RecordUnreadable(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		t.Run("the entry", func(t *testing.T) {
			b := w.bench(t, setup{})
			for _, op := range []storetest.Op{storetest.OpClaim} {
				for _, test := range []struct {
					err  error
					code string
				}{
					{idempotent.ErrCorrupt, "record-corrupt"},
					{fmt.Errorf("entry-secret: %w", idempotent.ErrCorrupt), "record-corrupt"},
					{idempotent.ErrNewerFormat, "store-unavailable"},
					{fmt.Errorf("entry-secret: %w", idempotent.ErrNewerFormat), "store-unavailable"},
				} {
					b.store.Before(op, func(context.Context, string) error { return test.err })
					a := b.post("k")
					requireRefused(t, a, test.code)
					require.NotContains(t, a.body, "secret")
				}
			}
			require.Zero(t, b.runs.Load())
			require.Zero(t, b.store.Calls(storetest.OpRelease), "nothing was claimed")
		})
		t.Run("the answer in it", func(t *testing.T) {
			b := w.bench(t, setup{})
			fingerprint := b.fingerprint()
			good, err := idempotent.EncodeResponse(201, http.Header{"X-A": {"1"}}, []byte("body"))
			require.NoError(t, err)
			doResult, err := idempotent.EncodeValue(map[string]int{"a": 1})
			require.NoError(t, err)
			results := map[string]string{
				"empty": "", "text": "some text", "cut": good[:len(good)-1], "longer": good + "x", "head": good[:1], "no-head": good[2:],
				"version-0": "h\x00" + good[2:], "flags": "h\x01\xff" + good[3:], "of-do": doResult, "zeros": "\x00\x00\x00",
			}
			for key, result := range results {
				for _, status := range []idempotent.Status{idempotent.Success, idempotent.Failed} {
					key := key + string(status)
					if result == "" && status == idempotent.Failed {
						continue
					}
					require.NoError(t, b.inner.Complete(t.Context(), name(key), "owner", idempotent.Outcome{
						Status: status, Result: result, Fingerprint: fingerprint, Retention: time.Hour,
					}))
					for range 2 {
						requireRefused(t, b.post(key), "record-corrupt")
					}
					require.Equal(t, result, b.must(key).Result)
				}
			}
			require.NoError(t, b.inner.Complete(t.Context(), name("newer"), "owner", idempotent.Outcome{
				Status: idempotent.Success, Result: "h\x02" + good[2:], Fingerprint: fingerprint, Retention: time.Hour,
			}))
			requireRefused(t, b.post("newer"), "store-unavailable")
			require.Zero(t, b.runs.Load())
		})
	})
	t.Run("of another key", func(t *testing.T) {
		t.Parallel()
		client := redis.NewClient(&redis.Options{Addr: redistest.Shared(t).Addr, DisableIdentity: true})
		t.Cleanup(func() { _ = client.Close() })
		prefix := fmt.Sprintf("b%d:", redisPrefixes.Add(1))
		s := redisstore.New(client, redisstore.WithPrefix(prefix))
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		b := memory.bench(t, setup{store: s})
		requireFresh(t, b.post("k1"), 1)
		ctx := t.Context()
		require.NoError(t, client.Copy(ctx, prefix+name("k1"), prefix+name("k2"), 0, false).Err())
		requireRefused(t, b.post("k2"), "record-corrupt")
		require.NoError(t, client.Set(ctx, prefix+name("k3"), "no hash", 0).Err())
		requireRefused(t, b.post("k3"), "record-corrupt")
		require.EqualValues(t, 1, b.runs.Load())
	})
}

func TestB83_Drain(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		g := newGate(t)
		var b *bench
		b = w.bench(t, setup{options: []idempotent.HTTPOption{idempotent.WithOptionalKey()}, handler: func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Slow") != "" {
				g.pass()
			}
			b.created(w, r)
		}})
		first := b.post("recorded")
		slow := b.begin(order{key: "slow", fields: []string{"X-Slow", "1"}})
		b.receive("the handler", g.entered)
		b.die("dead", true, false)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		err := b.guard.Drain(ended)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "1 still running")

		other := b.guard.With(idempotent.WithLease(time.Minute)) // shares it
		_, _, err = other.Run(t.Context(), "k", func(context.Context) (idempotent.Class, string) { return idempotent.ClassSuccess, "" })
		require.ErrorIs(t, err, idempotent.ErrClosed)
		for range 2 {
			requireRefused(t, b.post("new"), "store-unavailable")
			b.requireAbsent("new")
		}
		requireReplay(t, first, b.post("recorded"))
		requireRefused(t, b.send(order{key: "recorded", body: "{}"}), "key-reused")
		requireRefused(t, b.post("slow"), "in-flight")
		requireRefused(t, b.post("dead"), "outcome-unknown")
		require.Equal(t, 201, b.send(order{}).status, "who needs no claim is served")

		drained := make(chan error, 1)
		go func() { drained <- b.guard.Drain(context.Background()) }()
		select {
		case err := <-drained:
			t.Fatalf("drained with a handler running: %v", err)
		default:
		}
		g.release()
		require.Equal(t, 201, slow.wait().status)
		require.NoError(t, next(b, drained))
		b.requireEntry("slow", idempotent.ClassSuccess)
		requireReplay(t, slow.answer, b.post("slow"))
		requireRefused(t, b.post("new"), "store-unavailable")
		require.NoError(t, b.guard.Drain(t.Context()))
		require.EqualValues(t, 3, b.runs.Load())
	})
	t.Run("waits for bookkeeping", func(t *testing.T) {
		onFakeTimeOf(t, func(t *testing.T, w world) {
			b := w.bench(t, setup{})
			b.store.Before(storetest.OpComplete, fail)
			first := b.post("k")
			requireFresh(t, first, 1)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			require.ErrorIs(t, b.guard.Drain(ctx), context.DeadlineExceeded)
			b.store.Before(storetest.OpComplete, nil)
			require.NoError(t, b.guard.Drain(t.Context()))
			b.requireEntry("k", idempotent.ClassSuccess)
			requireReplay(t, first, b.post("k"))
		})
	})
}

func TestB84_Settled(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		settled, err := idempotent.EncodeResponse(200, http.Header{"Content-Type": {"text/plain"}, "X-Settled": {"1"}}, []byte("it did happen"))
		require.NoError(t, err)
		refused, err := idempotent.EncodeResponse(404, nil, []byte("it did not"))
		require.NoError(t, err)
		var b *bench
		b = w.bench(t, setup{handler: byStatus(&b)})
		unknown := map[string]func(key string) string{ // ways to become unknown; the owner
			"recorded": func(key string) string {
				require.Equal(t, 500, b.post(key, "X-Status", "500").status)
				return b.requireEntry(key, idempotent.ClassUnknown).Owner
			},
			"abandoned": func(key string) string { return b.die(key, true, false).Owner },
		}
		for how, make := range unknown {
			resolve := func(key, owner string, c idempotent.Class, result string) error {
				return b.guard.Resolve(t.Context(), name(key), owner, c, result)
			}
			key := how + "-success"
			owner := make(key)
			runs := b.runs.Load()
			require.ErrorIs(t, resolve(key, "somebody else", idempotent.ClassSuccess, settled), idempotent.ErrLost)
			require.ErrorIs(t, resolve(key, "somebody else", idempotent.ClassRelease, ""), idempotent.ErrLost)
			require.ErrorIs(t, resolve(key, owner, idempotent.ClassUnknown, ""), idempotent.ErrInvalid)
			require.True(t, b.must(key).Unknown)
			require.NoError(t, resolve(key, owner, idempotent.ClassSuccess, settled))
			require.NoError(t, resolve(key, owner, idempotent.ClassSuccess, settled), "it may be repeated")
			require.ErrorIs(t, resolve(key, owner, idempotent.ClassFailure, refused), idempotent.ErrLost, "it is settled")
			for range 2 {
				a := b.post(key)
				require.Equal(t, 200, a.status)
				require.Equal(t, "it did happen", a.body)
				require.Equal(t, "1", a.header.Get("X-Settled"))
				require.True(t, a.replayed())
			}
			b.requireEntry(key, idempotent.ClassSuccess)
			requireRefused(t, b.send(order{key: key, body: "{}"}), "key-reused")
			require.Equal(t, runs, b.runs.Load())

			key = how + "-failure"
			require.NoError(t, resolve(key, make(key), idempotent.ClassFailure, refused))
			a := b.post(key)
			require.Equal(t, 404, a.status)
			require.True(t, a.replayed())
			b.requireEntry(key, idempotent.ClassFailure)

			for class, state := range map[idempotent.Class]string{idempotent.ClassSuccess: "success", idempotent.ClassFailure: "failure"} {
				key = how + "-without-result-" + state
				require.NoError(t, resolve(key, make(key), class, ""))
				requireRefused(t, b.post(key), "result-unavailable", func(r *refusal) {
					r.state, r.newKeySafe = state, class == idempotent.ClassFailure
				})
				b.requireEntry(key, class)
			}

			key = how + "-release"
			owner = make(key)
			runs = b.runs.Load()
			require.NoError(t, resolve(key, owner, idempotent.ClassRelease, ""))
			require.NoError(t, resolve(key, owner, idempotent.ClassRelease, ""))
			b.requireAbsent(key)
			a = b.post(key, "X-Status", "201")
			require.Equal(t, 201, a.status)
			require.Nil(t, a.header["Idempotent-Replayed"])
			require.Equal(t, runs+1, b.runs.Load())
			require.ErrorIs(t, resolve(key, owner, idempotent.ClassSuccess, settled), idempotent.ErrLost, "a newer execution is never settled by mistake")
		}
		b.die("running", false, false)
		var inFlight *idempotent.InFlightError
		require.ErrorAs(t, b.guard.Resolve(t.Context(), name("running"), "dead-running", idempotent.ClassRelease, ""), &inFlight)
		require.ErrorIs(t, b.guard.Resolve(t.Context(), name("absent"), "x", idempotent.ClassSuccess, settled), idempotent.ErrLost)
	})
	t.Run("by its late owner", func(t *testing.T) {
		eachClockOf(t, func(t *testing.T, w world) {
			for _, status := range []string{"201", "404", "429"} {
				g := newGate(t)
				var b *bench
				b = w.bench(t, setup{guard: []idempotent.Option{idempotent.WithLease(w.lease())}, handler: func(w http.ResponseWriter, r *http.Request) {
					if b.runs.Load() == 1 {
						g.pass()
					}
					byStatus(&b)(w, r)
				}})
				b.store.Before(storetest.OpRenew, fail)
				first := b.begin(order{key: "k", fields: []string{"X-Status", status}})
				b.receive("the handler", g.entered)
				b.until("lapsed", func() bool { return b.must("k").Status != idempotent.Pending })
				requireRefused(t, b.post("k", "X-Status", status), "outcome-unknown")
				g.release()
				require.Equal(t, status, fmt.Sprint(first.wait().status))
				again := b.post("k", "X-Status", status)
				if status == "429" {
					require.Equal(t, "run 2", again.body)
					continue
				}
				requireReplay(t, first.answer, again)
				require.EqualValues(t, 1, b.runs.Load())
			}
		})
	})
	t.Run("a panic, settled", func(t *testing.T) {
		b := memory.bench(t, setup{handler: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }})
		_, err := b.try(t.Context(), order{key: "k"})
		require.Error(t, err)
		require.NoError(t, b.guard.Resolve(t.Context(), name("k"), b.must("k").Owner, idempotent.ClassFailure, ""))
		requireRefused(t, b.post("k"), "result-unavailable", func(r *refusal) { r.state, r.newKeySafe = "failure", true })
	})
}
