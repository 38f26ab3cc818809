package sqlstore

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"
	"strings"
)

var (
	//go:embed schema/postgres.sql
	postgresSchema string
	//go:embed schema/mysql.sql
	mysqlSchema string
	//go:embed schema/sqlite.sql
	sqliteSchema string
	//go:embed schema/postgres_notify.sql
	notifySchema string
	//go:embed schema/postgres_unknown.sql
	postgresUnknownSchema string
	//go:embed schema/mysql_unknown.sql
	mysqlUnknownSchema string
	//go:embed schema/sqlite_unknown.sql
	sqliteUnknownSchema string
)

// migrating is the advisory lock under which the table is made: IF NOT EXISTS
// alone fails in PostgreSQL where two processes start at once.
const migrating = 0x1de3907e

// Schema returns the statements that make the Store's table and its index, for
// those who use a migration tool. They do nothing where both are there. The
// files are also in the directory schema of this package, with the default name.
func (s *Store) Schema() string {
	text := sqliteSchema
	switch s.dialect {
	case PostgreSQL:
		text = postgresSchema
	case MySQL:
		text = mysqlSchema
	}
	return s.named(text)
}

// NotifySchema returns the statements that have PostgreSQL notify waiters; see
// [WithListen]. They may be run again, and are "" for the other dialects.
func (s *Store) NotifySchema() string {
	if s.dialect != PostgreSQL {
		return ""
	}
	return s.named(notifySchema)
}

// UnknownSchema returns the statement that makes the view of unknown outcomes,
// which is named as the table with "_unknown" behind; see [Store.Unknowns]. It
// comes after those of [Store.Schema], and does no harm where the view is there.
func (s *Store) UnknownSchema() string {
	text := sqliteUnknownSchema
	switch s.dialect {
	case PostgreSQL:
		text = postgresUnknownSchema
	case MySQL:
		text = mysqlUnknownSchema
	}
	return s.named(text)
}

// named returns a schema with the Store's own names in it. An index and a
// function are not named with the schema of their table.
func (s *Store) named(text string) string {
	return strings.NewReplacer(
		DefaultTable+"_sweep_at", s.bare()+"_sweep_at",
		DefaultTable+"_notify", s.table+"_notify",
		"'"+DefaultTable+"'", "'"+s.bare()+"'",
		DefaultTable, s.table,
	).Replace(text)
}

// Migrate makes the Store's table and the view of its unknown outcomes where they
// are not there, and with [WithListen] the trigger that notifies. It may be called at each start of a program, also
// of several at once, and blocks until the database has answered or ctx ends.
func (s *Store) Migrate(ctx context.Context) error {
	return s.step(ctx, "migrate", func(querier) error { return s.migrate(ctx) })
}

func (s *Store) migrate(ctx context.Context) error {
	if s.dialect != PostgreSQL {
		if _, err := s.db.ExecContext(ctx, s.Schema()); err != nil {
			return err
		}
		_, err := s.db.ExecContext(ctx, s.UnknownSchema())
		return err
	}
	return inTx(ctx, s.db, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", migrating)); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, s.Schema()); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, s.UnknownSchema()); err != nil {
			return err
		}
		if s.listen == nil {
			return nil
		}
		_, err := tx.ExecContext(ctx, s.NotifySchema())
		return err
	})
}

// inTx runs f in a transaction that is committed unless f fails.
func inTx(ctx context.Context, db *sql.DB, f func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		_ = tx.Rollback()
		return err
	}
	return tx.Commit()
}
