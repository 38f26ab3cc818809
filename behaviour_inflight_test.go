package idempotent_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/storetest"
)

// gated is a handler that passes the gate and then answers as usual.
func gated(b **bench, g *gate) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		g.pass()
		(*b).created(w, r)
	}
}

// waiting is how many requests wait in the store at this moment.
type waiting struct{ n, most atomic.Int64 }

func (b *bench) countWaiters() *waiting {
	var w waiting
	b.store.Before(storetest.OpWait, func(context.Context, string) error {
		n := w.n.Add(1)
		for most := w.most.Load(); n > most && !w.most.CompareAndSwap(most, n); most = w.most.Load() {
		}
		return nil
	})
	b.store.After(storetest.OpWait, func(context.Context, string) error {
		w.n.Add(-1)
		return nil
	})
	return &w
}

func TestB35_SimultaneousRequests(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		const clients, rounds = 24, 6
		b := w.bench(t, setup{})
		for round := range rounds {
			key := fmt.Sprintf("k%d", round)
			o := order{key: key}
			if round%2 == 1 {
				o.fields = []string{"Prefer", "wait=5"}
			}
			barrier := make(chan struct{})
			answers := make(chan answer, clients)
			errs := make(chan error, clients)
			for range clients {
				r := b.request(t.Context(), o)
				go func() {
					<-barrier
					a, err := b.trySend(r)
					errs <- err
					answers <- a
				}()
			}
			close(barrier)
			fresh := 0
			for range clients {
				require.NoError(t, next(b, errs))
				a := next(b, answers)
				switch {
				case a.status == http.StatusConflict:
					requireRefused(t, a, "in-flight")
					require.Zero(t, round%2, "who may wait is not refused")
				case a.replayed():
					require.Equal(t, http.StatusCreated, a.status)
					require.Equal(t, fmt.Sprintf("run %d", round+1), a.body)
				default:
					requireFresh(t, a, round+1)
					fresh++
				}
			}
			require.Equal(t, 1, fresh)
			require.EqualValues(t, round+1, b.runs.Load())
			b.requireEntry(key, idempotent.ClassSuccess)
		}
		require.EqualValues(t, 1, b.most.Load())
		require.Zero(t, b.observed(idempotent.EventStoreError), "a lost race is no outage")
	})
}

func TestB36_DuplicateWhilePending(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		g := newGate(t)
		var b *bench
		b = w.bench(t, setup{handler: gated(&b, g)})
		other := w.bench(t, setup{store: b.inner}) // another process
		first := b.begin(order{key: "k", fields: []string{"X-Request-Id", "trace-1"}})
		b.receive("the handler", g.entered)
		pending := b.requireEntry("k", idempotent.ClassDefault)
		require.Equal(t, idempotent.Pending, pending.Status)
		require.Equal(t, "trace-1", pending.Trace)
		for _, o := range []order{
			{key: "k"},
			{key: `"k"`},
			{key: "k", fields: []string{"X-Request-Id", "trace-2"}},
			{key: "k", fields: []string{"Prefer", "wait=0"}},
			{key: "k", fields: []string{"Prefer", "respond-async"}},
			{fields: []string{"X-Idempotency-Key", "k"}},
			{key: "k", body: ` {"amount": 1}`},
		} {
			for _, b := range []*bench{b, other} {
				a := b.send(o)
				doc := requireRefused(t, a, "in-flight")
				require.Nil(t, a.header["Preference-Applied"])
				require.Equal(t, "trace-1", doc.Trace)
				require.NotNil(t, doc.FirstSeen)
				seen, err := time.Parse(time.RFC3339Nano, *doc.FirstSeen)
				require.NoError(t, err)
				require.WithinDuration(t, pending.Claimed, seen, time.Millisecond)
			}
		}
		require.Equal(t, pending.Owner, b.requireEntry("k", idempotent.ClassDefault).Owner)
		require.Equal(t, 14, b.observed(idempotent.EventInFlight)+other.observed(idempotent.EventInFlight))
		g.release()
		done := first.wait()
		require.Equal(t, http.StatusCreated, done.status)
		requireReplay(t, done, other.post("k"))
		require.EqualValues(t, 0, other.runs.Load())
	})
	t.Run("two middleware values", func(t *testing.T) {
		g := newGate(t)
		var b *bench
		var second atomic.Pointer[http.Handler]
		b = memory.bench(t, setup{
			handler: gated(&b, g),
			outer: func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					h := next
					if other := second.Load(); other != nil {
						h = *other
					}
					h.ServeHTTP(w, r)
				})
			},
		})
		first := b.begin(order{key: "k"})
		b.receive("the handler", g.entered)
		other := b.guard.Middleware(func(*http.Request) (string, error) { return "alice", nil })(http.HandlerFunc(b.created))
		second.Store(&other)
		requireRefused(t, b.post("k"), "in-flight")
		g.release()
		requireReplay(t, first.wait(), b.post("k"))
		require.EqualValues(t, 1, b.runs.Load())
	})
	t.Run("Retry-After is whole seconds however short the lease", func(t *testing.T) {
		g := newGate(t)
		var b *bench
		b = memory.bench(t, setup{guard: []idempotent.Option{idempotent.WithLease(50 * time.Millisecond)}, handler: gated(&b, g)})
		first := b.begin(order{key: "k"})
		b.receive("the handler", g.entered)
		requireRefused(t, b.post("k"), "in-flight")
		g.release()
		first.wait()
	})
}

