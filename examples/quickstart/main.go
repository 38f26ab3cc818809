// Command quickstart is the shortest program with an idempotent handler. Its keys
// are in memory; the shop next door takes the URL of a store.
package main

import (
	"fmt"
	"log"
	"net/http"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
)

func main() {
	guard := idempotent.New(memstore.New())
	once := guard.Middleware(user)
	http.Handle("POST /orders", once(http.HandlerFunc(createOrder)))
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", nil))
}

// user says whose key it is: a stable id that authentication has found.
func user(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil }

func createOrder(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintln(w, "order placed")
}
