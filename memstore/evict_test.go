package memstore

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

func names(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("%s%d", prefix, i)
	}
	return all
}

func finishAll(t testing.TB, s *Store, o idempotent.Outcome, keys ...string) {
	t.Helper()
	for _, key := range keys {
		finish(t, s, key, o)
	}
}

func requireFull(t testing.TB, s *Store, key string) {
	t.Helper()
	before := s.Stats()
	_, claimed, err := s.Claim(context.Background(), key, claimBy("late"))
	require.ErrorIs(t, err, idempotent.ErrFull)
	require.False(t, claimed)
	requireAbsent(t, s, key)
	after := s.Stats()
	require.Equal(t, before.Entries, after.Entries)
	require.Equal(t, before.Bytes, after.Bytes)
}

func TestB71_OldestFinishedGo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		told := new(events)
		s := newStore(t, WithMaxEntries(20), WithObserver(told))
		mustClaim(t, s, "running", claimBy("owner"))
		lapsing := claimBy("owner")
		lapsing.Lease = time.Millisecond
		mustClaim(t, s, "lapsed", lapsing)
		keys := names("k", 20)
		for _, key := range keys {
			finish(t, s, key, success("r"))
			time.Sleep(time.Second)
		}
		require.Equal(t, 22, s.Len(), "a tenth above the bound is left to the sweep")
		require.Zero(t, s.Stats().Evicted)

		mustClaim(t, s, "new", claimBy("owner"))
		requireAbsent(t, s, keys[:3]...)
		requireStatus(t, s, idempotent.Success, keys[3:]...)
		requireStatus(t, s, idempotent.Pending, "running", "new")
		requireStatus(t, s, idempotent.Failed, "lapsed")
		require.Equal(t, 20, s.Len())
		requireConsistent(t, s)
		st := s.Stats()
		require.Equal(t, 3, st.Evicted)
		require.Equal(t, 3, st.EvictedEarly)
		all := told.take()
		require.Len(t, all, 3)
		require.Equal(t, idempotent.Event{
			Kind: idempotent.EventEvicted, Key: "k0", Owner: "owner", Trace: "trace", Status: idempotent.Success, Age: 20 * time.Second,
		}, all[0])
	})
}

// The order is that of completion, not of the claim.
func TestB71_OrderOfCompletion(t *testing.T) {
	t.Parallel()
	s := newStore(t, WithMaxEntries(3))
	for _, key := range []string{"a", "b", "c"} {
		mustClaim(t, s, key, claimBy("owner"))
	}
	for _, key := range []string{"c", "a", "b"} {
		mustComplete(t, s, key, "owner", success("r"))
	}
	finish(t, s, "d", success("r"))
	requireAbsent(t, s, "c")
	finish(t, s, "e", success("r"))
	requireAbsent(t, s, "c", "a")
	requireStatus(t, s, idempotent.Success, "b", "d", "e")
}

func TestB71_ExpiredGoFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, WithMaxEntries(1000))
		short := success("r")
		short.Retention = time.Minute
		long, passing := names("long", 700), names("short", 400)
		finishAll(t, s, success("r"), long...)
		finishAll(t, s, short, passing...)
		time.Sleep(time.Minute)
		mustClaim(t, s, "new", claimBy("owner"))
		requireStatus(t, s, idempotent.Success, long...)
		st := s.Stats()
		require.Equal(t, 701, st.Entries)
		require.Equal(t, 400, st.Expired)
		require.Zero(t, st.Evicted)
		requireConsistent(t, s)
	})
}

// What is left in a segment after a look at it is found when its time comes.
func TestB71_ExpiredGoFirstEveryTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, WithMaxEntries(3))
		finish(t, s, "long", success("r"))
		for i := range 2 {
			o := success("r")
			o.Retention = time.Duration(i+1) * time.Minute
			finish(t, s, fmt.Sprint("short", i), o)
		}
		for i := range 2 {
			time.Sleep(time.Minute)
			mustClaim(t, s, fmt.Sprint("new", i), claimBy("owner"))
			require.Equal(t, i+1, s.Stats().Expired)
			requireStatus(t, s, idempotent.Success, "long")
		}
	})
}

