package promidempotent_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/telemetry"
	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/promidempotent"
	"github.com/idempotent-go/idempotent/storetest"
)

// series reads what a collector shows: counters and gauges by name and labels,
// of histograms the number and the sum.
func series(t *testing.T, collectors ...prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collectors...)
	families, err := registry.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			name := family.GetName()
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			switch {
			case m.GetCounter() != nil:
				values[name] = m.GetCounter().GetValue()
			case m.GetGauge() != nil:
				values[name] = m.GetGauge().GetValue()
			case m.GetHistogram() != nil:
				values[name+" count"] = float64(m.GetHistogram().GetSampleCount())
				values[name+" sum"] = m.GetHistogram().GetSampleSum()
			}
		}
	}
	return values
}

// changed returns the series that are not zero.
func changed(values map[string]float64) map[string]float64 {
	left := map[string]float64{}
	for name, v := range values {
		if v != 0 {
			left[name] = v
		}
	}
	return left
}

// Every kind of event changes these series from zero, and no others. A kind
// without a row fails.
func TestEveryKindIsCounted(t *testing.T) {
	refused := &idempotent.StoreError{Op: "claim", Err: context.DeadlineExceeded}
	want := map[idempotent.EventKind]struct {
		event  idempotent.Event
		series map[string]float64
	}{
		idempotent.EventClaimed: {
			idempotent.Event{Status: idempotent.Pending},
			map[string]float64{"idempotent_claims_total": 1, "idempotent_operations_in_flight": 1},
		},
		idempotent.EventTakenOver: {
			idempotent.Event{Status: idempotent.Pending, Age: time.Minute},
			map[string]float64{"idempotent_take_overs_total": 1, "idempotent_operations_in_flight": 1},
		},
		idempotent.EventCompleted: {
			idempotent.Event{Status: idempotent.Failed, Unknown: true, Took: 2 * time.Second},
			map[string]float64{
				"idempotent_outcomes_total{outcome=unknown}": 1, "idempotent_operations_in_flight": -1,
				"idempotent_operation_duration_seconds count": 1, "idempotent_operation_duration_seconds sum": 2,
			},
		},
		idempotent.EventReleased: {
			idempotent.Event{Took: time.Second},
			map[string]float64{
				"idempotent_outcomes_total{outcome=release}": 1, "idempotent_operations_in_flight": -1,
				"idempotent_operation_duration_seconds count": 1, "idempotent_operation_duration_seconds sum": 1,
			},
		},
		idempotent.EventNotRecorded: {
			idempotent.Event{Status: idempotent.Success, Took: time.Second, Err: refused},
			map[string]float64{
				"idempotent_not_recorded_total": 1, "idempotent_operations_in_flight": -1,
				"idempotent_operation_duration_seconds count": 1, "idempotent_operation_duration_seconds sum": 1,
			},
		},
		idempotent.EventReplayed:    {idempotent.Event{Status: idempotent.Success}, map[string]float64{"idempotent_replays_total{outcome=success}": 1}},
		idempotent.EventInFlight:    {idempotent.Event{Status: idempotent.Pending}, map[string]float64{"idempotent_in_flight_refusals_total": 1}},
		idempotent.EventWaited:      {idempotent.Event{Took: 3 * time.Second}, map[string]float64{"idempotent_wait_duration_seconds count": 1, "idempotent_wait_duration_seconds sum": 3}},
		idempotent.EventKeyReused:   {idempotent.Event{Status: idempotent.Success}, map[string]float64{"idempotent_key_reuses_total": 1}},
		idempotent.EventAbandoned:   {idempotent.Event{Status: idempotent.Failed, Unknown: true}, map[string]float64{"idempotent_abandoned_total": 1}},
		idempotent.EventResolved:    {idempotent.Event{Status: idempotent.Failed}, map[string]float64{"idempotent_resolutions_total{outcome=failure}": 1}},
		idempotent.EventLost:        {idempotent.Event{Err: idempotent.ErrLost}, map[string]float64{"idempotent_lost_total": 1}},
		idempotent.EventLongRunning: {idempotent.Event{Age: time.Hour}, map[string]float64{"idempotent_long_running_total": 1}},
		idempotent.EventStoreError:  {idempotent.Event{Err: refused}, map[string]float64{"idempotent_store_errors_total{error=timeout,step=claim}": 1}},
		idempotent.EventEvicted:     {idempotent.Event{Status: idempotent.Success}, map[string]float64{"idempotent_early_evictions_total": 1}},
		idempotent.EventUnkeyed:     {idempotent.Event{}, map[string]float64{"idempotent_unkeyed_total": 1}},
	}
	manual, err := os.ReadFile("../doc.go")
	require.NoError(t, err)
	for _, kind := range telemetry.Kinds {
		t.Run(string(kind), func(t *testing.T) {
			row, ok := want[kind]
			require.True(t, ok, "nothing counts this kind")
			c := promidempotent.New()
			require.Empty(t, changed(series(t, c)))
			row.event.Kind = kind
			c.Observe(t.Context(), row.event)
			require.Equal(t, row.series, changed(series(t, c)))

			// The manual of the library names one of them.
			m := regexp.MustCompile(`\s` + string(kind) + `\s+(idempotent_[a-z_]+)\n`).FindStringSubmatch(string(manual))
			require.NotNil(t, m)
			named := false
			for name := range row.series {
				named = named || strings.HasPrefix(name, m[1])
			}
			require.True(t, named, "doc.go says %s", m[1])
		})
	}
}

