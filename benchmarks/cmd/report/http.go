package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"testing"
	"time"

	"github.com/idempotent-go/idempotent/benchmarks/measure"
	"github.com/idempotent-go/idempotent/benchmarks/peer"
)

// order is a request of 128 bytes.
var order = []byte(`{"customer":"018f7a3e-5b1c-7c3d-9e2a-000000001234","item":"` + string(bytes.Repeat([]byte("t"), 53)) + `","quantity":1}`)

func work() string { return answer }

// expect sends one request and wants the answer of the operation.
func expect(c peer.Client, key string) error {
	if status, got := c(key, order); status != http.StatusCreated || len(got) != answerSize {
		return fmt.Errorf("the answer is %d with %d bytes", status, len(got))
	}
	return nil
}

// driven measures an app in process, from so many goroutines, with the keys
// that it is given, after it has answered others: by processor time where it is
// one goroutine, and else by the clock. The app is made anew for it, so that no
// other one's answers lie in the heap.
func driven(open func(op func() string) *peer.App, goroutines int, before, keys func() []string) func() (float64, error) {
	return func() (float64, error) {
		app := open(work)
		defer app.Close()
		c := app.Client()
		for _, key := range before() {
			if err := expect(c, key); err != nil {
				return 0, err
			}
		}
		all := keys()
		runtime.GC()
		requests := func(_, from, to int) error {
			c := app.Client()
			for _, key := range all[from:to] {
				if err := expect(c, key); err != nil {
					return err
				}
			}
			return nil
		}
		if goroutines == 1 {
			return measure.Serial(len(all), requests)
		}
		return measure.Parallel(goroutines, len(all), requests)
	}
}

// added is what an idempotency layer adds to its bare app.
type added struct {
	ours, fiber, plain measure.Samples // nanoseconds a request
	bare               measure.Samples // net/http without a layer
}

// addedBy measures the apps in turns, each after it has answered the keys of
// before. Their stores are as they come: ours bounded at 10,000 entries, the
// others not at all.
func addedBy(b *bench, goroutines int, before, keys func() []string) (added, error) {
	var sides []measure.Side
	for _, app := range []struct {
		name string
		open func(op func() string) *peer.App
	}{
		{"bare", peer.Bare},
		{"guarded", peer.Guarded},
		{"fiber, bare", peer.FiberBare},
		{"fiber", peer.Fiber},
		{"plain middleware", peer.PlainMemory},
	} {
		sides = append(sides, measure.Side{Name: app.name, Run: driven(app.open, goroutines, before, keys)})
	}
	got, err := b.compare(sides...)
	if err != nil {
		return added{}, err
	}
	return added{ours: got[1].Minus(got[0]), fiber: got[3].Minus(got[2]), plain: got[4].Minus(got[0]), bare: got[0]}, nil
}

func (a added) note(o *outcome, how string) {
	o.note("%s: ours adds %s ns to %s, fiber's %s, a plain middleware %s; ours over fiber's %s ×", how, number(a.ours.Median()),
		number(a.bare.Median()), number(a.fiber.Median()), number(a.plain.Median()), number(a.ours.Ratio(a.fiber).Median()))
}

// middlewareReplay is P7.
func middlewareReplay(b *bench) (outcome, error) {
	const recorded = 1000
	keys := b.keys(recorded)
	replays := make([]string, 0, b.size(100_000, 2000))
	for len(replays) < cap(replays) {
		replays = append(replays, keys...)
	}
	recordedKeys := func() []string { return keys }
	serial, err := addedBy(b, 1, recordedKeys, func() []string { return replays })
	if err != nil {
		return outcome{}, err
	}
	parallel, err := addedBy(b, workers(), recordedKeys, func() []string { return replays })
	if err != nil {
		return outcome{}, err
	}
	allocations := func(app *peer.App) float64 {
		defer app.Close()
		c := app.Client()
		return testing.AllocsPerRun(1000, func() { _ = expect(c, keys[0]) }) // which runs it once before
	}
	bare := allocations(peer.Bare(work))
	o := outcome{checks: []check{
		{got: serial.ours.Ratio(serial.fiber).Median(), limit: 0.5, unit: " ×"},
		{what: "bare +", got: allocations(peer.Guarded(work)) - bare, limit: 3, unit: " allocations"},
	}}
	serial.note(&o, "one goroutine, processor time of the process")
	parallel.note(&o, fmt.Sprintf("%d goroutines", workers()))
	o.note("fiber's adds %s allocations, a plain middleware %s",
		number(allocations(peer.Fiber(work))-allocations(peer.FiberBare(work))), number(allocations(peer.PlainMemory(work))-bare))
	return o, nil
}

