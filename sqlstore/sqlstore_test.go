package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/sqlstore"
	"github.com/idempotent-go/idempotent/sqlstore/internal/sqltest"
	"github.com/idempotent-go/idempotent/sqlstore/pglisten"
)

func TestNew_Panics(t *testing.T) {
	t.Parallel()
	db := sqltest.New(t, sqltest.SQLite).Open(t)
	listen := func(context.Context, string, func(), func(string)) error { return nil }
	for name, f := range map[string]func(){
		"nil db":            func() { sqlstore.New(nil, sqlstore.SQLite) },
		"no dialect":        func() { sqlstore.New(db, 0) },
		"unknown dialect":   func() { sqlstore.New(db, sqlstore.SQLite+1) },
		"nil listen":        func() { sqlstore.WithListen(nil) },
		"listen to MySQL":   func() { sqlstore.New(db, sqlstore.MySQL, sqlstore.WithListen(listen)) },
		"schema for SQLite": func() { sqlstore.New(db, sqlstore.SQLite, sqlstore.WithTable("main.entries")) },
		"empty table":       func() { sqlstore.WithTable("") },
		"quotes":            func() { sqlstore.WithTable(`a"b`) },
		"statement":         func() { sqlstore.WithTable("a; DROP TABLE b") },
		"newline":           func() { sqlstore.WithTable("a\n") },
		"digit":             func() { sqlstore.WithTable("1a") },
		"two schemas":       func() { sqlstore.WithTable("a.b.c") },
		"too long":          func() { sqlstore.WithTable(strings.Repeat("a", 49)) },
	} {
		require.Panics(t, f, name)
	}
}

// Any number of processes may start at once, and again later.
func TestMigrate(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		db := d.Open(t)
		names := []string{sqlstore.DefaultTable, strings.Repeat("a", 48)}
		switch d.Kind {
		case sqltest.Postgres:
			_, err := db.Exec("CREATE SCHEMA IF NOT EXISTS apart")
			require.NoError(t, err)
			t.Cleanup(func() { _, _ = db.Exec("DROP SCHEMA apart CASCADE") })
			names = append(names, "apart.entries")
		case sqltest.MySQL:
			var name string
			require.NoError(t, db.QueryRow("SELECT DATABASE()").Scan(&name))
			names = append(names, name+".entries")
		}
		for _, name := range names {
			s := sqlstore.New(db, dialects[d.Kind], sqlstore.WithTable(name))
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					if err := s.Migrate(t.Context(), db); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			claimed(t, s, "k", "a")
			require.NoError(t, s.Migrate(t.Context(), db))
			e, _, err := s.Load(t.Context(), "k")
			require.NoError(t, err)
			require.Equal(t, "a", e.Owner, "what is there stays")
			_, err = db.Exec(s.Schema()) // as a migration tool does
			require.NoError(t, err)
			require.Contains(t, s.Schema(), "CREATE TABLE IF NOT EXISTS "+name+" (")
		}
	})
}

// A table of somebody else's with the same name is no success: SQLite does not
// look at the columns of a view.
func TestMigrate_AnotherTable(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		db := d.Open(t)
		_, err := db.Exec("CREATE TABLE idempotent_entries (id INTEGER, sweep_at BIGINT)")
		require.NoError(t, err)
		s := sqlstore.New(db, dialects[d.Kind])
		require.Error(t, s.Migrate(t.Context(), db))
	})
}

// A program that starts while operations are in their transactions neither waits
// for them nor has others wait.
func TestMigrate_UnderTransactions(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, d sqltest.Database) {
		var opts []sqlstore.Option
		if d.Kind == sqltest.Postgres {
			opts = append(opts, sqlstore.WithListen(pglisten.Func(d.DSN)))
		}
		db := d.Open(t)
		s := newStore(t, db, d.Kind, opts...)
		_, err := sqlstore.InTx(t.Context(), sqlstore.NewTxGuard(s, patient()...), "k", func(context.Context, *sql.Tx) (string, error) {
			require.NoError(t, s.Migrate(ctxFor(t, 20*time.Second), db))
			return "", nil
		})
		require.NoError(t, err)
	})
}

