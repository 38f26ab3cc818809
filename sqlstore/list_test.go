package sqlstore_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/sqlstore"
	"github.com/idempotent-go/idempotent/sqlstore/internal/sqltest"
)

// listed goes through all pages and returns the keys in their order, those of
// damaged rows, and the number of pages.
func listed(t testing.TB, s *sqlstore.Store, q idempotent.ListQuery) (keys, corrupt []string, pages int) {
	t.Helper()
	for {
		page, err := s.List(t.Context(), q)
		require.NoError(t, err)
		pages++
		for _, e := range page.Entries {
			keys = append(keys, e.Key)
		}
		corrupt = append(corrupt, page.Corrupt...)
		if q.Cursor = page.Next; q.Cursor == "" {
			return keys, corrupt, pages
		}
	}
}

// Pages meet without a gap where keys differ in their last byte, are longer
// than names may be, or end in bytes that collations pad or fold, and prefixes
// cut them anywhere.
func TestListAtTheEdges(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		s := newStore(t, d.Open(t), d.Kind, sqlstore.WithTable(newTable()))
		long := strings.Repeat("l", 224)
		all := []string{
			"a", "a\x00", "a\x00\x00", "a\x01", "a ", "a  ", "A", "ä", "b", "\xff", "\xff\xff", "\xff\xffa", "\x00",
			long, long + "m", long + strings.Repeat("m", 31), long + strings.Repeat("m", 32), long + strings.Repeat("m", 33),
			long + strings.Repeat("\xff", 100), long + strings.Repeat("\x00", 100), strings.Repeat("\xff", 300),
		}
		for _, key := range all {
			claimed(t, s, key, "a")
		}
		prefixes := []string{"", "a", "a\x00", "a ", "\xff", "\xff\xff", "\x00", long, long[1:], strings.Repeat("\xff", 230), strings.Repeat("\xff", 300)}
		for n := 1; n <= 34; n++ {
			prefixes = append(prefixes, long+strings.Repeat("m", n))
		}
		for _, prefix := range prefixes {
			var want []string
			for _, key := range all {
				if strings.HasPrefix(key, prefix) {
					want = append(want, key)
				}
			}
			for _, limit := range []int{1, 2, 100} {
				got, corrupt, _ := listed(t, s, idempotent.ListQuery{Prefix: prefix, Limit: limit})
				require.ElementsMatch(t, want, got, "%q in pages of %d: each once", prefix, limit)
				require.Empty(t, corrupt)
			}
		}
		short, _, _ := listed(t, s, idempotent.ListQuery{Prefix: "a"})
		require.True(t, slices.IsSorted(short), "%q: byte by byte", short)
	})
}

// A page reads the rows it may have, along the primary key, whatever the table
// has besides.
func TestListReadsOnePage(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		table := newTable()
		db := d.Open(t)
		s := newStore(t, db, d.Kind, sqlstore.WithTable(table))
		for i := range 30 {
			key := fmt.Sprintf("k%02d", i)
			claimed(t, s, key, "a")
			if i%3 == 0 {
				require.NoError(t, s.Release(t.Context(), key, "a")) // the row stays for a sweep
			}
		}
		keys, _, pages := listed(t, s, idempotent.ListQuery{Limit: 10})
		require.Len(t, keys, 20)
		require.Equal(t, 4, pages, "three of ten rows, and one that is empty")

		conn, err := db.Conn(t.Context())
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		explain, index := "EXPLAIN ", "PRIMARY"
		switch d.Kind {
		case sqltest.SQLite:
			explain, index = "EXPLAIN QUERY PLAN ", "SEARCH t USING INDEX"
		case sqltest.Postgres:
			index = "Index Scan"
			// A table of one page it would read as a whole.
			_, err := conn.ExecContext(t.Context(), "SET enable_seqscan = off")
			require.NoError(t, err)
		}
		rows, err := conn.QueryContext(t.Context(), explain+s.ListStatement(), []byte("k1"), []byte("k2"), 10)
		require.NoError(t, err)
		defer func() { _ = rows.Close() }()
		columns, err := rows.Columns()
		require.NoError(t, err)
		plan := ""
		for rows.Next() {
			row := make([]any, len(columns))
			for i := range row {
				row[i] = new([]byte)
			}
			require.NoError(t, rows.Scan(row...))
			for _, column := range row {
				plan += string(*column.(*[]byte)) + " "
			}
		}
		require.NoError(t, rows.Err())
		require.Contains(t, plan, index)
		for _, sort := range []string{"Sort", "filesort", "TEMP B-TREE"} {
			require.NotContains(t, plan, sort)
		}
	})
}

// A damaged row is named by what its own name says.
func TestListOfDamagedRows(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		table := newTable()
		db := d.Open(t)
		s := newStore(t, db, d.Kind, sqlstore.WithTable(table))
		long := strings.Repeat("l", 300)
		for _, key := range []string{"a", "b", long} {
			claimed(t, s, key, "a")
		}
		for _, key := range []string{"b", long} {
			_, err := db.Exec("UPDATE " + table + " SET full_key = " + quoted(d.Kind, "other") + " WHERE full_key = " + quoted(d.Kind, key))
			require.NoError(t, err)
		}
		keys, corrupt, _ := listed(t, s, idempotent.ListQuery{Limit: 1})
		require.Equal(t, []string{"a"}, keys)
		require.Len(t, corrupt, 2)
		require.Equal(t, "b", corrupt[0])
		require.Equal(t, long[:224], corrupt[1][:224])
		require.Len(t, corrupt[1], 256, "the rest of the name is the digest of the key")

		_, err := db.Exec("UPDATE " + table + " SET full_key = name, format = 2 WHERE name = " + quoted(d.Kind, "b"))
		require.NoError(t, err)
		_, corrupt, _ = listed(t, s, idempotent.ListQuery{Prefix: "b"})
		require.Equal(t, []string{"b"}, corrupt)
	})
}

func TestListCursors(t *testing.T) {
	t.Parallel()
	d := sqltest.New(t, sqltest.SQLite)
	s := newStore(t, d.Open(t), d.Kind)
	for _, cursor := range []string{"YQ", "_w", strings.Repeat("____", 85) + "_w"} {
		_, err := s.List(t.Context(), idempotent.ListQuery{Cursor: cursor})
		require.NoError(t, err, cursor)
	}
	for _, cursor := range []string{"Y", "YR", "YQ==", "Y Q", "Y\nQ", "/w", strings.Repeat("____", 86)} {
		_, err := s.List(t.Context(), idempotent.ListQuery{Cursor: cursor})
		require.ErrorIs(t, err, idempotent.ErrInvalid, "%q", cursor)
	}
}
