package grpcguard

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"maps"
	"math"
	"slices"
	"strings"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/idempotent-go/idempotent"
)

// The recorded form of an answer, version 1. Numbers are unsigned varints, a
// text is its length and its bytes:
//
//	'g'  0x01  flags  code
//	number of metadata fields, and for each: count of values * 2 + kind, name, values
//	full name of the response message, a text; "" where there is none
//	the message, or the google.rpc.Status of an error, a text
//	CRC-32C of all that, four bytes, big end first
//
// Headers come first, each kind in the order of names, so that equal answers
// have one form.
const (
	recordMagic  = 'g'
	recordFormat = 1

	recordFlagTombstone = 1 << 0

	recordHeader  = 0
	recordTrailer = 1
)

var recordTable = crc32.MakeTable(crc32.Castagnoli)

// record is what is kept of the answer to a call.
type record struct {
	code      codes.Code
	tombstone bool // the answer could not be kept: only the code is known
	header    metadata.MD
	trailer   metadata.MD
	message   protoreflect.FullName // of the response; "" of an error
	body      string                // the response, or the status of an error
}

// newRecord makes the record of what a handler has returned. What cannot be
// repeated, or is longer than most bytes, becomes a tombstone.
func newRecord(resp any, st *status.Status, header, trailer metadata.MD, most int) record {
	r := record{code: st.Code(), header: recorded(header), trailer: recorded(trailer)}
	var body []byte
	var err error
	if r.code == codes.OK {
		m, ok := protoMessage(resp)
		if !ok {
			return record{code: r.code, tombstone: true}
		}
		r.message = m.ProtoReflect().Descriptor().FullName()
		if _, err = protoregistry.GlobalTypes.FindMessageByName(r.message); err == nil {
			body, err = deterministic.Marshal(m)
		}
	} else {
		p := st.Proto()
		p.Message = string([]rune(p.Message)) // as gRPC sends a text that is no UTF-8
		body, err = deterministic.Marshal(p)
	}
	r.body = string(body)
	if err != nil || r.size() > most {
		return record{code: r.code, tombstone: true}
	}
	return r
}

// deterministic gives equal messages equal bytes. A missing required field is
// the server's to refuse, on the first answer and on every replay.
var deterministic = proto.MarshalOptions{Deterministic: true, AllowPartial: true}

// protoMessage finds the message in what a server was given or has answered.
func protoMessage(v any) (proto.Message, bool) {
	switch m := v.(type) {
	case proto.Message:
		return m, true
	case protoadapt.MessageV1:
		return protoadapt.MessageV2Of(m), true
	}
	return nil, false
}

// recorded returns the metadata that comes back in a replay. Left out is what
// speaks of one message only and what gRPC itself sends, cookies because they
// would put session secrets into the store, and what gRPC would not send.
func recorded(md metadata.MD) metadata.MD {
	out := metadata.MD{}
	for name, values := range md {
		name = strings.ToLower(name)
		if !recordable(name) || len(values) == 0 || slices.ContainsFunc(values, func(v string) bool { return !validValue(name, v) }) {
			continue
		}
		out[name] = append(out[name], values...)
	}
	return out
}

func recordable(name string) bool {
	switch name {
	case "content-type", "user-agent", "te", "date", "age", "server-timing", "traceparent", "tracestate", "set-cookie",
		"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade", "content-length", ReplayedMetadata:
		return false
	case "grpc-status-details-bin":
		return true // a proxy relays details this way
	}
	return validName(name) && !strings.HasPrefix(name, "grpc-")
}

// size is a little more than what encode returns.
func (r *record) size() int {
	size := 64 + len(r.message) + len(r.body)
	for _, md := range []metadata.MD{r.header, r.trailer} {
		for name, values := range md {
			size += 10 + len(name)
			for _, v := range values {
				size += 5 + len(v)
			}
		}
	}
	return size
}

// encode returns the recorded form.
func (r *record) encode() string {
	out := make([]byte, 0, r.size())
	flags := byte(0)
	if r.tombstone {
		flags |= recordFlagTombstone
	}
	out = append(out, recordMagic, recordFormat, flags)
	out = binary.AppendUvarint(out, uint64(r.code))
	out = binary.AppendUvarint(out, uint64(len(r.header)+len(r.trailer)))
	out = appendMetadata(out, r.header, recordHeader)
	out = appendMetadata(out, r.trailer, recordTrailer)
	out = appendText(out, string(r.message))
	out = appendText(out, r.body)
	return string(binary.BigEndian.AppendUint32(out, crc32.Checksum(out, recordTable)))
}

func appendMetadata(out []byte, md metadata.MD, kind uint64) []byte {
	for _, name := range slices.Sorted(maps.Keys(md)) {
		out = binary.AppendUvarint(out, uint64(len(md[name]))<<1|kind)
		out = appendText(out, name)
		for _, v := range md[name] {
			out = appendText(out, v)
		}
	}
	return out
}

func appendText(out []byte, s string) []byte {
	return append(binary.AppendUvarint(out, uint64(len(s))), s...)
}

