package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/benchmarks/measure"
	"github.com/idempotent-go/idempotent/benchmarks/peer"
	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/redisstore"
)

// growthInMemory measures a memory store against what it holds.
func growthInMemory(b *bench) ([]figure, error) {
	sizes := []int{10_000, 100_000, 1_000_000, 5_000_000}
	if b.quick {
		sizes = []int{1000, 10_000}
	}
	cost := figure{
		file: "entries", title: "memstore: cost of a call against entries", x: "entries", y: "ns", logX: true, logY: true,
		lines: newLines("claim and complete", "replay"),
		words: "Random keys, one goroutine; one round at 5 M, three at 1 M. The trie has one level more for each sixteenfold, and a random key finds fewer of the map's nodes, of the slots " +
			"and of the texts of keys in the processor's caches. A replay does little else, so its line rises more; how much of that is levels and how much is misses was not measured.",
	}
	collection := figure{
		file: "gc", title: "memstore: garbage collection against entries", x: "entries", y: "ms", logX: true, logY: true,
		lines: newLines("pause", "whole collection"),
		words: "A forced collection over the store alone. It follows the live heap, in the background; the program stands still for the pause only, which does not grow with it.",
	}
	size := figure{
		file: "bytes", title: "Bytes per entry", x: "entries", y: "bytes", logX: true,
		lines: newLines("memstore, beyond key and result"),
		words: "Owner and fingerprint are in the figure. The nodes of the map are halved and doubled as it grows, which is the wave in the line.",
	}
	sweep := figure{
		file: "sweep-idle", title: "memstore: a sweep that finds nothing to do", x: "entries", y: "ms", logX: true, logY: true,
		lines: newLines("sweep"),
		words: "It looks at each entry once, in the background, and holds nobody up meanwhile.",
	}
	for _, n := range sizes {
		b.progress("entries: %s", thousands(n))
		first := b.made + 1
		grown, kept, err := measure.Bytes(func() (any, error) {
			s := newMemory(append(unbounded(), memstore.WithSweepInterval(0))...)
			for left := n; left > 0; left -= 10_000 {
				if err := fill(b.ctx, s, b.names(min(left, 10_000)), workers()); err != nil {
					return nil, err
				}
			}
			return s, nil
		})
		if err != nil {
			return nil, err
		}
		s := kept.(*memstore.Store)
		size.lines[0].add(float64(n), grown/float64(n)-float64(len(nameOf(0))))
		got, err := b.compareAt(n,
			calls("claim and complete", 1, func() []string { return b.names(b.size(10_000, 500)) }, func(name string) error { return cycle(b.ctx, s, name) }),
			calls("replay", 1, func() []string { return someNames(first, n, b.size(100_000, 2000)) }, func(name string) error { return replay(b.ctx, s, name) }),
			measure.Side{Name: "sweep", Run: func() (float64, error) {
				began := time.Now()
				_, err := s.Sweep(b.ctx)
				return milliseconds(time.Since(began)), err
			}},
			measure.Side{Name: "pause", Run: func() (float64, error) { _, pause := collect(); return pause, nil }},
			measure.Side{Name: "collection", Run: func() (float64, error) { whole, _ := collect(); return whole, nil }},
		)
		_ = s.Close()
		if err != nil {
			return nil, err
		}
		for i, l := range []*line{&cost.lines[0], &cost.lines[1], &sweep.lines[0], &collection.lines[0], &collection.lines[1]} {
			l.add(float64(n), got[i].Median())
		}
	}
	return []figure{cost, sweep, collection, size}, nil
}

// someNames returns the names of count random numbers of the n from first.
func someNames(first, n, count int) []string {
	names := make([]string, count)
	for i := range names {
		names[i] = nameOf(first + rand.IntN(n))
	}
	return names
}

