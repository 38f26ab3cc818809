package idempotent_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/storetest"
)

// guardBench is a guard over a memory store that fails on command, inside a
// synctest bubble.
type guardBench struct {
	*idempotent.Guard
	store  *storetest.Faulty
	events *eventLog
	runs   atomic.Int64
}

func newGuardBench(t *testing.T, opts ...idempotent.Option) *guardBench {
	t.Helper()
	mem := memstore.New(memstore.WithLogger(slog.New(slog.DiscardHandler)))
	b := &guardBench{store: storetest.NewFaulty(mem), events: &eventLog{}}
	b.Guard = idempotent.New(b.store, append([]idempotent.Option{
		idempotent.WithObserver(b.events), idempotent.WithLogger(slog.New(slog.DiscardHandler)),
	}, opts...)...)
	t.Cleanup(func() {
		b.store.Up()
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		require.NoError(t, b.Drain(ctx))
		require.NoError(t, mem.Close())
	})
	return b
}

// succeed is an operation that counts its runs and returns a result.
func (b *guardBench) succeed(result string) func(context.Context) (idempotent.Class, string) {
	return func(context.Context) (idempotent.Class, string) {
		b.runs.Add(1)
		return idempotent.ClassSuccess, result
	}
}

func (b *guardBench) load(t *testing.T, key string) (idempotent.Entry, bool) {
	t.Helper()
	e, ok, err := b.store.Load(t.Context(), key)
	require.NoError(t, err)
	return e, ok
}

// eventLog is an Observer that remembers.
type eventLog struct {
	mu     sync.Mutex
	events []idempotent.Event
}

func (l *eventLog) Observe(_ context.Context, e idempotent.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
}

func (l *eventLog) all() []idempotent.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]idempotent.Event(nil), l.events...)
}

