package idempotent

import (
	"errors"
	"fmt"
	"time"
)

// Errors of stores. A store returns them as themselves or wrapped; every other
// error of a backend reaches callers as a [*StoreError].
var (
	// ErrLost: the claim is gone, or another owner holds or finished the key.
	// It is also the cancellation cause of an operation whose claim was lost.
	// Stop the work; do not retry the step.
	ErrLost = errors.New("idempotent: claim lost")

	// ErrFull: the store has no room for a new claim and nothing it may evict.
	// Nothing was claimed. Try again later with the same key.
	ErrFull = errors.New("idempotent: store full")

	// ErrCorrupt: the entry cannot be read or belongs to another key. Nothing
	// was run and nothing will be under this key until an operator deletes it.
	ErrCorrupt = errors.New("idempotent: entry corrupt")

	// ErrNewerFormat: a newer release wrote the entry. Nothing was run; an
	// instance of that release can answer the same key.
	ErrNewerFormat = errors.New("idempotent: entry written by a newer release")

	// ErrInvalid: an argument no store accepts, such as an empty key or a
	// duration below a millisecond. The text names it. Nothing was changed.
	ErrInvalid = errors.New("idempotent: invalid argument")

	// ErrClosed: the store is closed or the guard is draining. Nothing was
	// claimed; another instance can serve the same key.
	ErrClosed = errors.New("idempotent: closed")
)

// Errors of the guard.
var (
	// ErrKeyReused: the key was used before with another fingerprint, that is
	// for another request. The first operation may have succeeded; ask before
	// trying a new key.
	ErrKeyReused = errors.New("idempotent: key reused for another request")

	// ErrOutcomeUnknown: an earlier execution under this key may or may not
	// have happened, and is not run again. Find out what became of it, then
	// settle the key with [Guard.Resolve].
	ErrOutcomeUnknown = errors.New("idempotent: outcome unknown")

	// ErrResultUnavailable: the operation is recorded, but its result could
	// not be kept. It is not run again.
	ErrResultUnavailable = errors.New("idempotent: result unavailable")

	// ErrFailed, wrapped by the error of a function under [Do], says that the
	// operation definitely did not happen: repeats get a [*FailedError].
	ErrFailed = errors.New("idempotent: operation failed")

	// ErrReleased, wrapped by the error of a function under [Do], says that
	// nothing happened and the key is to be freed: the next call runs.
	ErrReleased = errors.New("idempotent: operation released")
)

// Errors of functions that users write for the middleware.
var (
	// ErrUnauthenticated, from a [PrincipalFunc]: nobody is logged in; 401.
	ErrUnauthenticated = errors.New("idempotent: unauthenticated")

	// ErrKeyExpired, from a key policy: the key is too old to be used; 412.
	ErrKeyExpired = errors.New("idempotent: key expired")
)

// InFlightError is the answer to a duplicate of a pending key: the operation
// is running. Try again with the same key.
type InFlightError struct {
	RetryAfter time.Duration // a sensible pause before the next attempt; positive
	Since      time.Time     // when the running claim was made, by the store's clock
	Trace      string        // of the caller whose operation runs; may be ""
}

func (e *InFlightError) Error() string {
	return fmt.Sprintf("idempotent: operation in flight since %s", e.Since.UTC().Format(time.RFC3339))
}

// FailedError answers a repeat of an operation under [Do] that definitely
// failed. It matches [ErrFailed].
type FailedError struct {
	Text string // of the error that the operation returned; may be ""
}

func (e *FailedError) Error() string {
	if e.Text == "" {
		return ErrFailed.Error()
	}
	return e.Text
}

func (e *FailedError) Unwrap() error { return ErrFailed }

// StoreError says that the store failed or did not answer in time. Whether the
// step was taken is not known, except that the operation was not run. Try
// again later with the same key.
type StoreError struct {
	Op  string // "load", "claim", "renew", "complete", "release", "wait"; in an Event also "replay": a record does not decode
	Err error  // what the backend said
}

func (e *StoreError) Error() string { return "idempotent: store: " + e.Op + ": " + e.Err.Error() }
func (e *StoreError) Unwrap() error { return e.Err }
