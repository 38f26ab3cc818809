package peer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// What Check asks of a peer.
const (
	checkCallers = 64   // who want one key at once
	checkKeys    = 1000 // each run, then repeated
)

// Verdict is what a check found. The zero Verdict is that of a peer that does
// the job.
type Verdict struct {
	Duplicates int    // operations that ran although their key had been used
	Wrong      string // the first answer that was not the recorded one, or the first error
	// Unguarded: another request under a used key was not refused.
	Unguarded bool
}

// OK reports whether no operation ran twice and every answer was right. Most
// peers cannot tell requests apart, and are not asked to.
func (v Verdict) OK() bool { return v.Duplicates == 0 && v.Wrong == "" }

// String says it in the words of a table.
func (v Verdict) String() string {
	var parts []string
	if v.Duplicates > 0 {
		parts = append(parts, fmt.Sprintf("ran %d duplicates", v.Duplicates))
	}
	if v.Wrong != "" {
		parts = append(parts, v.Wrong)
	}
	if len(parts) == 0 {
		return "yes"
	}
	return "NO: " + strings.Join(parts, "; ")
}

// Check opens a peer of kind and asks it for one key from 64 goroutines at
// once, then for 1,000 keys one after the other, each of them again, and for
// another request under a used key. The error says that this was not possible
// at all.
func Check(ctx context.Context, kind Kind, redis string) (Verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var c checker
	p, err := kind.Open(c.op, redis)
	if err != nil {
		return Verdict{}, fmt.Errorf("%s: %w", kind.Name, err)
	}
	defer func() { _ = p.Close() }()
	c.peer = p
	c.together(ctx)
	c.oneByOne(ctx)
	c.mismatch(ctx)
	return c.Verdict, ctx.Err()
}

type checker struct {
	Verdict
	peer    Peer
	runs    atomic.Int64
	callers atomic.Int64
}

// op returns another answer each time, so that a second run shows. While
// several callers are expected it takes until they have come.
func (c *checker) op() string {
	n := c.runs.Add(1)
	for end := time.Now().Add(time.Second); c.callers.Load()%checkCallers != 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if c.callers.Load() > 0 {
		time.Sleep(5 * time.Millisecond) // let them get from the counter into the peer
	}
	return answer(n)
}

// answer is 512 bytes that are easily mangled.
func answer(n int64) string {
	head := fmt.Sprintf(`{"run":%d,"text":"ü €<&>\n`, n)
	return head + strings.Repeat("x", 512-len(head)-2) + `"}`
}

func checkKey(n int) string { return fmt.Sprintf("018f7a3e-5b1c-7c3d-9e2a-%012d", n) }

func (c *checker) wrong(format string, args ...any) {
	if c.Wrong == "" {
		c.Wrong = fmt.Sprintf(format, args...)
	}
}

// together lets 64 goroutines want one key.
func (c *checker) together(ctx context.Context) {
	answers, errs := make([]string, checkCallers), make([]error, checkCallers)
	var all sync.WaitGroup
	for i := range checkCallers {
		all.Go(func() {
			c.callers.Add(1)
			answers[i], errs[i] = c.peer.Do(ctx, checkKey(0), "request")
		})
	}
	all.Wait()
	c.callers.Store(0)
	ran := c.runs.Load()
	switch {
	case ran == 0:
		c.wrong("nobody of %d callers ran it: %v", checkCallers, errors.Join(errs...))
		return
	case ran > 1:
		c.Duplicates += int(ran - 1)
	}
	answered := 0
	for i, got := range answers {
		switch {
		case errors.Is(errs[i], ErrInFlight):
		case errs[i] != nil:
			c.wrong("a caller of %d got %v", checkCallers, errs[i])
		case ran == 1 && got != answer(1):
			c.wrong("a caller of %d got another answer", checkCallers)
		default:
			answered++
		}
	}
	if answered == 0 {
		c.wrong("nobody of %d callers got the answer", checkCallers)
	}
	if ran == 1 {
		c.repeat(ctx, checkKey(0), answer(1))
	}
}

// repeat asks for a key again and wants the recorded answer.
func (c *checker) repeat(ctx context.Context, key, want string) {
	before := c.runs.Load()
	got, err := c.peer.Do(ctx, key, "request")
	switch {
	case c.runs.Load() != before:
		c.Duplicates++
	case err != nil:
		c.wrong("a repeat got %v", err)
	case got != want:
		c.wrong("a repeat got other bytes than were recorded")
	}
}

// oneByOne runs many keys, and then repeats each of them.
func (c *checker) oneByOne(ctx context.Context) {
	answers := make([]string, checkKeys)
	for i := range answers {
		before := c.runs.Load()
		got, err := c.peer.Do(ctx, checkKey(i+1), "request")
		if err != nil {
			c.wrong("a fresh key got %v", err)
			return
		}
		if c.runs.Load() == before {
			c.wrong("a fresh key was not run")
		}
		answers[i] = got
	}
	for i, want := range answers {
		c.repeat(ctx, checkKey(i+1), want)
	}
}

// mismatch sends another request under a used key.
func (c *checker) mismatch(ctx context.Context) {
	_, err := c.peer.Do(ctx, checkKey(1), "another request")
	c.Unguarded = !errors.Is(err, ErrMismatch)
}