// Each outcome and each error of a store has its own series, there from the
// start.
func TestSeriesAreThereFromTheStart(t *testing.T) {
	values := series(t, promidempotent.New())
	for _, class := range telemetry.Outcomes {
		require.Contains(t, values, "idempotent_outcomes_total{outcome="+class.String()+"}")
	}
	for _, step := range telemetry.Steps {
		for _, kind := range telemetry.Errors {
			require.Contains(t, values, "idempotent_store_errors_total{error="+kind+",step="+step+"}")
		}
	}
}

func TestNamesFollowTheConventions(t *testing.T) {
	for _, c := range []prometheus.Collector{
		promidempotent.New(),
		promidempotent.NewStoreCollector(func() promidempotent.StoreStats { return promidempotent.StoreStats{} }),
	} {
		problems, err := testutil.CollectAndLint(c)
		require.NoError(t, err)
		require.Empty(t, problems)
	}
}

// What a guard does is what is counted, and after everything has ended nothing
// is in flight.
func TestGuardIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics := promidempotent.New()
		quiet := slog.New(slog.DiscardHandler)
		memory := memstore.New(memstore.WithLogger(quiet), memstore.WithObserver(metrics))
		defer func() { require.NoError(t, memory.Close()) }()
		store := storetest.NewFaulty(memory)
		guard := idempotent.New(store, idempotent.WithLogger(quiet), idempotent.WithObserver(metrics), idempotent.WithLease(time.Minute))
		held := promidempotent.NewStoreCollector(func() promidempotent.StoreStats {
			s := memory.Stats()
			return promidempotent.StoreStats{Entries: s.Entries, Pending: s.Pending, Bytes: s.Bytes}
		})
		run := func(key string, class idempotent.Class, opts ...idempotent.CallOption) {
			_, _, _ = guard.Run(t.Context(), key, func(context.Context) (idempotent.Class, string) {
				time.Sleep(2 * time.Second)
				return class, "result"
			}, opts...)
		}

		run("one", idempotent.ClassSuccess)
		run("one", idempotent.ClassSuccess)
		run("one", idempotent.ClassSuccess, idempotent.WithCallFingerprint("other"))
		run("two", idempotent.ClassUnknown)
		run("three", idempotent.ClassRelease)

		// A duplicate is refused, another one waits.
		go run("four", idempotent.ClassFailure)
		synctest.Wait()
		require.Equal(t, 1.0, series(t, metrics)["idempotent_operations_in_flight"])
		require.Equal(t, 1.0, series(t, held)["idempotent_store_entries{state=pending}"])
		run("four", idempotent.ClassFailure)
		run("four", idempotent.ClassFailure, idempotent.WithCallWait(time.Minute))

		// Outcomes that nobody records, and a store that is away and full.
		store.Before(storetest.OpComplete, func(context.Context, string) error { return errors.New("away") })
		run("five", idempotent.ClassSuccess)
		require.Equal(t, 1.0, series(t, metrics)["idempotent_operations_in_flight"], "its outcome is still being recorded")
		time.Sleep(2 * time.Minute)
		store.Before(storetest.OpComplete, nil)
		run("five", idempotent.ClassSuccess) // abandoned
		store.Before(storetest.OpClaim, func(context.Context, string) error { return idempotent.ErrFull })
		run("six", idempotent.ClassSuccess)
		store.Before(storetest.OpClaim, nil)
		require.NoError(t, guard.Drain(t.Context()))

		got := changed(series(t, metrics, held))
		require.Positive(t, got["idempotent_store_errors_total{error=other,step=complete}"])
		delete(got, "idempotent_store_errors_total{error=other,step=complete}") // as often as there was time for
		require.GreaterOrEqual(t, got["idempotent_abandoned_total"], 1.0, "by the call, and by a sweep that came first")
		delete(got, "idempotent_abandoned_total")
		require.Positive(t, got["idempotent_store_bytes"])
		delete(got, "idempotent_store_bytes")
		require.Equal(t, map[string]float64{
			"idempotent_claims_total":                              5,
			"idempotent_outcomes_total{outcome=success}":           1,
			"idempotent_outcomes_total{outcome=failure}":           1,
			"idempotent_outcomes_total{outcome=unknown}":           1,
			"idempotent_outcomes_total{outcome=release}":           1,
			"idempotent_not_recorded_total":                        1,
			"idempotent_operation_duration_seconds count":          5,
			"idempotent_operation_duration_seconds sum":            10,
			"idempotent_replays_total{outcome=success}":            1,
			"idempotent_replays_total{outcome=failure}":            1,
			"idempotent_in_flight_refusals_total":                  1,
			"idempotent_wait_duration_seconds count":               1,
			"idempotent_wait_duration_seconds sum":                 2,
			"idempotent_key_reuses_total":                          1,
			"idempotent_store_errors_total{error=full,step=claim}": 1,
			"idempotent_store_entries{state=pending}":              1, // the abandoned one
			"idempotent_store_entries{state=finished}":             3,
		}, got)
	})
}

// An event costs no allocation once the collector is made.
func TestObserveAllocatesNothing(t *testing.T) {
	c := promidempotent.New()
	refused := &idempotent.StoreError{Op: "claim", Err: errors.New("away")}
	for _, kind := range telemetry.Kinds {
		e := idempotent.Event{Kind: kind, Key: "key", Owner: "owner", Status: idempotent.Success, Took: time.Millisecond, Err: refused}
		require.Zero(t, testing.AllocsPerRun(100, func() { c.Observe(t.Context(), e) }), "%s", kind)
	}
}

func TestStoreCollectorNeedsAFunction(t *testing.T) {
	require.Panics(t, func() { promidempotent.NewStoreCollector(nil) })
}

func BenchmarkObserve(b *testing.B) {
	c := promidempotent.New()
	ctx := b.Context()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			c.Observe(ctx, idempotent.Event{Kind: idempotent.EventClaimed, Key: "key", Owner: "owner"})
			c.Observe(ctx, idempotent.Event{Kind: idempotent.EventCompleted, Key: "key", Owner: "owner", Status: idempotent.Success, Took: time.Millisecond})
		}
	})
}
