// Package grpcguard runs unary gRPC handlers at most once per key, and gives
// the calls of clients one key each. It is [idempotent.Guard.Run] for
// google.golang.org/grpc: the promise and its limits are those of package
// idempotent.
//
//	guard := idempotent.New(store)
//	srv := grpc.NewServer(grpc.ChainUnaryInterceptor(
//		recovery, authentication, grpcguard.UnaryServerInterceptor(guard, principal)))
//
//	conn, err := grpc.NewClient(target,
//		grpc.WithChainUnaryInterceptor(grpcguard.UnaryClientInterceptor()),
//		grpc.WithDefaultServiceConfig(grpcguard.ServiceConfig))
//
// The key travels in the metadata idempotency-key, as text: 1 to 255 visible
// ASCII characters, or a quoted string of RFC 9651. A replay carries the header
// idempotent-replayed: true. At the end of the process, in this order:
// grpc.Server.GracefulStop, Guard.Drain, the store's Close.
//
// # What a call is answered with
//
// Every refusal has the google.rpc.ErrorInfo detail with the domain
// github.com/idempotent-go/idempotent and a reason; [Reason] finds it. Its
// metadata says retryable (with the same key), new_key_safe, and where known
// state, first_seen, trace and original_code. Pushback is the trailer
// grpc-retry-pushback-ms with a RetryInfo detail; -1 stops a retry policy.
// Unless the last column says so, the handler did not run.
//
//	situation                            code                 reason              pushback  handler
//	key missing                          INVALID_ARGUMENT     KEY_MISSING
//	key malformed, too long, sent twice  INVALID_ARGUMENT     KEY_INVALID
//	key too old for WithKeyPolicy        FAILED_PRECONDITION  KEY_EXPIRED
//	nobody logged in                     UNAUTHENTICATED      UNAUTHENTICATED
//	principal function failed            INTERNAL             INTERNAL
//	key used with another request        FAILED_PRECONDITION  KEY_REUSED
//	duplicate in flight                  ABORTED              IN_FLIGHT           1 s       is running
//	outcome of an earlier attempt lost   FAILED_PRECONDITION  OUTCOME_UNKNOWN               may have run
//	done, answer cannot be repeated      FAILED_PRECONDITION  RESULT_UNAVAILABLE            has run
//	earlier attempt panicked             INTERNAL             OPERATION_ABORTED             may have run
//	claim lost while the handler ran     ABORTED              CLAIM_LOST          -1        may have run
//	store down, closed, draining; a      UNAVAILABLE          STORE_UNAVAILABLE   1 s
//	record of a newer release
//	store full                           UNAVAILABLE          STORE_FULL          1 s
//	record unreadable                    DATA_LOSS            RECORD_CORRUPT
//	handler's answer, first or replayed  the handler's        the handler's       see below has run
//
// The handler's own UNAVAILABLE or ABORTED, where it is recorded, gets a
// pushback of -1 unless the handler has set one: asking again changes nothing.
//
// # What becomes of an operation
//
//	OK                                                success
//	UNAUTHENTICATED                                   release; unknown if the operation's context is done
//	RESOURCE_EXHAUSTED with a RetryInfo detail        release; unknown if the operation's context is done
//	INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS,      failure
//	PERMISSION_DENIED, FAILED_PRECONDITION,
//	OUT_OF_RANGE, UNIMPLEMENTED
//	every other code, UNAVAILABLE among them          unknown
//	panic, Goexit                                     unknown
//
// The handler can say so itself, by [idempotent.Succeed], [idempotent.Fail],
// [idempotent.Unknown] and [idempotent.Release], or by an error that wraps
// [idempotent.ErrFailed] or [idempotent.ErrReleased]; [WithClassify] changes
// the table. A handler that answers UNAVAILABLE and knows that nothing ran
// calls Release; its clients then run it again.
//
// # What a replay has
//
// Message, or code, text and details, and the headers and trailers that the
// handler has set. Left out are those that speak of one message (date, age,
// server-timing, traceparent, tracestate, grpc-retry-pushback-ms and other
// grpc- names) and set-cookie. What outer interceptors set is this attempt's
// own. The type of the message must be linked into the program, as generated
// code is: dynamic messages and those of other codecs are answered with
// RESULT_UNAVAILABLE.
//
// # Requests
//
// A key belongs to a principal and a method. The request is told apart by the
// bytes of its message in deterministic order, not by its encoding on the wire;
// other metadata, deadlines and credentials do not count. A time of sending or
// a random number in the message makes a repeat another request: set it once
// per operation. Clients of two releases that encode a field differently make
// different requests.
//
// # Context
//
// Deadline and values of the call are the handler's, and so is the correlation
// id: from x-request-id or traceparent (see [WithTraceMetadata]) into
// [idempotent.FromContext], the stored record, and the metadata of the
// handler's own outgoing calls. The key does not go on: an outgoing call is
// another operation.
//
// # Hedging and streams
//
// A hedging policy (gRFC A6) sends duplicates in parallel: one of them runs,
// and the others are answered with ABORTED, so list ABORTED and UNAVAILABLE in
// nonFatalStatusCodes. grpc-go itself has no hedging as of 1.85; other clients
// do. The tests of this package play such a client, with parallel attempts of
// one call over a real connection.
//
// Streams pass through, with a key as without one. What a stream does must be
// guarded inside its handler, by [idempotent.Do].
package grpcguard
