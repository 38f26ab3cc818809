package measure

import (
	"errors"
	"math"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRounds_TakeTurns(t *testing.T) {
	var order string
	side := func(name string, figure float64) Side {
		return Side{Name: name, Run: func() (float64, error) {
			order += name
			figure++
			return figure, nil
		}}
	}
	got, err := Rounds(3, side("a", 0), side("b", 10), side("c", 20))
	require.NoError(t, err)
	require.Equal(t, "abccbaabc", order)
	require.Equal(t, []Samples{{1, 2, 3}, {11, 12, 13}, {21, 22, 23}}, got)
}

func TestRounds_Error(t *testing.T) {
	boom := errors.New("boom")
	_, err := Rounds(5, Side{Name: "broken", Run: func() (float64, error) { return 0, boom }})
	require.ErrorIs(t, err, boom)
	require.ErrorContains(t, err, "broken")
}

func TestMedianAndPercentile(t *testing.T) {
	require.True(t, math.IsNaN(Samples{}.Median()))
	require.True(t, math.IsNaN(Samples{}.Percentile(99)))
	s := Samples{5, 1, 100, 3, 2}
	require.Equal(t, 3.0, s.Median())
	require.Equal(t, Samples{5, 1, 100, 3, 2}, s, "it stays in the order of the rounds")
	require.Equal(t, 2.5, Samples{4, 1, 2, 3}.Median())
	require.Equal(t, 1.0, s.Percentile(0))
	require.Equal(t, 3.0, s.Percentile(60))
	require.Equal(t, 100.0, s.Percentile(99))
	require.Equal(t, 7.0, Samples{7}.Percentile(50))
}

// The ratio is that of each round, so that a slow moment that hits both sides
// does not count.
func TestRatioIsPaired(t *testing.T) {
	candidate, base := Samples{2, 20, 2}, Samples{1, 10, 2}
	require.Equal(t, Samples{2, 2, 1}, candidate.Ratio(base))
	require.Equal(t, Samples{1, 10, 0}, candidate.Minus(base))
}

func TestParallel_EachOnce(t *testing.T) {
	for _, ops := range []int{0, 1, 7, 1000} {
		seen := make([]atomic.Int64, ops)
		_, err := Parallel(3, ops, Each(func(_, i int) error {
			seen[i].Add(1)
			return nil
		}))
		require.NoError(t, err)
		for i := range seen {
			require.EqualValues(t, 1, seen[i].Load(), i)
		}
	}
	boom := errors.New("boom")
	_, err := Parallel(2, 10, Each(func(_, i int) error {
		if i == 7 {
			return boom
		}
		return nil
	}))
	require.ErrorIs(t, err, boom)
}

func TestBytes(t *testing.T) {
	const size = 8 << 20
	grown, kept, err := Bytes(func() (any, error) { return make([]byte, size), nil })
	require.NoError(t, err)
	require.Len(t, kept, size)
	require.InDelta(t, size, grown, size/4)
}

func TestSerial(t *testing.T) {
	var calls int
	busy := func(turns int) func(worker, from, to int) error {
		return Each(func(_, i int) error {
			require.Equal(t, calls, i)
			calls++
			for range turns {
				sink++
			}
			return nil
		})
	}
	figure, err := Serial(10, busy(1_000_000))
	require.NoError(t, err)
	require.Equal(t, 10, calls)
	require.Positive(t, figure, "ten million additions cost something")
	boom := errors.New("boom")
	_, err = Serial(10, func(int, int, int) error { return boom })
	require.ErrorIs(t, err, boom)
}

var sink int
