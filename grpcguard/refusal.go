package grpcguard

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/idempotent-go/idempotent"
)

// Domain is the domain of the google.rpc.ErrorInfo detail that every refusal
// of this package carries.
const Domain = "github.com/idempotent-go/idempotent"

// The reasons of refusals, in the ErrorInfo detail; [Reason] finds them. The
// table in the package documentation says what each means.
const (
	ReasonKeyMissing        = "KEY_MISSING"
	ReasonKeyInvalid        = "KEY_INVALID"
	ReasonKeyExpired        = "KEY_EXPIRED"
	ReasonKeyReused         = "KEY_REUSED"
	ReasonUnauthenticated   = "UNAUTHENTICATED"
	ReasonInFlight          = "IN_FLIGHT"
	ReasonOutcomeUnknown    = "OUTCOME_UNKNOWN"
	ReasonResultUnavailable = "RESULT_UNAVAILABLE"
	ReasonOperationAborted  = "OPERATION_ABORTED"
	ReasonClaimLost         = "CLAIM_LOST"
	ReasonStoreUnavailable  = "STORE_UNAVAILABLE"
	ReasonStoreFull         = "STORE_FULL"
	ReasonRecordCorrupt     = "RECORD_CORRUPT"
	ReasonInternal          = "INTERNAL"
)

// Reason returns the reason of a refusal by this package, and "" for every
// other error: one of a handler, also where it is replayed, or nil. It reads
// what a client has received as well as what the interceptor returns.
func Reason(err error) string {
	if err == nil {
		return ""
	}
	for _, d := range statusOf(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == Domain {
			return info.GetReason()
		}
	}
	return ""
}

// pushbackMetadata tells the retry policy of a client when to come back, and
// with a negative number that it should not.
const pushbackMetadata = "grpc-retry-pushback-ms"

// retryPause is the pushback of a refusal that will not last.
const retryPause = time.Second

// refusal is one kind of answer that is not the handler's. The handler did not
// run, except where the text says so.
type refusal struct {
	reason     string
	code       codes.Code
	text       string
	retryable  bool // the same key may be sent again
	newKeySafe bool // a new key cannot make the operation happen twice
	state      string
}

// The refusals. Texts are fixed: nothing of a request, a record or an error
// reaches another client through them.
var (
	refusedKeyMissing = refusal{
		reason: ReasonKeyMissing, code: codes.InvalidArgument, newKeySafe: true,
		text: "this operation needs an idempotency key: send a new random one, such as a UUID, and the same one with every retry of this operation",
	}
	refusedKeyInvalid = refusal{reason: ReasonKeyInvalid, code: codes.InvalidArgument, newKeySafe: true}
	refusedKeyExpired = refusal{
		reason: ReasonKeyExpired, code: codes.FailedPrecondition,
		text: "the idempotency key is too old to tell whether its operation has been carried out: find out what became of it before sending a new key",
	}
	refusedUnauthenticated = refusal{
		reason: ReasonUnauthenticated, code: codes.Unauthenticated, retryable: true,
		text: "nobody is logged in; nothing was done: log in and send the request again with the same key",
	}
	refusedInFlight = refusal{
		reason: ReasonInFlight, code: codes.Aborted, retryable: true, state: "pending",
		text: "an earlier request with this key is still running: send the request again with the same key after the pause in RetryInfo",
	}
	refusedKeyReused = refusal{
		reason: ReasonKeyReused, code: codes.FailedPrecondition,
		text: "this key was used before with another request, which may have succeeded; nothing was done: send the first request again to learn what became of it, and use a new key only for a new operation",
	}
	refusedOutcomeUnknown = refusal{
		reason: ReasonOutcomeUnknown, code: codes.FailedPrecondition, state: "unknown",
		text: "an earlier request with this key ended without a known outcome: it may have happened, and is not run again; find out what became of it before sending a new key",
	}
	refusedResultUnavailable = refusal{
		reason: ReasonResultUnavailable, code: codes.FailedPrecondition,
		text: "an earlier request with this key has been carried out, but its answer cannot be repeated; it is not run again",
	}
	refusedOperationAborted = refusal{
		reason: ReasonOperationAborted, code: codes.Internal, state: "unknown",
		text: "the operation with this key ended abruptly: it may have happened, and is not run again",
	}
	refusedClaimLost = refusal{
		reason: ReasonClaimLost, code: codes.Aborted, state: "unknown",
		text: "the claim on this key was lost while the operation ran: it may have happened, and another attempt may have run; send the request again with the same key to learn what is recorded",
	}
	refusedStoreUnavailable = refusal{
		reason: ReasonStoreUnavailable, code: codes.Unavailable, retryable: true,
		text: "this key cannot be claimed now, so nothing was done: send the request again with the same key after the pause in RetryInfo",
	}
	refusedStoreFull = refusal{
		reason: ReasonStoreFull, code: codes.Unavailable, retryable: true,
		text: "there is no room for a new key now, so nothing was done: send the request again with the same key after the pause in RetryInfo",
	}
	refusedRecordCorrupt = refusal{
		reason: ReasonRecordCorrupt, code: codes.DataLoss,
		text: "what is recorded under this key cannot be read; nothing was done, and nothing will be under this key",
	}
	refusedInternal = refusal{
		reason: ReasonInternal, code: codes.Internal, retryable: true,
		text: "the request could not be prepared; nothing was done, and it may be sent again with the same key",
	}
)

