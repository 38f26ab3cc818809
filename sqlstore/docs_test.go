package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/sqlstore"
	"github.com/idempotent-go/idempotent/sqlstore/internal/sqltest"
)

// sqlBlocks returns the statements of docs/sql.md, block by block.
func sqlBlocks(t *testing.T) (blocks [][]string) {
	t.Helper()
	text, err := os.ReadFile("../docs/sql.md")
	require.NoError(t, err)
	comment := regexp.MustCompile(`(?m)^\s*--.*$`)
	for _, m := range regexp.MustCompile("(?ms)^```sql\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		var block []string
		for statement := range strings.SplitSeq(comment.ReplaceAllString(m[1], ""), ";") {
			if statement = strings.TrimSpace(statement); statement != "" {
				block = append(block, statement)
			}
		}
		blocks = append(blocks, block)
	}
	require.Len(t, blocks, 9, "the test below knows each block of docs/sql.md by its place")
	return blocks
}

// Every statement of docs/sql.md does what the document says, on a table that is
// written to all the while.
func TestDocument(t *testing.T) {
	t.Parallel()
	blocks := sqlBlocks(t)
	twice, view := blocks[4], blocks[5]
	add := map[sqltest.Kind][]string{sqltest.Postgres: blocks[0], sqltest.MySQL: blocks[2], sqltest.SQLite: blocks[3]}
	open := map[sqltest.Kind][]string{sqltest.Postgres: blocks[6], sqltest.SQLite: blocks[7], sqltest.MySQL: blocks[8]}
	onEach(t, func(t *testing.T, d sqltest.Database) {
		db := d.Open(t)
		ctx := t.Context()
		_, err := db.Exec("CREATE TABLE orders (id VARCHAR(64) PRIMARY KEY)")
		require.NoError(t, err)
		conn, err := db.Conn(ctx) // SET is a connection's
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		execute := func(statements []string) {
			for _, s := range statements {
				_, err := conn.ExecContext(ctx, s)
				require.NoError(t, err, s)
			}
		}

		writing, stop := context.WithCancel(ctx)
		var writers sync.WaitGroup
		for w := range 2 {
			writers.Go(func() {
				for i := 0; writing.Err() == nil && i < 2000; i++ {
					_, err := db.ExecContext(writing, fmt.Sprintf("INSERT INTO orders (id) VALUES ('old %d %d')", w, i))
					// The last statement for PostgreSQL refuses them, and says so.
					if err != nil && writing.Err() == nil && !strings.Contains(err.Error(), "orders_has_key") {
						t.Error(err)
					}
				}
			})
		}
		execute(add[d.Kind])
		stop()
		writers.Wait()

		insert := func(id, principal, key string) error {
			_, err := db.Exec(fmt.Sprintf("INSERT INTO orders (id, principal, idempotency_key) VALUES ('%s', '%s', '%s')", id, principal, key))
			return err
		}
		require.NoError(t, insert("1", "ada", "k"))
		require.NoError(t, insert("2", "ada", "K"), "bytes are compared")
		require.NoError(t, insert("3", "bob", "k"))
		require.True(t, sqlstore.IsDuplicate(insert("4", "ada", "k"), once...))
		_, err = db.Exec("INSERT INTO orders (id) VALUES ('without')")
		require.Equal(t, d.Kind == sqltest.Postgres, err != nil, "only PostgreSQL's statements demand a key")
		if d.Kind == sqltest.Postgres {
			execute(blocks[1])
			require.True(t, sqlstore.IsDuplicate(insert("4", "ada", "k"), once...))
		}

		count := func(query string) (n int) {
			rows, err := conn.QueryContext(ctx, query)
			require.NoError(t, err, query)
			defer func() { _ = rows.Close() }()
			for rows.Next() {
				n++
			}
			require.NoError(t, rows.Err())
			return n
		}
		require.Zero(t, count(twice[0]))
		_, err = conn.ExecContext(ctx, map[bool]string{true: "DROP INDEX orders_once ON orders", false: "DROP INDEX orders_once"}[d.Kind == sqltest.MySQL])
		require.NoError(t, err)
		require.NoError(t, insert("5", "ada", "k"))
		require.Equal(t, 1, count(twice[0]))

		s := newStore(t, db, d.Kind)
		require.NoError(t, s.Complete(ctx, "k", "a", unknownOutcome()))
		claimed(t, s, "running", "a")
		require.Equal(t, 1, count(view[0]))
		if d.Kind == sqltest.Postgres { // as in a session of its own: it waits for every transaction there is
			execute([]string{"SET lock_timeout = 0"})
		}
		execute(open[d.Kind])
		require.Equal(t, 1, count(view[0]))
		require.Len(t, unknowns(t, s), 1)
		if d.Kind == sqltest.Postgres {
			execute([]string{"SET enable_seqscan = off"})
			rows, err := conn.QueryContext(ctx, "EXPLAIN SELECT key_text FROM idempotent_entries_unknown WHERE name > '' ORDER BY name LIMIT 100")
			require.NoError(t, err)
			defer func() { _ = rows.Close() }()
			plan := ""
			for rows.Next() {
				var line string
				require.NoError(t, rows.Scan(&line))
				plan += line + "\n"
			}
			require.NoError(t, rows.Err())
			require.Contains(t, plan, "idempotent_entries_open", "the view can use the index")
		}
	})
}

