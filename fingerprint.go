package idempotent

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"hash"
	"mime"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
)

// FingerprintFunc says what makes a request the same as another one under the
// same key: equal texts are a repeat, different texts are another request and
// refused. It gets the whole body; the layer adds query, media type and
// Content-Encoding by itself. Begin the text with a tag and version of your
// own, such as "order1:", at most eight lower-case letters and digits and a
// colon; a text without one counts as "x1:". It may be of any length, only a
// digest is kept. Leave out what changes between attempts: tokens, cookies,
// trace ids, dates. An error refuses the request, and the operation does not
// run. The function must be safe for concurrent use, and must not change or
// keep body.
//
// To add a field, call one of [CanonicalJSON], [RawBody] and [Multipart] and
// append to its text.
type FingerprintFunc func(r *http.Request, body []byte) (string, error)

// The tags of this release. A change to what a function or appendFingerprint
// hashes needs a new version of each tag it touches: fingerprints are compared
// with recorded ones, and a repeat across the upgrade would be refused.
const (
	fingerprintJSON      = "j1:"
	fingerprintRaw       = "r1:"
	fingerprintMultipart = "m1:"
	fingerprintOther     = "x1:" // of functions that name themselves by no tag

	fingerprintMaxTag = 9 // the colon included
)

// fingerprintBytes of a SHA-256 are kept, 32 characters of base64url. With 192
// bits, two requests under one key meet by accident never, and on purpose
// after some 2^96 attempts; the record is 11 bytes smaller than with all 256.
const fingerprintBytes = 24

// CanonicalJSON is the default: JSON documents are compared by content. The
// order of members, white space and the spelling of escapes do not matter;
// the order of arrays, null against absent, and every digit of a number do: 1
// and 1.0 differ, as do whole numbers beyond 2^53. It acts on the media types
// application/json and those ending in +json. Other bodies are compared as
// [RawBody] does, and so is JSON that decoders may read differently: invalid,
// with repeated names, invalid UTF-8 or lone surrogates, or nested deeper than
// 1,000 levels. A body with a Content-Encoding is not decoded. The error is
// always nil.
func CanonicalJSON(r *http.Request, body []byte) (string, error) {
	media, ok := fingerprintMediaType(r.Header)
	if !ok || !fingerprintIsJSON(media) {
		return RawBody(r, body)
	}
	sum, ok := canonicalSum(body)
	if !ok {
		return RawBody(r, body)
	}
	return fingerprintText(fingerprintJSON, sum[:]), nil
}

// RawBody compares bodies byte for byte. The error is always nil.
func RawBody(_ *http.Request, body []byte) (string, error) {
	sum := sha256.Sum256(body)
	return fingerprintText(fingerprintRaw, sum[:]), nil
}

// Multipart compares multipart bodies part by part, in order: their header
// fields in any order, and their content byte for byte. The boundary, which
// most clients draw anew for every attempt, does not matter. A part that is
// itself a multipart body has a boundary in its content, which does matter.
// Bodies of other types, and those that are no well-formed multipart body, are
// compared as [RawBody] does. The error is always nil.
func Multipart(r *http.Request, body []byte) (string, error) {
	lines := r.Header["Content-Type"]
	if len(lines) != 1 {
		return RawBody(r, body)
	}
	media, params, err := mime.ParseMediaType(lines[0])
	if err != nil || !strings.HasPrefix(media, "multipart/") || params["boundary"] == "" {
		return RawBody(r, body)
	}
	h := sha256.New()
	if !fingerprintParts(h, body, params["boundary"]) {
		return RawBody(r, body)
	}
	return fingerprintText(fingerprintMultipart, h.Sum(nil)), nil
}

