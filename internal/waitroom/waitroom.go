// Package waitroom is where the waiters of a shared store wait: those of one key
// share their looks at it, and whatever the backend has for telling of the end of
// a claim (a subscription, notifications) serves all of them. The stores of two
// packages have one.
package waitroom

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/idempotent-go/idempotent"
)

// Defaults of [Settings].
const (
	DefaultSlow = 2 * time.Second
	DefaultIdle = 10 * time.Second
)

const (
	lookTimeout = 5 * time.Second // of one shared look, which no caller's context bounds
	listenFirst = 100 * time.Millisecond
	listenMost  = 5 * time.Second
)

// Look is what a look at a key has found.
type Look struct {
	Entry idempotent.Entry
	Found bool
	Left  time.Duration // of a running claim's lease; 0: no claim is running
	Told  bool          // the end of the running claim will be told
}

// Settings are what a store has of its own. They may be changed until the first
// [Room.Wait].
type Settings struct {
	// Look reads key. told says that the backend tells of ends just now. It ends
	// with ctx.
	Look func(ctx context.Context, key string, told bool) (Look, error)

	// Name returns the name by which the backend tells of a key.
	Name func(key string) string

	// Listen hears of ends while somebody waits, until ctx ends or it cannot go on.
	// It is called again after the pause that it returns, but not before one that
	// grows from 100 milliseconds to 5 seconds. nil: there is nothing to hear, and
	// waiters poll.
	Listen func(ctx context.Context, heard Heard) (pause time.Duration)

	// Closed is what Wait returns after Close.
	Closed error

	First, Most time.Duration // the growing pauses between two looks at a claim whose end is not told
	Slow        time.Duration // the pause where it is; it only covers what got lost
	Idle        time.Duration // after the last waiter has left, the listening ends
}

// Heard is how Listen reports. Neither function blocks, and both do nothing once
// ctx has ended.
type Heard struct {
	Ready func()            // from now on every end is heard
	End   func(name string) // the claim of the key with this name has ended
}

// Room is the waiters of one store. It is made by [New] and safe for concurrent
// use.
type Room struct {
	Settings

	ctx    context.Context // ends with the store
	cancel context.CancelFunc
	done   sync.WaitGroup // the goroutines of targets and of the listening

	mu       sync.Mutex         // guards the fields below
	targets  map[string]*target // by name, where somebody waits
	unlisten context.CancelFunc // ends the listening; nil: there is none
	told     bool               // it is ready
	idle     *time.Timer        // ends the listening when nobody has waited for a while
}

// target is a key that somebody waits for.
type target struct {
	key     string
	name    string
	waiters map[waiter]struct{} // guarded by Room.mu
	again   chan struct{}       // look at once; holds one signal
	cancel  context.CancelFunc
}

// waiter receives the one answer to a Wait. It has room for it, so that nobody
// blocks on a waiter that has just left.
type waiter chan answer

type answer struct {
	look Look
	err  error
}

// New returns a Room with the default Slow and Idle where s has none. It starts
// no goroutine.
func New(s Settings) *Room {
	if s.Slow == 0 {
		s.Slow = DefaultSlow
	}
	if s.Idle == 0 {
		s.Idle = DefaultIdle
	}
	r := &Room{Settings: s, targets: map[string]*target{}}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// Wait returns what a look has found as soon as one finds no running claim of
// key, or that look's error. It blocks until then or until ctx ends, and returns
// ctx's error in that case. key must stay as it is.
func (r *Room) Wait(ctx context.Context, key string) (idempotent.Entry, bool, error) {
	w := make(waiter, 1)
	t := r.join(key, w)
	if t == nil {
		return idempotent.Entry{}, false, r.Closed
	}
	select {
	case a := <-w:
		return a.look.Entry, a.look.Found, a.err
	case <-ctx.Done():
		r.leave(t, w)
		return idempotent.Entry{}, false, ctx.Err()
	case <-r.ctx.Done():
		return idempotent.Entry{}, false, r.Closed
	}
}

// Close ends every Wait and every goroutine, and returns when these have ended.
// It may be called more than once.
func (r *Room) Close() {
	r.mu.Lock()
	r.cancel()
	if r.idle != nil {
		r.idle.Stop()
	}
	r.mu.Unlock()
	r.done.Wait()
}

// Waiters returns how many there are, and for how many keys.
func (r *Room) Waiters() (waiters, keys int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.targets {
		waiters += len(t.waiters)
	}
	return waiters, len(r.targets)
}

// Told reports whether ends are heard just now.
func (r *Room) Told() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.told
}

// join registers a waiter, and returns nil where the room is closed.
func (r *Room) join(key string, w waiter) *target {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx.Err() != nil {
		return nil
	}
	name := r.Name(key)
	t := r.targets[name]
	if t == nil {
		t = &target{key: key, name: name, waiters: map[waiter]struct{}{}, again: make(chan struct{}, 1)}
		var ctx context.Context
		ctx, t.cancel = context.WithCancel(r.ctx)
		r.targets[name] = t
		r.done.Go(func() { r.follow(ctx, t) })
	}
	t.waiters[w] = struct{}{}
	t.look()
	return t
}

// leave forgets a waiter whose context has ended.
func (r *Room) leave(t *target, w waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(t.waiters, w)
	r.drop(t)
}

// drop ends a target for which nobody waits. It needs mu.
func (r *Room) drop(t *target) bool {
	if len(t.waiters) > 0 {
		return false
	}
	t.cancel()
	if r.targets[t.name] == t {
		delete(r.targets, t.name)
	}
	if len(r.targets) == 0 && r.unlisten != nil {
		if r.idle == nil {
			r.idle = time.AfterFunc(r.Idle, r.rest)
		} else {
			r.idle.Reset(r.Idle)
		}
	}
	return true
}

// look asks for another look. A signal that is already there will do.
func (t *target) look() {
	select {
	case t.again <- struct{}{}:
	default:
	}
}

// follow looks at a key until nobody waits for it any more.
func (r *Room) follow(ctx context.Context, t *target) {
	for pause := r.First; ; {
		present, told := r.present(t)
		l, err := r.lookAt(ctx, t.key, told)
		if ctx.Err() != nil {
			return
		}
		if err != nil || l.Left <= 0 {
			if r.answer(t, present, answer{l, err}) {
				return
			}
			pause = r.First
			continue
		}
		r.listen()
		idle := jitter(r.Slow)
		if !l.Told {
			idle, pause = jitter(pause), min(2*pause, r.Most)
		}
		// A millisecond more than the lease, so that the look finds it lapsed.
		timer := time.NewTimer(min(idle, l.Left+time.Millisecond))
		select {
		case <-ctx.Done():
		case <-t.again:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// present returns who waits before a look is sent: it answers these and no
// others, since later ones may have come after the look was made. Signals so
// far are met by this look.
func (r *Room) present(t *target) (who []waiter, told bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-t.again:
	default:
	}
	return slices.Collect(maps.Keys(t.waiters)), r.told
}

func (r *Room) lookAt(ctx context.Context, key string, told bool) (Look, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return r.Look(ctx, key, told)
}

// answer tells those present, and reports whether the target has ended.
func (r *Room) answer(t *target, present []waiter, a answer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range present {
		if _, there := t.waiters[w]; there {
			delete(t.waiters, w)
			w <- a
		}
	}
	return r.drop(t)
}

// jitter returns between half of d and d, so that those who started together do
// not stay together.
func jitter(d time.Duration) time.Duration { return d - rand.N(d/2+1) }
