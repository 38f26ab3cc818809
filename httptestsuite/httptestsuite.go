// Package httptestsuite proves that a web framework's adapter keeps what the
// middleware of package idempotent promises. Its cases speak HTTP to a running
// server, so that it does not matter what the framework is made of; each is
// named after the row of the behaviour table that it shows.
//
// An adapter says how to mount a guard in front of an operation, and how its
// handlers answer:
//
//	func TestAdapter(t *testing.T) {
//		httptestsuite.Run(t, httptestsuite.Adapter{
//			Serve: func(t testing.TB, app httptestsuite.App) string {
//				router := chi.NewRouter()
//				router.Use(app.Layer, app.Guard.Middleware(app.Principal, app.Options...))
//				router.Handle("/*", app.Handler())
//				return httptestsuite.Serve(t, router)
//			},
//		})
//	}
//
// A framework with handlers of its own writes one that calls [App.Operate] and
// sends the [Reply] by the framework's own means: that is what the suite is to
// see working. [App.Handler] is this handler for net/http.
//
// The suite shows what an adapter can break: the way from request to guard and
// from answer to record and client. What only the guard decides (leases,
// take-over, what a process leaves behind) and hijacking, which frameworks do in
// ways of their own, is not in it.
package httptestsuite

import (
	"context"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/idempotent-go/idempotent"
)

// Adapter is what is to be proven.
type Adapter struct {
	// Serve starts a server with app on every path and for every method, and
	// returns its base URL, without a slash at the end; [Serve] fits what is a
	// [http.Handler]. It registers what is to be closed with the Cleanup of t.
	//
	// Outside in: what keeps a panic from ending the process, if the server
	// does not; a layer that calls App.Outside; the adapter under test, with
	// App.Guard, App.Principal and App.Options; a handler that calls
	// App.Operate. It is called once for each case, and must not need more
	// than t for it: cases may be in a server each at the same time.
	Serve func(t testing.TB, app App) string

	// Buffered says that the framework has read the whole request before its
	// handlers are asked, and sends nothing before they have returned: a
	// status, a header and a body. Cases of what goes on in between, which are
	// a flush, an interim answer, trailers and "Expect: 100-continue", then ask
	// for the answer only.
	Buffered bool
}

// App is what an adapter serves in one case.
type App struct {
	Guard     *idempotent.Guard
	Principal idempotent.PrincipalFunc
	Options   []idempotent.HTTPOption

	// Operate is the operation. The handler gives it the context of the
	// request as the adapter hands it to handlers, and the bytes of the body
	// as they were sent.
	Operate func(ctx context.Context, body []byte) Reply

	// Outside sets fields of the response as layers do that stand outside of
	// the middleware. set replaces the values of a field.
	Outside func(set func(name, value string))
}

// Reply is what the handler does after [App.Operate].
type Reply struct {
	// Panic is the value that the handler panics with, without an answer.
	// nil: it answers.
	Panic any

	// Returned says that the handler answers with Status by returning the
	// framework's own error of that status, and sets no more than Header. A
	// framework whose handlers return no errors answers as always.
	Returned bool

	// Hints are the values of Link in an interim answer, 103, that comes
	// before Status and is not to leave them in Header. None: there is none.
	Hints []string

	Status int         // 200 or above
	Header http.Header // canonical names; every value is a line of its own, in this order
	Body   string

	// Rest is called after Body has been written and flushed; what it
	// returns is written, too. nil: there is no flush, and Body is all.
	Rest func() string

	// Trailer follows the body; Header declares its names. None: there is
	// none.
	Trailer http.Header
}

// Handler returns the operation as a handler for net/http.
func (a App) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, "the body cannot be read", http.StatusBadRequest)
			return
		}
		reply := a.Operate(r.Context(), body)
		if reply.Panic != nil {
			panic(reply.Panic)
		}
		if len(reply.Hints) > 0 {
			w.Header()["Link"] = reply.Hints
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Del("Link")
		}
		maps.Copy(w.Header(), reply.Header)
		w.WriteHeader(reply.Status)
		_, _ = io.WriteString(w, reply.Body)
		if reply.Rest != nil {
			_ = http.NewResponseController(w).Flush()
			_, _ = io.WriteString(w, reply.Rest())
		}
		maps.Copy(w.Header(), reply.Trailer)
	})
}

// Layer is the layer that calls [App.Outside], as middleware for net/http.
func (a App) Layer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.Outside(w.Header().Set)
		next.ServeHTTP(w, r)
	})
}

// Serve starts a server for h on the loopback interface and returns its base
// URL. The server is closed with the Cleanup of t, and says nothing of panics.
func Serve(t testing.TB, h http.Handler) string {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Start()
	t.Cleanup(server.Close)
	return server.URL
}

// Run checks the adapter against every case, each in a subtest of its own, on
// a memory store and a server of its own. A case that fails prints the rule it
// stands for. Nothing is skipped. The suite takes about a second.
func Run(t *testing.T, a Adapter) {
	t.Helper()
	if a.Serve == nil {
		t.Fatal("httptestsuite: the Adapter has no Serve")
	}
	for _, c := range allCases() {
		t.Run(c.name, func(t *testing.T) { c.check(t, a, usualPatience) })
	}
}