func (l *eventLog) count(kind idempotent.EventKind) int {
	n := 0
	for _, e := range l.all() {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// last returns the last event of a kind, which there must be.
func (l *eventLog) last(t *testing.T, kind idempotent.EventKind) (last idempotent.Event) {
	t.Helper()
	for _, e := range l.all() {
		if e.Kind == kind {
			last = e
		}
	}
	require.Equal(t, kind, last.Kind)
	return last
}

func (l *eventLog) kinds() []idempotent.EventKind {
	var kinds []idempotent.EventKind
	for _, e := range l.all() {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

// bubble runs a test with fake time.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

var errBoom = errors.New("boom")

func TestRunOnceThenReplay(t *testing.T) {
	for _, tt := range []struct {
		class   idempotent.Class
		want    idempotent.Class
		status  idempotent.Status
		unknown bool
		kept    time.Duration
		err     error
	}{
		{idempotent.ClassSuccess, idempotent.ClassSuccess, idempotent.Success, false, 24 * time.Hour, nil},
		{idempotent.ClassDefault, idempotent.ClassSuccess, idempotent.Success, false, 24 * time.Hour, nil},
		{idempotent.ClassFailure, idempotent.ClassFailure, idempotent.Failed, false, 2 * time.Hour, nil},
		{idempotent.ClassUnknown, idempotent.ClassUnknown, idempotent.Failed, true, 24 * time.Hour, idempotent.ErrOutcomeUnknown},
		{idempotent.Class(99), idempotent.ClassUnknown, idempotent.Failed, true, 24 * time.Hour, idempotent.ErrOutcomeUnknown},
		{idempotent.Class(-1), idempotent.ClassUnknown, idempotent.Failed, true, 24 * time.Hour, idempotent.ErrOutcomeUnknown},
	} {
		bubble(t, tt.class.String(), func(t *testing.T) {
			b := newGuardBench(t)
			op := func(context.Context) (idempotent.Class, string) {
				b.runs.Add(1)
				return tt.class, "result"
			}
			rec, replayed, err := b.Run(t.Context(), "k", op)
			require.NoError(t, err)
			require.False(t, replayed)
			require.Equal(t, tt.want, rec.Class)
			require.Equal(t, "result", rec.Result)

			e, ok := b.load(t, "k")
			require.True(t, ok)
			require.Equal(t, tt.status, e.Status)
			require.Equal(t, tt.unknown, e.Unknown)
			require.Equal(t, tt.kept, e.Expires.Sub(e.Timestamp))

			time.Sleep(tt.kept - time.Second) // fake time
			rec, replayed, err = b.Run(t.Context(), "k", op)
			require.ErrorIs(t, err, tt.err)
			require.True(t, replayed)
			require.Equal(t, tt.want, rec.Class)
			require.Equal(t, "result", rec.Result)
			require.Equal(t, e.Claimed, rec.Claimed)
			require.Equal(t, e.Timestamp, rec.Completed)
			require.EqualValues(t, 1, b.runs.Load())

			time.Sleep(2 * time.Second)
			_, replayed, err = b.Run(t.Context(), "k", op)
			require.NoError(t, err)
			require.False(t, replayed)
			require.EqualValues(t, 2, b.runs.Load())
		})
	}

	bubble(t, "release", func(t *testing.T) {
		b := newGuardBench(t)
		op := func(context.Context) (idempotent.Class, string) {
			b.runs.Add(1)
			return idempotent.ClassRelease, "not now"
		}
		for i := range 3 {
			rec, replayed, err := b.Run(t.Context(), "k", op)
			require.NoError(t, err)
			require.False(t, replayed)
			require.Equal(t, idempotent.ClassRelease, rec.Class)
			require.Equal(t, "not now", rec.Result)
			require.EqualValues(t, i+1, b.runs.Load())
			_, ok := b.load(t, "k")
			require.False(t, ok)
		}
	})
}

func TestRunEmptyResultIsNoMissingOne(t *testing.T) {
	for _, class := range []idempotent.Class{idempotent.ClassSuccess, idempotent.ClassFailure, idempotent.ClassUnknown} {
		bubble(t, class.String(), func(t *testing.T) {
			b := newGuardBench(t)
			op := func(context.Context) (idempotent.Class, string) { return class, "" }
			_, _, err := b.Run(t.Context(), "k", op)
			require.NoError(t, err)
			rec, replayed, _ := b.Run(t.Context(), "k", op)
			require.True(t, replayed)
			require.Equal(t, class, rec.Class)
			require.Empty(t, rec.Result)
		})
	}
}

func TestRunRefusesBadInput(t *testing.T) {
	b := newGuardBench(t)
	_, _, err := b.Run(t.Context(), "", b.succeed(""))
	require.ErrorIs(t, err, idempotent.ErrInvalid)
	_, _, err = b.Run(t.Context(), "k", nil)
	require.ErrorIs(t, err, idempotent.ErrInvalid)
	_, err = idempotent.Do[int](t.Context(), b.Guard, "k", nil)
	require.ErrorIs(t, err, idempotent.ErrInvalid)
	require.ErrorIs(t, b.Do(t.Context(), "k", nil), idempotent.ErrInvalid)
	require.ErrorIs(t, b.Do(t.Context(), "", func(context.Context) error { return nil }), idempotent.ErrInvalid)
	require.Zero(t, b.store.Calls(storetest.OpClaim))
	require.Zero(t, b.runs.Load())
}

func TestOptionsRefuseNonsense(t *testing.T) {
	store := memstore.New()
	t.Cleanup(func() { _ = store.Close() })
	var nilStore *memstore.Store
	for name, f := range map[string]func(){
		"the store is nil":                     func() { idempotent.New(nil) },
		"New: the store is nil":                func() { idempotent.New(nilStore) },
		"WithLease":                            func() { idempotent.WithLease(0) },
		"WithSuccessRetention":                 func() { idempotent.WithSuccessRetention(-time.Second) },
		"WithFailureRetention":                 func() { idempotent.WithFailureRetention(time.Microsecond) },
		"WithStoreTimeout":                     func() { idempotent.WithStoreTimeout(0) },
		"WithLogger":                           func() { idempotent.WithLogger(nil) },
		"WithCallCodec":                        func() { idempotent.WithCallCodec(nil) },
		"WithCallClassify":                     func() { idempotent.WithCallClassify(nil) },
		"With: WithObserver belongs to New":    func() { idempotent.New(store).With(idempotent.WithObserver(&eventLog{})) },
		"With: WithLogger belongs to New":      func() { idempotent.New(store).With(idempotent.WithLogger(slog.Default())) },
		"NewJanitor: the Sweeper is nil":       func() { idempotent.NewJanitor(nil, time.Second) },
		"the Sweeper is nil":                   func() { idempotent.NewJanitor(nilStore, time.Second) },
		"NewJanitor: the interval":             func() { idempotent.NewJanitor(store, 0) },
		"Middleware: the PrincipalFunc is nil": func() { idempotent.New(store).Middleware(nil) },
		"Middleware: the next handler is nil":  func() { idempotent.New(store).Middleware(idempotent.Anonymous)(nil) },
		"WithMethods":                          func() { idempotent.WithMethods() },
		"WithMethods: \"A B\"":                 func() { idempotent.WithMethods("A B") },
		"WithHeader":                           func() { idempotent.WithHeader() },
		"WithHeader: \"\"":                     func() { idempotent.WithHeader("") },
		"WithKeyFunc":                          func() { idempotent.WithKeyFunc(nil) },
		"WithKeyPolicy":                        func() { idempotent.WithKeyPolicy(nil) },
		"WithTrace":                            func() { idempotent.WithTrace(nil) },
		"WithFingerprint":                      func() { idempotent.WithFingerprint(nil) },
		"WithMaxBody":                          func() { idempotent.WithMaxBody(0) },
		"WithMaxResponse":                      func() { idempotent.WithMaxResponse(-1) },
		"WithClassify":                         func() { idempotent.WithClassify(nil) },
		"WithReplayHook":                       func() { idempotent.WithReplayHook(nil) },
		"WithProblemBase":                      func() { idempotent.WithProblemBase("") },
		"WithProblemBase: \":\"":               func() { idempotent.WithProblemBase(":") },
		"WithWait":                             func() { idempotent.WithWait(0) },
		"WithMaxWait":                          func() { idempotent.WithMaxWait(-1) },
		"WithMaxWaiters":                       func() { idempotent.WithMaxWaiters(0) },
		"KeyMaxAge":                            func() { idempotent.KeyMaxAge(0) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				text, _ := recover().(string)
				require.Contains(t, text, name)
				require.Contains(t, text, "idempotent: ")
			}()
			f()
		})
	}
	require.NotPanics(t, func() {
		idempotent.New(store, idempotent.Option{}).With(idempotent.Option{}).Middleware(idempotent.Anonymous, idempotent.HTTPOption{})
	})
}

// A nil observer is nobody, in whatever form it comes.
func TestNilObserverIsNobody(t *testing.T) {
	store := memstore.New()
	t.Cleanup(func() { _ = store.Close() })
	var log *eventLog
	for name, o := range map[string]idempotent.Observer{"nil": nil, "pointer": log, "func": idempotent.ObserverFunc(nil)} {
		g := idempotent.New(store, idempotent.WithObserver(o))
		require.NotPanics(t, func() { _, _, _ = g.Run(t.Context(), name, nothing) }, name)
	}
}

// C022, B35: one atomic claim decides.
func TestC022_ManyCallersOneRun(t *testing.T) {
	store := memstore.New()
	t.Cleanup(func() { _ = store.Close() })
	g := idempotent.New(store)
	for range 50 {
		key := "k" + time.Now().String()
		var runs, answered atomic.Int64
		var wg sync.WaitGroup
		barrier := make(chan struct{})
		for range 100 {
			wg.Go(func() {
				<-barrier
				rec, _, err := g.Run(context.Background(), key, func(context.Context) (idempotent.Class, string) {
					runs.Add(1)
					runtime.Gosched()
					return idempotent.ClassSuccess, "once"
				})
				var inFlight *idempotent.InFlightError
				switch {
				case errors.As(err, &inFlight):
				case err == nil && rec.Result == "once":
					answered.Add(1)
				default:
					t.Errorf("got %+v, %v", rec, err)
				}
			})
		}
		close(barrier)
		wg.Wait()
		require.EqualValues(t, 1, runs.Load())
		require.Positive(t, answered.Load())
	}
}

func TestC049_C073_RunInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuardBench(t)
		release := make(chan struct{})
		go func() {
			_, _, _ = b.Run(context.Background(), "k", func(context.Context) (idempotent.Class, string) {
				<-release
				return idempotent.ClassSuccess, "done"
			}, idempotent.WithCallTrace("trace-1"), idempotent.WithCallFingerprint("fp"))
		}()
		synctest.Wait()
		began := time.Now()
		time.Sleep(5 * time.Second)

		rec, replayed, err := b.Run(t.Context(), "k", b.succeed(""), idempotent.WithCallFingerprint("fp"))
		var inFlight *idempotent.InFlightError
		require.ErrorAs(t, err, &inFlight)
		require.False(t, replayed)
		require.Equal(t, idempotent.ClassDefault, rec.Class)
		require.Equal(t, time.Second, inFlight.RetryAfter)
		require.True(t, inFlight.Since.Equal(began))
		require.Equal(t, "trace-1", inFlight.Trace)
		require.Contains(t, err.Error(), "in flight since")

		// C073: another request is told so now, not later.
		_, _, err = b.Run(t.Context(), "k", b.succeed(""), idempotent.WithCallFingerprint("other"))
		require.ErrorIs(t, err, idempotent.ErrKeyReused)
		// It is not worth waiting for, either.
		_, _, err = b.Run(t.Context(), "k", b.succeed(""), idempotent.WithCallFingerprint("other"), idempotent.WithCallWait(time.Hour))
		require.ErrorIs(t, err, idempotent.ErrKeyReused)
		require.Equal(t, 5*time.Second, time.Since(began))
		close(release)
		synctest.Wait()

		// C049: also once it is finished.
		_, _, err = b.Run(t.Context(), "k", b.succeed(""))
		require.ErrorIs(t, err, idempotent.ErrKeyReused)
		require.Zero(t, b.runs.Load())
	})
}

