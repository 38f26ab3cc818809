package peer

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
)

// Path is where the apps take orders.
const Path = "/api/v1/orders"

// App is a server program that answers POST /api/v1/orders with what its
// operation returns, 201 and two header fields. It is driven in process,
// without sockets.
type App struct {
	Handler http.Handler // nil where the app is not one of net/http
	client  func() Client
	Close   func()
}

// Client sends one request and returns the answer, whose bytes are valid until
// the next call. It belongs to one goroutine and allocates nothing itself.
type Client func(key string, body []byte) (status int, answer []byte)

// Client returns a new client of the app.
func (a *App) Client() Client { return a.client() }

// Bare is the app that nothing protects.
func Bare(op func() string) *App { return netHTTP(orders(op), func() {}) }

func netHTTP(h http.Handler, end func()) *App {
	return &App{Handler: h, client: func() Client { return newNetClient(h) }, Close: end}
}

// orders is the handler that all apps of net/http have.
func orders(op func() string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Location", "/orders/1")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, op())
	})
}

// newNetClient drives h with one request and one writer that are used again
// and again.
func newNetClient(h http.Handler) Client {
	key := make([]string, 1)
	body := new(reader)
	target := &url.URL{Path: Path}
	header := http.Header{"Idempotency-Key": key, "Content-Type": {"application/json"}}
	w := &writer{header: make(http.Header)}
	r := new(http.Request)
	return func(k string, b []byte) (int, []byte) {
		key[0] = k
		body.Reset(b)
		*r = http.Request{
			Method: http.MethodPost, URL: target, RequestURI: Path, Host: "localhost",
			Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: header, Body: body, ContentLength: int64(len(b)),
		}
		clear(w.header)
		w.status, w.body = 0, w.body[:0]
		h.ServeHTTP(w, r)
		return w.status, w.body
	}
}

type reader struct{ bytes.Reader }

func (*reader) Close() error { return nil }

type writer struct {
	header http.Header
	status int
	body   []byte
}

func (w *writer) Header() http.Header { return w.header }

func (w *writer) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
}

func (w *writer) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	w.body = append(w.body, p...)
	return len(p), nil
}

func (w *writer) WriteString(s string) (int, error) {
	w.WriteHeader(http.StatusOK)
	w.body = append(w.body, s...)
	return len(s), nil
}

// overApp makes a peer of an app.
func overApp(open func(op func() string) *App) func(func() string, string) (Peer, error) {
	return func(op func() string, _ string) (Peer, error) { return newAppPeer(open(op)), nil }
}

type appPeer struct {
	app     *App
	clients sync.Pool
}

func newAppPeer(app *App) *appPeer {
	return &appPeer{app: app, clients: sync.Pool{New: func() any { return app.Client() }}}
}

func (p *appPeer) Do(_ context.Context, key, request string) (string, error) {
	c := p.clients.Get().(Client)
	defer p.clients.Put(c)
	switch status, answer := c(key, []byte(request)); status {
	case http.StatusCreated:
		return string(answer), nil
	case http.StatusConflict:
		return "", ErrInFlight
	case http.StatusUnprocessableEntity:
		return "", ErrMismatch
	default:
		return "", fmt.Errorf("peer: the answer is %d: %.200q", status, answer)
	}
}

func (p *appPeer) Close() error {
	p.app.Close()
	return nil
}
