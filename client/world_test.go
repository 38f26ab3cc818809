package client_test

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/client"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/memstore"
)

const patience = time.Minute

// world is our own server behind a relay that can be told to spoil things. Its
// handler answers 201 with the number of its run.
type world struct {
	t      *testing.T
	guard  *idempotent.Guard
	relay  *redistest.Relay
	server *httptest.Server
	url    string // through the relay
	runs   atomic.Int64

	mu       sync.Mutex // guards the fields below
	requests []seen     // what arrived, in its order
}

// seen is a request as the server saw it.
type seen struct{ method, path, key, token, body string }

func newWorld(t *testing.T, handler http.HandlerFunc, opts ...idempotent.HTTPOption) *world {
	t.Helper()
	w := &world{t: t}
	quiet := slog.New(slog.DiscardHandler)
	store := memstore.New(memstore.WithLogger(quiet))
	w.guard = idempotent.New(store, idempotent.WithLogger(quiet))
	principal := func(r *http.Request) (string, error) {
		switch r.Header.Get("Authorization") {
		case "", "token-1", "token-2": // all of one user
			return "alice", nil
		case "expired":
			return "", idempotent.ErrUnauthenticated
		}
		return "bob", nil
	}
	mux := http.NewServeMux()
	guarded := w.guard.Middleware(principal, opts...)(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.runs.Add(1)
		if handler != nil {
			handler(rw, r)
			return
		}
		w.created(rw)
	}))
	mux.Handle("/orders", guarded)
	mux.Handle("/moved", http.RedirectHandler("/orders", http.StatusTemporaryRedirect))
	mux.Handle("GET /operations", w.guard.StatusHandler(principal))
	w.server = httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		w.mu.Lock()
		w.requests = append(w.requests, seen{
			r.Method, r.URL.Path, cmp.Or(r.Header.Get("Idempotency-Key"), r.Header.Get("X-Idempotency-Key")), r.Header.Get("Authorization"), string(body),
		})
		w.mu.Unlock()
		mux.ServeHTTP(rw, r)
	}))
	w.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	w.server.Start()
	w.relay = redistest.NewRelay(t, w.server.Listener.Addr().String())
	w.url = "http://" + w.relay.Addr + "/orders"
	t.Cleanup(func() {
		w.relay.Resume()
		w.relay.Cut()
		w.server.Close()
		require.NoError(t, w.guard.Drain(context.Background()))
		require.NoError(t, store.Close())
	})
	return w
}

func (w *world) created(rw http.ResponseWriter) {
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(rw, `{"run":`+string('0'+byte(w.runs.Load()))+`}`)
}

// order is the result of the usual handler.
type order struct{ Run int }

// arrived returns the requests for a method that the server has seen.
func (w *world) arrived(method string) (all []seen) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.requests {
		if s.method == method {
			all = append(all, s)
		}
	}
	return all
}

// base is a transport of its own, whose connections end with the test.
func base(t *testing.T) *http.Transport {
	b := &http.Transport{}
	t.Cleanup(b.CloseIdleConnections)
	return b
}

// client returns one that is patient with a slow machine.
func (w *world) client(opts ...client.Option) *http.Client {
	return &http.Client{Transport: client.New(base(w.t), append([]client.Option{
		client.WithRetries(50), client.WithBackOff(5*time.Millisecond, 50*time.Millisecond),
	}, opts...)...)}
}

func (w *world) until(what string, holds func() bool) {
	w.t.Helper()
	for end := time.Now().Add(patience); !holds(); <-time.After(2 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("still not so: %s", what)
		}
	}
}

func isPost(b []byte) bool { return bytes.HasPrefix(b, []byte("POST ")) }

// fake is a base that answers from a function, and remembers what it was sent.
type fake struct {
	mu      sync.Mutex // guards the fields below
	sent    []seen
	at      []time.Time
	answers func(n int, r *http.Request) (*http.Response, error) // n from 1
}

func (f *fake) RoundTrip(r *http.Request) (*http.Response, error) {
	body := ""
	if r.Body != nil {
		content, _ := io.ReadAll(r.Body)
		_ = r.Body.Close()
		body = string(content)
	}
	f.mu.Lock()
	f.sent = append(f.sent, seen{r.Method, r.URL.RequestURI(), r.Header.Get("Idempotency-Key"), r.Header.Get("Authorization"), body})
	f.at = append(f.at, time.Now())
	n := len(f.sent)
	f.mu.Unlock()
	return f.answers(n, r)
}

func reply(r *http.Request, status int, body string, fields ...string) *http.Response {
	rec := httptest.NewRecorder()
	for i := 0; i < len(fields); i += 2 {
		rec.Header().Set(fields[i], fields[i+1])
	}
	rec.WriteHeader(status)
	_, _ = io.WriteString(rec, body)
	res := rec.Result()
	res.Request = r
	return res
}

func replyInFlight(r *http.Request, fields ...string) *http.Response {
	return reply(r, http.StatusConflict, `{"code":"in-flight"}`, append([]string{"Content-Type", "application/problem+json"}, fields...)...)
}
