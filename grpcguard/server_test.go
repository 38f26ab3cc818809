package grpcguard_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/grpcguard"
	"github.com/idempotent-go/idempotent/storetest"
)

// A repeat gets message, headers and trailers of the first answer, and the
// handler does not run.
func TestReplayOfAMessage(t *testing.T) {
	w := start(t, func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		require.NoError(t, grpc.SetHeader(ctx, metadata.Pairs("x-a", "1", "x-a", "2", "x-bin", "\x00\xff", "date", "today", "set-cookie", "s=1")))
		require.NoError(t, grpc.SetHeader(ctx, metadata.Pairs("x-b", "3", "traceparent", "00-1")))
		require.NoError(t, grpc.SetTrailer(ctx, metadata.Pairs("x-t", "4", "server-timing", "db;dur=1")))
		method, ok := grpc.Method(ctx)
		require.True(t, ok)
		require.Equal(t, unaryCall, method)
		return response("done"), nil
	}, setup{})

	first, second := w.keyed(t, "k", "tea"), w.keyed(t, "k", "tea")
	require.NoError(t, first.err)
	require.NoError(t, second.err)
	require.EqualValues(t, 1, w.svc.runs.Load())
	require.True(t, proto.Equal(first.resp, second.resp), "%v", second.resp)
	require.False(t, first.replayed())
	require.Equal(t, []string{"true"}, second.header["idempotent-replayed"])
	for _, a := range []answer{first, second} {
		require.Equal(t, []string{"1", "2"}, a.header["x-a"])
		require.Equal(t, []string{"\x00\xff"}, a.header["x-bin"])
		require.Equal(t, []string{"3"}, a.header["x-b"])
		require.Equal(t, []string{"4"}, a.trailer["x-t"])
	}
	for _, name := range []string{"date", "set-cookie", "traceparent"} {
		require.NotEmpty(t, first.header[name], name)
		require.Empty(t, second.header[name], name)
	}
	require.NotEmpty(t, first.trailer["server-timing"])
	require.Empty(t, second.trailer["server-timing"])
}

// A repeat gets code, text, details, headers and trailers of a failure.
func TestReplayOfAStatus(t *testing.T) {
	st, err := status.New(codes.NotFound, "no such häuschen").WithDetails(&errdetails.ErrorInfo{Reason: "GONE", Domain: "shop"})
	require.NoError(t, err)
	w := start(t, func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		require.NoError(t, grpc.SetHeader(ctx, metadata.Pairs("x-h", "1")))
		require.NoError(t, grpc.SetTrailer(ctx, metadata.Pairs("x-t", "2", "grpc-retry-pushback-ms", "7")))
		return nil, st.Err()
	}, setup{})
	first, second := w.keyed(t, "k", ""), w.keyed(t, "k", "")
	require.EqualValues(t, 1, w.svc.runs.Load())
	for _, a := range []answer{first, second} {
		require.True(t, proto.Equal(st.Proto(), status.Convert(a.err).Proto()), "%v", a.err)
		require.Equal(t, []string{"1"}, a.header["x-h"])
		require.Equal(t, []string{"2"}, a.trailer["x-t"])
		require.Empty(t, a.reason(), "the answer is the handler's")
	}
	require.False(t, first.replayed())
	require.True(t, second.replayed())
	require.Equal(t, "[7]", first.pushback())
	require.Equal(t, "[]", second.pushback())
}

// gRPC sends a text that is no UTF-8 with each wrong byte replaced, and so does
// a replay.
func TestReplayOfATextThatIsNoUTF8(t *testing.T) {
	w := start(t, refuses(status.Error(codes.NotFound, "no \xff\xfe")), setup{})
	first, second := w.keyed(t, "k", ""), w.keyed(t, "k", "")
	require.True(t, second.replayed())
	require.Equal(t, codes.NotFound, second.code())
	require.Equal(t, status.Convert(first.err).Message(), status.Convert(second.err).Message())
	require.EqualValues(t, 1, w.svc.runs.Load())
}

