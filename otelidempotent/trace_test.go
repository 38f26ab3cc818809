package otelidempotent_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/otelidempotent"
	"github.com/idempotent-go/idempotent/storetest"
)

// scene is a traced guard over a store that can be made to fail.
type scene struct {
	*bench
	guard *idempotent.Guard
	store *storetest.Faulty
}

func newScene(t *testing.T, opts ...idempotent.Option) *scene {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	memory := memstore.New(memstore.WithLogger(quiet))
	s := &scene{bench: newBench(t), store: storetest.NewFaulty(memory)}
	s.guard = idempotent.New(s.store, append([]idempotent.Option{
		idempotent.WithObserver(s), idempotent.WithLogger(quiet), idempotent.WithLease(time.Minute),
	}, opts...)...)
	t.Cleanup(func() {
		require.NoError(t, s.guard.Drain(context.Background()))
		require.NoError(t, memory.Close())
	})
	return s
}

// call runs an operation of two seconds under a span of its own, which it
// returns.
func (s *scene) call(t *testing.T, key string, class idempotent.Class, opts ...idempotent.CallOption) trace.SpanContext {
	t.Helper()
	ctx, span := s.tracers.Tracer("program").Start(t.Context(), "call")
	defer span.End()
	_, _, _ = s.guard.Run(ctx, key, func(context.Context) (idempotent.Class, string) {
		time.Sleep(2 * time.Second)
		return class, "result"
	}, append(opts, idempotent.WithCallTrace(otelidempotent.Traceparent(ctx)))...)
	return span.SpanContext()
}

func traced(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// A run is a child of its caller, as long as the operation, and a replay links
// to the call whose run produced it.
func TestReplayLinksToItsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		began := time.Now()
		first := s.call(t, "POST:/orders:alice:key", idempotent.ClassSuccess)
		time.Sleep(time.Hour)
		second := s.call(t, "POST:/orders:alice:key", idempotent.ClassSuccess)

		run := s.span(t, "idempotency.run")
		require.Equal(t, first.SpanID(), run.Parent().SpanID())
		require.Equal(t, first.TraceID(), run.SpanContext().TraceID())
		require.True(t, run.StartTime().Equal(began))
		require.Equal(t, 2*time.Second, run.EndTime().Sub(run.StartTime()))
		require.Equal(t, codes.Unset, run.Status().Code)
		owner := attributesOf(run)["idempotency.owner"]
		require.NotEmpty(t, owner)
		require.Equal(t, map[string]string{
			"idempotency.key": idempotent.LogKey("POST:/orders:alice:key"), "idempotency.owner": owner, "idempotency.outcome": "success",
		}, attributesOf(run))

		replay := s.span(t, "idempotency.replay")
		require.Equal(t, second.SpanID(), replay.Parent().SpanID())
		require.Len(t, replay.Links(), 1)
		link := replay.Links()[0].SpanContext
		require.Equal(t, first.TraceID(), link.TraceID())
		require.Equal(t, first.SpanID(), link.SpanID())
		require.True(t, link.IsSampled())
		require.Equal(t, map[string]string{
			"idempotency.key": idempotent.LogKey("POST:/orders:alice:key"), "idempotency.owner": owner, "idempotency.outcome": "success",
		}, attributesOf(replay))
	})
}

// Through the middleware the run is that of the request.
func TestMiddlewareRecordsTheSpanOfTheRequest(t *testing.T) {
	s := newScene(t)
	h := s.guard.Middleware(idempotent.Anonymous, idempotent.WithTrace(otelidempotent.Trace))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	send := func() trace.SpanContext {
		ctx, span := s.tracers.Tracer("server").Start(t.Context(), "POST /orders")
		defer span.End()
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/orders", nil)
		r.Header.Set("Idempotency-Key", "key")
		r.Header.Set("X-Request-Id", "not this")
		h.ServeHTTP(httptest.NewRecorder(), r)
		return span.SpanContext()
	}
	first, second := send(), send()
	require.Equal(t, first.SpanID(), s.span(t, "idempotency.run").Parent().SpanID())
	replay := s.span(t, "idempotency.replay")
	require.Equal(t, second.SpanID(), replay.Parent().SpanID())
	require.Equal(t, first.SpanID(), replay.Links()[0].SpanContext.SpanID())
	require.Empty(t, otelidempotent.Trace(httptest.NewRequest(http.MethodPost, "/", nil)), "no span, no trace")
}

