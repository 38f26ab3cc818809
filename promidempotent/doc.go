// Package promidempotent counts what idempotent guards do, for Prometheus. It is
// a module of its own, so that the library stays light.
//
//	metrics := promidempotent.New()
//	memory := memstore.New(memstore.WithObserver(metrics))
//	guard := idempotent.New(memory, idempotent.WithObserver(metrics))
//	prometheus.MustRegister(metrics, promidempotent.NewStoreCollector(func() promidempotent.StoreStats {
//		s := memory.Stats()
//		return promidempotent.StoreStats{Entries: s.Entries, Pending: s.Pending, Bytes: s.Bytes}
//	}))
//
// A program with several guards gives each a [Collector], registered under a
// label of its own: prometheus.WrapRegistererWith.
//
// # Metrics
//
// No label names a key, a principal or an execution. Every series is there from
// the start, at zero, so that the first of something is an increase.
//
//	idempotent_claims_total                    keys claimed; their operations ran
//	idempotent_take_overs_total                operations run again after a lease had lapsed
//	idempotent_operations_in_flight            operations that run, or whose outcome is being recorded
//	idempotent_operation_duration_seconds      of operations, without the bookkeeping
//	idempotent_outcomes_total{outcome}         outcomes recorded: success, failure, unknown; release: keys freed
//	idempotent_not_recorded_total              operations whose outcome will never be recorded
//	idempotent_lost_total                      executions that learnt that their claim is gone
//	idempotent_long_running_total              operations seen running for ten leases, and for ten more
//	idempotent_replays_total{outcome}          calls answered from the record
//	idempotent_in_flight_refusals_total        duplicates refused while the operation ran
//	idempotent_wait_duration_seconds           waits of duplicates for an outcome
//	idempotent_key_reuses_total                keys used for another request
//	idempotent_abandoned_total                 abandoned claims, each time one was met by a call or a sweep
//	idempotent_resolutions_total{outcome}      unknown outcomes settled by hand
//	idempotent_store_errors_total{step,error}  steps that the store failed or refused
//	idempotent_early_evictions_total           finished entries that a store forgot before their time
//	idempotent_unkeyed_total                   requests without a key that ran unprotected
//	idempotent_store_entries{state}            entries held by a store: pending, finished
//	idempotent_store_bytes                     bytes of these, without the store's own overhead
//
// A step is load, claim, renew, complete, release, wait, replay (a record does
// not decode) or other; an error is timeout, unreachable, full, corrupt,
// newer-format, closed or other (the log has the text).
//
// Two files beside the library use them: docs/grafana.json is a dashboard,
// docs/alerts.yml has rules that say what to do.
//
// # Cost
//
// An event costs no allocation, and one or two atomic additions.
package promidempotent
