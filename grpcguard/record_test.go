package grpcguard

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/idempotent-go/idempotent"
)

// samples are records of each kind.
func samples(t testing.TB) []string {
	t.Helper()
	st, err := status.New(codes.NotFound, "no tea").WithDetails(&errdetails.ErrorInfo{Reason: "GONE"})
	require.NoError(t, err)
	header := metadata.MD{"x-a": {"1", "2"}, "x-bin": {"\x00\xff"}, "X-Upper": {"u"}}
	trailer := metadata.MD{"x-t": {"3"}, "grpc-status-details-bin": {"d"}}
	var out []string
	for _, r := range []record{
		newRecord(wrapperspb.String("done"), status.New(codes.OK, ""), header, trailer, math.MaxInt32),
		newRecord(&testpb.Empty{}, status.New(codes.OK, ""), nil, nil, math.MaxInt32),
		newRecord(nil, st, header, nil, math.MaxInt32),
		newRecord("no message", status.New(codes.OK, ""), header, trailer, math.MaxInt32),
		newRecord(nil, status.New(codes.Code(math.MaxInt32), ""), nil, nil, math.MaxInt32),
	} {
		s := r.encode()
		require.LessOrEqual(t, len(s), r.size())
		out = append(out, s)
	}
	return out
}

// The recorded form is frozen: later releases must read what this one wrote.
func TestRecordedForm(t *testing.T) {
	golden := []string{
		"6701000005" + "0403782d61" + "0131" + "0132" + "0205782d62696e" + "0200ff" + "0207782d7570706572" + "0175" +
			"0317677270632d7374617475732d64657461696c732d62696e" + "0164" + "0303782d74" + "0133" +
			"1b676f6f676c652e70726f746f6275662e537472696e6756616c7565" + "060a04646f6e65" + "d8c39ea6",
		"670100000012677270632e74657374696e672e456d707479002045a253",
		"6701000503" + "0403782d61" + "0131" + "0132" + "0205782d62696e" + "0200ff" + "0207782d7570706572" + "0175" + "00" +
			"3e080512066e6f207465611a320a28747970652e676f6f676c65617069732e636f6d2f676f6f676c652e7270632e4572726f72496e666f12060a04474f4e45" + "835ce8c4",
		"6701010000000036165a96",
	}
	got := samples(t)
	for i, want := range golden {
		require.Equal(t, want, hex.EncodeToString([]byte(got[i])), "sample %d", i)
	}
	fp, err := fingerprint(wrapperspb.String("tea"))
	require.NoError(t, err)
	require.Equal(t, "p1:yZEFF--uISyr8XR1kvN7PeC3Rm7ti3Mc7cWKSZjnQpw", fp)
}

func TestRecordsComeBack(t *testing.T) {
	for i, s := range samples(t) {
		r, err := decodeRecord(s)
		require.NoError(t, err)
		require.Equal(t, s, r.encode(), "sample %d", i)
		resp, st, ok, err := r.answer()
		require.NoError(t, err)
		require.Equal(t, i != 3, ok)
		switch i {
		case 0:
			require.True(t, proto.Equal(wrapperspb.String("done"), resp))
			require.Equal(t, metadata.MD{"x-a": {"1", "2"}, "x-bin": {"\x00\xff"}, "x-upper": {"u"}}, r.header)
			require.Equal(t, metadata.MD{"x-t": {"3"}, "grpc-status-details-bin": {"d"}}, r.trailer)
		case 2:
			require.Equal(t, codes.NotFound, st.Code())
			require.Len(t, st.Details(), 1)
		case 4:
			require.Equal(t, codes.Code(math.MaxInt32), st.Code())
		}
	}
}

// Every cut, every longer text and every changed bit is refused.
func TestDamagedRecordsAreRefused(t *testing.T) {
	for _, s := range samples(t) {
		for n := range len(s) {
			_, err := decodeRecord(s[:n])
			require.ErrorIs(t, err, idempotent.ErrCorrupt, "cut at %d", n)
		}
		_, err := decodeRecord(s + "\x00")
		require.ErrorIs(t, err, idempotent.ErrCorrupt)
		for i := range len(s) * 8 {
			b := []byte(s)
			b[i/8] ^= 1 << (i % 8)
			_, err := decodeRecord(string(b))
			if i/8 == 1 && b[1] > recordFormat {
				require.ErrorIs(t, err, idempotent.ErrNewerFormat)
				continue
			}
			require.ErrorIs(t, err, idempotent.ErrCorrupt, "bit %d", i)
		}
	}
}

// sealed puts a right checksum under a text, so that the rest is looked at.
func sealed(s string) string {
	return s + string(binary.BigEndian.AppendUint32(nil, crc32.Checksum([]byte(s), recordTable)))
}

