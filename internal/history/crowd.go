package history

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/idempotent-go/idempotent"
)

// crowd is how many clients share how many keys, and how many calls each makes.
type crowd struct {
	keys, clients, calls int
	short                time.Duration
}

// play has all clients call at once and returns when they have ended. Each
// client of a key has the handle of its number.
func (c crowd) play(ctx context.Context, r *recorder, seed uint64, handles []handle) {
	var all sync.WaitGroup
	for k := range c.keys {
		for i := range c.clients {
			cl := &client{
				handle: handles[i], recorder: r, clients: c.clients, short: c.short,
				rand: rand.New(rand.NewPCG(seed, uint64(k*c.clients+i))),
			}
			all.Go(func() { cl.play(ctx, fmt.Sprintf("key-%d-%d", seed, k), c.calls) })
		}
	}
	all.Wait()
}

// Check has clients call the stores, handles on the same data with a client for
// each, and fails the test where their answers have no order in which the model
// gives them. tolerance is between the clock of the stores and that of this
// process; a decision may be seen later than at its moment. Each round has eight
// new keys. Backends in modules of their own, which this package cannot import,
// are checked by it.
func Check(t *testing.T, rounds int, tolerance time.Duration, stores ...idempotent.Store) {
	t.Helper()
	r := newRecorder(tolerance, licence{fences: 1, lags: true})
	var handles []handle
	for i, s := range stores {
		handles = append(handles, handle{Store: s, client: i})
	}
	c := crowd{keys: 8, clients: len(stores), calls: 12, short: 40 * time.Millisecond}
	for range rounds {
		c.play(t.Context(), r, rand.Uint64(), handles)
	}
	r.check(t)
	t.Logf("%d calls in %d histories, %d without an answer", r.calls, len(r.history), r.open)
}
