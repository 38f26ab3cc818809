// Package peer holds what a user might pick instead of this library, each
// behind one small interface, and the check that each does the job before
// anybody asks how fast it is.
package peer

import (
	"context"
	"errors"
)

// What a peer may answer instead of an answer.
var (
	ErrInFlight = errors.New("peer: the operation is running")
	ErrMismatch = errors.New("peer: the key belongs to another request")
)

// Peer protects one operation by key, the way one library or habit does it. It
// is safe for concurrent use.
type Peer interface {
	// Do runs the operation for a key that is new, and answers a repeat with
	// what was recorded. Request is what the caller asks for: a peer that can
	// tell requests apart answers ErrMismatch to another one under a used key.
	// A repeat of a running operation waits or is ErrInFlight.
	Do(ctx context.Context, key, request string) (answer string, err error)
	Close() error
}

// Kind is a sort of peer.
type Kind struct {
	Name string
	Note string // what a reader of a table must know; may be ""
	// Open returns a peer that protects op. It is given the address of a Redis
	// server where it asks for one.
	Open  func(op func() string, redis string) (Peer, error)
	Redis bool
	Ours  bool
}

// Kinds are all peers that run an operation, this library first.
func Kinds() []Kind {
	kinds := []Kind{
		{Name: "idempotent, memstore", Ours: true, Open: openMemory},
	}
	for _, m := range Maps() {
		kinds = append(kinds, Kind{Name: m.Name, Note: m.Note, Open: func(op func() string, _ string) (Peer, error) {
			c, err := m.Open()
			if err != nil {
				return nil, err
			}
			return &overMap{cache: c, op: op}, nil
		}})
	}
	kinds = append(kinds,
		Kind{Name: "x/sync singleflight", Note: "remembers nothing", Open: openSingleflight},
		Kind{Name: "idempotent middleware, memstore", Ours: true, Open: overApp(Guarded)},
		Kind{Name: "fiber v2 idempotency", Open: overApp(Fiber)},
		Kind{Name: "plain middleware, map", Note: "SETNX, GET, SET as people write it", Open: overApp(PlainMemory)},
		Kind{Name: "idempotent, redisstore", Ours: true, Redis: true, Open: openRedis},
		Kind{Name: "idempotent, redisstore, auto-pipelined", Ours: true, Redis: true, Open: openPipelined},
		Kind{Name: "plain middleware, Redis", Redis: true, Note: "SETNX, GET, SET as people write it", Open: openPlainRedis},
		Kind{Name: "lock, GET, SET, unlock", Redis: true, Open: openLock},
		Kind{Name: "rueidis, SET NX GET + SET", Redis: true, Note: "one string, no owner: the limit", Open: openRueidis},
	)
	return kinds
}
