package otelidempotent

import (
	"context"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/idempotent-go/idempotent"
)

// scope names this module to providers.
const scope = "github.com/idempotent-go/idempotent/otelidempotent"

var _ idempotent.Observer = (*Observer)(nil)

// Observer is the [idempotent.Observer] that traces and counts. It is made by
// [New] and safe for concurrent use.
type Observer struct {
	tracer  trace.Tracer
	runs    sync.Map // owner to run: the executions whose span is recorded
	meter   metric.Meter
	metrics metrics
}

// Option changes a setting of an [Observer]. The zero Option changes nothing.
type Option struct{ apply func(*config) }

type config struct {
	tracers trace.TracerProvider
	meters  metric.MeterProvider
}

// WithTracerProvider sets where spans go; otel.GetTracerProvider by default, and
// for nil. One of package trace/noop turns traces off.
func WithTracerProvider(p trace.TracerProvider) Option {
	return Option{func(c *config) { c.tracers = p }}
}

// WithMeterProvider sets where measurements go; otel.GetMeterProvider by
// default, and for nil. One of package metric/noop turns metrics off.
func WithMeterProvider(p metric.MeterProvider) Option {
	return Option{func(c *config) { c.meters = p }}
}

// New returns an observer for [idempotent.WithObserver], and for the options
// of stores that sweep. The error is that of a meter that makes no instrument.
func New(opts ...Option) (*Observer, error) {
	var c config
	for _, o := range opts {
		if o.apply != nil {
			o.apply(&c)
		}
	}
	if c.tracers == nil {
		c.tracers = otel.GetTracerProvider()
	}
	if c.meters == nil {
		c.meters = otel.GetMeterProvider()
	}
	o := &Observer{tracer: c.tracers.Tracer(scope), meter: c.meters.Meter(scope)}
	var err error
	o.metrics, err = newMetrics(o.meter)
	if err != nil {
		return nil, err
	}
	return o, nil
}

// Observe measures e and traces it. It does not block, unless the providers do.
func (o *Observer) Observe(ctx context.Context, e idempotent.Event) {
	o.metrics.count(ctx, e)
	o.trace(ctx, e)
}