// appendFingerprint appends what a claim carries: the tag of what fn says of the
// body, and a digest of that text and of the rest of what makes a request the
// same one. Method and path are "" unless they are part of it, which is so
// where the key is unique per principal. Authorization, cookies and trace
// fields are never part: they change between attempts. An error is fn's own.
//
// What is hashed is a list of texts, each with its length in front, so that no
// two requests give the same bytes.
func appendFingerprint(to []byte, r *http.Request, body []byte, fn FingerprintFunc, method, path string) ([]byte, error) {
	text, err := fn(r, body)
	if err != nil {
		return to, err
	}
	b := make([]byte, 0, 512) // stays on the stack, unless the query is long
	b = fingerprintAppend(b, text)
	b = fingerprintAppend(b, method)
	b = fingerprintAppend(b, path)
	if media, ok := fingerprintMediaType(r.Header); ok {
		b = append(b, 'm')
		b = fingerprintAppendLower(b, media)
	} else {
		b = append(b, 'c')
		b = fingerprintAppendLines(b, r.Header["Content-Type"], false)
	}
	b = fingerprintAppendLines(b, r.Header["Content-Encoding"], true)
	b = fingerprintAppendQuery(b, r.URL.RawQuery)

	sum := sha256.Sum256(b)
	return appendFingerprintText(to, fingerprintTag(text), sum[:fingerprintBytes]), nil
}

// fingerprintText writes a digest behind its tag. The functions above keep all
// 32 bytes, 43 characters: they are hashed again, so that brevity gains
// nothing.
func fingerprintText(tag string, sum []byte) string {
	b := make([]byte, 0, fingerprintMaxTag+43) // stays on the stack
	return string(appendFingerprintText(b, tag, sum))
}

func appendFingerprintText(b []byte, tag string, sum []byte) []byte {
	return base64.RawURLEncoding.AppendEncode(append(b, tag...), sum)
}

// fingerprintTag returns the tag that text begins with.
func fingerprintTag(text string) string {
	for i := range min(len(text), fingerprintMaxTag) {
		switch c := text[i]; {
		case c >= 'a' && c <= 'z' || c >= '0' && c <= '9':
		case c == ':' && i > 0:
			return text[:i+1]
		default:
			return fingerprintOther
		}
	}
	return fingerprintOther
}

// fingerprintMediaType returns the media type without its parameters, in the
// spelling of the request. It is false where there is not exactly one line, or
// where what stands before the parameters is no media type.
func fingerprintMediaType(h http.Header) (string, bool) {
	lines := h["Content-Type"]
	if len(lines) != 1 {
		return "", false
	}
	media, _, _ := strings.Cut(lines[0], ";")
	media = strings.Trim(media, " \t")
	major, minor, ok := strings.Cut(media, "/")
	return media, ok && responseValidName(major) && responseValidName(minor)
}

func fingerprintIsJSON(media string) bool {
	const suffix = "+json"
	return strings.EqualFold(media, "application/json") ||
		len(media) > len(suffix) && strings.EqualFold(media[len(media)-len(suffix):], suffix)
}

