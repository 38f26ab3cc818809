package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/idempotent-go/idempotent"
)

var benchCommand = command{
	name:    "bench",
	summary: "measure fresh and repeated operations against a store",
	help: `It runs operations that do nothing through a guard, first each under a key of its
own, then repeats of these, for -duration each, and removes its keys, which begin
with idempotent:bench:. It loads the store as much as -parallel callers can: think
before you run it against one that others use. Where it is killed, its entries go
when their retention of -duration twice and a minute has passed. Exit code 6 says
that calls have failed.
`,
	setup: setupBench,
}

// benchReplays is how many keys are repeated: few enough that a store in memory
// keeps them all.
const benchReplays = 1000

func setupBench(flags *flag.FlagSet) action {
	var b bench
	flags.DurationVar(&b.duration, "duration", 5*time.Second, "how long each of the two parts takes")
	flags.IntVar(&b.parallel, "parallel", 8, "`number` of callers at once")
	size := flags.Int("size", 256, "`bytes` of a recorded result")
	return func(ctx context.Context, s *session) error {
		if err := s.noArguments(); err != nil {
			return err
		}
		switch {
		case b.duration <= 0:
			return usage("-duration is %v; it must be positive", b.duration)
		case b.parallel < 1:
			return usage("-parallel is %d; it must be at least 1", b.parallel)
		case *size < 0:
			return usage("-size is %d; it must not be negative", *size)
		}
		store, err := s.connectAny(ctx)
		if err != nil {
			return err
		}
		b.session, b.store = s, store
		b.result = strings.Repeat("x", *size)
		b.prefix = "idempotent:bench:" + rand.Text() + ":"
		b.made = make([]int, b.parallel)
		b.guard = idempotent.New(store, idempotent.WithLogger(silent), idempotent.WithStoreTimeout(s.timeout),
			idempotent.WithSuccessRetention(2*b.duration+time.Minute))
		return b.run(ctx)
	}
}

// bench is one measurement.
type bench struct {
	*session
	store    idempotent.Store
	guard    *idempotent.Guard
	duration time.Duration
	parallel int
	result   string
	prefix   string
	made     []int // by each caller: how many keys it has used
}

// part is what was measured of one kind of call.
type part struct {
	Name      string  `json:"part"`
	Calls     int64   `json:"calls"`
	Failed    int64   `json:"failed"`
	PerSecond float64 `json:"per_second"`
	P50       float64 `json:"p50_ms"`
	P90       float64 `json:"p90_ms"`
	P99       float64 `json:"p99_ms"`
	P999      float64 `json:"p999_ms"`
	Max       float64 `json:"max_ms"`
	Error     string  `json:"error,omitempty"` // the first
}

func (b *bench) run(ctx context.Context) error {
	parts := []part{b.measure(ctx, "fresh", b.fresh)}
	if ctx.Err() == nil && parts[0].Failed < parts[0].Calls {
		each := max(1, benchReplays/b.parallel)
		b.callers(func(caller int) { // new ones, since the first may have been evicted
			for n := 0; n < each && ctx.Err() == nil; n++ {
				if b.fresh(ctx, caller) != nil {
					return // the repeats will tell
				}
			}
		})
		next := make([]int, b.parallel)
		parts = append(parts, b.measure(ctx, "replay", func(ctx context.Context, caller int) error {
			next[caller]++
			last := min(each, b.made[caller]) // where the store has failed there may be fewer
			replayed, err := b.call(ctx, b.key(caller, b.made[caller]-1-next[caller]%last))
			return orElse(err, replayed, "a repeat ran again: its record is gone")
		}))
	}
	err := errors.Join(b.clean(ctx), b.write(parts))
	if ctx.Err() != nil {
		return errors.Join(fail(exitError, "interrupted; these are the figures until then"), err)
	}
	for _, p := range parts {
		if p.Failed > 0 {
			err = errors.Join(err, fail(exitFindings, "%d of %d calls of the part %s have failed, the first with: %s", p.Failed, p.Calls, p.Name, p.Error))
		}
	}
	return err
}