// A statement may read the clock before it sees a row that was written after that.
// A claim that is sent again is told that it runs all the same.
func TestClaim_AgainBeforeItsTime(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		db := d.Open(t)
		s := newStore(t, db, d.Kind)
		claimed(t, s, "k", "a")
		_, err := db.Exec("UPDATE " + sqlstore.DefaultTable + " SET set_at = set_at + 3600000000, claimed_at = claimed_at + 3600000000")
		require.NoError(t, err)
		again := claim("a")
		again.Lease, again.Keep = time.Minute, time.Minute
		e, ok, err := s.Claim(t.Context(), "k", again)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, idempotent.Pending, e.Status)
		require.Equal(t, "a", e.Owner)
	})
}

// A user who may change the schema makes the table for one who may not. Without
// a database there is nothing to do it on.
func TestMigrate_ByAnother(t *testing.T) {
	t.Parallel()
	d := sqltest.New(t, sqltest.SQLite)
	s := sqlstore.New(d.With("_pragma", "query_only(true)").Open(t), sqlstore.SQLite)
	t.Cleanup(func() { _ = s.Close() })
	require.Error(t, s.Ping(t.Context()))
	require.NoError(t, s.Migrate(t.Context(), d.Open(t)))
	require.NoError(t, s.Ping(t.Context()))
	require.ErrorIs(t, s.Migrate(t.Context(), nil), idempotent.ErrInvalid)
}

// The plain files and the trigger's, run by hand.
func TestNotifySchema(t *testing.T) {
	t.Parallel()
	d := sqltest.New(t, sqltest.Postgres)
	db := d.Open(t)
	s := newStore(t, db, d.Kind)
	for range 2 {
		_, err := db.Exec(s.NotifySchema())
		require.NoError(t, err)
	}
	claimed(t, s, "k", "a")
	require.NoError(t, s.Complete(t.Context(), "k", "a", success("r")))
	require.Empty(t, sqlstore.New(db, sqlstore.MySQL).NotifySchema())
}

// A sweep works in batches, and many of them at once count each row once.
func TestSweep_Batches(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		db := d.Open(t)
		var mu sync.Mutex
		told := map[string]int{}
		s := newStore(t, db, d.Kind, sqlstore.WithObserver(idempotent.ObserverFunc(func(_ context.Context, e idempotent.Event) {
			mu.Lock()
			defer mu.Unlock()
			told[e.Key]++
		})))
		ctx := t.Context()
		const n = 2*sqlstore.SweepBatch + 7
		for i := range n {
			o := success("r")
			o.Retention = time.Millisecond
			require.NoError(t, s.Complete(ctx, fmt.Sprint("done", i), "a", o))
			c := claim("a")
			c.Lease = time.Millisecond
			_, _, err := s.Claim(ctx, fmt.Sprint("abandoned", i), c)
			require.NoError(t, err)
			c.Lease = time.Hour // however slow the machine is
			for _, key := range []string{"running", "freed"} {
				_, _, err = s.Claim(ctx, fmt.Sprint(key, i), c)
				require.NoError(t, err)
			}
			require.NoError(t, s.Release(ctx, fmt.Sprint("freed", i), "a"))
		}
		// The rows of freed keys are due in a minute; let them be due now.
		_, err := db.Exec("UPDATE " + sqlstore.DefaultTable + " SET sweep_at = 0 WHERE status = 'free'")
		require.NoError(t, err)
		var all sync.WaitGroup
		var total idempotent.Swept
		for range 4 {
			all.Go(func() {
				swept, err := s.Sweep(ctx)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				total.Expired += swept.Expired
				total.Abandoned += swept.Abandoned
			})
		}
		all.Wait()
		redistest.Eventually(t, "the last ones are past their time", func() bool {
			rest, err := s.Sweep(ctx)
			require.NoError(t, err)
			total.Expired += rest.Expired
			total.Abandoned += rest.Abandoned
			return total.Expired >= n && total.Abandoned >= n
		})
		require.Equal(t, idempotent.Swept{Expired: n, Abandoned: n}, total)
		var rows int
		require.NoError(t, db.QueryRow("SELECT COUNT(*) FROM "+sqlstore.DefaultTable).Scan(&rows))
		require.Equal(t, 2*n, rows, "the running and the abandoned ones stay")
		require.Len(t, told, n)
		for i := range n {
			require.Equal(t, 1, told[fmt.Sprint("abandoned", i)])
		}
	})
}

