package grpcguard

import (
	"context"
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/idempotent-go/idempotent"
)

// Classify says what an answer says of the operation: OK success;
// UNAUTHENTICATED, and RESOURCE_EXHAUSTED with a RetryInfo detail, released;
// INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, PERMISSION_DENIED,
// FAILED_PRECONDITION, OUT_OF_RANGE and UNIMPLEMENTED failure; every other code
// unknown. UNAVAILABLE is among those: a handler that knows that nothing ran
// calls [idempotent.Release]. The interceptor takes a release for unknown where
// the context of the operation is done.
func Classify(st *status.Status) idempotent.Class {
	switch st.Code() {
	case codes.OK:
		return idempotent.ClassSuccess
	case codes.Unauthenticated:
		return idempotent.ClassRelease
	case codes.ResourceExhausted:
		for _, d := range st.Details() {
			if _, ok := d.(*errdetails.RetryInfo); ok {
				return idempotent.ClassRelease
			}
		}
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied,
		codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented:
		return idempotent.ClassFailure
	}
	return idempotent.ClassUnknown
}

// class is the table of outcomes. What the handler said by
// [idempotent.Release] and its kin goes before it; Run sees to that.
func (s *server) class(ctx context.Context, err error, st *status.Status) idempotent.Class {
	if err != nil && st.Code() == codes.OK {
		return idempotent.ClassUnknown // an error that says it is none: no client gets an answer from it
	}
	if s.classify != nil {
		if c := s.classify(st); c != idempotent.ClassDefault {
			return c
		}
	}
	switch {
	case errors.Is(err, idempotent.ErrReleased):
		return idempotent.ClassRelease
	case errors.Is(err, idempotent.ErrFailed):
		return idempotent.ClassFailure
	}
	c := Classify(st)
	if c == idempotent.ClassRelease && ctx.Err() != nil {
		// The refusal may be that of a step that was cut off half-way.
		return idempotent.ClassUnknown
	}
	return c
}
