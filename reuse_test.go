package idempotent_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
)

// What a request has been given is never given to another one, even where a
// handler or a function of the user's keeps it against the rules: nothing on the
// way of a request is used again.
func TestNothingOfARequestIsUsedAgain(t *testing.T) {
	type kept struct {
		mark         string
		body, copied []byte
		request      *http.Request
		writer       http.ResponseWriter
		header       http.Header
	}
	var mu sync.Mutex
	all := map[string]*kept{}
	of := func(mark string) *kept {
		mu.Lock()
		defer mu.Unlock()
		if all[mark] == nil {
			all[mark] = &kept{mark: mark}
		}
		return all[mark]
	}
	s := memstore.New()
	defer s.Close()
	once := idempotent.New(s).Middleware(idempotent.Anonymous, idempotent.WithFingerprint(func(r *http.Request, body []byte) (string, error) {
		k := of(r.Header.Get("X-Mark"))
		if k.body == nil { // of the first, not of its repeat
			k.body, k.copied = body, bytes.Clone(body)
		}
		return idempotent.RawBody(r, body)
	}))
	h := once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k := of(r.Header.Get("X-Mark"))
		w.Header().Set("X-Mark", k.mark)
		k.request, k.writer, k.header = r, w, w.Header()
		half := make([]byte, 10)
		_, _ = io.ReadFull(r.Body, half)
		_, _ = io.WriteString(w, "answer of "+k.mark)
	}))
	send := func(mark string) error {
		body := strings.Repeat(mark+"-", 30+2*int(mark[len(mark)-1]-'0')) // some fit into the room for small ones
		for range 2 {
			r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(body))
			r.Header.Set("Idempotency-Key", "key-of-"+mark)
			r.Header.Set("X-Mark", mark)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if got := w.Body.String(); got != "answer of "+mark || w.Header().Get("X-Mark") != mark {
				return fmt.Errorf("%s was answered %q", mark, got)
			}
		}
		return nil
	}
	var senders errgroup.Group
	for g := range 8 {
		senders.Go(func() error {
			for i := range 200 {
				if err := send(fmt.Sprintf("m%d.%03d", g, i)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, senders.Wait())
	require.Len(t, all, 1600)
	for mark, k := range all {
		require.Equal(t, string(k.copied), string(k.body), "the body that a fingerprint function kept")
		rest, _ := io.ReadAll(k.request.Body)
		require.True(t, bytes.HasSuffix(k.copied, rest), "the rest of the body that a handler kept: %q", rest)
		require.Equal(t, mark, k.request.Header.Get("X-Mark"))
		require.Equal(t, mark, k.header.Get("X-Mark"))
		_, err := io.WriteString(k.writer, "late")
		require.Error(t, err, "a late write reaches nobody")
		x, ok := idempotent.FromContext(k.request.Context())
		require.True(t, ok)
		require.Contains(t, x.Key, "key-of-"+mark)
	}
}
