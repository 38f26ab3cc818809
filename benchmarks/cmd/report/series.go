package main

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/benchmarks/measure"
	"github.com/idempotent-go/idempotent/benchmarks/peer"
	"github.com/idempotent-go/idempotent/redisstore"
)

// opened is a store under its name.
type opened struct {
	name  string
	store idempotent.Store
	fresh idempotent.Store // for fresh keys: they must not push out those of store
	share int              // of the calls that memory gets, Redis gets one in so many
}

// stores opens a store of each kind there is: memory, and Redis where there is
// a server.
func (b *bench) stores() (stores []opened, end func(), err error) {
	m, fresh := newMemory(), newMemory()
	stores = append(stores, opened{"memory", m, fresh, 1})
	end = func() { _, _ = m.Close(), fresh.Close() }
	if b.server == nil {
		return stores, end, nil
	}
	client, err := b.client()
	if err != nil {
		end()
		return nil, nil, err
	}
	r := redisstore.New(client)
	return append(stores, opened{"Redis", r, r, 10}), func() { _, _, _, _ = m.Close(), fresh.Close(), r.Close(), client.Close() }, nil
}

// costByPath measures the middleware by what becomes of a request.
func costByPath(b *bench) ([]figure, error) {
	stores, end, err := b.stores()
	if err != nil {
		return nil, err
	}
	defer end()
	f := figure{
		file: "paths", title: "Cost of a request by path and store", y: "µs",
		bars: []string{"bare", "fresh", "replay", "in flight", "mismatch"},
		words: fmt.Sprintf("The middleware in process, %d goroutines, answers of 512 bytes, raw fingerprint. The bare handler is the same for both stores. "+
			"A refusal costs more than a replay in memory because its problem document is written anew; in Redis the round trip outweighs it.", workers()),
	}
	other := []byte(`{"item":"another"}`)
	for _, s := range stores {
		app := peer.GuardedBy(s.store, work, func() {})
		bare := peer.Bare(work)
		recorded := b.keys(1000)
		n := b.size(20_000, 2000) / s.share
		running, finish, err := runningKey(b, s.store)
		if err != nil {
			return nil, err
		}
		defer finish()
		c := app.Client()
		for _, key := range recorded {
			if err := expect(c, key); err != nil {
				return nil, err
			}
		}
		path := func(name string, app *peer.App, body []byte, want int, keys func() []string) measure.Side {
			return measure.Side{Name: name, Run: func() (float64, error) {
				all := keys()
				return measure.Parallel(workers(), n, func(_, from, to int) error {
					c := app.Client()
					for i := from; i < to; i++ {
						if status, got := c(all[i%len(all)], body); status != want {
							return fmt.Errorf("%s: the answer is %d, not %d: %.200q", name, status, want, got)
						}
					}
					return nil
				})
			}}
		}
		same := func() []string { return recorded }
		got, err := b.compare(
			path("bare", bare, order, http.StatusCreated, same),
			path("replay", app, order, http.StatusCreated, same),
			path("mismatch", app, other, http.StatusUnprocessableEntity, same),
			path("in flight", app, order, http.StatusConflict, func() []string { return []string{running} }),
			path("fresh", peer.GuardedBy(s.fresh, work, func() {}), order, http.StatusCreated, func() []string { return b.keys(n) }),
		)
		if err != nil {
			return nil, err
		}
		l := line{name: s.name}
		for i, side := range []int{0, 4, 1, 3, 2} {
			l.add(float64(i), got[side].Median()/1e3)
		}
		f.lines = append(f.lines, l)
	}
	return []figure{f}, nil
}

// runningKey returns a client key whose operation runs until finish is called.
func runningKey(b *bench, s idempotent.Store) (key string, finish func(), err error) {
	key = b.keys(1)[0]
	started, end, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	app := peer.GuardedBy(s, func() string {
		close(started)
		<-end
		return answer
	}, func() {})
	go func() {
		defer close(done)
		app.Client()(key, order)
	}()
	finish = func() {
		close(end)
		<-done
	}
	select {
	case <-started:
		return key, finish, nil
	case <-done:
		return "", nil, errors.New("the operation that should be running was refused")
	}
}

