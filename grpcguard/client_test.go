package grpcguard_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/hedgepolicy"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/grpcguard"
	"github.com/idempotent-go/idempotent/storetest"
)

// retrying is a client with keys and the retry policy of the package.
func retrying(opts ...grpcguard.Option) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(grpcguard.UnaryClientInterceptor(opts...)),
		grpc.WithDefaultServiceConfig(grpcguard.ServiceConfig),
	}
}

// keys are those of all attempts.
func (w *world) keys(name string) (keys []string) {
	for _, md := range w.seen() {
		keys = append(keys, strings.Join(md[name], " and "))
	}
	return keys
}

// A call refused for the store's sake is tried again by gRPC itself, with the
// same key.
func TestOneKeyOnAllAttempts(t *testing.T) {
	w := start(t, nil, setup{client: retrying()})
	var refusals atomic.Int32
	w.store.Before(storetest.OpClaim, func(context.Context, string) error {
		if refusals.Add(1) == 1 {
			return errors.New("down")
		}
		return nil
	})
	a := w.send(t, request("tea"))
	require.NoError(t, a.err)
	require.Equal(t, "run 1", a.text())
	keys := w.keys("idempotency-key")
	require.Len(t, keys, 2)
	require.Equal(t, keys[0], keys[1])
	require.Equal(t, []string{"1"}, w.seen()[1]["grpc-previous-rpc-attempts"])
	id, err := uuid.Parse(keys[0])
	require.NoError(t, err)
	require.EqualValues(t, 7, id.Version())

	require.Equal(t, "run 2", w.send(t, request("tea")).text(), "another call is another operation")
	require.NotEqual(t, keys[0], w.keys("idempotency-key")[2])
}

// hedge sends a call again while no answer that is final has come: grpc-go has no
// hedging of its own. The first final answer is that of the call, and ends what
// is left.
func hedge(attempts int) grpc.UnaryClientInterceptor {
	policy := hedgepolicy.NewBuilderWithDelay[proto.Message](time.Millisecond).
		WithMaxHedges(attempts - 1).
		CancelIf(func(_ proto.Message, err error) bool {
			return status.Code(err) != codes.Aborted && status.Code(err) != codes.Unavailable
		}).Build()
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		answer, err := failsafe.With(policy).WithContext(ctx).GetWithExecution(func(attempt failsafe.Execution[proto.Message]) (proto.Message, error) {
			answer := &testpb.SimpleResponse{} // each attempt has its own
			return answer, invoker(attempt.Context(), method, req, answer, cc, opts...)
		})
		if err == nil {
			proto.Merge(reply.(proto.Message), answer)
		}
		return err
	}
}

// A hedged call has one key for all its attempts, whichever of them runs: it
// runs once, and the caller gets its answer.
func TestHedgedCall(t *testing.T) {
	const attempts = 4
	asked, all := make(chan struct{}, attempts), make(chan struct{})
	w := start(t, func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		<-all
		return response("done"), nil
	}, setup{client: []grpc.DialOption{grpc.WithChainUnaryInterceptor(grpcguard.UnaryClientInterceptor(), hedge(attempts))}})
	w.store.After(storetest.OpClaim, func(context.Context, string) error {
		asked <- struct{}{}
		return nil
	})
	go func() {
		for range attempts {
			<-asked
		}
		close(all)
	}()
	resp, err := w.client.UnaryCall(t.Context(), request("tea"))
	require.NoError(t, err)
	require.Equal(t, "done", string(resp.GetPayload().GetBody()))
	require.EqualValues(t, 1, w.svc.runs.Load())

	keys := w.keys("idempotency-key")
	require.Len(t, keys, attempts)
	require.Len(t, slices.Compact(keys), 1)

	// Hedged once more, after a restart of the caller, it is a replay.
	ctx := grpcguard.ContextWithKey(t.Context(), keys[0])
	w.store.After(storetest.OpClaim, nil)
	resp, err = w.client.UnaryCall(ctx, request("tea"))
	require.NoError(t, err)
	require.Equal(t, "done", string(resp.GetPayload().GetBody()))
	require.EqualValues(t, 1, w.svc.runs.Load())
}

