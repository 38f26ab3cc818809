package idempotent

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// The defaults of a middleware.
const (
	DefaultMaxBody     = 1 << 20 // bytes of a request body
	DefaultMaxResponse = 1 << 20 // bytes of a response body
	DefaultMaxWait     = 10 * time.Second
	DefaultMaxWaiters  = 1000
	maxWaitersPerKey   = 100
)

// HTTPOption changes a setting of [Guard.Middleware]. The zero HTTPOption
// changes nothing.
type HTTPOption struct {
	apply func(*middleware)
}

// WithOptionalKey lets requests without a key pass to the handler unprotected,
// without touching the store. By default they are refused with 400, since
// wrapping a route says that it needs a key.
func WithOptionalKey() HTTPOption {
	return HTTPOption{func(m *middleware) { m.optional = true }}
}

// WithMethods sets which methods are protected, instead of POST and PATCH;
// others pass to the handler, whether they carry a key or not. It panics
// without a method and on a text that is none.
func WithMethods(methods ...string) HTTPOption {
	if len(methods) == 0 {
		panic("idempotent: WithMethods: name at least one method")
	}
	for _, method := range methods {
		if !isToken(method) {
			panic(fmt.Sprintf("idempotent: WithMethods: %q is not a method", method))
		}
	}
	methods = slices.Clone(methods)
	return HTTPOption{func(m *middleware) { m.methods = methods }}
}

// WithHeader sets which header fields carry the key, instead of
// Idempotency-Key and X-Idempotency-Key. A request in which two of them
// disagree is refused with 400. It panics without a name and on a text that is
// none.
func WithHeader(names ...string) HTTPOption {
	if len(names) == 0 {
		panic("idempotent: WithHeader: name at least one header field")
	}
	canonical := make([]string, len(names))
	for i, name := range names {
		if !isToken(name) {
			panic(fmt.Sprintf("idempotent: WithHeader: %q is not a field name", name))
		}
		canonical[i] = http.CanonicalHeaderKey(name)
	}
	return HTTPOption{func(m *middleware) { m.headers = canonical }}
}

// WithKeyFunc takes the key from f instead of a header field: from the path,
// or from the body, which is read before the key then. What f returns is held
// to the rules of a field value; "" means that there is no key, an error is
// answered with 400 and a fixed text. F must not keep or change body. It panics
// on nil.
func WithKeyFunc(f func(r *http.Request, body []byte) (string, error)) HTTPOption {
	if f == nil {
		panic("idempotent: WithKeyFunc: the function is nil")
	}
	return HTTPOption{func(m *middleware) { m.keyFunc = f }}
}

// WithKeyPolicy asks policy about every key that is well formed. An error that
// wraps [ErrKeyExpired] is answered with 412, any other one with 400 and a
// fixed text. [KeyMaxAge] is a ready one. It panics on nil.
func WithKeyPolicy(policy func(key string) error) HTTPOption {
	if policy == nil {
		panic("idempotent: WithKeyPolicy: the function is nil")
	}
	return HTTPOption{func(m *middleware) { m.keyPolicy = policy }}
}

// WithPrincipalScope makes a key unique per principal instead of per
// principal, method and path: the same key on another method or path is
// refused with 422 instead of being an operation of its own.
func WithPrincipalScope() HTTPOption {
	return HTTPOption{func(m *middleware) { m.principalScope = true }}
}

// WithTrace sets where the correlation id of a request comes from, instead of
// X-Request-Id and then traceparent. It is recorded with the claim, logged,
// and told to duplicates; at most 255 printable ASCII bytes of it, otherwise
// none. It panics on nil.
func WithTrace(f func(*http.Request) string) HTTPOption {
	if f == nil {
		panic("idempotent: WithTrace: the function is nil")
	}
	return HTTPOption{func(m *middleware) { m.trace = f }}
}

// WithFingerprint sets what of a body makes two requests the same, instead of
// [CanonicalJSON]. An error of f is answered with 400 and a fixed text. It
// panics on nil.
func WithFingerprint(f FingerprintFunc) HTTPOption {
	if f == nil {
		panic("idempotent: WithFingerprint: the function is nil")
	}
	return HTTPOption{func(m *middleware) { m.fingerprint = f }}
}

// WithMaxBody sets how many bytes of a request body are held; 1 MiB by
// default. A longer one is refused with 413. It panics below one byte.
func WithMaxBody(n int64) HTTPOption {
	mustBePositive("WithMaxBody", n)
	return HTTPOption{func(m *middleware) { m.maxBody = n }}
}

// WithMaxResponse sets how many bytes of a response body are kept; 1 MiB by
// default. A longer one reaches the first client, and repeats are answered
// with 409 result-unavailable. It panics below one byte.
func WithMaxResponse(n int64) HTTPOption {
	mustBePositive("WithMaxResponse", n)
	return HTTPOption{func(m *middleware) { m.maxResponse = n }}
}

