package idempotent_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/redisstore"
	"github.com/idempotent-go/idempotent/storetest"
)

func tierMem(t testing.TB) *memstore.Store {
	s := memstore.New(memstore.WithLogger(slog.New(slog.DiscardHandler)))
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// undeletable hides that a store is a Deleter.
type undeletable struct {
	idempotent.Store
	idempotent.Waiter
}

// A tiered store keeps the contract, whatever its far store is. With a near
// store of its own for each of two handles, as in two processes, it does so but
// for Delete, which reaches the copies of the other one when those end.
func TestTiered_Contract(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) storetest.Harness {
			return storetest.Harness{Store: idempotent.Tiered(tierMem(t), tierMem(t)), Wrap: synctest.Test}
		})
	})
	t.Run("memory, two handles", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) storetest.Harness {
			far := tierMem(t)
			open := func() idempotent.Store {
				s := idempotent.Tiered(tierMem(t), far)
				return undeletable{s, s.(idempotent.Waiter)}
			}
			return storetest.Harness{Store: open(), Second: open, Wrap: synctest.Test}
		})
	})
	t.Run("Redis", func(t *testing.T) {
		addr := redistest.Start(t).Addr
		storetest.Run(t, func(t *testing.T) storetest.Harness {
			h := redisHarness(t, addr)
			h.Store = idempotent.Tiered(tierMem(t), h.Store)
			h.Second = nil
			return h
		})
	})
}

// tier is what a tiered store stands on, and what it is told.
type tier struct {
	t         testing.TB
	near, far *storetest.Faulty
	store     idempotent.Store
}

func newTier(t testing.TB, far idempotent.Store) *tier {
	b := &tier{t: t, near: storetest.NewFaulty(tierMem(t)), far: storetest.NewFaulty(far)}
	b.store = idempotent.Tiered(b.near, b.far)
	return b
}

var (
	tierClaim   = idempotent.Claim{Owner: "owner", Fingerprint: "fp", Trace: "trace", Lease: time.Minute, Keep: time.Hour}
	tierOutcome = idempotent.Outcome{Status: idempotent.Success, Result: "result", Fingerprint: "fp", Retention: time.Hour}
)

func (b *tier) finish(key string, o idempotent.Outcome) {
	b.t.Helper()
	_, claimed, err := b.store.Claim(b.t.Context(), key, tierClaim)
	require.NoError(b.t, err)
	require.True(b.t, claimed)
	require.NoError(b.t, b.store.Complete(b.t.Context(), key, tierClaim.Owner, o))
}

func (b *tier) load(key string) (idempotent.Entry, bool) {
	b.t.Helper()
	e, found, err := b.store.Load(b.t.Context(), key)
	require.NoError(b.t, err)
	return e, found
}

// asks runs f and returns how often it has made the store look into far.
func (b *tier) asks(f func()) int {
	looks := func() int {
		return b.far.Calls(storetest.OpLoad) + b.far.Calls(storetest.OpClaim) + b.far.Calls(storetest.OpWait)
	}
	before := looks()
	f()
	return looks() - before
}

func TestTiered_ReplayAsksNobody(t *testing.T) {
	t.Parallel()
	o := tierOutcome
	for _, o.Status = range []idempotent.Status{idempotent.Success, idempotent.Failed} {
		for _, o.Result = range []string{"", "result", strings.Repeat("large", 1<<16)} {
			b := newTier(t, tierMem(t))
			b.finish("k", o)
			want, _, err := b.far.Load(t.Context(), "k")
			require.NoError(t, err)
			require.Equal(t, o.Result, want.Result)

			another := tierClaim
			another.Owner = "another"
			answers := func() {
				e, found := b.load("k")
				require.True(t, found)
				require.Equal(t, want, e)
				e, claimed, err := b.store.Claim(t.Context(), "k", another)
				require.NoError(t, err)
				require.False(t, claimed)
				require.Equal(t, want, e)
				e, found, err = idempotent.Wait(t.Context(), b.store, "k")
				require.NoError(t, err)
				require.True(t, found)
				require.Equal(t, want, e)
			}
			require.Equal(t, 1, b.asks(answers), "the first repeat")
			require.Zero(t, b.asks(answers), "those that follow")
		}
	}
}

