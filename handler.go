package idempotent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
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
// [WithMaxResponse]. A panic of it is recorded and goes on.
//
// Middleware panics on a nil principal; the options panic on what makes no
// sense. The result is safe for concurrent use, and each call of Middleware
// has its own bound of waiters.
func (g *Guard) Middleware(principal PrincipalFunc, opts ...HTTPOption) func(http.Handler) http.Handler {
	if principal == nil {
		panic("idempotent: Middleware: the PrincipalFunc is nil; Anonymous is the one that tells nobody apart")
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
	return func(next http.Handler) http.Handler {
		if next == nil {
			panic("idempotent: Middleware: the next handler is nil")
		}
		return &handler{middleware: m, next: next}
	}
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
}

type handler struct {
	*middleware
	next http.Handler
}

// ServeHTTP turns a request into a call of [Guard.Run] and its outcome into an
// answer.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !slices.Contains(h.methods, r.Method) {
		h.next.ServeHTTP(w, r)
		return
	}
	in, refusal := h.intake(w, r)
	if refusal != nil {
		h.refuse(w, *refusal, problemExtra{})
		return
	}
	if in.unkeyed {
		h.guard.log.tell(r.Context(), Event{Kind: EventUnkeyed, Trace: in.trace})
		h.next.ServeHTTP(w, in.request)
		return
	}

	var waited bool
	wait, preferred := h.waitOf(r)
	opts := []CallOption{
		WithCallFingerprint(in.fingerprint), WithCallTrace(in.trace),
		WithCallWait(wait), withCallWaiters(h.waiters, &waited),
	}
	if !h.cancelOnDisconnect {
		opts = append(opts, WithCallDetached())
	}
	run := &handlerRun{handler: h, w: w, outer: r, r: in.request}
	rec, replayed, err := h.guard.Run(r.Context(), in.name, run.operation, opts...)
	if waited && preferred {
		w.Header().Set("Preference-Applied", "wait="+strconv.FormatInt(int64(wait/time.Second), 10))
	}
	switch {
	case replayed:
		h.replay(w, r, in.name, rec)
	case err != nil:
		h.refuseError(w, rec, err)
	default:
		run.deliver()
	}
}

// intake is a request that may be run.
type intake struct {
	request     *http.Request
	unkeyed     bool
	name        string // in the store
	fingerprint string
	trace       string
}

// intake checks a request in a fixed order, so that nothing is read that a
// refusal does not need: field lines, key, principal, body. Only a key
// function has the principal checked and the body read before the key.
func (h *handler) intake(w http.ResponseWriter, r *http.Request) (in intake, refusal *problem) {
	in = intake{request: r, trace: cleanTrace(h.trace(r))}
	var key, principal string
	var body []byte
	if h.keyFunc == nil {
		if key, in.unkeyed, refusal = h.headerKey(r); refusal != nil || in.unkeyed {
			return in, refusal
		}
	}
	if principal, refusal = h.principalOf(r); refusal != nil {
		return in, refusal
	}
	if in.request, body, refusal = h.hold(w, r); refusal != nil {
		return in, refusal
	}
	defer rewindBody(in.request)
	if h.keyFunc != nil {
		if key, in.unkeyed, refusal = h.funcKey(in.request, body); refusal != nil || in.unkeyed {
			return in, refusal
		}
	}
	method, path := r.Method, requestPath(r)
	scopeMethod, scopePath := "", ""
	if h.principalScope {
		scopeMethod, scopePath, method, path = method, path, "", ""
	}
	fingerprint, err := requestFingerprint(in.request, body, h.fingerprint, scopeMethod, scopePath)
	if err != nil {
		h.note(r.Context(), slog.LevelDebug, "the body has no fingerprint", err)
		return in, &problemBodyUnreadable
	}
	in.fingerprint = fingerprint
	in.name = StoreKey(method, path, principal, key)
	return in, nil
}

func (h *handler) headerKey(r *http.Request) (key string, unkeyed bool, refusal *problem) {
	key, present, err := headerKey(r.Header, h.headers)
	switch {
	case err != nil:
		return "", false, invalidKey(err)
	case !present && h.optional:
		return "", true, nil
	case !present:
		return "", false, &problemKeyMissing
	}
	return key, false, h.checkKey(key)
}

func (h *handler) funcKey(r *http.Request, body []byte) (key string, unkeyed bool, refusal *problem) {
	text, err := h.keyFunc(r, body)
	switch {
	case err != nil:
		h.note(r.Context(), slog.LevelDebug, "the key function failed", err)
		return "", false, invalidKey(keyErrFunc)
	case text == "" && h.optional:
		return "", true, nil
	case text == "":
		return "", false, &problemKeyMissing
	}
	if key, err = parseKey([]string{text}); err != nil {
		return "", false, invalidKey(err)
	}
	return key, false, h.checkKey(key)
}

