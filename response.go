package idempotent

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// The recorded form of a response, version 1. Numbers are unsigned varints, a
// text is its length and its bytes:
//
//	'h'  0x01  flags  status
//	number of fields, and for each: count of values * 8 + kind, name, values
//	length of the body as a text in decimal digits
//	the body, up to the end
//
// The length is kept as text because a replay sends it as text; it also tells
// a record that was cut.
const (
	responseMagic  = 'h'
	responseFormat = 1

	responseFlagUnreplayable = 1 << 0
)

// responseKind says what a recorded field does. The numbers are part of the
// recorded form.
type responseKind uint8

const (
	responseSet       responseKind = iota // these values, whatever was set outside; no value: the field is suppressed
	responseAdd                           // after the values set outside
	responseRemove                        // the handler deleted what was set outside
	responseTrailer                       // a trailer that was announced in the Trailer field
	responseTrailerUn                     // a trailer that was not announced
)

// responseField is one field of a response, as a difference to what the layers
// outside the handler had set.
type responseField struct {
	name   string // as spelt by the handler
	values []string
	kind   responseKind
	skip   bool // sent to the first client, not recorded
}

// responseRoom holds the fields of a usual response.
type responseRoom struct {
	fields [6]responseField
	values [8]string // with the two that a replay adds
}

// responseRecord is what is kept of a response.
type responseRecord struct {
	status       int
	unreplayable bool            // a tombstone: only status and Location are known
	fields       []responseField // header fields, then trailers
	body         string          // as decoded
	length       string          // len(body) in decimal digits; "" where not yet known
	spare        []string        // room for the values that a replay adds
}

// EncodeResponse returns a recorded response for [Guard.Resolve]: repeats of a
// key settled with it get this status, header and body. Fields that never come
// back in a replay are left out: Date, Age, Content-Length, Trailer,
// Set-Cookie, Server-Timing, trace context and hop-by-hop fields. A missing
// Content-Type is guessed from the body as net/http does. h may be nil; h and
// body are not kept. The error wraps [ErrInvalid]: a status outside 200 to 999,
// a field name or value that HTTP does not allow, or a body with a status that
// has none (204, 205, 304).
func EncodeResponse(status int, h http.Header, body []byte) (string, error) {
	if status < 200 || status > 999 {
		return "", fmt.Errorf("%w: response status %d; a final status is 200 to 999", ErrInvalid, status)
	}
	if len(body) > 0 && !responseHasContent(status) {
		return "", fmt.Errorf("%w: a response with status %d has no body", ErrInvalid, status)
	}
	r := responseRecord{status: status}
	for name, values := range h {
		if !responseValidName(name) {
			return "", fmt.Errorf("%w: response field name %q", ErrInvalid, name)
		}
		for _, v := range values {
			if !responseValidValue(v) {
				return "", fmt.Errorf("%w: a value of response field %s has a line break or a zero byte", ErrInvalid, name)
			}
		}
		f := responseField{name: name, values: values, kind: responseSet}
		if responseRecorded(&f, h["Connection"], false) {
			r.fields = append(r.fields, f)
		}
	}
	_, typed := h["Content-Type"]
	if !typed && len(body) > 0 && h.Get("Content-Encoding") == "" {
		r.fields = append(r.fields, responseField{name: "Content-Type", values: []string{http.DetectContentType(body)}})
	}
	responseSort(r.fields)
	return r.encode(body), nil
}

// decodeResponse reads what encode wrote. Texts of the record share s; its
// fields stand in room as long as they fit. The error wraps ErrCorrupt or
// ErrNewerFormat.
func decodeResponse(s string, room *responseRoom) (responseRecord, error) {
	switch {
	case len(s) < 2 || s[0] != responseMagic || s[1] == 0:
		return responseRecord{}, fmt.Errorf("%w: not a recorded response", ErrCorrupt)
	case s[1] > responseFormat:
		return responseRecord{}, fmt.Errorf("%w: recorded response, format %d", ErrNewerFormat, s[1])
	case len(s) < 3 || s[2]&^responseFlagUnreplayable != 0:
		return responseRecord{}, fmt.Errorf("%w: recorded response: flags", ErrCorrupt)
	}
	in := responseReader{rest: s[3:]}
	r := responseRecord{unreplayable: s[2] != 0, fields: room.fields[:0]}
	values := room.values[:0]

	r.status = in.number(999)
	if r.status < 200 && (r.status != http.StatusSwitchingProtocols || !r.unreplayable) {
		in.fail("status")
	}
	// The counts are not believed: each turn of these loops takes a byte of
	// input at least, so that memory grows with the input only.
	for n := in.number(len(in.rest)); n > 0 && in.bad == ""; n-- {
		head := in.number(len(s)<<3 | 7)
		f := responseField{kind: responseKind(head & 7), name: in.text()}
		first := len(values)
		for count := head >> 3; count > 0 && in.bad == ""; count-- {
			values = append(values, in.text())
		}
		f.values = values[first:len(values):len(values)]
		if in.bad == "" && !f.valid() {
			in.fail("field")
		}
		r.fields = append(r.fields, f)
	}
	r.spare = values[len(values):]
	r.length = in.text()
	r.body = in.rest
	var digits [20]byte
	switch {
	case in.bad != "":
	case r.length != string(strconv.AppendInt(digits[:0], int64(len(r.body)), 10)):
		in.fail("length of the body")
	case r.body != "" && (r.unreplayable || !responseHasContent(r.status)):
		in.fail("body")
	}
	if in.bad != "" {
		return responseRecord{}, fmt.Errorf("%w: recorded response: %s", ErrCorrupt, in.bad)
	}
	return r, nil
}

