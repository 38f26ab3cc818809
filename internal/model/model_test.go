package model_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/model"
)

const (
	lease     = time.Minute
	keep      = time.Hour
	retention = 24 * time.Hour
)

var start = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)

func claim(owner string) model.Event {
	return model.Event{Op: model.Claim, Key: "key", Claim: idempotent.Claim{
		Owner: owner, Fingerprint: "print", Trace: "trace-" + owner, Lease: lease, Keep: keep,
	}}
}

func takeOver(owner string) model.Event {
	e := claim(owner)
	e.Claim.TakeOver = true
	return e
}

func other(e model.Event) model.Event {
	e.Claim.Fingerprint = "another"
	return e
}

func complete(owner string, s idempotent.Status, unknown bool, result string) model.Event {
	return model.Event{Op: model.Complete, Key: "key", Owner: owner, Outcome: idempotent.Outcome{
		Status: s, Unknown: unknown, Result: result, Fingerprint: "repeated", Retention: retention,
	}}
}

func success(owner string) model.Event { return complete(owner, idempotent.Success, false, "yes") }
func failure(owner string) model.Event { return complete(owner, idempotent.Failed, false, "no") }
func unknown(owner string) model.Event { return complete(owner, idempotent.Failed, true, "perhaps") }

func renew(owner string) model.Event {
	return model.Event{Op: model.Renew, Key: "key", Owner: owner, Lease: lease}
}

func release(owner string) model.Event {
	return model.Event{Op: model.Release, Key: "key", Owner: owner}
}

func load() model.Event   { return model.Event{Op: model.Load, Key: "key"} }
func remove() model.Event { return model.Event{Op: model.Delete, Key: "key"} }

// at is a call at a moment after the start.
type at struct {
	after time.Duration
	event model.Event
}

