package grpcguard

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
)

// httpKey is what the HTTP middleware makes of the lines of a key header, and
// "" where it refuses them.
func httpKey(lines []string) (key string) {
	store := memstore.New(memstore.WithSweepInterval(0))
	defer store.Close()
	name := ""
	h := idempotent.New(store).Middleware(idempotent.Anonymous)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		x, _ := idempotent.FromContext(r.Context())
		name = x.Key
	}))
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.Header["Idempotency-Key"] = lines
	h.ServeHTTP(httptest.NewRecorder(), r)
	return name
}

// One client may reach a service both ways: a key that is accepted here is
// accepted by the HTTP middleware, as the same key.
func sameAsHTTP(t *testing.T, lines []string) {
	t.Helper()
	key, wrong := parseKey(lines)
	if wrong != "" {
		require.Empty(t, key)
		return
	}
	require.Equal(t, idempotent.StoreKey(http.MethodPost, "/", "anonymous", key), httpKey(lines), "%q", lines)
}

func TestKeysAreThoseOfHTTP(t *testing.T) {
	for text, want := range map[string]string{
		"abc": "abc", `"abc"`: "abc", " abc\t": "abc", `"a b"`: "a b", `"a\"\\;,"`: `a"\;,`, "{a}:%*": "{a}:%*",
		strings.Repeat("k", 255): strings.Repeat("k", 255),
		"":                       "", `""`: "", `"`: "", `"a`: "", `a"`: "", `"\`: "", `"\a"`: "", `"a"b`: "", "a b": "", "a,b": "", "a;b": "", "größe": "",
		"\"a\x7f\"": "", "\x00": "", strings.Repeat("k", 256): "",
	} {
		key, wrong := parseKey([]string{text})
		require.Equal(t, want, key, "%q", text)
		require.Equal(t, want == "", wrong != "", "%q", text)
		sameAsHTTP(t, []string{text})
		if text != "" {
			require.Equal(t, want == "", httpKey([]string{text}) == "", "%q", text)
		}
	}
	for _, lines := range [][]string{nil, {"a", "a"}} {
		_, wrong := parseKey(lines)
		require.NotEmpty(t, wrong)
	}
}

func FuzzParseKey(f *testing.F) {
	for _, s := range []string{"abc", `"abc"`, `"a\"b"`, `"a";b=1`, " a", "a,b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) { sameAsHTTP(t, []string{s}) })
}

// What cannot be sent on would make the handler's own call fail.
func TestPassTrace(t *testing.T) {
	s := newSettings(nil)
	ctx := metadata.NewIncomingContext(context.Background(), metadata.MD{
		"x-request-id": {"größe"}, "traceparent": {"00-1"}, "tracestate": {strings.Repeat("x", 513)},
	})
	md, _ := metadata.FromOutgoingContext(s.passTrace(ctx))
	require.Equal(t, metadata.MD{"traceparent": {"00-1"}}, md)
	require.Equal(t, "00-1", s.traceOf(ctx))
}
