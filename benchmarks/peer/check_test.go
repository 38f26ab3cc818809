package peer

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/internal/redistest"
)

// Peers that are known to fail the check, each with what the check must say.
var knownToFail = map[string]func(t *testing.T, v Verdict){
	"x/sync singleflight": func(t *testing.T, v Verdict) { require.Positive(t, v.Duplicates) },
	// Whether it drops something depends on its background.
	"ristretto v2": func(*testing.T, Verdict) {},
}

// Peers that tell requests apart by what they are.
var guards = []string{"idempotent", "scan", "otter", "ttlcache", "golang-lru", "go-cache", "lock", "rueidis"}

func TestKinds(t *testing.T) {
	for _, kind := range Kinds() {
		t.Run(kind.Name, func(t *testing.T) {
			addr := ""
			if kind.Redis {
				addr = redistest.Start(t).Addr
			}
			v, err := Check(t.Context(), kind, addr)
			require.NoError(t, err)
			if check, ok := knownToFail[kind.Name]; ok {
				check(t, v)
				return
			}
			require.True(t, v.OK(), v.String())
			guarded := false
			for _, name := range guards {
				guarded = guarded || strings.HasPrefix(kind.Name, name)
			}
			require.Equal(t, !guarded, v.Unguarded)
		})
	}
}

// broken is a peer that is right but for one thing.
type broken struct {
	mu      sync.Mutex // guards answers
	answers map[string]string
	op      func() string

	twice    bool // looks, then runs, then stores
	forgets  bool
	mangles  bool
	neverRun bool
}

func (b *broken) Do(_ context.Context, key, _ string) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a, ok := b.answers[key]; ok {
		if b.mangles {
			return strings.ToUpper(a), nil
		}
		return a, nil
	}
	if b.neverRun {
		return "", ErrInFlight
	}
	if b.twice {
		b.mu.Unlock()
	}
	a := b.op()
	if b.twice {
		b.mu.Lock()
	}
	if !b.forgets {
		b.answers[key] = a
	}
	return a, nil
}

func (b *broken) Close() error { return nil }

// The check catches what it is there to catch.
func TestCheck_BrokenPeers(t *testing.T) {
	check := func(t *testing.T, b *broken) Verdict {
		v, err := Check(t.Context(), Kind{Name: "broken", Open: func(op func() string, _ string) (Peer, error) {
			b.op, b.answers = op, map[string]string{}
			return b, nil
		}}, "")
		require.NoError(t, err)
		return v
	}
	t.Run("none", func(t *testing.T) {
		v := check(t, &broken{})
		require.Equal(t, Verdict{Unguarded: true}, v)
		require.Equal(t, "yes", v.String())
	})
	t.Run("looks first and stores later", func(t *testing.T) {
		v := check(t, &broken{twice: true})
		require.Positive(t, v.Duplicates)
		require.False(t, v.OK())
		require.Contains(t, v.String(), "duplicates")
	})
	t.Run("forgets", func(t *testing.T) {
		require.GreaterOrEqual(t, check(t, &broken{forgets: true}).Duplicates, checkKeys)
	})
	t.Run("mangles the answer", func(t *testing.T) {
		v := check(t, &broken{mangles: true})
		require.Zero(t, v.Duplicates)
		require.False(t, v.OK())
		require.Contains(t, v.String(), "another answer")
	})
	t.Run("never runs", func(t *testing.T) {
		require.Contains(t, check(t, &broken{neverRun: true}).Wrong, "nobody")
	})
}

func TestStoreNamesAreRealistic(t *testing.T) {
	principal, err := Principal(nil)
	require.NoError(t, err)
	require.InDelta(t, 90, len("POST:"+Path+"::")+len(principal)+len(checkKey(1)), 5)
}
