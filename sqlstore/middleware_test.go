package sqlstore_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/sqlstore"
	"github.com/idempotent-go/idempotent/sqlstore/internal/sqltest"
)

// post sends body under key and returns the response with its body.
func post(t testing.TB, url, key, body string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	require.NoError(t, err)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp, string(text)
}

// serve serves h behind w's middleware.
func (w txWorld) serve(t testing.TB, h http.HandlerFunc, opts ...idempotent.HTTPOption) string {
	t.Helper()
	outer := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Outer", "yes")
			next.ServeHTTP(w, r)
		})
	}
	server := httptest.NewServer(outer(w.guard.Middleware(idempotent.Anonymous, opts...)(h)))
	t.Cleanup(server.Close)
	return server.URL
}

func TestMiddleware(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		w := newTxWorld(t, d)
		var calls atomic.Int64
		url := w.serve(t, func(rw http.ResponseWriter, r *http.Request) {
			tx, ok := sqlstore.Tx(r.Context())
			require.True(t, ok)
			text, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			key := r.Header.Get("Idempotency-Key")
			require.NoError(t, w.ledger.add(r.Context(), tx, key, string(text)))
			require.ErrorIs(t, http.NewResponseController(rw).Flush(), http.ErrNotSupported)
			_, _, err = http.NewResponseController(rw).Hijack()
			require.ErrorIs(t, err, http.ErrNotSupported)
			rw.Header().Set("X-Call", fmt.Sprint(calls.Add(1)))
			rw.WriteHeader(http.StatusEarlyHints)
			rw.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(rw, "paid "+string(text))
		})
		for i := range 2 {
			resp, body := post(t, url, "k", "a")
			require.Equal(t, http.StatusCreated, resp.StatusCode)
			require.Equal(t, "paid a", body)
			require.Equal(t, "1", resp.Header.Get("X-Call"))
			require.Equal(t, "yes", resp.Header.Get("X-Outer"))
			require.Equal(t, i == 1, resp.Header.Get("Idempotent-Replayed") == "true")
		}
		require.Equal(t, []string{"a"}, w.ledger.rows(t, "k"))
		resp, _ := post(t, url, "k", "b")
		require.Equal(t, http.StatusUnprocessableEntity, resp.StatusCode)
		resp, _ = post(t, url, "", "b")
		require.Equal(t, http.StatusBadRequest, resp.StatusCode)

		// An ordinary guard's middleware answers from the same record.
		server := httptest.NewServer(idempotent.New(w.store).Middleware(idempotent.Anonymous)(http.NotFoundHandler()))
		t.Cleanup(server.Close)
		resp, body := post(t, server.URL, "k", "a")
		require.Equal(t, http.StatusCreated, resp.StatusCode)
		require.Equal(t, "paid a", body)

		var all sync.WaitGroup
		for range 64 {
			all.Go(func() {
				eventually(t, "it is answered", func() bool {
					resp, body := post(t, url, "k64", "c")
					return resp.StatusCode == http.StatusCreated && body == "paid c"
				})
			})
		}
		all.Wait()
		require.Equal(t, []string{"c"}, w.ledger.rows(t, "k64"))
	})
}

// undoneBy is what a driver says where others are the cause.
func undoneBy(kind sqltest.Kind) error {
	return map[sqltest.Kind]error{
		sqltest.Postgres: &pgconn.PgError{Code: "40001"},
		sqltest.MySQL:    &mysql.MySQLError{Number: 1213},
		sqltest.SQLite:   sqliteError(5),
	}[kind]
}