// The table of codes: what becomes of the key, and whether a repeat runs.
func TestOutcomeOfEachCode(t *testing.T) {
	retryInfo := func(c codes.Code) error {
		st, err := status.New(c, "later").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)})
		require.NoError(t, err)
		return st.Err()
	}
	of := func(c codes.Code) error { return status.Error(c, "no") }
	const success, failure, unknown, release = idempotent.ClassSuccess, idempotent.ClassFailure, idempotent.ClassUnknown, idempotent.ClassRelease
	for _, tt := range []struct {
		name string
		err  error
		code codes.Code
		want idempotent.Class
	}{
		{"ok", nil, codes.OK, success},
		{"cancelled", of(codes.Canceled), codes.Canceled, unknown},
		{"unknown", of(codes.Unknown), codes.Unknown, unknown},
		{"invalid argument", of(codes.InvalidArgument), codes.InvalidArgument, failure},
		{"deadline", of(codes.DeadlineExceeded), codes.DeadlineExceeded, unknown},
		{"not found", of(codes.NotFound), codes.NotFound, failure},
		{"already exists", of(codes.AlreadyExists), codes.AlreadyExists, failure},
		{"permission denied", of(codes.PermissionDenied), codes.PermissionDenied, failure},
		{"exhausted", of(codes.ResourceExhausted), codes.ResourceExhausted, unknown},
		{"exhausted, retry info", retryInfo(codes.ResourceExhausted), codes.ResourceExhausted, release},
		{"failed precondition", of(codes.FailedPrecondition), codes.FailedPrecondition, failure},
		{"aborted", of(codes.Aborted), codes.Aborted, unknown},
		{"out of range", of(codes.OutOfRange), codes.OutOfRange, failure},
		{"unimplemented", of(codes.Unimplemented), codes.Unimplemented, failure},
		{"internal", of(codes.Internal), codes.Internal, unknown},
		{"unavailable", of(codes.Unavailable), codes.Unavailable, unknown},
		{"unavailable, retry info", retryInfo(codes.Unavailable), codes.Unavailable, unknown},
		{"data loss", of(codes.DataLoss), codes.DataLoss, unknown},
		{"unauthenticated", of(codes.Unauthenticated), codes.Unauthenticated, release},
		{"custom code", of(codes.Code(77)), codes.Code(77), unknown},
		{"plain error", errors.New("broken"), codes.Unknown, unknown},
		{"context error", context.DeadlineExceeded, codes.DeadlineExceeded, unknown},
		{"wraps ErrFailed", fmt.Errorf("declined: %w", idempotent.ErrFailed), codes.Unknown, failure},
		{"wraps ErrReleased", fmt.Errorf("shed: %w", idempotent.ErrReleased), codes.Unknown, release},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := start(t, refuses(tt.err), setup{})
			first := w.keyed(t, "k", "")
			require.Equal(t, tt.code, first.code())
			if tt.want == release {
				_, ok, err := w.memory.Load(t.Context(), grpcguard.StoreKey(unaryCall, "anonymous", "k"))
				require.NoError(t, err)
				require.False(t, ok, "the key is free")
				require.Equal(t, tt.code, w.keyed(t, "k", "").code())
				require.EqualValues(t, 2, w.svc.runs.Load())
				return
			}
			e := w.entry(t, "k")
			require.Equal(t, tt.want == success, e.Status == idempotent.Success)
			require.Equal(t, tt.want == unknown, e.Unknown)
			second := w.keyed(t, "k", "")
			require.True(t, second.replayed())
			require.Equal(t, first.code(), second.code())
			require.Equal(t, status.Convert(first.err).Message(), status.Convert(second.err).Message())
			require.EqualValues(t, 1, w.svc.runs.Load())
		})
	}
}

// What the handler says, and what WithClassify says, goes before the table.
func TestOutcomeAsTold(t *testing.T) {
	for name, tt := range map[string]struct {
		say  func(context.Context)
		opts []grpcguard.Option
		runs int32
	}{
		"release":            {idempotent.Release, nil, 2},
		"fail":               {idempotent.Fail, nil, 1},
		"nothing":            {func(context.Context) {}, nil, 1},
		"classify":           {func(context.Context) {}, []grpcguard.Option{grpcguard.WithClassify(func(*status.Status) idempotent.Class { return idempotent.ClassRelease })}, 2},
		"classify has none":  {func(context.Context) {}, []grpcguard.Option{grpcguard.WithClassify(func(*status.Status) idempotent.Class { return idempotent.ClassDefault })}, 1},
		"fail over classify": {idempotent.Fail, []grpcguard.Option{grpcguard.WithClassify(func(*status.Status) idempotent.Class { return idempotent.ClassRelease })}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t, func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
				tt.say(ctx)
				return nil, status.Error(codes.Unavailable, "down")
			}, setup{server: tt.opts})
			for range 2 {
				a := w.keyed(t, "k", "")
				require.Equal(t, codes.Unavailable, a.code())
				// What is recorded stays, and what was released may be tried again.
				require.Equal(t, map[int32]string{1: "[-1]", 2: "[]"}[tt.runs], a.pushback())
			}
			require.Equal(t, tt.runs, w.svc.runs.Load())
			if tt.runs == 1 {
				require.Equal(t, name == "nothing" || name == "classify has none", w.entry(t, "k").Unknown)
			}
		})
	}
}