// decodeRecord reads what encode wrote. The error wraps
// [idempotent.ErrCorrupt] or [idempotent.ErrNewerFormat].
func decodeRecord(s string) (record, error) {
	switch {
	case len(s) < 2 || s[0] != recordMagic || s[1] == 0:
		return record{}, corrupt("not a recorded gRPC answer")
	case s[1] > recordFormat:
		return record{}, fmt.Errorf("%w: recorded gRPC answer, format %d", idempotent.ErrNewerFormat, s[1])
	case len(s) < 3+4:
		return record{}, corrupt("length")
	}
	sum := len(s) - 4
	if crc32.Checksum([]byte(s[:sum]), recordTable) != binary.BigEndian.Uint32([]byte(s[sum:])) {
		return record{}, corrupt("checksum")
	}
	if s[2]&^recordFlagTombstone != 0 {
		return record{}, corrupt("flags")
	}
	in := recordReader{rest: s[3:sum]}
	r := record{tombstone: s[2] != 0, header: metadata.MD{}, trailer: metadata.MD{}}
	r.code = codes.Code(in.number(math.MaxInt32))
	in.metadata(&r)
	r.message = protoreflect.FullName(in.text())
	r.body = in.text()
	switch {
	case in.bad != "":
	case in.rest != "":
		in.bad = "length"
	case r.tombstone && (len(r.header)+len(r.trailer) > 0 || r.message != "" || r.body != ""):
		in.bad = "tombstone"
	case r.tombstone:
	case r.code == codes.OK && !r.message.IsValid(), r.code != codes.OK && r.message != "":
		in.bad = "message name"
	}
	if in.bad != "" {
		return record{}, corrupt(in.bad)
	}
	return r, nil
}

func corrupt(what string) error {
	return fmt.Errorf("%w: recorded gRPC answer: %s", idempotent.ErrCorrupt, what)
}

// answer returns what the handler has answered: its message, or its status. ok
// is false where it cannot be repeated. The error wraps [idempotent.ErrCorrupt].
func (r *record) answer() (resp proto.Message, st *status.Status, ok bool, err error) {
	if r.tombstone {
		return nil, nil, false, nil
	}
	if r.code != codes.OK {
		p := new(spb.Status)
		if proto.Unmarshal([]byte(r.body), p) != nil || p.GetCode() != int32(r.code) {
			return nil, nil, false, corrupt("status")
		}
		return nil, status.FromProto(p), true, nil
	}
	t, err := protoregistry.GlobalTypes.FindMessageByName(r.message)
	if err != nil {
		return nil, nil, false, nil // another release knew the message
	}
	m := t.New().Interface()
	if (proto.UnmarshalOptions{AllowPartial: true}).Unmarshal([]byte(r.body), m) != nil {
		return nil, nil, false, corrupt("message")
	}
	return m, status.New(codes.OK, ""), true, nil
}

// recordReader takes the parts of the recorded form off rest. After the first
// failure, which bad names, everything it returns is zero.
type recordReader struct {
	rest string
	bad  string
}

func (in *recordReader) fail(what string) {
	if in.bad == "" {
		in.bad = what
	}
	in.rest = ""
}

// number reads a number no larger than most, in its shortest form only.
func (in *recordReader) number(most uint64) uint64 {
	n := uint64(0)
	for i := 0; i < len(in.rest) && i < 5; i++ {
		b := in.rest[i]
		n |= uint64(b&0x7f) << (7 * i)
		if b >= 0x80 {
			continue
		}
		if n > most || b == 0 && i > 0 {
			break
		}
		in.rest = in.rest[i+1:]
		return n
	}
	in.fail("number")
	return 0
}

func (in *recordReader) text() string {
	n := int(in.number(uint64(len(in.rest))))
	if n > len(in.rest) {
		in.fail("text")
		return ""
	}
	s := in.rest[:n]
	in.rest = in.rest[n:]
	return s
}

// metadata reads the fields. The counts are not believed: each turn of the
// loops takes a byte of input at least, so that memory grows with the input
// only.
func (in *recordReader) metadata(r *record) {
	last := ""
	for n := in.number(uint64(len(in.rest))); n > 0 && in.bad == ""; n-- {
		head := in.number(uint64(len(in.rest))<<1 | 1)
		name := in.text()
		var values []string
		for count := head >> 1; count > 0 && in.bad == ""; count-- {
			v := in.text()
			if !validValue(name, v) {
				in.fail("metadata value")
			}
			values = append(values, v)
		}
		md, order := r.header, "h"+name
		if head&1 == recordTrailer {
			md, order = r.trailer, "t"+name
		}
		if in.bad == "" && (!recordable(name) || len(values) == 0 || order <= last) {
			in.fail("metadata")
		}
		md[name], last = values, order
	}
}

// validName reports whether gRPC sends metadata of that name.
func validName(name string) bool {
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return name != ""
}

// validValue reports whether gRPC sends that value: binary metadata holds
// anything, other metadata printable ASCII.
func validValue(name, value string) bool {
	return strings.HasSuffix(name, "-bin") || printable(value)
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// EncodeResponse returns what is recorded of an answer, for
// [idempotent.Guard.Resolve]: repeats of a key settled with it get resp, or the
// status of err where that is not nil. The error wraps
// [idempotent.ErrInvalid]: a response that does not encode, or whose type is
// not linked into the program.
func EncodeResponse(resp proto.Message, err error) (string, error) {
	r := newRecord(resp, statusOf(err), nil, nil, math.MaxInt32)
	if r.tombstone {
		return "", fmt.Errorf("%w: a response of type %T does not encode", idempotent.ErrInvalid, resp)
	}
	return r.encode(), nil
}

// statusOf is the status that the server makes of a handler's error.
func statusOf(err error) *status.Status {
	if err == nil {
		return status.New(codes.OK, "")
	}
	st, ok := status.FromError(err)
	if !ok {
		st = status.FromContextError(err)
	}
	return st
}