func TestRunPanicAndGoexit(t *testing.T) {
	type odd struct{ n int }
	for name, end := range map[string]func(){
		"panic":  func() { panic(odd{7}) },
		"goexit": runtime.Goexit,
	} {
		bubble(t, name, func(t *testing.T) {
			b := newGuardBench(t)
			done := make(chan any, 1)
			go func() {
				var value any = "goexit"
				defer func() { done <- value }()
				defer func() {
					if v := recover(); v != nil {
						value = v
					}
				}()
				_, _, _ = b.Run(context.Background(), "k", func(ctx context.Context) (idempotent.Class, string) {
					b.runs.Add(1)
					idempotent.Release(ctx) // a panic beats it
					end()
					return idempotent.ClassSuccess, "unreachable"
				})
				value = "returned"
			}()
			want := any("goexit")
			if name == "panic" {
				want = odd{7}
			}
			require.Equal(t, want, <-done)

			e, ok := b.load(t, "k")
			require.True(t, ok)
			require.Equal(t, idempotent.Failed, e.Status)
			require.True(t, e.Unknown)
			rec, replayed, err := b.Run(t.Context(), "k", b.succeed(""))
			require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
			require.True(t, replayed)
			require.Equal(t, idempotent.ClassUnknown, rec.Class)
			require.EqualValues(t, 1, b.runs.Load())
			require.Equal(t, []idempotent.EventKind{idempotent.EventClaimed, idempotent.EventCompleted, idempotent.EventReplayed}, b.events.kinds())
		})
	}
}

