package sqlstore

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/waitroom"
)

// The pauses between two looks at a running claim without notifications.
const (
	pollFirst = 5 * time.Millisecond
	pollMost  = 250 * time.Millisecond
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
	return s.waiters.Wait(ctx, strings.Clone(key))
}

// newWaiters returns the room for those who wait in s.
func newWaiters(s *Store) *waitroom.Room {
	settings := waitroom.Settings{
		Look:   s.lookForWaiters,
		Name:   func(key string) string { return hex.EncodeToString(rowName(key)) }, // as the trigger names it
		Closed: fmt.Errorf("sqlstore: wait: %w", idempotent.ErrClosed),
		First:  pollFirst,
		Most:   pollMost,
	}
	if s.listen != nil {
		settings.Listen = func(ctx context.Context, heard waitroom.Heard) time.Duration {
			_ = s.listen(ctx, s.bare(), heard.Ready, heard.End) // without it waiters poll
			return 0
		}
	}
	return waitroom.New(settings)
}

func (s *Store) lookForWaiters(ctx context.Context, key string, listening bool) (waitroom.Look, error) {
	return do(ctx, s, "wait", func(q querier) (waitroom.Look, error) {
		r, now, err := s.text.read(ctx, q, key)
		if err != nil {
			return waitroom.Look{}, err
		}
		l := waitroom.Look{Told: listening}
		if l.Entry, l.Found = r.entry(now); l.Entry.Status == idempotent.Pending {
			l.Left = time.Duration(r.expires-now) * time.Microsecond
		}
		return l, nil
	})
}
