// Package idempotent runs an operation at most once per key: a payment, an
// order, a webhook, a job.
//
// # The promise
//
// For one key, the protected operation runs at most once. Every repeat inside
// the retention gets the recorded outcome, or a clear refusal that says
// whether trying again is safe. When in doubt, refuse; never run twice.
//
// Its limits:
//
//   - A memory store serves one process only, forgets on restart, and above its
//     size forgets the oldest: real retention is the smaller of 24 h and
//     10,000 divided by the keyed requests per second.
//   - A Redis failover can lose the newest writes, and with them a claim.
//     Writes are asynchronous to replicas unless redisstore.WithReplicas is set.
//   - What the operation does to other systems is not atomic with the record.
//     The last line of defence is a unique index in the transaction of the
//     operation itself.
//   - With [WithTakeOver] an operation may run again, callers may get different
//     answers, and an unknown reading may become another owner's outcome.
//     [Delete] is a take-over by hand.
//
// # Use
//
// A [Store] keeps one [Entry] per key: memstore.New() in the process,
// redisstore.New(client) in Redis. A [Guard] runs operations over it, by
// [Guard.Middleware] for HTTP handlers, [Do] for functions that return a value,
// [Guard.Do] for those that do not, and [Guard.Run] for everything else:
//
//	guard := idempotent.New(memstore.New())
//	mux.Handle("POST /orders", guard.Middleware(principal)(http.HandlerFunc(createOrder)))
//
// At the end of the process, in this order: http.Server.Shutdown,
// [Guard.Drain], the store's Close, the client's Close.
//
// # The life of a key
//
// A key is pending, success or failed. A pending one is held by an owner, one
// execution, under a lease that the guard renews while the operation runs. A
// claim whose lease has lapsed is abandoned: it reads as failed with an unknown
// outcome, and is not run again. The table is the contract of every store; the
// first row that fits applies.
//
//	now                            event                               becomes                              answer
//	absent, or past its retention  Claim                               pending, held by this owner          claimed
//	pending, even lapsed           Claim, same owner                   lease runs from now                  claimed
//	pending, lease running         Claim, other owner                  unchanged                            the entry
//	pending, lapsed, with TakeOver Claim with TakeOver, same           pending, new owner, larger fence     claimed
//	                               fingerprint
//	pending, lapsed                Load, or any other Claim            unchanged; reads as failed and       that reading
//	                                                                   unknown until lapse + Keep
//	success or failed              Claim                               unchanged                            the entry
//	pending, even lapsed           Renew by its owner                  lease runs from now                  nil
//	pending, even lapsed           Complete by its owner               success or failed                    nil
//	failed and unknown             Complete by its owner, known        that outcome                         nil
//	failed and unknown             Release by its owner                absent                               nil
//	success or failed, known       Complete by its owner, another      unchanged                            ErrLost
//	                               known outcome
//	success or failed              Complete or Renew again by owner    unchanged                            nil
//	absent                         Complete                            success or failed                    nil
//	pending, gained by take-over   Release by its owner                lease ends now                       nil
//	pending, even lapsed           Release by its owner                absent                               nil
//	absent, or known and finished  Release by its owner                unchanged                            nil
//	absent                         Renew                               unchanged                            ErrLost
//	held or finished by another    Renew, Complete, Release            unchanged                            ErrLost
//
// Ownership ends by completion, release, take-over or removal, never by the
// clock alone: an owner who comes late still settles the truth while nobody
// else has run.
//
// # What becomes of an operation
//
//	class    what it says                   kept      repeats get
//	success  it happened                    24 h      the result
//	failure  it definitely did not happen   2 h       the refusal it answered with
//	unknown  it may have happened           24 h      ErrOutcomeUnknown; over HTTP the answer recorded
//	release  nothing happened               not       the next call runs
//
// The operation can say so itself, by [Succeed], [Fail], [Unknown] and
// [Release]. Otherwise [Do] looks at the error (nil is success; an error is
// unknown unless it wraps [ErrFailed] or [ErrReleased], or [WithCallClassify]
// knows it), and the middleware at the status:
//
//	2xx, 3xx                              success
//	401, 407, 421, 425, 429               release; unknown if the operation's context is done
//	503 with Retry-After                  release; unknown if the operation's context is done
//	408, other 5xx                        unknown
//	other 4xx                             failure
//	panic, Goexit, abort                  unknown: 500 operation-aborted, and the panic goes on
//	context done and nothing written      unknown: 409 outcome-unknown
//	fewer bytes than Content-Length said  unknown: 409 outcome-unknown
//	hijacked                              success, not replayable
//	longer than WithMaxResponse           as the status says, not replayable
//
// # Errors, codes, events and metrics
//
// One word per idea. A refusal over HTTP is a problem document (RFC 9457) whose
// code is the second column; a store is never written to by a refusal.
// Retryable means that the same key may be sent again.
//
//	error                   code, status             retryable  event          metric
//	-                       -                        -          claimed        idempotent_claims_total
//	-                       -                        -          completed      idempotent_outcomes_total
//	-                       -                        -          released       idempotent_outcomes_total
//	-                       -                        -          replayed       idempotent_replays_total
//	*InFlightError          in-flight 409            yes        in-flight      idempotent_in_flight_refusals_total
//	-                       -                        -          waited         idempotent_wait_duration_seconds
//	ErrKeyReused            key-reused 422           no         key-reused     idempotent_key_reuses_total
//	ErrOutcomeUnknown       outcome-unknown 409      no         abandoned      idempotent_abandoned_total
//	ErrResultUnavailable    result-unavailable 409   no         replayed       idempotent_replays_total
//	*FailedError            -                        no         replayed       idempotent_replays_total
//	ErrLost                 outcome-unknown 409      no         lost           idempotent_lost_total
//	-                       -                        -          not-recorded   idempotent_not_recorded_total
//	-                       -                        -          taken-over     idempotent_take_overs_total
//	-                       -                        -          resolved       idempotent_resolutions_total
//	-                       -                        -          long-running   idempotent_long_running_total
//	*StoreError             store-unavailable 503    yes        store-error    idempotent_store_errors_total
//	ErrClosed               store-unavailable 503    yes        store-error    idempotent_store_errors_total
//	ErrNewerFormat          store-unavailable 503    yes        store-error    idempotent_store_errors_total
//	ErrFull                 store-full 503           yes        store-error    idempotent_store_errors_total
//	ErrCorrupt              record-corrupt 500       no         store-error    idempotent_store_errors_total
//	ErrInvalid              internal 500             yes        -              -
//	-                       operation-aborted 500    no         replayed       idempotent_replays_total
//	ErrUnauthenticated      unauthenticated 401      yes        -              -
//	ErrKeyExpired           key-expired 412          no         -              -
//	-                       key-missing 400          no         -              -
//	-                       key-invalid 400          no         -              -
//	-                       body-unreadable 400      yes        -              -
//	-                       body-too-large 413       no         -              -
//	-                       internal 500             yes        -              -
//	-                       no-record 404            yes        -              -
//	-                       method-not-allowed 405   no         -              -
//	-                       -                        -          evicted        idempotent_early_evictions_total
//	-                       -                        -          unkeyed        idempotent_unkeyed_total
//
// The metrics are those of module promidempotent; otelidempotent has the same
// ones under the names of OpenTelemetry, and traces. Both are observers:
// [WithObserver].
//
// A new key is safe only after key-missing and key-invalid, and where the
// recorded outcome is a definite failure; the member new_key_safe says so.
//
// # Log lines
//
// A line about an event reads "idempotent: " and the name of the event. No line
// shows a principal, a client's key, a path or a body. The keys of its
// attributes are these, in every line of this package and of memstore:
//
//	key               LogKey of the store name
//	owner             the execution that holds or produced the entry
//	trace             correlation id of the call that tells this
//	owner_trace       correlation id of the call whose execution owner is
//	status            pending, success or failed
//	unknown           true: failed, and the operation may have happened
//	age               since the first claim of the key
//	took              of the operation, the wait or the store's step
//	err               what went wrong
//	for               how long the store has not answered
//	after             how long the store had not answered
//	failures          how many steps have failed in that time
//	evicted           entries forgotten before their time
//	evicted_in_all    the same since the store was made
//	age_of_youngest   since its completion, of the entries forgotten
//	claims            how many were found abandoned by one sweep
//	snapshot          the file of memstore.WithSnapshot
//	option            the setting of memstore to change
//
// # Order of middleware
//
// Outside in: recover, request id and trace, CORS, compression, rate limit,
// http.TimeoutHandler, authentication, idempotency, mux or handler. Refusals of
// the layers outside are then never recorded, replays are compressed for the
// client that asks, and a caller whose rights were revoked is refused before
// the record is looked at. Browsers need Idempotency-Key and Prefer in
// Access-Control-Allow-Headers, and Idempotent-Replayed, Retry-After, Location
// and Preference-Applied in Access-Control-Expose-Headers.
//
// # The state of a key
//
// [Guard.StatusHandler] tells clients what became of a key: once, after a wait,
// or as a stream of its changes. [WithStatusURL] lets them leave before the end,
// with the address to ask at. Its refusals are no-record and method-not-allowed
// in the table above.
//
// # Keys for calls to others
//
// What an operation calls itself gets a key from [Derive], the same on every
// attempt of the operation and another one for each step. Package client, a
// module of its own, sends requests so that all this works: one key for each
// operation, kept over attempts.
//
// # Other doors
//
// Modules of their own beside this one: sqlstore has the store over PostgreSQL,
// MySQL, MariaDB and SQLite, and operations in one transaction with their claim
// and their outcome; grpcguard has interceptors for unary gRPC calls; adapters
// has middleware for gin, echo and fiber, which package httptestsuite proves;
// promidempotent and otelidempotent count and trace, for Prometheus and
// OpenTelemetry.
//
// # Queues, webhooks, ticks
//
// [Do] is the same door for what comes by other ways than a request. Programs to
// start from, each with a test that runs it, stand in examples: consumer (a
// queue, each message handled once), webhook (an event, by the id in a body whose
// signature was verified), cron (one run for each tick of several instances),
// proxy (the middleware in front of any program), redis/limited (a limit of
// attempts, which replays do not count against) and redis/orderedid (ordered ids
// shared by instances).
//
// # Looking after a store
//
// Package inspect is a page for the people who do: what runs, which outcomes are
// unknown, what one key's repeats get, and the decisions that only people can
// make. cmd/idempotent, a module of its own, is a command line that does so too.
// [List] lists the entries of a store, [DecodeResult] reads what was
// recorded, [Guard.Resolve] settles an unknown outcome.
//
// # Other stores
//
// [Tiered] answers repeats from copies in a near store and claims in a far one.
// [Moving] claims in two stores while a program moves from one to the other, and
// [Stores] tells which ones.
// Package sealed, a module of its own, encrypts and compresses what any store
// records. Package storeurl opens the store that a URL names. memstore.WithSnapshot keeps
// what is known across an orderly restart.
package idempotent
