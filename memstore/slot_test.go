package memstore

import (
	"context"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

// The state table, driven row by row: first puts the key "k" in a state, and
// then one step is taken.
func TestStateTable(t *testing.T) {
	t.Parallel()
	takeOver := func(owner string) idempotent.Claim {
		c := claimBy(owner)
		c.TakeOver = true
		return c
	}
	claimed := func(t *testing.T, s *Store) { mustClaim(t, s, "k", claimBy("a")) }
	lapsed := func(t *testing.T, s *Store) { claimed(t, s); time.Sleep(time.Minute) }
	gone := func(t *testing.T, s *Store) { claimed(t, s); time.Sleep(time.Minute + time.Hour) }
	takeable := func(t *testing.T, s *Store) { mustClaim(t, s, "k", takeOver("a")); time.Sleep(time.Minute) }
	taken := func(t *testing.T, s *Store) {
		takeable(t, s)
		c := takeOver("b")
		c.Trace = "a longer trace"
		mustClaim(t, s, "k", c)
	}
	succeeded := func(t *testing.T, s *Store) { claimed(t, s); mustComplete(t, s, "k", "a", success("r")) }
	undecided := func(t *testing.T, s *Store) { claimed(t, s); mustComplete(t, s, "k", "a", unknown("u")) }
	forgotten := func(t *testing.T, s *Store) { succeeded(t, s); time.Sleep(24 * time.Hour) }

	claim := func(c idempotent.Claim, want bool) func(*testing.T, *Store) error {
		return func(t *testing.T, s *Store) error {
			_, got, err := s.Claim(t.Context(), "k", c)
			require.Equal(t, want, got, "claimed")
			return err
		}
	}
	other := claimBy("b")
	foreign := takeOver("b")
	foreign.Fingerprint = "another"
	renew := func(owner string) func(*testing.T, *Store) error {
		return func(t *testing.T, s *Store) error { return s.Renew(t.Context(), "k", owner, time.Minute) }
	}
	complete := func(owner string, o idempotent.Outcome) func(*testing.T, *Store) error {
		return func(t *testing.T, s *Store) error { return s.Complete(t.Context(), "k", owner, o) }
	}
	release := func(owner string) func(*testing.T, *Store) error {
		return func(t *testing.T, s *Store) error { return s.Release(t.Context(), "k", owner) }
	}
	const absent = "absent"
	tests := map[string]struct {
		first func(*testing.T, *Store)
		step  func(*testing.T, *Store) error
		err   error
		want  string // status, result and owner
	}{
		"absent, claim":                       {nil, claim(other, true), nil, "pending//b"},
		"absent, renew":                       {nil, renew("a"), idempotent.ErrLost, absent},
		"absent, complete":                    {nil, complete("a", success("r")), nil, "success/r/a"},
		"absent, release":                     {nil, release("a"), nil, absent},
		"running, claim by another":           {claimed, claim(takeOver("b"), false), nil, "pending//a"},
		"running, claim again":                {claimed, claim(claimBy("a"), true), nil, "pending//a"},
		"running, renew":                      {claimed, renew("a"), nil, "pending//a"},
		"running, renew by another":           {claimed, renew("b"), idempotent.ErrLost, "pending//a"},
		"running, complete":                   {claimed, complete("a", success("r")), nil, "success/r/a"},
		"running, complete by another":        {claimed, complete("b", success("r")), idempotent.ErrLost, "pending//a"},
		"running, release":                    {claimed, release("a"), nil, absent},
		"running, release by another":         {claimed, release("b"), idempotent.ErrLost, "pending//a"},
		"lapsed, load":                        {lapsed, nil, nil, "failed?//a"},
		"lapsed, claim by another":            {lapsed, claim(other, false), nil, "failed?//a"},
		"lapsed, claim again":                 {lapsed, claim(claimBy("a"), true), nil, "pending//a"},
		"lapsed, taker comes to no taker":     {lapsed, claim(takeOver("b"), false), nil, "failed?//a"},
		"lapsed, renew":                       {lapsed, renew("a"), nil, "pending//a"},
		"lapsed, renew by another":            {lapsed, renew("b"), idempotent.ErrLost, "failed?//a"},
		"lapsed, complete":                    {lapsed, complete("a", success("r")), nil, "success/r/a"},
		"lapsed, complete by another":         {lapsed, complete("b", success("r")), idempotent.ErrLost, "failed?//a"},
		"lapsed, release":                     {lapsed, release("a"), nil, absent},
		"lapsed with take-over, taken":        {takeable, claim(takeOver("b"), true), nil, "pending//b"},
		"lapsed with take-over, no taker":     {takeable, claim(other, false), nil, "failed?//a"},
		"lapsed with take-over, other print":  {takeable, claim(foreign, false), nil, "failed?//a"},
		"taken, renew by the first":           {taken, renew("a"), idempotent.ErrLost, "pending//b"},
		"taken, complete by the first":        {taken, complete("a", success("r")), idempotent.ErrLost, "pending//b"},
		"taken, complete":                     {taken, complete("b", success("r")), nil, "success/r/b"},
		"taken, release":                      {taken, release("b"), nil, "failed?//b"},
		"past keep, load":                     {gone, nil, nil, absent},
		"past keep, claim":                    {gone, claim(other, true), nil, "pending//b"},
		"past keep, renew":                    {gone, renew("a"), idempotent.ErrLost, absent},
		"past keep, complete":                 {gone, complete("a", success("r")), nil, "success/r/a"},
		"success, claim by another":           {succeeded, claim(other, false), nil, "success/r/a"},
		"success, claim again":                {succeeded, claim(claimBy("a"), false), nil, "success/r/a"},
		"success, renew":                      {succeeded, renew("a"), nil, "success/r/a"},
		"success, complete again":             {succeeded, complete("a", success("r")), nil, "success/r/a"},
		"success, unknown comes late":         {succeeded, complete("a", unknown("u")), nil, "success/r/a"},
		"success, another outcome":            {succeeded, complete("a", success("x")), idempotent.ErrLost, "success/r/a"},
		"success, complete by another":        {succeeded, complete("b", success("r")), idempotent.ErrLost, "success/r/a"},
		"success, release":                    {succeeded, release("a"), nil, "success/r/a"},
		"success, release by another":         {succeeded, release("b"), idempotent.ErrLost, "success/r/a"},
		"unknown, claim by another":           {undecided, claim(takeOver("b"), false), nil, "failed?/u/a"},
		"unknown, settled":                    {undecided, complete("a", success("r")), nil, "success/r/a"},
		"unknown, unknown again":              {undecided, complete("a", unknown("x")), nil, "failed?/u/a"},
		"unknown, settled by another":         {undecided, complete("b", success("r")), idempotent.ErrLost, "failed?/u/a"},
		"unknown, release":                    {undecided, release("a"), nil, absent},
		"C124 past retention, load":           {forgotten, nil, nil, absent},
		"C124 past retention, claim":          {forgotten, claim(other, true), nil, "pending//b"},
		"past retention, complete by another": {forgotten, complete("b", success("x")), nil, "success/x/b"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t)
				if tt.first != nil {
					tt.first(t, s)
				}
				if tt.step != nil {
					require.ErrorIs(t, tt.step(t, s), tt.err)
					if tt.err == nil {
						require.NoError(t, tt.step(t, s), "sent twice") // rule 2
					}
				}
				got := absent
				if e, ok := load(t, s, "k"); ok {
					got = string(e.Status) + "/" + e.Result + "/" + e.Owner
					if e.Unknown {
						got = string(e.Status) + "?/" + e.Result + "/" + e.Owner
					}
					require.Equal(t, "k", e.Key)
				}
				require.Equal(t, tt.want, got)
				requireConsistent(t, s)
				require.NoError(t, s.Delete(t.Context(), "k"))
				requireEmpty(t, s)
			})
		})
	}
}