// encode returns the recorded form of r with this body. Line breaks and zero
// bytes in values become spaces, as in what HTTP/1 sends.
func (r *responseRecord) encode(body []byte) string {
	var digits [20]byte
	length := strconv.AppendInt(digits[:0], int64(len(body)), 10)

	size := 3 + responseNumberSize(r.status) + responseNumberSize(len(r.fields))
	for i := range r.fields {
		f := &r.fields[i]
		size += responseNumberSize(len(f.values)<<3|int(f.kind)) + responseTextSize(f.name)
		for _, v := range f.values {
			size += responseTextSize(v)
		}
	}
	size += 1 + len(length) + len(body)

	var out responseWriter
	out.Grow(size)
	out.WriteByte(responseMagic)
	out.WriteByte(responseFormat)
	if r.unreplayable {
		out.WriteByte(responseFlagUnreplayable)
	} else {
		out.WriteByte(0)
	}
	out.number(r.status)
	out.number(len(r.fields))
	for i := range r.fields {
		f := &r.fields[i]
		out.number(len(f.values)<<3 | int(f.kind))
		out.text(f.name)
		for _, v := range f.values {
			if !responseValidValue(v) {
				v = responseBreaks.Replace(v)
			}
			out.text(v)
		}
	}
	out.number(len(length))
	out.Write(length)
	out.Write(body)
	return out.String()
}

// location returns the recorded Location, the one field that a tombstone
// keeps; "" where there is none.
func (r *responseRecord) location() string {
	if values := r.field("Location"); len(values) > 0 {
		return values[0]
	}
	return ""
}

// field returns the values of the recorded header field called name.
func (r *responseRecord) field(name string) []string {
	for i := range r.fields {
		f := &r.fields[i]
		if f.kind <= responseAdd && len(f.name) == len(name) && strings.EqualFold(f.name, name) {
			return f.values
		}
	}
	return nil
}

// responseSaysReplayed reports whether name is the field that marks a replay,
// in whatever case.
func responseSaysReplayed(name string) bool {
	return len(name) == len(replayedHeader) && strings.EqualFold(name, replayedHeader)
}

// responseRecorded reports whether a field of a response comes back in a
// replay. Left out is what speaks of one message only: its time, its framing,
// its connection (connection holds the values of the Connection field), its
// trace, and cookies unless they are kept.
func responseRecorded(f *responseField, connection []string, keepCookies bool) bool {
	name := http.CanonicalHeaderKey(f.name)
	switch name {
	case "Date":
		// The server dates each message, unless the handler forbade it.
		return f.kind == responseSet && len(f.values) == 0
	case "Set-Cookie":
		return keepCookies
	case "Age", "Content-Length", "Trailer", "Server-Timing", "Traceparent", "Tracestate", replayedHeader,
		"Connection", "Proxy-Connection", "Keep-Alive", "Te", "Transfer-Encoding", "Upgrade":
		return false
	}
	if f.kind >= responseTrailer && (len(f.values) == 0 || !responseTrailerAllowed(name)) {
		return false
	}
	return responseValidName(f.name) && !responseHasToken(connection, f.name)
}

// responseTrailerAllowed reports whether net/http sends the field as a
// trailer, beyond those that responseRecorded leaves out anyway.
func responseTrailerAllowed(name string) bool {
	switch name {
	case "Authorization", "Cache-Control", "Content-Encoding", "Content-Range", "Content-Type", "Expect", "Host",
		"Max-Forwards", "Pragma", "Proxy-Authenticate", "Proxy-Authorization", "Range", "Realm", "Www-Authenticate":
		return false
	}
	return !strings.HasPrefix(name, "If-")
}

// responseSort puts what is not recorded last, trailers behind header fields,
// and the rest in the order of names, so that equal responses have one form.
func responseSort(fields []responseField) {
	rank := func(f *responseField) int {
		switch {
		case f.skip:
			return 2
		case f.kind >= responseTrailer:
			return 1
		}
		return 0
	}
	slices.SortFunc(fields, func(a, b responseField) int {
		return cmp.Or(cmp.Compare(rank(&a), rank(&b)), strings.Compare(a.name, b.name))
	})
}