func TestKeysThatAreRefused(t *testing.T) {
	w := start(t, nil, setup{server: []grpcguard.Option{
		grpcguard.WithMetadata("Idempotency-Key", "x-other"),
		grpcguard.WithKeyPolicy(func(key string) error {
			switch key {
			case "old":
				return idempotent.ErrKeyExpired
			case "short":
				return errors.New("secret text")
			}
			return nil
		}),
	}})
	for name, tt := range map[string]struct {
		md     []string
		code   codes.Code
		reason string
	}{
		"missing":            {nil, codes.InvalidArgument, "KEY_MISSING"},
		"empty":              {[]string{"idempotency-key", ""}, codes.InvalidArgument, "KEY_INVALID"},
		"blanks":             {[]string{"idempotency-key", "  "}, codes.InvalidArgument, "KEY_INVALID"},
		"twice":              {[]string{"idempotency-key", "a", "idempotency-key", "a"}, codes.InvalidArgument, "KEY_INVALID"},
		"list":               {[]string{"idempotency-key", "a,b"}, codes.InvalidArgument, "KEY_INVALID"},
		"too long":           {[]string{"idempotency-key", strings.Repeat("k", 256)}, codes.InvalidArgument, "KEY_INVALID"},
		"unclosed":           {[]string{"idempotency-key", `"a`}, codes.InvalidArgument, "KEY_INVALID"},
		"bad escape":         {[]string{"idempotency-key", `"\a"`}, codes.InvalidArgument, "KEY_INVALID"},
		"bad parameters":     {[]string{"idempotency-key", `"a";B=1`}, codes.InvalidArgument, "KEY_INVALID"},
		"two that disagree":  {[]string{"idempotency-key", "a", "x-other", "b"}, codes.InvalidArgument, "KEY_INVALID"},
		"old":                {[]string{"idempotency-key", "old"}, codes.FailedPrecondition, "KEY_EXPIRED"},
		"against the policy": {[]string{"idempotency-key", "short"}, codes.InvalidArgument, "KEY_INVALID"},
	} {
		t.Run(name, func(t *testing.T) {
			a := w.send(t, request("tea"), tt.md...)
			require.Equal(t, tt.code, a.code())
			require.Equal(t, tt.reason, a.reason())
			require.Equal(t, "[]", a.pushback())
			require.NotContains(t, a.err.Error(), "secret")
			require.Equal(t, fmt.Sprint(tt.code == codes.InvalidArgument), infoOf(t, a.err)["new_key_safe"])
		})
	}
	require.Zero(t, w.svc.runs.Load())
	require.Zero(t, w.store.Calls("claim"))

	// The longest key, quoted or not, under either name, as the HTTP middleware
	// takes it.
	long := strings.Repeat("k", 255)
	for _, md := range [][]string{{"idempotency-key", long}, {"idempotency-key", `"` + long + `"`}, {"idempotency-key", `"` + long + `";a=1`}, {"x-other", long}, {"x-other", long, "idempotency-key", long}} {
		require.NoError(t, w.send(t, request("tea"), md...).err)
	}
	require.EqualValues(t, 1, w.svc.runs.Load())
}

func infoOf(t *testing.T, err error) map[string]string {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			require.Equal(t, grpcguard.Domain, info.GetDomain())
			return info.GetMetadata()
		}
	}
	require.Fail(t, "no ErrorInfo", "%v", err)
	return nil
}