// An operation that has claimed a key anew, whose row is past its time, holds up
// no sweep: that would hold up the claims of other keys.
func TestSweep_PassesOverTransactions(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, d sqltest.Database) {
		w := newTxWorld(t, d)
		const keys = 20
		for i := range keys {
			claimed(t, w.store, fmt.Sprint("k", i), "a")
			o := success("r")
			o.Retention = time.Millisecond
			require.NoError(t, w.store.Complete(t.Context(), fmt.Sprint("k", i), "a", o))
		}
		redistest.Eventually(t, "they are past their retention", func() bool {
			_, found, err := w.store.Load(t.Context(), fmt.Sprint("k", keys-1))
			require.NoError(t, err)
			return !found
		})
		_, err := sqlstore.InTx(t.Context(), w.guard, "k10", func(context.Context, *sql.Tx) (string, error) {
			n, err := w.store.Sweep(ctxFor(t, 20*time.Second))
			require.NoError(t, err)
			require.Equal(t, keys-1, n.Expired)
			return "", nil
		})
		require.NoError(t, err)
		e, _, err := w.store.Load(t.Context(), "k10")
		require.NoError(t, err)
		require.Equal(t, idempotent.Success, e.Status)
	})
}

// The observer is told what is known of an abandoned claim, and nothing of what
// was renewed, or is only past its time.
func TestSweep_Observer(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		var told []idempotent.Event
		db := d.Open(t)
		s := newStore(t, db, d.Kind, sqlstore.WithObserver(idempotent.ObserverFunc(func(_ context.Context, e idempotent.Event) {
			told = append(told, e)
		})))
		ctx := t.Context()
		long := strings.Repeat("k", 300)
		for _, key := range []string{long, "renewed"} {
			c := claim("a")
			c.Lease = time.Millisecond
			_, _, err := s.Claim(ctx, key, c)
			require.NoError(t, err)
		}
		require.NoError(t, s.Renew(ctx, "renewed", "a", time.Hour))
		o := success("r")
		o.Retention = time.Millisecond
		require.NoError(t, s.Complete(ctx, "done", "a", o))
		redistest.Eventually(t, "the lease is over", func() bool {
			_, err := s.Sweep(ctx)
			require.NoError(t, err)
			return len(told) > 0
		})
		_, err := s.Sweep(ctx)
		require.NoError(t, err)
		require.Len(t, told, 1, "once")
		require.Positive(t, told[0].Age)
		told[0].Age = 0
		require.Equal(t, idempotent.Event{
			Kind: idempotent.EventAbandoned, Key: long, Owner: "a", Trace: "t", Status: idempotent.Failed, Unknown: true,
		}, told[0])
	})
}

// What a newer release wrote is left to it, and what cannot be read to an
// operator: neither is swept, nor does it keep a sweep from its work.
func TestSweep_LeavesWhatItCannotRead(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		db := d.Open(t)
		s := newStore(t, db, d.Kind)
		for i, damage := range []string{"format = 2", "status = 'none'"} {
			key := fmt.Sprint(i)
			claimed(t, s, key, "a")
			_, err := db.Exec("UPDATE " + sqlstore.DefaultTable + " SET sweep_at = 0, expires_at = 0, keep_for = 0, " + damage + " WHERE name = " + quoted(d.Kind, key))
			require.NoError(t, err)
		}
		swept, err := s.Sweep(t.Context())
		require.NoError(t, err)
		require.Zero(t, swept)
		_, _, err = s.Load(t.Context(), "0")
		require.ErrorIs(t, err, idempotent.ErrNewerFormat)
		_, _, err = s.Load(t.Context(), "1")
		require.ErrorIs(t, err, idempotent.ErrCorrupt)
	})
}