// An index that could not be built is told from one that is there, and the
// second block for PostgreSQL mends it.
func TestDocument_InvalidIndex(t *testing.T) {
	t.Parallel()
	blocks := sqlBlocks(t)
	db := sqltest.New(t, sqltest.Postgres).Open(t)
	_, err := db.Exec("CREATE TABLE orders (id TEXT PRIMARY KEY, principal TEXT, idempotency_key TEXT)")
	require.NoError(t, err)
	_, err = db.Exec("INSERT INTO orders VALUES ('1', 'ada', 'k'), ('2', 'ada', 'k')")
	require.NoError(t, err)
	build := blocks[1][1]
	_, err = db.Exec(build)
	require.True(t, sqlstore.IsDuplicate(err, "orders_once"), "%v", err)
	valid := func() (valid bool) {
		require.NoError(t, db.QueryRow("SELECT indisvalid FROM pg_index WHERE indexrelid = 'orders_once'::regclass").Scan(&valid))
		return valid
	}
	require.False(t, valid())
	_, err = db.Exec("DELETE FROM orders WHERE id = '2'")
	require.NoError(t, err)
	for _, statement := range blocks[1] {
		_, err = db.Exec(statement)
		require.NoError(t, err)
	}
	require.True(t, valid())
}

// What README.md and docs/sql.md show of Go, which the examples of this package
// run in other words.
type (
	Order   struct{}
	Receipt struct{}

	provider struct{ ErrNotFound error }
	payment  struct{ Receipt Receipt }
)

func (provider) Find(context.Context, string) (payment, error) { return payment{}, nil }

var _ = func(ctx context.Context, db *sql.DB, key string, order Order, placeOrder func(context.Context, *sql.Tx, Order) (Receipt, error)) (Receipt, error) {
	guard := sqlstore.NewTxGuard(sqlstore.New(db, sqlstore.PostgreSQL))
	receipt, err := sqlstore.InTx(ctx, guard, key, func(ctx context.Context, tx *sql.Tx) (Receipt, error) {
		return placeOrder(ctx, tx, order)
	})
	return receipt, err
}

var _ = func(ctx context.Context, db *sql.DB, principal, key string, order Order,
	insert func(context.Context, *sql.DB, Order) error, load func(context.Context, *sql.DB, string, string) (Order, sqlstore.State, error),
) (Order, error) {
	err := insert(ctx, db, order) // in a transaction that is rolled back on an error
	if sqlstore.IsDuplicate(err, "orders_once") {
		return sqlstore.Existing(ctx, func(ctx context.Context) (Order, sqlstore.State, error) {
			return load(ctx, db, principal, key) // not in that transaction
		})
	}
	return order, err
}

var _ = func(ctx context.Context, store *sqlstore.Store, guard *idempotent.Guard, provider provider) {
	go sqlstore.Reconcile(ctx, store, guard, func(ctx context.Context, u sqlstore.Unknown) (idempotent.Class, string, error) {
		payment, err := provider.Find(ctx, u.Key) // the key was sent with the payment
		switch {
		case errors.Is(err, provider.ErrNotFound):
			return idempotent.ClassRelease, "", nil // never made: the next attempt may pay
		case err != nil:
			return idempotent.ClassDefault, "", err // asked again later
		}
		result, err := idempotent.EncodeValue(payment.Receipt) // as Do would have recorded it
		return idempotent.ClassSuccess, result, err
	})
}
