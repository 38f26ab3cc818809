package storetest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/storetest"
)

// newMyStore stands for the constructor of a backend of one's own.
var newMyStore = storetest.NewReference

// TestMyStore is all that a backend needs to prove that it keeps the contract.
func TestMyStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		return storetest.Harness{Store: newMyStore(), Wrap: synctest.Test}
	})
}

// BenchmarkMyStore compares a backend with the others.
func BenchmarkMyStore(b *testing.B) {
	storetest.Bench(b, func(*testing.B) idempotent.Store { return newMyStore() })
}

// The whole test of a backend that keeps its data on a server. Without Wrap
// the cases wait for the server's own clock.
func ExampleRun() {
	_ = func(t *testing.T) { // func TestStore(t *testing.T)
		storetest.Run(t, func(t *testing.T) storetest.Harness {
			return storetest.Harness{
				Store:  newMyStore(),
				Second: newMyStore, // a second connection to the same data
			}
		})
	}
}

// A reply that is lost leaves the caller without an answer and the store with
// a claim; the same call, sent again, is answered.
func ExampleFaulty() {
	ctx := context.Background()
	s := storetest.NewFaulty(newMyStore())
	claim := idempotent.Claim{Owner: "f3a9", Lease: 30 * time.Second, Keep: 24 * time.Hour}

	s.After(storetest.OpClaim, func(context.Context, string) error { return errors.New("connection reset") })
	_, claimed, err := s.Claim(ctx, "order-7", claim)
	fmt.Println(claimed, err)

	s.After(storetest.OpClaim, nil)
	_, claimed, err = s.Claim(ctx, "order-7", claim)
	fmt.Println(claimed, err, s.Calls(storetest.OpClaim))

	s.Down(errors.New("no route to host"))
	fmt.Println(s.Complete(ctx, "order-7", "f3a9", idempotent.Outcome{Status: idempotent.Success, Retention: time.Hour}))
	// Output:
	// false connection reset
	// true <nil> 2
	// no route to host
}
