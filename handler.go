package idempotent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
)

// replayedHeader marks a replay.
const replayedHeader = "Idempotent-Replayed"

// retryPause is the Retry-After of a refusal that will not last.
const retryPause = time.Second

// PrincipalFunc says who sends a request, as an opaque and stable id, the
// tenant included: equal keys of two principals are two operations, and a
// refreshed token must not make a new principal. [ErrUnauthenticated] or ""
// is answered with 401, any other error with 500. It is called once for each
// keyed request, before the handler, and must be safe for concurrent use. Of
// another error the log shows the types alone, since its text may name somebody:
// a function that wants more said logs it itself.
type PrincipalFunc func(*http.Request) (string, error)

// Anonymous is the [PrincipalFunc] of a service with one tenant: nobody is
// told apart, so whoever knows a key and its request is given its answer.
func Anonymous(*http.Request) (string, error) { return "anonymous", nil }

// Middleware returns net/http middleware that runs the next handler at most
// once for each key of each principal, and answers repeats with the recorded
// answer. Mount it inside of authentication, compression and time-outs, and
// outside of the mux or handler. What each situation is answered with stands
// in the package documentation.
//
// The handler runs in the goroutine of the request. Its answer is held until
// the outcome is recorded, unless it flushes, hijacks, or exceeds
// [WithMaxResponse]. A panic of it is recorded and goes on. Mounted twice, on a
// router and on a route of it, the inner middleware of the same guard lets pass
// what the outer one has claimed.
//
// Middleware panics on a nil principal; the options panic on what makes no
// sense. The result is safe for concurrent use, and each call of Middleware
// has its own bound of waiters.
func (g *Guard) Middleware(principal PrincipalFunc, opts ...HTTPOption) func(http.Handler) http.Handler {
	m := newMiddleware(g, "Middleware", principal, opts)
	return func(next http.Handler) http.Handler {
		if next == nil {
			panic("idempotent: Middleware: the next handler is nil")
		}
		_, bound := next.(synchronous)
		return &handler{middleware: m, next: next, mayLeave: m.statusURL != "" && !bound}
	}
}

func newMiddleware(g *Guard, name string, principal PrincipalFunc, opts []HTTPOption) *middleware {
	if principal == nil {
		panic("idempotent: " + name + ": the PrincipalFunc is nil; Anonymous is the one that tells nobody apart")
	}
	m := &middleware{
		guard:       g,
		principal:   principal,
		methods:     []string{http.MethodPost, http.MethodPatch},
		headers:     []string{"Idempotency-Key", "X-Idempotency-Key"},
		trace:       requestTrace,
		fingerprint: CanonicalJSON,
		maxBody:     DefaultMaxBody,
		maxResponse: DefaultMaxResponse,
		problemBase: DefaultProblemBase,
		maxWait:     DefaultMaxWait,
		waiters:     &waiterLimit{most: DefaultMaxWaiters, mostPerKey: maxWaitersPerKey},
	}
	for _, o := range opts {
		if o.apply != nil {
			o.apply(m)
		}
	}
	return m
}

// middleware is what all handlers of one Middleware share.
type middleware struct {
	guard *Guard

	// From request to call.
	principal      PrincipalFunc
	optional       bool
	methods        []string
	headers        []string
	keyFunc        func(*http.Request, []byte) (string, error)
	keyPolicy      func(string) error
	principalScope bool
	trace          func(*http.Request) string
	fingerprint    FingerprintFunc
	maxBody        int64

	// Waiting.
	wait, maxWait      time.Duration
	waiters            *waiterLimit
	cancelOnDisconnect bool

	// From outcome to answer.
	maxResponse   int64
	classify      func(int, http.Header) Class
	replayCookies bool
	replayHook    func(http.ResponseWriter, *http.Request, int) bool
	problemBase   string
	statusURL     string // "": nothing is answered before its end
}

type handler struct {
	*middleware
	next     http.Handler
	mayLeave bool // a client may be answered before the end
}

// ServeHTTP turns a request into a call of [Guard.Run] and its outcome into an
// answer.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !slices.Contains(h.methods, r.Method) {
		h.next.ServeHTTP(w, r)
		return
	}
	x := &exchange{handler: h, w: w, r: r}
	if refusal := x.intake(); refusal != nil {
		h.refuse(w, *refusal, problemExtra{})
		return
	}
	if x.unkeyed {
		h.guard.log.tell(r.Context(), Event{Kind: EventUnkeyed, Trace: x.call.trace})
		x.pass()
		return
	}
	if x.within() {
		x.pass()
		return
	}

	wait, preferred := h.waitOf(r)
	x.call.wait, x.call.waiters = wait, h.waiters
	x.call.detached = !h.cancelOnDisconnect
	if h.mayLeave && prefersAsync(r) && x.async(preferred) {
		return
	}
	rec, replayed, err := h.guard.run(r.Context(), x.name, x, &x.call)
	if x.call.waited && preferred {
		w.Header().Set("Preference-Applied", waitPreference(wait))
	}
	x.answer(rec, replayed, err)
}