func (b *bench) key(caller, n int) string {
	return b.prefix + strconv.Itoa(caller) + ":" + strconv.Itoa(n)
}

// fresh runs an operation under a key that nobody had.
func (b *bench) fresh(ctx context.Context, caller int) error {
	key := b.key(caller, b.made[caller])
	b.made[caller]++
	replayed, err := b.call(context.WithoutCancel(ctx), key)
	return orElse(err, !replayed, "a key that nobody had was answered from a record")
}

func (b *bench) call(ctx context.Context, key string) (replayed bool, err error) {
	_, replayed, err = b.guard.Run(ctx, key, func(context.Context) (idempotent.Class, string) {
		return idempotent.ClassSuccess, b.result
	})
	return replayed, err
}

// measure has all callers make one call after the other until the time is over.
// Calls that run are not cut off: their outcome would be unknown.
func (b *bench) measure(ctx context.Context, name string, call func(ctx context.Context, caller int) error) part {
	p := part{Name: name}
	all := newLatencies()
	var first error
	var lock sync.Mutex // guards p, all and first
	begin := time.Now()
	b.callers(func(caller int) {
		mine, calls, failed := newLatencies(), int64(0), int64(0)
		var err error
		for ctx.Err() == nil && (calls == 0 || time.Since(begin) < b.duration) {
			at := time.Now()
			e := call(context.WithoutCancel(ctx), caller)
			took := time.Since(at)
			calls++
			if e != nil {
				failed++
				err = e
				continue
			}
			_ = mine.RecordValue(min(int64(took), mine.HighestTrackableValue()))
		}
		lock.Lock()
		defer lock.Unlock()
		all.Merge(mine)
		p.Calls += calls
		p.Failed += failed
		if first == nil {
			first = err
		}
	})
	p.PerSecond = float64(p.Calls-p.Failed) / time.Since(begin).Seconds()
	ms := func(ns int64) float64 { return float64(ns) / 1e6 }
	p.P50, p.P90, p.P99 = ms(all.ValueAtQuantile(50)), ms(all.ValueAtQuantile(90)), ms(all.ValueAtQuantile(99))
	p.P999, p.Max = ms(all.ValueAtQuantile(99.9)), ms(all.Max())
	if first != nil {
		p.Error = redact(b.url, first.Error())
	}
	return p
}

// newLatencies holds nanoseconds up to a minute, to three digits.
func newLatencies() *hdrhistogram.Histogram { return hdrhistogram.New(1, int64(time.Minute), 3) }

// callers calls f for each caller at once and waits.
func (b *bench) callers(f func(caller int)) {
	var all sync.WaitGroup
	for caller := range b.parallel {
		all.Go(func() { f(caller) })
	}
	all.Wait()
}

// clean removes the keys, also where ctx has ended.
func (b *bench) clean(ctx context.Context) error {
	errs := make([]error, b.parallel)
	b.callers(func(caller int) {
		for n := range b.made[caller] {
			ctx, cancel := b.step(context.WithoutCancel(ctx))
			err := idempotent.Delete(ctx, b.store, b.key(caller, n))
			cancel()
			if errors.Is(err, errors.ErrUnsupported) {
				return // they go by themselves
			}
			if err != nil {
				errs[caller] = fmt.Errorf("entries under %s are left: %w", b.prefix, err)
				return
			}
		}
	})
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) write(parts []part) error {
	if b.json {
		for _, p := range parts {
			if err := b.writeJSON(p); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tCALLS\tFAILED\tPER SECOND\tP50 MS\tP90 MS\tP99 MS\tP99.9 MS\tMAX MS\t")
	for _, p := range parts {
		fmt.Fprintf(w, "%s\t%d\t%d\t%.0f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t\n", p.Name, p.Calls, p.Failed, p.PerSecond, p.P50, p.P90, p.P99, p.P999, p.Max)
	}
	return w.Flush()
}