// A key belongs to a principal and a method, and to one request.
func TestScopeOfAKey(t *testing.T) {
	w := start(t, nil, setup{principal: func(ctx context.Context) (string, error) {
		who := metadata.ValueFromIncomingContext(ctx, "who")
		switch {
		case len(who) == 0:
			return "", nil
		case who[0] == "nobody":
			return "", fmt.Errorf("token: %w", idempotent.ErrUnauthenticated)
		case who[0] == "broken":
			return "", errors.New("secret text")
		}
		return who[0], nil
	}})
	send := func(who, body string) answer {
		return w.send(t, request(body), "who", who, "idempotency-key", "k")
	}
	require.Equal(t, "run 1", send("ann", "tea").text())
	require.Equal(t, "run 2", send("bob", "tea").text())
	require.Equal(t, "run 1", send("ann", "tea").text())
	other, err := w.client.CacheableUnaryCall(metadata.AppendToOutgoingContext(t.Context(), "who", "ann", "idempotency-key", "k"), request("tea"))
	require.NoError(t, err)
	require.Equal(t, "run 3", string(other.GetPayload().GetBody()))

	reused := send("ann", "milk")
	require.Equal(t, codes.FailedPrecondition, reused.code())
	require.Equal(t, "KEY_REUSED", reused.reason())
	require.Equal(t, "false", infoOf(t, reused.err)["new_key_safe"])
	require.Equal(t, "[]", reused.pushback())

	for who, code := range map[string]codes.Code{"": codes.Unauthenticated, "nobody": codes.Unauthenticated, "broken": codes.Internal} {
		a := send(who, "tea")
		require.Equal(t, code, a.code(), who)
		require.NotContains(t, a.err.Error(), "secret")
	}
	require.EqualValues(t, 3, w.svc.runs.Load())
}

// Duplicates in parallel, as a hedging policy sends them: one runs.
func TestHedgedAttemptsRunOnce(t *testing.T) {
	begun, finish := make(chan struct{}), make(chan struct{})
	w := start(t, func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		close(begun)
		<-finish
		return response("done"), nil
	}, setup{})
	first := make(chan answer, 1)
	go func() { first <- w.send(t, request("tea"), "idempotency-key", "k", "x-request-id", "req-1") }()
	<-begun

	const hedges = 8
	answers := make(chan answer, hedges)
	for range hedges {
		go func() { answers <- w.keyed(t, "k", "tea") }()
	}
	for range hedges {
		a := <-answers
		require.Equal(t, codes.Aborted, a.code())
		require.Equal(t, "IN_FLIGHT", a.reason())
		require.Equal(t, "[1000]", a.pushback())
		require.Empty(t, a.header, "headers would end the retries of a client")
		info := infoOf(t, a.err)
		require.Equal(t, "true", info["retryable"])
		require.Equal(t, "pending", info["state"])
		require.Equal(t, "req-1", info["trace"])
		require.NotContains(t, status.Convert(a.err).Message(), "req-1", "texts are fixed")
		require.NotEmpty(t, info["first_seen"])
		var delay *errdetails.RetryInfo
		for _, d := range status.Convert(a.err).Details() {
			if r, ok := d.(*errdetails.RetryInfo); ok {
				delay = r
			}
		}
		require.Equal(t, time.Second, delay.GetRetryDelay().AsDuration())
	}
	require.Equal(t, "KEY_REUSED", w.keyed(t, "k", "milk").reason(), "also while it is pending")
	close(finish)
	require.NoError(t, (<-first).err)
	require.Equal(t, "done", w.keyed(t, "k", "tea").text())
	require.EqualValues(t, 1, w.svc.runs.Load())
}

// A client that hangs up does not stop the handler, and its retry gets the
// answer with the headers that were set for nobody.
func TestClientHangsUp(t *testing.T) {
	begun, gone := make(chan struct{}), make(chan struct{})
	ctxErr := make(chan error, 1)
	w := start(t, func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		close(begun)
		<-gone
		ctxErr <- ctx.Err()
		if err := grpc.SetHeader(ctx, metadata.Pairs("x-a", "1")); err != nil {
			return nil, err
		}
		if err := grpc.SetTrailer(ctx, metadata.Pairs("x-t", "2")); err != nil {
			return nil, err
		}
		return response("done"), nil
	}, setup{outside: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if len(metadata.ValueFromIncomingContext(ctx, "first")) > 0 {
			go func() {
				<-ctx.Done() // the server knows
				close(gone)
			}()
		}
		return next(ctx, req)
	}})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-begun
		cancel()
	}()
	_, err := w.client.UnaryCall(metadata.AppendToOutgoingContext(ctx, "idempotency-key", "k", "first", "yes"), request("tea"))
	require.Equal(t, codes.Canceled, status.Code(err))
	require.NoError(t, <-ctxErr)
	var a answer
	require.Eventually(t, func() bool {
		a = w.keyed(t, "k", "tea")
		return a.reason() != "IN_FLIGHT"
	}, time.Minute, time.Millisecond)
	require.NoError(t, a.err)
	require.True(t, a.replayed())
	require.Equal(t, []string{"1"}, a.header["x-a"])
	require.Equal(t, []string{"2"}, a.trailer["x-t"])
	require.EqualValues(t, 1, w.svc.runs.Load())
}

