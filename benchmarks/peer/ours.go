package peer

import (
	"context"
	"errors"
	"log/slog"

	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/redisstore"
)

// ours is this library's guard.
type ours struct {
	guard *idempotent.Guard
	op    func() string
	close func()
}

var quiet = slog.New(slog.DiscardHandler)

func openMemory(op func() string, _ string) (Peer, error) {
	s := memstore.New(memstore.WithLogger(quiet))
	return &ours{guard: idempotent.New(s, idempotent.WithLogger(quiet)), op: op, close: func() { _ = s.Close() }}, nil
}

func openRedis(op func() string, addr string) (Peer, error) {
	client := NewClient(addr)
	s := redisstore.New(client)
	return &ours{guard: idempotent.New(s, idempotent.WithLogger(quiet)), op: op, close: func() { _, _ = s.Close(), client.Close() }}, nil
}

func openPipelined(op func() string, addr string) (Peer, error) {
	client := NewClient(addr)
	pipelined, err := client.AutoPipeline()
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	s := redisstore.New(pipelined)
	return &ours{guard: idempotent.New(s, idempotent.WithLogger(quiet)), op: op, close: func() { _, _, _ = s.Close(), pipelined.Close(), client.Close() }}, nil
}

// NewClient returns the client that all users of go-redis here share the
// settings of.
func NewClient(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, PoolSize: 128, MinIdleConns: 64})
}

func (p *ours) Do(ctx context.Context, key, request string) (string, error) {
	rec, _, err := p.guard.Run(ctx, key, func(context.Context) (idempotent.Class, string) {
		return idempotent.ClassSuccess, p.op()
	}, idempotent.WithCallFingerprint(request))
	var inFlight *idempotent.InFlightError
	switch {
	case errors.As(err, &inFlight):
		return "", ErrInFlight
	case errors.Is(err, idempotent.ErrKeyReused):
		return "", ErrMismatch
	}
	return rec.Result, err
}

func (p *ours) Close() error {
	p.close()
	return nil
}