// More than one request may remove are left for those who follow, before
// anything goes that has retention left.
func TestB71_ExpiredGoFirstInParts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, WithMaxEntries(3000))
		short := success("r")
		short.Retention = time.Minute
		finishAll(t, s, short, names("short", 2500)...)
		long := names("long", 3000)
		finishAll(t, s, success("r"), long[:800]...)
		time.Sleep(time.Minute)
		finishAll(t, s, success("r"), long[800:]...)
		requireStatus(t, s, idempotent.Success, long...)
		st := s.Stats()
		require.Zero(t, st.Evicted)
		require.Equal(t, 2500, st.Expired)
		requireConsistent(t, s)
	})
}

func TestB71_FullOfRunningClaims(t *testing.T) {
	t.Parallel()
	s := newStore(t, WithMaxEntries(10))
	keys := names("k", 10)
	for _, key := range keys {
		mustClaim(t, s, key, claimBy("owner"))
	}
	requireFull(t, s, "new")
	_, claimed, err := s.Claim(t.Context(), "k0", claimBy("another"))
	require.NoError(t, err, "a duplicate needs no room")
	require.False(t, claimed)
	_, claimed, err = s.insert(t.Context(), "k0", claimBy("another"))
	require.NoError(t, err, "nor does one that came while the key was still absent")
	require.False(t, claimed)
	for _, key := range keys {
		mustComplete(t, s, key, "owner", success("r"))
	}
	requireStatus(t, s, idempotent.Success, keys...)
	mustClaim(t, s, "new", claimBy("owner"))
}

// writing is a log handler that does something with each line.
type writing struct {
	slog.Handler
	do func()
}

func (h writing) Handle(context.Context, slog.Record) error { h.do(); return nil }

func (writing) Enabled(context.Context, slog.Level) bool { return true }

// A claim for which room was made is not refused because others came right
// after: they make their own.
func TestB71_RoomOnceMadeIsEnough(t *testing.T) {
	t.Parallel()
	const limit = 1000
	var s *Store
	// As many claims as others make while this goroutine has no processor.
	others := func() { s.tally.add(limit, 0) }
	s = newStore(t, WithMaxEntries(limit), WithLogger(slog.New(writing{do: others})))
	finishAll(t, s, success("r"), names("k", limit+limit/10)...)
	mustClaim(t, s, "last", claimBy("owner"))
	require.Positive(t, s.Stats().Evicted)
	s.tally.add(-limit, 0)
	requireConsistent(t, s)
}

func TestAbandonedClaimsAreNotEvicted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, WithMaxEntries(2))
		mustClaim(t, s, "a", claimBy("owner"))
		mustClaim(t, s, "b", claimBy("owner"))
		time.Sleep(time.Hour)
		requireFull(t, s, "new")
		_, err := s.Sweep(t.Context())
		require.NoError(t, err)
		requireFull(t, s, "new")
		time.Sleep(time.Minute)
		_, err = s.Sweep(t.Context())
		require.NoError(t, err)
		mustClaim(t, s, "new", claimBy("owner"))
	})
}

// Claims past their Keep are in nobody's way, also where no sweep comes by:
// the bound under which a claim looks for them follows every change of an end.
func TestB71_ForgottenClaimsMakeRoom(t *testing.T) {
	t.Parallel()
	short := claimBy("owner")
	short.Lease, short.Keep = time.Second, time.Second
	short.TakeOver = true
	taker := short
	taker.Owner = "taker"
	tests := map[string]struct {
		first func(*testing.T, *Store)
		after time.Duration // when one claim is past its Keep
	}{
		"claimed": {func(t *testing.T, s *Store) { mustClaim(t, s, "k", short) }, 2 * time.Second},
		"renewed": {func(t *testing.T, s *Store) {
			mustClaim(t, s, "k", claimBy("owner"))
			requireFull(t, s, "new")
			require.NoError(t, s.Renew(t.Context(), "k", "owner", time.Millisecond))
		}, time.Hour + time.Millisecond},
		"renewed for longer": {func(t *testing.T, s *Store) {
			mustClaim(t, s, "k", short)
			require.NoError(t, s.Renew(t.Context(), "k", "owner", time.Minute))
			time.Sleep(2 * time.Second)
			requireFull(t, s, "new")
		}, time.Minute - time.Second},
		"taken over": {func(t *testing.T, s *Store) {
			first := short
			first.Keep = time.Hour
			mustClaim(t, s, "k", first)
			time.Sleep(time.Second)
			mustClaim(t, s, "k", taker)
		}, 2 * time.Second},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t, WithMaxEntries(2))
				long := claimBy("owner")
				long.Lease = 24 * time.Hour
				mustClaim(t, s, "long", long)
				tt.first(t, s)
				time.Sleep(tt.after - time.Nanosecond)
				requireFull(t, s, "new")
				time.Sleep(time.Nanosecond)
				mustClaim(t, s, "new", claimBy("owner"))
				requireAbsent(t, s, "k")
				require.Equal(t, 1, s.Stats().Abandoned)
				requireConsistent(t, s)
			})
		})
	}
}

