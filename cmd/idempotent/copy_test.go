package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/sqlstore"
)

// newSQLite returns the URL of a new database, with the table where made is set.
func newSQLite(t *testing.T, made bool) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shop.db")
	db, err := sql.Open("sqlite", "file:"+path)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	if made {
		store := sqlstore.New(db, sqlstore.SQLite)
		require.NoError(t, store.Migrate(t.Context(), db))
		require.NoError(t, store.Close())
	} else {
		require.NoError(t, db.Ping())
	}
	return "sqlite:" + path
}

// newSnapshot returns the file of a store that held what fill makes, and has
// been closed.
func newSnapshot(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys.snapshot")
	store, err := memstore.Open(memstore.WithSnapshot(path), memstore.WithLogger(silent))
	require.NoError(t, err)
	fill(t, store, "k-")
	require.NoError(t, store.Close())
	return path
}

// shop answers an order through a guard over a store, and counts.
func shop(store idempotent.Store, ran *int) http.Handler {
	principal := func(r *http.Request) (string, error) { return "ada", nil }
	return idempotent.New(store, idempotent.WithLogger(silent)).Middleware(principal)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*ran++
		w.Header().Set("Location", "/orders/7")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte("order 7"))
	}))
}

func order(h http.Handler, key string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader("{}"))
	r.Header.Set("Idempotency-Key", key)
	r.Header.Set("Content-Type", "application/json")
	h.ServeHTTP(w, r)
	return w
}

// A repeat that comes after the move gets the answer from before it.
func TestCopy(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{
		"redis":  "redis://" + redistest.Shared(t).Addr + "?prefix=copied:",
		"sqlite": newSQLite(t, true),
	} {
		path := filepath.Join(t.TempDir(), "keys.snapshot")
		memory, err := memstore.Open(memstore.WithSnapshot(path), memstore.WithLogger(silent))
		require.NoError(t, err)
		fill(t, memory, "k-")
		ran := 0
		first := order(shop(memory, &ran), "order-7")
		require.Equal(t, http.StatusCreated, first.Code)
		want := map[string]idempotent.Entry{}
		for _, state := range []string{"pending", "success", "failed", "unknown", "abandoned"} {
			e, found, err := memory.Load(t.Context(), "k-"+state)
			require.NoError(t, err)
			require.True(t, found)
			want[state] = e
		}
		require.NoError(t, memory.Close())
		before, err := os.ReadFile(path)
		require.NoError(t, err)

		term := newRealTerminal(url)
		code, out, said := term.says("copy", path, "-json")
		require.Equal(t, exitOK, code, said)
		require.JSONEq(t, `{"copied":6,"unknown":3,"present":0,"expired":0}`, out, name)
		after, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, before, after, "the file stays as it is")

		store, end, err := openStore(t.Context(), url)
		require.NoError(t, err)
		repeat := order(shop(store, &ran), "order-7")
		require.Equal(t, first.Code, repeat.Code)
		require.Equal(t, first.Body.String(), repeat.Body.String())
		require.Equal(t, "/orders/7", repeat.Header().Get("Location"))
		require.Equal(t, "true", repeat.Header().Get("Idempotent-Replayed"))
		require.Equal(t, 1, ran, "%s: it did not run again", name)
		for state, e := range want {
			got, found, err := store.Load(t.Context(), "k-"+state)
			require.NoError(t, err)
			require.True(t, found, "%s: %s", name, state)
			wanted := stateOf(e)
			if wanted == statePending {
				wanted = stateUnknown
			}
			require.Equal(t, wanted, stateOf(got), "%s: %s", name, state)
			require.Equal(t, e.Result, got.Result)
			require.Equal(t, e.Owner, got.Owner)
			require.Equal(t, e.Trace, got.Trace)
			require.Equal(t, e.Fingerprint, got.Fingerprint)
			require.Greater(t, got.Fence, e.Fence)
			if state != "pending" {
				require.WithinDuration(t, e.Expires, got.Expires, 10*time.Second, "%s: %s: what is left of the retention", name, state)
			}
		}
		require.NoError(t, end())

		code, out, said = term.says("copy", path)
		require.Equal(t, exitOK, code, said)
		require.Contains(t, out, "0 copied")
		require.Contains(t, out, "6 left alone")

		code, _, said = term.says("resolve", "k-pending", "-as", "failure", "-owner", "owner-pending", "-reason", "r", "-yes")
		require.Equal(t, exitOK, code, said)
	}
}