// The rows of the state table, written out by hand.
func TestStep(t *testing.T) {
	const lapsed, gone, expired = lease, lease + keep, retention
	for _, row := range []struct {
		name  string
		calls []at
		last  at
		ok    bool
		err   error
		reads string // "absent", or status and owner of what Load finds just afterwards
	}{
		{"absent, claim", nil, at{0, claim("a")}, true, nil, "pending a"},
		{"running, repeated claim", []at{{0, claim("a")}}, at{1, claim("a")}, true, nil, "pending a"},
		{"running, other claim", []at{{0, takeOver("a")}}, at{lapsed - 1, takeOver("b")}, false, nil, "pending a"},
		{"lapsed, repeated claim", []at{{0, claim("a")}}, at{lapsed, claim("a")}, true, nil, "pending a"},
		{"lapsed, take-over", []at{{0, takeOver("a")}}, at{lapsed, takeOver("b")}, true, nil, "pending b"},
		{"lapsed, take-over not allowed", []at{{0, claim("a")}}, at{lapsed, takeOver("b")}, false, nil, "unknown a"},
		{"lapsed, take-over not wanted", []at{{0, takeOver("a")}}, at{lapsed, claim("b")}, false, nil, "unknown a"},
		{"lapsed, take-over by another request", []at{{0, takeOver("a")}}, at{lapsed, other(takeOver("b"))}, false, nil, "unknown a"},
		{"lapsed, load", []at{{0, claim("a")}}, at{gone - 1, load()}, true, nil, "unknown a"},
		{"past Keep, load", []at{{0, claim("a")}}, at{gone, load()}, false, nil, "absent"},
		{"past Keep, claim", []at{{0, takeOver("a")}}, at{gone, claim("b")}, true, nil, "pending b"},
		{"finished, claim", []at{{0, success("a")}}, at{1, claim("a")}, false, nil, "success a"},
		{"finished, last moment", []at{{0, success("a")}}, at{expired - 1, claim("b")}, false, nil, "success a"},
		{"past retention, claim", []at{{0, success("a")}}, at{expired, claim("b")}, true, nil, "pending b"},

		{"running, renew", []at{{0, claim("a")}}, at{1, renew("a")}, false, nil, "pending a"},
		{"lapsed, renew", []at{{0, claim("a")}}, at{lapsed, renew("a")}, false, nil, "pending a"},
		{"finished, renew", []at{{0, success("a")}}, at{1, renew("a")}, false, nil, "success a"},
		{"absent, renew", nil, at{0, renew("a")}, false, idempotent.ErrLost, "absent"},
		{"another's, renew", []at{{0, claim("a")}}, at{lapsed, renew("b")}, false, idempotent.ErrLost, "unknown a"},
		{"another's and finished, renew", []at{{0, success("a")}}, at{1, renew("b")}, false, idempotent.ErrLost, "success a"},

		{"running, complete", []at{{0, claim("a")}}, at{1, success("a")}, false, nil, "success a"},
		{"lapsed, complete", []at{{0, claim("a")}}, at{lapsed, failure("a")}, false, nil, "failed a"},
		{"unknown, complete as known", []at{{0, unknown("a")}}, at{1, success("a")}, false, nil, "success a"},
		{"unknown, complete as unknown", []at{{0, unknown("a")}}, at{1, unknown("a")}, false, nil, "unknown a"},
		{"known, the same", []at{{0, success("a")}}, at{1, success("a")}, false, nil, "success a"},
		{"known, complete as unknown", []at{{0, success("a")}}, at{1, unknown("a")}, false, nil, "success a"},
		{"known, another", []at{{0, success("a")}}, at{1, failure("a")}, false, idempotent.ErrLost, "success a"},
		{"known, another result", []at{{0, success("a")}}, at{1, complete("a", idempotent.Success, false, "")}, false, idempotent.ErrLost, "success a"},
		{"absent, complete", nil, at{0, unknown("a")}, false, nil, "unknown a"},
		{"past Keep, complete", []at{{0, claim("a")}}, at{gone, success("b")}, false, nil, "success b"},
		{"another's, complete", []at{{0, claim("a")}}, at{lapsed, success("b")}, false, idempotent.ErrLost, "unknown a"},
		{"another's unknown, complete", []at{{0, unknown("a")}}, at{1, success("b")}, false, idempotent.ErrLost, "unknown a"},

		{"running, release", []at{{0, claim("a")}}, at{1, release("a")}, false, nil, "absent"},
		{"lapsed, release", []at{{0, takeOver("a")}}, at{lapsed, release("a")}, false, nil, "absent"},
		{"taken over, release", []at{{0, takeOver("a")}, {lapsed, takeOver("b")}}, at{lapsed, release("b")}, false, nil, "unknown b"},
		{"taken over and removed, release", []at{{0, takeOver("a")}, {lapsed, takeOver("b")}, {lapsed, remove()}, {lapsed, claim("b")}}, at{lapsed, release("b")}, false, nil, "absent"},
		{"unknown, release", []at{{0, unknown("a")}}, at{1, release("a")}, false, nil, "absent"},
		{"known, release", []at{{0, failure("a")}}, at{1, release("a")}, false, nil, "failed a"},
		{"absent, release", nil, at{0, release("a")}, false, nil, "absent"},
		{"another's, release", []at{{0, unknown("a")}}, at{1, release("b")}, false, idempotent.ErrLost, "unknown a"},

		{"running, delete", []at{{0, claim("a")}}, at{1, remove()}, false, nil, "absent"},
		{"absent, delete", nil, at{0, remove()}, false, nil, "absent"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var s model.State
			for _, c := range row.calls {
				s, _ = s.Step(start.Add(c.after), c.event)
			}
			now := start.Add(row.last.after)
			s, got := s.Step(now, row.last.event)
			require.ErrorIs(t, got.Err, row.err)
			require.Equal(t, row.ok, got.OK)

			_, read := s.Step(now, load())
			reads := "absent"
			if e := read.Entry; read.OK {
				reads = string(e.Status) + " " + e.Owner
				if e.Unknown {
					reads = "unknown " + e.Owner
				}
			}
			require.Equal(t, row.reads, reads)
		})
	}
}

