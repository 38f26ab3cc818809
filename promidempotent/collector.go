package promidempotent

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/telemetry"
)

var (
	_ prometheus.Collector = (*Collector)(nil)
	_ idempotent.Observer  = (*Collector)(nil)
)

// operationBuckets reach from what an index takes to what a person waits for,
// and on to jobs; in seconds.
var operationBuckets = []float64{0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800}

// Collector is the [idempotent.Observer] that counts, and the
// [prometheus.Collector] that shows what it has counted. It is made by [New]
// and safe for concurrent use.
type Collector struct {
	parts []prometheus.Collector // all of the fields below

	claims     prometheus.Counter
	takeOvers  prometheus.Counter
	inFlight   prometheus.Gauge
	operations prometheus.Histogram
	outcomes   map[idempotent.Class]prometheus.Counter

	notRecorded prometheus.Counter
	lost        prometheus.Counter
	longRunning prometheus.Counter

	replays         map[idempotent.Class]prometheus.Counter
	inFlightRefused prometheus.Counter
	waits           prometheus.Histogram
	keyReuses       prometheus.Counter
	abandoned       prometheus.Counter
	resolutions     map[idempotent.Class]prometheus.Counter

	storeErrors map[storeError]prometheus.Counter
	evictions   prometheus.Counter
	unkeyed     prometheus.Counter
}

type storeError struct{ step, kind string }

// New returns a collector that has counted nothing. Give it to guards by
// [idempotent.WithObserver], to stores that sweep by their own option, and to
// one [prometheus.Registerer].
func New() *Collector {
	c := &Collector{}
	c.claims = c.counter("idempotent_claims_total", "Keys claimed; their operations ran.")
	c.takeOvers = c.counter("idempotent_take_overs_total", "Operations run again after the lease of an earlier claim had lapsed.")
	c.inFlight = add(c, prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "idempotent_operations_in_flight", Help: "Operations that run, or whose outcome is being recorded.",
	}))
	c.operations = c.histogram("idempotent_operation_duration_seconds", "Time of operations, without the bookkeeping.")
	c.outcomes = c.byOutcome("idempotent_outcomes_total", "Outcomes recorded, and keys freed because nothing happened (release).")
	c.notRecorded = c.counter("idempotent_not_recorded_total", "Operations whose outcome could not be recorded and never will be.")
	c.lost = c.counter("idempotent_lost_total", "Executions that learnt that their claim is gone.")
	c.longRunning = c.counter("idempotent_long_running_total", "Operations seen running for ten leases, and for ten more.")
	c.replays = c.byOutcome("idempotent_replays_total", "Calls answered from the record.")
	c.inFlightRefused = c.counter("idempotent_in_flight_refusals_total", "Duplicates refused while the operation ran.")
	c.waits = c.histogram("idempotent_wait_duration_seconds", "Time that duplicates waited for an outcome.")
	c.keyReuses = c.counter("idempotent_key_reuses_total", "Calls refused because their key was used before for another request.")
	c.abandoned = c.counter("idempotent_abandoned_total", "Abandoned claims, each time one was met by a call or a sweep.")
	c.resolutions = c.byOutcome("idempotent_resolutions_total", "Unknown outcomes settled by hand.")
	c.storeErrors = c.byStoreError("idempotent_store_errors_total", "Steps that the store failed or refused.")
	c.evictions = c.counter("idempotent_early_evictions_total", "Finished entries that a store forgot before their time.")
	c.unkeyed = c.counter("idempotent_unkeyed_total", "Requests without a key that ran unprotected, as an option allows.")
	return c
}

// Observe counts e. It allocates nothing and does not block.
func (c *Collector) Observe(_ context.Context, e idempotent.Event) {
	switch e.Kind {
	case idempotent.EventClaimed:
		c.claims.Inc()
		c.inFlight.Inc()
	case idempotent.EventTakenOver:
		c.takeOvers.Inc()
		c.inFlight.Inc()
	case idempotent.EventCompleted, idempotent.EventReleased:
		c.outcomes[telemetry.Outcome(e)].Inc()
		c.ended(e)
	case idempotent.EventNotRecorded:
		c.notRecorded.Inc()
		c.ended(e)
	case idempotent.EventLost:
		c.lost.Inc()
	case idempotent.EventLongRunning:
		c.longRunning.Inc()
	case idempotent.EventReplayed:
		c.replays[telemetry.Outcome(e)].Inc()
	case idempotent.EventInFlight:
		c.inFlightRefused.Inc()
	case idempotent.EventWaited:
		c.waits.Observe(e.Took.Seconds())
	case idempotent.EventKeyReused:
		c.keyReuses.Inc()
	case idempotent.EventAbandoned:
		c.abandoned.Inc()
	case idempotent.EventResolved:
		c.resolutions[telemetry.Outcome(e)].Inc()
	case idempotent.EventStoreError:
		c.storeErrors[storeError{telemetry.Step(e.Err), telemetry.Error(e.Err)}].Inc()
	case idempotent.EventEvicted:
		c.evictions.Inc()
	case idempotent.EventUnkeyed:
		c.unkeyed.Inc()
	}
}

// ended counts the one event that ends an execution.
func (c *Collector) ended(e idempotent.Event) {
	c.inFlight.Dec()
	c.operations.Observe(e.Took.Seconds())
}

// Describe tells a registry what there is.
func (c *Collector) Describe(descriptions chan<- *prometheus.Desc) {
	for _, part := range c.parts {
		part.Describe(descriptions)
	}
}

// Collect tells a registry what has been counted.
func (c *Collector) Collect(metrics chan<- prometheus.Metric) {
	for _, part := range c.parts {
		part.Collect(metrics)
	}
}

func add[T prometheus.Collector](c *Collector, part T) T {
	c.parts = append(c.parts, part)
	return part
}

func (c *Collector) counter(name, help string) prometheus.Counter {
	return add(c, prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help}))
}

func (c *Collector) histogram(name, help string) prometheus.Histogram {
	return add(c, prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: operationBuckets}))
}

func (c *Collector) byOutcome(name, help string) map[idempotent.Class]prometheus.Counter {
	all := add(c, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"outcome"}))
	counters := map[idempotent.Class]prometheus.Counter{}
	for _, class := range telemetry.Outcomes {
		counters[class] = all.WithLabelValues(class.String())
	}
	return counters
}

func (c *Collector) byStoreError(name, help string) map[storeError]prometheus.Counter {
	all := add(c, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"step", "error"}))
	counters := map[storeError]prometheus.Counter{}
	for _, step := range telemetry.Steps {
		for _, kind := range telemetry.Errors {
			counters[storeError{step, kind}] = all.WithLabelValues(step, kind)
		}
	}
	return counters
}