func TestRunSaid(t *testing.T) {
	say := map[string]struct {
		say  []func(context.Context)
		want idempotent.Class
	}{
		"succeed":   {[]func(context.Context){idempotent.Succeed}, idempotent.ClassSuccess},
		"fail":      {[]func(context.Context){idempotent.Fail}, idempotent.ClassFailure},
		"unknown":   {[]func(context.Context){idempotent.Unknown}, idempotent.ClassUnknown},
		"release":   {[]func(context.Context){idempotent.Release}, idempotent.ClassRelease},
		"last wins": {[]func(context.Context){idempotent.Release, idempotent.Unknown, idempotent.Succeed, idempotent.Fail}, idempotent.ClassFailure},
	}
	for name, tt := range say {
		for _, answered := range []idempotent.Class{idempotent.ClassDefault, idempotent.ClassSuccess, idempotent.ClassFailure, idempotent.ClassUnknown, idempotent.ClassRelease} {
			bubble(t, name+" beats "+answered.String(), func(t *testing.T) {
				b := newGuardBench(t)
				rec, _, err := b.Run(t.Context(), "k", func(ctx context.Context) (idempotent.Class, string) {
					for _, f := range tt.say {
						f(ctx)
					}
					return answered, ""
				})
				require.NoError(t, err)
				require.Equal(t, tt.want, rec.Class)
			})
		}
	}
	require.NotPanics(t, func() { // outside an operation
		idempotent.Succeed(t.Context())
		idempotent.Release(t.Context())
	})
}

