package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"

	"github.com/idempotent-go/idempotent/sqlstore"
)

func ExampleInTx() {
	dir, err := os.MkdirTemp("", "shop")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "shop.db")+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_txlock=immediate")
	if err != nil {
		panic(err)
	}
	defer func() { _ = db.Close() }()
	ctx := context.Background()
	store := sqlstore.New(db, sqlstore.SQLite)
	defer func() { _ = store.Close() }()
	if err := store.Migrate(ctx, db); err != nil {
		panic(err)
	}
	if _, err := db.Exec("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL)"); err != nil {
		panic(err)
	}

	guard := sqlstore.NewTxGuard(store)
	for range 2 {
		order, err := sqlstore.InTx(ctx, guard, "order-17", func(ctx context.Context, tx *sql.Tx) (int64, error) {
			res, err := tx.ExecContext(ctx, "INSERT INTO orders (item) VALUES ('a book')")
			if err != nil {
				return 0, err
			}
			return res.LastInsertId()
		})
		fmt.Println("order", order, err)
	}
	var orders int
	if err := db.QueryRow("SELECT COUNT(*) FROM orders").Scan(&orders); err != nil {
		panic(err)
	}
	fmt.Println("orders:", orders)
	// Output:
	// order 1 <nil>
	// order 1 <nil>
	// orders: 1
}
