package inspect

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/discreet"
)

const (
	// maxShown is how many bytes of a recorded text are shown.
	maxShown = 16 << 10

	// maxDumped is how many bytes of one that is no text are shown.
	maxDumped = 1 << 10

	// maxFieldShown is how many bytes of a header field are shown.
	maxFieldShown = 1 << 10
)

// result is a recorded result as the page shows it.
type result struct {
	Encoding    string // what kind of call recorded it
	Says        string // what repeats are told where there is no result
	Empty       bool   // there is nothing more to show
	Status      int    // of an HTTP answer; 0 where it is none
	StatusText  string
	Unavailable bool
	Fields      []field
	Trailers    []field
	Body        body
}

// field is a header field; Value says so where it is hidden.
type field struct {
	Name   string
	Value  string
	Hidden bool
}

// body is a text, or a dump of what is none.
type body struct {
	Text   string
	Dump   bool
	Length int // bytes
	Rest   int // bytes that are not shown
}

var encodings = map[idempotent.ResultEncoding]string{
	idempotent.ResultResponse: "HTTP answer (middleware)",
	idempotent.ResultJSON:     "JSON value (Do)",
	idempotent.ResultCodec:    "value in the codec of the call (Do with WithCallCodec)",
	idempotent.ResultNoValue:  "success without a value (Guard.Do)",
	idempotent.ResultFailure:  "text of a definite failure (Do)",
	idempotent.ResultText:     "text of Guard.Run, or an adapter's own form",
}

// newResult takes the recorded result of e apart.
func newResult(e idempotent.Entry) result {
	decoded, err := idempotent.DecodeResult(e)
	switch {
	case errors.Is(err, idempotent.ErrNewerFormat):
		return result{Encoding: "HTTP answer that a newer release recorded; this one cannot read it", Body: newBody(e.Result)}
	case err != nil:
		return result{Encoding: "HTTP answer that cannot be read: repeats are answered record-corrupt", Body: newBody(e.Result)}
	case decoded.Encoding == idempotent.ResultNone:
		return result{Encoding: "none", Says: saysWithout(e), Empty: true}
	}
	r := result{
		Encoding: encodings[decoded.Encoding],
		Empty:    decoded.Encoding == idempotent.ResultNoValue,
		Body:     newBody(decoded.Text),
	}
	if decoded.Encoding == idempotent.ResultResponse {
		r.Status, r.StatusText = decoded.Status, http.StatusText(decoded.Status)
		r.Unavailable = decoded.Unavailable
		r.Fields, r.Trailers = newFields(decoded.Header), newFields(decoded.Trailer)
	}
	return r
}

// saysWithout is what repeats are told where there is no result.
func saysWithout(e idempotent.Entry) string {
	switch {
	case e.Status == idempotent.Pending:
		return "Repeats are told that the operation is in flight, or wait for it."
	case e.Abandoned():
		return "Repeats are told that the outcome is unknown."
	case e.Unknown:
		return "Repeats are told that the operation was aborted and its outcome is unknown."
	}
	return "Repeats are told that the result is not available."
}

func newFields(h http.Header) []field {
	var fields []field
	for name, values := range h {
		for _, v := range values {
			fields = append(fields, newField(name, v))
		}
	}
	slices.SortStableFunc(fields, func(a, b field) int { return cmp.Compare(a.Name, b.Name) })
	return fields
}

func newField(name, value string) field {
	shown, hidden := discreet.Field(name, value)
	if len(shown) > maxFieldShown {
		shown = fmt.Sprintf("%s… (%d bytes more)", shown[:maxFieldShown], len(shown)-maxFieldShown)
	}
	return field{Name: name, Value: shown, Hidden: hidden}
}

// newBody shows text as it is and everything else in hex, up to a length.
func newBody(s string) body {
	b := body{Length: len(s)}
	shown := cutText(s)
	if b.Dump = !isText(shown); b.Dump {
		shown = s[:min(len(s), maxDumped)]
		b.Text = hex.Dump([]byte(shown))
	} else {
		b.Text = shown
	}
	b.Rest = len(s) - len(shown)
	return b
}

// cutText returns the beginning of s, not cut within a character.
func cutText(s string) string {
	if len(s) <= maxShown {
		return s
	}
	cut := maxShown
	for n := 0; n < utf8.UTFMax-1 && !utf8.RuneStart(s[cut]); n++ {
		cut--
	}
	return s[:cut]
}

func isText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return unicode.IsControl(r) && r != '\n' && r != '\r' && r != '\t'
	})
}
