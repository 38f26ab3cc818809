package history

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/idempotent-go/idempotent/internal/redistest"
)

// hurry ends a call: a reply that is held back for longer is lost.
const hurry = 250 * time.Millisecond

// troubled is a relay that something is wrong with, now and then.
type troubled struct {
	*redistest.Relay
	faults atomic.Int64 // begun and ended: odd while there is one
	kinds  [3]int
}

// trouble spoils the relay at random until ctx ends.
func (r *troubled) trouble(ctx context.Context, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	for ctx.Err() == nil {
		rest(ctx, within(rnd, 60*time.Millisecond))
		r.faults.Add(1)
		kind := rnd.IntN(len(r.kinds))
		r.kinds[kind]++
		switch kind {
		case 0: // a delay, now and then too long
			r.Stall()
			rest(ctx, within(rnd, 30*time.Millisecond))
			if rnd.IntN(8) == 0 {
				rest(ctx, hurry)
			}
			r.Resume()
		case 1:
			r.Cut()
			rest(ctx, within(rnd, 5*time.Millisecond))
			r.Mend()
		case 2:
			r.SwallowReply(func([]byte) bool { return true })
			for !r.Swallowed() && ctx.Err() == nil {
				rest(ctx, time.Millisecond)
			}
		}
		r.faults.Add(1)
	}
}

// Trouble delays and cuts what passes through the relay and swallows replies, at
// random, until ctx ends. A delay is now and then too long for a call that ends
// after a quarter of a second.
func Trouble(ctx context.Context, relay *redistest.Relay) {
	r := &troubled{Relay: relay}
	r.trouble(ctx, rand.Uint64())
}

// within returns a random duration below d.
func within(r *rand.Rand, d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }
