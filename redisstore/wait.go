package redisstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent"
)

// The pauses between two looks at a running claim. While the subscription
// stands they only cover a lost message; without it they are how an end is
// noticed.
const (
	pollSubscribed = 2 * time.Second
	pollFirst      = 20 * time.Millisecond
	pollMost       = 500 * time.Millisecond
)

const (
	lookTimeout   = 5 * time.Second  // of one shared look, which no caller's context bounds
	idleTimeout   = 10 * time.Second // after the last waiter has left, the subscription ends
	silenceLimit  = 10 * time.Second // without a message the subscription's connection is tried
	retryFirst    = 100 * time.Millisecond
	retryMost     = 5 * time.Second
	retryRefusals = time.Minute // the user may not subscribe; rights change rarely
)

// Wait returns as soon as no claim of key is running; see [idempotent.Waiter].
// Waiters hold no connection. One subscription per Store tells all of them, and
// those of one key share their looks at it; a slow poll underneath, never
// longer than the rest of the lease, covers lost messages. Where the Redis user
// may not subscribe or publish, waiters poll. Each look has a time-out of 5
// seconds, and one that fails is every waiter's error.
func (s *Store) Wait(ctx context.Context, key string) (idempotent.Entry, bool, error) {
	if err := idempotent.ValidateKey(key, "any"); err != nil {
		return idempotent.Entry{}, false, err
	}
	if err := s.open(ctx); err != nil {
		return idempotent.Entry{}, false, err
	}
	w := make(waiter, 1)
	t := s.waits.join(key, w)
	if t == nil {
		return idempotent.Entry{}, false, s.open(ctx)
	}
	select {
	case end := <-w:
		return end.look.entry, end.look.found, end.err
	case <-ctx.Done():
		s.waits.leave(t, w)
		return idempotent.Entry{}, false, ctx.Err()
	case <-s.waits.ctx.Done():
		return idempotent.Entry{}, false, fmt.Errorf("redisstore: wait: %w", idempotent.ErrClosed)
	}
}

// waiter receives the one answer to a Wait. It has room for it, so that nobody
// blocks on a waiter that has just left.
type waiter chan ending

type ending struct {
	look look
	err  error
}

// waits is everything the waiters of one Store share.
type waits struct {
	store  *Store
	slow   time.Duration   // pause between two looks at a claim whose end is published
	ctx    context.Context // ends with the Store
	cancel context.CancelFunc
	done   sync.WaitGroup // the goroutines of targets and subscription

	mu         sync.Mutex
	targets    map[string]*target // by name in Redis, where somebody waits
	unlisten   context.CancelFunc // ends the subscription; nil: there is none
	subscribed bool               // the server has confirmed it
	idle       *time.Timer        // ends the subscription when nobody has waited for a while
}

// target is a key that somebody waits for.
type target struct {
	key     string
	name    string
	waiters map[waiter]struct{} // guarded by waits.mu
	again   chan struct{}       // look at once; holds one signal
	cancel  context.CancelFunc
}

func newWaits(s *Store) *waits {
	w := &waits{store: s, slow: pollSubscribed, targets: map[string]*target{}}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w
}

// close ends every goroutine and returns when they have ended.
func (w *waits) close() {
	w.mu.Lock()
	w.cancel()
	if w.idle != nil {
		w.idle.Stop()
	}
	w.mu.Unlock()
	w.done.Wait()
}

// join registers a waiter, and nil where the Store is closed.
func (w *waits) join(key string, who waiter) *target {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx.Err() != nil {
		return nil
	}
	name := w.store.name(key)
	t := w.targets[name]
	if t == nil {
		t = &target{key: key, name: name, waiters: map[waiter]struct{}{}, again: make(chan struct{}, 1)}
		var ctx context.Context
		ctx, t.cancel = context.WithCancel(w.ctx)
		w.targets[name] = t
		w.done.Go(func() { w.follow(ctx, t) })
	}
	t.waiters[who] = struct{}{}
	t.look()
	return t
}

// leave forgets a waiter whose context has ended.
func (w *waits) leave(t *target, who waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(t.waiters, who)
	w.drop(t)
}