// Records that were never written by this package, whole as they are.
func TestImpossibleRecordsAreRefused(t *testing.T) {
	const ok = "g\x01\x00\x00"
	end := "\x1bgoogle.protobuf.StringValue\x00"
	for name, s := range map[string]string{
		"flags":                 "g\x01\x02\x00\x00\x00\x00",
		"code too large":        "g\x01\x00\xff\xff\xff\xff\x0f\x00\x00\x00",
		"number not shortest":   "g\x01\x00\x80\x00\x00" + end,
		"OK without a message":  ok + "\x00\x00\x00",
		"error with a message":  "g\x01\x00\x05\x00" + end,
		"name of a message":     ok + "\x00\x03a..\x00",
		"reserved metadata":     ok + "\x01\x02\x04date\x01x" + end,
		"upper case":            ok + "\x01\x02\x01X\x01x" + end,
		"no value":              ok + "\x01\x00\x01x" + end,
		"value with line break": ok + "\x01\x02\x01x\x01\n" + end,
		"fields out of order":   ok + "\x02\x02\x01y\x01x\x02\x01x\x01x" + end,
		"field twice":           ok + "\x02\x02\x01x\x01x\x02\x01x\x01x" + end,
		"header after trailer":  ok + "\x02\x03\x01x\x01x\x02\x01y\x01x" + end,
		"count beyond the end":  ok + "\x01\xfe\xff\x03\x01x\x01x",
		"text beyond the end":   ok + "\x00\x7f",
		"more at the end":       ok + "\x00" + end + "x",
		"tombstone with body":   "g\x01\x01\x00\x00\x00\x01x",
		"tombstone with header": "g\x01\x01\x00\x01\x02\x01x\x01x\x00\x00",
	} {
		_, err := decodeRecord(sealed(s))
		require.ErrorIs(t, err, idempotent.ErrCorrupt, name)
	}
	_, err := decodeRecord(sealed(ok + "\x00" + end))
	require.NoError(t, err, "the others are refused for the right reason")

	for name, s := range map[string]string{
		"message": ok + "\x00\x1bgoogle.protobuf.StringValue\x01\xff",
		"status":  "g\x01\x00\x05\x00\x00\x01\xff",
		"code":    "g\x01\x00\x05\x00\x00\x02\x08\x06",
	} {
		r, err := decodeRecord(sealed(s))
		require.NoError(t, err, name)
		_, _, _, err = r.answer()
		require.ErrorIs(t, err, idempotent.ErrCorrupt, name)
	}
	r, err := decodeRecord(sealed(ok + "\x00\x09shop.Gone\x00"))
	require.NoError(t, err)
	_, _, whole, err := r.answer()
	require.NoError(t, err)
	require.False(t, whole, "the message of another release")
}

// Equal messages have one fingerprint, whatever order a map was filled in, and
// messages of different type or content never have.
func TestFingerprint(t *testing.T) {
	one := func(m any) string {
		fp, err := fingerprint(m)
		require.NoError(t, err)
		return fp
	}
	metadataOf := func(order []int) *errdetails.ErrorInfo {
		info := &errdetails.ErrorInfo{Metadata: map[string]string{}}
		for _, i := range order {
			info.Metadata[string(rune('a'+i))] = "x"
		}
		return info
	}
	want := one(metadataOf([]int{0, 1, 2, 3, 4, 5, 6, 7}))
	for range 20 {
		require.Equal(t, want, one(metadataOf(rand.Perm(8))))
	}
	require.NotEqual(t, want, one(metadataOf([]int{0})))
	require.NotEqual(t, one(wrapperspb.String("a")), one(wrapperspb.Bytes([]byte("a"))))
	require.Equal(t, one((*testpb.Empty)(nil)), one(&testpb.Empty{}))
	_, err := fingerprint("text")
	require.Error(t, err)
	_, err = fingerprint(wrapperspb.String("\xff"))
	require.Error(t, err)
}

// What decodes is what this package wrote: it encodes to the same bytes.
func FuzzDecodeRecord(f *testing.F) {
	for _, s := range samples(f) {
		f.Add(s[:len(s)-4])
	}
	f.Fuzz(func(t *testing.T, s string) {
		_, err := decodeRecord(s) // without its checksum
		if err == nil {
			require.Equal(t, s, reencoded(t, s))
		}
		s = sealed(s)
		r, err := decodeRecord(s)
		if err != nil {
			require.True(t, errorsIsRecord(err), "%v", err)
			return
		}
		require.Equal(t, s, r.encode())
		if _, _, _, err = r.answer(); err != nil {
			require.ErrorIs(t, err, idempotent.ErrCorrupt)
		}
	})
}

func errorsIsRecord(err error) bool {
	return errors.Is(err, idempotent.ErrCorrupt) || errors.Is(err, idempotent.ErrNewerFormat)
}

func reencoded(t *testing.T, s string) string {
	t.Helper()
	r, err := decodeRecord(s)
	require.NoError(t, err)
	return r.encode()
}
