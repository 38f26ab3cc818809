package memstore

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

func TestImpossibleOptionsPanic(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		new  func()
		says []string
	}{
		"no entries":             {func() { WithMaxEntries(0) }, []string{"WithMaxEntries(0)"}},
		"no bytes":               {func() { WithMaxBytes(-1) }, []string{"WithMaxBytes(-1)"}},
		"no age":                 {func() { WithMaxAge(0) }, []string{"WithMaxAge(0s)"}},
		"negative age":           {func() { WithMinAge(-1) }, []string{"WithMinAge(-1ns)"}},
		"C122 negative interval": {func() { WithSweepInterval(-time.Second) }, []string{"WithSweepInterval(-1s)"}},
		"C122 tiny interval":     {func() { WithSweepInterval(1) }, []string{"WithSweepInterval(1ns)"}},
		"no logger":              {func() { WithLogger(nil) }, []string{"WithLogger"}},
		"ages in conflict": {func() { New(WithMinAge(2*time.Hour), WithMaxAge(time.Hour)) }, []string{
			"WithMinAge(2h0m0s)", "WithMaxAge(1h0m0s)",
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer func() {
				got, ok := recover().(string)
				require.True(t, ok, "panics with a text")
				require.Regexp(t, "^memstore: ", got)
				for _, want := range tt.says {
					require.Contains(t, got, want)
				}
			}()
			tt.new()
		})
	}
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	s := New()
	defer s.Close()
	require.Equal(t, 10_000, s.maxEntries)
	require.EqualValues(t, 256<<20, s.maxBytes)
	require.NotNil(t, s.janitor)
}

// A nil observer is nobody, in whatever form it comes.
func TestNilObserverIsNobody(t *testing.T) {
	t.Parallel()
	var typed *logObserver
	for name, o := range map[string]idempotent.Observer{"nil": nil, "pointer": typed, "func": idempotent.ObserverFunc(nil)} {
		synctest.Test(t, func(t *testing.T) {
			s := New(WithObserver(o), WithSweepInterval(0), WithLogger(slog.New(slog.DiscardHandler)))
			_, _, err := s.Claim(t.Context(), "k", idempotent.Claim{Owner: "o", Lease: time.Second, Keep: time.Hour})
			require.NoError(t, err)
			time.Sleep(2 * time.Second)
			require.NotPanics(t, func() {
				n, err := s.Sweep(t.Context())
				require.NoError(t, err)
				require.Equal(t, 1, n.Abandoned)
			}, name)
		})
	}
}

type logObserver struct{ n int }

func (l *logObserver) Observe(context.Context, idempotent.Event) { l.n++ }
