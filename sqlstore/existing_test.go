package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/sqlstore"
	"github.com/idempotent-go/idempotent/sqlstore/internal/sqltest"
)

// Only a finished row is no error.
func TestExisting_States(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		state sqlstore.State
		err   error
		want  error // nil: any
		row   string
	}{
		"finished":      {sqlstore.StateFinished, nil, nil, "row"},
		"running":       {sqlstore.StateRunning, nil, sqlstore.ErrRunning, "row"},
		"deleted":       {sqlstore.StateDeleted, nil, sqlstore.ErrDeleted, "row"},
		"an error":      {sqlstore.StateFinished, boom, boom, ""},
		"another's key": {sqlstore.StateFinished, idempotent.ErrKeyReused, idempotent.ErrKeyReused, ""},
	} {
		calls := 0
		row, err := sqlstore.Existing(t.Context(), func(context.Context) (string, sqlstore.State, error) {
			calls++
			return "row", c.state, c.err
		})
		require.Equal(t, c.want, err, name)
		require.Equal(t, c.row, row, name)
		require.Equal(t, 1, calls, name)
	}
	for _, state := range []sqlstore.State{0, sqlstore.StateDeleted + 1, -1} {
		row, err := sqlstore.Existing(t.Context(), func(context.Context) (string, sqlstore.State, error) { return "row", state, nil })
		require.ErrorContains(t, err, state.String())
		require.Empty(t, row, "a state that is none is no success")
	}
	require.Equal(t, "running finished deleted State(0)",
		fmt.Sprint(sqlstore.StateRunning, " ", sqlstore.StateFinished, " ", sqlstore.StateDeleted, " ", sqlstore.State(0)))
	require.Panics(t, func() { sqlstore.WithVisibleWithin(-1) })
}

// A row that is not there yet is looked for again, with growing pauses, for so
// long and no longer.
func TestExisting_NotVisible(t *testing.T) {
	t.Parallel()
	missing := func(calls *[]time.Time) func(context.Context) (int, sqlstore.State, error) {
		return func(context.Context) (int, sqlstore.State, error) {
			*calls = append(*calls, time.Now())
			return 0, 0, fmt.Errorf("orders: %w", sql.ErrNoRows)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var calls []time.Time
		_, err := sqlstore.Existing(t.Context(), missing(&calls))
		require.ErrorIs(t, err, sqlstore.ErrNotVisible)
		require.ErrorIs(t, err, sql.ErrNoRows)
		require.Equal(t, sqlstore.DefaultVisibleWithin, time.Since(began))
		require.Greater(t, len(calls), 12)
		require.Less(t, len(calls), 30)
		require.LessOrEqual(t, calls[1].Sub(calls[0]), 5*time.Millisecond)
		for i := range len(calls) - 1 {
			require.LessOrEqual(t, calls[i+1].Sub(calls[i]), 250*time.Millisecond)
		}
		require.Greater(t, calls[len(calls)-2].Sub(calls[len(calls)-3]), 100*time.Millisecond, "the pauses grow")

		calls = nil
		_, err = sqlstore.Existing(t.Context(), missing(&calls), sqlstore.WithVisibleWithin(0))
		require.ErrorIs(t, err, sqlstore.ErrNotVisible)
		require.Len(t, calls, 1)

		calls = nil
		row, err := sqlstore.Existing(t.Context(), func(ctx context.Context) (int, sqlstore.State, error) {
			if len(calls) < 3 {
				return missing(&calls)(ctx)
			}
			return 7, sqlstore.StateFinished, nil
		})
		require.NoError(t, err)
		require.Equal(t, 7, row)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began, calls = time.Now(), nil
		_, err = sqlstore.Existing(ctx, missing(&calls), sqlstore.WithVisibleWithin(time.Hour))
		require.Equal(t, context.DeadlineExceeded, err)
		require.Equal(t, time.Second, time.Since(began))
		calls = nil
		_, err = sqlstore.Existing(ctx, missing(&calls))
		require.Equal(t, context.DeadlineExceeded, err)
		require.Empty(t, calls)
	})
}

