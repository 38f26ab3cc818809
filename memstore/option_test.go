package memstore

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
