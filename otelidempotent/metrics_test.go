package otelidempotent_test

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/telemetry"
	"github.com/idempotent-go/idempotent/otelidempotent"
)

// Every kind of event makes these measurements, and no others. A kind without a
// row fails.
func TestEveryKindIsCounted(t *testing.T) {
	refused := &idempotent.StoreError{Op: "claim", Err: context.DeadlineExceeded}
	want := map[idempotent.EventKind]struct {
		event  idempotent.Event
		values map[string]float64
	}{
		idempotent.EventClaimed: {
			idempotent.Event{Status: idempotent.Pending},
			map[string]float64{"idempotency.claims": 1, "idempotency.active_operations": 1},
		},
		idempotent.EventTakenOver: {
			idempotent.Event{Status: idempotent.Pending, Age: time.Minute},
			map[string]float64{"idempotency.take_overs": 1, "idempotency.active_operations": 1},
		},
		idempotent.EventCompleted: {
			idempotent.Event{Status: idempotent.Failed, Unknown: true, Took: 2 * time.Second},
			map[string]float64{
				"idempotency.outcomes{idempotency.outcome=unknown}": 1, "idempotency.active_operations": -1,
				"idempotency.operation.duration count": 1, "idempotency.operation.duration sum": 2,
			},
		},
		idempotent.EventReleased: {
			idempotent.Event{Took: time.Second},
			map[string]float64{
				"idempotency.outcomes{idempotency.outcome=release}": 1, "idempotency.active_operations": -1,
				"idempotency.operation.duration count": 1, "idempotency.operation.duration sum": 1,
			},
		},
		idempotent.EventNotRecorded: {
			idempotent.Event{Status: idempotent.Success, Took: time.Second, Err: refused},
			map[string]float64{
				"idempotency.not_recorded": 1, "idempotency.active_operations": -1,
				"idempotency.operation.duration count": 1, "idempotency.operation.duration sum": 1,
			},
		},
		idempotent.EventReplayed:    {idempotent.Event{Status: idempotent.Success}, map[string]float64{"idempotency.replays{idempotency.outcome=success}": 1}},
		idempotent.EventInFlight:    {idempotent.Event{Status: idempotent.Pending}, map[string]float64{"idempotency.in_flight_refusals": 1}},
		idempotent.EventWaited:      {idempotent.Event{Took: 3 * time.Second}, map[string]float64{"idempotency.wait.duration count": 1, "idempotency.wait.duration sum": 3}},
		idempotent.EventKeyReused:   {idempotent.Event{Status: idempotent.Success}, map[string]float64{"idempotency.key_reuses": 1}},
		idempotent.EventAbandoned:   {idempotent.Event{Status: idempotent.Failed, Unknown: true}, map[string]float64{"idempotency.abandoned": 1}},
		idempotent.EventResolved:    {idempotent.Event{Status: idempotent.Failed}, map[string]float64{"idempotency.resolutions{idempotency.outcome=failure}": 1}},
		idempotent.EventLost:        {idempotent.Event{Err: idempotent.ErrLost}, map[string]float64{"idempotency.lost": 1}},
		idempotent.EventLongRunning: {idempotent.Event{Age: time.Hour}, map[string]float64{"idempotency.long_running": 1}},
		idempotent.EventStoreError:  {idempotent.Event{Err: refused}, map[string]float64{"idempotency.store.errors{error.type=timeout,idempotency.store.step=claim}": 1}},
		idempotent.EventEvicted:     {idempotent.Event{Status: idempotent.Success}, map[string]float64{"idempotency.store.early_evictions": 1}},
		idempotent.EventUnkeyed:     {idempotent.Event{}, map[string]float64{"idempotency.unkeyed": 1}},
	}
	for _, kind := range telemetry.Kinds {
		t.Run(string(kind), func(t *testing.T) {
			row, ok := want[kind]
			require.True(t, ok, "nothing counts this kind")
			b := newBench(t)
			row.event.Kind = kind
			row.event.Key, row.event.Owner = "POST:/orders:alice:key", "owner"
			b.Observe(t.Context(), row.event)
			require.Equal(t, row.values, b.values(t))
		})
	}
}

