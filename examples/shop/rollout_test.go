package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/internal/redistest"
)

// Of a shop that moves.
const (
	moveRetention = 3 * time.Second
	moveLease     = time.Second
	moveInstances = 3
	moveClients   = 6
	moveRepeats   = 10 // of each kind, at least
)

// rollOut is a shop of several instances behind a load balancer. Its versions
// differ in their store and are rolled out instance by instance, while clients
// place orders and repeat them at any instance. Its ledger says what happened.
type rollOut struct {
	*testing.T
	binary   string
	old, new *redistest.Server
	stores   map[string]string // by version
	slots    [moveInstances]slot
	stop     atomic.Bool
	clients  sync.WaitGroup

	mu      sync.Mutex // guards all below
	sent    []*sentOrder
	young   int                 // the first of sent that may be repeated
	ledger  map[string][]string // IDs in the order books of all instances, by item
	replays map[string]int      // "AB": what A had answered first B has replayed
	answers int
}

// slot is a place for an instance. Who sends holds it for reading, so that an
// instance has answered everything when it is taken out.
type slot struct {
	sync.RWMutex
	version  string
	instance *process
}

// sentOrder is one order and what clients know of it. Its item is its key.
type sentOrder struct {
	key      string
	born     time.Time       // before it was sent for the first time
	first    string          // the version that answered without a replay
	receipts map[string]bool // orders, as clients were answered
	late     bool            // an answer came when the record may have been gone: it says nothing
}

func newRollOut(t *testing.T, binary string) *rollOut {
	r := &rollOut{
		T: t, binary: binary, old: redistest.Start(t), new: redistest.Start(t),
		ledger: map[string][]string{}, replays: map[string]int{},
	}
	old, new := "redis://"+r.old.Addr, "redis://"+r.new.Addr
	r.stores = map[string]string{"A": old, "B": "moving:" + old + " " + new, "C": new}
	for i := range r.slots {
		r.exchange(i, "A")
	}
	for range moveClients {
		r.clients.Go(func() {
			for !r.stop.Load() {
				r.order(r.pick())
			}
		})
	}
	t.Cleanup(r.clients.Wait)
	t.Cleanup(func() { r.stop.Store(true) })
	return r
}

// exchange puts an instance of a version into a slot, and ends the one that is
// there.
func (r *rollOut) exchange(i int, version string) {
	r.Helper()
	p := start(r.T, r.binary, "-unsafe-redis", "-store", r.stores[version], "-lease", moveLease.String(), "-retention", moveRetention.String())
	s := &r.slots[i]
	s.Lock()
	old := s.instance
	s.instance, s.version = p, version
	s.Unlock()
	if old != nil {
		r.end(old)
	}
}

// end ends an instance that nobody asks any more, and keeps its order book.
func (r *rollOut) end(p *process) {
	r.Helper()
	var book []order
	a := p.send(r.Context(), request{method: http.MethodGet, path: "/orders", token: ada})
	require.NoError(r, json.Unmarshal([]byte(a.body), &book), a.String())
	r.mu.Lock()
	for _, o := range book {
		r.ledger[o.Item] = append(r.ledger[o.Item], o.ID)
	}
	r.mu.Unlock()
	require.NoError(r, p.cmd.Process.Signal(syscall.SIGTERM))
	code, log := p.wait()
	require.Equal(r, 0, code, log)
}

// rollOutRest exchanges all instances but the first, under load.
func (r *rollOut) rollOutRest(version string) {
	r.Helper()
	for i := 1; i < moveInstances; i++ {
		r.exchange(i, version)
		r.more(50)
	}
}

// more waits for so many answers.
func (r *rollOut) more(n int) {
	r.Helper()
	r.mu.Lock()
	n += r.answers
	r.mu.Unlock()
	r.eventually("orders are answered", func() bool { return r.answers >= n })
}

// repeated waits for replays, each named by the version that answered first and
// the one that answered then.
func (r *rollOut) repeated(pairs ...string) {
	r.Helper()
	for _, pair := range pairs {
		r.eventually(pair+": replays of what the first one ran by the second one", func() bool { return r.replays[pair] >= moveRepeats })
	}
}

func (r *rollOut) eventually(what string, holds func() bool) {
	r.Helper()
	redistest.Eventually(r, what, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return holds() || r.Failed()
	})
}

// pass waits until d has passed on the old server's clock, under load.
func (r *rollOut) pass(d time.Duration) {
	r.Helper()
	now := func() time.Duration {
		text := r.old.Must(r, "EVAL", `local t = redis.call('TIME') return t[1] .. string.format('%06d', t[2])`, "0")
		n, err := strconv.ParseInt(text, 10, 64)
		require.NoError(r, err)
		return time.Duration(n) * time.Microsecond
	}
	end := now() + d
	redistest.Eventually(r, "it is later", func() bool { return now() >= end })
}