const (
	keyErrFunc   keyError = "The key could not be found in the request."
	keyErrPolicy keyError = "The key does not have the form that this operation asks for."
)

func (h *handler) checkKey(key string) *problem {
	if h.keyPolicy == nil {
		return nil
	}
	err := h.keyPolicy(key)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrKeyExpired):
		return &problemKeyExpired
	}
	return invalidKey(keyErrPolicy)
}

// invalidKey says what is wrong with a key; err is a keyError.
func invalidKey(err error) *problem {
	p := problemKeyInvalid
	p.detail = err.Error() + " Nothing was done."
	return &p
}

func (h *handler) principalOf(r *http.Request) (string, *problem) {
	principal, err := h.principal(r)
	switch {
	case errors.Is(err, ErrUnauthenticated), err == nil && principal == "":
		return "", &problemUnauthenticated
	case err != nil:
		h.note(r.Context(), slog.LevelError, "the principal function failed", err)
		return "", &problemInternal
	}
	return principal, nil
}

// hold reads the body, up to the limit, and returns a request whose handler
// reads the same bytes.
func (h *handler) hold(w http.ResponseWriter, r *http.Request) (*http.Request, []byte, *problem) {
	if r.Body == nil || r.Body == http.NoBody {
		return r, nil, nil
	}
	if r.ContentLength > h.maxBody {
		// Refused unread: with "Expect: 100-continue" it is never sent.
		w.Header().Set("Connection", "close")
		return r, nil, &problemBodyTooLarge
	}
	var buffer bytes.Buffer
	if r.ContentLength > 0 {
		// What a client announces costs memory only up to a bound.
		buffer.Grow(int(min(r.ContentLength, 64<<10)) + bytes.MinRead)
	}
	_, err := buffer.ReadFrom(http.MaxBytesReader(w, r.Body, h.maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		w.Header().Set("Connection", "close")
		return r, nil, &problemBodyTooLarge
	case err == nil && int64(buffer.Len()) < r.ContentLength:
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		h.note(r.Context(), slog.LevelDebug, "the body could not be read", err)
		return r, nil, &problemBodyUnreadable
	}
	held := new(http.Request)
	*held = *r
	body := &heldBody{original: r.Body}
	body.content.Reset(buffer.Bytes())
	held.Body = body
	return held, buffer.Bytes(), nil
}

// heldBody is a request body that has been read already.
type heldBody struct {
	content  bytes.Reader
	original io.Closer // nil once it has been closed
	closed   bool
}

func (b *heldBody) Read(p []byte) (int, error) {
	if b.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	return b.content.Read(p)
}

func (b *heldBody) Close() error {
	b.closed = true
	original := b.original
	if original == nil {
		return nil
	}
	b.original = nil
	return original.Close()
}

// rewindBody lets the handler read the body from its start, whatever the key
// and fingerprint functions have read of it, as by Request.FormValue.
func rewindBody(r *http.Request) {
	if b, ok := r.Body.(*heldBody); ok {
		_, _ = b.content.Seek(0, io.SeekStart) // the start is always there
		b.closed = false
	}
}

// handlerRun is one run of the next handler.
type handlerRun struct {
	*handler
	w        http.ResponseWriter
	outer    *http.Request // as layers outside know it
	r        *http.Request // with the body held
	recorder *recorder
	instead  *problem // answered in place of what the handler did not write
}

// operation runs the handler and reads its outcome from its answer.
func (h *handlerRun) operation(ctx context.Context) (Class, string) {
	h.recorder = newRecorder(h.w, h.r.Method, h.maxResponse)
	// Also after a panic: a goroutine that the handler left behind must not
	// write to a connection that is not this request's any more.
	defer h.recorder.finish(false)
	r := h.r.WithContext(ctx)
	h.next.ServeHTTP(h.recorder, r)
	h.outer.Pattern, h.outer.MultipartForm = r.Pattern, r.MultipartForm

	c := h.recorder.finish(h.replayCookies)
	class := h.class(ctx, c)
	switch {
	case class == ClassRelease:
		return class, ""
	case !c.wrote && ctx.Err() != nil && class == ClassUnknown:
		// An empty 200 would be a lie.
		h.instead = &problemOutcomeUnknown
		return class, h.encodeProblem(problemOutcomeUnknown)
	case c.mismatch:
		return class, h.encodeProblem(problemOutcomeUnknown)
	}
	return class, c.response.encode()
}

// class is the table of outcomes. What the handler said goes first; Run sees
// to that.
func (h *handlerRun) class(ctx context.Context, c capture) Class {
	if said := saidClass(ctx); said != ClassDefault {
		return said
	}
	done := ctx.Err() != nil
	switch {
	case c.hijacked:
		return ClassSuccess
	case c.mismatch, done && !c.wrote:
		return ClassUnknown
	}
	status := c.response.status
	var header http.Header
	if h.classify != nil || status == http.StatusServiceUnavailable {
		header = h.recorder.sentHeader()
	}
	if h.classify != nil {
		if class := h.classify(status, header); class != ClassDefault {
			return class
		}
	}
	class := Classify(status, header)
	if class == ClassRelease && done {
		// The refusal may be that of a step that was cut off half-way.
		return ClassUnknown
	}
	return class
}

// Classify says what an answer says of the operation: 2xx and 3xx success;
// 401, 407, 421, 425, 429, and 503 with Retry-After released; 408 and other
// 5xx unknown; other 4xx failure. The middleware takes a release for unknown
// where the context of the operation is done.
func Classify(status int, h http.Header) Class {
	switch {
	case status == http.StatusUnauthorized, status == http.StatusProxyAuthRequired,
		status == http.StatusMisdirectedRequest, status == http.StatusTooEarly, status == http.StatusTooManyRequests:
		return ClassRelease
	case status == http.StatusServiceUnavailable && h.Get("Retry-After") != "":
		return ClassRelease
	case status == http.StatusRequestTimeout, status >= 500:
		return ClassUnknown
	case status >= 400:
		return ClassFailure
	}
	return ClassSuccess
}

func (h *handlerRun) deliver() {
	if h.instead != nil {
		h.refuse(h.w, *h.instead, problemExtra{})
		return
	}
	h.recorder.deliver()
}

// replay answers with what is recorded.
func (h *handler) replay(w http.ResponseWriter, r *http.Request, name string, rec Record) {
	unavailable := problemResultUnavailable
	unavailable.newKeySafe = rec.Class == ClassFailure
	extra := problemExtra{firstSeen: rec.Claimed, state: rec.Class.String()}
	if rec.missing && rec.Class == ClassUnknown {
		// The handler panicked, and this is what its record says.
		extra.replayed = true
		h.refuse(w, problemOperationAborted, extra)
		return
	}
	if rec.missing {
		h.refuse(w, unavailable, extra)
		return
	}
	response, err := decodeResponse(rec.Result)
	if err != nil {
		h.guard.log.tell(r.Context(), Event{Kind: EventStoreError, Key: name, Err: err})
		h.refuseError(w, rec, err)
		return
	}
	if h.replayHook != nil && h.replayHook(w, r, response.status) {
		return
	}
	if !response.unreplayable {
		if err = response.replay(w, r); err == nil {
			return
		}
		h.note(r.Context(), slog.LevelDebug, "the recorded answer does not suit this client", err)
	}
	extra.status, extra.location = response.status, response.location()
	h.refuse(w, unavailable, extra)
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
	body := p.body(h.problemBase, extra)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.status)
	_, _ = w.Write(body)
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

// waitOf is how long a duplicate may wait, and whether its client asked for
// that: "Prefer: wait=N" (RFC 7240) goes before the setting.
func (h *handler) waitOf(r *http.Request) (wait time.Duration, preferred bool) {
	seconds, ok := preferredWait(r.Header["Prefer"])
	if !ok {
		return h.wait, false
	}
	if most := int64(h.maxWait / time.Second); seconds > most {
		return h.maxWait, true
	}
	return time.Duration(seconds) * time.Second, true
}

// preferredWait finds the first wait preference of all field lines; one whose
// value is no number of seconds is ignored, as unknown preferences are.
func preferredWait(lines []string) (seconds int64, ok bool) {
	for _, line := range lines {
		for preference := range strings.SplitSeq(line, ",") {
			preference, _, _ = strings.Cut(preference, ";")
			name, value, _ := strings.Cut(preference, "=")
			if !strings.EqualFold(strings.TrimSpace(name), "wait") {
				continue
			}
			value = strings.Trim(strings.TrimSpace(value), `"`)
			seconds, err := strconv.ParseInt(value, 10, 64)
			if errors.Is(err, strconv.ErrRange) && seconds > 0 {
				err = nil // a very long wait is a wait all the same
			}
			if err == nil && seconds >= 0 {
				return seconds, true
			}
			return 0, false
		}
	}
	return 0, false
}

// requestTrace is where a correlation id comes from by default.
func requestTrace(r *http.Request) string {
	if id := r.Header.Get("X-Request-Id"); id != "" {
		return id
	}
	return r.Header.Get("Traceparent")
}

// cleanTrace keeps a correlation id that can be logged and sent, and drops any
// other one.
func cleanTrace(trace string) string {
	const most = 255
	if len(trace) > most {
		return ""
	}
	for i := range len(trace) {
		if trace[i] < ' ' || trace[i] > '~' {
			return ""
		}
	}
	return trace
}
