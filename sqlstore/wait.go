package sqlstore

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/idempotent-go/idempotent"
)

// The pauses between two looks at a running claim. While the notifications come
// they only cover a lost one; without them they are how an end is noticed.
const (
	pollListening = 2 * time.Second
	pollFirst     = 5 * time.Millisecond
	pollMost      = 250 * time.Millisecond
)

const (
	lookTimeout = 5 * time.Second  // of one shared look, which no caller's context bounds
	idleTimeout = 10 * time.Second // after the last waiter has left, the listening ends
	listenFirst = 100 * time.Millisecond
	listenMost  = 5 * time.Second
)

// ListenFunc receives PostgreSQL's notifications on a channel over a connection
// of its own: database/sql has none for it. It calls ready when the channel is
// listened to, and notify with the payload of each notification. It blocks
// until ctx ends or the connection does, and leaves no connection behind;
// neither ready nor notify is called after that, and neither blocks. Package
// pglisten has one.
type ListenFunc func(ctx context.Context, channel string, ready func(), notify func(payload string)) error

// WithListen has waiters be told by PostgreSQL when a claim ends, by the trigger
// of [Store.NotifySchema] and LISTEN. By default they poll, with pauses that grow
// from 5 to 250 milliseconds. With f they still look every two seconds, and poll
// as before while f has no connection; f runs while somebody waits, and is called
// again where it returns. It panics on a nil f; [New] panics where the dialect is
// not PostgreSQL.
func WithListen(f ListenFunc) Option {
	if f == nil {
		panic("sqlstore: WithListen: the function is nil")
	}
	return func(s *Store) { s.listen = f }
}

// Wait returns as soon as no claim of key is running; see [idempotent.Waiter].
// Waiters hold no connection, and those of one key and Store share their looks
// at it. The end of a lease is noticed when it comes; a completion or a release
// within the pause between two looks, see [WithListen]. Each look has a time-out
// of 5 seconds, and one that fails is every waiter's error.
func (s *Store) Wait(ctx context.Context, key string) (idempotent.Entry, bool, error) {
	if err := idempotent.ValidateKey(key, "any"); err != nil {
		return idempotent.Entry{}, false, err
	}
	if err := s.open(ctx); err != nil {
		return idempotent.Entry{}, false, err
	}
	w := make(waiter, 1)
	t := s.waits.join(strings.Clone(key), w)
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
		return idempotent.Entry{}, false, fmt.Errorf("sqlstore: wait: %w", idempotent.ErrClosed)
	}
}

// waiter receives the one answer to a Wait. It has room for it, so that nobody
// blocks on a waiter that has just left.
type waiter chan ending

type ending struct {
	look look
	err  error
}

// look is what a waiter's look has found.
type look struct {
	entry idempotent.Entry
	found bool
	left  time.Duration // of a running claim's lease; 0: no claim is running
}

// waits is everything the waiters of one Store share.
type waits struct {
	store  *Store
	slow   time.Duration   // pause between two looks at a claim whose end is notified
	ctx    context.Context // ends with the Store
	cancel context.CancelFunc
	done   sync.WaitGroup // the goroutines of targets and of the listening

	mu        sync.Mutex
	targets   map[string]*target // by the payload that names the key
	unlisten  context.CancelFunc // ends the listening; nil: there is none
	listening bool               // the server has confirmed it
	idle      *time.Timer        // ends the listening when nobody has waited for a while
}

// target is a key that somebody waits for.
type target struct {
	key     string
	payload string
	waiters map[waiter]struct{} // guarded by waits.mu
	again   chan struct{}       // look at once; holds one signal
	cancel  context.CancelFunc
}

func newWaits(s *Store) *waits {
	w := &waits{store: s, slow: pollListening, targets: map[string]*target{}}
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

// join registers a waiter, and returns nil where the Store is closed.
func (w *waits) join(key string, who waiter) *target {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx.Err() != nil {
		return nil
	}
	payload := hex.EncodeToString(rowName(key))
	t := w.targets[payload]
	if t == nil {
		t = &target{key: key, payload: payload, waiters: map[waiter]struct{}{}, again: make(chan struct{}, 1)}
		var ctx context.Context
		ctx, t.cancel = context.WithCancel(w.ctx)
		w.targets[payload] = t
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
	if w.targets[t.payload] == t {
		delete(w.targets, t.payload)
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
		present, listening := w.present(t)
		l, err := w.store.look(ctx, t.key)
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
		idle := jitter(w.slow)
		if !listening {
			idle, pause = jitter(pause), min(2*pause, pollMost)
		}
		// A millisecond more than the lease, so that the look finds it lapsed.
		timer := time.NewTimer(min(idle, l.left+time.Millisecond))
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
func (w *waits) present(t *target) (who []waiter, listening bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-t.again:
	default:
	}
	return slices.Collect(maps.Keys(t.waiters)), w.listening
}

// look reads key for those who wait.
func (s *Store) look(ctx context.Context, key string) (look, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return do(ctx, s, "wait", func(q querier) (look, error) {
		r, now, err := s.text.read(ctx, q, key, false)
		if err != nil {
			return look{}, err
		}
		var l look
		if l.entry, l.found = r.entry(now); l.entry.Status == idempotent.Pending {
			l.left = time.Duration(r.expires-now) * time.Microsecond
		}
		return l, nil
	})
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

// listen starts the listening where there is none and should be.
func (w *waits) listen() {
	if w.store.listen == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unlisten != nil || w.ctx.Err() != nil {
		return
	}
	var ctx context.Context
	ctx, w.unlisten = context.WithCancel(w.ctx)
	w.done.Go(func() { w.keepListening(ctx) })
}

// rest ends the listening if still nobody waits.
func (w *waits) rest() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.targets) == 0 && w.unlisten != nil {
		w.unlisten()
		w.unlisten, w.listening = nil, false
	}
}

// keepListening listens until ctx ends.
func (w *waits) keepListening(ctx context.Context) {
	for pause := listenFirst; ; pause = min(2*pause, listenMost) {
		_ = w.store.listen(ctx, w.store.bare(), func() {
			pause = listenFirst
			w.confirm(ctx, true)
		}, w.wake)
		w.confirm(ctx, false)
		if !rest(ctx, jitter(pause)) {
			return
		}
	}
}

// confirm notes whether notifications come. Everybody looks again: what ended
// before was not heard.
func (w *waits) confirm(ctx context.Context, listening bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	w.listening = listening
	for _, t := range w.targets {
		t.look()
	}
}

// wake looks at the key that a notification names, if somebody here waits for
// it.
func (w *waits) wake(payload string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.targets[payload]; t != nil {
		t.look()
	}
}