// collect collects garbage and returns how long it took, and how long the
// program stood still for it, in milliseconds.
func collect() (whole, pause float64) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	runtime.GC()
	whole = milliseconds(time.Since(began))
	runtime.ReadMemStats(&after)
	cycles := max(1, after.NumGC-before.NumGC)
	return whole, float64(after.PauseTotalNs-before.PauseTotalNs) / 1e6 / float64(cycles)
}

// sweeps measures a sweep that forgets the oldest tenth.
func sweeps(b *bench) ([]figure, error) {
	sizes := []int{10_000, 100_000, 1_000_000}
	if b.quick {
		sizes = []int{1000, 10_000}
	}
	f := figure{
		file: "sweeps", title: "Latency of a sweep that evicts the oldest tenth", x: "entries", y: "ms", logX: true, logY: true,
		lines: newLines("memstore", "scan and sort"),
		words: "The sweep of memstore looks at each entry for its age as well. Requests go on meanwhile: it holds its lock for 500 removals at a time.",
	}
	for _, n := range sizes {
		b.progress("sweeps: %s", thousands(n))
		// At the bound, and one more.
		s := newMemory(memstore.WithMaxEntries(n-1), memstore.WithMaxBytes(1<<50), memstore.WithSweepInterval(0))
		m := peer.NewScanSort(1 << 40)
		completed := int64(0)
		got, err := b.compareAt(n,
			measure.Side{Name: "memstore", Run: func() (float64, error) {
				if err := fill(b.ctx, s, b.names(n-s.Len()), 1); err != nil {
					return 0, err
				}
				began := time.Now()
				swept, err := s.Sweep(b.ctx)
				if err == nil && swept.Evicted < n/10 {
					err = fmt.Errorf("the sweep evicted %d of %d", swept.Evicted, n)
				}
				return milliseconds(time.Since(began)), err
			}},
			measure.Side{Name: "scan and sort", Run: func() (float64, error) {
				for _, name := range b.names(n - m.Len()) {
					completed++
					m.Claim(name, &peer.Record{Done: true, Fingerprint: fingerprint, Result: answer, Completed: completed})
				}
				began := time.Now()
				m.Evict(n / 10)
				return milliseconds(time.Since(began)), nil
			}},
		)
		_ = s.Close()
		if err != nil {
			return nil, err
		}
		for i := range f.lines {
			f.lines[i].add(float64(n), got[i].Median())
		}
	}
	return []figure{f}, nil
}