// WithClassify decides what an answer says of the operation, instead of
// [Classify]; [ClassDefault] means as Classify says. What the handler said, as
// by [Fail], goes first. H must not be changed. It panics on nil.
func WithClassify(f func(status int, h http.Header) Class) HTTPOption {
	if f == nil {
		panic("idempotent: WithClassify: the function is nil")
	}
	return HTTPOption{func(m *middleware) { m.classify = f }}
}

// WithReplayCookies keeps Set-Cookie fields with the answer and replays them.
// By default they reach the first client alone: a store should hold no session
// secrets, and a replay should not revive an old session.
func WithReplayCookies() HTTPOption {
	return HTTPOption{func(m *middleware) { m.replayCookies = true }}
}

// WithReplayHook asks f before a recorded answer with the given status is
// replayed, for instance whether the caller may still see it. True means that
// f has answered; the record is unchanged either way. It panics on nil.
func WithReplayHook(f func(w http.ResponseWriter, r *http.Request, status int) (handled bool)) HTTPOption {
	if f == nil {
		panic("idempotent: WithReplayHook: the function is nil")
	}
	return HTTPOption{func(m *middleware) { m.replayHook = f }}
}

// WithProblemBase sets what the type of a problem document begins with,
// instead of [DefaultProblemBase]; the code follows. It panics on "" and on a
// text that is no URI.
func WithProblemBase(uri string) HTTPOption {
	if _, err := url.Parse(uri); uri == "" || err != nil {
		panic(fmt.Sprintf("idempotent: WithProblemBase: %q is not a URI", uri))
	}
	return HTTPOption{func(m *middleware) { m.problemBase = uri }}
}

// WithWait lets duplicates of a running request wait up to d for its answer
// even if they do not ask for it with "Prefer: wait"; by default they are
// answered with 409 at once. It panics below a millisecond.
func WithWait(d time.Duration) HTTPOption {
	mustBeDuration("WithWait", d)
	return HTTPOption{func(m *middleware) { m.wait = d }}
}

// WithMaxWait bounds what a client may ask for with "Prefer: wait"; 10 s by
// default. It panics below a millisecond.
func WithMaxWait(d time.Duration) HTTPOption {
	mustBeDuration("WithMaxWait", d)
	return HTTPOption{func(m *middleware) { m.maxWait = d }}
}

// WithMaxWaiters bounds how many requests of this middleware wait at once;
// 1,000 by default, of which at most 100 for one key. More are answered with
// 409 at once. It panics below one.
func WithMaxWaiters(n int) HTTPOption {
	mustBePositive("WithMaxWaiters", int64(n))
	return HTTPOption{func(m *middleware) { m.waiters.most, m.waiters.mostPerKey = n, min(n, maxWaitersPerKey) }}
}

// WithCancelOnDisconnect cancels the context of a handler whose client hangs
// up, as net/http does. By default the handler finishes, and the answer waits
// for the retry.
func WithCancelOnDisconnect() HTTPOption {
	return HTTPOption{func(m *middleware) { m.cancelOnDisconnect = true }}
}

// WithStatusURL lets clients ask for an answer before the end of the operation,
// by "Prefer: respond-async" (RFC 7240): they get 202 with a Location that says
// what became of it. base is the URL of [Guard.StatusHandler] as clients see
// it, such as "/operations"; it may be absolute. Without this option, and
// for a handler that is [Synchronous], the preference is ignored.
//
// The refusals and replays that need no run are answered as ever, and a
// duplicate of a running request gets 202 instead of 409. With
// "Prefer: respond-async, wait=5" an operation that ends within five seconds is
// answered as if the client had waited. A handler goes on in a goroutine of its
// own, for which [Guard.Drain] waits, with the values and the deadline of the
// request's context, whatever [WithCancelOnDisconnect] says; it cannot hijack, and what it flushes is held. An answer
// longer than [WithMaxResponse] reaches nobody. Each takes the place of one
// waiter ([WithMaxWaiters]) while it runs; without a free one the preference is
// ignored. It panics on a text that is no URL, or has a query or a fragment.
func WithStatusURL(base string) HTTPOption {
	u, err := url.Parse(base)
	if err != nil || u.Path == "" && u.Host == "" || u.RawQuery != "" || u.ForceQuery || strings.Contains(base, "#") {
		panic(fmt.Sprintf("idempotent: WithStatusURL: %q is not a URL without query and fragment", base))
	}
	return HTTPOption{func(m *middleware) { m.statusURL = base }}
}

func mustBePositive(name string, n int64) {
	if n < 1 {
		panic(fmt.Sprintf("idempotent: %s: the number is %d; it must be at least 1", name, n))
	}
}

// isToken reports whether s is a token of RFC 9110, as methods and field names
// are.
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '!', c == '#', c == '$', c == '%', c == '&', c == '\'', c == '*', c == '+', c == '-', c == '.', c == '^', c == '_', c == '`', c == '|', c == '~':
		default:
			return false
		}
	}
	return s != ""
}
