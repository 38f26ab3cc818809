package inspect_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/inspect"
	"github.com/idempotent-go/idempotent/memstore"
)

func ExampleNew() {
	store := memstore.New()
	defer func() { _ = store.Close() }()
	guard := idempotent.New(store)

	// The program's own authentication, here HTTP Basic.
	admin := func(r *http.Request) (string, error) {
		if name, password, ok := r.BasicAuth(); ok && name == "olga" && password == "secret" {
			return name, nil
		}
		return "", errors.New("not an admin")
	}
	adminsOnly := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := admin(r); err != nil {
				w.Header().Set("WWW-Authenticate", "Basic")
				http.Error(w, "log in", http.StatusUnauthorized)
				return
			}
			h.ServeHTTP(w, r)
		})
	}
	mux := http.NewServeMux()
	page := inspect.New(guard, store, inspect.WithAuthorize(admin))
	mux.Handle("/debug/idempotency", adminsOnly(page))

	_ = guard.Do(context.Background(), "invoice-7", func(context.Context) error { return errors.New("the line went dead") })

	r := httptest.NewRequest(http.MethodGet, "/debug/idempotency?page=unknown", nil)
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, r)
	fmt.Println("nobody:", w.Code)

	r.SetBasicAuth("olga", "secret")
	w = httptest.NewRecorder()
	mux.ServeHTTP(w, r)
	fmt.Println("olga:", w.Code, "sees invoice-7:", strings.Contains(w.Body.String(), ">invoice-7<"))
	// Output:
	// nobody: 401
	// olga: 200 sees invoice-7: true
}
