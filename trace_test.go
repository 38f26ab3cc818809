package idempotent_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
)

// The correlation id of a request reaches the handler and the record, and an id
// that could not be logged or sent is none.
func TestTraceOfARequest(t *testing.T) {
	custom := idempotent.WithTrace(func(r *http.Request) string { return r.Header.Get("X-Correlation") })
	for name, tt := range map[string]struct {
		header http.Header
		opts   []idempotent.HTTPOption
		want   string
	}{
		"none":                {http.Header{}, nil, ""},
		"request id":          {http.Header{"X-Request-Id": {"req-1"}, "Traceparent": {"00-1"}}, nil, "req-1"},
		"trace context":       {http.Header{"Traceparent": {"00-1"}}, nil, "00-1"},
		"a function":          {http.Header{"X-Request-Id": {"req-1"}, "X-Correlation": {"c-1"}}, []idempotent.HTTPOption{custom}, "c-1"},
		"longest":             {http.Header{"X-Request-Id": {strings.Repeat("r", 255)}}, nil, strings.Repeat("r", 255)},
		"too long":            {http.Header{"X-Request-Id": {strings.Repeat("r", 256)}}, nil, ""},
		"line break":          {http.Header{"X-Request-Id": {"a\nb"}}, nil, ""},
		"not ASCII":           {http.Header{"X-Request-Id": {"größer"}}, nil, ""},
		"function, not ASCII": {http.Header{"X-Correlation": {"\x00"}}, []idempotent.HTTPOption{custom}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			store := memstore.New()
			defer store.Close()
			var seen idempotent.Execution
			h := idempotent.New(store).Middleware(idempotent.Anonymous, tt.opts...)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				seen, _ = idempotent.FromContext(r.Context())
			}))
			r := httptest.NewRequest(http.MethodPost, "/orders", nil)
			for field, values := range tt.header {
				r.Header[field] = values
			}
			r.Header.Set("Idempotency-Key", "k")
			h.ServeHTTP(httptest.NewRecorder(), r)
			require.Equal(t, tt.want, seen.Trace)
			e, ok, err := store.Load(t.Context(), idempotent.StoreKey(http.MethodPost, "/orders", "anonymous", "k"))
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, tt.want, e.Trace)
		})
	}
}