// What the target has stays, whatever its state, and whatever the snapshot says.
func TestCopy_LeavesAlone(t *testing.T) {
	t.Parallel()
	path := newSnapshot(t)
	store := newMemory(t)
	_, _, err := store.Claim(t.Context(), "k-success", idempotent.Claim{Owner: "new", Lease: time.Hour, Keep: time.Hour})
	require.NoError(t, err)
	require.NoError(t, store.Complete(t.Context(), "k-unknown", "new", idempotent.Outcome{Status: idempotent.Success, Retention: time.Hour}))
	want := map[string]idempotent.Entry{}
	for _, key := range []string{"k-success", "k-unknown"} {
		e, _, err := store.Load(t.Context(), key)
		require.NoError(t, err)
		want[key] = e
	}
	code, out, said := newTerminal(store).says("copy", path, "-json")
	require.Equal(t, exitOK, code, said)
	require.JSONEq(t, `{"copied":3,"unknown":2,"present":2,"expired":0}`, out)
	for key, e := range want {
		got, _, err := store.Load(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, e, got)
	}
}

// torn is a store that fails at the first completion.
type torn struct {
	*memstore.Store
	failed bool
}

func (s *torn) Complete(ctx context.Context, key, owner string, o idempotent.Outcome) error {
	if !s.failed {
		s.failed = true
		return errors.New("gone away")
	}
	return s.Store.Complete(ctx, key, owner, o)
}

// A copy that was interrupted between claim and outcome goes on with it.
func TestCopy_Interrupted(t *testing.T) {
	t.Parallel()
	path := newSnapshot(t)
	store := &torn{Store: newMemory(t)}
	term := newTerminal(store)
	code, _, said := term.says("copy", path)
	require.Equal(t, exitError, code)
	require.Contains(t, said, "gone away; 0 entries had been copied: run it again")
	code, out, said := term.says("copy", path, "-json")
	require.Equal(t, exitOK, code, said)
	require.JSONEq(t, `{"copied":5,"unknown":3,"present":0,"expired":0}`, out)
	require.Zero(t, store.Stats().Pending)
}

// A file that cannot be trusted is refused before anything is copied.
func TestCopy_Refuses(t *testing.T) {
	t.Parallel()
	store := newMemory(t)
	term := newTerminal(store)
	path := newSnapshot(t)
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	for name, bytes := range map[string][]byte{
		"cut":     whole[:len(whole)-1],
		"turned":  append(append([]byte{}, whole[:len(whole)/2]...), append([]byte{whole[len(whole)/2] ^ 1}, whole[len(whole)/2+1:]...)...),
		"foreign": []byte(strings.Repeat("not a snapshot at all ", 10)),
		"empty":   {},
	} {
		bad := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(bad, bytes, 0o600))
		code, out, said := term.says("copy", bad)
		require.Equal(t, exitError, code, name)
		require.Empty(t, out)
		require.Contains(t, said, "nothing was copied", name)
		require.Contains(t, said, "corrupt", name)
	}
	code, _, said := term.says("copy", path+".none")
	require.Equal(t, exitError, code)
	require.Contains(t, said, "no such file")
	require.Zero(t, store.Len())
}

// A file in use, or of a program that died, lacks what came after it.
func TestCopy_InUse(t *testing.T) {
	t.Parallel()
	path := newSnapshot(t)
	user, err := memstore.Open(memstore.WithSnapshot(path), memstore.WithLogger(silent))
	require.NoError(t, err)
	store := newMemory(t)
	term := newTerminal(store)
	code, _, said := term.says("copy", path)
	require.Equal(t, exitConflict, code)
	require.Contains(t, said, "is in use, or its program died without Close")
	require.Zero(t, store.Len())
	code, out, said := term.says("copy", path, "-stale", "-json")
	require.Equal(t, exitOK, code, said)
	var got copied
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.Equal(t, 5, got.Copied)
	require.NoError(t, user.Close())
	code, _, said = term.says("copy", path)
	require.Equal(t, exitOK, code, said)
}
