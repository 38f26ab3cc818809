package memstore_test

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/storetest"
)

// C016, C121: the contract, wholly in fake time, with and without a background.
func TestC016_C121_Contract(t *testing.T) {
	for name, interval := range map[string]time.Duration{"background": time.Minute, "no background": 0} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, func(t *testing.T) storetest.Harness {
				s := memstore.New(
					memstore.WithSweepInterval(interval),
					memstore.WithLogger(slog.New(slog.DiscardHandler)),
				)
				t.Cleanup(func() { _ = s.Close() })
				return storetest.Harness{
					Store:   s,
					Second:  func() idempotent.Store { return s },
					Wrap:    synctest.Test,
					Advance: time.Sleep,
				}
			})
		})
	}
}