// A handler that the deadline has stopped is unknown and not run again, also
// where its answer would release the key.
func TestDeadlineIsUnknown(t *testing.T) {
	for name, code := range map[string]codes.Code{"deadline": codes.DeadlineExceeded, "released otherwise": codes.Unauthenticated} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t, func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
				<-ctx.Done()
				return nil, status.Error(code, "too late")
			}, setup{outside: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
				if len(metadata.ValueFromIncomingContext(ctx, "brief")) == 0 {
					return next(ctx, req)
				}
				// As if the client had sent it, but counted from here: on a
				// slow machine the call itself might take longer.
				ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
				defer cancel()
				return next(ctx, req)
			}})
			brief := func() answer { return w.send(t, request("tea"), "idempotency-key", "k", "brief", "yes") }
			first := brief()
			if first.reason() == "STORE_UNAVAILABLE" {
				first = brief() // so slow that the deadline passed before the claim
			}
			require.Equal(t, code, first.code())
			a := w.keyed(t, "k", "tea")
			require.True(t, a.replayed())
			require.Equal(t, code, a.code())
			require.True(t, w.entry(t, "k").Unknown)
			require.EqualValues(t, 1, w.svc.runs.Load())
		})
	}
}

func TestPanicIsRecorded(t *testing.T) {
	w := start(t, func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) { panic("boom") }, setup{})
	require.ErrorContains(t, w.keyed(t, "k", "").err, "recovered: boom")
	a := w.keyed(t, "k", "")
	require.Equal(t, codes.Internal, a.code())
	require.Equal(t, "OPERATION_ABORTED", a.reason())
	require.True(t, a.replayed())
	require.Equal(t, "false", infoOf(t, a.err)["retryable"])
	require.EqualValues(t, 1, w.svc.runs.Load())
}

func TestStoreTrouble(t *testing.T) {
	for name, tt := range map[string]struct {
		err      error
		code     codes.Code
		reason   string
		pushback string
	}{
		"down":         {errors.New("connection refused"), codes.Unavailable, "STORE_UNAVAILABLE", "[1000]"},
		"full":         {idempotent.ErrFull, codes.Unavailable, "STORE_FULL", "[1000]"},
		"closed":       {idempotent.ErrClosed, codes.Unavailable, "STORE_UNAVAILABLE", "[1000]"},
		"newer format": {idempotent.ErrNewerFormat, codes.Unavailable, "STORE_UNAVAILABLE", "[1000]"},
		"corrupt":      {idempotent.ErrCorrupt, codes.DataLoss, "RECORD_CORRUPT", "[]"},
		"invalid":      {idempotent.ErrInvalid, codes.Internal, "INTERNAL", "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t, nil, setup{})
			w.store.Before(storetest.OpClaim, func(context.Context, string) error { return tt.err })
			a := w.keyed(t, "k", "tea")
			require.Equal(t, tt.code, a.code())
			require.Equal(t, tt.reason, a.reason())
			require.Equal(t, tt.pushback, a.pushback())
			require.Empty(t, a.header)
			require.NotContains(t, a.err.Error(), "connection")
			require.Zero(t, w.svc.runs.Load())
		})
	}
}

func TestDraining(t *testing.T) {
	w := start(t, nil, setup{})
	require.NoError(t, w.keyed(t, "done", "tea").err)
	require.NoError(t, w.guard.Drain(t.Context()))
	require.Equal(t, "STORE_UNAVAILABLE", w.keyed(t, "new", "tea").reason())
	require.Equal(t, "run 1", w.keyed(t, "done", "tea").text())
}

