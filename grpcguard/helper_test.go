package grpcguard_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/grpcguard"
	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/storetest"
)

const unaryCall = "/grpc.testing.TestService/UnaryCall"

type handlerFunc = func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error)

// service is what the tests protect.
type service struct {
	testpb.UnimplementedTestServiceServer
	handle handlerFunc
	runs   atomic.Int32
}

func (s *service) UnaryCall(ctx context.Context, req *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	s.runs.Add(1)
	return s.handle(ctx, req)
}

func (s *service) CacheableUnaryCall(ctx context.Context, req *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return s.UnaryCall(ctx, req)
}

func (s *service) StreamingOutputCall(_ *testpb.StreamingOutputCallRequest, stream grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	s.runs.Add(1)
	return stream.Send(&testpb.StreamingOutputCallResponse{})
}

// setup is what one test wants different.
type setup struct {
	guard     []idempotent.Option
	server    []grpcguard.Option
	client    []grpc.DialOption
	principal grpcguard.PrincipalFunc
	outside   grpc.UnaryServerInterceptor
}

// world is a real server and a real client, over TCP.
type world struct {
	memory *memstore.Store
	store  *storetest.Faulty
	guard  *idempotent.Guard
	svc    *service
	conn   *grpc.ClientConn
	client testpb.TestServiceClient

	mu       sync.Mutex
	attempts []metadata.MD // as they reached the server
}

func start(t *testing.T, handle handlerFunc, with setup) *world {
	t.Helper()
	if handle == nil {
		handle = count()
	}
	w := &world{memory: memstore.New(), svc: &service{handle: handle}}
	t.Cleanup(func() { require.NoError(t, w.memory.Close()) })
	w.store = storetest.NewFaulty(w.memory)
	w.guard = idempotent.New(w.store, append([]idempotent.Option{idempotent.WithLogger(slog.New(slog.DiscardHandler))}, with.guard...)...)
	if with.principal == nil {
		with.principal = grpcguard.Anonymous
	}
	if with.outside == nil {
		with.outside = func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			return next(ctx, req)
		}
	}
	quiet := grpcguard.WithLogger(slog.New(slog.DiscardHandler))
	srv := grpc.NewServer(grpc.ChainUnaryInterceptor(w.watch, with.outside,
		grpcguard.UnaryServerInterceptor(w.guard, with.principal, append([]grpcguard.Option{quiet}, with.server...)...)))
	testpb.RegisterTestServiceServer(srv, w.svc)
	healthpb.RegisterHealthServer(srv, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(listener) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-served; err != grpc.ErrServerStopped { // which a test gets that is faster than Serve
			require.NoError(t, err)
		}
	})
	w.conn, err = grpc.NewClient(listener.Addr().String(),
		append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, with.client...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.conn.Close()) })
	w.client = testpb.NewTestServiceClient(w.conn)
	return w
}

// watch notes every attempt and recovers, as the recovery of a service does.
func (w *world) watch(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
	md, _ := metadata.FromIncomingContext(ctx)
	w.mu.Lock()
	w.attempts = append(w.attempts, md)
	w.mu.Unlock()
	defer func() {
		if r := recover(); r != nil {
			err = status.Errorf(codes.Internal, "recovered: %v", r)
		}
	}()
	return next(ctx, req)
}

func (w *world) seen() []metadata.MD {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.attempts
}

// answer is all that a client gets.
type answer struct {
	resp            *testpb.SimpleResponse
	err             error
	header, trailer metadata.MD
}

func (a answer) text() string     { return string(a.resp.GetPayload().GetBody()) }
func (a answer) code() codes.Code { return status.Code(a.err) }
func (a answer) reason() string   { return grpcguard.Reason(a.err) }
func (a answer) pushback() string { return fmt.Sprint(a.trailer["grpc-retry-pushback-ms"]) }
func (a answer) replayed() bool   { return len(a.header[grpcguard.ReplayedMetadata]) > 0 }
func request(s string) *testpb.SimpleRequest {
	return &testpb.SimpleRequest{Payload: &testpb.Payload{Body: []byte(s)}}
}

// send makes one call; md are names and values of metadata.
func (w *world) send(t *testing.T, req *testpb.SimpleRequest, md ...string) (a answer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	a.resp, a.err = w.client.UnaryCall(metadata.AppendToOutgoingContext(ctx, md...), req, grpc.Header(&a.header), grpc.Trailer(&a.trailer))
	return a
}

func (w *world) keyed(t *testing.T, key, body string) answer {
	t.Helper()
	return w.send(t, request(body), "idempotency-key", key)
}

// count answers each run with its number.
func count() handlerFunc {
	var n atomic.Int32
	return func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		return response(fmt.Sprint("run ", n.Add(1))), nil
	}
}

func response(s string) *testpb.SimpleResponse {
	return &testpb.SimpleResponse{Payload: &testpb.Payload{Body: []byte(s)}}
}

// refuses answers each run with the error.
func refuses(err error) handlerFunc {
	return func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) { return nil, err }
}

func (w *world) entry(t *testing.T, key string) idempotent.Entry {
	t.Helper()
	e, ok, err := w.memory.Load(t.Context(), grpcguard.StoreKey(unaryCall, "anonymous", key))
	require.NoError(t, err)
	require.True(t, ok)
	return e
}