// The manual of the package lists every instrument with its unit, and every
// attribute that a measurement may carry.
func TestInstrumentsAreDocumented(t *testing.T) {
	b := newBench(t)
	_, err := b.ObserveStore(func() otelidempotent.StoreStats { return otelidempotent.StoreStats{Entries: 5, Pending: 2, Bytes: 700} })
	require.NoError(t, err)
	for _, kind := range telemetry.Kinds {
		b.Observe(t.Context(), idempotent.Event{Kind: kind, Err: errors.New("away")})
	}
	manual, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	documented := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^//\t(idempotency\.[a-z_.]+) +(\{[a-z]+\}|s|By)  `).FindAllStringSubmatch(string(manual), -1) {
		documented[m[1]] = m[2]
	}
	made := map[string]string{}
	for name, m := range b.collect(t) {
		made[name] = m.Unit
		require.NotEmpty(t, m.Description, name)
	}
	require.Equal(t, documented, made)
	for series := range b.values(t) {
		for _, m := range regexp.MustCompile(`[{,]([a-z._]+)=`).FindAllStringSubmatch(series, -1) {
			require.Contains(t, string(manual), m[1])
		}
		require.False(t, strings.Contains(series, "alice") || strings.Contains(series, "owner"), series)
	}
}

func TestObserveStore(t *testing.T) {
	b := newBench(t)
	registration, err := b.ObserveStore(func() otelidempotent.StoreStats { return otelidempotent.StoreStats{Entries: 5, Pending: 2, Bytes: 700} })
	require.NoError(t, err)
	require.Equal(t, map[string]float64{
		"idempotency.store.entries{idempotency.entry.state=pending}":  2,
		"idempotency.store.entries{idempotency.entry.state=finished}": 3,
		"idempotency.store.size": 700,
	}, b.values(t))
	require.NoError(t, registration.Unregister())
	require.Empty(t, b.values(t))
	require.Panics(t, func() { _, _ = b.ObserveStore(nil) })
}

// Measuring costs no allocation. What a span takes is the SDK's business:
// BenchmarkObserve shows it.
func TestMeasuringAllocatesNothing(t *testing.T) {
	measured, err := otelidempotent.New(
		otelidempotent.WithTracerProvider(noop.NewTracerProvider()),
		otelidempotent.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))),
	)
	require.NoError(t, err)
	refused := &idempotent.StoreError{Op: "claim", Err: errors.New("away")}
	for _, kind := range telemetry.Kinds {
		if kind == idempotent.EventClaimed || kind == idempotent.EventTakenOver {
			continue // these ask the tracer for a span, whatever it makes of it
		}
		e := idempotent.Event{Kind: kind, Key: "key", Owner: "owner", Status: idempotent.Success, Took: time.Millisecond, Err: refused}
		require.Zero(t, testing.AllocsPerRun(100, func() { measured.Observe(t.Context(), e) }), "%s", kind)
	}
}

func BenchmarkObserve(b *testing.B) {
	run := func(b *testing.B, o *otelidempotent.Observer) {
		ctx := b.Context()
		b.ReportAllocs()
		for b.Loop() {
			o.Observe(ctx, idempotent.Event{Kind: idempotent.EventClaimed, Key: "key", Owner: "owner", Status: idempotent.Pending})
			o.Observe(ctx, idempotent.Event{Kind: idempotent.EventCompleted, Key: "key", Owner: "owner", Status: idempotent.Success, Took: time.Millisecond})
		}
	}
	meters := func() otelidempotent.Option {
		return otelidempotent.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())))
	}
	for name, tracers := range map[string]trace.TracerProvider{
		"metrics":            noop.NewTracerProvider(),
		"metrics, unsampled": sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())),
		"metrics and spans":  sdktrace.NewTracerProvider(),
	} {
		b.Run(name, func(b *testing.B) {
			o, err := otelidempotent.New(meters(), otelidempotent.WithTracerProvider(tracers))
			require.NoError(b, err)
			run(b, o)
		})
	}
}
