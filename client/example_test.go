package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"syscall"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/client"
	"github.com/idempotent-go/idempotent/memstore"
)

// shop is a server whose orders must not be placed twice.
func shop() (server *httptest.Server, orders *atomic.Int64, end func()) {
	store := memstore.New()
	guard := idempotent.New(store)
	orders = new(atomic.Int64)
	mux := http.NewServeMux()
	mux.Handle("POST /orders", guard.Middleware(idempotent.Anonymous)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, `{"number":%d}`, orders.Add(1))
	})))
	mux.Handle("GET /operations", guard.StatusHandler(idempotent.Anonymous))
	server = httptest.NewServer(mux)
	return server, orders, func() {
		server.Close()
		_ = store.Close()
	}
}

// flaky loses the first answer.
type flaky struct{ lost atomic.Bool }

func (f *flaky) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := http.DefaultTransport.RoundTrip(r)
	if err == nil && !f.lost.Swap(true) {
		_ = res.Body.Close()
		return nil, syscall.ECONNRESET
	}
	return res, err
}

func ExampleNew() {
	server, orders, end := shop()
	defer end()

	c := &http.Client{Transport: client.New(new(flaky), client.WithStatusURL("/operations"))}
	res, err := c.Post(server.URL+"/orders", "application/json", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer res.Body.Close()
	fmt.Println(res.StatusCode, "replayed:", res.Header.Get("Idempotent-Replayed"), "orders:", orders.Load())
	// Output: 201 replayed: true orders: 1
}

func ExampleDo() {
	server, _, end := shop()
	defer end()

	type Order struct{ Number int }
	ctx, url, cart := context.Background(), server.URL+"/orders", map[string]string{"item": "book"}
	c := &http.Client{Transport: client.New(nil)}
	order, err := client.Do[Order](ctx, c, http.MethodPost, url, cart)
	fmt.Println(order.Number, err)
	// Output: 1 <nil>
}

// A key that is stored before the first attempt survives a restart.
func ExampleWithKey() {
	server, orders, end := shop()
	defer end()
	type order struct{ Number int }

	key := client.NewKey() // and now store it, with what is to be ordered
	ctx := client.WithKey(context.Background(), key)

	c := &http.Client{Transport: client.New(new(flaky), client.WithRetries(0))}
	_, err := client.Do[order](ctx, c, http.MethodPost, server.URL+"/orders", nil)
	var unknown *client.UnknownError
	fmt.Println(errors.As(err, &unknown) && unknown.Key == key)

	// Later, in another process, with the key that was stored.
	ctx = client.WithKey(context.Background(), key)
	got, err := client.Do[order](ctx, c, http.MethodPost, server.URL+"/orders", nil)
	fmt.Println(got.Number, err, "orders:", orders.Load())
	// Output:
	// true
	// 1 <nil> orders: 1
}

// Inside an operation a call has a key derived from that operation: when the
// operation is attempted again, its call is a repeat.
func ExampleWithKey_derived() {
	server, orders, end := shop()
	defer end()
	store := memstore.New()
	defer store.Close()
	guard := idempotent.New(store)
	type order struct{ Number int }

	c := &http.Client{Transport: client.New(nil)}
	for range 2 {
		_ = guard.Do(context.Background(), "restock:17", func(ctx context.Context) error {
			step := client.WithKey(ctx, idempotent.Derive(ctx, "order"))
			got, err := client.Do[order](step, c, http.MethodPost, server.URL+"/orders", nil)
			fmt.Println(got.Number, err)
			idempotent.Release(ctx) // what came after it failed: to be attempted again
			return nil
		})
	}
	fmt.Println("orders:", orders.Load())
	// Output:
	// 1 <nil>
	// 1 <nil>
	// orders: 1
}
