package main

import (
	"context"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/benchmarks/measure"
	"github.com/idempotent-go/idempotent/redisstore"
)

// How long waiters have to begin waiting before the owner completes.
const (
	settleMemory = 20 * time.Millisecond
	settleRedis  = 200 * time.Millisecond
)

// pollEvery is what the baseline of P15 pauses between two looks.
const pollEvery = 10 * time.Millisecond

// wait returns when the claim of name has ended.
type wait func(ctx context.Context, s idempotent.Store, name string) error

func byStore(ctx context.Context, s idempotent.Store, name string) error {
	_, _, err := idempotent.Wait(ctx, s, name)
	return err
}

func byPolling(ctx context.Context, s idempotent.Store, name string) error {
	for {
		e, found, err := s.Load(ctx, name)
		if err != nil || !found || e.Status != idempotent.Pending {
			return err
		}
		time.Sleep(pollEvery)
	}
}

// wakes is what waiters saw, in milliseconds from the moment the completion
// was sent.
type wakes struct {
	latencies  measure.Samples
	completion measure.Samples // how long the call of Complete took
}

// wakeUps lets n waiters wait for one key, and completes it; times times.
func wakeUps(b *bench, s idempotent.Store, n, times int, settle time.Duration, until wait) (wakes, error) {
	var w wakes
	for range times {
		name := b.names(1)[0]
		if _, _, err := s.Claim(b.ctx, name, claimBy(owner)); err != nil {
			return w, err
		}
		woken := make([]time.Time, n)
		done := make(chan error, 1)
		go func() {
			done <- together(n, func(i int) error {
				err := until(b.ctx, s, name)
				woken[i] = time.Now()
				return err
			})
		}()
		time.Sleep(settle)
		began := time.Now()
		err := s.Complete(b.ctx, name, owner, outcomeOf(answer))
		w.completion = append(w.completion, milliseconds(time.Since(began)))
		if err != nil {
			return w, err
		}
		if err := <-done; err != nil {
			return w, err
		}
		for _, at := range woken {
			w.latencies = append(w.latencies, milliseconds(at.Sub(began)))
		}
	}
	return w, nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / 1e6 }

// wakeRounds measures several ways of waiting in turns. Of each it returns the
// median and the 99th percentile of each round, and how long completions took.
type wakeRounds struct{ median, p99, completion measure.Samples }

func (b *bench) wakeRounds(s idempotent.Store, n, times int, settle time.Duration, ways ...wait) ([]wakeRounds, error) {
	all := make([]wakeRounds, len(ways))
	var sides []measure.Side
	for i, way := range ways {
		sides = append(sides, measure.Side{Name: "waiters", Run: func() (float64, error) {
			w, err := wakeUps(b, s, n, times, settle, way)
			if err != nil {
				return 0, err
			}
			all[i].median = append(all[i].median, w.latencies.Median())
			all[i].p99 = append(all[i].p99, w.latencies.Percentile(99))
			all[i].completion = append(all[i].completion, w.completion.Median())
			return w.latencies.Median(), nil
		}})
	}
	_, err := b.compare(sides...)
	return all, err
}

// memoryWake is P14.
func memoryWake(b *bench) (outcome, error) {
	s := newMemory()
	defer func() { _ = s.Close() }()
	got, err := b.wakeRounds(s, 100, b.size(10, 2), settleMemory, byStore)
	if err != nil {
		return outcome{}, err
	}
	return outcome{checks: []check{
		{what: "median", got: got[0].median.Median(), limit: 0.5, unit: " ms"},
		{what: "p99", got: got[0].p99.Median(), limit: 2, unit: " ms"},
	}}, nil
}

// redisWake is P15.
func redisWake(b *bench) (outcome, error) {
	var o outcome
	client, err := b.client()
	if err != nil {
		return o, err
	}
	defer func() { _ = client.Close() }()
	s := redisstore.New(client)
	defer func() { _ = s.Close() }()
	got, err := b.wakeRounds(s, 100, b.size(5, 1), settleRedis, byStore, byPolling)
	if err != nil {
		return o, err
	}
	ours, polling := got[0], got[1]
	o.checks = []check{
		{what: "median: the completion call +", got: ours.median.Minus(ours.completion).Median(), limit: 1, unit: " ms"},
		{what: "p99", got: ours.p99.Ratio(polling.p99).Median(), limit: 0.5, unit: " × polling"},
	}
	o.note("completion call %s ms; median %s ms, p99 %s ms; polling: median %s ms, p99 %s ms", number(ours.completion.Median()),
		number(ours.median.Median()), number(ours.p99.Median()), number(polling.median.Median()), number(polling.p99.Median()))
	perWaiter, err := commandsPerWaiter(b, s, 100, func(name string) error { return byPolling(b.ctx, s, name) })
	if err != nil {
		return o, err
	}
	o.note("polling for the %s that the operation took: %s commands a waiter", settleRedis, number(perWaiter))
	return o, nil
}