func TestEvictedLateIsNotEarly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		told := new(events)
		s := newStore(t, WithObserver(told))
		finish(t, s, "k", success("r"))
		time.Sleep(24 * time.Hour)
		s.owed = 1
		n, _ := s.removeOldest(t.Context(), s.clock.now(), 1, nil)
		require.Equal(t, 1, n)
		require.Equal(t, Stats{Evicted: 1}, s.Stats())
		require.Empty(t, told.take())
	})
}

func TestSweepEvictsAWholeTenth(t *testing.T) {
	t.Parallel()
	s := newStore(t, WithMaxEntries(30_000))
	keys := names("k", 30_001)
	finishAll(t, s, success("r"), keys...)
	swept, err := s.Sweep(t.Context())
	require.NoError(t, err)
	require.Equal(t, idempotent.Swept{Evicted: 3001}, swept)
	requireAbsent(t, s, keys[:3001]...)
	requireStatus(t, s, idempotent.Success, keys[3001:]...)
}

func TestWithMinAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, WithMaxEntries(10), WithMinAge(time.Minute))
		finish(t, s, "old", success("r"))
		time.Sleep(30 * time.Second)
		young := names("young", 9)
		finishAll(t, s, success("r"), young...)
		requireFull(t, s, "new")
		swept, err := s.Sweep(t.Context())
		require.NoError(t, err)
		require.Zero(t, swept)
		requireStatus(t, s, idempotent.Success, "old")
		time.Sleep(30 * time.Second)
		mustClaim(t, s, "new", claimBy("owner"))
		requireAbsent(t, s, "old")
		requireStatus(t, s, idempotent.Success, young...)
		requireFull(t, s, "newer")
	})
}

func TestC132_BytesAreBounded(t *testing.T) {
	t.Parallel()
	const budget = 50 << 20
	s := newStore(t, WithMaxBytes(budget))
	body := strings.Repeat("x", 10<<20)
	for _, key := range names("k", 100) {
		finish(t, s, key, success(body))
		require.LessOrEqual(t, s.Stats().Bytes, budget)
		requireStatus(t, s, idempotent.Success, key)
	}
	require.Equal(t, 4, s.Len())
	require.Equal(t, 96, s.Stats().EvictedEarly)
	requireConsistent(t, s)
}

func TestCompletionIsNeverRefusedForRoom(t *testing.T) {
	t.Parallel()
	s := newStore(t, WithMaxBytes(1000))
	mustClaim(t, s, "running", claimBy("owner"))
	finish(t, s, "a", success("r"))
	finish(t, s, "b", success("r"))
	huge := strings.Repeat("x", 2000)
	finish(t, s, "huge", success(huge))
	requireAbsent(t, s, "a", "b")
	requireStatus(t, s, idempotent.Success, "huge")
	requireStatus(t, s, idempotent.Pending, "running")
	// And of an absent key, which comes without a claim.
	mustComplete(t, s, "huger", "owner", success(huge+huge))
	requireAbsent(t, s, "huge")
	requireStatus(t, s, idempotent.Success, "huger")
	// What is left of the bound is for the next claim.
	mustClaim(t, s, "new", claimBy("owner"))
	requireAbsent(t, s, "huger")
	requireConsistent(t, s)
}

