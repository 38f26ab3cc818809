package sqlstore_test

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/sqlstore"
	"github.com/idempotent-go/idempotent/sqlstore/internal/sqltest"
	"github.com/idempotent-go/idempotent/storetest"
)

// harness returns a store with a table of its own.
func harness(t *testing.T, db *sql.DB, kind sqltest.Kind) storetest.Harness {
	table := newTable()
	open := func() *sqlstore.Store { return newStore(t, db, kind, sqlstore.WithTable(table)) }
	return storetest.Harness{
		Store:  open(),
		Second: func() idempotent.Store { return open() },
		Corrupt: func(key string, c storetest.Corruption) error {
			return corrupt(db, kind, table, key, c)
		},
	}
}

// corrupt damages the row of key, which is a short one.
func corrupt(db *sql.DB, kind sqltest.Kind, table, key string, c storetest.Corruption) error {
	set := map[storetest.Corruption]string{
		storetest.Foreign: "full_key = " + quoted(kind, "other"),
		storetest.Garbage: "status = 'none', expires_at = 0",
		storetest.Missing: "result = NULL",
		storetest.Newer:   "format = 2, status = 'later'",
	}[c]
	res, err := db.Exec("UPDATE " + table + " SET " + set + " WHERE name = " + quoted(kind, key))
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n != 1 {
		return fmt.Errorf("%d rows damaged, %w", n, err)
	}
	return nil
}

// quoted returns text as a constant of bytes.
func quoted(kind sqltest.Kind, text string) string {
	if kind == sqltest.Postgres {
		return fmt.Sprintf(`'\x%x'`, text)
	}
	return fmt.Sprintf("x'%x'", text)
}

// The whole contract, on every database, with every driver, and with the
// parameters of drivers that change what statements answer: those that have
// nothing to do with each other are tried together, since a suite takes its time.
// PostgreSQL's notifications come on top in TestListen_Store.
func TestStore(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind    sqltest.Kind
		driver  string
		connect [][2]string
	}{
		{kind: sqltest.SQLite},
		{kind: sqltest.Postgres},
		{kind: sqltest.Postgres, driver: "postgres", connect: [][2]string{{"timezone", "America/New_York"}}}, // lib/pq
		{kind: sqltest.MySQL},
		{kind: sqltest.MySQL, connect: [][2]string{{"clientFoundRows", "true"}, {"interpolateParams", "true"}, {"sql_mode", "'ANSI'"}}},
		{kind: sqltest.MySQL, connect: [][2]string{{"sql_mode", "''"}, {"charset", "latin1"}, {"time_zone", "'-05:00'"}}},
	} {
		name := string(c.kind)
		if c.driver != "" {
			name += ", lib/pq"
		}
		for _, p := range c.connect {
			name += ", " + p[0]
		}
		// One after the other: a suite is eight cases at a time by itself.
		t.Run(strings.ReplaceAll(name, "/", "-"), func(t *testing.T) {
			d := sqltest.New(t, c.kind)
			if c.driver != "" {
				d.Driver = c.driver
			}
			for _, p := range c.connect {
				d = d.With(p[0], p[1])
			}
			db := d.Open(t)
			storetest.Run(t, func(t *testing.T) storetest.Harness {
				if c.kind == sqltest.SQLite { // one writer at a time
					return harness(t, sqltest.New(t, c.kind).Open(t), c.kind)
				}
				return harness(t, db, c.kind)
			})
		})
	}
}
