package chi_test

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/httptestsuite"
	"github.com/idempotent-go/idempotent/memstore"
)

// As middleware of the whole router, which stands outside of the routing.
func TestRouter(t *testing.T) {
	httptestsuite.Run(t, httptestsuite.Adapter{Serve: func(t testing.TB, app httptestsuite.App) string {
		r := chi.NewRouter()
		r.Use(app.Layer, app.Guard.Middleware(app.Principal, app.Options...))
		r.Handle("/*", app.Handler())
		return httptestsuite.Serve(t, r)
	}})
}

// As middleware of a route, inside of the routing, and of chi's own layers.
func TestRoute(t *testing.T) {
	httptestsuite.Run(t, httptestsuite.Adapter{Serve: func(t testing.TB, app httptestsuite.App) string {
		r := chi.NewRouter()
		r.Use(app.Layer, middleware.CleanPath)
		r.Group(func(r chi.Router) {
			r.Use(app.Guard.Middleware(app.Principal, app.Options...))
			r.Handle("/{first}", app.Handler())
			r.Handle("/{first}/*", app.Handler())
		})
		return httptestsuite.Serve(t, r)
	}})
}

// Under a mounted router, whose path chi cuts for its own routing alone.
func TestMounted(t *testing.T) {
	httptestsuite.Run(t, httptestsuite.Adapter{Serve: func(t testing.TB, app httptestsuite.App) string {
		orders := chi.NewRouter()
		orders.Use(app.Guard.Middleware(app.Principal, app.Options...))
		orders.Handle("/*", app.Handler())
		r := chi.NewRouter()
		r.Use(app.Layer)
		r.Mount("/orders", orders)
		r.With(app.Guard.Middleware(app.Principal, app.Options...)).Handle("/*", app.Handler())
		return httptestsuite.Serve(t, r)
	}})
}

func TestRoutingReachesTheHandler(t *testing.T) {
	store := memstore.New(memstore.WithLogger(slog.New(slog.DiscardHandler)))
	defer func() { _ = store.Close() }()
	guard := idempotent.New(store)
	r := chi.NewRouter()
	r.Use(guard.Middleware(idempotent.Anonymous))
	var pattern string
	r.Post("/orders/{id}/items/{item}", func(w http.ResponseWriter, r *http.Request) {
		pattern = chi.RouteContext(r.Context()).RoutePattern()
		fmt.Fprint(w, chi.URLParam(r, "id"), " ", chi.URLParam(r, "item"))
	})
	for _, replayed := range []string{"", "true"} {
		q := httptest.NewRequest(http.MethodPost, "/orders/7/items/3", strings.NewReader("{}"))
		q.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		r.ServeHTTP(w, q)
		if w.Body.String() != "7 3" || w.Header().Get("Idempotent-Replayed") != replayed {
			t.Fatalf("got %q, %v", w.Body, w.Header())
		}
	}
	if pattern != "/orders/{id}/items/{item}" {
		t.Fatalf("the pattern is %q", pattern)
	}
}

func Example() {
	store := memstore.New()
	defer func() { _ = store.Close() }()
	guard := idempotent.New(store)
	principal := func(r *http.Request) (string, error) { return cmp.Or(r.Header.Get("X-User"), "alice"), nil }

	n := 0
	router := chi.NewRouter()
	router.Use(middleware.Recoverer)
	router.With(guard.Middleware(principal)).Post("/orders/{id}", func(w http.ResponseWriter, r *http.Request) {
		n++
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "order %s, run %d", chi.URLParam(r, "id"), n)
	})

	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/orders/7", strings.NewReader(`{"amount":1}`))
		r.Header.Set("Idempotency-Key", "one-per-order")
		w := httptest.NewRecorder()
		router.ServeHTTP(w, r)
		fmt.Printf("%d %s %q\n", w.Code, w.Body, w.Header().Get("Idempotent-Replayed"))
	}
	// Output:
	// 201 order 7, run 1 ""
	// 201 order 7, run 1 "true"
}