// throughput measures stores against the number of goroutines.
func throughput(b *bench) ([]figure, error) {
	stores, end, err := b.stores()
	if err != nil {
		return nil, err
	}
	defer end()
	f := figure{
		file: "parallelism", title: "Throughput against parallelism", x: "goroutines", y: "calls/s", logX: true, logY: true,
		words: "Store calls alone: fresh is a claim and its completion, a replay one claim. In memory the processors are the limit, and more goroutines than processors add nothing. " +
			"In Redis one goroutine waits for the network most of the time; the lines rise until client and server have no processor left.",
	}
	for _, s := range stores {
		recorded := b.names(1000)
		if err := fill(b.ctx, s.store, recorded, 16); err != nil {
			return nil, err
		}
		asked := shuffled(recorded)
		lines := newLines(s.name+", replay", s.name+", fresh")
		for _, goroutines := range []int{1, 2, 4, 8, 16, 32, 64, 128, 256} {
			if b.quick && goroutines > 8 {
				break
			}
			n := b.size(100_000, 4000) / s.share / s.share * min(goroutines, s.share)
			got, err := b.compare(
				measure.Side{Name: "replay", Run: func() (float64, error) {
					return measure.Parallel(goroutines, n, measure.Each(func(_, i int) error {
						return replay(b.ctx, s.store, asked[i%len(asked)])
					}))
				}},
				calls("fresh", goroutines, func() []string { return b.names(n / 2) }, func(name string) error { return cycle(b.ctx, s.fresh, name) }),
			)
			if err != nil {
				return nil, err
			}
			for i := range lines {
				lines[i].add(float64(goroutines), 1e9/got[i].Median())
			}
			b.progress("parallelism: %s, %d goroutines", s.name, goroutines)
		}
		f.lines = append(f.lines, lines...)
	}
	return []figure{f}, nil
}

// costByBody measures the middleware against the size of request and answer.
func costByBody(b *bench) ([]figure, error) {
	stores, end, err := b.stores()
	if err != nil {
		return nil, err
	}
	defer end()
	f := figure{
		file: "bodies", title: "Cost against body size", x: "bytes of request and of answer", y: "µs", logX: true, logY: true,
		words: "The middleware in process, one goroutine, JSON bodies. Up to some kilobytes the cost is that of the protocol; beyond that it follows the bytes, " +
			"which are hashed (and, with the canonical fingerprint, parsed) once on the way in and copied on the way out.",
	}
	sizes := []int{64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20}
	if b.quick {
		sizes = []int{64, 4 << 10}
	}
	f.lines = newLines("bare")
	for range stores {
		f.lines = append(f.lines, newLines("", "", "")...)
	}
	for _, size := range sizes {
		// Both are within the limit of 1 MiB.
		body := []byte(`{"item":"` + strings.Repeat("t", size-11) + `"}`)
		result := strings.Repeat("a", size)
		op := func() string { return result }
		send := func(app *peer.App, keys []string) (float64, error) {
			c := app.Client()
			return measure.Parallel(1, len(keys), measure.Each(func(_, i int) error {
				if status, got := c(keys[i], body); status != http.StatusCreated || len(got) != size {
					return fmt.Errorf("the answer is %d with %d bytes", status, len(got))
				}
				return nil
			}))
		}
		n := min(b.size(5000, 200), max(20, (64<<20)/size))
		sides := []measure.Side{{Name: "bare", Run: func() (float64, error) { return send(peer.Bare(op), b.keys(n)) }}}
		f.lines[0].name = "bare"
		for i, s := range stores {
			raw := peer.GuardedBy(s.store, op, func() {})
			fresh := peer.GuardedBy(s.fresh, op, func() {})
			canonical := peer.GuardedBy(s.fresh, op, func() {}, idempotent.WithFingerprint(idempotent.CanonicalJSON))
			n := max(10, n/s.share)
			recorded := b.keys(min(n, 10))
			if _, err := send(raw, recorded); err != nil {
				return nil, err
			}
			replays := make([]string, n)
			for i := range replays {
				replays[i] = recorded[i%len(recorded)]
			}
			for j, side := range []measure.Side{
				{Name: s.name + ", fresh, canonical JSON", Run: func() (float64, error) { return send(canonical, b.keys(n)) }},
				{Name: s.name + ", fresh", Run: func() (float64, error) { return send(fresh, b.keys(n)) }},
				{Name: s.name + ", replay", Run: func() (float64, error) { return send(raw, replays) }},
			} {
				f.lines[1+3*i+j].name = side.Name
				sides = append(sides, side)
			}
		}
		got, err := b.compare(sides...)
		if err != nil {
			return nil, err
		}
		for i := range f.lines {
			f.lines[i].add(float64(size), got[i].Median()/1e3)
		}
		b.progress("bodies: %d bytes", size)
	}
	return []figure{f}, nil
}