// within reports whether the request's own operation is running it: the
// middleware is mounted twice, on a router and on a route of it.
func (x *exchange) within() bool {
	outer := executionOf(x.r.Context())
	return outer != nil && outer.Key == x.name && outer.lease.g.leases == x.guard.leases
}

// answer turns what [Guard.Run] has returned into an answer.
func (x *exchange) answer(rec Record, replayed bool, err error) {
	switch {
	case replayed:
		x.replay(rec)
	case err != nil:
		x.refuseError(x.w, rec, err)
	default:
		x.deliver()
	}
}

// replay answers with what is recorded.
func (x *exchange) replay(rec Record) {
	unavailable := problemResultUnavailable
	unavailable.newKeySafe = rec.Class == ClassFailure
	extra := problemExtra{firstSeen: rec.Claimed, state: rec.Class.String()}
	if rec.missing && rec.Class == ClassUnknown {
		// The handler panicked, and this is what its record says.
		extra.replayed = true
		x.refuse(x.w, problemOperationAborted, extra)
		return
	}
	if rec.missing {
		x.refuse(x.w, unavailable, extra)
		return
	}
	response, err := decodeResponse(rec.Result, &x.room)
	if err != nil {
		x.guard.log.tell(x.r.Context(), Event{Kind: EventStoreError, Key: x.name, Err: asStoreError("replay", err)})
		x.refuseError(x.w, rec, err)
		return
	}
	if x.replayHook != nil && x.replayHook(x.w, x.r, response.status) {
		return
	}
	if !response.unreplayable {
		if err = response.replay(x.w, x.r); err == nil {
			return
		}
		x.note(x.r.Context(), slog.LevelDebug, "the recorded answer does not suit this client", err)
	}
	extra.status, extra.location = response.status, response.location()
	x.refuse(x.w, unavailable, extra)
}

// refuseError answers what [Guard.Run] refused.
func (h *handler) refuseError(w http.ResponseWriter, rec Record, err error) {
	extra := problemExtra{firstSeen: rec.Claimed}
	p := problemStoreUnavailable
	var inFlight *InFlightError
	switch {
	case errors.As(err, &inFlight):
		p = problemInFlight
		extra.retryAfter, extra.trace = inFlight.RetryAfter, inFlight.Trace
	case errors.Is(err, ErrKeyReused):
		p = problemKeyReused
	case errors.Is(err, ErrOutcomeUnknown):
		p = problemOutcomeUnknown
	case errors.Is(err, ErrCorrupt):
		p = problemRecordCorrupt
	case errors.Is(err, ErrInvalid):
		p = problemInternal
	case errors.Is(err, ErrFull):
		p = problemStoreFull
		extra.retryAfter = retryPause
	default:
		// The store failed or is closed, or another release can answer, or
		// the context ended before the handler began: nothing was run.
		extra.retryAfter = retryPause
	}
	h.refuse(w, p, extra)
}

func (h *handler) refuse(w http.ResponseWriter, p problem, extra problemExtra) {
	if p.status == http.StatusUnauthorized && w.Header().Get("WWW-Authenticate") == "" {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	p.header(w.Header(), h.problemBase, extra)
	writeDocument(w, p.status, p.body(h.problemBase, extra))
}

// encodeProblem records a refusal in place of an answer.
func (h *handler) encodeProblem(p problem) string {
	header := make(http.Header)
	p.header(header, h.problemBase, problemExtra{})
	result, err := EncodeResponse(p.status, header, p.body(h.problemBase, problemExtra{}))
	if err != nil {
		return "" // cannot be: all of it is this package's own. Run then records that there is no answer.
	}
	return result
}

// note logs what a client is not told.
func (h *handler) note(ctx context.Context, level slog.Level, text string, err error) {
	h.guard.log.log().LogAttrs(ctx, level, "idempotent: "+text, slog.String("err", noteText(err)))
}

// noteKnown are errors whose text is the same whatever the request.
var noteKnown = []error{
	io.ErrUnexpectedEOF, context.Canceled, context.DeadlineExceeded, os.ErrDeadlineExceeded, net.ErrClosed,
	http.ErrBodyReadAfterClose, errNotAcceptable,
}

// noteText says what kind of error err is: by its text where that is known, and
// otherwise by its type and those of the errors it wraps. Functions of users
// and readers of bodies may quote a principal, a key or a body in the text.
func noteText(err error) string {
	var types []string
	for ; err != nil; err = errors.Unwrap(err) {
		if slices.Contains(noteKnown, err) {
			return err.Error()
		}
		types = append(types, fmt.Sprintf("%T", err))
	}
	return strings.Join(types, ": ")
}
