package grpcguard

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/idempotent-go/idempotent"
)

// UnaryServerInterceptor returns an interceptor that runs a unary handler at
// most once for each key of each principal and method, and answers repeats
// with what is recorded: message, or status with details, headers and
// trailers. What each situation is answered with stands in the package
// documentation. Chain it inside of recovery, authentication and rate limits,
// so that their refusals are not recorded.
//
// A handler whose client hangs up goes on, and its answer waits for the retry;
// its context keeps values and deadline, and is cancelled by the deadline and
// by a lost claim (cause [idempotent.ErrLost]) only. Headers and trailers are
// held until the outcome is recorded, except by grpc.SendHeader. A panic is
// recorded and goes on. grpc.SetSendCompressor and
// grpc.ClientSupportedCompressors work outside of this interceptor only, since
// they want the server's own stream.
//
// It panics on a nil guard or principal, and is safe for concurrent use.
// Streams are not touched: nothing of this package guards them.
func UnaryServerInterceptor(guard *idempotent.Guard, principal PrincipalFunc, opts ...Option) grpc.UnaryServerInterceptor {
	switch {
	case guard == nil:
		panic("grpcguard: UnaryServerInterceptor: the Guard is nil")
	case principal == nil:
		panic("grpcguard: UnaryServerInterceptor: the PrincipalFunc is nil; Anonymous is the one that tells nobody apart")
	}
	s := &server{settings: newSettings(opts), guard: guard, principal: principal}
	return s.intercept
}

type server struct {
	settings
	guard     *idempotent.Guard
	principal PrincipalFunc
}

// intercept turns a call into one of [idempotent.Guard.Run], and its outcome
// into an answer.
func (s *server) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if !s.guards(info.FullMethod) {
		return next(ctx, req)
	}
	in, refused := s.intake(ctx, req, info)
	switch {
	case refused != nil:
		return nil, refuse(ctx, *refused, refusalExtra{})
	case in.unkeyed:
		return next(ctx, req)
	}
	o := operation{server: s, req: req, next: next}
	rec, replayed, err := s.guard.Run(ctx, in.name, o.do,
		idempotent.WithCallFingerprint(in.fingerprint), idempotent.WithCallTrace(in.trace), idempotent.WithCallDetached())
	switch {
	case replayed:
		return s.replay(ctx, in, rec)
	case err != nil:
		r, extra := refusalOf(rec, err)
		return nil, refuse(ctx, r, extra)
	}
	return o.deliver(ctx, rec)
}

// operation is one run of a handler.
type operation struct {
	*server
	req  any
	next grpc.UnaryHandler

	stream *recorder // nil where there is no stream
	resp   any
	err    error
	status *status.Status // of err
	lost   bool           // the claim was, while the handler ran
}

// do runs the handler and reads its outcome from its answer.
func (o *operation) do(ctx context.Context) (idempotent.Class, string) {
	inner := o.passTrace(ctx)
	if stream := grpc.ServerTransportStreamFromContext(ctx); stream != nil {
		o.stream = &recorder{stream: stream}
		// Also after a panic: a goroutine that the handler left behind must
		// not add to what has been recorded.
		defer o.stream.finish()
		inner = grpc.NewContextWithServerTransportStream(inner, o.stream)
	}
	o.resp, o.err = o.next(inner, o.req)
	o.status = statusOf(o.err)
	o.lost = o.err != nil && errors.Is(context.Cause(ctx), idempotent.ErrLost)
	class := o.class(ctx, o.err, o.status)
	// Also for a release: what the handler said, as by Fail, may overrule it.
	r := record{code: o.status.Code(), tombstone: true}
	if o.err == nil || r.code != codes.OK {
		header, trailer := o.stream.finish()
		r = newRecord(o.resp, o.status, header, trailer, o.maxResponse)
	}
	return class, r.encode()
}

// deliver answers the first caller.
func (o *operation) deliver(ctx context.Context, rec idempotent.Record) (any, error) {
	if o.lost {
		return nil, refuse(ctx, refusedClaimLost, refusalExtra{firstSeen: rec.Claimed})
	}
	_, trailer := o.stream.finish()
	o.stream.deliver()
	if o.err != nil && rec.Class != idempotent.ClassRelease {
		stopRetry(ctx, o.status.Code(), trailer)
	}
	return o.resp, o.err
}

// replay answers with what is recorded.
func (s *server) replay(ctx context.Context, in intake, rec idempotent.Record) (any, error) {
	extra := refusalExtra{firstSeen: rec.Claimed, state: rec.Class.String()}
	unavailable := refusedResultUnavailable
	unavailable.newKeySafe = rec.Class == idempotent.ClassFailure
	if rec.Result == "" {
		if rec.Class == idempotent.ClassUnknown {
			// The handler panicked, and this is what its record says.
			setHeader(ctx, ReplayedMetadata, "true")
			return nil, refuse(ctx, refusedOperationAborted, extra)
		}
		return nil, refuse(ctx, unavailable, extra)
	}
	r, err := decodeRecord(rec.Result)
	if err != nil {
		return nil, s.unreadable(ctx, in, rec, err)
	}
	resp, st, ok, err := r.answer()
	switch {
	case err != nil:
		return nil, s.unreadable(ctx, in, rec, err)
	case !ok:
		extra.original = r.code.String()
		return nil, refuse(ctx, unavailable, extra)
	}
	_ = grpc.SetHeader(ctx, r.header) // fails where nobody listens any more
	setHeader(ctx, ReplayedMetadata, "true")
	_ = grpc.SetTrailer(ctx, r.trailer)
	if err = st.Err(); err != nil {
		stopRetry(ctx, st.Code(), r.trailer)
		return nil, err
	}
	return resp, nil
}

// unreadable refuses a record and tells the log which one it is: by the digest
// of its name, as the guard does.
func (s *server) unreadable(ctx context.Context, in intake, rec idempotent.Record, err error) error {
	sum := sha256.Sum256([]byte(in.name))
	s.log().LogAttrs(ctx, slog.LevelError, "grpcguard: the record cannot be read",
		slog.String("key", hex.EncodeToString(sum[:8])), slog.String("err", err.Error()))
	r, extra := refusalOf(rec, err)
	return refuse(ctx, r, extra)
}
