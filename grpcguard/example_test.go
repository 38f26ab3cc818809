package grpcguard_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/grpcguard"
	"github.com/idempotent-go/idempotent/memstore"
)

// shop is a service; yours is generated from your own .proto file.
type shop struct {
	testpb.UnimplementedTestServiceServer
	orders int
}

func (s *shop) UnaryCall(_ context.Context, req *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	s.orders++
	return &testpb.SimpleResponse{Username: fmt.Sprintf("order %d: %s", s.orders, req.GetPayload().GetBody())}, nil
}

type userKey struct{}

// authentication stands for what finds out who is calling.
func authentication(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	return next(context.WithValue(ctx, userKey{}, "user-1"), req)
}

// principal is a stable id that authentication has found, not the token.
func principal(ctx context.Context) (string, error) {
	user, _ := ctx.Value(userKey{}).(string)
	return user, nil
}

func Example() {
	store := memstore.New()
	defer store.Close()
	guard := idempotent.New(store)
	srv := grpc.NewServer(grpc.ChainUnaryInterceptor(authentication, grpcguard.UnaryServerInterceptor(guard, principal)))
	testpb.RegisterTestServiceServer(srv, &shop{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() { _ = srv.Serve(listener) }()
	defer srv.Stop()

	conn, err := grpc.NewClient(listener.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(grpcguard.UnaryClientInterceptor()),
		grpc.WithDefaultServiceConfig(grpcguard.ServiceConfig))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	client := testpb.NewTestServiceClient(conn)

	// The key is kept with the operation, so that it survives a restart.
	// Without it, each call is an operation of its own.
	ctx := grpcguard.ContextWithKey(context.Background(), grpcguard.NewKey())
	for _, item := range []string{"tea", "tea", "milk"} {
		order, err := client.UnaryCall(ctx, &testpb.SimpleRequest{Payload: &testpb.Payload{Body: []byte(item)}})
		if err != nil {
			fmt.Println(grpcguard.Reason(err))
			continue
		}
		fmt.Println(order.GetUsername())
	}
	// Output:
	// order 1: tea
	// order 1: tea
	// KEY_REUSED
}

func ExampleRequestField() {
	guard := idempotent.New(memstore.New())
	// The key is the field that AIP-155 names.
	interceptor := grpcguard.UnaryServerInterceptor(guard, grpcguard.Anonymous,
		grpcguard.WithKeyFunc(grpcguard.RequestField("request_id")))
	srv := grpc.NewServer(grpc.ChainUnaryInterceptor(interceptor))
	defer srv.Stop()
	// Output:
}