func TestB37_PreferWait(t *testing.T) {
	onFakeTime(t, func(t *testing.T, w world) {
		g := newGate(t)
		var b *bench
		b = w.bench(t, setup{handler: gated(&b, g)})
		first := b.begin(order{key: "k"})
		b.receive("the handler", g.entered)
		for _, test := range []struct {
			prefer  string
			waits   time.Duration
			applied string
		}{
			{"wait=3", 3 * time.Second, "wait=3"},
			{"wait=10", 10 * time.Second, "wait=10"},
			{"wait=11", 10 * time.Second, "wait=10"},
			{"wait=99999999999999999999999", 10 * time.Second, "wait=10"},
			{"Wait = 2", 2 * time.Second, "wait=2"},
			{`respond-async, wait="4"; x=y`, 4 * time.Second, "wait=4"},
			{"wait=1, wait=5", time.Second, "wait=1"},
			{"wait=0", 0, ""},
			{"wait=-5", 0, ""},
			{"wait=5s", 0, ""},
			{"wait", 0, ""},
			{"wait=", 0, ""},
			{"wait=1.5", 0, ""},
			{"waits=5", 0, ""},
			{"return=minimal", 0, ""},
		} {
			start := time.Now()
			a := b.post("k", "Prefer", test.prefer)
			requireRefused(t, a, "in-flight")
			require.Equal(t, test.waits, time.Since(start), test.prefer)
			require.Equal(t, test.applied, a.header.Get("Preference-Applied"), test.prefer)
		}
		// Two lines are one list.
		start := time.Now()
		a := b.post("k", "Prefer", "return=minimal", "Prefer", "wait=2")
		require.Equal(t, "wait=2", a.header.Get("Preference-Applied"))
		require.Equal(t, 2*time.Second, time.Since(start))

		// The wait ends with the run.
		start = time.Now()
		waiter := b.begin(order{key: "k", fields: []string{"Prefer", "wait=9"}})
		b.pass(2 * time.Second)
		g.release()
		again := waiter.wait()
		require.Equal(t, 2*time.Second, time.Since(start))
		requireReplay(t, first.wait(), again)
		require.Equal(t, "wait=9", again.header.Get("Preference-Applied"))

		// Who does not wait has no preference applied.
		again = b.post("k", "Prefer", "wait=9")
		requireReplay(t, first.answer, again)
		require.Nil(t, again.header["Preference-Applied"])
		fresh := b.post("k2", "Prefer", "wait=9")
		requireFresh(t, fresh, 2)
		require.Nil(t, fresh.header["Preference-Applied"])
		require.EqualValues(t, 2, b.runs.Load())
		b.requireEntry("k", idempotent.ClassSuccess)
	})
	t.Run("replay, and a waiter that leaves", func(t *testing.T) {
		eachStoreOf(t, func(t *testing.T, w world) {
			g := newGate(t)
			var b *bench
			var served atomic.Int64
			b = w.bench(t, setup{handler: gated(&b, g), outer: func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					served.Add(1)
					defer served.Add(-1)
					next.ServeHTTP(w, r)
				})
			}})
			waiters := b.countWaiters()
			first := b.begin(order{key: "k"})
			b.receive("the handler", g.entered)
			leaver := b.begin(order{key: "k", fields: []string{"Prefer", "wait=10"}})
			stayer := b.begin(order{key: "k", fields: []string{"Prefer", "wait=10"}})
			b.until("both wait", func() bool { return waiters.n.Load() == 2 })
			leaver.cancel()
			start := time.Now()
			b.until("one has left", func() bool { return waiters.n.Load() == 1 && served.Load() == 2 })
			require.Less(t, time.Since(start), 9*time.Second, "it leaves at once, not at the end of its wait")
			require.Equal(t, idempotent.Pending, b.requireEntry("k", idempotent.ClassDefault).Status)
			g.release()
			again := stayer.wait()
			requireReplay(t, first.wait(), again)
			require.Equal(t, "wait=10", again.header.Get("Preference-Applied"))
			require.EqualValues(t, 1, b.runs.Load())
			require.Zero(t, b.observed(idempotent.EventStoreError), "a client that leaves is no outage")
		})
	})
	t.Run("other bounds", func(t *testing.T) {
		onFakeTimeOf(t, func(t *testing.T, w world) {
			g := newGate(t)
			var b *bench
			b = w.bench(t, setup{handler: gated(&b, g), options: []idempotent.HTTPOption{idempotent.WithMaxWait(90 * time.Second), idempotent.WithWait(20 * time.Second)}})
			first := b.begin(order{key: "k"})
			b.receive("the handler", g.entered)
			for prefer, waits := range map[string]time.Duration{"wait=80": 80 * time.Second, "wait=100": 90 * time.Second, "wait=0": 0, "wait=1": time.Second} {
				start := time.Now()
				requireRefused(t, b.post("k", "Prefer", prefer), "in-flight")
				require.Equal(t, waits, time.Since(start), prefer)
			}
			g.release()
			first.wait()
		})
	})
}