func TestClaimsCountBytes(t *testing.T) {
	t.Parallel()
	s := newStore(t, WithMaxBytes(1000))
	c := claimBy("owner")
	c.Trace = strings.Repeat("x", 400)
	mustClaim(t, s, "a", c)
	mustClaim(t, s, "b", c)
	_, _, err := s.Claim(t.Context(), "c", c)
	require.ErrorIs(t, err, idempotent.ErrFull)
	require.NoError(t, s.Release(t.Context(), "a", "owner"))
	mustClaim(t, s, "c", c)
}

// Completions of absent keys come without a claim; the bound holds for them too.
func TestRecordedOutcomesAreBounded(t *testing.T) {
	t.Parallel()
	s := newStore(t, WithMaxEntries(100))
	for _, key := range names("k", 1000) {
		mustComplete(t, s, key, "owner", success("r"))
		require.LessOrEqual(t, s.Len(), 110)
	}
}

func TestOneRequestEvictsAboutFiveHundred(t *testing.T) {
	t.Parallel()
	s := newStore(t, WithMaxEntries(30_000))
	keys := names("k", 33_000)
	finishAll(t, s, success("r"), keys...)
	require.Equal(t, 33_000, s.Len())
	mustClaim(t, s, "new", claimBy("owner"))
	require.Equal(t, 500, s.Stats().Evicted)
	requireAbsent(t, s, keys[499])
	requireStatus(t, s, idempotent.Success, keys[500])
	swept, err := s.Sweep(t.Context())
	require.NoError(t, err)
	require.GreaterOrEqual(t, swept.Evicted, 2500)
	require.LessOrEqual(t, s.Len(), 30_000)
	requireConsistent(t, s)
}

// Nor does one pay for what others have done while it waited for them.
func TestRoomMadeByOthersIsEnough(t *testing.T) {
	t.Parallel()
	s := newStore(t, WithMaxEntries(30_000))
	finishAll(t, s, success("r"), names("k", 33_000)...)
	mustClaim(t, s, "first", claimBy("owner"))
	require.Equal(t, 500, s.Stats().Evicted)
	require.Positive(t, s.owed)
	require.True(t, s.roomForClaim(t.Context()), "it was over the bound before it waited")
	require.Equal(t, 500, s.Stats().Evicted)
}

// paid counts what one call does for room.
type paid struct{ entries int }

type paidKey struct{}

// P5: a busy server is never above its bound by more than a tenth and the
// running claims, and no call evicts more than 500 entries, which takes
// less than a millisecond.
func TestBusyServerStaysWithinItsBound(t *testing.T) {
	t.Parallel()
	const limit, workers, cycles = 10_000, 8, 5000
	count := idempotent.ObserverFunc(func(ctx context.Context, e idempotent.Event) {
		if e.Kind == idempotent.EventEvicted {
			ctx.Value(paidKey{}).(*paid).entries++
		}
	})
	s := newStore(t, WithMaxEntries(limit), WithObserver(count))
	var all sync.WaitGroup
	var mostEntries, mostPaid atomic.Int64
	atMost := func(most *atomic.Int64, n int) {
		for old := most.Load(); int64(n) > old && !most.CompareAndSwap(old, int64(n)); old = most.Load() {
		}
	}
	for w := range workers {
		all.Go(func() {
			for i := range cycles {
				p := new(paid)
				ctx := context.WithValue(context.Background(), paidKey{}, p)
				key := fmt.Sprint(w, ":", i)
				_, _, _ = s.Claim(ctx, key, claimBy("owner"))
				atMost(&mostPaid, p.entries)
				p.entries = 0
				_ = s.Complete(ctx, key, "owner", success("r"))
				atMost(&mostPaid, p.entries)
				atMost(&mostEntries, s.Len())
			}
		})
	}
	all.Wait()
	require.LessOrEqual(t, mostEntries.Load(), int64(limit+limit/10+workers))
	require.LessOrEqual(t, mostPaid.Load(), int64(500), "by one call")
	require.Equal(t, workers*cycles, s.Len()+s.Stats().Evicted, "nobody was refused")
	requireConsistent(t, s)
}

