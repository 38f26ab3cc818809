package idempotent_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/storetest"
)

// Of a move, in fake time.
const (
	moveRetention = time.Minute
	moveLease     = 2 * time.Second
	movePhase     = 30 * time.Second // how long versions run alone or side by side
	moveCallers   = 12               // of each version
)

// rollOut is a program of which several versions serve the same callers, each
// for a while. Its ledger says what really happened.
type rollOut struct {
	*testing.T
	old, new idempotent.Store
	start    time.Time

	mu      sync.Mutex // guards all below
	rand    *rand.Rand
	born    []time.Time    // of each key
	running map[string]int // operations under a key that run now
	runs    map[string]int // operations under a key that happened
	overlap int            // operations that ran at the same time under one key
	results map[string]map[string]bool
	replays map[string]int // "AB": what A ran B replayed
	refused map[string]int // by version and error
	deaths  int
}

// version is one instance of a version. It dies with every connection at once.
type version struct {
	*rollOut
	name  string
	guard *idempotent.Guard
	dead  atomic.Bool
	ended atomic.Bool // all is well from now on
}

var errConnection = errors.New("connection lost")

func (r *rollOut) begin(name string) *version {
	v := &version{rollOut: r, name: name}
	s := map[string]func() idempotent.Store{
		"A": func() idempotent.Store { return v.connect(r.old) },
		"B": func() idempotent.Store { return idempotent.Moving(v.connect(r.old), v.connect(r.new)) },
		"C": func() idempotent.Store { return v.connect(r.new) },
	}[name]()
	v.guard = idempotent.New(s, idempotent.WithLease(moveLease), idempotent.WithLogger(slog.New(slog.DiscardHandler)),
		idempotent.WithSuccessRetention(moveRetention), idempotent.WithFailureRetention(moveRetention))
	return v
}

// connect returns s over a connection that is slow, and loses calls, replies
// and, at any step, the instance.
func (v *version) connect(s idempotent.Store) idempotent.Store {
	f := storetest.NewFaulty(s)
	trouble := func(context.Context, string) error {
		if v.ended.Load() {
			return nil
		}
		v.pause(50 * time.Millisecond)
		if v.chance(0.5) && v.dead.CompareAndSwap(false, true) {
			v.mu.Lock()
			v.deaths++
			v.mu.Unlock()
		}
		if v.dead.Load() || v.chance(1) {
			return errConnection
		}
		return nil
	}
	for _, op := range []storetest.Op{storetest.OpLoad, storetest.OpClaim, storetest.OpRenew, storetest.OpComplete, storetest.OpRelease} {
		f.Before(op, trouble)
		f.After(op, trouble)
	}
	return f
}

func (r *rollOut) chance(percent float64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return 100*r.rand.Float64() < percent
}

func (r *rollOut) pause(most time.Duration) {
	r.mu.Lock()
	d := time.Duration(r.rand.Int64N(int64(most)))
	r.mu.Unlock()
	time.Sleep(d)
}

// key returns a new key, or one that is young enough to be on record.
func (r *rollOut) key() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	first := len(r.born)
	for first > 0 && now.Sub(r.born[first-1]) < moveRetention {
		first--
	}
	if first == len(r.born) || r.rand.IntN(4) == 0 {
		r.born = append(r.born, now)
		return fmt.Sprint("key ", len(r.born)-1)
	}
	return fmt.Sprint("key ", first+r.rand.IntN(len(r.born)-first))
}

// serve has callers call the version from one moment of the move to another.
// An instance that has died is replaced.
func (r *rollOut) serve(all *sync.WaitGroup, name string, from, until time.Duration) {
	for range moveCallers {
		all.Go(func() {
			time.Sleep(from - time.Since(r.start))
			v := r.begin(name)
			for time.Since(r.start) < until {
				v.call(r.key())
				v.pause(200 * time.Millisecond)
				if v.dead.Load() {
					defer v.end()
					v = r.begin(name)
				}
			}
			v.end()
		})
	}
}

