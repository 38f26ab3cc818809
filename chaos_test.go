package idempotent_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
)

// chaos is a store that loses requests and replies, is slow, obeys contexts or
// does not, and lets a step that has failed land later all the same.
type chaos struct {
	idempotent.Store
	timeout time.Duration

	mu   sync.Mutex // guards the fields below
	rand *rand.Rand
	calm bool
	late sync.WaitGroup
}

func (s *chaos) roll(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rand.IntN(n)
}

// do runs one step under some misfortune.
func (s *chaos) do(ctx context.Context, send func(context.Context) error) error {
	s.mu.Lock()
	kind, delay := s.rand.IntN(12), time.Duration(s.rand.Int64N(int64(3*s.timeout)))
	if s.calm {
		kind = 11
	}
	s.mu.Unlock()
	switch kind {
	case 0: // the request is lost
		return errBoom
	case 1: // the reply is lost
		_ = send(ctx)
		return errBoom
	case 2: // it stalls, and is never sent
		<-ctx.Done()
		return ctx.Err()
	case 3: // it stalls, and lands later
		s.late.Go(func() {
			time.Sleep(delay)
			_ = send(context.WithoutCancel(ctx))
		})
		<-ctx.Done()
		return ctx.Err()
	case 4: // the store does not look at contexts
		time.Sleep(delay)
		err := send(context.WithoutCancel(ctx))
		time.Sleep(delay)
		return err
	case 5: // slow
		select {
		case <-time.After(delay / 4):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return send(ctx)
}

func (s *chaos) Claim(ctx context.Context, key string, c idempotent.Claim) (idempotent.Entry, bool, error) {
	type answer struct {
		e  idempotent.Entry
		ok bool
	}
	answers := make(chan answer, 1)
	err := s.do(ctx, func(ctx context.Context) error {
		e, ok, err := s.Store.Claim(ctx, key, c)
		answers <- answer{e, ok}
		return err
	})
	if err != nil {
		return idempotent.Entry{}, false, err
	}
	a := <-answers
	return a.e, a.ok, nil
}

func (s *chaos) Renew(ctx context.Context, key, owner string, lease time.Duration) error {
	return s.do(ctx, func(ctx context.Context) error { return s.Store.Renew(ctx, key, owner, lease) })
}

func (s *chaos) Complete(ctx context.Context, key, owner string, o idempotent.Outcome) error {
	return s.do(ctx, func(ctx context.Context) error { return s.Store.Complete(ctx, key, owner, o) })
}

func (s *chaos) Release(ctx context.Context, key, owner string) error {
	return s.do(ctx, func(ctx context.Context) error { return s.Store.Release(ctx, key, owner) })
}

// Whatever a store does short of forgetting, an operation runs once; with
// take-over it runs again only when the one before has been told to stop.
// Everything ends, and every claim has one end.
func TestChaosRunsNothingTwice(t *testing.T) {
	for _, takeOver := range []bool{false, true} {
		for seed := range uint64(150) {
			bubble(t, fmt.Sprintf("take-over %v, seed %d", takeOver, seed), func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 1))
				lease := time.Duration(1+random.IntN(5)) * time.Second
				timeout := time.Duration(1+random.IntN(3)) * time.Second
				mem := memstore.New(memstore.WithLogger(slog.New(slog.DiscardHandler)))
				store := &chaos{Store: mem, timeout: timeout, rand: random}
				events := &eventLog{}
				opts := []idempotent.Option{
					idempotent.WithLease(lease), idempotent.WithStoreTimeout(timeout),
					idempotent.WithObserver(events), idempotent.WithLogger(slog.New(slog.DiscardHandler)),
				}
				if takeOver {
					opts = append(opts, idempotent.WithTakeOver())
				}
				g := idempotent.New(store, opts...)

				var mu sync.Mutex // guards the two below
				var last context.Context
				var settled bool // by an outcome that forbids another run
				op := func(ctx context.Context) (idempotent.Class, string) {
					mu.Lock()
					before := last
					last = ctx
					if settled && !takeOver {
						t.Error("it ran again after an outcome")
					}
					mu.Unlock()
					if before != nil {
						time.Sleep(time.Nanosecond) // what happens at the same moment has then happened
						if before.Err() == nil {
							t.Error("it ran while another one did")
						}
					}
					select {
					case <-time.After(time.Duration(store.roll(int(3 * lease)))):
					case <-ctx.Done():
					}
					class := idempotent.Class(1 + store.roll(4))
					mu.Lock()
					defer mu.Unlock()
					settled = settled || class != idempotent.ClassRelease
					return class, "result"
				}
				var callers sync.WaitGroup
				for range 4 {
					callers.Go(func() {
						for range 6 {
							ctx, cancel := context.WithCancel(context.Background())
							if store.roll(3) == 0 {
								time.AfterFunc(time.Duration(store.roll(int(3*time.Second))), cancel)
							}
							_, _, err := g.Run(ctx, "k", op, idempotent.WithCallWait(time.Duration(store.roll(int(2*lease)))-lease))
							if errors.Is(err, idempotent.ErrLost) || errors.Is(err, idempotent.ErrKeyReused) {
								t.Error(err)
							}
							cancel()
							time.Sleep(time.Duration(store.roll(int(2 * lease))))
						}
					})
				}
				callers.Wait()
				store.mu.Lock()
				store.calm = true
				store.mu.Unlock()
				require.NoError(t, g.Drain(context.Background()))
				store.late.Wait()
				require.Equal(t,
					events.count(idempotent.EventClaimed)+events.count(idempotent.EventTakenOver),
					events.count(idempotent.EventCompleted)+events.count(idempotent.EventReleased)+events.count(idempotent.EventNotRecorded))
				require.NoError(t, mem.Close())
				synctest.Wait()
			})
		}
	}
}