func TestEntryTimes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		start := time.Now()
		at := func(d time.Duration) time.Time { return start.Add(d) }
		c := claimBy("a")
		c.TakeOver = true
		running := mustClaim(t, s, "k", c)
		want := idempotent.Entry{
			Key: "k", Status: idempotent.Pending, Timestamp: start, Claimed: start, Expires: at(time.Minute),
			Fingerprint: "fp", Owner: "a", Trace: "trace", Fence: start.UnixMicro(),
		}
		require.Equal(t, want, running)

		time.Sleep(30 * time.Second)
		again := c
		again.Trace, again.Keep, again.Fingerprint, again.TakeOver = "other", time.Second, "other", false
		want.Expires = at(90 * time.Second)
		require.Equal(t, want, mustClaim(t, s, "k", again), "a repeated claim changes the lease alone")

		time.Sleep(2 * time.Minute)
		abandoned, _ := load(t, s, "k")
		want.Status, want.Unknown = idempotent.Failed, true
		want.Timestamp, want.Expires = at(90*time.Second), at(90*time.Second+time.Hour)
		require.Equal(t, want, abandoned)

		c.Owner, c.Trace = "b", "trace b"
		taken := mustClaim(t, s, "k", c)
		want = idempotent.Entry{
			Key: "k", Status: idempotent.Pending, Timestamp: at(150 * time.Second), Claimed: start, Expires: at(210 * time.Second),
			Fingerprint: "fp", Owner: "b", Trace: "trace b", Fence: at(150 * time.Second).UnixMicro(),
		}
		require.Equal(t, want, taken)

		time.Sleep(10 * time.Second)
		mustComplete(t, s, "k", "b", unknown("u"))
		finished, _ := load(t, s, "k")
		want.Status, want.Unknown, want.Result = idempotent.Failed, true, "u"
		want.Timestamp, want.Expires = at(160*time.Second), at(160*time.Second+24*time.Hour)
		require.Equal(t, want, finished)

		time.Sleep(10 * time.Second)
		mustComplete(t, s, "k", "b", success(""))
		settled, _ := load(t, s, "k")
		want.Status, want.Unknown, want.Result = idempotent.Success, false, ""
		want.Timestamp, want.Expires = at(170*time.Second), at(170*time.Second+24*time.Hour)
		require.Equal(t, want, settled)
	})
}