// What becomes of the writes and of the key, by the handler's answer.
func TestMiddleware_Outcomes(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		w := newTxWorld(t, d)
		for _, c := range []struct {
			name   string
			answer func(http.ResponseWriter, *http.Request)
			status int // of the first answer
			again  int // of the second one
			rows   int // after the first one
			calls  int // after the second one
		}{
			{"success", func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusAccepted) }, 202, 202, 1, 1},
			{"nothing written", func(http.ResponseWriter, *http.Request) {}, 200, 200, 1, 1},
			{"definite failure", func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusConflict) }, 409, 409, 0, 1},
			{"server error", func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusBadGateway) }, 502, 502, 0, 2},
			{"released", func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusTooManyRequests) }, 429, 429, 0, 2},
			{"unknown", func(rw http.ResponseWriter, r *http.Request) {
				idempotent.Unknown(r.Context())
				rw.WriteHeader(http.StatusBadGateway)
			}, 502, 502, 0, 1},
			{"too long", func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write(make([]byte, 2000)) }, 500, 500, 0, 2},
			{"panic", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 0, 0, 0, 2},
			{"nested", func(rw http.ResponseWriter, r *http.Request) {
				inner := httptest.NewRequestWithContext(r.Context(), http.MethodPost, "/", nil)
				inner.Header.Set("Idempotency-Key", "inner")
				w.guard.Middleware(idempotent.Anonymous)(http.NotFoundHandler()).ServeHTTP(rw, inner)
			}, 500, 500, 0, 2},
		} {
			t.Run(c.name, func(t *testing.T) {
				calls := 0
				url := w.serve(t, func(rw http.ResponseWriter, r *http.Request) {
					calls++
					tx, _ := sqlstore.Tx(r.Context())
					require.NoError(t, w.ledger.add(r.Context(), tx, c.name, fmt.Sprint(calls)))
					c.answer(rw, r)
				}, idempotent.WithMaxResponse(1000))
				for _, want := range []int{c.status, c.again} {
					req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/"+strings.ReplaceAll(c.name, " ", "-"), nil)
					require.NoError(t, err)
					req.Header.Set("Idempotency-Key", "k")
					resp, err := http.DefaultClient.Do(req)
					if want == 0 {
						require.Error(t, err)
					} else {
						require.NoError(t, err)
						require.Equal(t, want, resp.StatusCode)
						require.NoError(t, resp.Body.Close())
					}
					require.Len(t, w.ledger.rows(t, c.name), c.rows)
				}
				require.Equal(t, c.calls, calls)
			})
		}
	})
}

// The answer waits for the commit: none is given where that fails, and the truth
// where its reply is lost.
func TestMiddleware_Commit(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, d sqltest.Database) {
		near, far, relay := throughRelay(t, d, 20*time.Second)
		handler := func(w txWorld) http.HandlerFunc {
			return func(rw http.ResponseWriter, r *http.Request) {
				tx, _ := sqlstore.Tx(r.Context())
				require.NoError(t, w.ledger.add(r.Context(), tx, r.Header.Get("Idempotency-Key"), "a"))
				rw.WriteHeader(http.StatusCreated)
				_, _ = io.WriteString(rw, "paid")
			}
		}
		url := near.serve(t, handler(near))
		relay.SwallowReply(isCommit)
		resp, body := post(t, url, "reply", "a")
		require.True(t, relay.Swallowed())
		require.Equal(t, http.StatusCreated, resp.StatusCode)
		require.Equal(t, "paid", body)
		require.Len(t, far.ledger.rows(t, "reply"), 1)

		caught := relay.HoldRequest(isCommit)
		go func() {
			<-caught
			relay.Cut()
			relay.Mend()
		}()
		resp, body = post(t, url, "request", "a")
		require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode, body)
		require.Equal(t, "yes", resp.Header.Get("X-Outer"))
		require.NotEmpty(t, resp.Header.Get("Retry-After"))
		require.Empty(t, far.ledger.rows(t, "request"))
		resp, _ = post(t, url, "request", "a")
		require.Equal(t, http.StatusCreated, resp.StatusCode)
		require.Len(t, far.ledger.rows(t, "request"), 1)

		// Nothing can be learnt: 503 or in flight, and later the truth.
		near.guard = sqlstore.NewTxGuard(near.store, sqlstore.WithGuard(quiet, idempotent.WithStoreTimeout(2*time.Second)))
		url = near.serve(t, handler(near))
		caught = relay.HoldReply(func(request, _ []byte) bool { return isCommit(request) })
		go func() {
			<-caught
			relay.Stall()
		}()
		resp, body = post(t, url, "unknown", "a")
		require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode, body)
		relay.Resume()
		resp, body = post(t, far.serve(t, handler(far)), "unknown", "a")
		require.Equal(t, http.StatusCreated, resp.StatusCode)
		require.Equal(t, "paid", body)
		require.Len(t, far.ledger.rows(t, "unknown"), 1)
	})
}

// A handler whose transaction the database undoes is called again with the same
// request, and nothing of the first answer is left.
func TestMiddleware_Again(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		for _, tries := range []int{1, 3} {
			w := newTxWorld(t, d, sqlstore.WithTries(tries))
			calls := 0
			url := w.serve(t, func(rw http.ResponseWriter, r *http.Request) {
				calls++
				text, err := io.ReadAll(r.Body)
				require.NoError(t, err)
				tx, ok := sqlstore.Tx(r.Context())
				require.True(t, ok)
				require.NoError(t, w.ledger.add(r.Context(), tx, fmt.Sprint("tries-", tries), string(text)))
				rw.Header().Set(fmt.Sprint("X-Call-", calls), "yes")
				if calls < 3 {
					require.Equal(t, tries > 1, sqlstore.Again(r.Context(), undoneBy(d.Kind)))
					require.False(t, sqlstore.Again(r.Context(), context.Canceled))
					http.Error(rw, "later", http.StatusInternalServerError)
				}
			})
			resp, body := post(t, url, fmt.Sprint("tries-", tries), "the body")
			rows := w.ledger.rows(t, fmt.Sprint("tries-", tries))
			require.Equal(t, tries, calls)
			if tries == 1 {
				require.Equal(t, http.StatusInternalServerError, resp.StatusCode)
				require.Equal(t, "later\n", body)
				require.Empty(t, rows)
				continue
			}
			require.Equal(t, http.StatusOK, resp.StatusCode)
			require.Empty(t, body)
			require.Empty(t, resp.Header.Get("X-Call-1"))
			require.Equal(t, "yes", resp.Header.Get("X-Call-3"))
			require.Equal(t, []string{"the body"}, rows)
		}
	})
}

