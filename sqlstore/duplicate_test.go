package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/sqlstore"
	"github.com/idempotent-go/idempotent/sqlstore/internal/sqltest"
)

// ordersTables are business tables with three unique indexes: the primary key,
// the idempotency key's, and one that has nothing to do with it.
var ordersTables = map[sqltest.Kind]string{
	sqltest.Postgres: `CREATE TABLE orders (id TEXT PRIMARY KEY, principal TEXT NOT NULL, idempotency_key TEXT NOT NULL,
  coupon TEXT, state TEXT NOT NULL, CONSTRAINT orders_once UNIQUE (principal, idempotency_key), CONSTRAINT orders_coupon UNIQUE (coupon))`,
	sqltest.MySQL: `CREATE TABLE orders (id VARCHAR(64) PRIMARY KEY, principal VARCHAR(255) NOT NULL, idempotency_key VARCHAR(255) NOT NULL,
  coupon VARCHAR(64), state VARCHAR(16) NOT NULL, UNIQUE INDEX orders_once (principal, idempotency_key), UNIQUE INDEX orders_coupon (coupon))`,
	sqltest.SQLite: `CREATE TABLE orders (id TEXT PRIMARY KEY, principal TEXT NOT NULL, idempotency_key TEXT NOT NULL,
  coupon TEXT, state TEXT NOT NULL, UNIQUE (principal, idempotency_key), UNIQUE (coupon))`,
}

// once are the names that the idempotency key's index has somewhere.
var once = []string{"orders_once", "orders.principal, orders.idempotency_key"}

// insertOrder adds an order to the table.
func insertOrder(ctx context.Context, q interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, kind sqltest.Kind, id, principal, key string, coupon any, state string,
) error {
	text := "INSERT INTO orders (id, principal, idempotency_key, coupon, state) VALUES (?, ?, ?, ?, ?)"
	if kind == sqltest.Postgres {
		text = "INSERT INTO orders (id, principal, idempotency_key, coupon, state) VALUES ($1, $2, $3, $4, $5)"
	}
	_, err := q.ExecContext(ctx, text, id, principal, key, coupon, state)
	return err
}

// What the servers and the drivers really say, and which index it was.
func TestIsDuplicate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		kind   sqltest.Kind
		driver string
		once   string
		coupon string
		id     string
	}{
		{"sqlite", sqltest.SQLite, "", "orders.principal, orders.idempotency_key", "orders.coupon", "orders.id"},
		{"pgx", sqltest.Postgres, "", "orders_once", "orders_coupon", "orders_pkey"},
		{"pq", sqltest.Postgres, "postgres", "orders_once", "orders_coupon", "orders_pkey"},
		{"mysql", sqltest.MySQL, "", "orders_once", "orders_coupon", "PRIMARY"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := sqltest.New(t, c.kind)
			if c.driver != "" {
				d.Driver = c.driver
			}
			db := d.Open(t)
			ctx := t.Context()
			_, err := db.Exec(ordersTables[c.kind])
			require.NoError(t, err)
			insert := func(id, principal, key string, coupon any) error {
				return insertOrder(ctx, db, c.kind, id, principal, key, coupon, "placed")
			}
			// The client's text tries to pass for another index.
			const principal, key = "ada' for key 'orders_coupon", "k' for key 'orders.orders_coupon'"
			require.NoError(t, insert("1", principal, key, "SPRING"))
			require.NoError(t, insert("2", "bob", key, nil), "another principal's")
			require.NoError(t, insert("3", principal, "other", nil), "another key")
			for name, tt := range map[string]struct {
				err   error
				index string
			}{
				"once":   {insert("4", principal, key, nil), c.once},
				"coupon": {insert("5", "eve", "k", "SPRING"), c.coupon},
				"id":     {insert("1", "eve", "k", nil), c.id},
			} {
				require.Error(t, tt.err, name)
				index, ok := sqlstore.DuplicateIndex(tt.err)
				require.True(t, ok, "%s: %v", name, tt.err)
				require.Equal(t, tt.index, index, "%s: %v", name, tt.err)
				require.True(t, sqlstore.IsDuplicate(tt.err), name)
				require.Equal(t, name == "once", sqlstore.IsDuplicate(tt.err, once...), name)
			}
			for name, text := range map[string]string{
				"null":     "INSERT INTO orders (id, principal, idempotency_key, state) VALUES ('6', NULL, 'k', 's')",
				"no table": "INSERT INTO nowhere (id) VALUES ('UNIQUE constraint failed: orders.id (2067) 23505 1062')",
			} {
				_, err = db.Exec(text)
				require.Error(t, err, name)
				require.False(t, sqlstore.IsDuplicate(err), "%s: %v", name, err)
			}
		})
	}
}

// A unique constraint that is checked at the commit fails there.
func TestIsDuplicate_AtCommit(t *testing.T) {
	t.Parallel()
	d := sqltest.New(t, sqltest.Postgres)
	for _, driver := range []string{"pgx", "postgres"} {
		d.Driver = driver
		db := d.Open(t)
		table := newTable()
		_, err := db.Exec("CREATE TABLE " + table + " (k TEXT, CONSTRAINT " + table + "_once UNIQUE (k) DEFERRABLE INITIALLY DEFERRED)")
		require.NoError(t, err)
		_, err = db.Exec("INSERT INTO " + table + " VALUES ('k')")
		require.NoError(t, err)
		tx, err := db.Begin()
		require.NoError(t, err)
		_, err = tx.Exec("INSERT INTO " + table + " VALUES ('k')")
		require.NoError(t, err)
		err = tx.Commit()
		require.True(t, sqlstore.IsDuplicate(err, table+"_once"), "%s: %v", driver, err)
	}
}

