package idempotent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"time"
)

// prefersAsync reports whether a client would rather be told where to ask than
// wait for the end (RFC 7240).
func prefersAsync(r *http.Request) bool {
	_, ok := preference(r.Header["Prefer"], "respond-async")
	return ok
}

// Synchronous marks a handler that must have returned before the middleware
// around it does, such as one of a router that uses its contexts again for other
// requests: "Prefer: respond-async" is ignored for it, which RFC 7240 allows. An
// adapter for such a router wraps what it gives to the result of
// [Guard.Middleware]. Synchronous panics where h is nil.
func Synchronous(h http.Handler) http.Handler {
	if h == nil {
		panic("idempotent: Synchronous: the handler is nil")
	}
	return synchronous{h}
}

type synchronous struct{ http.Handler }

// asyncRun is a request on its way through the guard in a goroutine of its own.
type asyncRun struct {
	*exchange
	started chan struct{} // closed when the handler is about to run
	ended   chan struct{} // closed when the fields below are set

	rec      Record
	replayed bool
	err      error
	returned bool
	panicked any // nil too where the handler has left by runtime.Goexit
}

// do runs the handler.
func (a *asyncRun) do(ctx context.Context) (Class, string) {
	close(a.started)
	return a.exchange.do(ctx)
}

// left waits for an answer as long as the client does, and reports whether the
// client leaves without one: also where the run has ended already and its answer
// was too long to be held.
func (a *asyncRun) left(ctx context.Context, away *awayWriter, patience <-chan time.Time) bool {
	select {
	case <-a.started:
		select {
		case <-a.ended:
		case <-patience:
		case <-away.full:
		case <-ctx.Done():
		}
	case <-a.ended:
	}
	return away.leave()
}

// async answers a request whose client does not wait: as soon as the handler is
// running, or after the wait that the client prefers as well. What is refused
// or replayed is answered as ever. It returns false, and has done nothing, where
// too many run already.
func (x *exchange) async(waits bool) bool {
	leave, ok := x.waiters.enter(x.name)
	if !ok {
		return false
	}
	if !waits {
		x.call.wait = 0
	}
	applied := "respond-async"
	if waits {
		applied += ", " + waitPreference(x.call.wait)
	}
	timer := time.NewTimer(x.call.wait)
	defer timer.Stop()
	w, r := x.w, x.r
	away := newAwayWriter(w.Header(), x.maxResponse)
	// Nothing of what follows may touch the request or its writer once they
	// have gone back to net/http.
	x.w, x.r = away, r.Clone(r.Context())
	x.body.original = nil
	x.call.detached = true
	a := &asyncRun{exchange: x, started: make(chan struct{}), ended: make(chan struct{})}
	go a.run(r.Context(), away, leave)

	if a.left(r.Context(), away, timer.C) {
		x.accepted(w, r, applied, statusDocument{State: statePending, Trace: x.call.trace})
		return true
	}
	<-a.ended
	if !a.returned {
		if a.panicked == nil {
			a.panicked = http.ErrAbortHandler // it left by runtime.Goexit: no answer will come
		}
		panic(a.panicked)
	}
	r.Pattern, r.MultipartForm = x.r.Pattern, x.r.MultipartForm
	x.w, x.r = w, r
	var inFlight *InFlightError
	switch {
	case errors.As(a.err, &inFlight):
		x.accepted(w, r, applied, statusDocument{
			State: statePending, Since: documentTime(inFlight.Since), FirstSeen: documentTime(a.rec.Claimed), Trace: inFlight.Trace,
		})
	case a.err != nil, a.replayed, x.run.instead != nil:
		x.answer(a.rec, a.replayed, a.err)
	default:
		x.run.recorder.deliver()
		away.copyTo(w)
	}
	return true
}

