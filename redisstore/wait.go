package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/waitroom"
)

const (
	// The pauses between two looks at a running claim without the subscription.
	pollFirst = 20 * time.Millisecond
	pollMost  = 500 * time.Millisecond

	silenceLimit  = 10 * time.Second // without a message the subscription's connection is tried
	retryRefusals = time.Minute      // the user may not subscribe; rights change rarely
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
	return s.waiters.Wait(ctx, key)
}

// newWaiters returns the room for those who wait in s.
func newWaiters(s *Store) *waitroom.Room {
	settings := waitroom.Settings{
		Look:   s.lookForWaiters,
		Name:   s.name,
		Listen: s.subscribe,
		Closed: fmt.Errorf("redisstore: wait: %w", idempotent.ErrClosed),
		First:  pollFirst,
		Most:   pollMost,
	}
	if _, ring := s.client.(*redis.Ring); ring {
		// It has no shard that all completions are published on, and panics in
		// Subscribe while one is down.
		settings.Listen = nil
	}
	return waitroom.New(settings)
}

func (s *Store) lookForWaiters(ctx context.Context, key string, subscribed bool) (waitroom.Look, error) {
	// Close waits for this look: it must end when it is cancelled.
	l, err := s.look(undated{ctx}, "wait", key, subscribed)
	return waitroom.Look{Entry: l.entry, Found: l.found, Left: l.left, Told: l.marked}, err
}

// subscribe receives messages over one subscription until it fails or ctx ends,
// and returns after how long it may be worth another try.
func (s *Store) subscribe(ctx context.Context, heard waitroom.Heard) time.Duration {
	sub := s.client.Subscribe(ctx)
	_, err := call(ctx, false, func() (struct{}, error) { return struct{}{}, s.receive(ctx, sub, heard) })
	// A receiver that was left behind ends by this. It may hold the lock that
	// Close takes, while it dials: nobody waits for it.
	go func() { _ = sub.Close() }()
	if refused(err) {
		return retryRefusals
	}
	return 0
}

// receive hands on what comes. The client's own channel would hide that the user
// may not subscribe.
func (s *Store) receive(ctx context.Context, sub *redis.PubSub, heard waitroom.Heard) error {
	if err := sub.Subscribe(ctx, s.channel); err != nil {
		return err
	}
	for silent := false; ; {
		message, err := sub.ReceiveTimeout(ctx, silenceLimit)
		var timeout net.Error
		switch {
		case err != nil && !silent && errors.As(err, &timeout) && timeout.Timeout():
			silent = true
			if err := sub.Ping(ctx); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		silent = false
		switch m := message.(type) {
		case *redis.Subscription:
			heard.Ready()
		case *redis.Message:
			heard.End(m.Payload)
		}
	}
}
