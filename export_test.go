package idempotent

import "net/http"

// Unanswered returns how many claims wait to be freed, and whether the
// goroutine that frees them is there.
func (g *Guard) Unanswered() (left int, running bool) {
	g.unclaims.mu.Lock()
	defer g.unclaims.mu.Unlock()
	return int(g.unclaims.left.Load()) + len(g.unclaims.queue), g.unclaims.running
}

// Running returns what a Drain would wait for.
func (g *Guard) Running() int { return g.drain.left() }

// Waiters returns how many requests wait in the middleware of h, and for how
// many keys it keeps a count.
func Waiters(h http.Handler) (all, keys int) {
	l := h.(*handler).waiters
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all, len(l.perKey)
}

// MaxWaitersPerKey bounds those of one key.
const MaxWaitersPerKey = maxWaitersPerKey

// Leases returns how many leases wait to be woken.
func (g *Guard) Leases() int {
	g.leases.mu.Lock()
	defer g.leases.mu.Unlock()
	return len(g.leases.queue)
}
