package grpcguard_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/idempotent-go/idempotent/grpcguard"
)

// Streams pass through, with a key as without one.
func TestStreamsPassThrough(t *testing.T) {
	w := start(t, nil, setup{})
	for range 2 {
		stream, err := w.client.StreamingOutputCall(metadata.AppendToOutgoingContext(t.Context(), "idempotency-key", "k"), &testpb.StreamingOutputCallRequest{})
		require.NoError(t, err)
		_, err = stream.Recv()
		require.NoError(t, err)
		_, err = stream.Recv()
		require.ErrorIs(t, err, io.EOF)
	}
	require.EqualValues(t, 2, w.svc.runs.Load())
	require.Zero(t, w.memory.Len())
}

func TestOptionalKey(t *testing.T) {
	w := start(t, nil, setup{server: []grpcguard.Option{grpcguard.WithOptionalKey()}})
	for _, want := range []string{"run 1", "run 2"} {
		a := w.send(t, request("tea"))
		require.Equal(t, want, a.text())
		require.False(t, a.replayed())
	}
	require.Zero(t, w.memory.Len())
	require.Equal(t, "KEY_INVALID", w.keyed(t, "", "tea").reason(), "an empty key is not a missing one")
	require.Equal(t, "run 3", w.keyed(t, "k", "tea").text())
	require.Equal(t, "run 3", w.keyed(t, "k", "tea").text())
}

func TestKeyInTheRequest(t *testing.T) {
	with := func(key, body string) *testpb.SimpleRequest {
		req := request(body)
		req.ResponseStatus = &testpb.EchoStatus{Message: key}
		return req
	}
	w := start(t, nil, setup{server: []grpcguard.Option{grpcguard.WithKeyFunc(grpcguard.RequestField("response_status.message"))}})
	require.Equal(t, "run 1", w.send(t, with("a", "tea")).text())
	require.Equal(t, "run 1", w.send(t, with("a", "tea")).text())
	require.Equal(t, "run 2", w.send(t, with("b", "tea")).text())
	require.Equal(t, "KEY_REUSED", w.send(t, with("a", "milk")).reason())
	require.Equal(t, "KEY_MISSING", w.send(t, request("tea"), "idempotency-key", "elsewhere").reason())
	require.Equal(t, "KEY_MISSING", w.send(t, with("", "tea")).reason())
	require.Equal(t, "KEY_INVALID", w.send(t, with("a b", "tea")).reason())

	optional := start(t, nil, setup{server: []grpcguard.Option{grpcguard.WithKeyFunc(grpcguard.RequestField("response_status.message")), grpcguard.WithOptionalKey()}})
	require.Equal(t, "run 1", optional.send(t, request("tea")).text())
	require.Equal(t, "run 2", optional.send(t, request("tea")).text())

	for _, path := range []string{"request_id", "payload", "payload.body", "fill_username", "response_status.message.text", "payload.type"} {
		w := start(t, nil, setup{server: []grpcguard.Option{grpcguard.WithKeyFunc(grpcguard.RequestField(path))}})
		require.Equal(t, "KEY_INVALID", w.send(t, with("a", "tea")).reason(), path)
		require.Zero(t, w.svc.runs.Load())
	}
	failing := start(t, nil, setup{server: []grpcguard.Option{grpcguard.WithOptionalKey(), grpcguard.WithKeyFunc(func(context.Context, *grpc.UnaryServerInfo, any) (string, error) {
		return "", errors.New("secret text")
	})}})
	a := failing.send(t, request("tea"))
	require.Equal(t, "KEY_INVALID", a.reason())
	require.NotContains(t, a.err.Error(), "secret")
}

func TestMethodsThatAreGuarded(t *testing.T) {
	health := func(w *world) error {
		_, err := healthpb.NewHealthClient(w.conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
		return err
	}
	w := start(t, nil, setup{})
	require.NoError(t, health(w))
	require.Equal(t, "KEY_MISSING", w.send(t, request("tea")).reason())

	w = start(t, nil, setup{server: []grpcguard.Option{grpcguard.WithMethods("/grpc.testing.TestService/CacheableUnaryCall", "/grpc.health.v1.Health/")}})
	require.Equal(t, "KEY_MISSING", grpcguard.Reason(health(w)))
	require.NoError(t, w.send(t, request("tea")).err)
	_, err := w.client.CacheableUnaryCall(t.Context(), request("tea"))
	require.Equal(t, "KEY_MISSING", grpcguard.Reason(err))
}

// registerHarmless registers a service whose .proto file says what its methods
// do; a process can do so once.
var registerHarmless = sync.OnceValue(func() error {
	method := func(name string, level *descriptorpb.MethodOptions_IdempotencyLevel) *descriptorpb.MethodDescriptorProto {
		m := &descriptorpb.MethodDescriptorProto{Name: proto.String(name), InputType: proto.String(".google.protobuf.MethodOptions"), OutputType: proto.String(".google.protobuf.MethodOptions")}
		if level != nil {
			m.Options = &descriptorpb.MethodOptions{IdempotencyLevel: level}
		}
		return m
	}
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("harmless_test.proto"), Package: proto.String("harmless"), Syntax: proto.String("proto3"),
		Dependency: []string{"google/protobuf/descriptor.proto"},
		Service: []*descriptorpb.ServiceDescriptorProto{{Name: proto.String("S"), Method: []*descriptorpb.MethodDescriptorProto{
			method("Read", descriptorpb.MethodOptions_NO_SIDE_EFFECTS.Enum()),
			method("Put", descriptorpb.MethodOptions_IDEMPOTENT.Enum()),
			method("Create", nil),
		}}},
	}, protoregistry.GlobalFiles)
	if err != nil {
		return err
	}
	return protoregistry.GlobalFiles.RegisterFile(file)
})

// A method that its .proto file calls harmless passes.
func TestHarmlessMethods(t *testing.T) {
	require.NoError(t, registerHarmless())
	intercept := grpcguard.UnaryServerInterceptor(start(t, nil, setup{}).guard, grpcguard.Anonymous)
	for name, guarded := range map[string]bool{"Read": false, "Put": false, "Create": true, "Other": true} {
		_, err := intercept(t.Context(), &descriptorpb.MethodOptions{}, &grpc.UnaryServerInfo{FullMethod: "/harmless.S/" + name},
			func(context.Context, any) (any, error) { return nil, nil })
		require.Equal(t, guarded, err != nil, name)
	}
}