// A handler that was cut off before it has answered may have done something
// elsewhere.
func TestMiddleware_CutOff(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		w := newTxWorld(t, d)
		ctx, cancel := context.WithCancel(t.Context())
		h := w.guard.Middleware(idempotent.Anonymous, idempotent.WithCancelOnDisconnect())(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			tx, _ := sqlstore.Tx(r.Context())
			require.NoError(t, w.ledger.add(r.Context(), tx, "k", "a"))
			cancel()
			<-r.Context().Done()
		}))
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", http.NoBody)
		r.Header.Set("Idempotency-Key", "k")
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		require.Equal(t, http.StatusConflict, rec.Code)
		require.Empty(t, w.ledger.rows(t, "k"))
		found := 0
		for u, err := range w.store.Unknowns(t.Context()) {
			require.NoError(t, err)
			require.False(t, u.Abandoned)
			found++
		}
		require.Equal(t, 1, found)
	})
}

// A client that does not want to wait is answered after the commit all the same.
func TestMiddleware_NotAsync(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		w := newTxWorld(t, d)
		url := w.serve(t, func(rw http.ResponseWriter, r *http.Request) {
			if tx, _ := sqlstore.Tx(r.Context()); w.ledger.add(r.Context(), tx, "k", "a") != nil {
				rw.WriteHeader(http.StatusInternalServerError)
				return
			}
			rw.WriteHeader(http.StatusCreated)
		}, idempotent.WithStatusURL("/operations"))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, http.NoBody)
		require.NoError(t, err)
		req.Header.Set("Idempotency-Key", "k")
		req.Header.Set("Prefer", "respond-async")
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusCreated, resp.StatusCode)
		require.Equal(t, []string{"a"}, w.ledger.rows(t, "k"))
	})
}

// Mounted twice there is one transaction, and the handler has it.
func TestMiddleware_MountedTwice(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		w := newTxWorld(t, d)
		protect := w.guard.Middleware(idempotent.Anonymous)
		server := httptest.NewServer(protect(protect(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			tx, ok := sqlstore.Tx(r.Context())
			body, err := io.ReadAll(r.Body)
			if !ok || err != nil || w.ledger.add(r.Context(), tx, "k", string(body)) != nil {
				t.Error(ok, err)
				rw.WriteHeader(http.StatusConflict)
				return
			}
			rw.WriteHeader(http.StatusCreated)
		}))))
		t.Cleanup(server.Close)
		for range 2 {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, strings.NewReader("a"))
			require.NoError(t, err)
			req.Header.Set("Idempotency-Key", "k")
			resp, err := http.DefaultClient.Do(req)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, http.StatusCreated, resp.StatusCode)
		}
		require.Equal(t, []string{"a"}, w.ledger.rows(t, "k"))
	})
}

// Requests without a key go to the handler as they are.
func TestMiddleware_Unkeyed(t *testing.T) {
	t.Parallel()
	w := newTxWorld(t, sqltest.New(t, sqltest.SQLite))
	url := w.serve(t, func(rw http.ResponseWriter, r *http.Request) {
		_, ok := sqlstore.Tx(r.Context())
		require.False(t, ok)
		text, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		rw.WriteHeader(http.StatusTeapot)
		_, _ = rw.Write(text)
		require.NoError(t, http.NewResponseController(rw).Flush())
		require.Implements(t, (*http.Hijacker)(nil), rw)
	}, idempotent.WithOptionalKey())
	resp, body := post(t, url, "", "abc")
	require.Equal(t, http.StatusTeapot, resp.StatusCode)
	require.Equal(t, "abc", body)
	require.Equal(t, "yes", resp.Header.Get("X-Outer"))
	require.Panics(t, func() { w.guard.Middleware(nil) })
	require.Panics(t, func() { w.guard.Middleware(idempotent.Anonymous)(nil) })
}
