package sealed_test

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/sealed"
)

func ExampleNew() {
	secret := make([]byte, sealed.MinSecretBytes) // in a program: from where it keeps its secrets
	_, _ = rand.Read(secret)
	keys, err := sealed.NewKeys(sealed.Key{ID: "2026-11", Secret: secret})
	if err != nil {
		fmt.Println(err)
		return
	}
	inner := memstore.New()
	defer func() { _ = inner.Close() }()
	guard := idempotent.New(sealed.New(inner, keys))

	pay := func(context.Context) (string, error) { return "card 4242 charged", nil }
	for range 2 {
		text, err := idempotent.Do(context.Background(), guard, "order 17", pay)
		fmt.Println(text, err)
	}
	e, _, _ := inner.Load(context.Background(), "order 17")
	fmt.Printf("the store has %.3q…\n", e.Result)
	// Output:
	// card 4242 charged <nil>
	// card 4242 charged <nil>
	// the store has "\xffSL"…
}