func TestAbsurdBounds(t *testing.T) {
	t.Parallel()
	s := newStore(t, WithMaxEntries(math.MaxInt), WithMaxBytes(math.MaxInt64))
	finishAll(t, s, success("r"), names("k", 10)...)
	_, err := s.Sweep(t.Context())
	require.NoError(t, err)
	require.Equal(t, 10, s.Len())
}

func TestWithMaxAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, WithMaxAge(time.Hour))
		finish(t, s, "k", success("r"))
		e, _ := load(t, s, "k")
		require.Equal(t, e.Timestamp.Add(time.Hour), e.Expires)
		time.Sleep(time.Hour)
		requireAbsent(t, s, "k")
		require.Equal(t, 1, s.Stats().Expired)
	})
}

func TestEarlyEvictionIsLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		logger, text := logged()
		s := newStore(t, WithMaxEntries(2), WithMaxBytes(1000), WithLogger(logger))
		lines := func() []string {
			defer text.Reset()
			return strings.FieldsFunc(text.String(), func(r rune) bool { return r == '\n' })
		}
		step := func(result string) []string {
			finish(t, s, fmt.Sprint(time.Now().UnixNano()), success(result))
			time.Sleep(time.Second)
			return lines()
		}
		require.Empty(t, step("r"))
		require.Empty(t, step("r"))
		first := step("r")
		require.Len(t, first, 1, "the first")
		require.Contains(t, first[0], "level=WARN")
		require.Contains(t, first[0], "age_of_youngest=2s")
		require.Contains(t, first[0], "option=WithMaxEntries")
		for range 59 {
			require.Empty(t, step("r"), "within a minute")
		}
		second := step("r")
		require.Len(t, second, 1, "a minute later")
		require.Contains(t, second[0], "evicted_in_all=61")
		time.Sleep(time.Minute)
		require.NoError(t, s.Delete(t.Context(), fmt.Sprint(time.Now().Add(-time.Minute-time.Second).UnixNano())))
		bySize := step(strings.Repeat("x", 2000))
		require.Len(t, bySize, 1)
		require.Contains(t, bySize[0], "option=WithMaxBytes")
	})
}

func TestSweep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		told := new(events)
		var text bytes.Buffer
		s := newStore(t, WithObserver(told), WithLogger(slog.New(slog.NewTextHandler(&text, nil))))
		sweep := func(want idempotent.Swept) {
			t.Helper()
			got, err := s.Sweep(t.Context())
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
		mustClaim(t, s, "abandoned", claimBy("owner"))
		short := success("r")
		short.Retention = time.Minute
		finish(t, s, "short", short)
		finish(t, s, "long", success("r"))
		sweep(idempotent.Swept{})
		time.Sleep(time.Minute)
		sweep(idempotent.Swept{Expired: 1, Abandoned: 1})
		require.Contains(t, text.String(), "abandoned")
		require.Equal(t, []idempotent.Event{{
			Kind: idempotent.EventAbandoned, Key: "abandoned", Owner: "owner", Trace: "trace",
			Status: idempotent.Failed, Unknown: true, Age: time.Minute,
		}}, told.take())
		sweep(idempotent.Swept{})
		require.NoError(t, s.Renew(t.Context(), "abandoned", "owner", time.Minute))
		time.Sleep(time.Minute)
		sweep(idempotent.Swept{}) // the same claim again is not another one
		time.Sleep(time.Hour)
		sweep(idempotent.Swept{Expired: 1})
		require.Equal(t, 1, s.Stats().Abandoned)
		require.Empty(t, told.take())
		mustClaim(t, s, "unseen", claimBy("owner"))
		time.Sleep(2 * time.Hour)
		sweep(idempotent.Swept{Expired: 1, Abandoned: 1})
		mustClaim(t, s, "unswept", claimBy("owner"))
		time.Sleep(2 * time.Hour)
		requireAbsent(t, s, "unswept")
		require.Equal(t, 3, s.Stats().Abandoned, "found by a call that came before any sweep")
		require.Len(t, told.take(), 2)
		sweep(idempotent.Swept{})
		require.NoError(t, s.Delete(t.Context(), "long"))
		requireEmpty(t, s)
	})
}

