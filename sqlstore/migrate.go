package sqlstore

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"
	"strings"

	"github.com/idempotent-go/idempotent"
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
		"pg_notify('"+DefaultTable+"'", "pg_notify('"+s.bare()+"'",
		DefaultTable, s.table,
	).Replace(text)
}

// Migrate makes the Store's table and the view of its unknown outcomes where they
// are not there, and with [WithListen] the trigger that notifies. It does so on
// db: the Store's own, or a handle of a user who may change the schema of the
// same database. It may be called at each start of a program, also of several at
// once, and blocks until the database has answered or ctx ends. A table that was
// there and has other columns is an error, and a nil db [idempotent.ErrInvalid].
func (s *Store) Migrate(ctx context.Context, db *sql.DB) error {
	if db == nil {
		return fmt.Errorf("%w: sqlstore: Migrate: the db is nil", idempotent.ErrInvalid)
	}
	run := func(q querier) error {
		for _, statements := range s.schemas() {
			if _, err := q.ExecContext(ctx, statements); err != nil {
				return err
			}
		}
		_, _, err := s.text.read(ctx, q, "idempotent:ping") // is a table that was there the Store's?
		return err
	}
	return s.step(ctx, "migrate", func(querier) error {
		if s.dialect != PostgreSQL {
			return run(db)
		}
		return inTx(ctx, db, func(tx *sql.Tx) error { return run(tx) }) // until its end the lock is held
	})
}

// schemas returns all that Migrate runs, in its order.
func (s *Store) schemas() []string {
	all := []string{s.Schema(), s.UnknownSchema()}
	if s.dialect == PostgreSQL {
		all = append([]string{fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", migrating)}, all...)
	}
	if s.listen != nil {
		all = append(all, s.NotifySchema())
	}
	return all
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