// The outcome is not on record, and the caller who has it gets it all the same.
func TestStoreDownAtCompletion(t *testing.T) {
	w := start(t, nil, setup{guard: []idempotent.Option{idempotent.WithLease(100 * time.Millisecond)}})
	w.store.Before(storetest.OpComplete, func(context.Context, string) error { return errors.New("down") })
	w.store.Before(storetest.OpRenew, func(context.Context, string) error { return errors.New("down") })
	require.Equal(t, "run 1", w.keyed(t, "k", "tea").text())
	require.Equal(t, "IN_FLIGHT", w.keyed(t, "k", "tea").reason())
	var a answer
	require.Eventually(t, func() bool {
		a = w.keyed(t, "k", "tea")
		return a.reason() != "IN_FLIGHT"
	}, time.Minute, time.Millisecond)
	require.Equal(t, codes.FailedPrecondition, a.code())
	require.Equal(t, "OUTCOME_UNKNOWN", a.reason())
	require.Equal(t, "[]", a.pushback())
	require.EqualValues(t, 1, w.svc.runs.Load())
}

func TestClaimLostWhileTheHandlerRuns(t *testing.T) {
	w := start(t, func(ctx context.Context, req *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		require.NoError(t, grpc.SetHeader(ctx, metadata.Pairs("x-a", "1")))
		<-ctx.Done()
		if string(req.GetPayload().GetBody()) == "milk" {
			return response("done all the same"), nil
		}
		return nil, ctx.Err()
	}, setup{guard: []idempotent.Option{idempotent.WithLease(30 * time.Millisecond)}})
	w.store.Before(storetest.OpRenew, func(context.Context, string) error { return idempotent.ErrLost })
	a := w.keyed(t, "k", "tea")
	require.Equal(t, codes.Aborted, a.code())
	require.Equal(t, "CLAIM_LOST", a.reason())
	require.Equal(t, "[-1]", a.pushback())
	require.Empty(t, a.header)

	a = w.keyed(t, "l", "milk")
	require.NoError(t, a.err, "the caller of a handler that has succeeded gets its answer")
	require.Equal(t, "done all the same", a.text())
	require.Equal(t, []string{"1"}, a.header["x-a"])
}

// What stands under the key of a call is refused unless it is a whole record
// of this release.
func TestRecordsThatCannotBeRead(t *testing.T) {
	good, err := grpcguard.EncodeResponse(response("done"), nil)
	require.NoError(t, err)
	for name, tt := range map[string]struct {
		result string
		code   codes.Code
		reason string
	}{
		"good":        {good, codes.OK, ""},
		"HTTP record": {"h\x01\x00", codes.DataLoss, "RECORD_CORRUPT"},
		"cut":         {good[:len(good)-1], codes.DataLoss, "RECORD_CORRUPT"},
		"longer":      {good + "x", codes.DataLoss, "RECORD_CORRUPT"},
		"newer":       {"g\x02" + good[2:], codes.Unavailable, "STORE_UNAVAILABLE"},
		"empty":       {"", codes.FailedPrecondition, "RESULT_UNAVAILABLE"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t, nil, setup{})
			require.NoError(t, w.keyed(t, "k", "tea").err)
			e := w.entry(t, "k")
			require.NoError(t, w.memory.Delete(t.Context(), e.Key))
			require.NoError(t, w.memory.Complete(t.Context(), e.Key, "other", idempotent.Outcome{
				Status: idempotent.Success, Result: tt.result, Fingerprint: e.Fingerprint, Retention: time.Hour,
			}))
			a := w.keyed(t, "k", "tea")
			require.Equal(t, tt.code, a.code())
			require.Equal(t, tt.reason, a.reason())
			require.EqualValues(t, 1, w.svc.runs.Load())
		})
	}
}

// An operator settles an unknown outcome; repeats get what the operator says.
func TestResolve(t *testing.T) {
	w := start(t, refuses(status.Error(codes.Internal, "who knows")), setup{})
	require.Equal(t, codes.Internal, w.keyed(t, "k", "tea").code())
	e := w.entry(t, "k")
	result, err := grpcguard.EncodeResponse(response("it happened"), nil)
	require.NoError(t, err)
	require.NoError(t, w.guard.Resolve(t.Context(), e.Key, e.Owner, idempotent.ClassSuccess, result))
	require.Equal(t, "it happened", w.keyed(t, "k", "tea").text())
	_, err = grpcguard.EncodeResponse(nil, nil)
	require.ErrorIs(t, err, idempotent.ErrInvalid)
}