func TestB38_WithWait(t *testing.T) {
	onFakeTime(t, func(t *testing.T, w world) {
		g := newGate(t)
		var b *bench
		b = w.bench(t, setup{handler: gated(&b, g), options: []idempotent.HTTPOption{idempotent.WithWait(5 * time.Second)}})
		first := b.begin(order{key: "k"})
		b.receive("the handler", g.entered)
		start := time.Now()
		a := b.post("k")
		requireRefused(t, a, "in-flight")
		require.Equal(t, 5*time.Second, time.Since(start))
		require.Nil(t, a.header["Preference-Applied"], "nobody preferred it")
		waiter := b.begin(order{key: "k"})
		b.pass(time.Second)
		g.release()
		requireReplay(t, first.wait(), waiter.wait())
		require.Nil(t, waiter.answer.header["Preference-Applied"])
		require.EqualValues(t, 1, b.runs.Load())
	})
	t.Run("overflow", func(t *testing.T) {
		eachStoreOf(t, func(t *testing.T, w world) {
			g := newGate(t)
			var b *bench
			b = w.bench(t, setup{handler: gated(&b, g), options: []idempotent.HTTPOption{idempotent.WithWait(time.Minute), idempotent.WithMaxWaiters(3)}})
			waiters := b.countWaiters()
			var all []*attempt
			for _, key := range []string{"k1", "k2"} {
				all = append(all, b.begin(order{key: key}))
				b.receive("the handler", g.entered)
			}
			for _, key := range []string{"k1", "k1", "k2"} {
				all = append(all, b.begin(order{key: key}))
			}
			b.until("three wait", func() bool { return waiters.n.Load() == 3 })
			for _, key := range []string{"k1", "k2"} {
				requireRefused(t, b.post(key), "in-flight") // at once: nothing ends before the gate opens
				a := b.post(key, "Prefer", "wait=10")
				requireRefused(t, a, "in-flight")
				require.Nil(t, a.header["Preference-Applied"], "it did not wait")
			}
			// A place that is left can be taken.
			all[4].cancel()
			b.until("one has left", func() bool { return waiters.n.Load() == 2 })
			all[4] = b.begin(order{key: "k1"})
			b.until("three wait again", func() bool { return waiters.n.Load() == 3 })
			g.release()
			for _, a := range all {
				require.Equal(t, http.StatusCreated, a.wait().status)
			}
			require.EqualValues(t, 2, b.runs.Load())
			require.EqualValues(t, 3, waiters.most.Load())
		})
	})
	t.Run("a hundred per key", func(t *testing.T) {
		onFakeTimeOf(t, func(t *testing.T, w world) {
			g := newGate(t)
			var b *bench
			b = w.bench(t, setup{handler: gated(&b, g), options: []idempotent.HTTPOption{idempotent.WithWait(time.Minute)}})
			waiters := b.countWaiters()
			all := []*attempt{b.begin(order{key: "k"})}
			b.receive("the handler", g.entered)
			other := b.begin(order{key: "other"})
			b.receive("the handler", g.entered)
			for range 100 {
				all = append(all, b.begin(order{key: "k"}))
			}
			b.until("a hundred wait", func() bool { return waiters.n.Load() == 100 })
			start := time.Now()
			requireRefused(t, b.post("k"), "in-flight")
			require.Zero(t, time.Since(start))
			second := b.begin(order{key: "other"})
			b.until("another key has places", func() bool { return waiters.n.Load() == 101 })
			g.release()
			for _, a := range append(all, other, second) {
				require.Equal(t, http.StatusCreated, a.wait().status)
			}
			require.EqualValues(t, 2, b.runs.Load())
		})
	})
}

