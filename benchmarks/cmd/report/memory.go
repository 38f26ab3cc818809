package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/benchmarks/measure"
	"github.com/idempotent-go/idempotent/benchmarks/peer"
	"github.com/idempotent-go/idempotent/memstore"
)

var errNotFound = errors.New("a finished key was not found")

// stored is what the bare map keeps: the texts of an entry in one string, and
// as many words beside them as the store needs.
type stored struct {
	key, owner, fingerprint, result string
	_                               string // trace
	_                               [10]int64
}

func newStored(key string) *stored {
	text := key + owner + fingerprint
	k, o := len(key), len(owner)
	return &stored{key: text[:k], owner: text[k : k+o], fingerprint: text[k+o:], result: answer}
}

// memoryReplay is P1.
func memoryReplay(b *bench) (outcome, error) {
	var o outcome
	names := b.names(10_000)
	asked := shuffled(names)
	var bare sync.Map
	for _, name := range names {
		bare.Store(name, newStored(name))
	}
	s := newMemory()
	defer func() { _ = s.Close() }()
	if err := fill(b.ctx, s, names, 1); err != nil {
		return o, err
	}
	loads := b.size(1_500_000, 100_000)
	ctx := context.Background()
	got, err := b.compare(
		measure.Side{Name: "sync.Map.Load", Run: func() (float64, error) {
			return measure.Parallel(workers(), loads, func(_, from, to int) error {
				for i := from; i < to; i++ {
					if v, ok := bare.Load(asked[i%len(asked)]); !ok || v.(*stored).result == "" {
						return errNotFound
					}
				}
				return nil
			})
		}},
		measure.Side{Name: "memstore", Run: func() (float64, error) {
			return measure.Parallel(workers(), loads, func(_, from, to int) error {
				for i := from; i < to; i++ {
					if e, ok, err := s.Load(ctx, asked[i%len(asked)]); !ok || err != nil || e.Result == "" {
						return errNotFound
					}
				}
				return nil
			})
		}},
	)
	if err != nil {
		return o, err
	}
	o.checks = []check{
		{got: got[1].Ratio(got[0]).Median(), limit: 2, unit: " ×"},
		{got: testing.AllocsPerRun(1000, func() { _, _, _ = s.Load(ctx, asked[0]) }), unit: " allocations"},
	}
	o.note("bare %s ns, memstore %s ns a call", number(got[0].Median()), number(got[1].Median()))
	return o, nil
}

// memoryFresh is P2.
func memoryFresh(b *bench) (outcome, error) {
	var o outcome
	names := b.names(b.size(200_000, 10_000))
	ctx := context.Background()
	cycles := func(opts ...memstore.Option) func() (float64, error) {
		return func() (float64, error) {
			s := newMemory(opts...)
			defer func() { _ = s.Close() }()
			return measure.Parallel(workers(), len(names), measure.Each(func(_, i int) error { return cycle(ctx, s, names[i]) }))
		}
	}
	got, err := b.compare(
		measure.Side{Name: "LoadOrStore", Run: func() (float64, error) {
			var bare sync.Map
			return measure.Parallel(workers(), len(names), measure.Each(func(_, i int) error {
				if _, loaded := bare.LoadOrStore(names[i], newStored(names[i])); loaded {
					return fmt.Errorf("%s was not free", names[i])
				}
				return nil
			}))
		}},
		measure.Side{Name: "memstore", Run: cycles(unbounded()...)},
		measure.Side{Name: "memstore, bounded", Run: cycles()},
	)
	if err != nil {
		return o, err
	}
	s := newMemory(unbounded()...)
	defer func() { _ = s.Close() }()
	next := 0
	allocations := testing.AllocsPerRun(min(5000, len(names)-1), func() {
		_ = cycle(ctx, s, names[next])
		next++
	})
	o.checks = []check{
		{got: got[1].Ratio(got[0]).Median(), limit: 1.6, unit: " ×"},
		{got: allocations, limit: 4, unit: " allocations"},
	}
	o.note("bounded at 10,000 entries %s ×", number(got[2].Ratio(got[0]).Median()))
	o.note("bare %s ns, memstore %s ns a cycle", number(got[0].Median()), number(got[1].Median()))
	return o, nil
}

