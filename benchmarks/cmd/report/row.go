package main

import (
	"fmt"
	"math"
	"strings"
)

// row is one row of the table of targets.
type row struct {
	id, what, target string
	redis            bool // needs a server
	measure          func(*bench) (outcome, error)
}

// outcome is what was measured for a row.
type outcome struct {
	checks []check
	notes  []string // figures that no target is for
}

func (o *outcome) note(format string, args ...any) {
	o.notes = append(o.notes, fmt.Sprintf(format, args...))
}

// check is one figure with its target. The figure may be at most the limit, or
// at least where atLeast says so.
type check struct {
	what    string
	got     float64
	limit   float64
	atLeast bool
	unit    string
}

func (c check) ok() bool {
	if c.atLeast {
		return c.got >= c.limit
	}
	return c.got <= c.limit // false of NaN
}

// String says what was measured, and what was asked for where it falls short.
func (c check) String() string {
	s := strings.TrimSpace(c.what + " " + number(c.got) + c.unit)
	if !c.ok() {
		bound := "at most"
		if c.atLeast {
			bound = "at least"
		}
		s += fmt.Sprintf(" (%s %s%s)", bound, number(c.limit), c.unit)
	}
	return s
}

// number writes three significant digits, and small whole numbers as they are.
func number(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return "?"
	case v == math.Trunc(v) && a < 1e6:
		return fmt.Sprintf("%.0f", v)
	case a >= 1e6:
		return fmt.Sprintf("%.3g M", v/1e6)
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 0.1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.2g", v)
}

// verdict is what became of a row.
type verdict string

const (
	met         verdict = "met"
	short       verdict = "**short**"
	notMeasured verdict = "not measured"
	broken      verdict = "**failed to run**"
)

// result is a row with what became of it.
type result struct {
	row
	outcome
	verdict verdict
	err     error
}

// judge makes a result of what a measurement returned.
func judge(r row, o outcome, err error) result {
	res := result{row: r, outcome: o, verdict: met, err: err}
	if err != nil {
		res.verdict = broken
		return res
	}
	if len(o.checks) == 0 {
		res.verdict = notMeasured
	}
	for _, c := range o.checks {
		if !c.ok() {
			res.verdict = short
		}
	}
	return res
}

// figure is the text of the table's column.
func (r result) figure() string {
	if r.err != nil {
		return r.err.Error()
	}
	parts := make([]string, len(r.checks))
	for i, c := range r.checks {
		parts[i] = c.String()
	}
	return strings.Join(parts, "; ")
}

// rows is the table, in its order.
func rows() []row {
	return []row{
		{"P1", "memstore, replay (Load of a finished entry, 10,000 keys, parallel)", "≤ 2.0 × bare `sync.Map.Load`; 0 allocations", false, memoryReplay},
		{"P2", "memstore, fresh claim + complete", "≤ 1.6 × bare `LoadOrStore` of the same value; ≤ 4 allocations", false, memoryFresh},
		{"P3", "64 goroutines claiming one key", "≤ 0.9 × bare `LoadOrStore`; exactly one owner", false, memoryConflict},
		{"P4", "eviction of the oldest 10 %, per evicted entry", "≤ 0.3 × scan all, sort, delete; growing ≤ 5 × from 10 k to 1 M", false, memoryEviction},
		{"P5", "busy server bounded at 10 k", "≥ 1.2 × the cycles/s of scan-and-sort; never above the bound by more than a tenth and the running claims; no request pays more than 1 ms for it", false, memoryBusy},
		{"P6", "memory", "≤ 300 B per entry beyond key, headers and body, at 1 M entries", false, memoryBytes},
		{"P7", "middleware, replay, raw fingerprint, in process: what it adds over bare", "≤ 0.5 × what fiber's adds over its bare app; ≤ 3 allocations", false, middlewareReplay},
		{"P8", "middleware, fresh, raw fingerprint, in process: what it adds over bare", "≤ 0.85 × what fiber's adds; ≤ bare + 10 allocations", false, middlewareFresh},
		{"P9", "over loopback, 64 connections, store bounded at 10 k", "≥ 0.75 × bare (fresh), ≥ 0.80 × bare (replay)", false, loopback},
		{"P10", "canonical JSON fingerprint, 1 KB", "≤ 8 × SHA-256 of the raw bytes; ≤ 6 allocations; number literals kept", false, canonicalJSON},
		{"P11", "Redis round trips, counted at the server", "fresh 2; replay, in flight, mismatch 1; waiting ≤ 1.5 commands per waiter", true, redisRoundTrips},
		{"P12", "Redis, fresh, the record a hash", "at 64 goroutines ≤ 2.2 × (2 × PING) and ≤ 0.8 × lock-get-set-unlock; at 1 ≤ 1.4 ×", true, redisFresh},
		{"P13", "Redis, replay", "at 64 goroutines ≤ 1.8 × PING; at 1 ≤ 1.4 ×", true, redisReplay},
		{"P14", "wake-up of 100 waiters after completion, memory", "median ≤ 0.5 ms, p99 ≤ 2 ms", false, memoryWake},
		{"P15", "the same on Redis", "median ≤ completion call + 1 ms; p99 ≤ half of 10 ms polling", true, redisWake},
		{"P16", "a lease that needs no renewal", "≤ 1 timer, 0 goroutines, ≤ 2 allocations", false, idleLease},
		{"P17", "Redis memory per record with a 512 B response, MEMORY USAGE", "≤ 1.9 × the bytes of key, headers and body", true, redisBytes},
	}
}
