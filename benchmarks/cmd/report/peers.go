package main

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/idempotent-go/idempotent/benchmarks/measure"
	"github.com/idempotent-go/idempotent/benchmarks/peer"
)

// compared is one line of the table of peers.
type compared struct {
	peer.Kind
	verdict       peer.Verdict
	err           error
	fresh, replay measure.Samples // nanoseconds a call
}

// peers checks every peer, and then times those that could be opened: fresh
// keys and replays, from as many goroutines as there are processors, or from
// 64 where the peer talks to a server.
func peers(b *bench) ([]compared, error) {
	var all []compared
	for _, kind := range peer.Kinds() {
		if kind.Redis && b.server == nil {
			continue
		}
		c := compared{Kind: kind}
		addr := ""
		if kind.Redis {
			addr = b.server.Addr
			client, err := b.client()
			if err != nil {
				return nil, err
			}
			_ = client.Close()
		}
		b.progress("peers: checking %s", kind.Name)
		c.verdict, c.err = peer.Check(b.ctx, kind, addr)
		all = append(all, c)
	}
	for _, redis := range []bool{false, true} {
		if err := timePeers(b, all, redis); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// timePeers times those that need a server or those that do not, in turns.
func timePeers(b *bench, all []compared, redis bool) error {
	goroutines, n, recorded := workers(), b.size(10_000, 1000), b.keys(1000)
	addr := ""
	if redis {
		goroutines, n = 64, b.size(3000, 640)
		if b.server == nil {
			return nil
		}
		addr = b.server.Addr
		client, err := b.client()
		if err != nil {
			return err
		}
		_ = client.Close()
	}
	var sides []measure.Side
	var timed []*compared
	stuck := make([]atomic.Int64, len(all)) // answers "in flight" for a key that nobody runs
	for i := range all {
		c := &all[i]
		tolerate := func(_ string, err error) error {
			if errors.Is(err, peer.ErrInFlight) {
				stuck[i].Add(1)
				return nil
			}
			return err
		}
		if c.Redis != redis || c.err != nil {
			continue
		}
		fresh, err := c.Open(work, addr)
		if err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
		defer func() { _ = fresh.Close() }()
		replays, err := c.Open(work, addr)
		if err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
		defer func() { _ = replays.Close() }()
		for _, key := range recorded {
			if _, err := replays.Do(b.ctx, key, fingerprint); err != nil {
				return fmt.Errorf("%s: %w", c.Name, err)
			}
		}
		timed = append(timed, c)
		sides = append(sides,
			calls(c.Name, goroutines, func() []string { return b.keys(n) }, func(key string) error {
				return tolerate(fresh.Do(b.ctx, key, fingerprint))
			}),
			// Each goroutine has keys of its own: a lock that is taken is not
			// what is measured.
			measure.Side{Name: c.Name, Run: func() (float64, error) {
				return measure.Parallel(goroutines, n, func(w, from, to int) error {
					for i := from; i < to; i++ {
						mine := recorded[(w+i*goroutines)%(len(recorded)/goroutines*goroutines)]
						if err := tolerate(replays.Do(b.ctx, mine, fingerprint)); err != nil {
							return err
						}
					}
					return nil
				})
			}})
	}
	b.progress("peers: timing %d of them, server %v", len(timed), redis)
	got, err := b.compare(sides...)
	if err != nil {
		return err
	}
	for i, c := range timed {
		c.fresh, c.replay = got[2*i], got[2*i+1]
	}
	for i := range all {
		if n := stuck[i].Load(); n > 0 && all[i].verdict.Wrong == "" {
			all[i].verdict.Wrong = fmt.Sprintf("forgot completions: %d answers were \"in flight\" while nobody ran", n)
		}
	}
	return nil
}
