package idempotent_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
)

func ExampleGuard_StatusHandler() {
	store := memstore.New()
	defer store.Close()
	guard := idempotent.New(store)
	mux := http.NewServeMux()
	mux.Handle("POST /orders", guard.Middleware(idempotent.Anonymous)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/orders/17")
		w.WriteHeader(http.StatusCreated)
	})))
	mux.Handle("GET /operations", guard.StatusHandler(idempotent.Anonymous))

	post := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader("{}"))
	post.Header.Set("Idempotency-Key", "3f1c")
	mux.ServeHTTP(httptest.NewRecorder(), post) // and the answer is lost

	for _, key := range []string{"3f1c", "never-sent"} {
		answer := httptest.NewRecorder()
		mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/operations?path=/orders&key="+key, nil))
		fmt.Println(answer.Code, strings.Contains(answer.Body.String(), `"state":"success"`), strings.Contains(answer.Body.String(), `"original_status":201`))
	}
	// Output:
	// 200 true true
	// 404 false false
}

func ExampleWithStatusURL() {
	store := memstore.New()
	defer store.Close()
	guard := idempotent.New(store)
	finish := make(chan struct{})
	mux := http.NewServeMux()
	mux.Handle("POST /reports", guard.Middleware(idempotent.Anonymous, idempotent.WithStatusURL("/operations"))(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			<-finish // it takes its time
			w.WriteHeader(http.StatusCreated)
		})))
	mux.Handle("GET /operations", guard.StatusHandler(idempotent.Anonymous))

	post := httptest.NewRequest(http.MethodPost, "/reports", strings.NewReader("{}"))
	post.Header.Set("Idempotency-Key", "3f1c")
	post.Header.Set("Prefer", "respond-async")
	accepted := httptest.NewRecorder()
	mux.ServeHTTP(accepted, post)
	fmt.Println(accepted.Code, accepted.Header().Get("Location"))

	close(finish)
	query := httptest.NewRequest(http.MethodGet, accepted.Header().Get("Location"), nil)
	query.Header.Set("Prefer", "wait=10")
	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, query)
	fmt.Println(strings.Contains(answer.Body.String(), `"state":"success"`))
	// Output:
	// 202 /operations?key=3f1c&path=%2Freports
	// true
}
