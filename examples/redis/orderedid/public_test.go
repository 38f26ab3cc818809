package main

import (
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

const testKey = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

// Links live for ever: what an id is shown as must never change. The vector is
// that of AES-256 in FIPS 197, appendix C.3.
func TestPublic_Frozen(t *testing.T) {
	t.Parallel()
	p, err := newPublic(testKey)
	require.NoError(t, err)
	want, err := hex.DecodeString("8ea2b7ca516745bfeafc49904b496089")
	require.NoError(t, err)
	id := uuid.MustParse("00112233-4455-6677-8899-aabbccddeeff")
	require.Equal(t, strict.EncodeToString(want), p.show(id))
	require.Equal(t, "00112233-4455-6677-8899-aabbccddeeff", id.String(), "the caller's id is untouched")
}

// Neighbours inside share nothing outside.
func TestPublic_NoOrder(t *testing.T) {
	t.Parallel()
	p, err := newPublic(testKey)
	require.NoError(t, err)
	var shown []string
	begins := map[string]bool{}
	for n := range int64(200) {
		id, err := stamp(1_800_000_000_000_000 + n)
		require.NoError(t, err)
		s := p.show(id)
		require.Len(t, s, 22)
		back, err := p.read(s)
		require.NoError(t, err)
		require.Equal(t, id, back)
		shown, begins[s[:6]] = append(shown, s), true
	}
	require.Len(t, begins, 200, "36 bits in common would be an accident of one in a million")
	require.False(t, slices.IsSorted(shown))
}

func TestPublic_Read(t *testing.T) {
	t.Parallel()
	p, err := newPublic(testKey)
	require.NoError(t, err)
	id, err := stamp(1_800_000_000_000_000)
	require.NoError(t, err)
	shown := p.show(id)

	// The last character carries four bits that mean nothing: other spellings.
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := strings.IndexByte(alphabet, shown[21])
	for name, text := range map[string]string{
		"nothing":          "",
		"another spelling": shown[:21] + alphabet[last+1:last+2],
		"padded":           shown + "==",
		"a line end":       shown + "\n",
		"a line end in it": shown[:9] + "\n" + shown[9:],
		"cut":              shown[:21],
		"the id inside":    id.String(),
		"a number":         "42",
		"no v7 inside":     p.show(uuid.MustParse("00112233-4455-4677-8899-aabbccddeeff")),
		"another variant":  p.show(uuid.MustParse("00112233-4455-7677-c899-aabbccddeeff")),
	} {
		_, err := p.read(text)
		require.ErrorIs(t, err, errNoID, name)
	}

	// Another key, or texts that were made up: at most what chance allows.
	other, err := newPublic(strings.Repeat("ab", 32))
	require.NoError(t, err)
	require.NotEqual(t, shown, other.show(id))
	ours := 0
	for n := range int64(6400) {
		id, err := stamp(1_800_000_000_000_000 + n)
		require.NoError(t, err)
		if back, err := p.read(other.show(id)); err == nil {
			ours++
			require.NotEqual(t, id, back)
		}
	}
	require.True(t, 0 < ours && ours < 300, "one in 64 is expected: about 100")
}

func TestNewPublic_Refuses(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", "secret-secret", testKey[:32], testKey + "00", testKey[:63] + "x"} {
		_, err := newPublic(key)
		require.Error(t, err)
		if key != "" {
			require.NotContains(t, err.Error(), key)
		}
	}
}
