package sqlstore

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"maps"
	"net"
	"net/http"

	"github.com/idempotent-go/idempotent"
)

// Middleware is [idempotent.Guard.Middleware] whose handlers run in a
// transaction: [Tx] has it, and claim, the handler's writes and the recorded
// answer are committed together, before the answer is sent.
//
// What becomes of the transaction stands at [TxGuard]. By the status: 2xx and
// 3xx commit; 4xx are definite failures, recorded without the handler's writes;
// 5xx and what is released (408 and 5xx included, see [Classify]) roll back and
// free the key. With [idempotent.WithClassify] a function of one's own takes the
// place of Classify. A commit that fails is 503 store-unavailable, and so is one
// of which nothing could be learnt: the same key then gets the truth.
//
// A handler that has written nothing when its context has ended, or fewer bytes
// than its Content-Length says, is recorded as unknown, without its writes: what
// it did elsewhere nobody knows.
//
// The handler may be called more than once; see [Again]. It must read the body of
// the request it is given, and its answer waits for the commit: its writer can
// neither flush nor be hijacked, and an answer longer than
// [idempotent.WithMaxResponse] is rolled back and answered with 500. Interim
// answers are not sent, and "Prefer: respond-async" is ignored, see
// [idempotent.Synchronous]. Requests without a key have no transaction and go to
// the handler as they are.
func (g *TxGuard) Middleware(principal idempotent.PrincipalFunc, opts ...idempotent.HTTPOption) func(http.Handler) http.Handler {
	protect := g.guard.Middleware(principal, append([]idempotent.HTTPOption{idempotent.WithClassify(Classify)}, opts...)...)
	return func(next http.Handler) http.Handler {
		if next == nil {
			panic("sqlstore: Middleware: the next handler is nil")
		}
		// A handler that went on without its client would lose its transaction.
		return &txHandler{guard: g, protected: protect(idempotent.Synchronous(operation{next}))}
	}
}

// Classify says what an answer says of an operation in a transaction: as
// [idempotent.Classify], but what that calls unknown is released, since all that
// the operation did was rolled back.
func Classify(status int, h http.Header) idempotent.Class {
	if c := idempotent.Classify(status, h); c != idempotent.ClassUnknown {
		return c
	}
	return idempotent.ClassRelease
}

// txHandler is around the guard's middleware: it runs that again where the
// database wants the transaction again, and keeps back what it answers until the
// transaction has ended.
type txHandler struct {
	guard     *TxGuard
	protected http.Handler
}

func (h *txHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := keep(r)
	undone := h.guard.transact(r.Context(), func(ctx context.Context) {
		h.serve(ctx, w, r, body)
	})
	if undone == nil {
		return
	}
	// Somebody else may have run it since, or it has been committed after all.
	u := newUnit(r.Context(), h.guard, true)
	u.looking = undone
	u.do(r.Context(), func(ctx context.Context) { h.serve(ctx, w, r, body) })
}

// serve has the guard's middleware answer once, to a gate that lets nothing pass
// of what does not count.
func (h *txHandler) serve(ctx context.Context, w http.ResponseWriter, r *http.Request, body *keptBody) {
	u := unitOf(ctx)
	gate := &gate{w: w, u: u, header: w.Header().Clone()}
	if gate.header == nil {
		gate.header = http.Header{}
	}
	passed := r.WithContext(ctx)
	if body != nil {
		passed.Body = body.again()
	}
	h.protected.ServeHTTP(gate, passed)
	r.Pattern, r.MultipartForm = passed.Pattern, passed.MultipartForm
	gate.finish()
}

// operation is between the guard's middleware and the handler.
type operation struct{ next http.Handler }

func (o operation) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u := unitOf(r.Context())
	if u.now() != txOpen { // it has no key, or the middleware is mounted twice
		if u.outer != nil {
			r = r.WithContext(context.WithValue(r.Context(), unitKey{}, u.outer))
		}
		if body, ok := r.Body.(*keptBody); ok {
			r.Body = body.rest()
		}
		if gate, ok := w.(*gate); ok {
			w = gate.open()
		}
		o.next.ServeHTTP(w, r)
		return
	}
	u.operate(func() { o.next.ServeHTTP(heldWriter{w}, r) })
}

// heldWriter is a recorder that cannot be made to send before the commit.
type heldWriter struct{ http.ResponseWriter }

func (w heldWriter) WriteString(s string) (int, error) { return io.WriteString(w.ResponseWriter, s) }

// WriteHeader drops interim answers: the handler may be run again.
func (w heldWriter) WriteHeader(status int) {
	if status >= 200 {
		w.ResponseWriter.WriteHeader(status)
	}
}

// gate is the client as the guard's middleware sees it. It lets an answer pass
// where it counts: not before the commit, and not where there was none though
// there should have been.
type gate struct {
	w      http.ResponseWriter
	u      *unit
	header http.Header // until the answer passes; then w's own
	passed bool
}

func (g *gate) Header() http.Header { return g.header }

// passes reports whether an answer counts.
func (g *gate) passes() bool {
	switch g.u.now() {
	case txOpen:
		g.u.spoil(errHeld) // the recorder has no room for more
		return false
	case txUndone, txDoubt:
		return false
	}
	return true
}

func (g *gate) WriteHeader(status int) {
	if g.passes() {
		g.open().WriteHeader(status)
	}
}

func (g *gate) Write(b []byte) (int, error) {
	if !g.passes() {
		return len(b), nil
	}
	return g.open().Write(b)
}

func (g *gate) WriteString(s string) (int, error) {
	if !g.passes() {
		return len(s), nil
	}
	return io.WriteString(g.open(), s)
}

// open returns the client, with the header as it is now.
func (g *gate) open() http.ResponseWriter {
	if !g.passed {
		g.passed = true
		h := g.w.Header()
		clear(h)
		maps.Copy(h, g.header)
		g.header = h
	}
	return g.w
}

// finish hands on the header of an answer that an outer layer is to give.
func (g *gate) finish() {
	if g.passes() {
		g.open()
	}
}

// FlushError and Hijack keep an http.ResponseController from going past the
// gate.
func (g *gate) FlushError() error {
	if !g.passed {
		return http.ErrNotSupported
	}
	return http.NewResponseController(g.w).Flush()
}

func (g *gate) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return nil, nil, http.ErrNotSupported
}

func (g *gate) Unwrap() http.ResponseWriter { return g.w }

// keptBody is a request's body that can be read again, up to where the guard's
// middleware has read it.
type keptBody struct {
	from io.ReadCloser
	read bytes.Buffer // of from
	now  io.Reader    // what comes next
}

// keep returns the body of r, and nil where it has none.
func keep(r *http.Request) *keptBody {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	return &keptBody{from: r.Body}
}

// again returns the body from its beginning.
func (b *keptBody) again() *keptBody {
	b.now = io.MultiReader(bytes.NewReader(b.read.Bytes()), io.TeeReader(b.from, &b.read))
	return b
}

func (b *keptBody) Read(p []byte) (int, error) { return b.now.Read(p) }
func (b *keptBody) Close() error               { return b.from.Close() }

// rest returns what has not been read, of which nothing is kept.
func (b *keptBody) rest() io.ReadCloser {
	b.now = b.from
	return b
}
