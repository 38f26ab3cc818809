package history

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/model"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/memstore"
)

// move is one step of a sequence: time that passes, then a call, and the same
// call again where its reply was lost.
type move struct {
	pause time.Duration
	event model.Event
	twice bool
}

// moves draws a sequence for three owners of one key.
func moves(short time.Duration, most int) *rapid.Generator[[]move] {
	duration := rapid.SampledFrom([]time.Duration{short, short, 3 * short, time.Minute})
	owner := rapid.SampledFrom([]string{"a", "b", "c"})
	print := rapid.SampledFrom([]string{"print-1", "print-1", "print-1", "print-2"})
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) move {
		m := move{
			pause: rapid.SampledFrom([]time.Duration{0, 0, 0, short / 2, short, short, 3 * short}).Draw(t, "pause"),
			twice: rapid.Bool().Draw(t, "twice"),
		}
		e := model.Event{Owner: owner.Draw(t, "owner")}
		e.Op = rapid.SampledFrom([]model.Op{
			model.Claim, model.Claim, model.Complete, model.Complete, model.Renew, model.Release, model.Load, model.Delete,
		}).Draw(t, "op")
		switch e.Op {
		case model.Claim:
			e.Claim = idempotent.Claim{
				Owner: e.Owner, Fingerprint: print.Draw(t, "fingerprint"), Trace: "trace of " + e.Owner,
				Lease: duration.Draw(t, "lease"), Keep: duration.Draw(t, "keep"), TakeOver: rapid.IntRange(0, 3).Draw(t, "take over") > 0,
			}
		case model.Renew:
			e.Lease = duration.Draw(t, "lease")
		case model.Complete:
			e.Outcome = rapid.SampledFrom([]idempotent.Outcome{
				{Status: idempotent.Success, Result: "yes"},
				{Status: idempotent.Success},
				{Status: idempotent.Failed, Result: "no"},
				{Status: idempotent.Failed, Unknown: true, Result: "perhaps"},
				{Status: idempotent.Failed, Unknown: true},
			}).Draw(t, "outcome")
			e.Outcome.Fingerprint, e.Outcome.Retention = print.Draw(t, "fingerprint"), duration.Draw(t, "retention")
		}
		m.event = e
		return m
	}), 1, most)
}

// follow sends a sequence to a store and returns what it answered that the
// model does not, or "". After each call it looks.
func follow(ctx context.Context, s idempotent.Store, key string, seq []move, tolerance time.Duration, l licence) string {
	believed := beliefs{{}}
	var log strings.Builder
	send := func(e model.Event) bool {
		e.Key = key
		c := call{event: e, from: plain(time.Now().Add(-tolerance))}
		a := invoke(ctx, s, e)
		c.to = plain(time.Now().Add(tolerance))
		believed = believed.after(c, reply{Answer: a, known: true}, l)
		fmt.Fprintf(&log, "%s %v\n\tanswered %v\n", c.from.Format("05.000000"), e, a)
		return len(believed) > 0
	}
	for _, m := range seq {
		if m.pause > 0 {
			rest(ctx, m.pause)
		}
		look := model.Event{Op: model.Load}
		if !send(m.event) || !send(look) || m.twice && (!send(m.event) || !send(look)) {
			return log.String()
		}
	}
	return ""
}

// check has rapid draw n sequences, unless its own flag says another number,
// until one goes wrong, and shrink that one. Not for parallel tests.
func check(t *testing.T, n int, short time.Duration, most int, wrong func([]move) string) {
	t.Helper()
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		require.NoError(t, f.Value.Set(strconv.Itoa(times(n))))
		defer func() { _ = f.Value.Set(f.DefValue) }()
	}
	all := moves(short, most)
	rapid.Check(t, func(t *rapid.T) {
		if text := wrong(all.Draw(t, "moves")); text != "" {
			t.Fatalf("the last answer is not the model's:\n%s", text)
		}
	})
}

func TestSequence_Memory(t *testing.T) {
	n := 0
	check(t, 1000, 40*time.Millisecond, 60, func(seq []move) string {
		n++
		return inBubble(t, seq, plainStore)
	})
	t.Logf("%d sequences", n)
}

// inBubble follows a sequence on a new store in memory, in fake time.
func inBubble(t *testing.T, seq []move, wrap func(idempotent.Store) idempotent.Store) (wrong string) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(memstore.WithSweepInterval(0), memstore.WithLogger(slog.New(slog.DiscardHandler)))
		defer func() { _ = s.Close() }()
		wrong = follow(t.Context(), wrap(s), "key", seq, 0, licence{})
	})
	return wrong
}

func TestSequence_Server(t *testing.T) {
	redistest.Require(t)
	s := reach(t, redistest.Shared(t).Addr, 0, 0).Store
	n := 0
	check(t, 30, 20*time.Millisecond, 12, func(seq []move) string {
		n++
		return follow(t.Context(), s, rand.Text(), seq, serverTolerance, licence{fences: 1, linger: serverLinger})
	})
	t.Logf("%d sequences", n)
}

// Sequences find the broken rules that take no second caller.
func TestSequence_Mutants(t *testing.T) {
	t.Parallel()
	const most = 2000
	all := moves(40*time.Millisecond, 60)
	for _, mu := range mutants {
		if mu.name == "look and store are two steps" || mu.name == "a call that was cancelled is made" {
			continue
		}
		t.Run(mu.name, func(t *testing.T) {
			t.Parallel()
			for n := range most {
				if inBubble(t, all.Example(n), mutate(mu.plant)) != "" {
					t.Logf("reported in sequence %d", n+1)
					return
				}
			}
			t.Fatalf("not reported in %d sequences", most)
		})
	}
}
