package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log"
	"os"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/internal/backendtest"
	"github.com/idempotent-go/idempotent/sqlstore"
	"github.com/idempotent-go/idempotent/sqlstore/internal/sqltest"
)

func TestMain(m *testing.M) {
	_ = mysql.SetLogger(log.New(io.Discard, "", 0)) // outages are planned here
	backendtest.Parallel(8)
	if os.Getenv(tillDSN) != "" {
		os.Exit(till())
	}
	if os.Getenv(sale) != "" {
		os.Exit(sellOnce())
	}
	code := m.Run()
	sqltest.Stop()
	os.Exit(code)
}

var tables atomic.Int64

// newTable returns the name of a table that no other test of this binary uses.
func newTable() string { return fmt.Sprint("entries_", tables.Add(1)) }

// dialects are those of the kinds.
var dialects = map[sqltest.Kind]sqlstore.Dialect{
	sqltest.Postgres: sqlstore.PostgreSQL,
	sqltest.MySQL:    sqlstore.MySQL,
	sqltest.SQLite:   sqlstore.SQLite,
}

// onEach runs f on a new database of each kind.
func onEach(t *testing.T, f func(t *testing.T, d sqltest.Database)) {
	t.Helper()
	for _, kind := range sqltest.Kinds {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			f(t, sqltest.New(t, kind))
		})
	}
}

// onServers runs f on a new database of each kind that has a server.
func onServers(t *testing.T, f func(t *testing.T, d sqltest.Database)) {
	t.Helper()
	for _, kind := range []sqltest.Kind{sqltest.Postgres, sqltest.MySQL} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			f(t, sqltest.New(t, kind))
		})
	}
}

// newStore returns a store that ends with the test; its table is there.
func newStore(t testing.TB, db *sql.DB, kind sqltest.Kind, opts ...sqlstore.Option) *sqlstore.Store {
	t.Helper()
	s := sqlstore.New(db, dialects[kind], opts...)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.NoError(t, s.Migrate(context.Background(), db))
	return s
}

// What the tests of both servers' stores have in common.
var (
	claim   = backendtest.Claim
	success = backendtest.Success
	claimed = backendtest.Claimed
	ctxFor  = backendtest.Within
)