// refusalExtra is what a refusal says of one request.
type refusalExtra struct {
	retryAfter time.Duration // zero: no pushback
	firstSeen  time.Time
	trace      string
	original   string // code of the answer that cannot be repeated
	state      string // in place of the refusal's own
}

// refusalOf sorts the errors of [idempotent.Guard.Run].
func refusalOf(rec idempotent.Record, err error) (refusal, refusalExtra) {
	extra := refusalExtra{firstSeen: rec.Claimed}
	var inFlight *idempotent.InFlightError
	switch {
	case errors.As(err, &inFlight):
		extra.retryAfter, extra.trace = inFlight.RetryAfter, inFlight.Trace
		return refusedInFlight, extra
	case errors.Is(err, idempotent.ErrKeyReused):
		return refusedKeyReused, extra
	case errors.Is(err, idempotent.ErrOutcomeUnknown):
		return refusedOutcomeUnknown, extra
	case errors.Is(err, idempotent.ErrCorrupt):
		return refusedRecordCorrupt, extra
	case errors.Is(err, idempotent.ErrInvalid):
		return refusedInternal, extra
	}
	extra.retryAfter = retryPause
	if errors.Is(err, idempotent.ErrFull) {
		return refusedStoreFull, extra
	}
	// The store failed or is closed, or another release can answer, or the
	// context ended before the handler began: nothing was run.
	return refusedStoreUnavailable, extra
}

// refuse returns the status of a refusal and sets its pushback. It sets no
// header: a client that has received one does not retry.
func refuse(ctx context.Context, r refusal, extra refusalExtra) error {
	info := &errdetails.ErrorInfo{Reason: r.reason, Domain: Domain, Metadata: map[string]string{
		"retryable":    strconv.FormatBool(r.retryable),
		"new_key_safe": strconv.FormatBool(r.newKeySafe),
	}}
	add := func(name, value string) {
		if value != "" {
			info.Metadata[name] = value
		}
	}
	if extra.state == "" {
		extra.state = r.state
	}
	add("state", extra.state)
	add("trace", extra.trace)
	add("original_code", extra.original)
	if !extra.firstSeen.IsZero() {
		add("first_seen", extra.firstSeen.UTC().Format(time.RFC3339Nano))
	}
	details := []protoadapt.MessageV1{info}
	if extra.retryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(extra.retryAfter)})
		// Up: a client that comes early is refused again.
		ms := int64((extra.retryAfter + time.Millisecond - 1) / time.Millisecond)
		setTrailer(ctx, pushbackMetadata, strconv.FormatInt(ms, 10))
	} else {
		stopRetry(ctx, r.code, nil)
	}
	st := status.New(r.code, "idempotent: "+r.text)
	if detailed, err := st.WithDetails(details...); err == nil {
		st = detailed
	}
	return st.Err()
}

// retried are the codes that [ServiceConfig] lists.
var retried = []codes.Code{codes.Unavailable, codes.Aborted}

// stopRetry tells the retry policy of a client that a code which it may list
// is final here, unless the handler has its own word in trailer.
func stopRetry(ctx context.Context, code codes.Code, trailer metadata.MD) {
	if slices.Contains(retried, code) && len(trailer.Get(pushbackMetadata)) == 0 {
		setTrailer(ctx, pushbackMetadata, "-1")
	}
}

// setTrailer and setHeader fail where nobody listens any more, and where a test
// calls the interceptor without a stream.
func setTrailer(ctx context.Context, name, value string) {
	_ = grpc.SetTrailer(ctx, metadata.Pairs(name, value))
}

func setHeader(ctx context.Context, name, value string) {
	_ = grpc.SetHeader(ctx, metadata.Pairs(name, value))
}
