// Package measure compares candidates with their baselines on machines that
// do other things as well: all sides of a comparison take turns, round by
// round, and medians are what counts.
package measure

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"
)

// Side is one side of a comparison. Run measures it once and returns a figure,
// such as the nanoseconds of one call.
type Side struct {
	Name string
	Run  func() (float64, error)
}

// Samples are the figures of one side, round by round.
type Samples []float64

// Rounds runs all sides n times, one after the other in each round, every
// second round in reverse, so that neither a drift of the machine nor the
// garbage of a neighbour favours one of them. The result has the order of the
// sides.
func Rounds(n int, sides ...Side) ([]Samples, error) {
	all := make([]Samples, len(sides))
	for round := range n {
		order := make([]int, len(sides))
		for i := range order {
			order[i] = i
		}
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, i := range order {
			runtime.GC()
			figure, err := sides[i].Run()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", sides[i].Name, err)
			}
			all[i] = append(all[i], figure)
		}
	}
	return all, nil
}

// Median returns the middle one, or the mean of the two; NaN of none.
func (s Samples) Median() float64 {
	sorted := slices.Sorted(slices.Values(s))
	n := len(sorted)
	if n == 0 {
		return math.NaN()
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// Percentile returns the smallest sample that is not exceeded by p percent of
// them; NaN of none.
func (s Samples) Percentile(p float64) float64 {
	if len(s) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(s))
	i := int(math.Ceil(p/100*float64(len(s)))) - 1
	return sorted[min(max(i, 0), len(s)-1)]
}

// Map returns f of each round of several sides.
func Map(f func(round []float64) float64, sides ...Samples) Samples {
	var out Samples
	for i := range sides[0] {
		round := make([]float64, len(sides))
		for j := range sides {
			round[j] = sides[j][i]
		}
		out = append(out, f(round))
	}
	return out
}

// Ratio returns s over base, round by round: both sides of a round met the
// machine in the same mood.
func (s Samples) Ratio(base Samples) Samples {
	return Map(func(r []float64) float64 { return r[0] / r[1] }, s, base)
}

// Minus returns s less base, round by round.
func (s Samples) Minus(base Samples) Samples {
	return Map(func(r []float64) float64 { return r[0] - r[1] }, s, base)
}

// Parallel shares ops calls among workers, goroutines that start together, and
// returns the wall time of one call in nanoseconds: the time of all divided by
// ops. Work runs the calls from up to but not including to; the first error
// ends the measurement.
func Parallel(workers, ops int, work func(worker, from, to int) error) (float64, error) {
	errs := make([]error, workers)
	start := make(chan struct{})
	var ready, done sync.WaitGroup
	for w := range workers {
		ready.Add(1)
		done.Go(func() {
			from, to := w*ops/workers, (w+1)*ops/workers
			ready.Done()
			<-start
			errs[w] = work(w, from, to)
		})
	}
	ready.Wait()
	began := time.Now()
	close(start)
	done.Wait()
	took := time.Since(began)
	for _, err := range errs {
		if err != nil {
			return 0, err
		}
	}
	return float64(took) / float64(ops), nil
}

// Serial has one goroutine make ops calls and returns what one of them costs in
// nanoseconds: the processor time of the process, which counts what the
// collector does meanwhile on other processors and not what other programs
// take. Where the system does not tell it, it is the time on the clock. Nothing
// else may run in the process.
func Serial(ops int, work func(worker, from, to int) error) (float64, error) {
	before := processorTime()
	if err := work(0, 0, ops); err != nil {
		return 0, err
	}
	return float64(processorTime()-before) / float64(ops), nil
}

// Each makes the work of Parallel out of a single call.
func Each(call func(worker, i int) error) func(worker, from, to int) error {
	return func(worker, from, to int) error {
		for i := from; i < to; i++ {
			if err := call(worker, i); err != nil {
				return err
			}
		}
		return nil
	}
}

// Bytes returns by how much the live heap grows while make runs and what it
// returns is kept, and what it returned.
func Bytes(make func() (any, error)) (grown float64, kept any, err error) {
	var before, after runtime.MemStats
	settle(&before)
	if kept, err = make(); err != nil {
		return 0, nil, err
	}
	settle(&after)
	return float64(after.HeapAlloc) - float64(before.HeapAlloc), kept, nil
}

// settle collects twice, so that pools and finalizers let go, and looks.
func settle(m *runtime.MemStats) {
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(m)
}