// The guard replays the same as without a near store.
func TestTiered_Guard(t *testing.T) {
	t.Parallel()
	b := newTier(t, tierMem(t))
	g := idempotent.New(b.store)
	runs := 0
	op := func(context.Context) (idempotent.Class, string) { runs++; return idempotent.ClassSuccess, "result" }
	first, replayed, err := g.Run(t.Context(), "k", op)
	require.NoError(t, err)
	require.False(t, replayed)
	_, _, err = g.Run(t.Context(), "k", op)
	require.NoError(t, err)
	require.Zero(t, b.asks(func() {
		rec, replayed, err := g.Run(t.Context(), "k", op)
		require.NoError(t, err)
		require.True(t, replayed)
		require.Equal(t, first.Result, rec.Result)
	}))
	require.Equal(t, 1, runs)
}

// Neither a running claim nor an unknown outcome is copied: the next look finds
// what has become of it, whoever settled it.
func TestTiered_OnlyKnownOutcomesAreCopied(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		far := tierMem(t)
		b, other := newTier(t, far), newTier(t, far)
		unknown := idempotent.Outcome{Status: idempotent.Failed, Unknown: true, Result: "perhaps", Fingerprint: "fp", Retention: time.Hour}
		b.finish("recorded", unknown)
		_, claimed, err := b.store.Claim(t.Context(), "abandoned", tierClaim)
		require.NoError(t, err)
		require.True(t, claimed)
		for range 2 {
			for _, s := range []*tier{b, other} {
				require.Equal(t, 1, s.asks(func() {
					e, _ := s.load("abandoned")
					require.Equal(t, idempotent.Pending, e.Status)
				}))
			}
		}
		time.Sleep(2 * time.Minute)
		for _, key := range []string{"recorded", "abandoned"} {
			for _, s := range []*tier{b, other, b, other} {
				require.Equal(t, 1, s.asks(func() {
					e, found := s.load(key)
					require.True(t, found)
					require.True(t, e.Unknown)
				}))
			}
			g := idempotent.New(b.store)
			require.NoError(t, g.Resolve(t.Context(), key, tierClaim.Owner, idempotent.ClassSuccess, "it happened"))
			for _, s := range []*tier{b, other} {
				e, found := s.load(key)
				require.True(t, found)
				require.Equal(t, "it happened", e.Result)
				require.Equal(t, idempotent.Success, e.Status)
			}
		}
	})
}

// skewed is a store whose clock differs from ours.
type skewed struct {
	idempotent.Store
	by time.Duration
}

func (s skewed) Load(ctx context.Context, key string) (idempotent.Entry, bool, error) {
	e, found, err := s.Store.Load(ctx, key)
	return s.shift(e), found, err
}

func (s skewed) Claim(ctx context.Context, key string, c idempotent.Claim) (idempotent.Entry, bool, error) {
	e, claimed, err := s.Store.Claim(ctx, key, c)
	return s.shift(e), claimed, err
}

func (s skewed) shift(e idempotent.Entry) idempotent.Entry {
	e.Timestamp, e.Claimed, e.Expires = e.Timestamp.Add(s.by), e.Claimed.Add(s.by), e.Expires.Add(s.by)
	return e
}

// A copy is never served when far would not serve the entry any more, whatever
// our clock says.
func TestTiered_RetentionIsCarriedOver(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{0, 24 * time.Hour, -24 * time.Hour} {
		t.Run(by.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newTier(t, skewed{tierMem(t), by})
				o := tierOutcome
				o.Retention = 30 * time.Second
				b.finish("k", o)
				time.Sleep(20 * time.Second)
				want, _ := b.load("k")
				require.Zero(t, b.asks(func() {
					time.Sleep(10*time.Second - 1)
					got, found := b.load("k")
					require.True(t, found)
					require.Equal(t, want, got)
				}))
				time.Sleep(time.Nanosecond)
				// Far reads a coarse clock and may be late; near must not be.
				require.NotZero(t, b.asks(func() { b.load("k") }))
				time.Sleep(time.Second)
				_, found := b.load("k")
				require.False(t, found)
				b.finish("k", idempotent.Outcome{Status: idempotent.Failed, Result: "second", Retention: time.Hour})
				e, _ := b.load("k")
				require.Equal(t, "second", e.Result)
				require.Zero(t, b.asks(func() { b.load("k") }), "the old copy keeps no room from the new one")
			})
		})
	}
}

