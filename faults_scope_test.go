package idempotent_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

// Nobody gets a bucket that others share: a caller without a principal is
// refused, and one tenant for all has to be asked for by name.
func TestC059_NobodyIsNotSomebody(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		nobody := func(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil }
		b := w.bench(t, setup{principal: nobody, handler: func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte("for " + r.Header.Get("X-User")))
		}})
		for range 2 {
			a := b.post("k", "X-Forwarded-For", "203.0.113.7")
			requireRefused(t, a, "unauthenticated")
		}
		b.requireUntouched()
		require.Equal(t, "for 203.0.113.7", b.post("k", "X-User", "203.0.113.7").body)
		require.Equal(t, "for 203.0.113.8", b.post("k", "X-User", "203.0.113.8").body)
		require.EqualValues(t, 2, b.runs.Load())
	})
}

// A key belongs to its endpoint, or is refused at another.
func TestC060_OneKeyTwoEndpoints(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{handler: func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte(r.URL.Path)) }})
		require.Equal(t, "/orders", b.post("k").body)
		cancel := b.send(order{path: "/orders/1/cancel", key: "k"})
		require.Equal(t, "/orders/1/cancel", cancel.body)
		require.False(t, cancel.replayed())

		scoped := w.bench(t, setup{options: []idempotent.HTTPOption{idempotent.WithPrincipalScope()}})
		requireFresh(t, scoped.post("k"), 1)
		requireRefused(t, scoped.send(order{path: "/orders/1/cancel", key: "k"}), "key-reused")
		require.EqualValues(t, 1, scoped.runs.Load())
	})
}

// What a service knows to be harmless it can leave out of the comparison.
func TestC063_HarmlessDifferences(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{options: []idempotent.HTTPOption{
			idempotent.WithFingerprint(func(r *http.Request, body []byte) (string, error) {
				var fields map[string]any
				if err := json.Unmarshal(body, &fields); err != nil {
					return "", err
				}
				delete(fields, "sent_at")
				rest, err := json.Marshal(fields)
				return r.Header.Get("X-Version") + string(rest), err
			}),
		}})
		first := b.send(order{key: "k", body: `{"amount":1,"sent_at":1}`})
		requireReplay(t, first, b.send(order{key: "k", body: `{"sent_at":2,"amount":1}`}))
		requireRefused(t, b.send(order{key: "k", body: `{"sent_at":2,"amount":2}`}), "key-reused")
		requireRefused(t, b.send(order{key: "k", body: `{"amount":1}`, fields: []string{"X-Version", "2"}}), "key-reused")

		forms := w.bench(t, setup{options: []idempotent.HTTPOption{idempotent.WithFingerprint(idempotent.Multipart)}})
		form := func(boundary, amount string) order {
			return order{
				key: "k", fields: []string{"Content-Type", "multipart/form-data; boundary=" + boundary},
				body: "--" + boundary + "\r\nContent-Disposition: form-data; name=\"amount\"\r\n\r\n" + amount + "\r\n--" + boundary + "--\r\n",
			}
		}
		first = forms.send(form("one", "1"))
		requireReplay(t, first, forms.send(form("two", "1")))
		requireRefused(t, forms.send(form("two", "2")), "key-reused")
	})
}

// A refreshed token is the same principal: who it is says the service, by a
// stable id.
func TestC066_RefreshedToken(t *testing.T) {
	users := map[string]string{"Bearer old": "ada", "Bearer new": "ada", "Bearer other": "bob"}
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{principal: func(r *http.Request) (string, error) { return users[r.Header.Get("Authorization")], nil }})
		first := b.post("k", "Authorization", "Bearer old")
		requireReplay(t, first, b.post("k", "Authorization", "Bearer new"))
		requireFresh(t, b.post("k", "Authorization", "Bearer other"), 2)
	})
}

