package main

import (
	"context"
	"runtime"
	"slices"
	"strings"

	"github.com/idempotent-go/idempotent"
)

// idleLease is P16: an operation that ends long before its lease must be
// renewed.
func idleLease(b *bench) (outcome, error) {
	var o outcome
	s := newMemory()
	defer func() { _ = s.Close() }()
	g := idempotent.New(s)
	names := b.names(b.size(2000, 500))
	goroutines := 0
	var failed error
	run := func() {
		before := runtime.NumGoroutine()
		for _, name := range names {
			_, _, err := g.Run(b.ctx, name, func(context.Context) (idempotent.Class, string) {
				goroutines = max(goroutines, runtime.NumGoroutine()-before)
				return idempotent.ClassSuccess, answer
			})
			if err != nil {
				failed = err
			}
		}
	}
	// A timer of a context, which bounds a call of the store, is not the
	// lease's.
	inLease := func(f runtime.Frame) bool {
		return strings.HasPrefix(f.Function, "github.com/idempotent-go/idempotent.") && strings.HasSuffix(f.File, "/lease.go")
	}
	inContext := func(f runtime.Frame) bool { return strings.HasPrefix(f.Function, "context.") }
	newTimer := func(f runtime.Frame) bool { return f.Function == "time.newTimer" }
	got := allocated(run,
		func(stack []runtime.Frame) bool {
			return slices.ContainsFunc(stack, newTimer) && !slices.ContainsFunc(stack, inContext)
		},
		func(stack []runtime.Frame) bool { return slices.ContainsFunc(stack, inLease) },
		func(stack []runtime.Frame) bool { return slices.ContainsFunc(stack, newTimer) },
	)
	if failed != nil {
		return o, failed
	}
	each := func(objects int64) float64 { return float64(objects) / float64(len(names)) }
	o.checks = []check{
		{got: rounded(each(got[0])), limit: 1, unit: " timer"},
		{got: float64(goroutines), unit: " goroutines"},
		{got: rounded(each(got[1])), limit: 2, unit: " allocations"},
	}
	o.note("counted by where they are allocated: lease.go; the lease itself lies in what the guard allocates for the run")
	o.note("with the timers that bound calls of the store: %s a run", number(rounded(each(got[2]))))
	return o, nil
}

// rounded drops what other goroutines allocated meanwhile.
func rounded(perRun float64) float64 { return float64(int(perRun*100+0.5)) / 100 }

// allocated returns how many objects run allocates whose stack, the innermost
// frame first, each of the functions matches.
func allocated(run func(), matches ...func(stack []runtime.Frame) bool) []int64 {
	rate := runtime.MemProfileRate
	runtime.MemProfileRate = 1
	defer func() { runtime.MemProfileRate = rate }()
	before := profile()
	run()
	counts := make([]int64, len(matches))
	for stack, objects := range profile() {
		if objects -= before[stack]; objects == 0 {
			continue
		}
		frames := framesOf(stack)
		for i, match := range matches {
			if match(frames) {
				counts[i] += objects
			}
		}
	}
	return counts
}

type stack = [32]uintptr

// profile returns the objects allocated so far by each stack.
func profile() map[stack]int64 {
	runtime.GC() // a profile is that of the last but one collection
	runtime.GC()
	var records []runtime.MemProfileRecord
	for n, ok := runtime.MemProfile(nil, true); !ok; {
		records = make([]runtime.MemProfileRecord, n+100)
		n, ok = runtime.MemProfile(records, true)
		records = records[:min(n, len(records))]
	}
	objects := map[stack]int64{}
	for _, r := range records {
		objects[r.Stack0] += r.AllocObjects
	}
	return objects
}

func framesOf(s stack) []runtime.Frame {
	pcs := slices.DeleteFunc(slices.Clone(s[:]), func(pc uintptr) bool { return pc == 0 })
	var out []runtime.Frame
	frames := runtime.CallersFrames(pcs)
	for {
		f, more := frames.Next()
		out = append(out, f)
		if !more {
			return out
		}
	}
}
