// Package backendtest is what the tests of the stores with a server behind them
// have in common. Only tests import it.
package backendtest

import (
	"context"
	"flag"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/idempotent-go/idempotent"
)

// Parallel has n tests run at a time, unless the command line says how many:
// those of a backend wait for servers and lapses, not for a processor. TestMain
// calls it before it runs the tests.
func Parallel(n int) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = f.Value.Set(strconv.Itoa(n))
	}
}

// Claim is a claim with the usual times.
func Claim(owner string) idempotent.Claim {
	return idempotent.Claim{Owner: owner, Fingerprint: "f", Trace: "t", Lease: time.Minute, Keep: time.Hour}
}

// Success is an outcome with the usual times.
func Success(result string) idempotent.Outcome {
	return idempotent.Outcome{Status: idempotent.Success, Result: result, Fingerprint: "f", Retention: time.Hour}
}

// Claimed claims key for owner and fails the test where it is refused.
func Claimed(t testing.TB, s idempotent.Store, key, owner string) idempotent.Entry {
	t.Helper()
	e, ok, err := s.Claim(t.Context(), key, Claim(owner))
	if err != nil || !ok {
		t.Fatalf("Claim of %q for %s = %v, %v", key, owner, ok, err)
	}
	return e
}

// Within returns a context that ends after d, or with the test.
func Within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