// rounding is a store that counts a lease in whole milliseconds, as one over
// Redis does.
type rounding struct{ skewed }

func (s rounding) Claim(ctx context.Context, key string, c idempotent.Claim) (idempotent.Entry, bool, error) {
	c.Lease = (c.Lease + time.Millisecond - 1).Truncate(time.Millisecond)
	return s.skewed.Claim(ctx, key, c)
}

// Far's clock is learnt from a claim whatever far makes of its lease, and not
// from one that is sent again.
func TestTiered_ClockIsLearntFromARoundedLease(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{24 * time.Hour, -24 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			b := newTier(t, rounding{skewed{tierMem(t), by}})
			c := tierClaim
			c.Lease = 100 * time.Second / 3
			o := tierOutcome
			o.Retention = 30 * time.Second
			for range 2 {
				_, claimed, err := b.store.Claim(t.Context(), "k", c)
				require.NoError(t, err)
				require.True(t, claimed)
				time.Sleep(10 * time.Second)
			}
			require.NoError(t, b.store.Complete(t.Context(), "k", c.Owner, o))
			_, found := b.load("k")
			require.True(t, found)
			require.Zero(t, b.asks(func() {
				time.Sleep(30*time.Second - 1)
				b.load("k")
			}))
			time.Sleep(time.Second)
			_, found = b.load("k")
			require.False(t, found)
		})
	}
}

// slow is a store whose answers take a while on their way back.
func slow(b *tier, d time.Duration) {
	late := func(context.Context, string) error { time.Sleep(d); return nil }
	b.far.After(storetest.OpLoad, late)
	b.far.After(storetest.OpClaim, late)
}

// Another process may serve its copy after a Delete, for a minute at most,
// however long far's answer took to arrive.
func TestTiered_TwoProcesses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		far := tierMem(t)
		b, other := newTier(t, far), newTier(t, far)
		slow(other, 5*time.Second)
		b.finish("k", tierOutcome)
		b.load("k")
		before, found := other.load("k") // decided by far five seconds ago
		require.True(t, found)
		require.NoError(t, idempotent.Delete(t.Context(), b.store, "k"))
		_, found = b.load("k")
		require.False(t, found, "deleted here")

		time.Sleep(54 * time.Second)
		after, found := other.load("k")
		require.True(t, found, "a copy is used for most of a minute")
		require.Equal(t, before, after)
		other.far.After(storetest.OpLoad, nil)
		time.Sleep(time.Second)
		_, found = other.load("k")
		require.False(t, found, "a minute after far's answer")
	})
}

// Two handles on one Redis, as two processes have them: what one has recorded
// the other replays, from its own memory the second time.
func TestTiered_TwoProcessesOnRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	open := func() *tier {
		client := redis.NewClient(&redis.Options{Addr: server.Addr})
		t.Cleanup(func() { _ = client.Close() })
		far := redisstore.New(client)
		t.Cleanup(func() { _ = far.Close() })
		return newTier(t, far)
	}
	a, b := open(), open()
	a.finish("k", tierOutcome)
	want, _ := a.load("k")
	got, found := b.load("k")
	require.True(t, found)
	require.Equal(t, want, got)
	another := tierClaim
	another.Owner = "another"
	server.Stop()
	for _, s := range []*tier{a, b} {
		e, claimed, err := s.store.Claim(t.Context(), "k", another)
		require.NoError(t, err, "no round trip, not even a server")
		require.False(t, claimed)
		require.Equal(t, want, e)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, _, err := a.store.Claim(ctx, "new", another)
	require.Error(t, err, "claims are far's alone")
}

