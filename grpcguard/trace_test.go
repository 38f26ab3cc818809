package grpcguard

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
)

// What cannot be sent on would make the handler's own call fail.
func TestPassTrace(t *testing.T) {
	s := newSettings(nil)
	ctx := metadata.NewIncomingContext(context.Background(), metadata.MD{
		"x-request-id": {"größe"}, "traceparent": {"00-1"}, "tracestate": {strings.Repeat("x", 513)},
	})
	md, _ := metadata.FromOutgoingContext(s.passTrace(ctx))
	require.Equal(t, metadata.MD{"traceparent": {"00-1"}}, md)
	require.Equal(t, "00-1", s.traceOf(ctx))
}