// drop ends a target for which nobody waits. It needs mu.
func (w *waits) drop(t *target) bool {
	if len(t.waiters) > 0 {
		return false
	}
	t.cancel()
	if w.targets[t.name] == t {
		delete(w.targets, t.name)
	}
	if len(w.targets) == 0 && w.unlisten != nil {
		if w.idle == nil {
			w.idle = time.AfterFunc(idleTimeout, w.rest)
		} else {
			w.idle.Reset(idleTimeout)
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
func (w *waits) follow(ctx context.Context, t *target) {
	for pause := pollFirst; ; {
		present, subscribed := w.present(t)
		l, err := w.lookAt(ctx, t, subscribed)
		if ctx.Err() != nil {
			return
		}
		if err != nil || l.left <= 0 {
			if w.answer(t, present, ending{l, err}) {
				return
			}
			pause = pollFirst
			continue
		}
		w.listen()
		rest := jitter(w.slow)
		if !l.marked {
			rest, pause = jitter(pause), min(2*pause, pollMost)
		}
		// A millisecond more than the lease, so that the look finds it lapsed.
		timer := time.NewTimer(min(rest, l.left+time.Millisecond))
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
func (w *waits) present(t *target) (who []waiter, subscribed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-t.again:
	default:
	}
	return slices.Collect(maps.Keys(t.waiters)), w.subscribed
}

func (w *waits) lookAt(ctx context.Context, t *target, mark bool) (look, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	// Close waits for this look: it must end when it is cancelled.
	return w.store.look(undated{ctx}, "wait", t.key, mark)
}

// answer tells those present, and reports whether the target has ended.
func (w *waits) answer(t *target, present []waiter, end ending) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, who := range present {
		if _, there := t.waiters[who]; there {
			delete(t.waiters, who)
			who <- end
		}
	}
	return w.drop(t)
}

// listen starts the subscription where there is none. A Ring has no shard that
// all completions are published on, and panics in Subscribe while one is down.
func (w *waits) listen() {
	if _, ring := w.store.client.(*redis.Ring); ring {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unlisten != nil || w.ctx.Err() != nil {
		return
	}
	var ctx context.Context
	ctx, w.unlisten = context.WithCancel(w.ctx)
	w.done.Go(func() { w.subscribe(ctx) })
}

// rest ends the subscription if still nobody waits.
func (w *waits) rest() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.targets) == 0 && w.unlisten != nil {
		w.unlisten()
		w.unlisten, w.subscribed = nil, false
	}
}

// subscribe keeps a subscription until ctx ends.
func (w *waits) subscribe(ctx context.Context) {
	for pause := retryFirst; ; pause = min(2*pause, retryMost) {
		confirmed, err := w.session(ctx)
		if ctx.Err() != nil {
			return
		}
		w.confirm(ctx, false)
		switch {
		case refused(err):
			pause = retryRefusals
		case confirmed:
			pause = retryFirst
		}
		timer := time.NewTimer(jitter(pause))
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// session receives messages over one subscription until it fails or ctx ends,
// and says whether the server had confirmed it. The client's own channel would
// hide that the user may not subscribe.
func (w *waits) session(ctx context.Context) (confirmed bool, err error) {
	sub := w.store.client.Subscribe(ctx)
	confirmed, err = call(ctx, false, func() (bool, error) { return w.receive(ctx, sub) })
	// A receiver that was left behind ends by this. It may hold the lock that
	// Close takes, while it dials: nobody waits for it.
	go func() { _ = sub.Close() }()
	return confirmed, err
}

func (w *waits) receive(ctx context.Context, sub *redis.PubSub) (confirmed bool, err error) {
	if err := sub.Subscribe(ctx, w.store.channel); err != nil {
		return false, err
	}
	for silent := false; ; {
		message, err := sub.ReceiveTimeout(ctx, silenceLimit)
		var timeout net.Error
		switch {
		case err != nil && !silent && errors.As(err, &timeout) && timeout.Timeout():
			silent = true
			if err := sub.Ping(ctx); err != nil {
				return confirmed, err
			}
			continue
		case err != nil:
			return confirmed, err
		}
		silent = false
		switch m := message.(type) {
		case *redis.Subscription:
			confirmed = true
			w.confirm(ctx, true)
		case *redis.Message:
			w.wake(m.Payload)
		}
	}
}

// confirm notes whether the subscription stands. Everybody looks again: what
// ended before was not heard, and claims are marked only while it stands.
func (w *waits) confirm(ctx context.Context, subscribed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	w.subscribed = subscribed
	for _, t := range w.targets {
		t.look()
	}
}

// wake looks at the key that a message names, if somebody here waits for it.
func (w *waits) wake(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.targets[name]; t != nil {
		t.look()
	}
}

// jitter returns between half of d and d, so that processes that started
// together do not stay together.
func jitter(d time.Duration) time.Duration {
	return d - rand.N(d/2+1)
}