// loadOrder reads an order as a user's function would.
func loadOrder(q interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
}, kind sqltest.Kind, principal, key string,
) func(context.Context) (string, sqlstore.State, error) {
	text := "SELECT id, state FROM orders WHERE principal = ? AND idempotency_key = ?"
	if kind == sqltest.Postgres {
		text = "SELECT id, state FROM orders WHERE principal = $1 AND idempotency_key = $2"
	}
	return func(ctx context.Context) (id string, s sqlstore.State, err error) {
		var state string
		err = q.QueryRowContext(ctx, text, principal, key).Scan(&id, &state)
		return id, map[string]sqlstore.State{
			"open": sqlstore.StateRunning, "placed": sqlstore.StateFinished, "cancelled": sqlstore.StateDeleted,
		}[state], err
	}
}

// Of many that insert the same order at once one wins, and all the others have
// its row, at each isolation level.
func TestExisting_AtOnce(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		db := d.Open(t)
		_, err := db.Exec(ordersTables[d.Kind])
		require.NoError(t, err)
		levels := []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}
		if d.Kind == sqltest.SQLite {
			levels = []sql.IsolationLevel{sql.LevelDefault}
		}
		for _, level := range levels {
			key := level.String()
			place := func(id string) (string, error) {
				ctx := t.Context()
				for {
					tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
					if err != nil {
						return "", err
					}
					err = insertOrder(ctx, tx, d.Kind, id, "ada", key, nil, "placed")
					if err == nil {
						if err = tx.Commit(); err == nil {
							return id, nil
						}
					} else {
						_ = tx.Rollback()
					}
					switch {
					case sqlstore.IsDuplicate(err, once...):
						return sqlstore.Existing(ctx, loadOrder(db, d.Kind, "ada", key))
					case dialects[d.Kind].Retries(err): // serializable, deadlocks
					default:
						return "", err
					}
				}
			}
			var all sync.WaitGroup
			got := make([]string, 16)
			for i := range got {
				all.Go(func() {
					var err error
					if got[i], err = place(fmt.Sprint(key, i)); err != nil {
						t.Error(level, err)
					}
				})
			}
			all.Wait()
			var rows int
			require.NoError(t, db.QueryRow("SELECT COUNT(*) FROM orders WHERE idempotency_key = '"+key+"'").Scan(&rows))
			require.Equal(t, 1, rows, level)
			for _, id := range got {
				require.Equal(t, got[0], id, level)
			}
		}
	})
}

// What a row's state column says reaches the caller, from a real table; and the
// transaction that was refused is no place to read it.
func TestExisting_OnTable(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		db := d.Open(t)
		ctx := t.Context()
		_, err := db.Exec(ordersTables[d.Kind])
		require.NoError(t, err)
		for state, want := range map[string]error{"open": sqlstore.ErrRunning, "placed": nil, "cancelled": sqlstore.ErrDeleted} {
			require.NoError(t, insertOrder(ctx, db, d.Kind, state, "ada", state, nil, state))
			id, err := sqlstore.Existing(ctx, loadOrder(db, d.Kind, "ada", state))
			require.ErrorIs(t, err, want)
			require.Equal(t, state, id)
			_, err = sqlstore.Existing(ctx, loadOrder(db, d.Kind, "bob", state), sqlstore.WithVisibleWithin(0))
			require.ErrorIs(t, err, sqlstore.ErrNotVisible, "another principal's row is nobody's business")
		}
		if d.Kind == sqltest.SQLite {
			return // one writer at a time: nobody wins beside an open transaction
		}
		tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		inTx := loadOrder(tx, d.Kind, "ada", "late")
		_, _, err = inTx(ctx)
		require.ErrorIs(t, err, sql.ErrNoRows) // the snapshot is taken
		require.NoError(t, insertOrder(ctx, db, d.Kind, "winner", "ada", "late", nil, "placed"))
		err = insertOrder(ctx, tx, d.Kind, "loser", "ada", "late", nil, "placed")
		require.True(t, sqlstore.IsDuplicate(err, once...), "%v", err)
		_, err = sqlstore.Existing(ctx, inTx, sqlstore.WithVisibleWithin(50*time.Millisecond))
		require.Error(t, err, "the refused transaction does not see the winner")
		if d.Kind == sqltest.MySQL {
			require.ErrorIs(t, err, sqlstore.ErrNotVisible)
		}
		require.NoError(t, tx.Rollback())
		id, err := sqlstore.Existing(ctx, loadOrder(db, d.Kind, "ada", "late"))
		require.NoError(t, err)
		require.Equal(t, "winner", id)
	})
}