// Rule 7: fences grow across completion, take-over and removal, also while the
// clock stands still.
func TestFenceGrows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		last := mustClaim(t, s, "k", claimBy("a")).Fence
		next := func(how string) {
			t.Helper()
			e := mustClaim(t, s, "k", claimBy("a"))
			require.Greater(t, e.Fence, last, how)
			last = e.Fence
		}
		require.NoError(t, s.Release(t.Context(), "k", "a"))
		next("released")
		require.NoError(t, s.Delete(t.Context(), "k"))
		next("deleted")
		mustComplete(t, s, "k", "a", success("r"))
		e, _ := load(t, s, "k")
		require.Equal(t, last, e.Fence, "completion keeps it")
		time.Sleep(24 * time.Hour)
		next("expired")
	})
}

// C130: a key over a buffer that is used again must not change in the store.
func TestC130_TextsAreCopied(t *testing.T) {
	t.Parallel()
	buffers := [][]byte{}
	over := func(text string) string {
		buf := []byte(text)
		buffers = append(buffers, buf)
		return unsafe.String(&buf[0], len(buf))
	}
	spoil := func() {
		for _, buf := range buffers {
			for i := range buf {
				buf[i] = '#'
			}
		}
		buffers = nil
	}
	s := newStore(t)
	c := claimBy(over("owner"))
	c.Fingerprint, c.Trace = over("print"), over("trace")
	mustClaim(t, s, over("claimed"), c)
	bare := idempotent.Claim{Owner: over("owner"), Lease: time.Minute, Keep: time.Minute}
	mustClaim(t, s, over("bare"), bare)
	o := success("r")
	o.Fingerprint = over("print")
	mustComplete(t, s, over("recorded"), over("owner"), o)
	spoil()
	for _, key := range []string{"claimed", "bare", "recorded"} {
		e, ok := load(t, s, key)
		require.True(t, ok, key)
		require.Equal(t, key, e.Key)
		require.Equal(t, "owner", e.Owner)
		if key != "bare" {
			require.Equal(t, "print", e.Fingerprint)
		}
		require.NotContains(t, e.Trace, "#")
	}
}

// C126: values that cannot be compared must not get into the map's
// compare-and-swap. Every such path is driven with everything set.
func TestC126_CompareAndSwapWithBodies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		ctx := t.Context()
		c := claimBy("a")
		c.TakeOver = true
		body := strings.Repeat("body", 1000)
		mustClaim(t, s, "k", c)
		time.Sleep(time.Minute)
		c.Owner = "b"
		mustClaim(t, s, "k", c) // replaced in the map
		mustComplete(t, s, "k", "b", unknown(body))
		mustComplete(t, s, "k", "b", success(body)) // and again
		e, _ := load(t, s, "k")
		require.Equal(t, body, e.Result)
		time.Sleep(24 * time.Hour)
		requireAbsent(t, s, "k") // removed by whoever met it
		finish(t, s, "k", success(body))
		require.NoError(t, s.Delete(ctx, "k")) // removed by hand
		finish(t, s, "k", unknown(body))
		require.NoError(t, s.Release(ctx, "k", "owner")) // removed by its owner
		requireEmpty(t, s)
	})
}

