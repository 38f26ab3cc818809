package storeurl_test

import (
	"context"
	"fmt"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/storeurl"
)

func Example() {
	ctx := context.Background()
	store, end, err := storeurl.Open(ctx, "memory:?max_entries=1000")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = end() }()
	guard := idempotent.New(store)
	for range 2 {
		_ = guard.Do(ctx, "greet", func(context.Context) error {
			fmt.Println("hello")
			return nil
		})
	}
	_, _, err = storeurl.Open(ctx, "memory:?max_entry=1000")
	fmt.Println(err)
	// Output:
	// hello
	// storeurl: idempotent: invalid argument: the parameter max_entry is not known; memory has max_age, max_bytes, max_entries, min_age, snapshot, sweep_interval
}