// fingerprintAppend appends s with its length in front.
func fingerprintAppend(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// fingerprintAppendLower appends s, its ASCII letters in lower case.
func fingerprintAppendLower(b []byte, s string) []byte {
	b = fingerprintAppend(b, s)
	for i := len(b) - len(s); i < len(b); i++ {
		if b[i] >= 'A' && b[i] <= 'Z' {
			b[i] += 'a' - 'A'
		}
	}
	return b
}

// fingerprintAppendLines appends all lines of a field, their ASCII letters in
// lower case where its values ignore case. No line and an empty line are two
// things.
func fingerprintAppendLines(b []byte, lines []string, ignoreCase bool) []byte {
	b = binary.AppendUvarint(b, uint64(len(lines)))
	for _, line := range lines {
		if ignoreCase {
			b = fingerprintAppendLower(b, line)
		} else {
			b = fingerprintAppend(b, line)
		}
	}
	return b
}

// fingerprintPair is one name and value of a query, and whether there was a
// '=' between them.
type fingerprintPair struct {
	name, value string
	hasValue    bool
}

// fingerprintAppendQuery appends the query, its names sorted and the values of
// each in order. A query that does not parse is taken as it is: dropping what
// cannot be read, as [url.ParseQuery] does, would make two requests one.
func fingerprintAppendQuery(b []byte, query string) []byte {
	if query == "" {
		return append(b, 'n')
	}
	pairs, ok := fingerprintPairs(query)
	if !ok {
		return fingerprintAppend(append(b, 'r'), query)
	}
	slices.SortStableFunc(pairs, func(a, b fingerprintPair) int { return cmp.Compare(a.name, b.name) })
	b = binary.AppendUvarint(append(b, 'p'), uint64(len(pairs)))
	for _, p := range pairs {
		b = fingerprintAppend(b, p.name)
		if p.hasValue {
			b = fingerprintAppend(append(b, '='), p.value)
		} else {
			b = append(b, '&')
		}
	}
	return b
}

// fingerprintPairs splits and unescapes a query. It keeps empty pairs, since
// nothing is known of what the handler makes of them. A semicolon separates
// pairs for some parsers and not for others: then nothing is sure.
func fingerprintPairs(query string) ([]fingerprintPair, bool) {
	if strings.Contains(query, ";") {
		return nil, false
	}
	pairs := make([]fingerprintPair, 0, strings.Count(query, "&")+1)
	for text := range strings.SplitSeq(query, "&") {
		var p fingerprintPair
		var nameErr, valueErr error
		p.name, p.value, p.hasValue = strings.Cut(text, "=")
		p.name, nameErr = url.QueryUnescape(p.name)
		p.value, valueErr = url.QueryUnescape(p.value)
		if nameErr != nil || valueErr != nil {
			return nil, false
		}
		pairs = append(pairs, p)
	}
	return pairs, true
}

// fingerprintParts writes the parts of a multipart body to h. It is strict
// where mime/multipart is lenient, because that one skips text before the
// first and behind the last part: false unless every byte belongs to a
// delimiter or a part.
func fingerprintParts(h hash.Hash, body []byte, boundary string) bool {
	line := []byte("\r\n--" + boundary)
	rest, ok := bytes.CutPrefix(body, line[2:])
	for ok {
		if end, final := bytes.CutPrefix(rest, []byte("--")); final {
			return len(end) == 0 || string(end) == "\r\n"
		}
		if rest, ok = bytes.CutPrefix(rest, line[:2]); !ok {
			return false
		}
		var part []byte
		if part, rest, ok = bytes.Cut(rest, line); ok {
			ok = fingerprintPart(h, part)
		}
	}
	return false
}

// fingerprintPart writes one part to h: its fields, names sorted and values in
// order, and its content.
func fingerprintPart(h hash.Hash, part []byte) bool {
	var head []byte
	content, bare := bytes.CutPrefix(part, []byte("\r\n")) // a part without fields
	if !bare {
		var ok bool
		if head, content, ok = bytes.Cut(part, []byte("\r\n\r\n")); !ok {
			return false
		}
	}
	var fields []fingerprintPair
	for len(head) > 0 {
		var text []byte
		text, head, _ = bytes.Cut(head, []byte("\r\n"))
		name, value, colon := strings.Cut(string(text), ":")
		if !colon || !responseValidName(name) || strings.ContainsAny(value, "\r\n") {
			return false
		}
		fields = append(fields, fingerprintPair{
			name:  textproto.CanonicalMIMEHeaderKey(name),
			value: strings.Trim(value, " \t"),
		})
	}
	slices.SortStableFunc(fields, func(a, b fingerprintPair) int { return cmp.Compare(a.name, b.name) })
	b := binary.AppendUvarint(nil, uint64(len(fields)))
	for _, f := range fields {
		b = fingerprintAppend(b, f.name)
		b = fingerprintAppend(b, f.value)
	}
	b = binary.AppendUvarint(b, uint64(len(content)))
	h.Write(b)
	h.Write(content)
	return true
}
