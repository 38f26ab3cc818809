package idempotent

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A copy is what it was made of, but for key and fingerprint; whatever else is
// found in near is refused.
func FuzzCopy(f *testing.F) {
	f.Add("1s", "owner", "trace", "result", int64(1), int64(math.MaxInt64))
	f.Add("", "", "", "", int64(-1), int64(0))
	f.Fuzz(func(t *testing.T, found, owner, trace, result string, at, fence int64) {
		in := Entry{
			Status: Failed, Owner: owner, Trace: trace, Result: result, Fence: fence,
			Timestamp: time.Unix(at, 1), Claimed: time.Unix(0, at), Expires: time.Unix(at/2, 999_999_999),
		}
		if at%2 == 0 {
			in.Timestamp, in.Claimed, in.Expires = in.Timestamp.UTC(), in.Claimed.UTC(), in.Expires.UTC()
		}
		s := encodeCopy(in)
		var out Entry
		require.True(t, decodeCopy(&out, s))
		require.Equal(t, in, out)
		require.False(t, decodeCopy(&out, s[:min(len(s), copyHeader+len(owner)+len(trace))-1]))
		for _, s := range []string{found, s[:copyHeader-8] + found, found + s} {
			decodeCopy(&out, s)
		}
	})
}