func TestAnswersThatCannotBeRepeated(t *testing.T) {
	big := strings.Repeat("x", 2000)
	for name, tt := range map[string]struct {
		resp *testpb.SimpleResponse
		err  error
		code codes.Code // of the first answer
	}{
		"too long":         {response(big), nil, codes.OK},
		"too long a text":  {nil, status.Error(codes.NotFound, big), codes.NotFound},
		"no valid UTF-8":   {&testpb.SimpleResponse{Username: "\xff"}, nil, codes.Internal},
		"error without it": {nil, okError{}, codes.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t, func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) { return tt.resp, tt.err },
				setup{server: []grpcguard.Option{grpcguard.WithMaxResponse(1000)}})
			require.Equal(t, tt.code, w.keyed(t, "k", "tea").code())
			a := w.keyed(t, "k", "tea")
			require.Equal(t, codes.FailedPrecondition, a.code())
			require.Equal(t, "RESULT_UNAVAILABLE", a.reason())
			require.Equal(t, fmt.Sprint(tt.code == codes.NotFound), infoOf(t, a.err)["new_key_safe"])
			require.NotEmpty(t, infoOf(t, a.err)["original_code"])
			require.EqualValues(t, 1, w.svc.runs.Load())
		})
	}
}

// okError is an error with the status OK.
type okError struct{}

func (okError) Error() string              { return "fine" }
func (okError) GRPCStatus() *status.Status { return status.New(codes.OK, "") }

// A handler that sends its headers at once is obeyed; afterwards they are
// final, as without the interceptor.
func TestHeadersSentEarly(t *testing.T) {
	sent, finish := make(chan struct{}), make(chan struct{})
	w := start(t, func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		require.NoError(t, grpc.SetHeader(ctx, metadata.Pairs("x-a", "1")))
		require.NoError(t, grpc.SendHeader(ctx, metadata.Pairs("x-b", "2")))
		require.Error(t, grpc.SetHeader(ctx, metadata.Pairs("x-c", "3")))
		close(sent)
		<-finish
		return response("done"), nil
	}, setup{})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stream, err := w.conn.NewStream(metadata.AppendToOutgoingContext(ctx, "idempotency-key", "k"), &grpc.StreamDesc{}, unaryCall)
	require.NoError(t, err)
	require.NoError(t, stream.SendMsg(request("tea")))
	require.NoError(t, stream.CloseSend())
	header, err := stream.Header() // while the handler waits
	require.NoError(t, err)
	require.Equal(t, []string{"1"}, header["x-a"])
	require.Equal(t, []string{"2"}, header["x-b"])
	<-sent
	close(finish)
	require.NoError(t, stream.RecvMsg(new(testpb.SimpleResponse)))
	a := w.keyed(t, "k", "tea")
	require.Equal(t, []string{"1"}, a.header["x-a"])
	require.Equal(t, []string{"2"}, a.header["x-b"])
	require.Empty(t, a.header["x-c"])
}

// What a goroutine adds after the handler has returned is neither sent nor
// recorded.
func TestHeadersTooLate(t *testing.T) {
	contexts := make(chan context.Context, 1)
	w := start(t, func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		contexts <- ctx
		return response("done"), nil
	}, setup{outside: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		resp, err := next(ctx, req)
		select {
		case late := <-contexts:
			require.Error(t, grpc.SetHeader(late, metadata.Pairs("x-late", "1")))
			require.Error(t, grpc.SendHeader(late, metadata.Pairs("x-late", "1")))
			require.Error(t, grpc.SetTrailer(late, metadata.Pairs("x-late", "1")))
		default:
		}
		return resp, err
	}})
	for range 2 {
		a := w.keyed(t, "k", "tea")
		require.NoError(t, a.err)
		require.Empty(t, a.header["x-late"])
		require.Empty(t, a.trailer["x-late"])
	}
}

// Headers of outer interceptors are those of this attempt.
func TestHeadersOfOuterInterceptors(t *testing.T) {
	n := 0
	w := start(t, nil, setup{outside: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		n++
		require.NoError(t, grpc.SetHeader(ctx, metadata.Pairs("x-attempt", fmt.Sprint(n))))
		return next(ctx, req)
	}})
	require.Equal(t, []string{"1"}, w.keyed(t, "k", "tea").header["x-attempt"])
	require.Equal(t, []string{"2"}, w.keyed(t, "k", "tea").header["x-attempt"])
}