// C123: what nobody reads again goes all the same.
func TestC123_SweptInTheBackground(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, WithSweepInterval(time.Minute))
		finishAll(t, s, success("r"), names("k", 1000)...)
		mustClaim(t, s, "abandoned", claimBy("owner"))
		time.Sleep(24*time.Hour + time.Minute)
		synctest.Wait()
		requireEmpty(t, s)
		require.Equal(t, 1001, s.Stats().Expired)
		require.Equal(t, 1, s.Stats().Abandoned)
	})
}

func TestSweepsDoNotCountTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		told := new(events)
		s := newStore(t, WithMaxEntries(5000), WithObserver(told))
		short := success("r")
		short.Retention = time.Minute
		for _, key := range names("abandoned", 500) {
			mustClaim(t, s, key, claimBy("owner"))
		}
		finishAll(t, s, short, names("short", 1000)...)
		finishAll(t, s, success("r"), names("long", 4000)...)
		time.Sleep(time.Minute)
		s.maxEntries = 4000
		results := make(chan idempotent.Swept)
		for range 8 {
			go func() {
				n, err := s.Sweep(t.Context())
				if err != nil {
					t.Error(err)
				}
				results <- n
			}()
		}
		var sum idempotent.Swept
		for range 8 {
			n := <-results
			sum.Expired += n.Expired
			sum.Evicted += n.Evicted
			sum.Abandoned += n.Abandoned
		}
		st := s.Stats()
		require.Equal(t, idempotent.Swept{Expired: 1000, Evicted: st.Evicted, Abandoned: 500}, sum)
		require.Equal(t, 1000, st.Expired)
		require.Equal(t, 500, st.Abandoned)
		require.Equal(t, 4500-st.Evicted, st.Entries)
		require.LessOrEqual(t, st.Entries, 4000)
		require.Len(t, told.take(), 500+st.EvictedEarly)
		requireConsistent(t, s)
	})
}

// C128: a sweep ends with its context and with the store.
func TestC128_SweepIsInterrupted(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		stop func(*Store, context.CancelFunc)
		want error
	}{
		"ctx":   {func(_ *Store, cancel context.CancelFunc) { cancel() }, context.Canceled},
		"close": {func(s *Store, _ context.CancelFunc) { _ = s.Close() }, idempotent.ErrClosed},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var s *Store
				first := true
				s = newStore(t, WithObserver(idempotent.ObserverFunc(func(context.Context, idempotent.Event) {
					if first {
						first = false
						tt.stop(s, cancel)
					}
				})))
				for _, key := range names("k", 5000) {
					mustClaim(t, s, key, claimBy("owner"))
				}
				time.Sleep(2 * time.Hour)
				n, err := s.Sweep(ctx)
				require.ErrorIs(t, err, tt.want)
				require.Positive(t, n.Expired)
				require.LessOrEqual(t, n.Expired, sweepChunk)
				require.Equal(t, 5000-n.Expired, s.Len())
			})
		})
	}
}

// Keys that come and go leave nothing, whatever way they go.
func TestC007_C027_C125_ChurnLeavesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		ctx := t.Context()
		short := success("r")
		short.Retention = time.Millisecond
		for i := range 20_000 {
			key := fmt.Sprint("k", i)
			mustClaim(t, s, key, claimBy("owner"))
			switch i % 5 {
			case 0, 1:
				require.NoError(t, s.Release(ctx, key, "owner"))
			case 2:
				mustComplete(t, s, key, "owner", unknown("u"))
				require.NoError(t, s.Release(ctx, key, "owner"))
			case 3:
				mustComplete(t, s, key, "owner", success("r"))
				require.NoError(t, s.Delete(ctx, key))
			case 4:
				mustComplete(t, s, key, "owner", short)
				time.Sleep(time.Millisecond)
				requireAbsent(t, s, key)
			}
		}
		requireEmpty(t, s)
	})
}

// One entry that stays must not keep the places of all that followed it.
func TestQueueUnlinksInTheMiddle(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for i := range 10 * segmentSize {
		key := fmt.Sprint("k", i)
		finish(t, s, key, success("r"))
		if i%(4*segmentSize) != 0 {
			require.NoError(t, s.Delete(t.Context(), key))
		}
	}
	segments, places := queued(s)
	require.Equal(t, 3, places)
	require.LessOrEqual(t, segments, 4)
	requireConsistent(t, s)
}