// The retry policy asks again while the first attempt is in flight, at the
// server's pace, and ends with the recorded answer.
func TestInFlightIsRetried(t *testing.T) {
	begun, finish := make(chan struct{}), make(chan struct{})
	lease := idempotent.WithLease(40 * time.Millisecond) // also the pushback
	w := start(t, func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		close(begun)
		<-finish
		return response("done"), nil
	}, setup{client: retrying(), guard: []idempotent.Option{lease}})
	refused := make(chan struct{}, 10)
	w.store.After(storetest.OpClaim, func(context.Context, string) error {
		refused <- struct{}{}
		return nil
	})
	ctx := grpcguard.ContextWithKey(t.Context(), "k")
	results := make(chan error, 2)
	call := func() {
		_, err := w.client.UnaryCall(ctx, request("tea"))
		results <- err
	}
	go call()
	<-begun
	<-refused
	go call()
	<-refused // the second is told ABORTED
	close(finish)
	require.NoError(t, <-results)
	require.NoError(t, <-results)
	require.EqualValues(t, 1, w.svc.runs.Load())
	keys := w.keys("idempotency-key")
	require.GreaterOrEqual(t, len(keys), 3)
	for _, key := range keys {
		require.Equal(t, "k", key)
	}
}

// Nothing but UNAVAILABLE and in-flight ABORTED is tried again: not what is
// recorded, whatever its code, and no refusal that stays.
func TestFinalAnswersAreNotRetried(t *testing.T) {
	for name, tt := range map[string]struct {
		handle   handlerFunc
		attempts int
		runs     int32
	}{
		"recorded ABORTED":     {refuses(status.Error(codes.Aborted, "conflict")), 1, 1},
		"recorded UNAVAILABLE": {refuses(status.Error(codes.Unavailable, "bank is down")), 1, 1},
		"INTERNAL":             {refuses(status.Error(codes.Internal, "bug")), 1, 1},
		"handler's own pushback": {func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			_ = grpc.SetTrailer(ctx, metadata.Pairs("grpc-retry-pushback-ms", "1"))
			return nil, status.Error(codes.Unavailable, "ask again")
		}, 2, 1},
		"released UNAVAILABLE": {func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			idempotent.Release(ctx)
			_ = grpc.SetTrailer(ctx, metadata.Pairs("grpc-retry-pushback-ms", "1"))
			return nil, status.Error(codes.Unavailable, "shed")
		}, 5, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t, tt.handle, setup{client: retrying()})
			a := w.send(t, request("tea"))
			require.Error(t, a.err)
			require.Len(t, w.seen(), tt.attempts)
			require.Equal(t, tt.runs, w.svc.runs.Load())
			key, ok := grpcguard.KeyOf(a.err)
			require.True(t, ok)
			require.Equal(t, w.keys("idempotency-key")[0], key)
			again := w.send(t, request("tea"), "idempotency-key", key)
			require.Equal(t, tt.runs > 1, !again.replayed())
		})
	}
}

