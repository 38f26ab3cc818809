// Package otelidempotent makes traces and metrics of what idempotent guards do,
// for OpenTelemetry. It is a module of its own, so that the library stays light,
// and uses the API alone: the program chooses SDK and exporter.
//
//	telemetry, err := otelidempotent.New()
//	guard := idempotent.New(store, idempotent.WithObserver(telemetry))
//	orders := guard.Middleware(principal, idempotent.WithTrace(otelidempotent.Trace))(createOrder)
//
// # Traces
//
// Each run of an operation has a span, idempotency.run, from the claim to the
// end of the operation, as a child of the span that the call has in its
// context. What the operation itself traces lies beside it under the same
// parent: an observer cannot change the context of an operation. A lost claim
// and a long run are events of the span; an outcome that is unknown, or not
// recorded, is its error.
//
// Each call that is answered without a run has a span without length,
// idempotency.replay or idempotency.refusal (in-flight, key-reused, abandoned),
// which links to the call that the run behind the entry belongs to: to the
// parent of its idempotency.run. A call without a trace has none. The link is
// made of the correlation id that is recorded with a claim, so this must be a
// W3C traceparent: of [Trace] with idempotent.WithTrace, of [Traceparent] with
// idempotent.WithCallTrace. The default of the middleware takes X-Request-Id
// first; such an id is shown as the attribute idempotency.owner_trace instead.
// grpcguard.WithTraceMetadata("traceparent") links to the caller's span.
//
// Attributes of spans:
//
//	idempotency.key          idempotent.LogKey of the store name, as in log lines
//	idempotency.owner        the execution
//	idempotency.outcome      success, failure, unknown, release
//	idempotency.taken_over   true: the operation is run again after a lease has lapsed
//	idempotency.answer       of a refusal: in-flight, key-reused, abandoned
//	idempotency.owner_trace  correlation id of the run behind an answer, where it is no traceparent
//	error.type               of an outcome that is not recorded: as for idempotency.store.errors, or lost
//
// A step that the store fails is an event, idempotency.store_error, of the span
// in the context of the call.
//
// # Metrics
//
// No attribute of a metric names a key, a principal or an execution.
//
//	idempotency.claims                 {claim}      keys claimed; their operations ran
//	idempotency.take_overs             {claim}      operations run again after a lease had lapsed
//	idempotency.active_operations      {operation}  operations that run, or whose outcome is being recorded
//	idempotency.operation.duration     s            of operations, without the bookkeeping
//	idempotency.outcomes               {operation}  outcomes recorded, by idempotency.outcome; release: keys freed
//	idempotency.not_recorded           {operation}  operations whose outcome will never be recorded
//	idempotency.lost                   {claim}      executions that learnt that their claim is gone
//	idempotency.long_running           {operation}  operations seen running for ten leases, and for ten more
//	idempotency.replays                {call}       calls answered from the record, by idempotency.outcome
//	idempotency.in_flight_refusals     {call}       duplicates refused while the operation ran
//	idempotency.wait.duration          s            waits of duplicates for an outcome
//	idempotency.key_reuses             {call}       keys used for another request
//	idempotency.abandoned              {claim}      abandoned claims, each time one was met by a call or a sweep
//	idempotency.resolutions            {entry}      unknown outcomes settled by hand, by idempotency.outcome
//	idempotency.store.errors           {error}      steps that the store failed or refused, by idempotency.store.step and error.type
//	idempotency.store.early_evictions  {entry}      finished entries that a store forgot before their time
//	idempotency.unkeyed                {request}    requests without a key that ran unprotected
//	idempotency.store.entries          {entry}      entries held by a store, by idempotency.entry.state: pending, finished
//	idempotency.store.size             By           bytes of these, without the store's own overhead
//
// idempotency.store.step is load, claim, renew, complete, release, wait, replay
// (a record does not decode) or other; error.type is timeout, unreachable,
// full, corrupt, newer-format, closed or other. The last two instruments are
// those of [Observer.ObserveStore].
//
// # Cost
//
// Measuring allocates nothing. With the SDK, a run whose span is recorded costs
// about 14 allocations and 1.3 kB in all, one whose span is not sampled 4, and
// 3 without a tracer; a replay with its link 18.
package otelidempotent
