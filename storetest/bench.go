package storetest

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idempotent-go/idempotent"
)

// The load of the benchmarks: as many finished keys as a memory store keeps by
// default, and a result of the size of an answer with its header.
const (
	benchKeys   = 10_000
	benchResult = 512
)

// Bench measures the store that open returns, which is called once for each of
// the benchmarks:
//
//   - fresh: a new key is claimed and completed;
//   - replay: a claim of one of 10,000 finished keys is answered with its
//     result of 512 bytes;
//   - conflict: all claims are for one key, which is running.
//
// Each runs in parallel. fresh adds keys for as long as it runs, each kept for
// a minute.
func Bench(b *testing.B, open func(b *testing.B) idempotent.Store) {
	request := hold(alice)
	outcome := succeeded(strings.Repeat("r", benchResult))

	b.Run("fresh", func(b *testing.B) {
		s := open(b)
		var n atomic.Int64
		parallel(b, func() error {
			key := strconv.FormatInt(n.Add(1), 36) // one allocation, which is ours
			cl := request
			cl.Owner = key
			_, claimed, err := s.Claim(b.Context(), key, cl)
			if err == nil && !claimed {
				err = fmt.Errorf("the key %s was not free", key)
			}
			if err != nil {
				return err
			}
			return s.Complete(b.Context(), key, key, outcome)
		})
	})

	b.Run("replay", func(b *testing.B) {
		s := open(b)
		keys := make([]string, benchKeys)
		o := outcome
		o.Retention = time.Hour // longer than any benchmark
		for i := range keys {
			keys[i] = fmt.Sprint("replay:", i)
			if err := s.Complete(b.Context(), keys[i], alice, o); err != nil {
				b.Fatal(err)
			}
		}
		var n atomic.Int64
		parallel(b, func() error {
			e, claimed, err := s.Claim(b.Context(), keys[n.Add(1)%benchKeys], request)
			if err == nil && (claimed || len(e.Result) != benchResult) {
				err = fmt.Errorf("a finished key was answered with %d bytes, claimed %v", len(e.Result), claimed)
			}
			return err
		})
	})

	b.Run("conflict", func(b *testing.B) {
		s := open(b)
		running := hold(bob)
		running.Lease = time.Hour
		if _, _, err := s.Claim(b.Context(), "conflict", running); err != nil {
			b.Fatal(err)
		}
		parallel(b, func() error {
			e, claimed, err := s.Claim(b.Context(), "conflict", request)
			if err == nil && (claimed || e.Owner != bob) {
				err = fmt.Errorf("a running key was answered with the claim of %q, claimed %v", e.Owner, claimed)
			}
			return err
		})
	})
}

// parallel runs op from all processors, and fails the benchmark at an error.
func parallel(b *testing.B, op func() error) {
	b.Helper()
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := op(); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
