package browsertest

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/inspect"
	"github.com/idempotent-go/idempotent/memstore"
)

const mount = "/debug/idempotency"

// attack is a recorded body that would like to run.
const attack = `<script>alert("ran"); document.title = "ran"</script><img src=x onerror="alert('ran')">`

// scene is a shop's store after an hour, and the page over it.
type scene struct {
	t     *testing.T
	store *aged
	log   *record
	url   string // of the page
}

func newScene(t *testing.T) *scene {
	t.Helper()
	store := &aged{Store: memstore.New(memstore.WithSweepInterval(0)), ages: map[string]time.Duration{}}
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	s := &scene{t: t, store: store, log: &record{}}

	for n := range 420 {
		ago := time.Duration(n*n%3600)*time.Second + time.Duration(n)*17*time.Millisecond
		s.finish(ago, name("POST", "/orders", user(n), fmt.Sprintf("order-%04d", n)), idempotent.Success, false, s.answer(201, order(n)))
	}
	for n := range 23 {
		s.finish(time.Duration(n*n*7%3500)*time.Second, name("POST", "/payments", user(n), fmt.Sprintf("declined-%02d", n)), idempotent.Failed, false, s.answer(402, `{"error":"the payment was declined"}`))
	}
	s.finish(38*time.Minute, name("POST", "/payments", "user-bob", "pay-0192f3a1"), idempotent.Failed, true, s.answer(502, `{"error":"the payment provider gave no clear answer"}`))
	s.finish(12*time.Minute, name("POST", "/payments", "user-ada", "pay-0192f4c7"), idempotent.Failed, true, s.answer(502, `{"error":"the payment provider gave no clear answer"}`))
	s.finish(11*time.Minute, name("POST", "/payments", "user-cleo", "pay-0192f4d0"), idempotent.Failed, true, "\x00")
	s.finish(5*time.Minute, name("POST", "/notes", "user-eve", "attack"), idempotent.Success, false, s.answer(200, attack))
	s.claim(8*time.Second, name("POST", "/payments", "user-ada", "pay-0192f9e2"))
	s.claim(3*time.Second, name("POST", "/orders", "user-dan", "order-0421"))
	s.claim(72*time.Second, idempotent.Key("invoice", "2026-11", "run 7"))

	guard := idempotent.New(store, idempotent.WithLogger(slog.New(slog.DiscardHandler)))
	page := inspect.New(guard, store,
		inspect.WithLogger(slog.New(slog.NewTextHandler(s.log, nil))),
		inspect.WithAuthorize(func(*http.Request) (string, error) { return "olga@example.com", nil }))
	mux := http.NewServeMux()
	mux.Handle(mount+"/", http.StripPrefix(mount, page))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	s.url = server.URL + mount + "/"
	return s
}

func name(method, path, principal, key string) string {
	return idempotent.StoreKey(method, path, principal, key)
}

func user(n int) string {
	return []string{"user-ada", "user-bob", "user-cleo", "user-dan", "user-eve"}[n*n%5]
}

func order(n int) string { return fmt.Sprintf(`{"id":"ord-%06d","item":"tea","quantity":2}`, n*7919) }

func (s *scene) answer(status int, body string) string {
	s.t.Helper()
	result, err := idempotent.EncodeResponse(status, http.Header{
		"Content-Type": {"application/json"}, "Location": {"/orders/ord-000042?signature=5ec4e7"}, "X-Session-Token": {"5ec4e7"},
	}, []byte(body))
	require.NoError(s.t, err)
	return result
}

func (s *scene) claim(ago time.Duration, key string) {
	s.t.Helper()
	_, claimed, err := s.store.Store.Claim(s.t.Context(), key, idempotent.Claim{
		Owner: "5OVEXAMPLEOWNER7", Fingerprint: "j1:3bb1f9a7c0de", Trace: "req-7c1e", Lease: 10 * time.Minute, Keep: 24 * time.Hour,
	})
	require.NoError(s.t, err)
	require.True(s.t, claimed)
	s.store.ages[key] = ago
}

// took is how long the finished operations have run.
const took = 2300 * time.Millisecond

func (s *scene) finish(ago time.Duration, key string, status idempotent.Status, unknown bool, result string) {
	s.t.Helper()
	s.claim(ago, key)
	require.NoError(s.t, s.store.Complete(s.t.Context(), key, "5OVEXAMPLEOWNER7", idempotent.Outcome{
		Status: status, Unknown: unknown, Result: result, Fingerprint: "j1:3bb1f9a7c0de", Retention: 24 * time.Hour,
	}))
}

func (s *scene) load(key string) (idempotent.Entry, bool) {
	s.t.Helper()
	e, found, err := s.store.Load(s.t.Context(), key)
	require.NoError(s.t, err)
	return e, found
}

// aged is a memory store whose entries are older than they are.
type aged struct {
	*memstore.Store
	ages map[string]time.Duration // not changed once the page is there
}

func (a *aged) older(e idempotent.Entry) idempotent.Entry {
	for _, t := range []*time.Time{&e.Timestamp, &e.Claimed, &e.Expires} {
		*t = t.Add(-a.ages[e.Key])
	}
	if e.Status != idempotent.Pending {
		e.Claimed = e.Claimed.Add(-took)
	}
	return e
}

func (a *aged) Load(ctx context.Context, key string) (idempotent.Entry, bool, error) {
	e, found, err := a.Store.Load(ctx, key)
	return a.older(e), found, err
}

func (a *aged) List(ctx context.Context, q idempotent.ListQuery) (idempotent.Page, error) {
	p, err := a.Store.List(ctx, q)
	for n := range p.Entries {
		p.Entries[n] = a.older(p.Entries[n])
	}
	return p, err
}

// record is a log that a test reads while it is written.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}