func TestRowName(t *testing.T) {
	t.Parallel()
	short, long := strings.Repeat("k", 255), strings.Repeat("k", 256)
	require.Equal(t, []byte(short), sqlstore.RowName(short))
	require.Len(t, sqlstore.RowName(long), 256)
	require.NotEqual(t, []byte(long), sqlstore.RowName(long))
	require.NotEqual(t, sqlstore.RowName(long+"a"), sqlstore.RowName(long+"b"))
	require.NotEqual(t, sqlstore.RowName(string(sqlstore.RowName(long))), sqlstore.RowName(long))
}

// Errors are told by their code, in whatever they are wrapped, and never by
// their text.
func TestClassify(t *testing.T) {
	t.Parallel()
	wrapped := func(err error) error { return fmt.Errorf("wrapped: %w", err) }
	for _, c := range []struct {
		name    string
		dialect sqlstore.Dialect
		err     error
		retry   bool
		full    bool
	}{
		{"pgx deadlock", sqlstore.PostgreSQL, wrapped(&pgconn.PgError{Code: "40P01"}), true, false},
		{"pgx serialization", sqlstore.PostgreSQL, &pgconn.PgError{Code: "40001"}, true, false},
		{"pq serialization", sqlstore.PostgreSQL, wrapped(&pq.Error{Code: "40001"}), true, false},
		{"pgx disk", sqlstore.PostgreSQL, &pgconn.PgError{Code: "53100"}, false, true},
		{"pgx other", sqlstore.PostgreSQL, &pgconn.PgError{Code: "57014", Message: "40001 deadlock"}, false, false},
		{"mysql deadlock", sqlstore.MySQL, wrapped(&mysql.MySQLError{Number: 1213}), true, false},
		{"mysql full", sqlstore.MySQL, &mysql.MySQLError{Number: 1114}, false, true},
		{"mysql other", sqlstore.MySQL, &mysql.MySQLError{Number: 1317, Message: "Deadlock found"}, false, false},
		{"sqlite busy, extended", sqlstore.SQLite, wrapped(sqliteError(5 | 2<<8)), true, false},
		{"sqlite full", sqlstore.SQLite, sqliteError(13), false, true},
		{"mattn busy", sqlstore.SQLite, mattnError{Code: 5}, true, false},
		{"another's", sqlstore.MySQL, sqliteError(5), false, false},
		{"text", sqlstore.PostgreSQL, errors.New("ERROR: deadlock detected (SQLSTATE 40P01)"), false, false},
		{"closed", sqlstore.PostgreSQL, sql.ErrConnDone, false, false},
		{"joined", sqlstore.PostgreSQL, errors.Join(sql.ErrTxDone, wrapped(&pgconn.PgError{Code: "40001"})), true, false},
		{"two wrapped", sqlstore.MySQL, fmt.Errorf("%w: %w", sql.ErrTxDone, &mysql.MySQLError{Number: 1213}), true, false},
		{"joined to its consequence", sqlstore.PostgreSQL, errors.Join(&pgconn.PgError{Code: "25P02"}, &pgconn.PgError{Code: "40P01"}), true, false},
		{"nil pointer", sqlstore.MySQL, (*mysql.MySQLError)(nil), false, false},
	} {
		require.Equal(t, c.retry, c.dialect.Retries(c.err), c.name)
		require.Equal(t, c.full, c.dialect.Full(c.err), c.name)
	}
	require.Equal(t, "Dialect(0)", sqlstore.Dialect(0).String())
	require.Equal(t, "PostgreSQL MySQL SQLite", fmt.Sprint(sqlstore.PostgreSQL, " ", sqlstore.MySQL, " ", sqlstore.SQLite))
}

// sqliteError has the method of modernc.org/sqlite's error.
type sqliteError int

func (e sqliteError) Error() string { return "sqlite" }
func (e sqliteError) Code() int     { return int(e) }

// mattnError has the field of mattn/go-sqlite3's error.
type mattnError struct{ Code mattnCode }

type mattnCode int

func (mattnError) Error() string { return "sqlite" }