// A store's clock may run ahead of ours.
func TestAgeIsNeverNegative(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New()
		defer mem.Close()
		events := &eventLog{}
		g := idempotent.New(aheadStore{mem}, idempotent.WithObserver(events))
		for range 2 {
			_, _, err := g.Run(t.Context(), "k", nothing)
			require.NoError(t, err)
		}
		require.Zero(t, events.last(t, idempotent.EventReplayed).Age)
	})
}

// aheadStore is a store whose clock is a minute ahead.
type aheadStore struct{ idempotent.Store }

func (s aheadStore) Claim(ctx context.Context, key string, c idempotent.Claim) (idempotent.Entry, bool, error) {
	e, ok, err := s.Store.Claim(ctx, key, c)
	e.Claimed, e.Timestamp, e.Expires = e.Claimed.Add(time.Minute), e.Timestamp.Add(time.Minute), e.Expires.Add(time.Minute)
	return e, ok, err
}

func TestFromContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuardBench(t)
		_, ok := idempotent.FromContext(t.Context())
		require.False(t, ok)
		var outer, inner, after idempotent.Execution
		_, _, err := b.Run(t.Context(), "outer", func(ctx context.Context) (idempotent.Class, string) {
			outer, _ = idempotent.FromContext(ctx)
			_, _, err := b.Run(ctx, "inner", func(ctx context.Context) (idempotent.Class, string) {
				inner, _ = idempotent.FromContext(ctx)
				idempotent.Fail(ctx) // says nothing of the outer one
				return idempotent.ClassDefault, ""
			})
			require.NoError(t, err)
			after, _ = idempotent.FromContext(ctx)
			return idempotent.ClassSuccess, ""
		}, idempotent.WithCallTrace("t"))
		require.NoError(t, err)
		e, _ := b.load(t, "outer")
		require.Equal(t, idempotent.Execution{Key: "outer", Owner: e.Owner, Trace: "t", Fence: e.Fence}, outer)
		require.Equal(t, outer, after)
		require.Equal(t, "inner", inner.Key)
		require.NotEqual(t, outer.Owner, inner.Owner)
		require.Equal(t, idempotent.Success, e.Status)
		e, _ = b.load(t, "inner")
		require.Equal(t, idempotent.Failed, e.Status)
	})
}

// An operation that asks for its own key is told the truth, at once.
// stateless is a store that breaks its contract: its entries have no state.
type stateless struct{ idempotent.Store }

func (stateless) Load(context.Context, string) (idempotent.Entry, bool, error) {
	return idempotent.Entry{Owner: "o"}, true, nil
}

func (stateless) Claim(context.Context, string, idempotent.Claim) (idempotent.Entry, bool, error) {
	return idempotent.Entry{}, false, nil
}

// An entry without a state is no outcome: nobody is answered from it.
func TestEntryWithoutStateIsAStoreError(t *testing.T) {
	t.Parallel()
	g := idempotent.New(stateless{tierMem(t)}, idempotent.WithLogger(slog.New(slog.DiscardHandler)))
	var away *idempotent.StoreError
	_, replayed, err := g.Run(t.Context(), "k", func(context.Context) (idempotent.Class, string) {
		t.Error("it runs without a claim")
		return idempotent.ClassSuccess, ""
	})
	require.False(t, replayed)
	require.ErrorAs(t, err, &away)
	require.ErrorContains(t, err, "breaks its contract")
	require.ErrorAs(t, g.Resolve(t.Context(), "k", "o", idempotent.ClassSuccess, ""), &away)
	require.NoError(t, g.Drain(t.Context()))
	_, _, err = g.Run(t.Context(), "k", func(context.Context) (idempotent.Class, string) { return 0, "" })
	require.ErrorAs(t, err, &away)
}

func TestNestedRunOfTheSameKeyIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuardBench(t)
		began := time.Now()
		rec, _, err := b.Run(t.Context(), "k", func(ctx context.Context) (idempotent.Class, string) {
			_, _, err := b.Run(ctx, "k", b.succeed("inner"))
			var inFlight *idempotent.InFlightError
			require.ErrorAs(t, err, &inFlight)
			return idempotent.ClassSuccess, "outer"
		})
		require.NoError(t, err)
		require.Equal(t, "outer", rec.Result)
		require.Zero(t, time.Since(began))
		require.Zero(t, b.runs.Load())
	})
}

func TestWithSharesAllButSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuardBench(t)
		short := b.With(idempotent.WithSuccessRetention(time.Minute))
		_, _, err := short.Run(t.Context(), "short", b.succeed(""))
		require.NoError(t, err)
		_, _, err = b.Run(t.Context(), "long", b.succeed(""))
		require.NoError(t, err)
		e, _ := b.load(t, "short")
		require.Equal(t, time.Minute, e.Expires.Sub(e.Timestamp))
		e, _ = b.load(t, "long")
		require.Equal(t, 24*time.Hour, e.Expires.Sub(e.Timestamp))
		require.Equal(t, 2, b.events.count(idempotent.EventCompleted))
		require.NoError(t, b.Drain(t.Context()))
		_, _, err = short.Run(t.Context(), "new", b.succeed(""))
		require.ErrorIs(t, err, idempotent.ErrClosed)
	})
}

// C002: a context that has ended claims nothing.
func TestC002_EndedContextClaimsNothing(t *testing.T) {
	bubble(t, "before the claim", func(t *testing.T) {
		b := newGuardBench(t)
		ctx, cancel := context.WithTimeout(t.Context(), -time.Second)
		defer cancel()
		_, _, err := b.Run(ctx, "k", b.succeed(""))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Zero(t, b.store.Calls(storetest.OpClaim))
	})
	for _, detached := range []bool{false, true} {
		name := "while claiming"
		var opts []idempotent.CallOption
		if detached {
			name += ", detached"
			opts = append(opts, idempotent.WithCallDetached())
		}
		bubble(t, name, func(t *testing.T) {
			b := newGuardBench(t)
			ctx, cancel := context.WithCancel(t.Context())
			b.store.After(storetest.OpClaim, func(context.Context, string) error {
				cancel()
				return nil
			})
			_, _, err := b.Run(ctx, "k", b.succeed(""), opts...)
			require.ErrorIs(t, err, context.Canceled)
			synctest.Wait()
			_, ok := b.load(t, "k")
			require.False(t, ok, "nothing happened, so the key must be free")
			began := time.Now()
			require.NoError(t, b.Drain(t.Context()))
			require.Zero(t, time.Since(began), "a claim that was answered cannot land late")
			require.Zero(t, b.runs.Load())
			require.Zero(t, b.events.count(idempotent.EventStoreError))
		})
	}
}

