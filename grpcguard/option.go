package grpcguard

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/idempotent-go/idempotent"
)

// KeyMetadata is the metadata that carries the key unless [WithMetadata] says
// otherwise, and ReplayedMetadata the header that marks a replay with "true".
const (
	KeyMetadata      = "idempotency-key"
	ReplayedMetadata = "idempotent-replayed"
)

// Option changes an interceptor. [WithMethods] and [WithMetadata] are for
// servers and clients, all others for servers only. The zero Option changes
// nothing.
type Option struct {
	name   string
	apply  func(*settings)
	client bool // for clients, too
}

// settings are what the options change.
type settings struct {
	methods []string // nil: all that have side effects
	names   []string // of metadata that may carry the key

	optional    bool
	keyFunc     KeyFunc
	keyPolicy   func(string) error
	traceNames  []string
	classify    func(*status.Status) idempotent.Class
	maxResponse int
	logger      *slog.Logger
}

func newSettings(opts []Option) settings {
	s := settings{
		names:       []string{KeyMetadata},
		traceNames:  []string{"x-request-id", "traceparent"},
		maxResponse: idempotent.DefaultMaxResponse,
	}
	for _, o := range opts {
		if o.apply != nil {
			o.apply(&s)
		}
	}
	return s
}

// WithMethods says which unary methods are guarded: "/shop.Orders/Create" is
// one, "/shop.Orders/" all of a service. By default it is every unary method
// but those whose idempotency_level in the .proto file is NO_SIDE_EFFECTS or
// IDEMPOTENT, and those of gRPC's health, reflection and channelz services. It
// panics where there is none, or where one does not begin with a slash.
func WithMethods(methods ...string) Option {
	mustBeSome("WithMethods", methods)
	for _, m := range methods {
		if !strings.HasPrefix(m, "/") || strings.Count(m, "/") != 2 {
			panic(fmt.Sprintf("grpcguard: WithMethods: %q; a method is /package.Service/Method, a service /package.Service/", m))
		}
	}
	return Option{name: "WithMethods", client: true, apply: func(s *settings) { s.methods = slices.Clone(methods) }}
}

// WithMetadata says which metadata carries the key, in place of
// [KeyMetadata]. A server looks at all of them, and two that differ are
// refused; a client sends the first. It panics where there is none, or where
// one is no name that gRPC sends as text.
func WithMetadata(names ...string) Option {
	mustBeNames("WithMetadata", names)
	return Option{name: "WithMetadata", client: true, apply: func(s *settings) { s.names = lower(names) }}
}

// WithOptionalKey lets calls without a key run unprotected. By default they
// are refused with [ReasonKeyMissing].
func WithOptionalKey() Option {
	return Option{name: "WithOptionalKey", apply: func(s *settings) { s.optional = true }}
}

// KeyFunc finds the key of a call somewhere else than in its metadata. "" is a
// missing key; an error is answered with [ReasonKeyInvalid] and a fixed text.
// It must not change req, and must be safe for concurrent use.
type KeyFunc func(ctx context.Context, info *grpc.UnaryServerInfo, req any) (string, error)

// WithKeyFunc finds the key by f in place of the metadata. [RequestField] is a
// ready one. It panics on nil.
func WithKeyFunc(f KeyFunc) Option {
	if f == nil {
		panic("grpcguard: WithKeyFunc: the KeyFunc is nil; leave the option out for metadata")
	}
	return Option{name: "WithKeyFunc", apply: func(s *settings) { s.keyFunc = f }}
}

// RequestField is a [KeyFunc] that takes the key from a string field of the
// request, named as in the .proto file; a path such as "meta.request_id" leads
// into messages. A field that is not set is a missing key, a request without
// such a field an error. It panics on an empty name.
func RequestField(path string) KeyFunc {
	names := strings.Split(path, ".")
	mustBeSome("RequestField", names)
	return func(_ context.Context, _ *grpc.UnaryServerInfo, req any) (string, error) {
		m, ok := protoMessage(req)
		if !ok {
			return "", fmt.Errorf("grpcguard: RequestField: %T is no protobuf message", req)
		}
		at := m.ProtoReflect()
		for i, name := range names {
			field := at.Descriptor().Fields().ByName(protoreflect.Name(name))
			want := protoreflect.MessageKind
			if i == len(names)-1 {
				want = protoreflect.StringKind
			}
			if field == nil || field.Kind() != want || field.Cardinality() == protoreflect.Repeated {
				return "", fmt.Errorf("grpcguard: RequestField: %s has no field %s of kind %v", at.Descriptor().FullName(), name, want)
			}
			if want == protoreflect.StringKind {
				return at.Get(field).String(), nil
			}
			at = at.Get(field).Message()
		}
		return "", nil // not reached: there is a name at least
	}
}

