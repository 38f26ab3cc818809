package redisstore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/redisstore"
)

// A guard on Redis; it needs a server at that address.
func ExampleNew() {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379"})
	guard := idempotent.New(redisstore.New(client))

	err := guard.Do(context.Background(), "order-17", func(context.Context) error { return nil })
	fmt.Println(err)
}

// From one Redis to another, while programs that know the old one still run.
func Example_moving() {
	oldClient := redis.NewClient(&redis.Options{Addr: "old.example:6379"})
	newClient := redis.NewClient(&redis.Options{Addr: "new.example:6379"})
	store := idempotent.Moving(redisstore.New(oldClient), redisstore.New(newClient))

	err := idempotent.New(store).Do(context.Background(), "order-17", func(context.Context) error { return nil })
	fmt.Println(err)
}

func Example() {
	server, err := miniredis.Run() // in place of a real one
	if err != nil {
		panic(err)
	}
	defer server.Close()

	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { _ = client.Close() }()
	store := redisstore.New(client, redisstore.WithPrefix("shop:"))
	defer func() { _ = store.Close() }()

	ctx := context.Background()
	_, claimed, err := store.Claim(ctx, "order-17", idempotent.Claim{
		Owner: "one per execution", Lease: 30 * time.Second, Keep: 24 * time.Hour,
	})
	fmt.Println(claimed, err)
	err = store.Complete(ctx, "order-17", "one per execution", idempotent.Outcome{
		Status: idempotent.Success, Result: "paid", Retention: 24 * time.Hour,
	})
	fmt.Println(err)
	e, found, err := store.Load(ctx, "order-17")
	fmt.Println(e.Status, e.Result, found, err)
	// Output:
	// true <nil>
	// <nil>
	// success paid true <nil>
}