// An answer that far gave before a Delete makes no copy after it.
func TestTiered_DeleteOvertakesAnAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTier(t, tierMem(t))
		b.finish("k", tierOutcome)
		slow(b, time.Second)
		go func() { _, _ = b.load("k") }()
		synctest.Wait() // far has answered, and the answer is on its way
		require.NoError(t, idempotent.Delete(t.Context(), b.store, "k"))
		time.Sleep(2 * time.Second)
		_, found := b.load("k")
		require.False(t, found)
	})
}

// A Delete of which far did not tell what became removes the copy all the same.
func TestTiered_DeleteThatFails(t *testing.T) {
	t.Parallel()
	b := newTier(t, tierMem(t))
	b.finish("k", tierOutcome)
	b.load("k")
	lost := errors.New("reply lost")
	b.far.After(storetest.OpDelete, func(context.Context, string) error { return lost })
	require.ErrorIs(t, idempotent.Delete(t.Context(), b.store, "k"), lost)
	_, found := b.load("k")
	require.False(t, found)

	b.far.After(storetest.OpDelete, nil)
	b.near.Before(storetest.OpDelete, func(context.Context, string) error { return lost })
	require.ErrorIs(t, idempotent.Delete(t.Context(), b.store, "k"), lost, "a copy may be left")

	for name, s := range map[string]idempotent.Store{
		"near": idempotent.Tiered(undeletable{Store: tierMem(t)}, tierMem(t)),
		"far":  idempotent.Tiered(tierMem(t), undeletable{Store: tierMem(t)}),
	} {
		require.ErrorIs(t, idempotent.Delete(t.Context(), s, "k"), errors.ErrUnsupported, name)
	}
}

// Whatever is wrong with near, far answers, and with nothing but the truth.
func TestTiered_NearIsOfNoUse(t *testing.T) {
	t.Parallel()
	b := newTier(t, tierMem(t))
	want := func() idempotent.Entry {
		e, found, err := b.far.Load(t.Context(), "k")
		require.NoError(t, err)
		require.True(t, found)
		return e
	}
	b.near.Down(errors.New("near is away"))
	b.finish("k", tierOutcome)
	for range 2 {
		require.Equal(t, 1, b.asks(func() {
			e, _ := b.load("k")
			require.Equal(t, want(), e)
		})-1)
	}
	b.near.Up()
	// Somebody else's entries are no copies, whatever they hold.
	e, _, err := b.near.Claim(t.Context(), "k", tierClaim)
	require.NoError(t, err)
	got, _ := b.load("k")
	require.Equal(t, want(), got)
	b.finish("other", tierOutcome)
	b.load("other")
	other, _, err := b.near.Load(t.Context(), "other")
	require.NoError(t, err)
	like := tierOutcome
	like.Result = strings.Replace(other.Result, "result", "resulT", 1)
	require.NoError(t, b.near.Complete(t.Context(), "k", e.Owner, like))
	got, _ = b.load("k")
	require.Equal(t, want(), got)
	// Nor are copies that cannot be read.
	require.NoError(t, idempotent.Delete(t.Context(), b.near, "k"))
	broken := tierOutcome
	broken.Result = "1s and no more"
	require.NoError(t, b.near.Complete(t.Context(), "k", "idempotent:copy", broken))
	got, _ = b.load("k")
	require.Equal(t, want(), got)
}

func TestTiered_Errors(t *testing.T) {
	t.Parallel()
	b := newTier(t, tierMem(t))
	b.finish("k", tierOutcome)
	b.load("k")
	_, _, err := b.store.Claim(t.Context(), "k", idempotent.Claim{})
	require.ErrorIs(t, err, idempotent.ErrInvalid, "also where there is a copy")
	require.NoError(t, idempotent.Ping(t.Context(), b.store))
	away := errors.New("far is away")
	b.far.Down(away)
	require.ErrorIs(t, idempotent.Ping(t.Context(), b.store), away)
	_, found := b.load("k")
	require.True(t, found, "a copy needs nobody")
	_, _, err = b.store.Load(t.Context(), "other")
	require.ErrorIs(t, err, away)
	var none *memstore.Store
	require.PanicsWithValue(t, "idempotent: Tiered: a store is nil; it takes a near and a far one", func() { idempotent.Tiered(none, b.far) })
	require.Panics(t, func() { idempotent.Tiered(b.near, nil) })
}