func TestB39_WaitersOfAReleasedKey(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		const waiters = 10
		g := newGate(t)
		var b *bench
		b = w.bench(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
			if b.runs.Load() == 1 {
				g.pass()
				w.Header().Set("Retry-After", "7")
				w.WriteHeader(http.StatusTooManyRequests)
				return
			}
			b.created(w, r)
		}})
		count := b.countWaiters()
		first := b.begin(order{key: "k"})
		b.receive("the handler", g.entered)
		all := make([]*attempt, waiters)
		for i := range all {
			all[i] = b.begin(order{key: "k", fields: []string{"Prefer", "wait=10"}})
		}
		b.until("all wait", func() bool { return count.n.Load() == waiters })
		g.release()
		require.Equal(t, http.StatusTooManyRequests, first.wait().status)
		fresh := 0
		for _, a := range all {
			switch got := a.wait(); {
			case got.status == http.StatusConflict:
				requireRefused(t, got, "in-flight")
			case got.replayed():
				require.Equal(t, "run 2", got.body)
			default:
				requireFresh(t, got, 2)
				fresh++
			}
			require.Equal(t, "wait=10", a.answer.header.Get("Preference-Applied"))
		}
		require.Equal(t, 1, fresh)
		require.EqualValues(t, 2, b.runs.Load())
		require.EqualValues(t, 1, b.most.Load())
		b.requireEntry("k", idempotent.ClassSuccess)
	})
	t.Run("released again and again", func(t *testing.T) {
		eachStoreOf(t, func(t *testing.T, w world) {
			// Every run but the last one frees the key: each waiter runs once at most.
			const waiters = 5
			g := newGate(t)
			var b *bench
			b = w.bench(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
				if n := b.runs.Load(); n <= 3 {
					if n == 1 {
						g.pass()
					}
					w.WriteHeader(http.StatusTooManyRequests)
					return
				}
				b.created(w, r)
			}})
			count := b.countWaiters()
			all := []*attempt{b.begin(order{key: "k"})}
			b.receive("the handler", g.entered)
			for range waiters {
				all = append(all, b.begin(order{key: "k", fields: []string{"Prefer", "wait=10"}}))
			}
			b.until("all wait", func() bool { return count.n.Load() == waiters })
			g.release()
			got := map[string]int{}
			for _, a := range all {
				a.wait()
				got[strconv.Itoa(a.answer.status)+" "+a.answer.header.Get("Idempotent-Replayed")]++
			}
			require.Equal(t, map[string]int{"429 ": 3, "201 ": 1, "201 true": 2}, got)
			require.EqualValues(t, 4, b.runs.Load())
			require.EqualValues(t, 1, b.most.Load())
		})
	})
}