// memoryConflict is P3.
func memoryConflict(b *bench) (outcome, error) {
	const goroutines = 64
	var o outcome
	claims := b.size(2_000_000, 64_000)
	name := b.names(1)[0]
	ctx := context.Background()
	got, err := b.compare(
		measure.Side{Name: "LoadOrStore", Run: func() (float64, error) {
			var bare sync.Map
			return measure.Parallel(goroutines, claims, func(_, from, to int) error {
				for range to - from {
					bare.LoadOrStore(name, newStored(name))
				}
				return nil
			})
		}},
		measure.Side{Name: "memstore", Run: func() (float64, error) {
			s := newMemory()
			defer func() { _ = s.Close() }()
			return measure.Parallel(goroutines, claims, func(w, from, to int) error {
				c := claimBy(fmt.Sprint("owner ", w))
				for range to - from {
					if _, _, err := s.Claim(ctx, name, c); err != nil {
						return err
					}
				}
				return nil
			})
		}},
	)
	if err != nil {
		return o, err
	}
	owners, err := ownersPerKey(ctx, b.names(b.size(1000, 50)), goroutines)
	if err != nil {
		return o, err
	}
	o.checks = []check{
		{got: got[1].Ratio(got[0]).Median(), limit: 0.9, unit: " ×"},
		{what: "at most", got: owners.most, limit: 1, unit: " owner"},
		{what: "at least", got: owners.least, limit: 1, atLeast: true, unit: " owner"},
	}
	return o, nil
}

// ownersPerKey lets goroutines claim each key at once.
func ownersPerKey(ctx context.Context, names []string, goroutines int) (owners struct{ least, most float64 }, err error) {
	s := newMemory()
	defer func() { _ = s.Close() }()
	owners.least = float64(goroutines)
	for _, name := range names {
		claimed := make([]bool, goroutines)
		if err := together(goroutines, func(i int) (err error) {
			_, claimed[i], err = s.Claim(ctx, name, claimBy(fmt.Sprint("owner ", i)))
			return err
		}); err != nil {
			return owners, err
		}
		n := 0.0
		for _, c := range claimed {
			if c {
				n++
			}
		}
		owners.least, owners.most = min(owners.least, n), max(owners.most, n)
	}
	return owners, nil
}

// memoryEviction is P4. The store makes room as its requests come; of those the
// ones that evict are timed.
func memoryEviction(b *bench) (outcome, error) {
	var o outcome
	sizes := []int{10_000, 100_000, 1_000_000}
	if b.quick {
		sizes = []int{5000, 20_000}
	}
	var perEntry []float64
	for _, n := range sizes {
		b.progress("P4: %d entries", n)
		ours, bare, err := evictions(b, n)
		if err != nil {
			return o, err
		}
		perEntry = append(perEntry, ours.Median())
		o.checks = append(o.checks, check{what: fmt.Sprintf("at %s:", thousands(n)), got: ours.Ratio(bare).Median(), limit: 0.3, unit: " ×"})
		o.note("at %s: %s ns an entry, scan and sort %s ns", thousands(n), number(ours.Median()), number(bare.Median()))
	}
	growth := perEntry[len(perEntry)-1] / perEntry[0]
	o.checks = append(o.checks, check{what: "growing", got: growth, limit: 5, unit: " ×"})
	return o, nil
}

// evictions measures what one evicted entry costs in a store and in a map of n
// entries.
func evictions(b *bench, n int) (ours, bare measure.Samples, err error) {
	ctx := context.Background()
	// A store lets itself be a tenth above its bound: it is full at n.
	s := newMemory(memstore.WithMaxEntries(n*10/11), memstore.WithMaxBytes(1<<50), memstore.WithSweepInterval(0))
	defer func() { _ = s.Close() }()
	m := peer.NewScanSort(1 << 40)
	clock := int64(0)
	put := func(name string) {
		clock++
		m.Claim(name, &peer.Record{})
		m.Complete(name, &peer.Record{Done: true, Fingerprint: fingerprint, Result: answer, Completed: clock})
	}
	names := b.names(n)
	for _, name := range names {
		put(name)
	}
	if err := fill(ctx, s, names, 1); err != nil {
		return nil, nil, err
	}
	got, err := b.compareAt(n,
		measure.Side{Name: "memstore", Run: func() (float64, error) {
			var took time.Duration
			evicted := 0
			for evicted < n/10 {
				for _, name := range b.names(100) {
					before, began := s.Stats().Evicted, time.Now()
					if err := cycle(ctx, s, name); err != nil {
						return 0, err
					}
					if gone := s.Stats().Evicted - before; gone > 0 {
						took += time.Since(began)
						evicted += gone
					}
				}
			}
			return float64(took) / float64(evicted), nil
		}},
		measure.Side{Name: "scan and sort", Run: func() (float64, error) {
			began := time.Now()
			evicted := m.Evict(n / 10)
			took := time.Since(began)
			for _, name := range b.names(evicted) {
				put(name)
			}
			return float64(took) / float64(evicted), nil
		}},
	)
	if err != nil {
		return nil, nil, err
	}
	return got[0], got[1], nil
}