// apply does to h what the handler did.
func (f *responseField) apply(h http.Header) {
	switch f.kind {
	case responseAdd:
		h[f.name] = append(slices.Clip(h[f.name]), f.values...)
	case responseRemove:
		delete(h, f.name)
	case responseTrailerUn:
		h[http.TrailerPrefix+f.name] = f.values
	default:
		h[f.name] = f.values
	}
}

// valid reports whether a field that was read can be sent.
func (f *responseField) valid() bool {
	switch f.kind {
	case responseSet:
	case responseRemove:
		if len(f.values) > 0 {
			return false
		}
	case responseAdd, responseTrailer, responseTrailerUn:
		if len(f.values) == 0 {
			return false
		}
	default:
		return false
	}
	return responseValidName(f.name) && !responseFrames(f) &&
		!slices.ContainsFunc(f.values, func(v string) bool { return !responseValidValue(v) })
}

// responseFrames reports whether a field that was read would speak of the
// connection or of where the message ends. None is ever recorded, but for the
// length of an answer to HEAD; in a spelling that net/http does not know as its
// own, it would be sent beside the true one.
func responseFrames(f *responseField) bool {
	var framing []string
	switch len(f.name) { // most fields have another length
	case 2:
		framing = []string{"Te"}
	case 7:
		framing = []string{"Trailer", "Upgrade"}
	case 10:
		framing = []string{"Connection", "Keep-Alive"}
	case 14:
		if f.name == "Content-Length" && f.kind == responseSet {
			return false
		}
		framing = []string{"Content-Length"}
	case 16:
		framing = []string{"Proxy-Connection"}
	case 17:
		framing = []string{"Transfer-Encoding"}
	}
	return slices.ContainsFunc(framing, func(name string) bool { return strings.EqualFold(f.name, name) })
}

// responseHasContent reports whether a replay with this status has a body.
func responseHasContent(status int) bool {
	return responseBodyAllowed(status) && status != http.StatusResetContent
}

// responseBodyAllowed reports whether net/http lets a handler write a body.
func responseBodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// responseValidName reports whether name is a token of RFC 9110.
func responseValidName(name string) bool {
	for i := 0; i < len(name); i++ {
		c := name[i]
		if c-'0' < 10 || c|0x20-'a' < 26 {
			continue
		}
		if c >= 0x80 || !strings.Contains("!#$%&'*+-.^_`|~", name[i:i+1]) {
			return false
		}
	}
	return name != ""
}

// responseValidValue reports whether a field value ends where it should.
func responseValidValue(v string) bool {
	for i := range len(v) { // three searches for one byte each, or one for any, take longer
		if c := v[i]; c == '\r' || c == '\n' || c == 0 {
			return false
		}
	}
	return true
}

var responseBreaks = strings.NewReplacer("\r", " ", "\n", " ", "\x00", " ")

// responseTokens splits a list field into its elements.
func responseTokens(list string) []string {
	return strings.FieldsFunc(list, func(c rune) bool { return c == ',' || c == ' ' || c == '\t' })
}

// responseHasToken reports whether one of the list fields names token, in
// whatever case.
func responseHasToken(lists []string, token string) bool {
	for _, list := range lists {
		for e := range strings.SplitSeq(list, ",") {
			if strings.EqualFold(strings.TrimSpace(e), token) {
				return true
			}
		}
	}
	return false
}

func responseTextSize(s string) int { return responseNumberSize(len(s)) + len(s) }

func responseNumberSize(n int) int {
	size := 1
	for ; n >= 0x80; n >>= 7 {
		size++
	}
	return size
}

// responseWriter writes the parts of the recorded form.
type responseWriter struct{ strings.Builder }

func (out *responseWriter) number(n int) {
	for ; n >= 0x80; n >>= 7 {
		out.WriteByte(byte(n) | 0x80)
	}
	out.WriteByte(byte(n))
}

func (out *responseWriter) text(s string) {
	out.number(len(s))
	out.WriteString(s)
}

// responseReader takes the parts of the recorded form off rest. After the
// first failure, which bad names, everything it returns is zero.
type responseReader struct {
	rest string
	bad  string
}

func (in *responseReader) fail(what string) {
	if in.bad == "" {
		in.bad = what
	}
	in.rest = ""
}

// number reads a number no larger than most, in its shortest form only.
func (in *responseReader) number(most int) int {
	n := 0
	for i := 0; i < len(in.rest) && i < 5; i++ {
		b := in.rest[i]
		n |= int(b&0x7f) << (7 * i)
		if b >= 0x80 {
			continue
		}
		if n < 0 || n > most || b == 0 && i > 0 {
			break
		}
		in.rest = in.rest[i+1:]
		return n
	}
	in.fail("number")
	return 0
}

func (in *responseReader) text() string {
	n := in.number(len(in.rest))
	if n > len(in.rest) {
		in.fail("text")
		return ""
	}
	s := in.rest[:n]
	in.rest = in.rest[n:]
	return s
}
