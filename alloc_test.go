//go:build !race

package idempotent_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
)

// The ceilings below are what is reached, so that allocations cannot rise
// unseen. Where one must rise, say why in the commit. The race detector
// allocates on its own account.

// allocClient sends requests to h in process and allocates nothing itself.
func allocClient(t *testing.T, h http.Handler) func(key string) {
	body := strings.NewReader("")
	key := make([]string, 1)
	r := &http.Request{
		Method: http.MethodPost, URL: &url.URL{Path: "/api/v1/orders"}, RequestURI: "/api/v1/orders",
		Header: http.Header{"Idempotency-Key": key, "Content-Type": {"application/json"}},
	}
	held := io.NopCloser(body)
	const content = `{"item":"teapot","quantity":1,"customer":"018f7a3e-5b1c-7c3d-9e2a-000000000001"}`
	w := discardWriter{header: make(http.Header)}
	return func(k string) {
		body.Reset(content)
		key[0] = k
		r.Body, r.ContentLength = held, int64(len(content))
		clear(w.header)
		w.status = 0
		h.ServeHTTP(&w, r)
		if w.status != http.StatusCreated {
			t.Fatalf("got %d", w.status)
		}
	}
}

// allocKeys returns keys that were made before anything is measured.
func allocKeys() func() string {
	keys := make([]string, 2000)
	for i := range keys {
		keys[i] = fmt.Sprintf("018f7a3e-5b1c-7c3d-9e2a-%012d", i)
	}
	return func() string {
		key := keys[0]
		keys = keys[1:]
		return key
	}
}

func TestMiddleware_Allocations(t *testing.T) {
	answer := strings.Repeat("a", 512)
	next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Location", "/orders/1")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, answer)
	})
	s := memstore.New()
	defer s.Close()
	protected := idempotent.New(s).Middleware(idempotent.Anonymous, idempotent.WithFingerprint(idempotent.RawBody))(next)
	bare, guarded, key := allocClient(t, next), allocClient(t, protected), allocKeys()
	bareAllocs := testing.AllocsPerRun(500, func() { bare("018f7a3e-5b1c-7c3d-9e2a-000000000000") })

	fresh := testing.AllocsPerRun(500, func() { guarded(key()) })
	require.LessOrEqual(t, fresh-bareAllocs, 11.0, "fresh, beyond the bare handler")

	again := key()
	guarded(again)
	replay := testing.AllocsPerRun(500, func() { guarded(again) })
	require.LessOrEqual(t, replay-bareAllocs, 1.0, "replay, beyond the bare handler")
}

func TestRun_Allocations(t *testing.T) {
	s := memstore.New()
	defer s.Close()
	g := idempotent.New(s)
	ctx, key := t.Context(), allocKeys()
	op := func(context.Context) (idempotent.Class, string) { return idempotent.ClassSuccess, "result" }
	run := func(key string, replayed bool) {
		_, got, err := g.Run(ctx, key, op)
		if err != nil || got != replayed {
			t.Fatalf("%v %v", got, err)
		}
	}
	fresh := testing.AllocsPerRun(500, func() { run(key(), false) })
	require.LessOrEqual(t, fresh, 7.0, "call, owner, execution, and the store's")
	again := key()
	run(again, false)
	replay := testing.AllocsPerRun(500, func() { run(again, true) })
	require.LessOrEqual(t, replay, 2.0, "call and owner")
}
