package idempotent_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
)

// B40: a handler that must return before its middleware does is waited for,
// whatever the client prefers.
func TestB40_Synchronous(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	defer func() { require.NoError(t, store.Close()) }()
	returned := false
	orders := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "made")
		returned = true
	})
	once := idempotent.New(store).Middleware(idempotent.Anonymous, idempotent.WithStatusURL("/operations"))
	r := httptest.NewRequest(http.MethodPost, "/orders", nil)
	r.Header.Set("Idempotency-Key", "k")
	r.Header.Set("Prefer", "respond-async")
	w := httptest.NewRecorder()
	once(idempotent.Synchronous(orders)).ServeHTTP(w, r)
	require.True(t, returned)
	require.Equal(t, http.StatusCreated, w.Code)
	require.Equal(t, "made", w.Body.String())
	require.Empty(t, w.Header()["Preference-Applied"])
	require.Panics(t, func() { idempotent.Synchronous(nil) })
}
