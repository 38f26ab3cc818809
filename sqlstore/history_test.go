package sqlstore_test

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/history"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/sqlstore"
	"github.com/idempotent-go/idempotent/sqlstore/internal/sqltest"
)

const (
	clients = 3
	// tolerance is by how much a clock read by a statement may be behind what is
	// seen of it: a busy server commits late.
	tolerance = 10 * time.Millisecond
)

// rounds returns n, or more in a long run.
func rounds(n int) int {
	if os.Getenv("IDEMPOTENT_LONG") == "1" {
		return 20 * n
	}
	return n
}

// hurried ends each call after a quarter of a second: a reply that is held back
// for longer is lost.
type hurried struct{ *sqlstore.Store }

func (h hurried) in(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, 250*time.Millisecond)
}

func (h hurried) Load(ctx context.Context, key string) (idempotent.Entry, bool, error) {
	ctx, cancel := h.in(ctx)
	defer cancel()
	return h.Store.Load(ctx, key)
}

func (h hurried) Claim(ctx context.Context, key string, c idempotent.Claim) (idempotent.Entry, bool, error) {
	ctx, cancel := h.in(ctx)
	defer cancel()
	return h.Store.Claim(ctx, key, c)
}

func (h hurried) Renew(ctx context.Context, key, owner string, lease time.Duration) error {
	ctx, cancel := h.in(ctx)
	defer cancel()
	return h.Store.Renew(ctx, key, owner, lease)
}

func (h hurried) Complete(ctx context.Context, key, owner string, o idempotent.Outcome) error {
	ctx, cancel := h.in(ctx)
	defer cancel()
	return h.Store.Complete(ctx, key, owner, o)
}

func (h hurried) Release(ctx context.Context, key, owner string) error {
	ctx, cancel := h.in(ctx)
	defer cancel()
	return h.Store.Release(ctx, key, owner)
}

func (h hurried) Delete(ctx context.Context, key string) error {
	ctx, cancel := h.in(ctx)
	defer cancel()
	return h.Store.Delete(ctx, key)
}

// Concurrent clients of one table, each with connections of its own and with a
// sweep under way all the time. It does not run beside other tests: on a starved
// processor a statement that waits for SQLite's lock is seen seconds after the
// clock that it has read.
func TestHistory(t *testing.T) {
	onEach(t, func(t *testing.T, d sqltest.Database) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var stores []idempotent.Store
		for range clients {
			stores = append(stores, newStore(t, d.Open(t), d.Kind))
		}
		var sweeping sync.WaitGroup
		sweeping.Go(func() {
			for ctx.Err() == nil {
				if _, err := idempotent.Sweep(ctx, stores[0]); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
				select {
				case <-ctx.Done():
				case <-time.After(20 * time.Millisecond): // or nobody else gets at SQLite
				}
			}
		})
		history.Check(t, rounds(4), tolerance, stores...)
		cancel()
		sweeping.Wait()
	})
}

// A relay in front of each client delays, cuts and swallows replies.
func TestHistory_Relay(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, d sqltest.Database) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var stores []idempotent.Store
		var relays []*redistest.Relay
		var troubles sync.WaitGroup
		for range clients {
			relay := redistest.NewRelay(t, d.Addr)
			stores = append(stores, hurried{newStore(t, d.At(t, relay.Addr).Open(t), d.Kind)})
			relays = append(relays, relay)
		}
		for _, relay := range relays { // when all have their table
			troubles.Go(func() { history.Trouble(ctx, relay) })
		}
		history.Check(t, rounds(4), tolerance, stores...)
		cancel()
		troubles.Wait()
	})
}