// accepted answers that the operation runs, and where to ask for its end.
func (x *exchange) accepted(w http.ResponseWriter, r *http.Request, applied string, doc statusDocument) {
	path := ""
	if !x.principalScope {
		path = requestPath(r)
	}
	h := w.Header()
	ownHeader(h, "application/json")
	h.Set("Location", statusLocation(x.statusURL, r.Method, path, x.key))
	h.Set("Preference-Applied", applied)
	h.Set("Retry-After", strconv.FormatInt(retryAfterSeconds(retryPause), 10))
	writeDocument(w, http.StatusAccepted, encodeDocument(doc))
}

func (a *asyncRun) run(ctx context.Context, away *awayWriter, leave func()) {
	defer close(a.ended)
	defer leave()
	defer func() {
		stack := ""
		if !a.returned {
			a.panicked = recover()
			stack = string(debug.Stack())
		}
		if !away.end() {
			return // the client is told by the goroutine of its request
		}
		if form := a.r.MultipartForm; form != nil {
			_ = form.RemoveAll() // net/http knows the files of its own request only
		}
		if a.panicked != nil && a.panicked != http.ErrAbortHandler { //nolint:errorlint // as net/http compares it
			// By its type: the text may quote a principal, a key or a body.
			a.guard.log.log().LogAttrs(ctx, slog.LevelError, "idempotent: a handler panicked after its client was answered 202",
				slog.String("panic", fmt.Sprintf("%T", a.panicked)), slog.String("stack", stack))
		}
	}()
	a.rec, a.replayed, a.err = a.guard.run(ctx, a.name, a, &a.call)
	a.returned = true
}

// awayWriter holds an answer until it is known whether its client waits for it.
type awayWriter struct {
	most int64
	full chan struct{} // closed when the answer is longer than most: nobody gets it

	mu          sync.Mutex // guards the fields below, as far as two goroutines use them
	header      http.Header
	sent        http.Header // header as it was at WriteHeader
	status      int         // 0: none was written
	body        bytes.Buffer
	left        bool // the client has been answered, or cannot be with this
	ended, over bool
}

// newAwayWriter returns a writer for a client whose answer begins with what
// outer layers have set.
func newAwayWriter(outer http.Header, most int64) *awayWriter {
	return &awayWriter{most: most, full: make(chan struct{}), header: outer.Clone()}
}

// leave says that the client is answered otherwise; false where the answer is
// there.
func (a *awayWriter) leave() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended && !a.over {
		return false
	}
	a.left = true
	a.body = bytes.Buffer{}
	return true
}

// end says that no more is written, and returns whether the client has left.
func (a *awayWriter) end() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	return a.left || a.over
}

func (a *awayWriter) Header() http.Header { return a.header }

func (a *awayWriter) WriteHeader(status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writeHeader(status)
}

func (a *awayWriter) writeHeader(status int) {
	interim := status < 200 && status != http.StatusSwitchingProtocols
	if interim || a.status != 0 {
		return
	}
	a.status, a.sent = status, a.header.Clone()
}

func (a *awayWriter) Write(b []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writeHeader(http.StatusOK)
	switch {
	case a.left || a.over:
	case int64(a.body.Len()) > a.most-int64(len(b)):
		a.over, a.body = true, bytes.Buffer{}
		close(a.full)
	default:
		a.body.Write(b)
	}
	return len(b), nil // that nobody reads it is no matter of the handler's
}

// Flush begins the answer, as that of net/http does, and holds it: a handler that
// minds the error of a flush must not stop.
func (a *awayWriter) Flush() { a.WriteHeader(http.StatusOK) }

// copyTo sends the answer as it was written. It is called after the end.
func (a *awayWriter) copyTo(w http.ResponseWriter) {
	h := w.Header()
	clear(h)
	if a.status == 0 {
		maps.Copy(h, a.header)
		return // an outer layer may still answer
	}
	maps.Copy(h, a.sent)
	w.WriteHeader(a.status)
	if a.body.Len() > 0 {
		_, _ = w.Write(a.body.Bytes())
	}
	for name, values := range a.header {
		if !slices.Equal(values, a.sent[name]) {
			h[name] = values // trailers
		}
	}
}