// growthInRedis measures a Redis store against what it holds.
func growthInRedis(b *bench) ([]figure, error) {
	sizes := []int{10_000, 100_000, 1_000_000}
	if b.quick {
		sizes = []int{500, 2000}
	}
	client, err := b.client()
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = client.FlushAll(context.WithoutCancel(b.ctx)).Err()
		_ = client.Close()
	}()
	pipelined, err := client.AutoPipeline()
	if err != nil {
		return nil, err
	}
	defer func() { _ = pipelined.Close() }()
	s, filler := redisstore.New(client), redisstore.New(pipelined)
	defer func() { _, _ = s.Close(), filler.Close() }()
	cost := figure{
		file: "records", title: "redisstore: cost of a call against records", x: "records", y: "µs", logX: true, logY: true,
		lines: newLines("claim and complete", "replay", "PING"),
		words: "One goroutine, random keys. The server finds a record by its hash: the round trip is what costs, and it does not grow.",
	}
	size := figure{
		file: "record-bytes", title: "redisstore: bytes per record", x: "records", y: "bytes", logX: true,
		lines: newLines("MEMORY USAGE", "used_memory divided by records"),
		words: fmt.Sprintf("Records of %d B keys and %d B results. The server's own tables are in the second line: they double, and so it is a saw.", len(nameOf(0)), answerSize),
	}
	first, filled := b.made+1, 0
	empty, err := usedMemory(b, client)
	if err != nil {
		return nil, err
	}
	for _, n := range sizes {
		b.progress("records: %s", thousands(n))
		for ; filled < n; filled += min(n-filled, 50_000) {
			names := b.names(min(n-filled, 50_000))
			if _, err := measure.Parallel(256, len(names), measure.Each(func(_, i int) error {
				return filler.Complete(b.ctx, names[i], owner, outcomeOf(answer))
			})); err != nil {
				return nil, err
			}
		}
		used, err := usedMemory(b, client)
		if err != nil {
			return nil, err
		}
		usage := measure.Samples{}
		for _, name := range someNames(first, n, 100) {
			bytes, err := client.MemoryUsage(b.ctx, redisstore.DefaultPrefix+name, 0).Result()
			if err != nil {
				return nil, err
			}
			usage = append(usage, float64(bytes))
		}
		size.lines[0].add(float64(n), usage.Median())
		size.lines[1].add(float64(n), (used-empty)/float64(n))
		made := b.made // what is claimed meanwhile lies behind the filled range
		ops := b.size(3000, 200)
		var claimed []string
		got, err := b.compare(
			calls("claim and complete", 1, func() []string { claimed = append(claimed, b.names(ops)...); return claimed[len(claimed)-ops:] },
				func(name string) error { return cycle(b.ctx, s, name) }),
			calls("replay", 1, func() []string { return someNames(first, n, ops) }, func(name string) error { return replay(b.ctx, s, name) }),
			calls("PING", 1, func() []string { return make([]string, ops) }, func(string) error { return client.Ping(b.ctx).Err() }),
		)
		if err != nil {
			return nil, err
		}
		for i := range cost.lines {
			cost.lines[i].add(float64(n), got[i].Median()/1e3)
		}
		for _, name := range claimed {
			if err := s.Delete(b.ctx, name); err != nil {
				return nil, err
			}
		}
		b.made = made // so that the filled range stays one
	}
	return []figure{cost, size}, nil
}

func usedMemory(b *bench, client *redis.Client) (float64, error) {
	info := client.InfoMap(b.ctx, "memory")
	if err := info.Err(); err != nil {
		return 0, err
	}
	var used float64
	_, err := fmt.Sscan(info.Item("Memory", "used_memory"), &used)
	return used, err
}

// growthOfWaiters measures wake-ups against the number of waiters of one key.
func growthOfWaiters(b *bench) ([]figure, error) {
	stores, end, err := b.stores()
	if err != nil {
		return nil, err
	}
	defer end()
	waking := figure{
		file: "waiters", title: "Wake-up against waiters of one key", x: "waiters", y: "ms after the completion was sent", logX: true, logY: true,
		words: "In memory the waiters' channel is closed and each is scheduled in turn. In Redis one message wakes a process, one read serves all its waiters, and the rest is the same: " +
			"flat as long as the round trips outweigh the scheduling, then a straight line in the number of goroutines to run.",
	}
	sent := figure{
		file: "waiter-commands", title: "Redis commands per waiter", x: "waiters of one key", y: "commands", logX: true,
		lines: newLines("claim and wait"),
		words: "Each waiter sends its claim; the mark, the subscription and the shared reads are divided among all.",
	}
	counts := []int{1, 10, 100, 1000}
	if b.quick {
		counts = []int{1, 10}
	}
	for _, s := range stores {
		lines := newLines(s.name+", median", s.name+", p99")
		settle := settleMemory
		if s.name == "Redis" {
			settle = settleRedis
		}
		for _, n := range counts {
			b.progress("waiters: %s, %d", s.name, n)
			got, err := b.wakeRounds(s.store, n, b.size(max(1, 20/n), 1), settle, byStore)
			if err != nil {
				return nil, err
			}
			lines[0].add(float64(n), got[0].median.Median())
			lines[1].add(float64(n), got[0].p99.Median())
			if s.name != "Redis" {
				continue
			}
			perWaiter, err := commandsPerWaiter(b, s.store, n, func(name string) error {
				if _, _, err := s.store.Claim(b.ctx, name, claimBy("waiter")); err != nil {
					return err
				}
				return byStore(b.ctx, s.store, name)
			})
			if err != nil {
				return nil, err
			}
			sent.lines[0].add(float64(n), perWaiter)
		}
		waking.lines = append(waking.lines, lines...)
	}
	if b.server == nil {
		return []figure{waking}, nil
	}
	return []figure{waking, sent}, nil
}

