package ginguard

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/idempotent-go/idempotent"
)

// Middleware returns gin middleware that runs the rest of the chain at most
// once for each key of each principal, and answers repeats with the recorded
// answer; see [idempotent.Guard.Middleware] for arguments, defaults and panics.
// The principal function is given the request as gin has it; what an
// authentication has left in the gin context is put into the context of the
// request to be seen there. The result is safe for concurrent use.
func Middleware(g *idempotent.Guard, principal idempotent.PrincipalFunc, opts ...idempotent.HTTPOption) gin.HandlerFunc {
	protect := g.Middleware(principal, opts...)
	return func(c *gin.Context) {
		ran := false
		outer := &outerWriter{c.Writer}
		protect(idempotent.Synchronous(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ran = true
			if w == http.ResponseWriter(outer) { // not protected
				w = nil
			}
			run(c, w, r)
		}))).ServeHTTP(outer, c.Request)
		if !ran {
			c.Abort()
		}
	}
}

// run runs the rest of the chain on r and, where it is protected, on w. Layers
// outside get back what was theirs, also on a panic: gin.Recovery answers on its
// own writer.
func run(c *gin.Context, w http.ResponseWriter, r *http.Request) {
	outer, request := c.Writer, c.Request
	defer func() { c.Writer, c.Request = outer, request }()
	c.Request = r
	if w == nil {
		c.Next()
		return
	}
	inner := &writer{ResponseWriter: outer, recorder: w, status: outer.Status(), size: unwritten}
	c.Writer = inner
	begun := outer.Written()
	c.Next()
	if !inner.Written() && !begun && outer.Written() {
		// Engine.HandleContext has given the rest of the chain gin's own
		// writer. What was answered is not known here, and silence would be a
		// success.
		inner.WriteHeader(http.StatusInternalServerError)
	}
	inner.WriteHeaderNow() // gin keeps a status without a body until here
}

// outerWriter is gin's writer for the guard: a pointer, which can be compared
// whatever a layer outside has put in its place.
type outerWriter struct{ gin.ResponseWriter }

// WriteHeader lets interim answers pass gin by, which would take the last of
// them for the status of the answer. A writer that cannot be looked behind has
// none.
func (w *outerWriter) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.ResponseWriter.WriteHeader(status)
		return
	}
	if behind, ok := w.ResponseWriter.(interface{ Unwrap() http.ResponseWriter }); ok {
		behind.Unwrap().WriteHeader(status)
	}
}

// Unwrap is for [http.ResponseController].
func (w *outerWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// unwritten is the size of an answer without a head.
const unwritten = -1

var errHijackTooLate = errors.New("ginguard: hijack after the body has begun")

// writer is the recorder as a writer of gin, which keeps the status back until
// it is needed and counts the bytes.
type writer struct {
	gin.ResponseWriter // for Pusher alone
	recorder           http.ResponseWriter
	status             int
	size               int
}

// Header implements [http.ResponseWriter].
func (w *writer) Header() http.Header { return w.recorder.Header() }

// WriteHeader sets the status. Like gin's it may be called again until the
// head is written.
func (w *writer) WriteHeader(status int) {
	if status > 0 && !w.Written() {
		w.status = status
	}
}

// WriteHeaderNow implements [gin.ResponseWriter].
func (w *writer) WriteHeaderNow() {
	if !w.Written() {
		w.size = 0
		w.recorder.WriteHeader(w.status)
	}
}

// Write implements [http.ResponseWriter].
func (w *writer) Write(p []byte) (int, error) {
	w.WriteHeaderNow()
	n, err := w.recorder.Write(p)
	w.size += n
	return n, err
}

// WriteString implements [io.StringWriter].
func (w *writer) WriteString(s string) (int, error) {
	w.WriteHeaderNow()
	n, err := io.WriteString(w.recorder, s)
	w.size += n
	return n, err
}

// Status implements [gin.ResponseWriter].
func (w *writer) Status() int { return w.status }

// Size implements [gin.ResponseWriter].
func (w *writer) Size() int { return w.size }

// Written implements [gin.ResponseWriter].
func (w *writer) Written() bool { return w.size != unwritten }

// Flush implements [http.Flusher].
func (w *writer) Flush() { _ = w.FlushError() }

// FlushError is Flush for [http.ResponseController].
func (w *writer) FlushError() error {
	w.WriteHeaderNow()
	return http.NewResponseController(w.recorder).Flush()
}

// Hijack implements [http.Hijacker].
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if w.size > 0 {
		return nil, nil, errHijackTooLate
	}
	conn, buf, err := http.NewResponseController(w.recorder).Hijack()
	if err == nil {
		w.size = 0
	}
	return conn, buf, err
}

// CloseNotify returns a channel that never fires: the handler goes on without
// its client, and is not to be told that it may stop half-way.
func (w *writer) CloseNotify() <-chan bool { return nil }

// Unwrap is for the deadlines of [http.ResponseController]. The recorder lets
// nothing pass by itself.
func (w *writer) Unwrap() http.ResponseWriter { return w.recorder }
