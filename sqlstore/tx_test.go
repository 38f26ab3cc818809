package sqlstore_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/sqlstore"
	"github.com/idempotent-go/idempotent/sqlstore/internal/sqltest"
)

// The steps work in a caller's transaction: what it does is seen when it is
// committed, and not at all where it is rolled back.
func TestSteps_InTransaction(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		db := d.Open(t)
		s := newStore(t, db, d.Kind)
		ctx := t.Context()
		for _, commit := range []bool{false, true} {
			tx, err := db.BeginTx(ctx, nil)
			require.NoError(t, err)
			ok, err := s.ClaimIn(ctx, tx, "k", claim("a"))
			require.NoError(t, err)
			require.True(t, ok)
			require.NoError(t, s.CompleteIn(ctx, tx, "k", "a", success("r")))
			_, found, err := s.Load(ctx, "k")
			require.NoError(t, err)
			require.False(t, found, "others see nothing before the end")
			if !commit {
				require.NoError(t, tx.Rollback())
				_, found, err = s.Load(ctx, "k")
				require.NoError(t, err)
				require.False(t, found)
				continue
			}
			require.NoError(t, tx.Commit())
			e, _, err := s.Load(ctx, "k")
			require.NoError(t, err)
			require.Equal(t, idempotent.Success, e.Status)
		}
	})
}

// A claim that loses between the look and the store answers with the winner's
// entry, also where the transaction had begun before that won.
func TestInTx_Overtaken(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, d sqltest.Database) {
		plain := d.Open(t)
		winner := newStore(t, plain, d.Kind)
		r := &recorder{driver: plain.Driver(), dsn: d.DSN}
		db := sql.OpenDB(r)
		t.Cleanup(func() { _ = db.Close() })
		guard := sqlstore.NewTxGuard(sqlstore.New(db, dialects[d.Kind]), patient()...)
		overtaken := 0
		r.fail = func(query string) error {
			if strings.Contains(query, "INSERT INTO") {
				overtaken++
				claimed(t, winner, "k", "winner")
				require.NoError(t, winner.Complete(t.Context(), "k", "winner", success("r")))
			}
			return nil
		}
		rec, replayed, err := guard.Run(t.Context(), "k", func(context.Context, *sql.Tx) (idempotent.Class, string) {
			t.Error("the operation is run")
			return idempotent.ClassSuccess, ""
		}, idempotent.WithCallFingerprint("f"))
		require.NoError(t, err)
		require.True(t, replayed)
		require.Equal(t, "r", rec.Result)
		require.Equal(t, 1, overtaken)
	})
}

// A claim of a key that an open transaction has claimed waits for its end, and
// has the key where that is a rollback.
func TestClaim_WaitsForTransaction(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, d sqltest.Database) {
		db := d.Open(t)
		s := newStore(t, db, d.Kind)
		ctx := t.Context()
		for _, commit := range []bool{false, true} {
			tx, err := db.BeginTx(ctx, nil)
			require.NoError(t, err)
			ok, err := s.ClaimIn(ctx, tx, "k", claim("a"))
			require.NoError(t, err)
			require.True(t, ok)
			other := make(chan bool, 1)
			go func() {
				_, ok, err := s.Claim(ctx, "k", claim("b"))
				if err != nil {
					t.Error(err)
				}
				other <- ok
			}()
			if commit {
				require.NoError(t, tx.Commit())
			} else {
				require.NoError(t, tx.Rollback())
			}
			require.Equal(t, !commit, <-other)
			require.NoError(t, s.Delete(ctx, "k"))
			_, err = db.Exec("DELETE FROM " + sqlstore.DefaultTable)
			require.NoError(t, err)
		}
	})
}

// What the database has undone because of others is sent again, so often and no
// more.
func TestRetry(t *testing.T) {
	t.Parallel()
	d := sqltest.New(t, sqltest.SQLite)
	for name, c := range map[string]struct {
		failures int
		code     int
		sent     int
		ok       bool
	}{
		"busy twice":  {2, 5, 3, true},
		"always busy": {1000, 5, 10, false},
		"another":     {1, 1, 1, false},
	} {
		r := &recorder{driver: sqliteDriver, dsn: d.DSN}
		db := sql.OpenDB(r)
		s := newStore(t, db, d.Kind, sqlstore.WithTable(newTable()))
		failures := c.failures
		r.fail = func(query string) error {
			if failures == 0 || !strings.Contains(query, "INSERT") {
				return nil
			}
			failures--
			return sqliteError(c.code)
		}
		r.take()
		_, ok, err := s.Claim(context.Background(), "k", claim("a"))
		require.Equal(t, c.ok, ok, name)
		require.Equal(t, c.ok, err == nil, "%s: %v", name, err)
		inserts := 0
		for _, word := range r.take() {
			if word == "insert" {
				inserts++
			}
		}
		require.Equal(t, c.sent, inserts, name)
		require.NoError(t, db.Close())
	}
}
