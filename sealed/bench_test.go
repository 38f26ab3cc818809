package sealed_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/redisstore"
	"github.com/idempotent-go/idempotent/sealed"
)

// answer returns size bytes such as an API answers with: names that repeat,
// and ids that do not.
func answer(size int) string {
	var b strings.Builder
	for i := 0; b.Len() < size; i++ {
		id := sha256.Sum256([]byte(strconv.Itoa(i)))
		fmt.Fprintf(&b, `{"id":"%s","state":"paid","amount":%d,"currency":"EUR"},`, hex.EncodeToString(id[:16]), 1000+i*37)
	}
	return b.String()[:size]
}

// BenchmarkResult measures a completion and a replay, sealed next to bare, in
// one run. stored/result is what the store below keeps for each byte of result.
func BenchmarkResult(b *testing.B) {
	for _, backend := range []string{"memory", "Redis"} {
		for _, size := range []int{512, 64 << 10} {
			for _, kind := range []string{"bare", "encrypted", "compressed+encrypted"} {
				b.Run(fmt.Sprintf("%s/%d/%s", backend, size, kind), func(b *testing.B) {
					var inner idempotent.Store = mem(b)
					if backend == "Redis" {
						client := redis.NewClient(&redis.Options{Addr: redistest.Start(b).Addr})
						b.Cleanup(func() { _ = client.Close() })
						s := redisstore.New(client)
						b.Cleanup(func() { _ = s.Close() })
						inner = s
					}
					s := inner
					switch kind {
					case "encrypted":
						s = sealed.New(inner, keys(b, "a"), sealed.WithoutCompression())
					case "compressed+encrypted":
						s = sealed.New(inner, keys(b, "a"))
					}
					o := outcome(answer(size))
					o.Retention = time.Minute
					require.NoError(b, s.Complete(b.Context(), "k", owner, o))
					e, _, err := inner.Load(b.Context(), "k")
					require.NoError(b, err)
					b.Run("complete", func(b *testing.B) {
						b.ReportAllocs()
						for b.Loop() { // a repeat: the whole way, and no memory that grows
							if err := s.Complete(b.Context(), "k", owner, o); err != nil {
								b.Fatal(err)
							}
						}
						b.ReportMetric(float64(len(e.Result))/float64(size), "stored/result")
					})
					b.Run("replay", func(b *testing.B) {
						b.ReportAllocs()
						for b.Loop() {
							e, _, err := s.Claim(b.Context(), "k", claim)
							if err != nil || len(e.Result) != size {
								b.Fatal(err, len(e.Result))
							}
						}
					})
				})
			}
		}
	}
}