// end ends the goroutines that still try to reach the store. What a dead
// instance left behind it has long lapsed by then.
func (v *version) end() {
	time.Sleep(moveLease)
	v.ended.Store(true)
	_ = v.guard.Drain(context.Background())
}

func (v *version) call(key string) {
	rec, replayed, err := v.guard.Run(context.Background(), key, func(context.Context) (idempotent.Class, string) {
		v.mu.Lock()
		v.running[key]++
		v.overlap += min(1, v.running[key]-1)
		v.mu.Unlock()
		v.pause(2 * moveLease)
		v.mu.Lock()
		defer v.mu.Unlock()
		v.running[key]--
		if v.rand.IntN(5) == 0 {
			return idempotent.ClassRelease, ""
		}
		v.runs[key]++
		return idempotent.ClassSuccess, fmt.Sprint(v.name, v.rand.Int64())
	})
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case err != nil:
		v.refused[v.name]++
	case rec.Class == idempotent.ClassSuccess:
		if v.results[key] == nil {
			v.results[key] = map[string]bool{}
		}
		v.results[key][rec.Result] = true
		if replayed {
			v.replays[rec.Result[:1]+v.name]++
		}
	}
}

// stage is a version and when it runs.
type stage struct {
	name        string
	from, until time.Duration
}

// roll plays a move and returns how many keys ran more than once, at the same
// time or one after the other, or were answered differently.
func roll(t *testing.T, stages ...stage) (r *rollOut, double int) {
	r = &rollOut{
		T: t, old: tierMem(t), new: tierMem(t), start: time.Now(), rand: rand.New(rand.NewPCG(1, 2)),
		running: map[string]int{}, runs: map[string]int{}, results: map[string]map[string]bool{},
		replays: map[string]int{}, refused: map[string]int{},
	}
	var all sync.WaitGroup
	for _, s := range stages {
		r.serve(&all, s.name, s.from, s.until)
	}
	all.Wait()
	for key, n := range r.runs {
		if n > 1 || len(r.results[key]) > 1 {
			double++
		}
	}
	t.Logf("%d keys, %d double, %d at once, replays %v, refused %v, %d deaths", len(r.born), double, r.overlap, r.replays, r.refused, r.deaths)
	return r, double + r.overlap
}

// Under load, with lost connections and instances that die at any step, every
// key runs once through a whole move, and is answered by whoever is there.
func TestMoving_UnderLoad(t *testing.T) {
	t.Parallel()
	const (
		bothOld = movePhase
		endOfA  = 2 * movePhase
		bothNew = endOfA + moveRetention + 3*moveLease // A's last operation and its lease included
		endOfB  = bothNew + movePhase
		end     = endOfB + movePhase
	)
	synctest.Test(t, func(t *testing.T) {
		r, double := roll(t, stage{"A", 0, endOfA}, stage{"B", bothOld, endOfB}, stage{"C", bothNew, end})
		require.Zero(t, double)
		for _, pair := range []string{"AA", "AB", "BA", "BB", "BC", "CB", "CC"} {
			require.GreaterOrEqual(t, r.replays[pair], 10, pair)
		}
		require.Zero(t, r.replays["AC"])
		require.Greater(t, r.deaths, 5)
	})

	// The same test finds what is wrong with each shorter way.
	for name, stages := range map[string][]stage{
		"a plain switch":                 {{"A", 0, endOfA}, {"C", endOfA + 3*moveLease, end}},
		"a plain switch, side by side":   {{"A", 0, endOfA}, {"C", bothOld, end}},
		"the new one alone too early":    {{"A", 0, endOfA}, {"B", bothOld, endOfB}, {"C", endOfA + 3*moveLease, end}},
		"all three versions at one time": {{"A", 0, end}, {"B", bothOld, endOfB}, {"C", bothNew, end}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				_, double := roll(t, stages...)
				require.Greater(t, double, 3)
			})
		})
	}
}