func TestSpansOfWhatGoesWrong(t *testing.T) {
	traced(t, "an unknown outcome", func(t *testing.T) {
		s := newScene(t)
		s.call(t, "k", idempotent.ClassUnknown)
		run := s.span(t, "idempotency.run")
		require.Equal(t, sdktrace.Status{Code: codes.Error, Description: "the outcome is unknown"}, run.Status())
		require.Equal(t, "unknown", attributesOf(run)["idempotency.outcome"])
	})
	traced(t, "an outcome that is recorded late", func(t *testing.T) {
		s := newScene(t)
		s.store.Before(storetest.OpComplete, func(_ context.Context, key string) error { return errors.New("away: " + key) })
		s.call(t, "k", idempotent.ClassSuccess)
		require.Len(t, s.spans.Ended(), 1, "the caller's")
		require.Equal(t, "idempotency.store_error", s.spans.Ended()[0].Events()[0].Name)
		time.Sleep(10 * time.Second)
		s.store.Before(storetest.OpComplete, nil)
		require.NoError(t, s.guard.Drain(t.Context()))
		run := s.span(t, "idempotency.run")
		require.Equal(t, 2*time.Second, run.EndTime().Sub(run.StartTime()), "the operation ended long before")
		require.Equal(t, codes.Unset, run.Status().Code)
	})
	traced(t, "an outcome that is not recorded", func(t *testing.T) {
		s := newScene(t)
		s.store.Before(storetest.OpComplete, func(context.Context, string) error { return context.DeadlineExceeded })
		s.call(t, "k", idempotent.ClassSuccess)
		require.NoError(t, s.guard.Drain(t.Context()))
		run := s.span(t, "idempotency.run")
		require.Equal(t, sdktrace.Status{Code: codes.Error, Description: "the outcome is not recorded"}, run.Status())
		require.Equal(t, "timeout", attributesOf(run)["error.type"])
	})
	traced(t, "a claim that is lost", func(t *testing.T) {
		s := newScene(t)
		s.store.Before(storetest.OpComplete, func(context.Context, string) error { return idempotent.ErrLost })
		s.call(t, "k", idempotent.ClassSuccess)
		run := s.span(t, "idempotency.run")
		require.Equal(t, "idempotency.lost", run.Events()[0].Name)
		require.Equal(t, "lost", attributesOf(run)["error.type"])
	})
	traced(t, "an operation that runs for long", func(t *testing.T) {
		s := newScene(t, idempotent.WithLease(150*time.Millisecond))
		s.call(t, "k", idempotent.ClassSuccess)
		require.Equal(t, "idempotency.long_running", s.span(t, "idempotency.run").Events()[0].Name)
	})
	traced(t, "an operation that runs again", func(t *testing.T) {
		s := newScene(t, idempotent.WithTakeOver())
		_, _, err := s.store.Claim(t.Context(), "k", idempotent.Claim{Owner: "dead", Lease: time.Second, Keep: time.Hour, TakeOver: true})
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		s.call(t, "k", idempotent.ClassSuccess)
		require.Equal(t, "true", attributesOf(s.span(t, "idempotency.run"))["idempotency.taken_over"])
	})
}

// A refusal leads to the run that it is about, too.
func TestRefusalsLinkToTheRun(t *testing.T) {
	traced(t, "in flight", func(t *testing.T) {
		s := newScene(t)
		running := make(chan trace.SpanContext)
		go func() { running <- s.call(t, "k", idempotent.ClassSuccess) }()
		synctest.Wait()
		s.call(t, "k", idempotent.ClassSuccess)
		first := <-running
		refusal := s.span(t, "idempotency.refusal")
		require.Equal(t, "in-flight", attributesOf(refusal)["idempotency.answer"])
		require.Equal(t, first.SpanID(), refusal.Links()[0].SpanContext.SpanID())
	})
	traced(t, "the key of another request", func(t *testing.T) {
		s := newScene(t)
		first := s.call(t, "k", idempotent.ClassSuccess)
		s.call(t, "k", idempotent.ClassSuccess, idempotent.WithCallFingerprint("other"))
		refusal := s.span(t, "idempotency.refusal")
		require.Equal(t, "key-reused", attributesOf(refusal)["idempotency.answer"])
		require.Equal(t, first.SpanID(), refusal.Links()[0].SpanContext.SpanID())
	})
	traced(t, "abandoned, by a call that gave a request id", func(t *testing.T) {
		s := newScene(t)
		_, _, err := s.store.Claim(t.Context(), "k", idempotent.Claim{Owner: "dead", Trace: "req-1", Lease: time.Second, Keep: time.Hour})
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		s.call(t, "k", idempotent.ClassSuccess)
		refusal := s.span(t, "idempotency.refusal")
		require.Equal(t, "abandoned", attributesOf(refusal)["idempotency.answer"])
		require.Equal(t, "req-1", attributesOf(refusal)["idempotency.owner_trace"])
		require.Empty(t, refusal.Links())
	})
}

// Without a trace of its own an answer has no span, while a run begins one; and
// a program that records no span pays for none.
func TestNoSpanThatNobodyLooksFor(t *testing.T) {
	traced(t, "answers outside of a trace", func(t *testing.T) {
		s := newScene(t)
		for range 2 {
			_, _, err := s.guard.Run(t.Context(), "k", func(context.Context) (idempotent.Class, string) { return idempotent.ClassSuccess, "" })
			require.NoError(t, err)
		}
		require.Len(t, s.spans.Ended(), 1)
		require.False(t, s.span(t, "idempotency.run").Parent().IsValid())
	})
	traced(t, "a sampler that drops all", func(t *testing.T) {
		b := newBench(t, sdktrace.WithSampler(sdktrace.NeverSample()))
		for _, kind := range []idempotent.EventKind{idempotent.EventClaimed, idempotent.EventLost, idempotent.EventCompleted} {
			b.Observe(t.Context(), idempotent.Event{Kind: kind, Owner: "owner", Status: idempotent.Success})
		}
		require.Empty(t, b.spans.Started())
		require.Equal(t, 1.0, b.values(t)["idempotency.claims"])
	})
}

// Providers that are not given are the global ones, which do nothing until a
// program sets them.
func TestDefaultProviders(t *testing.T) {
	o, err := otelidempotent.New(otelidempotent.Option{}, otelidempotent.WithTracerProvider(nil), otelidempotent.WithMeterProvider(nil))
	require.NoError(t, err)
	o.Observe(t.Context(), idempotent.Event{Kind: idempotent.EventClaimed, Owner: "owner"})
	o.Observe(t.Context(), idempotent.Event{Kind: idempotent.EventCompleted, Owner: "owner"})
}
