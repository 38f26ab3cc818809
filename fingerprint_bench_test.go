package idempotent

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// fingerprintBenchJSON returns a document of about size bytes as an API client sends
// it: an order with nested lines, its members not in canonical order.
func fingerprintBenchJSON(t testing.TB, size int) []byte {
	t.Helper()
	type line struct {
		SKU   string            `json:"sku"`
		Name  string            `json:"name"`
		Count int               `json:"count"`
		Price float64           `json:"price"`
		Tags  map[string]string `json:"tags"`
	}
	order := struct {
		Order    string `json:"order"`
		Currency string `json:"currency"`
		Customer string `json:"customer"`
		Lines    []line `json:"lines"`
	}{Order: "ord_01HZX3", Currency: "EUR", Customer: "Müller & Söhne"}
	for i := 0; ; i++ {
		body, err := json.Marshal(order)
		require.NoError(t, err)
		if len(body) >= size {
			return body
		}
		order.Lines = append(order.Lines, line{
			SKU: fmt.Sprintf("sku-%04d", i), Name: "Widget, large, blue", Count: i + 1, Price: 19.95,
			Tags: map[string]string{"colour": "blue", "warehouse": "north-2"},
		})
	}
}

func BenchmarkFingerprint(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10} {
		body := fingerprintBenchJSON(b, size)
		r := httptest.NewRequest("POST", "/orders", nil)
		r.Header.Set("Content-Type", "application/json; charset=utf-8")

		b.Run(fmt.Sprintf("sha256/%d", size), func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				_ = sha256.Sum256(body)
			}
		})
		for _, bench := range []struct {
			name string
			fn   FingerprintFunc
		}{{"CanonicalJSON", CanonicalJSON}, {"RawBody", RawBody}} {
			b.Run(fmt.Sprintf("%s/%d", bench.name, size), func(b *testing.B) {
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				for b.Loop() {
					_, _ = bench.fn(r, body)
				}
			})
			b.Run(fmt.Sprintf("%s+request/%d", bench.name, size), func(b *testing.B) {
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				for b.Loop() {
					_, _ = requestFingerprint(r, body, bench.fn, "", "")
				}
			})
		}
	}
}

func BenchmarkStoreKey(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_ = StoreKey("POST", "/v1/orders", "tenant-7/user-12345", "0196f3a1-7c1e-7b6a-9d0e-2f4c5a6b7c8d")
	}
}