func TestKeysOfClients(t *testing.T) {
	w := start(t, nil, setup{
		client: retrying(grpcguard.WithMetadata("x-key", "idempotency-key"), grpcguard.WithMethods("/grpc.testing.TestService/")),
		server: []grpcguard.Option{grpcguard.WithMetadata("x-key", "idempotency-key")},
	})
	ctx := grpcguard.ContextWithKey(t.Context(), "mine")
	_, err := w.client.UnaryCall(ctx, request("tea"))
	require.NoError(t, err)
	_, err = w.client.UnaryCall(metadata.AppendToOutgoingContext(ctx, "idempotency-key", "by hand"), request("tea"))
	require.Equal(t, grpcguard.ReasonKeyInvalid, grpcguard.Reason(err), "sent as it is")
	_, err = w.client.UnaryCall(grpcguard.ContextWithKey(ctx, ""), request("tea"))
	require.NoError(t, err)
	_, err = healthpb.NewHealthClient(w.conn).Check(ctx, &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	seen := w.seen()
	require.Equal(t, []string{"mine"}, seen[0]["x-key"])
	require.Empty(t, seen[1]["x-key"])
	require.Equal(t, []string{"by hand"}, seen[1]["idempotency-key"])
	require.NoError(t, uuid.Validate(seen[2]["x-key"][0]))
	require.Empty(t, seen[3]["x-key"])
}

func TestCallError(t *testing.T) {
	w := start(t, refuses(status.Error(codes.NotFound, "no tea")), setup{client: retrying()})
	_, err := w.client.UnaryCall(grpcguard.ContextWithKey(t.Context(), "k"), request("tea"))
	require.Equal(t, codes.NotFound, status.Code(err))
	st, ok := status.FromError(err)
	require.True(t, ok)
	require.Equal(t, "no tea", st.Message())
	require.Equal(t, status.Convert(errors.Unwrap(err)).Proto().String(), st.Proto().String())
	require.Equal(t, errors.Unwrap(err).Error(), err.Error())
	key, ok := grpcguard.KeyOf(err)
	require.True(t, ok)
	require.Equal(t, "k", key)
	_, ok = grpcguard.KeyOf(errors.New("other"))
	require.False(t, ok)
	require.Empty(t, grpcguard.Reason(nil))
	require.NotEqual(t, grpcguard.NewKey(), grpcguard.NewKey())
}

// Deadline and trace of a call reach the handler, the record and the handler's
// own outgoing calls; the key does not go on.
func TestContextTravels(t *testing.T) {
	arrived := make(chan metadata.MD, 2)
	deadlines := make(chan time.Time, 3)
	listener := bufconn.Listen(1 << 16)
	srv := grpc.NewServer()
	testpb.RegisterTestServiceServer(srv, &service{handle: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		arrived <- md
		d, _ := ctx.Deadline()
		deadlines <- d
		return response("ok"), nil
	}})
	go func() { _ = srv.Serve(listener) }()
	t.Cleanup(srv.Stop)
	conn, err := grpc.NewClient("passthrough:///behind", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return listener.Dial() }))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	behind := testpb.NewTestServiceClient(conn)

	executions := make(chan idempotent.Execution, 1)
	w := start(t, func(ctx context.Context, req *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		x, _ := idempotent.FromContext(ctx)
		executions <- x
		d, _ := ctx.Deadline()
		deadlines <- d
		return behind.UnaryCall(ctx, req)
	}, setup{outside: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if len(metadata.ValueFromIncomingContext(ctx, "instrumented")) > 0 {
			ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", "00-span")
		}
		return next(ctx, req)
	}})
	call := func(key string, md ...string) (time.Time, metadata.MD) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err := w.client.UnaryCall(metadata.AppendToOutgoingContext(ctx, append(md, "idempotency-key", key)...), request("tea"))
		require.NoError(t, err)
		deadline, _ := ctx.Deadline()
		return deadline, <-arrived
	}

	deadline, md := call("k", "x-request-id", "req-1", "traceparent", "00-1", "tracestate", "a=1", "authorization", "secret")
	require.Equal(t, "req-1", (<-executions).Trace)
	require.Equal(t, "req-1", w.entry(t, "k").Trace)
	for range 2 {
		require.WithinDuration(t, deadline, <-deadlines, 30*time.Second)
	}
	require.Equal(t, []string{"req-1"}, md["x-request-id"])
	require.Equal(t, []string{"00-1"}, md["traceparent"])
	require.Equal(t, []string{"a=1"}, md["tracestate"])
	require.Empty(t, md["idempotency-key"])
	require.Empty(t, md["authorization"])

	// Instrumentation that has a span of its own goes first; a trace that
	// could not be logged is none.
	_, md = call("l", "x-request-id", strings.Repeat("r", 256), "traceparent", "00-1", "instrumented", "yes")
	require.Equal(t, "00-1", (<-executions).Trace)
	require.Equal(t, []string{"00-span"}, md["traceparent"])
}

func TestTraceMetadata(t *testing.T) {
	traces := make(chan string, 1)
	w := start(t, func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		x, _ := idempotent.FromContext(ctx)
		traces <- x.Trace
		return response("ok"), nil
	}, setup{server: []grpcguard.Option{grpcguard.WithTraceMetadata("X-Correlation")}})
	require.NoError(t, w.send(t, request("tea"), "idempotency-key", "k", "x-correlation", "c-1", "x-request-id", "r-1").err)
	require.Equal(t, "c-1", <-traces)
}