// counted counts renewals at a store.
type counted struct {
	idempotent.Store
	renewals atomic.Int64
}

func (c *counted) Renew(ctx context.Context, key, owner string, lease time.Duration) error {
	c.renewals.Add(1)
	return c.Store.Renew(ctx, key, owner, lease)
}

// growthOfLeases measures what leases cost that run at the same time.
func growthOfLeases(b *bench) ([]figure, error) {
	lease, counts := 6*time.Second, []int{1, 10, 100, 1000, 10_000, 100_000}
	if b.quick {
		lease, counts = 600*time.Millisecond, []int{1, 100}
	}
	watch := 2 * lease / 3 // two renewals of each
	rate := figure{
		file: "leases", title: fmt.Sprintf("Renewals against running leases of %s", lease), x: "leases", y: "renewals/s at the store", logX: true, logY: true,
		lines: newLines("renewals", "expected: one each third of a lease"),
		words: "Each running operation renews at a third of its lease, so the line is straight.",
	}
	cost := figure{
		file: "lease-cost", title: "What running leases hold", x: "leases", y: "for each lease", logX: true,
		lines: newLines("goroutines beside the operation's own", "KiB, the operation's goroutine included"),
		words: "A lease is a place in a heap that one timer serves. A goroutine exists only while its renewal is being sent, so there are next to none.",
	}
	for _, n := range counts {
		b.progress("leases: %s", thousands(n))
		p, err := runLeases(b, n, lease, watch)
		if err != nil {
			return nil, err
		}
		rate.lines[0].add(float64(n), p.renewals)
		rate.lines[1].add(float64(n), float64(n)/(lease/3).Seconds())
		cost.lines[0].add(float64(n), p.goroutines)
		cost.lines[1].add(float64(n), p.bytes/1024)
	}
	return []figure{rate, cost}, nil
}

// held is what running leases cost: renewals a second, and goroutines and
// bytes of each.
type held struct{ renewals, goroutines, bytes float64 }

func runLeases(b *bench, n int, lease, watch time.Duration) (held, error) {
	m := newMemory(unbounded()...)
	defer func() { _ = m.Close() }()
	s := &counted{Store: m}
	g := idempotent.New(s, idempotent.WithLease(lease), idempotent.WithLogger(quiet))
	names := b.names(n)
	end, done := make(chan struct{}), make(chan error, 1)
	var started atomic.Int64
	before := runtime.NumGoroutine()
	var p held
	var failed error
	bytes, _, err := measure.Bytes(func() (any, error) {
		go func() {
			done <- together(n, func(i int) error {
				_, _, err := g.Run(b.ctx, names[i], func(context.Context) (idempotent.Class, string) {
					started.Add(1)
					<-end
					return idempotent.ClassSuccess, answer
				})
				if err != nil {
					started.Add(1)
				}
				return err
			})
		}()
		for started.Load() < int64(n) {
			time.Sleep(time.Millisecond)
		}
		return nil, nil
	})
	p.bytes = bytes / float64(n)
	began, first := time.Now(), s.renewals.Load()
	most := 0
	for time.Since(began) < watch {
		select {
		case <-b.ctx.Done():
			failed = b.ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
		most = max(most, runtime.NumGoroutine())
	}
	p.renewals = float64(s.renewals.Load()-first) / time.Since(began).Seconds()
	// Beside those that run the operations, and the one that started them.
	p.goroutines = float64(max(0, most-before-n-1)) / float64(n)
	close(end)
	for _, e := range []error{<-done, err, failed} {
		if e != nil {
			return p, e
		}
	}
	return p, nil
}
