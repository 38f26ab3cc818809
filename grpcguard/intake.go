package grpcguard

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/idempotent-go/idempotent"
)

// PrincipalFunc says who makes a call, as an opaque and stable id, the tenant
// included: equal keys of two principals are two operations, and a refreshed
// token must not make a new principal. ctx has the peer and the incoming
// metadata. [idempotent.ErrUnauthenticated] or "" is answered with
// UNAUTHENTICATED, any other error with INTERNAL. It is called once for each
// keyed call, before the handler, and must be safe for concurrent use.
type PrincipalFunc func(ctx context.Context) (string, error)

// Anonymous is the [PrincipalFunc] of a service with one tenant: nobody is
// told apart, so whoever knows a key and its request is given its answer.
func Anonymous(context.Context) (string, error) { return "anonymous", nil }

// StoreKey is the name under which a store keeps the answer to a call of
// method, such as "/shop.Orders/Create": with it an operator finds the record
// for [idempotent.Guard.Resolve]. The principal is what the [PrincipalFunc]
// returned, the key the client's without its quotes. No name meets one of the
// HTTP middleware.
func StoreKey(method, principal, key string) string {
	return idempotent.StoreKey("GRPC", method, principal, key)
}

// intake is what the interceptor has found out about one call.
type intake struct {
	name        string // in the store
	fingerprint string
	trace       string
	unkeyed     bool
}

// intake checks a call in a fixed order: key, principal, fingerprint. Only a
// key function has the principal checked before the key.
func (s *server) intake(ctx context.Context, req any, info *grpc.UnaryServerInfo) (in intake, refused *refusal) {
	var key, principal string
	if s.keyFunc == nil {
		if key, in.unkeyed, refused = s.metadataKey(ctx); refused != nil || in.unkeyed {
			return in, refused
		}
	}
	if principal, refused = s.principalOf(ctx); refused != nil {
		return in, refused
	}
	if s.keyFunc != nil {
		if key, in.unkeyed, refused = s.funcKey(ctx, req, info); refused != nil || in.unkeyed {
			return in, refused
		}
	}
	fingerprint, err := fingerprint(req)
	if err != nil {
		s.note(ctx, slog.LevelError, "the request has no fingerprint", err)
		return in, &refusedInternal
	}
	in.name, in.fingerprint, in.trace = StoreKey(info.FullMethod, principal, key), fingerprint, s.traceOf(ctx)
	return in, nil
}

func (s *server) metadataKey(ctx context.Context) (key string, unkeyed bool, refused *refusal) {
	present := false
	for _, name := range s.names {
		values := metadata.ValueFromIncomingContext(ctx, name)
		if len(values) == 0 {
			continue
		}
		k, err := idempotent.ParseKey(values)
		switch {
		case err != nil:
			return "", false, invalidKey(err.Error())
		case present && k != key:
			return "", false, invalidKey(keyConflict)
		}
		key, present = k, true
	}
	return s.checkKey(key, present)
}

func (s *server) funcKey(ctx context.Context, req any, info *grpc.UnaryServerInfo) (key string, unkeyed bool, refused *refusal) {
	text, err := s.keyFunc(ctx, info, req)
	if err != nil {
		s.note(ctx, slog.LevelDebug, "the key function failed", err)
		return "", false, invalidKey(keyFailed)
	}
	if text != "" {
		if key, err = idempotent.ParseKey([]string{text}); err != nil {
			return "", false, invalidKey(err.Error())
		}
	}
	return s.checkKey(key, text != "")
}

func (s *server) checkKey(key string, present bool) (_ string, unkeyed bool, refused *refusal) {
	switch {
	case !present && s.optional:
		return "", true, nil
	case !present:
		return "", false, &refusedKeyMissing
	case s.keyPolicy == nil:
		return key, false, nil
	}
	err := s.keyPolicy(key)
	switch {
	case err == nil:
		return key, false, nil
	case errors.Is(err, idempotent.ErrKeyExpired):
		return "", false, &refusedKeyExpired
	}
	return "", false, invalidKey(keyPolicy)
}

func (s *server) principalOf(ctx context.Context) (string, *refusal) {
	principal, err := s.principal(ctx)
	switch {
	case errors.Is(err, idempotent.ErrUnauthenticated), err == nil && principal == "":
		return "", &refusedUnauthenticated
	case err != nil:
		s.note(ctx, slog.LevelError, "the principal function failed", err)
		return "", &refusedInternal
	}
	return principal, nil
}

// note logs what a client is not told. Of an error it shows the type alone:
// functions of users may quote a principal, a key or a request in the text.
func (s *settings) note(ctx context.Context, level slog.Level, text string, err error) {
	s.log().LogAttrs(ctx, level, "grpcguard: "+text, slog.String("err", fmt.Sprintf("%T", err)))
}

func (s *settings) log() *slog.Logger {
	if s.logger != nil {
		return s.logger
	}
	return slog.Default()
}

// What may be wrong with a key besides what [idempotent.ParseKey] says. The
// texts go to the client as they are, so they are fixed and never carry the key.
const (
	keyConflict = "Two fields carry different keys; send one of them, or the same key in both."
	keyFailed   = "The key could not be found in the request."
	keyPolicy   = "The key does not have the form that this operation asks for."
)

func invalidKey(wrong string) *refusal {
	r := refusedKeyInvalid
	r.text = wrong + " Nothing was done."
	return &r
}

// fingerprintTag names function and version, so that a later release can
// recompute what an earlier one has recorded.
const fingerprintTag = "p1:"

// fingerprint tells requests apart by the type and the deterministic bytes of
// the message, whatever the encoding on the wire. Fields that this program
// does not know take part, in the order in which they came.
func fingerprint(req any) (string, error) {
	m, ok := protoMessage(req)
	if !ok {
		return "", fmt.Errorf("grpcguard: a request of type %T is no protobuf message", req)
	}
	name := m.ProtoReflect().Descriptor().FullName()
	b := binary.AppendUvarint(nil, uint64(len(name)))
	b, err := deterministic.MarshalAppend(append(b, name...), m)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return fingerprintTag + base64.RawURLEncoding.EncodeToString(sum[:]), nil
}

// The longest correlation id that is recorded, and the longest value that is
// passed on.
const (
	maxTrace  = 255
	maxPassed = 512
)

// traceOf finds the correlation id of a call. One that could not be logged or
// sent is none.
func (s *settings) traceOf(ctx context.Context) string {
	for _, name := range s.traceNames {
		if v := firstValue(ctx, name, maxTrace); v != "" {
			return v
		}
	}
	return ""
}

// passTrace puts the trace of a call into the handler's own outgoing calls,
// where nothing else has.
func (s *settings) passTrace(ctx context.Context) context.Context {
	names := s.traceNames
	if slices.Contains(names, "traceparent") {
		names = append(slices.Clip(names), "tracestate")
	}
	outgoing, _ := metadata.FromOutgoingContext(ctx)
	for _, name := range names {
		if v := firstValue(ctx, name, maxPassed); v != "" && len(outgoing.Get(name)) == 0 {
			ctx = metadata.AppendToOutgoingContext(ctx, name, v)
		}
	}
	return ctx
}

func firstValue(ctx context.Context, name string, most int) string {
	values := metadata.ValueFromIncomingContext(ctx, name)
	if len(values) == 0 || len(values[0]) > most || !printable(values[0]) {
		return ""
	}
	return values[0]
}
