package redisstore_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/internal/redistest"
)

// P12 and P13 are ratios to PING in the same run.
func BenchmarkStore(b *testing.B) {
	client := newClient(b, redistest.Shared(b).Addr)
	s := newStore(b, client)
	ctx, cancel := context.WithCancel(context.Background())
	b.Cleanup(cancel)
	var next atomic.Int64
	claimed(b, s, "replay", "a")
	require.NoError(b, s.Complete(ctx, "replay", "a", success("result")))
	for _, bench := range []struct {
		name string
		f    func() error
	}{
		{"ping", func() error { return client.Ping(ctx).Err() }},
		{"replay", func() error { _, _, err := s.Claim(ctx, "replay", claim("b")); return err }},
		{"fresh", func() error {
			key := fmt.Sprint("fresh", next.Add(1))
			if _, _, err := s.Claim(ctx, key, claim("a")); err != nil {
				return err
			}
			return s.Complete(ctx, key, "a", success("result"))
		}},
	} {
		for _, parallel := range []int{1, 32} {
			b.Run(fmt.Sprintf("%s/parallel=%d", bench.name, parallel), func(b *testing.B) {
				b.ReportAllocs()
				b.SetParallelism(parallel)
				b.RunParallel(func(p *testing.PB) {
					for p.Next() {
						if err := bench.f(); err != nil {
							b.Error(err)
						}
					}
				})
			})
		}
	}
}
