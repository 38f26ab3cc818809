package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/benchmarks/measure"
	"github.com/idempotent-go/idempotent/benchmarks/peer"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/memstore"
)

// What every measurement works with: store names of about 90 bytes, answers of
// 512.
const (
	answerSize  = 512
	fingerprint = "r1:0123456789abcdef0123456789abcdef"
	retention   = 24 * time.Hour
)

var (
	answer = strings.Repeat("a", answerSize)
	quiet  = slog.New(slog.DiscardHandler)
)

// bench is what all measurements share.
type bench struct {
	ctx      context.Context
	rounds   int
	quick    bool
	server   *redistest.Server // nil where there is none
	progress func(format string, args ...any)

	made int // keys given out
}

// size returns full, or small in a quick run.
func (b *bench) size(full, small int) int {
	if b.quick {
		return small
	}
	return full
}

// names returns n store names that nobody has used.
func (b *bench) names(n int) []string {
	names := make([]string, n)
	for i := range names {
		b.made++
		names[i] = nameOf(b.made)
	}
	return names
}

// nameOf returns the store name of a number: as long as one usually is.
func nameOf(n int) string {
	return fmt.Sprintf("POST:/api/v1/orders:tenant-0042~user-000001234567:018f7a3e-5b1c-7c3d-9e2a-%012d", n)
}

// keys returns n client keys that nobody has used.
func (b *bench) keys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		b.made++
		keys[i] = fmt.Sprintf("018f7a3e-5b1c-7c3d-9e2a-%012d", b.made)
	}
	return keys
}

// shuffled returns copies of texts in another order: callers look up by a text
// of their own, and not in the order of insertion.
func shuffled(texts []string) []string {
	out := make([]string, len(texts))
	for i, from := range rand.Perm(len(texts)) {
		out[i] = strings.Clone(texts[from])
	}
	return out
}

// workers is one goroutine a processor.
func workers() int { return runtime.GOMAXPROCS(0) }

// compare measures sides in turns.
func (b *bench) compare(sides ...measure.Side) ([]measure.Samples, error) {
	if err := b.ctx.Err(); err != nil {
		return nil, err
	}
	return measure.Rounds(b.rounds, sides...)
}

// compareAt is compare over a heap of n entries: each round collects it several
// times, so the largest have fewer rounds.
func (b *bench) compareAt(n int, sides ...measure.Side) ([]measure.Samples, error) {
	few := *b
	switch {
	case n > 1_000_000:
		few.rounds = 1
	case n > 100_000:
		few.rounds = min(3, b.rounds)
	}
	return few.compare(sides...)
}

// client returns a client of the server with an empty database. It must be
// closed.
func (b *bench) client() (*redis.Client, error) {
	client := peer.NewClient(b.server.Addr)
	if err := client.FlushAll(b.ctx).Err(); err != nil {
		_ = client.Close()
		return nil, err
	}
	return client, nil
}

// newMemory returns a memory store that is silent.
func newMemory(opts ...memstore.Option) *memstore.Store {
	return memstore.New(append([]memstore.Option{memstore.WithLogger(quiet)}, opts...)...)
}

// unbounded are the options of a memory store that never forgets.
func unbounded() []memstore.Option {
	return []memstore.Option{memstore.WithMaxEntries(1 << 40), memstore.WithMaxBytes(1 << 50)}
}

func claimBy(owner string) idempotent.Claim {
	return idempotent.Claim{Owner: owner, Fingerprint: fingerprint, Lease: 30 * time.Second, Keep: retention}
}

func outcomeOf(result string) idempotent.Outcome {
	return idempotent.Outcome{Status: idempotent.Success, Result: result, Fingerprint: fingerprint, Retention: retention}
}

const owner = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

// cycle claims and completes a fresh key.
func cycle(ctx context.Context, s idempotent.Store, name string) error {
	_, claimed, err := s.Claim(ctx, name, claimBy(owner))
	if err == nil && !claimed {
		err = fmt.Errorf("%s was not free", name)
	}
	if err != nil {
		return err
	}
	return s.Complete(ctx, name, owner, outcomeOf(answer))
}

// fill records an outcome for each name, from several goroutines.
func fill(ctx context.Context, s idempotent.Store, names []string, goroutines int) error {
	_, err := measure.Parallel(goroutines, len(names), measure.Each(func(_, i int) error { return cycle(ctx, s, names[i]) }))
	return err
}

// replay loads a finished key as a duplicate's claim does.
func replay(ctx context.Context, s idempotent.Store, name string) error {
	e, claimed, err := s.Claim(ctx, name, claimBy("another owner"))
	if err == nil && (claimed || len(e.Result) != answerSize) {
		err = fmt.Errorf("%s: claimed %v, with a result of %d bytes", name, claimed, len(e.Result))
	}
	return err
}

// together runs call in n goroutines and returns when all have returned, with
// the first error.
func together(n int, call func(i int) error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = call(i) })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
