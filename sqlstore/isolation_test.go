package sqlstore_test

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/sqlstore"
	"github.com/idempotent-go/idempotent/sqlstore/internal/sqltest"
)

// The table of docs/sql.md on isolation levels: the insert that comes second
// waits for the end of the first one's transaction, and what it then gets, also
// where its own transaction has read the table before.
func TestDocument_Isolation(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, d sqltest.Database) {
		db := d.Open(t)
		ctx := t.Context()
		_, err := db.Exec(ordersTables[d.Kind])
		require.NoError(t, err)
		for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
			for _, read := range []bool{false, true} {
				for _, commit := range []bool{false, true} {
					key := fmt.Sprint(level, read, commit)
					options := &sql.TxOptions{Isolation: level}
					first, err := db.BeginTx(ctx, options)
					require.NoError(t, err)
					second, err := db.BeginTx(ctx, options)
					require.NoError(t, err)
					if read && !(level == sql.LevelSerializable && d.Kind == sqltest.MySQL) { // whose reads hold up inserts
						_, _, err = loadOrder(second, d.Kind, "ada", key)(ctx)
						require.ErrorIs(t, err, sql.ErrNoRows)
					}
					require.NoError(t, insertOrder(ctx, first, d.Kind, key+"1", "ada", key, nil, "placed"))
					inserted := make(chan error, 1)
					go func() {
						err := insertOrder(ctx, second, d.Kind, key+"2", "ada", key, nil, "placed")
						if err == nil {
							err = second.Commit()
						}
						inserted <- err
					}()
					if commit {
						require.NoError(t, first.Commit())
					} else {
						require.NoError(t, first.Rollback())
					}
					err = <-inserted
					_ = second.Rollback()
					want := key + "2"
					if commit {
						want = key + "1"
						undone := level == sql.LevelSerializable && dialects[d.Kind].Retries(err)
						require.True(t, sqlstore.IsDuplicate(err, once...) || undone, "%s: %v", key, err)
					} else {
						require.NoError(t, err, key)
					}
					id, _, err := loadOrder(db, d.Kind, "ada", key)(ctx)
					require.NoError(t, err)
					require.Equal(t, want, id)
				}
			}
		}
	})
}

// What it says of SQLite: a transaction that has read first fails as busy beside
// another writer, and one that was opened to write is never in that place.
func TestDocument_SQLiteLocking(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	d := sqltest.New(t, sqltest.SQLite) // with _txlock=immediate
	db := d.Open(t)
	_, err := db.Exec(ordersTables[d.Kind])
	require.NoError(t, err)
	d.DSN = strings.Replace(d.DSN, "_txlock=immediate", "_txlock=deferred", 1)
	deferred := d.Open(t)

	tx, err := deferred.BeginTx(ctx, nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	_, _, err = loadOrder(tx, d.Kind, "ada", "k")(ctx)
	require.ErrorIs(t, err, sql.ErrNoRows)
	require.NoError(t, insertOrder(ctx, db, d.Kind, "1", "ada", "k", nil, "placed"))
	err = insertOrder(ctx, tx, d.Kind, "2", "ada", "k", nil, "placed")
	require.True(t, sqlstore.SQLite.Retries(err), "%v", err)
	require.NoError(t, tx.Rollback())

	tx, err = db.BeginTx(ctx, nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	_, _, err = loadOrder(tx, d.Kind, "ada", "k")(ctx)
	require.NoError(t, err)
	err = insertOrder(ctx, tx, d.Kind, "2", "ada", "k", nil, "placed")
	require.True(t, sqlstore.IsDuplicate(err, once...), "%v", err)
}