// Whoever may not see an answer any more is refused before the record is
// looked at, or by the hook.
func TestC067_RevokedCaller(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		revoked := false
		forbid := func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if revoked {
					http.Error(w, "revoked", http.StatusForbidden)
					return
				}
				next.ServeHTTP(w, r)
			})
		}
		b := w.bench(t, setup{outer: forbid})
		requireFresh(t, b.post("k"), 1)
		calls := b.storeCalls()
		revoked = true
		a := b.post("k")
		require.Equal(t, http.StatusForbidden, a.status)
		require.NotContains(t, a.body, "run 1")
		require.Equal(t, calls, b.storeCalls())

		vetoed := w.bench(t, setup{options: []idempotent.HTTPOption{
			idempotent.WithReplayHook(func(w http.ResponseWriter, _ *http.Request, _ int) bool {
				http.Error(w, "revoked", http.StatusForbidden)
				return true
			}),
		}})
		requireFresh(t, vetoed.post("k"), 1)
		a = vetoed.post("k")
		require.Equal(t, http.StatusForbidden, a.status)
		require.NotContains(t, a.body, "run 1")
		require.EqualValues(t, 1, vetoed.runs.Load())
	})
}

// A key that is too long or has odd bytes costs nothing: no fingerprint, no
// principal, no store.
func TestC068_KeyLimitsComeFirst(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		worked := 0
		b := w.bench(t, setup{
			principal: func(*http.Request) (string, error) { worked++; return "alice", nil },
			options: []idempotent.HTTPOption{
				idempotent.WithFingerprint(func(*http.Request, []byte) (string, error) { worked++; return "f", nil }),
			},
		})
		for _, key := range []string{strings.Repeat("k", 256), `"` + strings.Repeat("k", 256) + `"`, strings.Repeat("k", 10_000), "a\tb", "caf\xc3\xa9", "a b"} {
			requireRefused(t, b.post(key), "key-invalid")
		}
		require.Zero(t, worked)
		b.requireUntouched()
		requireFresh(t, b.post(strings.Repeat("k", 255)), 1)

		strict := w.bench(t, setup{options: []idempotent.HTTPOption{idempotent.WithKeyPolicy(func(key string) error {
			if len(key) > 36 {
				return idempotent.ErrInvalid
			}
			return nil
		})}})
		requireRefused(t, strict.post(strings.Repeat("k", 37)), "key-invalid")
		requireFresh(t, strict.post(strings.Repeat("k", 36)), 1)
	})
}

// A client that changes the spelling of its key between two attempts sends the
// same key.
func TestC069_SpellingsOfOneKey(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{})
		first := b.post(`"a\"b"`)
		requireRefused(t, b.post(`a"b`), "key-invalid")
		requireReplay(t, first, b.post(`"a\"b";v=1`))
		first = b.post("plain")
		requireReplay(t, first, b.post(`"plain"`))
		require.EqualValues(t, 2, b.runs.Load())
	})
}

// A request without a key has none: another header is not taken for it, and
// none is made up.
func TestC071_NoKeyIsInvented(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		ids := []string{"X-Request-Id", "r1", "X-Correlation-Id", "c1", "Traceparent", "00-1-2-01"}
		b := w.bench(t, setup{})
		requireRefused(t, b.post("", ids...), "key-missing")
		b.requireUntouched()
		optional := w.bench(t, setup{options: []idempotent.HTTPOption{idempotent.WithOptionalKey()}})
		for i := range 2 {
			requireFresh(t, optional.post("", ids...), i+1)
		}
		require.Zero(t, optional.storeCalls())
		chosen := w.bench(t, setup{options: []idempotent.HTTPOption{idempotent.WithHeader("X-Request-Id")}})
		first := chosen.post("", ids...)
		requireReplay(t, first, chosen.post("", ids...))
	})
}

// A client whose every request has the same key learns what is wrong, and so
// does the service.
func TestC072_ConstantKey(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{})
		requireFresh(t, b.post("constant"), 1)
		for _, body := range []string{`{"amount":2}`, `{"amount":3}`, `[]`, `{"amount":1.0}`} {
			d := requireRefused(t, b.send(order{key: "constant", body: body}), "key-reused")
			require.Contains(t, d.Detail, "key")
		}
		require.Equal(t, 4, b.observed(idempotent.EventKeyReused))
		require.EqualValues(t, 1, b.runs.Load())
	})
}