func TestVeryLongDurationsDoNotOverflow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		time.Sleep(time.Hour)
		c := claimBy("a")
		c.Lease, c.Keep = math.MaxInt64, math.MaxInt64
		later := time.Now().AddDate(100, 0, 0)
		e := mustClaim(t, s, "k", c)
		require.True(t, e.Expires.After(later), "lease ends %v", e.Expires)
		c.Lease = time.Minute
		mustClaim(t, s, "k", c)
		time.Sleep(time.Hour)
		e, ok := load(t, s, "k")
		require.True(t, ok)
		require.True(t, e.Unknown)
		require.True(t, e.Expires.After(later), "kept until %v", e.Expires)
		require.NoError(t, s.Renew(t.Context(), "k", "a", math.MaxInt64))
		requireStatus(t, s, idempotent.Pending, "k")
		o := success("r")
		o.Retention = math.MaxInt64
		mustComplete(t, s, "k", "a", o)
		e, _ = load(t, s, "k")
		require.True(t, e.Expires.After(later), "retained until %v", e.Expires)
		_, err := s.Sweep(t.Context())
		require.NoError(t, err)
		requireStatus(t, s, idempotent.Success, "k")
	})
}

func TestInvalidArguments(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ctx := t.Context()
	short := claimBy("a")
	short.Lease = time.Millisecond - 1
	calls := map[string]func() error{
		"load, empty key":      func() error { _, _, err := s.Load(ctx, ""); return err },
		"claim, empty key":     func() error { _, _, err := s.Claim(ctx, "", claimBy("a")); return err },
		"claim, empty owner":   func() error { _, _, err := s.Claim(ctx, "k", claimBy("")); return err },
		"claim, short lease":   func() error { _, _, err := s.Claim(ctx, "k", short); return err },
		"renew, empty key":     func() error { return s.Renew(ctx, "", "a", time.Second) },
		"renew, short lease":   func() error { return s.Renew(ctx, "k", "a", 0) },
		"complete, empty key":  func() error { return s.Complete(ctx, "", "a", success("r")) },
		"complete, no outcome": func() error { return s.Complete(ctx, "k", "a", idempotent.Outcome{}) },
		"release, empty owner": func() error { return s.Release(ctx, "k", "") },
		"delete, empty key":    func() error { return s.Delete(ctx, "") },
		"wait, empty key":      func() error { _, _, err := s.Wait(ctx, ""); return err },
	}
	for name, call := range calls {
		require.ErrorIs(t, call(), idempotent.ErrInvalid, name)
	}
	requireEmpty(t, s)
}

// everyMethod calls each method that returns an error.
func everyMethod(ctx context.Context, s *Store) map[string]error {
	errs := map[string]error{}
	_, _, errs["Load"] = s.Load(ctx, "k")
	_, _, errs["Claim"] = s.Claim(ctx, "k", claimBy("a"))
	errs["Renew"] = s.Renew(ctx, "k", "a", time.Second)
	errs["Complete"] = s.Complete(ctx, "k", "a", success("x"))
	errs["Release"] = s.Release(ctx, "k", "a")
	errs["Delete"] = s.Delete(ctx, "k")
	errs["Ping"] = s.Ping(ctx)
	_, _, errs["Wait"] = s.Wait(ctx, "k")
	_, errs["Sweep"] = s.Sweep(ctx)
	_, errs["List"] = s.List(ctx, idempotent.ListQuery{})
	return errs
}

func TestEndedContextChangesNothing(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	before := mustClaim(t, s, "k", claimBy("a"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, err := range everyMethod(ctx, s) {
		require.ErrorIs(t, err, context.Canceled, name)
	}
	after, ok := load(t, s, "k")
	require.True(t, ok)
	require.Equal(t, before, after)
}

// C129: instants are counted on the monotonic clock alone. Fake time has none,
// so this runs on the real one.
func TestC129_WallClockJump(t *testing.T) {
	t.Parallel()
	for name, jump := range map[string]time.Duration{"back": -time.Hour, "forward": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			long, short := claimBy("a"), claimBy("a")
			long.Lease, short.Lease = time.Minute, time.Millisecond
			mustClaim(t, s, "long", long)
			mustClaim(t, s, "short", short)
			s.clock.start = shiftWall(s.clock.start, -jump)
			requireStatus(t, s, idempotent.Pending, "long")
			require.Eventually(t, func() bool {
				e, _ := load(t, s, "short")
				return e.Status == idempotent.Failed
			}, 10*time.Second, time.Millisecond)
		})
	}
}

// shiftWall moves the wall clock reading of t and leaves its monotonic one,
// which is what a jump between then and now looks like.
func shiftWall(t time.Time, d time.Duration) time.Time {
	type layout struct { // of time.Time with a monotonic reading: 33 bits of seconds, 30 of nanoseconds
		wall uint64
		ext  int64
		loc  *time.Location
	}
	l := (*layout)(unsafe.Pointer(&t))
	l.wall += uint64(int64(d/time.Second) << 30)
	return t
}
