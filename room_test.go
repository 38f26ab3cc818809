package idempotent_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
)

// Small bodies stand in what a request allocates anyway, larger ones do not.
// Whatever their length, and in however many pieces an answer is written, the
// handler reads what was sent and a repeat is answered as the first was.
func TestBodiesAroundTheRoomForSmallOnes(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	t.Cleanup(func() { _ = s.Close() })
	piece := 0
	h := idempotent.New(s).Middleware(idempotent.Anonymous, idempotent.WithFingerprint(idempotent.RawBody))(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			for part := range slices.Chunk(body, piece) {
				n, err := w.Write(part)
				require.NoError(t, err)
				require.Equal(t, len(part), n)
				clear(part) // what was written is copied
			}
		}))
	for _, size := range []int{1, 254, 255, 256, 257, 511, 512, 513, 1024, 5000} {
		body := make([]byte, size)
		for i := range body {
			body[i] = byte('a' + i%25)
		}
		for _, piece = range []int{1, 100, 512, 10_000} {
			for _, announced := range []int64{int64(size), -1} {
				key := fmt.Sprintf("key-%d-%d-%d", size, piece, announced)
				for _, replayed := range []string{"", "true"} {
					r := httptest.NewRequest(http.MethodPost, "/orders", bytes.NewReader(body))
					r.ContentLength = announced
					r.Header.Set("Idempotency-Key", key)
					w := httptest.NewRecorder()
					h.ServeHTTP(w, r)
					require.Equal(t, http.StatusOK, w.Code)
					require.Equal(t, replayed, w.Header().Get("Idempotent-Replayed"))
					require.Equal(t, string(body), w.Body.String(), key)
				}
			}
		}
	}
}

// owners remembers who has claimed.
type owners struct {
	idempotent.Store
	mu  sync.Mutex
	all []string
}

func (s *owners) Claim(ctx context.Context, key string, c idempotent.Claim) (idempotent.Entry, bool, error) {
	s.mu.Lock()
	s.all = append(s.all, c.Owner)
	s.mu.Unlock()
	return s.Store.Claim(ctx, key, c)
}

func (s *owners) Wait(ctx context.Context, key string) (idempotent.Entry, bool, error) {
	return idempotent.Wait(ctx, s.Store, key)
}

// Each claim has an owner of its own, also the second one of a request that has
// waited.
func TestEachClaimHasItsOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New()
		defer mem.Close()
		s := &owners{Store: mem}
		attempts := 0
		h := idempotent.New(s).Middleware(idempotent.Anonymous, idempotent.WithWait(time.Minute))(
			http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if attempts++; attempts == 1 {
					time.Sleep(time.Second)
					idempotent.Release(r.Context())
				}
			}))
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				r := httptest.NewRequest(http.MethodPost, "/orders", nil)
				r.Header.Set("Idempotency-Key", "k")
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				require.Equal(t, http.StatusOK, w.Code)
			})
		}
		all.Wait()
		require.Equal(t, 2, attempts)
		require.Len(t, s.all, 3, "of the first, and of the second before and after its wait")
		slices.Sort(s.all)
		require.Len(t, slices.Compact(s.all), 3)
		for _, owner := range s.all {
			require.Regexp(t, `^[A-Z2-7]{26}$`, owner)
		}
	})
}