// WithKeyPolicy refuses keys of the wrong form: an error of f is answered with
// [ReasonKeyInvalid], [idempotent.ErrKeyExpired] with [ReasonKeyExpired]. See
// [idempotent.KeyMaxAge]. It panics on nil.
func WithKeyPolicy(f func(key string) error) Option {
	if f == nil {
		panic("grpcguard: WithKeyPolicy: the function is nil; leave the option out")
	}
	return Option{name: "WithKeyPolicy", apply: func(s *settings) { s.keyPolicy = f }}
}

// WithTraceMetadata says which metadata carries the caller's correlation id:
// the first of names that is there is recorded with the claim and is
// [idempotent.Execution.Trace] for the handler; all of them go on into the
// handler's own outgoing calls, with tracestate beside traceparent. By default
// they are x-request-id and traceparent. It panics where there is none, or
// where one is no name that gRPC sends as text.
func WithTraceMetadata(names ...string) Option {
	mustBeNames("WithTraceMetadata", names)
	return Option{name: "WithTraceMetadata", apply: func(s *settings) { s.traceNames = lower(names) }}
}

// WithClassify says what an answer says of the operation, in place of
// [Classify]; [idempotent.ClassDefault] means that the table applies. What the
// handler itself said, as by [idempotent.Release], goes first. It panics on
// nil. f must be safe for concurrent use.
func WithClassify(f func(*status.Status) idempotent.Class) Option {
	if f == nil {
		panic("grpcguard: WithClassify: the function is nil; leave the option out")
	}
	return Option{name: "WithClassify", apply: func(s *settings) { s.classify = f }}
}

// WithMaxResponse bounds what is kept of an answer, in bytes, its metadata
// included; [idempotent.DefaultMaxResponse] (1 MiB) by default. A longer one
// reaches the first caller all the same, and repeats get
// [ReasonResultUnavailable]. It panics on a negative number; 0 keeps none.
func WithMaxResponse(n int) Option {
	if n < 0 {
		panic(fmt.Sprintf("grpcguard: WithMaxResponse: %d bytes; it must not be negative", n))
	}
	return Option{name: "WithMaxResponse", apply: func(s *settings) { s.maxResponse = n }}
}

// WithLogger sets where the interceptor logs what clients are not told;
// [slog.Default], looked up at each line, by default. The guard has its own
// logger. It panics on nil.
func WithLogger(l *slog.Logger) Option {
	if l == nil {
		panic("grpcguard: WithLogger: the logger is nil; leave the option out for slog.Default, or use slog.DiscardHandler")
	}
	return Option{name: "WithLogger", apply: func(s *settings) { s.logger = l }}
}

func mustBeSome(option string, names []string) {
	if len(names) == 0 || slices.Contains(names, "") {
		panic("grpcguard: " + option + ": a name is missing or empty")
	}
}

func mustBeNames(option string, names []string) {
	mustBeSome(option, names)
	for _, name := range lower(names) {
		if !validName(name) || strings.HasPrefix(name, "grpc-") || strings.HasSuffix(name, "-bin") {
			panic(fmt.Sprintf("grpcguard: %s: %q is no metadata that an application sends as text", option, name))
		}
	}
}

func lower(names []string) []string {
	out := make([]string, 0, len(names))
	for _, name := range names {
		out = append(out, strings.ToLower(name))
	}
	return out
}

// guards reports whether calls of a method carry keys.
func (s *settings) guards(method string) bool {
	if s.methods != nil {
		service := method[:strings.LastIndexByte(method, '/')+1]
		return slices.Contains(s.methods, method) || slices.Contains(s.methods, service)
	}
	for _, prefix := range []string{"/grpc.health.", "/grpc.reflection.", "/grpc.channelz."} {
		if strings.HasPrefix(method, prefix) {
			return false
		}
	}
	return !harmless(method)
}

// harmless reports whether the .proto file says that repeating a method does
// no harm.
func harmless(method string) bool {
	name := strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", ".")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return false
	}
	options, ok := d.Options().(*descriptorpb.MethodOptions)
	return ok && options.GetIdempotencyLevel() != descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN
}