// memoryBusy is P5.
func memoryBusy(b *bench) (outcome, error) {
	var o outcome
	names := b.names(b.size(200_000, 15_000))
	ctx := context.Background()
	most := 0
	got, err := b.compare(
		measure.Side{Name: "memstore", Run: func() (float64, error) {
			s := newMemory()
			defer func() { _ = s.Close() }()
			highest := make([]int, workers())
			ns, err := measure.Parallel(workers(), len(names), measure.Each(func(w, i int) error {
				err := cycle(ctx, s, names[i])
				highest[w] = max(highest[w], s.Len())
				return err
			}))
			for _, n := range highest {
				most = max(most, n)
			}
			return ns, err
		}},
		measure.Side{Name: "scan and sort", Run: func() (float64, error) {
			m := peer.NewScanSort(peer.Bound)
			highest := make([]int, workers())
			return measure.Parallel(workers(), len(names), measure.Each(func(w, i int) error {
				m.Claim(names[i], &peer.Record{Fingerprint: fingerprint})
				m.Complete(names[i], &peer.Record{Done: true, Fingerprint: fingerprint, Result: answer, Completed: int64(i)})
				highest[w] = max(highest[w], m.Len())
				return nil
			}))
		}},
	)
	if err != nil {
		return o, err
	}
	slowest, err := b.compare(measure.Side{Name: "slowest", Run: func() (float64, error) { return slowestEviction(ctx, names) }})
	if err != nil {
		return o, err
	}
	o.checks = []check{
		{got: got[1].Ratio(got[0]).Median(), limit: 1.2, atLeast: true, unit: " × the cycles/s"},
		{what: "at most", got: float64(most), limit: float64(peer.Bound*11/10 + workers()), unit: " entries"},
		{what: "slowest request that evicts", got: slowest[0].Median() / 1e6, limit: 1, unit: " ms"},
	}
	o.note("%s cycles/s, scan and sort %s", number(1e9/got[0].Median()), number(1e9/got[1].Median()))
	return o, nil
}

// slowestEviction returns what the slowest request took of those that evicted
// something: processor time where the system tells it.
func slowestEviction(ctx context.Context, names []string) (float64, error) {
	s := newMemory()
	defer func() { _ = s.Close() }()
	watch, stop := spent()
	defer stop()
	var slowest time.Duration
	for _, name := range names {
		before, began := s.Stats().Evicted, watch()
		if err := cycle(ctx, s, name); err != nil {
			return 0, err
		}
		if s.Stats().Evicted > before {
			slowest = max(slowest, watch()-began)
		}
	}
	return float64(slowest), nil
}

// memoryBytes is P6. Entries are made by a guard, with keys that nobody else
// holds; the result is one text that all share, and so is not counted.
func memoryBytes(b *bench) (outcome, error) {
	var o outcome
	n := b.size(1_000_000, 20_000)
	perEntry, err := bytesPerEntry(b, n)
	if err != nil {
		return o, err
	}
	key := len(b.names(1)[0])
	o.checks = []check{{got: perEntry - float64(key), limit: 300, unit: " B"}}
	o.note("%s entries with keys of %d B; owner and fingerprint, %d B an entry, are in the figure", thousands(n), key, len(owner)+len(fingerprint))
	return o, nil
}

// bytesPerEntry returns the heap that one finished entry takes, without its
// result.
func bytesPerEntry(b *bench, n int) (float64, error) {
	grown, kept, err := measure.Bytes(func() (any, error) {
		s := newMemory(append(unbounded(), memstore.WithSweepInterval(0))...)
		g := idempotent.New(s)
		op := func(context.Context) (idempotent.Class, string) { return idempotent.ClassSuccess, answer }
		for left := n; left > 0; left -= 1000 {
			for _, name := range b.names(min(left, 1000)) {
				if _, _, err := g.Run(b.ctx, name, op, idempotent.WithCallFingerprint(fingerprint)); err != nil {
					return nil, err
				}
			}
		}
		return s, nil
	})
	if err != nil {
		return 0, err
	}
	_ = kept.(*memstore.Store).Close()
	return grown / float64(n), nil
}

// thousands writes 10000 as "10 k".
func thousands(n int) string {
	switch {
	case n >= 1_000_000 && n%1_000_000 == 0:
		return fmt.Sprintf("%d M", n/1_000_000)
	case n >= 1000 && n%1000 == 0:
		return fmt.Sprintf("%d k", n/1000)
	}
	return fmt.Sprint(n)
}
