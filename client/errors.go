package client

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/idempotent-go/idempotent"
)

// UnknownError says that no answer was to be had: the operation may have
// happened, or may still. It matches [idempotent.ErrOutcomeUnknown] and what
// went wrong last, such as context.DeadlineExceeded. Send the request again
// with the same key, by [WithKey], or find out what became of it; a new key
// would be a new operation.
type UnknownError struct {
	Key      string
	Attempts int   // how often the request was sent; Go's transport may have sent it more often
	Err      error // the last failure
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("client: outcome unknown after %d attempts with key %q: %v", e.Attempts, e.Key, e.Err)
}

func (e *UnknownError) Unwrap() []error { return []error{idempotent.ErrOutcomeUnknown, e.Err} }

// errInFlight is the last failure of a request whose earlier attempt the server
// was still running.
var errInFlight = errors.New("client: the operation is still in flight")

// AnswerError is an answer other than 2xx to [Do]: the server has decided.
// Where it is a refusal of package idempotent it matches the error of the same
// meaning, such as [idempotent.ErrKeyReused] or, where the operation may have
// happened, [idempotent.ErrOutcomeUnknown].
type AnswerError struct {
	Status   int
	Key      string // that the request was sent with; "" without one
	Replayed bool   // the answer was recorded by an earlier attempt
	Header   http.Header
	Body     []byte

	// Of a problem document (RFC 9457); otherwise zero.
	Code       string
	Title      string
	Detail     string
	Retryable  bool // the same key may be sent again
	NewKeySafe bool // a new key cannot make the operation happen twice
}

func (e *AnswerError) Error() string {
	text := fmt.Sprintf("client: the server answered %d", e.Status)
	if e.Code != "" {
		text += " " + e.Code
	}
	return text
}

// Unwrap returns the error of package idempotent that means the same, or nil.
func (e *AnswerError) Unwrap() error {
	switch e.Code {
	case "outcome-unknown", "operation-aborted":
		return idempotent.ErrOutcomeUnknown
	case "key-reused":
		return idempotent.ErrKeyReused
	case "result-unavailable":
		return idempotent.ErrResultUnavailable
	case "key-expired":
		return idempotent.ErrKeyExpired
	case "unauthenticated":
		return idempotent.ErrUnauthenticated
	case "record-corrupt":
		return idempotent.ErrCorrupt
	case "store-full":
		return idempotent.ErrFull
	}
	return nil
}