// pick returns a new order, or one that is young enough to be on record.
func (r *rollOut) pick() *sentOrder {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.young < len(r.sent) && time.Since(r.sent[r.young].born) > moveRetention/2 {
		r.young++
	}
	if n := len(r.sent) - r.young; n > 0 && rand.IntN(4) > 0 {
		return r.sent[r.young+rand.IntN(n)]
	}
	o := &sentOrder{key: fmt.Sprint("order-", len(r.sent)), born: time.Now(), receipts: map[string]bool{}}
	r.sent = append(r.sent, o)
	return o
}

// order sends o to one instance after the other until one answers with a
// receipt.
func (r *rollOut) order(o *sentOrder) {
	for done := false; !done && r.Context().Err() == nil; {
		s := &r.slots[rand.IntN(moveInstances)]
		s.RLock()
		a := s.instance.send(r.Context(), request{path: "/orders", token: ada, key: o.key, body: fmt.Sprintf(`{"item":%q,"quantity":1}`, o.key)})
		version := s.version
		s.RUnlock()
		done = r.note(o, version, a)
	}
}

// note keeps what a version has answered, and reports whether the client is
// done.
func (r *rollOut) note(o *sentOrder, version string, a answer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(o.born) >= moveRetention {
		o.late = true
		return true
	}
	switch a.status {
	case http.StatusCreated:
	case 0, http.StatusConflict, http.StatusServiceUnavailable: // no answer, running, a store is slow
		return false
	default:
		r.Errorf("%s: %v %s", o.key, a, a.body)
		return true
	}
	r.answers++
	o.receipts[a.body] = true
	switch {
	case !a.replayed:
		o.first = version
	case o.first != "":
		r.replays[o.first+version]++
	}
	return true
}

// finish ends clients and instances, and counts orders that were placed more
// than once, and those of which clients have several receipts.
func (r *rollOut) finish() (double, differing int) {
	r.Helper()
	r.stop.Store(true)
	r.clients.Wait()
	for i := range r.slots {
		r.end(r.slots[i].instance)
	}
	late := 0
	for _, o := range r.sent {
		if o.late {
			late++
			continue
		}
		require.NotEmpty(r, o.receipts, o.key)
		require.NotEmpty(r, r.ledger[o.key], o.key)
		double += min(1, len(r.ledger[o.key])-1)
		differing += min(1, len(o.receipts)-1)
		for receipt := range o.receipts {
			var placed order
			require.NoError(r, json.Unmarshal([]byte(receipt), &placed))
			require.Contains(r, r.ledger[o.key], placed.ID, "a receipt for nothing")
		}
	}
	r.Logf("%d orders, %d answers, replays %v, %d placed twice, %d with several receipts, %d late", len(r.sent), r.answers, r.replays, double, differing, late)
	require.Less(r, 2*late, len(r.sent), "the machine is too slow to tell")
	return double, differing
}

// A shop moves from one Redis to another while clients order: no order is placed
// twice, each has one receipt, and both versions that run side by side answer
// what the other one has placed.
func TestMove(t *testing.T) {
	t.Parallel()
	r := newRollOut(t, build(t))
	r.repeated("AA")
	r.exchange(0, "B")
	r.repeated("AB", "BA")
	r.rollOutRest("B")
	r.pass(moveRetention + moveLease)
	require.Equal(t, "0", r.old.Must(t, "EXISTS", "idempotent:POST:/orders:user-ada:order-0"), "what A has recorded is forgotten")
	r.repeated("BB")
	r.exchange(0, "C")
	r.repeated("BC", "CB")
	r.rollOutRest("C")
	r.repeated("CC")
	double, differing := r.finish()
	require.Zero(t, double, "orders placed twice")
	require.Zero(t, differing, "orders with several receipts")
}

// The same test finds orders that are placed twice where the move is cut short.
func TestMove_CutShort(t *testing.T) {
	t.Parallel()
	binary := build(t)
	for name, versions := range map[string][]string{
		"a plain switch":              {"C"},
		"the new one alone too early": {"B", "C"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRollOut(t, binary)
			r.repeated("AA")
			for _, version := range versions {
				r.exchange(0, version)
				r.rollOutRest(version)
			}
			r.repeated("CC")
			double, differing := r.finish()
			require.Positive(t, double)
			require.Positive(t, differing)
		})
	}
}
