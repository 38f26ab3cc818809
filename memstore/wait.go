package memstore

import (
	"context"
	"time"

	"github.com/idempotent-go/idempotent"
)

// Wait blocks until no claim of key is running, and returns what Load returns
// at that moment; see [idempotent.Waiter]. It is woken, not polled. It ends
// with ctx and with [Store.Close].
func (s *Store) Wait(ctx context.Context, key string) (e idempotent.Entry, ok bool, err error) {
	if err := validateKey(key); err != nil {
		return e, false, err
	}
	for {
		f, err := s.find(ctx, key)
		if err != nil || f.slot == nil {
			return e, false, err
		}
		if !f.running() {
			s.tell(&e, f)
			return e, true, nil
		}
		woken := f.slot.woken()
		// A move before the channel was there has woken nobody: look once more.
		if f.slot.load() == f.word {
			s.sleep(ctx, woken, time.Duration(f.word.end()-f.now))
		}
	}
}

// sleep returns when d has passed or anything has happened.
func (s *Store) sleep(ctx context.Context, woken <-chan struct{}, d time.Duration) {
	lapse := time.NewTimer(d)
	defer lapse.Stop()
	select {
	case <-woken:
	case <-lapse.C:
	case <-ctx.Done():
	case <-s.ended:
	}
}

// woken returns a channel that is closed by the next wake.
func (sl *slot) woken() <-chan struct{} {
	if ch := sl.waiters.Load(); ch != nil {
		return *ch
	}
	ch := make(chan struct{})
	for !sl.waiters.CompareAndSwap(nil, &ch) {
		if other := sl.waiters.Load(); other != nil {
			return *other
		}
	}
	return ch
}

// wake tells all who wait that the slot has moved. It comes after the move.
func (sl *slot) wake() {
	if sl.waiters.Load() == nil { // spares the common case the write
		return
	}
	if ch := sl.waiters.Swap(nil); ch != nil {
		close(*ch)
	}
}
