package otelidempotent

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/telemetry"
)

// The names of the attributes of metrics.
const (
	attrOutcome    = attribute.Key("idempotency.outcome")
	attrStep       = attribute.Key("idempotency.store.step")
	attrErrorType  = attribute.Key("error.type")
	attrEntryState = attribute.Key("idempotency.entry.state")
)

// durationBuckets reach from what an index takes to what a person waits for,
// and on to jobs; in seconds. A view of the SDK may change them.
var durationBuckets = []float64{0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800}

// attributes are what a measurement is told apart by, made once: a new set for
// each would be several allocations.
type attributes = []metric.AddOption

type metrics struct {
	claims           metric.Int64Counter
	takeOvers        metric.Int64Counter
	activeOperations metric.Int64UpDownCounter
	operations       metric.Float64Histogram
	outcomes         metric.Int64Counter

	notRecorded metric.Int64Counter
	lost        metric.Int64Counter
	longRunning metric.Int64Counter

	replays         metric.Int64Counter
	inFlightRefused metric.Int64Counter
	waits           metric.Float64Histogram
	keyReuses       metric.Int64Counter
	abandoned       metric.Int64Counter
	resolutions     metric.Int64Counter

	storeErrors metric.Int64Counter
	evictions   metric.Int64Counter
	unkeyed     metric.Int64Counter

	byOutcome    map[idempotent.Class]attributes
	byStoreError map[storeError]attributes
}

type storeError struct{ step, kind string }

func newMetrics(meter metric.Meter) (metrics, error) {
	var failed []error
	counter := func(name, unit, text string) metric.Int64Counter {
		c, err := meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(text))
		failed = append(failed, err)
		return c
	}
	histogram := func(name, text string) metric.Float64Histogram {
		h, err := meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(text), metric.WithExplicitBucketBoundaries(durationBuckets...))
		failed = append(failed, err)
		return h
	}
	active, err := meter.Int64UpDownCounter("idempotency.active_operations", metric.WithUnit("{operation}"),
		metric.WithDescription("Operations that run, or whose outcome is being recorded."))
	failed = append(failed, err)
	m := metrics{
		claims:           counter("idempotency.claims", "{claim}", "Keys claimed; their operations ran."),
		takeOvers:        counter("idempotency.take_overs", "{claim}", "Operations run again after the lease of an earlier claim had lapsed."),
		activeOperations: active,
		operations:       histogram("idempotency.operation.duration", "Time of operations, without the bookkeeping."),
		outcomes:         counter("idempotency.outcomes", "{operation}", "Outcomes recorded, and keys freed because nothing happened (release)."),
		notRecorded:      counter("idempotency.not_recorded", "{operation}", "Operations whose outcome could not be recorded and never will be."),
		lost:             counter("idempotency.lost", "{claim}", "Executions that learnt that their claim is gone."),
		longRunning:      counter("idempotency.long_running", "{operation}", "Operations seen running for ten leases, and for ten more."),
		replays:          counter("idempotency.replays", "{call}", "Calls answered from the record."),
		inFlightRefused:  counter("idempotency.in_flight_refusals", "{call}", "Duplicates refused while the operation ran."),
		waits:            histogram("idempotency.wait.duration", "Time that duplicates waited for an outcome."),
		keyReuses:        counter("idempotency.key_reuses", "{call}", "Calls refused because their key was used before for another request."),
		abandoned:        counter("idempotency.abandoned", "{claim}", "Abandoned claims, each time one was met by a call or a sweep."),
		resolutions:      counter("idempotency.resolutions", "{entry}", "Unknown outcomes settled by hand."),
		storeErrors:      counter("idempotency.store.errors", "{error}", "Steps that the store failed or refused."),
		evictions:        counter("idempotency.store.early_evictions", "{entry}", "Finished entries that a store forgot before their time."),
		unkeyed:          counter("idempotency.unkeyed", "{request}", "Requests without a key that ran unprotected, as an option allows."),
		byOutcome:        map[idempotent.Class]attributes{},
		byStoreError:     map[storeError]attributes{},
	}
	for _, class := range telemetry.Outcomes {
		m.byOutcome[class] = attributesOf(attrOutcome.String(class.String()))
	}
	for _, step := range telemetry.Steps {
		for _, kind := range telemetry.Errors {
			m.byStoreError[storeError{step, kind}] = attributesOf(attrStep.String(step), attrErrorType.String(kind))
		}
	}
	return m, errors.Join(failed...)
}

func attributesOf(kv ...attribute.KeyValue) attributes {
	return attributes{metric.WithAttributeSet(attribute.NewSet(kv...))}
}

func (m *metrics) count(ctx context.Context, e idempotent.Event) {
	switch e.Kind {
	case idempotent.EventClaimed:
		m.claims.Add(ctx, 1)
		m.activeOperations.Add(ctx, 1)
	case idempotent.EventTakenOver:
		m.takeOvers.Add(ctx, 1)
		m.activeOperations.Add(ctx, 1)
	case idempotent.EventCompleted, idempotent.EventReleased:
		m.outcomes.Add(ctx, 1, m.byOutcome[telemetry.Outcome(e)]...)
		m.ended(ctx, e)
	case idempotent.EventNotRecorded:
		m.notRecorded.Add(ctx, 1)
		m.ended(ctx, e)
	case idempotent.EventLost:
		m.lost.Add(ctx, 1)
	case idempotent.EventLongRunning:
		m.longRunning.Add(ctx, 1)
	case idempotent.EventReplayed:
		m.replays.Add(ctx, 1, m.byOutcome[telemetry.Outcome(e)]...)
	case idempotent.EventInFlight:
		m.inFlightRefused.Add(ctx, 1)
	case idempotent.EventWaited:
		m.waits.Record(ctx, e.Took.Seconds())
	case idempotent.EventKeyReused:
		m.keyReuses.Add(ctx, 1)
	case idempotent.EventAbandoned:
		m.abandoned.Add(ctx, 1)
	case idempotent.EventResolved:
		m.resolutions.Add(ctx, 1, m.byOutcome[telemetry.Outcome(e)]...)
	case idempotent.EventStoreError:
		m.storeErrors.Add(ctx, 1, m.byStoreError[storeError{telemetry.Step(e.Err), telemetry.Error(e.Err)}]...)
	case idempotent.EventEvicted:
		m.evictions.Add(ctx, 1)
	case idempotent.EventUnkeyed:
		m.unkeyed.Add(ctx, 1)
	}
}

// ended counts the one event that ends an execution.
func (m *metrics) ended(ctx context.Context, e idempotent.Event) {
	m.activeOperations.Add(ctx, -1)
	m.operations.Record(ctx, e.Took.Seconds())
}