func TestStep_Times(t *testing.T) {
	var s model.State
	s, a := s.Step(start, takeOver("a"))
	require.Equal(t, idempotent.Entry{
		Key: "key", Status: idempotent.Pending, Timestamp: start, Claimed: start, Expires: start.Add(lease),
		Fingerprint: "print", Owner: "a", Trace: "trace-a", Fence: start.UnixMicro(),
	}, a.Entry)

	lapse := start.Add(lease)
	_, a = s.Step(lapse.Add(time.Second), load())
	require.Equal(t, idempotent.Entry{
		Key: "key", Status: idempotent.Failed, Unknown: true, Timestamp: lapse, Claimed: start, Expires: lapse.Add(keep),
		Fingerprint: "print", Owner: "a", Trace: "trace-a", Fence: start.UnixMicro(),
	}, a.Entry)

	s, a = s.Step(lapse, takeOver("b"))
	require.Equal(t, idempotent.Entry{
		Key: "key", Status: idempotent.Pending, Timestamp: lapse, Claimed: start, Expires: lapse.Add(lease),
		Fingerprint: "print", Owner: "b", Trace: "trace-b", Fence: lapse.UnixMicro(),
	}, a.Entry)
	require.Equal(t, []time.Time{lapse.Add(lease), lapse.Add(lease + keep)}, s.Boundary())

	done := lapse.Add(time.Second)
	s, _ = s.Step(done, success("b"))
	require.Equal(t, idempotent.Entry{
		Key: "key", Status: idempotent.Success, Result: "yes", Timestamp: done, Claimed: start, Expires: done.Add(retention),
		Fingerprint: "print", Owner: "b", Trace: "trace-b", Fence: lapse.UnixMicro(),
	}, s.Read(done))
	require.Equal(t, []time.Time{done.Add(retention)}, s.Boundary())

	s, _ = s.Step(done, remove())
	require.Empty(t, s.Boundary())
	s, _ = s.Step(done, success("c"))
	require.Equal(t, idempotent.Entry{
		Key: "key", Status: idempotent.Success, Result: "yes", Timestamp: done, Claimed: done, Expires: done.Add(retention),
		Fingerprint: "repeated", Owner: "c", Fence: done.UnixMicro(),
	}, s.Read(done))
}

func TestStep_FenceGrowsWhileTheClockStands(t *testing.T) {
	var s model.State
	last := int64(0)
	for range 3 {
		var a model.Answer
		s, a = s.Step(start, claim("a"))
		require.True(t, a.OK)
		require.Greater(t, a.Entry.Fence, last)
		last = a.Entry.Fence
		s, _ = s.Step(start, release("a"))
	}
}

func TestStep_FenceOfLateOutcomeGrows(t *testing.T) {
	s, a := model.State{}.Step(start, claim("a"))
	last := a.Entry.Fence
	s, _ = s.Step(start, release("a"))
	s, _ = s.Step(start, success("b"))
	require.Equal(t, last+1, s.Entry.Fence)
	require.Equal(t, last+1, s.Fence)
}

func TestStep_LongestDurations(t *testing.T) {
	e := claim("a")
	e.Claim.Lease, e.Claim.Keep = math.MaxInt64, math.MaxInt64
	s, a := model.State{}.Step(start, e)
	require.True(t, a.OK)
	require.True(t, s.Entry.Expires.After(start))
	require.False(t, s.Gone(s.Entry.Expires), "lease and Keep overflow together")
}

func TestStep_InvalidChangesNothing(t *testing.T) {
	held, _ := model.State{}.Step(start, claim("a"))
	noKey, noOwner, noLease, noOutcome := load(), renew(""), renew("a"), success("a")
	noKey.Key, noLease.Lease, noOutcome.Outcome.Status = "", 0, idempotent.Pending
	for _, e := range []model.Event{noKey, noOwner, noLease, noOutcome, claim(""), release(""), {Op: model.Delete}} {
		s, a := held.Step(start, e)
		require.ErrorIs(t, a.Err, idempotent.ErrInvalid, "%v", e)
		require.Equal(t, held, s)
	}
}

func TestStrings(t *testing.T) {
	require.Equal(t, `Release("key", "a")`, release("a").String())
	require.Equal(t, `Renew("key", "a", 1m0s)`, renew("a").String())
	require.Equal(t, `Load("key")`, load().String())
	require.Contains(t, claim("a").String(), "Claim")
	require.Contains(t, success("a").String(), "Complete")
	require.Equal(t, "Op(9)", model.Op(9).String())
	require.Equal(t, "no entry, false, <nil>", model.Answer{}.String())
	_, a := model.State{}.Step(start, claim("a"))
	require.Contains(t, a.String(), `pending of "a"`)
}
