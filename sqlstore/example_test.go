package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
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
	if err := store.Migrate(ctx, db); err != nil {
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

// openExample returns a database in a directory of its own, and what removes it.
func openExample() (db *sql.DB, remove func()) {
	dir, err := os.MkdirTemp("", "shop")
	if err != nil {
		panic(err)
	}
	db, err = sql.Open("sqlite", "file:"+filepath.Join(dir, "shop.db")+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)")
	if err != nil {
		panic(err)
	}
	return db, func() {
		_ = db.Close()
		_ = os.RemoveAll(dir)
	}
}

// The unique index stops the second order, and the first one is the answer.
func ExampleIsDuplicate() {
	db, remove := openExample()
	defer remove()
	ctx := context.Background()
	_, err := db.ExecContext(ctx, `CREATE TABLE orders (
  id TEXT PRIMARY KEY, principal TEXT NOT NULL, idempotency_key TEXT NOT NULL, deleted_at TEXT,
  UNIQUE (principal, idempotency_key))`)
	if err != nil {
		panic(err)
	}
	place := func(id, principal, key string) (string, error) {
		_, err := db.ExecContext(ctx, "INSERT INTO orders (id, principal, idempotency_key) VALUES (?, ?, ?)", id, principal, key)
		// PostgreSQL and MySQL name the index, SQLite its columns.
		if !sqlstore.IsDuplicate(err, "orders_once", "orders.principal, orders.idempotency_key") {
			return id, err
		}
		return sqlstore.Existing(ctx, func(ctx context.Context) (id string, _ sqlstore.State, err error) {
			var deleted sql.NullString
			err = db.QueryRowContext(ctx, "SELECT id, deleted_at FROM orders WHERE principal = ? AND idempotency_key = ?", principal, key).Scan(&id, &deleted)
			if deleted.Valid {
				return id, sqlstore.StateDeleted, err
			}
			return id, sqlstore.StateFinished, err
		})
	}
	fmt.Println(place("order 1", "ada", "key"))
	fmt.Println(place("order 2", "ada", "key"))
	fmt.Println(place("order 3", "bob", "key"))
	_, err = place("order 1", "eve", "key") // the primary key is another matter
	fmt.Println(sqlstore.DuplicateIndex(err))
	// Output:
	// order 1 <nil>
	// order 1 <nil>
	// order 3 <nil>
	// orders.id true
}

// A payment whose outcome nobody knew is found at the provider.
func ExampleReconcile() {
	db, remove := openExample()
	defer remove()
	store := sqlstore.New(db, sqlstore.SQLite)
	defer func() { _ = store.Close() }()
	ctx, cancel := context.WithCancel(context.Background())
	if err := store.Migrate(ctx, db); err != nil {
		panic(err)
	}
	guard := idempotent.New(store)
	pay := func() (string, error) {
		return idempotent.Do(ctx, guard, "order-17", func(context.Context) (string, error) {
			return "", errors.New("the provider did not answer in time")
		})
	}
	fmt.Println(pay())
	_, err := pay()
	fmt.Println(err)
	for u, err := range store.Unknowns(ctx) {
		fmt.Println(u.Key, u.Abandoned, err)
	}

	settled := make(chan struct{})
	go func() {
		defer close(settled)
		_ = sqlstore.Reconcile(ctx, store, guard, func(_ context.Context, u sqlstore.Unknown) (idempotent.Class, string, error) {
			receipt, err := idempotent.EncodeValue("receipt for " + u.Key) // as the provider says
			return idempotent.ClassSuccess, receipt, err
		})
	}()
	patience := time.After(time.Minute)
	for poll := time.NewTicker(time.Millisecond); errors.Is(err, idempotent.ErrOutcomeUnknown); _, err = pay() {
		select {
		case <-poll.C:
		case <-patience:
			panic("nobody settles it")
		}
	}
	cancel()
	<-settled
	ctx = context.Background()
	fmt.Println(pay())
	// Output:
	//  the provider did not answer in time
	// idempotent: outcome unknown
	// order-17 false <nil>
	// receipt for order-17 <nil>
}
