package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/sqlstore"
)

func ExampleNew() {
	dir, err := os.MkdirTemp("", "shop")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()

	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "shop.db")+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)")
	if err != nil {
		panic(err)
	}
	defer func() { _ = db.Close() }()

	store := sqlstore.New(db, sqlstore.SQLite)
	defer func() { _ = store.Close() }()
	ctx := context.Background()
	if err := store.Migrate(ctx); err != nil {
		panic(err)
	}
	janitor := idempotent.NewJanitor(store, time.Minute) // a database does not forget by itself
	defer func() { _ = janitor.Close() }()

	guard := idempotent.New(store)
	for range 2 {
		receipt, err := idempotent.Do(ctx, guard, "order-17", func(context.Context) (string, error) {
			fmt.Println("charging the card")
			return "receipt 1", nil
		})
		fmt.Println(receipt, err)
	}
	// Output:
	// charging the card
	// receipt 1 <nil>
	// receipt 1 <nil>
}
