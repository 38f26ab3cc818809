package sqlstore_test

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/sqlstore"
	"github.com/idempotent-go/idempotent/sqlstore/internal/sqltest"
)

// What a table with its indexes needs for one finished operation: a key of 78
// bytes and a result of 557, as in docs/sizing.md. The figure is that of a table
// nobody has tidied: databases that keep old versions of a row hold the claim as
// well until they vacuum.
func BenchmarkBytesPerRow(b *testing.B) {
	const rows = 5_000
	result := strings.Repeat("r", 557)
	for _, kind := range sqltest.Kinds {
		b.Run(string(kind), func(b *testing.B) {
			db := sqltest.New(b, kind).Open(b)
			table := newTable()
			s := newStore(b, db, kind, sqlstore.WithTable(table))
			for b.Loop() {
				for i := range rows {
					key := idempotent.StoreKey("POST", "/v1/orders", fmt.Sprintf("tenant-%04d/user-%08d", i%100, i), fmt.Sprintf("0196f0a2-7c4e-7b3a-9f21-%012d", i))
					owner := fmt.Sprintf("owner-%016d", i)
					_, _, err := s.Claim(b.Context(), key, idempotent.Claim{Owner: owner, Fingerprint: strings.Repeat("f", 46), Lease: time.Minute, Keep: time.Hour})
					require.NoError(b, err)
					require.NoError(b, s.Complete(b.Context(), key, owner, idempotent.Outcome{Status: idempotent.Success, Result: result, Retention: time.Hour}))
				}
				b.ReportMetric(float64(tableBytes(b, db, kind, table))/rows, "B/row")
			}
		})
	}
}

// tableBytes returns the bytes of a table and its indexes.
func tableBytes(b *testing.B, db *sql.DB, kind sqltest.Kind, table string) (n int64) {
	b.Helper()
	query := map[sqltest.Kind]string{
		sqltest.Postgres: "SELECT pg_total_relation_size('" + table + "')",
		sqltest.MySQL:    "SELECT data_length + index_length FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = '" + table + "'",
		sqltest.SQLite:   "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
	}[kind]
	if kind == sqltest.MySQL {
		_, err := db.ExecContext(b.Context(), "ANALYZE TABLE "+table)
		require.NoError(b, err)
	}
	require.NoError(b, db.QueryRowContext(b.Context(), query).Scan(&n))
	return n
}
