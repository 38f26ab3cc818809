package promidempotent_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/promidempotent"
)

func Example() {
	metrics := promidempotent.New()
	memory := memstore.New(memstore.WithObserver(metrics))
	guard := idempotent.New(memory, idempotent.WithObserver(metrics))
	defer func() { _ = memory.Close() }()

	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics, promidempotent.NewStoreCollector(func() promidempotent.StoreStats {
		s := memory.Stats()
		return promidempotent.StoreStats{Entries: s.Entries, Pending: s.Pending, Bytes: s.Bytes}
	}))
	server := promhttp.HandlerFor(registry, promhttp.HandlerOpts{}) // mux.Handle("GET /metrics", server)

	for range 3 { // one order, sent three times
		_, _ = idempotent.Do(context.Background(), guard, "order-7", func(context.Context) (string, error) {
			return "placed", nil
		})
	}

	w := httptest.NewRecorder()
	server.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		for _, name := range []string{"claims_total", `replays_total{outcome="success"}`, `store_entries{state="finished"}`, "operations_in_flight"} {
			if strings.HasPrefix(line, "idempotent_"+name+" ") {
				fmt.Print(line)
			}
		}
	}
	// Output:
	// idempotent_claims_total 1
	// idempotent_operations_in_flight 0
	// idempotent_replays_total{outcome="success"} 2
	// idempotent_store_entries{state="finished"} 1
}