// The index of a partition has a name of its own.
func TestIsDuplicate_Partition(t *testing.T) {
	t.Parallel()
	db := sqltest.New(t, sqltest.Postgres).Open(t)
	for _, text := range []string{
		"CREATE TABLE orders (p TEXT, k TEXT, CONSTRAINT orders_once UNIQUE (p, k)) PARTITION BY HASH (p)",
		"CREATE TABLE orders_0 PARTITION OF orders FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
		"INSERT INTO orders VALUES ('ada', 'k')",
	} {
		_, err := db.Exec(text)
		require.NoError(t, err)
	}
	_, err := db.Exec("INSERT INTO orders VALUES ('ada', 'k')")
	require.True(t, sqlstore.IsDuplicate(err))
	require.True(t, sqlstore.IsDuplicate(err, "orders_0_p_k_key"), "%v", err)
	require.False(t, sqlstore.IsDuplicate(err, "orders_once"))
}

// The code decides, in whatever the error is wrapped; the text never does.
func TestIsDuplicate_Shapes(t *testing.T) {
	t.Parallel()
	wrapped := func(err error) error { return fmt.Errorf("insert: %w", err) }
	joined := func(err error) error { return errors.Join(sql.ErrTxDone, wrapped(err)) }
	const columns = "UNIQUE constraint failed: orders.principal, orders.key"
	for name, c := range map[string]struct {
		err   error
		ok    bool
		index string
	}{
		"nil":                   {nil, false, ""},
		"text":                  {errors.New("ERROR: duplicate key value violates unique constraint (SQLSTATE 23505)"), false, ""},
		"pgx":                   {wrapped(&pgconn.PgError{Code: "23505", ConstraintName: "once"}), true, "once"},
		"pgx, joined":           {joined(&pgconn.PgError{Code: "23505", ConstraintName: "once"}), true, "once"},
		"pgx, other":            {&pgconn.PgError{Code: "23503", ConstraintName: "once", Message: "23505 duplicate key"}, false, ""},
		"pgx, aborted":          {&pgconn.PgError{Code: "25P02"}, false, ""},
		"pgx, no name":          {&pgconn.PgError{Code: "23505", Message: `violates unique constraint "once"`}, true, ""},
		"pgx, nil":              {(*pgconn.PgError)(nil), false, ""},
		"pq":                    {joined(&pq.Error{Code: "23505", Constraint: "once"}), true, "once"},
		"pq, other":             {&pq.Error{Code: "23514", Constraint: "once"}, false, ""},
		"mysql 8":               {wrapped(&mysql.MySQLError{Number: 1062, Message: "Duplicate entry 'a-b' for key 'orders.once'"}), true, "once"},
		"mysql 5, mariadb":      {&mysql.MySQLError{Number: 1062, Message: "Duplicate entry 'a' for key 'b' for key 'once'"}, true, "once"},
		"mysql, in German":      {&mysql.MySQLError{Number: 1062, Message: "Doppelter Eintrag 'a' für Schlüssel 'once'"}, true, "once"},
		"mysql, words follow":   {&mysql.MySQLError{Number: 1062, Message: "'a' wa sakuin 'once' de choufuku"}, true, "once"},
		"mysql, no quotes":      {&mysql.MySQLError{Number: 1062, Message: "Duplicate"}, true, ""},
		"mysql, one quote":      {&mysql.MySQLError{Number: 1062, Message: "once'"}, true, "once"},
		"mysql, other":          {&mysql.MySQLError{Number: 1452, Message: "Duplicate entry 'a' for key 'once'"}, false, "once"},
		"mysql, nil":            {(*mysql.MySQLError)(nil), false, ""},
		"modernc, unique":       {joined(sqliteText{2067, "constraint failed: " + columns + " (2067)"}), true, "orders.principal, orders.key"},
		"modernc, primary key":  {sqliteText{1555, "UNIQUE constraint failed: orders.id"}, true, "orders.id"},
		"modernc, rowid":        {sqliteText{2579, "UNIQUE constraint failed: orders.rowid"}, true, "orders.rowid"},
		"modernc, expression":   {sqliteText{2067, "constraint failed: UNIQUE constraint failed: index 'once' (2067)"}, true, "index 'once'"},
		"modernc, no text":      {sqliteText{2067, "failed"}, true, ""},
		"modernc, not null":     {sqliteText{1299, columns}, false, ""},
		"modernc, only primary": {sqliteText{19, columns}, false, ""},
		"mattn":                 {wrapped(mattnFull{19, 2067, columns}), true, "orders.principal, orders.key"},
		"mattn, other":          {mattnFull{19, 787, columns}, false, ""},
		"mattn, not extended":   {mattnError{19}, false, ""},
	} {
		index, ok := sqlstore.DuplicateIndex(c.err)
		require.Equal(t, c.ok, ok, name)
		require.Equal(t, c.ok, sqlstore.IsDuplicate(c.err), name)
		if ok {
			require.Equal(t, c.index, index, name)
		}
		require.Equal(t, ok && index == "once", sqlstore.IsDuplicate(c.err, "other", "once"), name)
		require.False(t, sqlstore.IsDuplicate(c.err, ""), "%s: an index without a name is none", name)
	}
}

// sqliteText has the methods of modernc.org/sqlite's error.
type sqliteText struct {
	code int
	text string
}

func (e sqliteText) Error() string { return e.text }
func (e sqliteText) Code() int     { return e.code }

// mattnFull has the fields of mattn/go-sqlite3's error.
type mattnFull struct {
	Code         mattnCode
	ExtendedCode mattnCode
	err          string
}

func (e mattnFull) Error() string { return e.err }