// A program that calls the interceptor without a stream, as tests do.
func TestWithoutAStream(t *testing.T) {
	w := start(t, nil, setup{})
	intercept := grpcguard.UnaryServerInterceptor(w.guard, grpcguard.Anonymous)
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("idempotency-key", "k"))
	info := &grpc.UnaryServerInfo{FullMethod: unaryCall}
	runs := 0
	handler := func(context.Context, any) (any, error) {
		runs++
		return response("done"), nil
	}
	for range 2 {
		resp, err := intercept(ctx, request("tea"), info, handler)
		require.NoError(t, err)
		require.Equal(t, "done", string(resp.(*testpb.SimpleResponse).GetPayload().GetBody()))
	}
	_, err := intercept(ctx, "no message", info, handler)
	require.Equal(t, grpcguard.ReasonInternal, grpcguard.Reason(err))
	require.Equal(t, 1, runs)

	// A message of the old API is as good.
	old := protoadapt.MessageV1Of(request("tea"))
	resp, err := intercept(ctx, old, info, handler)
	require.NoError(t, err)
	require.NotNil(t, resp)
	require.Equal(t, 1, runs)
}

func TestConstructorsPanic(t *testing.T) {
	guard := start(t, nil, setup{}).guard
	for name, f := range map[string]func(){
		"no guard":           func() { grpcguard.UnaryServerInterceptor(nil, grpcguard.Anonymous) },
		"no principal":       func() { grpcguard.UnaryServerInterceptor(guard, nil) },
		"no methods":         func() { grpcguard.WithMethods() },
		"no method":          func() { grpcguard.WithMethods("Orders/Create") },
		"no metadata":        func() { grpcguard.WithMetadata() },
		"binary metadata":    func() { grpcguard.WithMetadata("key-bin") },
		"reserved metadata":  func() { grpcguard.WithMetadata("grpc-key") },
		"no trace":           func() { grpcguard.WithTraceMetadata("") },
		"no key function":    func() { grpcguard.WithKeyFunc(nil) },
		"no field":           func() { grpcguard.RequestField("a.") },
		"no policy":          func() { grpcguard.WithKeyPolicy(nil) },
		"no classification":  func() { grpcguard.WithClassify(nil) },
		"negative size":      func() { grpcguard.WithMaxResponse(-1) },
		"no logger":          func() { grpcguard.WithLogger(nil) },
		"client, wrong side": func() { grpcguard.UnaryClientInterceptor(grpcguard.WithOptionalKey()) },
	} {
		require.Panics(t, f, name)
	}
}

// An operator is told which record cannot be read and what kind of error a
// function has returned, and no more.
func TestLog(t *testing.T) {
	var lines bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&lines, nil))
	w := start(t, nil, setup{})
	intercept := func(ctx context.Context, p grpcguard.PrincipalFunc) error {
		_, err := grpcguard.UnaryServerInterceptor(w.guard, p, grpcguard.WithLogger(logger))(
			ctx, request("tea"), &grpc.UnaryServerInfo{FullMethod: unaryCall}, func(context.Context, any) (any, error) { return response("done"), nil })
		return err
	}
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("idempotency-key", "the-key"))
	require.NoError(t, intercept(ctx, grpcguard.Anonymous))
	require.Empty(t, lines.String())
	e := w.entry(t, "the-key")
	require.NoError(t, w.memory.Delete(t.Context(), e.Key))
	require.NoError(t, w.memory.Complete(t.Context(), e.Key, "other", idempotent.Outcome{
		Status: idempotent.Success, Result: "junk", Fingerprint: e.Fingerprint, Retention: time.Hour,
	}))
	require.Equal(t, "RECORD_CORRUPT", grpcguard.Reason(intercept(ctx, grpcguard.Anonymous)))
	sum := sha256.Sum256([]byte(e.Key))
	require.Contains(t, lines.String(), "key="+hex.EncodeToString(sum[:8])+" ")
	require.Equal(t, "INTERNAL", grpcguard.Reason(intercept(ctx, func(context.Context) (string, error) { return "", errors.New("secret text") })))
	require.Contains(t, lines.String(), "err=*errors.errorString")
	for _, secret := range []string{"the-key", "anonymous", "secret", "junk"} {
		require.NotContains(t, lines.String(), secret)
	}
}
