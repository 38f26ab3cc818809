package sealed

import (
	"bytes"
	"encoding/hex"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

func testStore(t testing.TB, opts ...Option) *store {
	t.Helper()
	k, err := NewKeys(Key{ID: "2026-11", Secret: bytes.Repeat([]byte("0123456789abcdef"), 2)})
	require.NoError(t, err)
	s := &store{keys: k.ring, zstd: newCompressor(maxResult)}
	for _, opt := range opts {
		opt(s)
	}
	return s
}

func entry(result string) idempotent.Entry {
	return idempotent.Entry{Key: "store key", Owner: "owner", Status: idempotent.Success, Result: result}
}

func success(result string) idempotent.Outcome {
	return idempotent.Outcome{Status: idempotent.Success, Result: result, Retention: time.Hour}
}

// What was sealed once is read for ever, and sealed the same where no
// compressor has a say. A line of the file is one record in hexadecimal.
func TestGolden(t *testing.T) {
	file, err := os.ReadFile("testdata/sealed1.txt")
	require.NoError(t, err)
	var records []string
	for line := range strings.Lines(string(file)) {
		if !strings.HasPrefix(line, "#") {
			records = append(records, unhex(t, strings.TrimSpace(line)))
		}
	}
	want := []string{"", "result", strings.Repeat("compressible ", 20)}
	require.Len(t, records, len(want))
	s := testStore(t)
	for i, record := range records {
		got, err := s.open(entry(record))
		require.NoError(t, err)
		require.Equal(t, want[i], got)
		if record[4] == encodingPlain {
			again, err := s.seal("store key", "owner", success(want[i]))
			require.NoError(t, err)
			require.Equal(t, record, again)
		}
	}
	require.EqualValues(t, encodingZstd, records[2][4])
}

// Whoever has the keys cannot make us allocate without bound either.
func TestBomb(t *testing.T) {
	const longest = 1 << 20
	s := testStore(t)
	s.zstd = newCompressor(longest)
	for _, withSize := range []bool{true, false} {
		var frame bytes.Buffer
		encoder, err := zstd.NewWriter(&frame, zstd.WithWindowSize(64<<10))
		require.NoError(t, err)
		zeros := make([]byte, longest+1)
		for part := range slices.Chunk(zeros, 64<<10) {
			_, err = encoder.Write(part)
			require.NoError(t, err)
		}
		require.NoError(t, encoder.Close())
		body := frame.Bytes()
		if withSize {
			body = encoder.EncodeAll(zeros, nil)
		}
		require.Less(t, len(body), 1<<10)
		bomb, err := s.keys.encrypt(encodingZstd, body, "store key", "owner", idempotent.Success, false)
		require.NoError(t, err)
		_, err = s.open(entry(bomb))
		require.ErrorIs(t, err, idempotent.ErrCorrupt)
		require.ErrorIs(t, err, zstd.ErrDecoderSizeExceeded)
	}
	// What is longer than the bound is not compressed, and so comes back.
	long := strings.Repeat("l", longest+1)
	text, err := s.seal("store key", "owner", success(long))
	require.NoError(t, err)
	got, err := s.open(entry(text))
	require.NoError(t, err)
	require.True(t, got == long)
}

// Two bodies under one encrypting key never share a nonce, or both could be
// read without it.
func TestNonceIsOfTheBody(t *testing.T) {
	s := testStore(t)
	seen := map[string]bool{}
	for _, body := range []string{"", "a", "b", "aa"} {
		text, err := s.keys.encrypt(encodingPlain, []byte(body), "store key", "owner", idempotent.Success, false)
		require.NoError(t, err)
		nonce := text[headBytes+len("2026-11"):][:nonceBytes]
		require.False(t, seen[nonce])
		seen[nonce] = true
	}
}

func TestUnknownEncoding(t *testing.T) {
	s := testStore(t)
	text, err := s.keys.encrypt(7, nil, "store key", "owner", idempotent.Success, false)
	require.NoError(t, err)
	_, err = s.open(entry(text))
	require.ErrorIs(t, err, idempotent.ErrCorrupt)
	require.ErrorContains(t, err, "encoding 7")
}

// One encoder and one decoder serve everybody at once.
func TestConcurrentUse(t *testing.T) {
	s := testStore(t)
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			result := strings.Repeat(string(rune('a'+i)), 3000*(i+1))
			first, err := s.seal("store key", "owner", success(result))
			for range 20 {
				if err != nil {
					break
				}
				var again, got string
				again, err = s.seal("store key", "owner", success(result))
				got, _ = s.open(entry(again))
				if again != first || got != result {
					t.Error("sealed otherwise, or opened as something else")
				}
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// What is not ours is refused and never a panic; what is comes back.
func FuzzOpen(f *testing.F) {
	s := testStore(f)
	sealed, err := s.seal("store key", "owner", success("result"))
	require.NoError(f, err)
	f.Add(sealed, "result")
	f.Add(sealed[:20], "")
	f.Add("\xffSL\x01\x00\xff", strings.Repeat("a", 1000))
	f.Fuzz(func(t *testing.T, found, result string) {
		if _, err := s.open(entry(found)); found != sealed {
			require.Error(t, err)
		}
		text, err := s.seal("store key", "owner", success(result))
		require.NoError(t, err)
		got, err := s.open(entry(text))
		require.NoError(t, err)
		require.Equal(t, result, got)
	})
}

func unhex(t testing.TB, text string) string {
	t.Helper()
	b, err := hex.DecodeString(text)
	require.NoError(t, err)
	return string(b)
}
