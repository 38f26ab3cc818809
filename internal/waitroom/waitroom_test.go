package waitroom_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/waitroom"
)

var errClosed = errors.New("closed")

// backend is a store with one claim for each key, by a clock that stands still
// while something happens.
type backend struct {
	mu     sync.Mutex
	ends   map[string]time.Time // of leases that run
	fault  error
	looks  []time.Duration // when, since the beginning
	gate   chan struct{}   // not nil: a look that has read waits here
	listen func(ctx context.Context, heard waitroom.Heard) time.Duration
	began  time.Time
}

func newBackend() *backend { return &backend{ends: map[string]time.Time{}, began: time.Now()} }

// room returns a room on b, which the test has to close.
func (b *backend) room() *waitroom.Room {
	return waitroom.New(waitroom.Settings{
		Look: b.look, Name: func(key string) string { return "name of " + key }, Listen: b.listen,
		Closed: errClosed, First: 10 * time.Millisecond, Most: 100 * time.Millisecond,
	})
}

func (b *backend) look(ctx context.Context, key string, told bool) (waitroom.Look, error) {
	b.mu.Lock()
	b.looks = append(b.looks, time.Since(b.began))
	l := waitroom.Look{Entry: idempotent.Entry{Key: key, Status: idempotent.Success}, Found: true, Told: told}
	if left := time.Until(b.ends[key]); left > 0 {
		l.Entry.Status, l.Left = idempotent.Pending, left
	}
	err, gate := b.fault, b.gate
	b.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return l, ctx.Err()
		}
	}
	return l, err
}

func (b *backend) claim(key string, lease time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ends[key] = time.Now().Add(lease)
}

func (b *backend) end(key string) { b.claim(key, 0) }

// looked returns when b was looked at.
func (b *backend) looked() []time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.looks)
}

func (b *backend) count() int { return len(b.looked()) }

// told is what a waiter was told, and when.
type told struct {
	entry idempotent.Entry
	found bool
	err   error
	after time.Duration
}

// wait waits in the background.
func wait(ctx context.Context, r *waitroom.Room, key string) <-chan told {
	answer, began := make(chan told, 1), time.Now()
	go func() {
		e, found, err := r.Wait(ctx, key)
		answer <- told{e, found, err, time.Since(began)}
	}()
	return answer
}

// inBubble runs f with a room that is closed at its end: the bubble then finds
// every goroutine that is left.
func inBubble(t *testing.T, f func(t *testing.T, b *backend, r *waitroom.Room)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		r := b.room()
		defer r.Close()
		f(t, b, r)
	})
}

func TestNothingRuns(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *backend, r *waitroom.Room) {
		r.Listen = func(context.Context, waitroom.Heard) time.Duration {
			t.Error("it listens where nothing runs")
			return 0
		}
		got := <-wait(t.Context(), r, "k")
		require.NoError(t, got.err)
		require.True(t, got.found)
		require.Equal(t, "k", got.entry.Key)
		require.Zero(t, got.after)
		require.Equal(t, 1, b.count())
		waiters, keys := r.Waiters()
		require.Zero(t, waiters+keys)
	})
}

// Without anybody to tell of the end, the pauses between the looks grow.
func TestPolling(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *backend, r *waitroom.Room) {
		b.claim("k", time.Hour)
		answer := wait(t.Context(), r, "k")
		time.Sleep(10 * time.Second)
		b.end("k")
		require.LessOrEqual(t, (<-answer).after, 10*time.Second+r.Most)
		pause := r.First
		looks := b.looked()
		for i, at := range looks[1:] {
			gap := at - looks[i]
			require.LessOrEqual(t, gap, pause)
			require.GreaterOrEqual(t, gap, pause/2)
			pause = min(2*pause, r.Most)
		}
		require.Equal(t, r.Most, pause)
	})
}

// The end of a lease is noticed when it comes.
func TestLapse(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *backend, r *waitroom.Room) {
		r.First, r.Most = time.Hour, time.Hour
		b.claim("k", time.Second)
		got := <-wait(t.Context(), r, "k")
		require.NoError(t, got.err)
		require.Equal(t, time.Second+time.Millisecond, got.after)
		require.Equal(t, 2, b.count())
	})
}

// What is told wakes those of its key at once, and nobody else.
func TestTold(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *backend, r *waitroom.Room) {
		var heard waitroom.Heard
		r.Listen = func(ctx context.Context, h waitroom.Heard) time.Duration {
			heard = h
			h.Ready()
			<-ctx.Done()
			return 0
		}
		r.Slow = time.Hour
		b.claim("k", 24*time.Hour)
		b.claim("other", 24*time.Hour)
		one, two, other := wait(t.Context(), r, "k"), wait(t.Context(), r, "k"), wait(t.Context(), r, "other")
		synctest.Wait()
		require.True(t, r.Told())
		waiters, keys := r.Waiters()
		require.Equal(t, []int{3, 2}, []int{waiters, keys})
		time.Sleep(time.Minute)
		before := b.count()
		heard.End("name of nobody's")
		synctest.Wait()
		require.Equal(t, before, b.count())
		b.end("k")
		heard.End("name of k")
		require.Equal(t, time.Minute, (<-one).after)
		require.Equal(t, time.Minute, (<-two).after)
		require.Equal(t, before+1, b.count(), "they share their look")
		require.Empty(t, other)
		b.end("other") // and the message is lost
		require.LessOrEqual(t, (<-other).after, r.Slow)
	})
}

