package otelidempotent_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/idempotent-go/idempotent/otelidempotent"
)

// bench is an observer over an SDK that keeps everything.
type bench struct {
	*otelidempotent.Observer
	tracers *sdktrace.TracerProvider
	spans   *tracetest.SpanRecorder
	reader  *sdkmetric.ManualReader
}

func newBench(t testing.TB, opts ...sdktrace.TracerProviderOption) *bench {
	t.Helper()
	b := &bench{spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader()}
	b.tracers = sdktrace.NewTracerProvider(append(opts, sdktrace.WithSpanProcessor(b.spans))...)
	var err error
	b.Observer, err = otelidempotent.New(
		otelidempotent.WithTracerProvider(b.tracers),
		otelidempotent.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(b.reader))),
	)
	require.NoError(t, err)
	return b
}

// collect returns what was measured, by instrument.
func (b *bench) collect(t testing.TB) map[string]metricdata.Metrics {
	t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(t, b.reader.Collect(t.Context(), &all))
	found := map[string]metricdata.Metrics{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			found[m.Name] = m
		}
	}
	return found
}

// values returns sums by instrument and attributes; of histograms the number
// and the sum.
func (b *bench) values(t testing.TB) map[string]float64 {
	t.Helper()
	values := map[string]float64{}
	for name, m := range b.collect(t) {
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				values[name+labels(p.Attributes)] = float64(p.Value)
			}
		case metricdata.Histogram[float64]:
			for _, p := range data.DataPoints {
				values[name+labels(p.Attributes)+" count"] = float64(p.Count)
				values[name+labels(p.Attributes)+" sum"] = p.Sum
			}
		default:
			t.Fatalf("%s is a %T", name, data)
		}
	}
	return values
}

func labels(set attribute.Set) string {
	var found []string
	for _, kv := range set.ToSlice() {
		found = append(found, string(kv.Key)+"="+kv.Value.String())
	}
	if found == nil {
		return ""
	}
	return "{" + strings.Join(found, ",") + "}"
}

// span returns the one ended span of a name.
func (b *bench) span(t testing.TB, name string) sdktrace.ReadOnlySpan {
	t.Helper()
	var found []sdktrace.ReadOnlySpan
	for _, s := range b.spans.Ended() {
		if s.Name() == name {
			found = append(found, s)
		}
	}
	require.Len(t, found, 1, name)
	return found[0]
}

func attributesOf(s sdktrace.ReadOnlySpan) map[string]string {
	found := map[string]string{}
	for _, kv := range s.Attributes() {
		found[string(kv.Key)] = kv.Value.String()
	}
	return found
}