// middlewareFresh is P8.
func middlewareFresh(b *bench) (outcome, error) {
	n := b.size(30_000, 500)
	fresh := func() []string { return b.keys(n) }
	full := func() []string { return b.keys(b.size(peer.Bound, 100)) } // as much as ours keeps
	serial, err := addedBy(b, 1, full, fresh)
	if err != nil {
		return outcome{}, err
	}
	parallel, err := addedBy(b, workers(), full, fresh)
	if err != nil {
		return outcome{}, err
	}
	allocations := func(app *peer.App) float64 {
		defer app.Close()
		c := app.Client()
		keys := b.keys(b.size(15_000, 2000)) // more than are kept, so that making room counts
		next := 0
		return testing.AllocsPerRun(len(keys)-1, func() {
			_ = expect(c, keys[next])
			next++
		})
	}
	bare := allocations(peer.Bare(work))
	o := outcome{checks: []check{
		{got: serial.ours.Ratio(serial.fiber).Median(), limit: 0.85, unit: " ×"},
		{what: "bare +", got: allocations(peer.Guarded(work)) - bare, limit: 10, unit: " allocations"},
	}}
	serial.note(&o, "one goroutine, processor time of the process")
	parallel.note(&o, fmt.Sprintf("%d goroutines", workers()))
	o.note("fiber's adds %s allocations, a plain middleware %s",
		number(allocations(peer.Fiber(work))-allocations(peer.FiberBare(work))), number(allocations(peer.PlainMemory(work))-bare))
	return o, nil
}

const connections = 64

// loopback is P9: server and client are this process.
func loopback(b *bench) (outcome, error) {
	var o outcome
	n := b.size(30_000, 500)
	fresh := func() []string { return b.keys(n) }
	recorded := b.keys(b.size(1000, 100))
	replays := func() []string {
		var all []string
		for len(all) < n {
			all = append(all, recorded...)
		}
		return all[:n]
	}
	type served struct {
		name string
		open func(op func() string) *peer.App
		keys func() []string
	}
	var sides []measure.Side
	for _, s := range []served{
		{"bare", peer.Bare, fresh},
		{"guarded, fresh", peer.Guarded, fresh},
		{"guarded, replay", peer.Guarded, replays},
		{"plain, fresh", peer.PlainMemory, fresh},
		{"plain, replay", peer.PlainMemory, replays},
	} {
		// Made anew, so that no other one's answers lie in the heap.
		sides = append(sides, measure.Side{Name: s.name, Run: func() (float64, error) {
			app := s.open(work)
			defer app.Close()
			site, err := listen(app.Handler)
			if err != nil {
				return 0, err
			}
			defer site.close()
			// One caller has them recorded, before others ask for them.
			if err := site.each(recorded); err != nil {
				return 0, err
			}
			keys := s.keys()
			runtime.GC()
			return measure.Parallel(connections, len(keys), func(_, from, to int) error { return site.each(keys[from:to]) })
		}})
	}
	got, err := b.compare(sides...)
	if err != nil {
		return o, err
	}
	share := func(i int) float64 { return got[0].Ratio(got[i]).Median() }
	o.checks = []check{
		{what: "fresh", got: share(1), limit: 0.75, atLeast: true, unit: " ×"},
		{what: "replay", got: share(2), limit: 0.80, atLeast: true, unit: " ×"},
	}
	o.note("a plain middleware over a map: fresh %s ×, replay %s ×", number(share(3)), number(share(4)))
	o.note("bare %s requests/s", number(1e9/got[0].Median()))
	return o, nil
}

// site is an app behind a socket, with a client.
type site struct {
	server *http.Server
	client *http.Client
	url    string
}

func listen(h http.Handler) (*site, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &site{
		server: &http.Server{Handler: h, ReadHeaderTimeout: time.Minute},
		client: &http.Client{Transport: &http.Transport{
			MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections, MaxIdleConns: connections, DisableCompression: true,
		}},
		url: "http://" + l.Addr().String() + peer.Path,
	}
	go func() { _ = s.server.Serve(l) }()
	return s, nil
}

func (s *site) close() {
	s.client.CloseIdleConnections()
	_ = s.server.Close()
}

// each sends an order under each of the keys.
func (s *site) each(keys []string) error {
	for _, key := range keys {
		req, err := http.NewRequest(http.MethodPost, s.url, bytes.NewReader(order))
		if err != nil {
			return err
		}
		req.Header["Idempotency-Key"] = []string{key}
		req.Header["Content-Type"] = []string{"application/json"}
		resp, err := s.client.Do(req)
		if err != nil {
			return err
		}
		n, err := io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusCreated || n != answerSize {
			return fmt.Errorf("the answer is %d with %d bytes", resp.StatusCode, n)
		}
	}
	return nil
}