// What ended before the backend was ready was not heard: everybody looks again.
func TestReady(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *backend, r *waitroom.Room) {
		ready := make(chan struct{})
		r.Listen = func(ctx context.Context, h waitroom.Heard) time.Duration {
			<-ready
			h.Ready()
			<-ctx.Done()
			return 0
		}
		r.First, r.Most = time.Hour, time.Hour
		b.claim("k", 24*time.Hour)
		answer := wait(t.Context(), r, "k")
		synctest.Wait()
		require.False(t, r.Told())
		b.end("k")
		close(ready)
		require.Zero(t, (<-answer).after)
	})
}

// Who comes while a look is under way is not answered by it: it may have read
// before an end that the newcomer knows of.
func TestLatecomer(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *backend, r *waitroom.Room) {
		b.gate = make(chan struct{})
		first := wait(t.Context(), r, "k")
		synctest.Wait()
		b.claim("k", time.Hour)
		second := wait(t.Context(), r, "k")
		synctest.Wait()
		close(b.gate)
		require.NoError(t, (<-first).err)
		synctest.Wait()
		require.Empty(t, second, "the claim runs")
		b.end("k")
		require.NoError(t, (<-second).err)
	})
}

// A look that fails is the error of all who wait for its key.
func TestError(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *backend, r *waitroom.Room) {
		b.claim("k", time.Hour)
		one, two := wait(t.Context(), r, "k"), wait(t.Context(), r, "k")
		synctest.Wait()
		b.mu.Lock()
		b.fault = errors.New("away")
		b.mu.Unlock()
		require.ErrorIs(t, (<-one).err, b.fault)
		require.ErrorIs(t, (<-two).err, b.fault)
	})
}

// A look that is not answered ends all the same.
func TestLookTimeout(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *backend, r *waitroom.Room) {
		b.gate = make(chan struct{})
		got := <-wait(t.Context(), r, "k")
		require.ErrorIs(t, got.err, context.DeadlineExceeded)
		require.Equal(t, 5*time.Second, got.after)
	})
}

// Who leaves takes nothing from the others, and the last one takes the key along.
func TestLeave(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *backend, r *waitroom.Room) {
		b.claim("k", time.Hour)
		ctx, leave := context.WithCancel(t.Context())
		stays, leaves := wait(t.Context(), r, "k"), wait(ctx, r, "k")
		synctest.Wait()
		leave()
		require.ErrorIs(t, (<-leaves).err, context.Canceled)
		waiters, keys := r.Waiters()
		require.Equal(t, []int{1, 1}, []int{waiters, keys})
		b.end("k")
		require.NoError(t, (<-stays).err)

		b.claim("k", time.Hour)
		require.ErrorIs(t, (<-wait(ctx, r, "k")).err, context.Canceled)
		waiters, keys = r.Waiters()
		require.Zero(t, waiters+keys)
	})
}

func TestClose(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *backend, r *waitroom.Room) {
		r.Listen = func(ctx context.Context, h waitroom.Heard) time.Duration {
			h.Ready()
			<-ctx.Done()
			h.Ready() // late
			return 0
		}
		b.claim("k", time.Hour)
		answer := wait(t.Context(), r, "k")
		synctest.Wait()
		for range 2 {
			r.Close()
		}
		require.ErrorIs(t, (<-answer).err, errClosed)
		require.ErrorIs(t, (<-wait(t.Context(), r, "k")).err, errClosed)
	})
}

// The listening ends when nobody has waited for a while, and begins again.
func TestIdle(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *backend, r *waitroom.Room) {
		turns := 0
		r.Listen = func(ctx context.Context, h waitroom.Heard) time.Duration {
			turns++
			h.Ready()
			<-ctx.Done()
			return 0
		}
		visit := func(key string) {
			b.claim(key, time.Hour)
			answer := wait(t.Context(), r, key)
			synctest.Wait()
			b.end(key)
			<-answer
		}
		visit("a")
		time.Sleep(r.Idle - time.Millisecond)
		require.True(t, r.Told())
		visit("b") // begins the while anew
		time.Sleep(r.Idle - time.Millisecond)
		require.True(t, r.Told())
		require.Equal(t, 1, turns)
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		require.False(t, r.Told())

		visit("c")
		require.Equal(t, 2, turns)
		b.claim("k", time.Hour)
		answer := wait(t.Context(), r, "k")
		time.Sleep(2 * r.Idle)
		require.True(t, r.Told(), "somebody waits")
		b.end("k")
		<-answer
	})
}

// Where it cannot listen it tries again, after pauses that grow until it can, or
// after the one that it asks for.
func TestListenAgain(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *backend, r *waitroom.Room) {
		var tries, last atomic.Int64 // how often it was tried, and when last
		var works atomic.Bool
		var least atomic.Int64
		r.Listen = func(_ context.Context, h waitroom.Heard) time.Duration {
			last.Store(time.Now().UnixNano())
			tries.Add(1)
			if works.Load() {
				h.Ready()
			}
			return time.Duration(least.Load())
		}
		b.claim("k", time.Hour)
		answer := wait(t.Context(), r, "k")
		gap := func() time.Duration {
			synctest.Wait()
			before := last.Load()
			for n := tries.Load(); tries.Load() == n; {
				time.Sleep(time.Millisecond)
				synctest.Wait()
			}
			return time.Duration(last.Load() - before)
		}
		for pause := 100 * time.Millisecond; pause < 10*time.Second; pause *= 2 {
			bound := min(pause, 5*time.Second)
			got := gap()
			require.LessOrEqual(t, got, bound)
			require.GreaterOrEqual(t, got, bound/2)
		}
		works.Store(true)
		gap()
		require.LessOrEqual(t, gap(), 100*time.Millisecond)
		require.False(t, r.Told(), "it has ended")
		works.Store(false)
		least.Store(int64(time.Minute))
		gap()
		require.GreaterOrEqual(t, gap(), 30*time.Second)
		b.end("k")
		require.NoError(t, (<-answer).err)
	})
}
