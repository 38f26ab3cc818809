package grpcguard

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// ServiceConfig makes a client of grpc.NewClient, by
// grpc.WithDefaultServiceConfig, repeat calls that were not carried out or may
// be asked for again: UNAVAILABLE, and ABORTED where the first attempt is still
// in flight. A server with [UnaryServerInterceptor] tells the client's retry
// policy how long to wait, and stops it for every other ABORTED and for
// UNAVAILABLE that is recorded.
//
// It speaks of all methods. Use it together with [UnaryClientInterceptor], and
// where some methods of a server are not guarded, write the guarded ones into
// "name": a connection that breaks after the request was sent is UNAVAILABLE,
// too.
const ServiceConfig = `{
	"methodConfig": [{
		"name": [{}],
		"retryPolicy": {
			"maxAttempts": 5,
			"initialBackoff": "0.1s",
			"maxBackoff": "2s",
			"backoffMultiplier": 2,
			"retryableStatusCodes": ["UNAVAILABLE", "ABORTED"]
		}
	}],
	"retryThrottling": {"maxTokens": 100, "tokenRatio": 0.1}
}`

// NewKey returns a new key, a UUIDv7. Keep it where the operation is kept, so
// that a retry after a restart uses the same one.
func NewKey() string {
	return uuid.Must(uuid.NewV7()).String() // crypto/rand does not fail
}

type clientKey struct{}

// ContextWithKey returns a context whose calls carry key, for one operation
// that is tried again by the caller. Metadata that already carries a key is
// left alone. The key must be 1 to 255 visible ASCII characters without quotes,
// commas and semicolons; "" lets the interceptor make one.
func ContextWithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, clientKey{}, key)
}

// UnaryClientInterceptor returns an interceptor that gives each unary call of a
// guarded method one key, a new one unless the caller has set it, by
// [ContextWithKey] or as metadata. It makes the key before the first attempt,
// so that gRPC's own retries and hedged attempts, which happen below all
// interceptors, carry the same one. An interceptor that retries must come
// after this one in the chain, or every attempt gets a key of its own.
//
// Errors of keyed calls are a [*CallError] around the status and name the key:
// where the outcome is not known, try again with it, never with a new one.
//
// It panics on an option that is for servers only, and is safe for concurrent
// use.
func UnaryClientInterceptor(opts ...Option) grpc.UnaryClientInterceptor {
	for _, o := range opts {
		if o.apply != nil && !o.client {
			panic("grpcguard: UnaryClientInterceptor: " + o.name + " is an option of servers")
		}
	}
	s := newSettings(opts)
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, callOpts ...grpc.CallOption) error {
		if !s.guards(method) {
			return invoker(ctx, method, req, reply, cc, callOpts...)
		}
		ctx, key := s.keyed(ctx)
		if err := invoker(ctx, method, req, reply, cc, callOpts...); err != nil {
			return &CallError{Key: key, Err: err}
		}
		return nil
	}
}

// keyed returns a context whose call carries a key, and the key.
func (s *settings) keyed(ctx context.Context) (context.Context, string) {
	md, _ := metadata.FromOutgoingContext(ctx)
	for _, name := range s.names {
		if values := md.Get(name); len(values) > 0 {
			return ctx, values[0]
		}
	}
	key, _ := ctx.Value(clientKey{}).(string)
	if key == "" {
		key = NewKey()
	}
	return metadata.AppendToOutgoingContext(ctx, s.names[0], key), key
}

// CallError is an error of a keyed call. For package status it is the status
// that the call has ended with.
type CallError struct {
	Key string // that the call was made with; the same for the next attempt
	Err error  // of the call
}

func (e *CallError) Error() string { return e.Err.Error() }
func (e *CallError) Unwrap() error { return e.Err }

// GRPCStatus returns the status of Err.
func (e *CallError) GRPCStatus() *status.Status { return statusOf(e.Err) }

// KeyOf returns the key of a failed call, and false where err has none.
func KeyOf(err error) (key string, ok bool) {
	var e *CallError
	if errors.As(err, &e) {
		return e.Key, true
	}
	return "", false
}
