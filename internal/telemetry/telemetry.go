// Package telemetry is what the modules that count events share: how an
// [idempotent.Event] is sorted into the few values that a metric may be told
// apart by. None of them names a key, a principal or an execution.
package telemetry

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"os"

	"github.com/idempotent-go/idempotent"
)

// Kinds are all kinds of event.
var Kinds = []idempotent.EventKind{
	idempotent.EventClaimed, idempotent.EventReplayed, idempotent.EventInFlight, idempotent.EventWaited,
	idempotent.EventKeyReused, idempotent.EventCompleted, idempotent.EventNotRecorded, idempotent.EventReleased,
	idempotent.EventAbandoned, idempotent.EventTakenOver, idempotent.EventResolved, idempotent.EventLost,
	idempotent.EventLongRunning, idempotent.EventStoreError, idempotent.EventEvicted, idempotent.EventUnkeyed,
}

// Outcomes are the classes of outcome.
var Outcomes = []idempotent.Class{
	idempotent.ClassSuccess, idempotent.ClassFailure, idempotent.ClassUnknown, idempotent.ClassRelease,
}

// Outcome returns the class of the outcome that e tells of: of a replay, of a
// resolution, or of the end of an operation, recorded or not.
func Outcome(e idempotent.Event) idempotent.Class {
	switch {
	case e.Status == idempotent.Success:
		return idempotent.ClassSuccess
	case e.Status == idempotent.Failed && !e.Unknown:
		return idempotent.ClassFailure
	case e.Status == "":
		return idempotent.ClassRelease
	}
	return idempotent.ClassUnknown
}

// Steps are the steps of a store that can fail.
var Steps = []string{"load", "claim", "renew", "complete", "release", "wait", "replay", "other"}

// Step returns which step of the store err is about.
func Step(err error) string {
	if e, ok := errors.AsType[*idempotent.StoreError](err); ok {
		for _, step := range Steps {
			if e.Op == step {
				return step
			}
		}
	}
	return "other" // a store may return StoreErrors of its own
}

// Errors are the kinds of error.
var Errors = []string{"timeout", "unreachable", "full", "corrupt", "newer-format", "closed", "other"}

// Error returns the kind of a store's error. What a server says in words of
// its own is "other": the log has the text.
func Error(err error) string {
	switch {
	case errors.Is(err, idempotent.ErrFull):
		return "full"
	case errors.Is(err, idempotent.ErrCorrupt):
		return "corrupt"
	case errors.Is(err, idempotent.ErrNewerFormat):
		return "newer-format"
	case errors.Is(err, idempotent.ErrClosed):
		return "closed"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "timeout"
	}
	if e, ok := errors.AsType[net.Error](err); ok { // also what the system says of a connection
		if e.Timeout() {
			return "timeout"
		}
		return "unreachable"
	}
	for _, gone := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, driver.ErrBadConn} {
		if errors.Is(err, gone) {
			return "unreachable"
		}
	}
	return "other"
}
