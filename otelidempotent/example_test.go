package otelidempotent_test

import (
	"context"
	"fmt"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/otelidempotent"
)

func Example() {
	// A program has exporters in the place of these.
	exporter, reader := tracetest.NewInMemoryExporter(), sdkmetric.NewManualReader()
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))

	telemetry, err := otelidempotent.New(otelidempotent.WithTracerProvider(tracers), otelidempotent.WithMeterProvider(meters))
	if err != nil {
		fmt.Println(err)
		return
	}
	memory := memstore.New(memstore.WithObserver(telemetry))
	defer func() { _ = memory.Close() }()
	guard := idempotent.New(memory, idempotent.WithObserver(telemetry))

	for range 2 { // one order, sent twice
		ctx, span := tracers.Tracer("shop").Start(context.Background(), "place order")
		_, _ = idempotent.Do(ctx, guard, "order-7", func(context.Context) (string, error) {
			return "placed", nil
		}, idempotent.WithCallTrace(otelidempotent.Traceparent(ctx)))
		span.End()
	}

	spans := exporter.GetSpans()
	for _, s := range spans {
		fmt.Print(s.Name)
		for _, link := range s.Links {
			fmt.Print(", linked to the run: ", link.SpanContext.SpanID() == spans[0].Parent.SpanID())
		}
		fmt.Println()
	}
	var measured metricdata.ResourceMetrics
	_ = reader.Collect(context.Background(), &measured)
	for _, m := range measured.ScopeMetrics[0].Metrics {
		if sum, ok := m.Data.(metricdata.Sum[int64]); ok {
			fmt.Println(m.Name, sum.DataPoints[0].Value)
		}
	}
	// Output:
	// idempotency.run
	// place order
	// idempotency.replay, linked to the run: true
	// place order
	// idempotency.active_operations 0
	// idempotency.claims 1
	// idempotency.outcomes 1
	// idempotency.replays 1
}
