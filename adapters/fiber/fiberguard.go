package fiberguard

import (
	"bufio"
	"bytes"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"

	"github.com/gofiber/fiber/v3"
	"github.com/valyala/fasthttp"

	"github.com/idempotent-go/idempotent"
)

// Middleware returns a fiber handler that runs the rest of the chain at most
// once for each key of each principal, and answers repeats with the recorded
// answer; see [idempotent.Guard.Middleware] for arguments, defaults and panics.
// The principal function is given a copy of the request; what an authentication
// has left behind is put into the context by [fiber.Ctx.SetContext] to be seen
// there. The result is safe for concurrent use.
func Middleware(g *idempotent.Guard, principal idempotent.PrincipalFunc, opts ...idempotent.HTTPOption) fiber.Handler {
	protect := g.Middleware(principal, opts...)
	return func(c fiber.Ctx) error {
		r, err := translate(c)
		if err != nil {
			return fiber.ErrBadRequest
		}
		outer := &writer{response: c.Response(), header: fields(c.Response())}
		body := r.Body
		protect(idempotent.Synchronous(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if c.Request().IsBodyStream() && r.Body != body {
				// The guard has read it.
				var content []byte
				if content, err = io.ReadAll(r.Body); err != nil {
					return
				}
				c.Request().SetBody(content)
			}
			if w == http.ResponseWriter(outer) { // not protected
				err = c.Next()
				return
			}
			run(c, w, r)
		}))).ServeHTTP(outer, r)
		return err
	}
}

// run runs the rest of the chain and hands its answer to w.
func run(c fiber.Ctx, w http.ResponseWriter, r *http.Request) {
	request := c.Context()
	defer c.SetContext(request)
	c.SetContext(r.Context())

	err := c.Next()
	response := c.Response()
	var content []byte
	if err == nil && response.IsBodyStream() {
		var whole bytes.Buffer
		err = response.BodyWriteTo(&whole)
		content = whole.Bytes()
	} else {
		content = bytes.Clone(response.Body()) // w may send, into this very response
	}
	if err != nil {
		if c.App().ErrorHandler(c, err) != nil {
			_ = c.SendStatus(http.StatusInternalServerError)
		}
		content = bytes.Clone(response.Body())
	}
	if c.RequestCtx().Hijacked() {
		_, _, _ = http.NewResponseController(w).Hijack() // see writer
		return
	}
	header := w.Header()
	clear(header) // what layers outside have set is in the response as well
	maps.Copy(header, fields(response))
	w.WriteHeader(response.StatusCode())
	_, _ = w.Write(content)
}

// translate returns the request for net/http. Its texts are copies, since the
// guard keeps some of them for longer than fasthttp does.
func translate(c fiber.Ctx) (*http.Request, error) {
	ctx, from := c.RequestCtx(), c.Request()
	uri := string(from.Header.RequestURI())
	u, err := url.ParseRequestURI(uri)
	if err != nil {
		return nil, err
	}
	r := &http.Request{
		Method: string(from.Header.Method()), URL: u, RequestURI: uri,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: make(http.Header), Body: http.NoBody,
		Host: string(from.Host()), RemoteAddr: ctx.RemoteAddr().String(), TLS: ctx.TLSConnectionState(),
	}
	for name, value := range from.Header.All() {
		r.Header.Add(string(name), string(value))
	}
	r.Header.Del("Host")
	if from.IsBodyStream() {
		r.ContentLength = max(int64(from.Header.ContentLength()), -1) // fasthttp has other numbers below
		r.Body = io.NopCloser(from.BodyStream())
	} else if body := from.Body(); len(body) > 0 {
		r.ContentLength = int64(len(body))
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	// Not that of fasthttp, which is used for other requests later.
	return r.WithContext(c.Context()), nil
}

// fields returns the header fields of a response. The length is left out:
// fasthttp takes it from the body, whatever is said.
func fields(response *fasthttp.Response) http.Header {
	header := make(http.Header)
	for name, value := range response.Header.All() {
		header.Add(string(name), string(value))
	}
	header.Del("Content-Length")
	return header
}

// writer is the response of fasthttp for net/http.
type writer struct {
	response *fasthttp.Response
	header   http.Header
	wrote    bool
}

// Header implements [http.ResponseWriter].
func (w *writer) Header() http.Header { return w.header }

// WriteHeader puts the header in the place of what is in the response, which
// may be what the handler left there. There are no interim answers.
func (w *writer) WriteHeader(status int) {
	if w.wrote || status < 200 && status != http.StatusSwitchingProtocols {
		return
	}
	w.wrote = true
	for name := range fields(w.response) {
		w.response.Header.Del(name)
	}
	w.response.ResetBody()
	w.response.SetStatusCode(status)
	for _, name := range slices.Sorted(maps.Keys(w.header)) {
		for _, value := range w.header[name] {
			w.response.Header.Add(name, value)
		}
	}
}

// Write implements [http.ResponseWriter].
func (w *writer) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	w.response.AppendBody(p)
	return len(p), nil
}

// Hijack tells the recorder that the connection has been taken over: fasthttp
// hands it out after the response, and not through here.
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, nil }
