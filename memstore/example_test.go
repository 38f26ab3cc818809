package memstore_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
)

func Example() {
	store := memstore.New(memstore.WithMaxEntries(50_000))
	defer store.Close()
	ctx := context.Background()

	claim := idempotent.Claim{Owner: "first", Lease: 30 * time.Second, Keep: 24 * time.Hour}
	_, claimed, _ := store.Claim(ctx, "order-1", claim)
	fmt.Println("first:", claimed)

	_ = store.Complete(ctx, "order-1", "first", idempotent.Outcome{
		Status: idempotent.Success, Result: "shipped", Retention: 24 * time.Hour,
	})

	claim.Owner = "second"
	entry, claimed, _ := store.Claim(ctx, "order-1", claim)
	fmt.Println("second:", claimed, entry.Status, entry.Result)
	// Output:
	// first: true
	// second: false success shipped
}

func ExampleWithSnapshot() {
	dir, err := os.MkdirTemp("", "snapshot")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)

	for range 2 { // the program, and the program after a deploy
		store, err := memstore.Open(memstore.WithSnapshot(filepath.Join(dir, "keys")))
		if err != nil {
			panic(err)
		}
		guard := idempotent.New(store)
		receipt, err := idempotent.Do(context.Background(), guard, "order-1", func(context.Context) (string, error) {
			fmt.Println("charging the card")
			return "receipt 17", nil
		})
		fmt.Println(receipt, err, store.Close())
	}
	// Output:
	// charging the card
	// receipt 17 <nil> <nil>
	// receipt 17 <nil> <nil>
}

func ExampleStore_Wait() {
	store := memstore.New()
	defer store.Close()
	ctx := context.Background()

	claim := idempotent.Claim{Owner: "first", Lease: 30 * time.Second, Keep: 24 * time.Hour}
	_, _, _ = store.Claim(ctx, "order-1", claim)
	go func() {
		_ = store.Complete(ctx, "order-1", "first", idempotent.Outcome{
			Status: idempotent.Success, Result: "shipped", Retention: 24 * time.Hour,
		})
	}()

	entry, _, _ := store.Wait(ctx, "order-1")
	fmt.Println(entry.Status, entry.Result)
	// Output: success shipped
}

func ExampleStore_Stats() {
	store := memstore.New(memstore.WithSweepInterval(0))
	defer store.Close()

	claim := idempotent.Claim{Owner: "first", Lease: 30 * time.Second, Keep: 24 * time.Hour}
	_, _, _ = store.Claim(context.Background(), "order-1", claim)
	stats := store.Stats()
	fmt.Println(stats.Entries, stats.Pending, stats.Bytes)
	// Output: 1 1 12
}