// C012: a lost race is no outage.
func TestC012_StoreErrorsAreToldApart(t *testing.T) {
	for _, sentinel := range []error{
		idempotent.ErrFull, idempotent.ErrCorrupt, idempotent.ErrNewerFormat, idempotent.ErrInvalid, idempotent.ErrClosed, idempotent.ErrLost,
	} {
		bubble(t, sentinel.Error(), func(t *testing.T) {
			b := newGuardBench(t)
			b.store.Before(storetest.OpClaim, func(context.Context, string) error { return sentinel })
			_, _, err := b.Run(t.Context(), "k", b.succeed(""))
			require.ErrorIs(t, err, sentinel)
			var storeErr *idempotent.StoreError
			require.False(t, errors.As(err, &storeErr))
			if errors.Is(sentinel, idempotent.ErrInvalid) || errors.Is(sentinel, idempotent.ErrLost) {
				require.Zero(t, b.events.count(idempotent.EventStoreError), "it says nothing of the store")
			} else {
				require.Equal(t, 1, b.events.count(idempotent.EventStoreError))
				told := b.events.last(t, idempotent.EventStoreError).Err
				require.ErrorIs(t, told, sentinel)
				require.ErrorAs(t, told, &storeErr, "the event names the step")
				require.Equal(t, "claim", storeErr.Op)
			}
			require.NoError(t, b.Drain(t.Context()))
			require.Zero(t, b.store.Calls(storetest.OpRelease), "a store that answered claimed nothing: there is nothing to release")
		})
	}
	bubble(t, "a StoreError is wrapped once", func(t *testing.T) {
		b := newGuardBench(t)
		want := &idempotent.StoreError{Op: "dial", Err: errBoom}
		b.store.Before(storetest.OpClaim, func(context.Context, string) error { return want })
		_, _, err := b.Run(t.Context(), "k", b.succeed(""))
		require.Equal(t, want, err)
	})
	bubble(t, "a stall ends with the store timeout", func(t *testing.T) {
		b := newGuardBench(t)
		stall := func(ctx context.Context, _ string) error {
			<-ctx.Done()
			return ctx.Err()
		}
		b.store.Before(storetest.OpClaim, stall)
		b.store.Before(storetest.OpLoad, stall)
		for range 2 {
			began := time.Now()
			_, _, err := b.Run(t.Context(), "k", b.succeed(""))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorAs(t, err, new(*idempotent.StoreError))
			require.Equal(t, idempotent.DefaultStoreTimeout, time.Since(began))
			require.NoError(t, b.Drain(t.Context())) // from now on Run only looks
		}
		b.store.Before(storetest.OpLoad, nil)
	})
	bubble(t, "a caller who leaves says nothing of the store", func(t *testing.T) {
		b := newGuardBench(t)
		b.store.Before(storetest.OpClaim, func(ctx context.Context, _ string) error {
			<-ctx.Done()
			return ctx.Err()
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _, err := b.Run(ctx, "k", b.succeed(""))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Zero(t, b.events.count(idempotent.EventStoreError))
	})
	bubble(t, "anything else", func(t *testing.T) {
		b := newGuardBench(t)
		b.store.Down(errBoom)
		_, _, err := b.Run(t.Context(), "k", b.succeed(""))
		require.ErrorIs(t, err, errBoom)
		var storeErr *idempotent.StoreError
		require.ErrorAs(t, err, &storeErr)
		require.Equal(t, "claim", storeErr.Op)
		require.Zero(t, b.runs.Load())
		require.GreaterOrEqual(t, b.events.count(idempotent.EventStoreError), 1)
	})
}

// An observer may panic, and nothing catches it; what the guard holds is
// balanced all the same.
func TestPanicOfAnObserverLeavesNothingBehind(t *testing.T) {
	for _, kind := range []idempotent.EventKind{
		idempotent.EventClaimed, idempotent.EventCompleted, idempotent.EventReleased, idempotent.EventStoreError,
		idempotent.EventReplayed, idempotent.EventLost, idempotent.EventNotRecorded,
	} {
		bubble(t, string(kind), func(t *testing.T) {
			mem := memstore.New()
			defer mem.Close()
			store := storetest.NewFaulty(mem)
			panics := true
			g := idempotent.New(store, idempotent.WithLogger(slog.New(slog.DiscardHandler)),
				idempotent.WithObserver(idempotent.ObserverFunc(func(_ context.Context, e idempotent.Event) {
					if panics && e.Kind == kind {
						panics = false
						panic("observer")
					}
				})))
			class := idempotent.ClassSuccess
			ran := false
			op := func(context.Context) (idempotent.Class, string) { ran = true; return class, "" }
			run := func() { _, _, _ = g.Run(t.Context(), "k", op) }
			switch kind {
			case idempotent.EventReleased:
				class = idempotent.ClassRelease
			case idempotent.EventStoreError:
				store.After(storetest.OpClaim, func(context.Context, string) error { return errBoom })
			case idempotent.EventReplayed:
				run()
			case idempotent.EventLost, idempotent.EventNotRecorded:
				store.Before(storetest.OpComplete, func(context.Context, string) error { return idempotent.ErrLost })
			}
			require.PanicsWithValue(t, "observer", run)
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			require.NoError(t, g.Drain(ctx))
			if !ran {
				_, found, err := mem.Load(t.Context(), "k")
				require.NoError(t, err)
				require.False(t, found, "nothing ran, so the key must be free")
			}
		})
	}
	bubble(t, "a store that panics", func(t *testing.T) {
		b := newGuardBench(t)
		b.store.After(storetest.OpClaim, func(context.Context, string) error { panic("store") })
		require.PanicsWithValue(t, "store", func() { _, _, _ = b.Run(t.Context(), "k", b.succeed("")) })
		b.store.After(storetest.OpClaim, nil)
		synctest.Wait()
		_, found := b.load(t, "k")
		require.False(t, found)
	})
}
