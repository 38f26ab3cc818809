package main

import (
	"flag"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/discreet"
)

// resultFlags say how much of a recorded result is shown.
type resultFlags struct {
	show, secrets bool
	bytes         int
}

func (r *resultFlags) declare(flags *flag.FlagSet) {
	flags.BoolVar(&r.show, "result", false, "show the recorded result")
	flags.BoolVar(&r.secrets, "secrets", false, "with -result: show headers that may carry secrets")
	flags.IntVar(&r.bytes, "bytes", 4096, "with -result: how many `bytes` of a body to show")
}

func (r *resultFlags) validate() error {
	switch {
	case r.bytes < 0:
		return usage("-bytes is %d; it must not be negative", r.bytes)
	case r.secrets && !r.show:
		return usage("-secrets goes with -result")
	}
	return nil
}

// resultView is a result as it is shown.
type resultView struct {
	Kind        idempotent.ResultEncoding `json:"kind"`
	Status      int                       `json:"status,omitempty"`
	Unavailable bool                      `json:"unavailable,omitempty"` // of a response: it could not be kept
	Header      http.Header               `json:"header,omitempty"`
	Body        string                    `json:"body,omitempty"` // the first bytes; not in UTF-8, escaped
	Bytes       int                       `json:"bytes"`          // of the whole body
	Cut         bool                      `json:"cut,omitempty"`  // Body is not all of it
}

// kindUnreadable is that of a result that this release cannot read; the other
// kinds are the encodings of package idempotent.
const kindUnreadable idempotent.ResultEncoding = "unreadable"

func (r *resultFlags) view(e idempotent.Entry) resultView {
	result, err := idempotent.DecodeResult(e)
	if err != nil {
		result = idempotent.Result{Encoding: kindUnreadable, Text: e.Result}
	}
	v := resultView{Kind: result.Encoding, Status: result.Status, Unavailable: result.Unavailable, Header: result.Header}
	for name, values := range result.Trailer {
		v.Header[name] = append(v.Header[name], values...)
	}
	body := []byte(result.Text)
	if !r.secrets {
		for name, values := range v.Header {
			for i, value := range values {
				values[i], _ = discreet.Field(name, value)
			}
		}
	}
	v.Bytes, v.Cut = len(body), len(body) > r.bytes
	v.Body = capped(body, r.bytes)
	return v
}

// capped returns the first most bytes of body, whole characters only, and
// escaped where they are no text.
func capped(body []byte, most int) string {
	if len(body) > most {
		body = body[:most]
		for i := 1; i < utf8.UTFMax && i <= len(body); i++ {
			if tail := body[len(body)-i:]; utf8.RuneStart(tail[0]) {
				if !utf8.FullRune(tail) {
					body = body[:len(body)-i]
				}
				break
			}
		}
	}
	if utf8.Valid(body) {
		return string(body)
	}
	return printable(string(body), '\n', '\t')
}

// writeResult writes a result behind its entry.
func (s *session) writeResult(v resultView) {
	fmt.Fprintln(s.out)
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	switch v.Kind {
	case idempotent.ResultResponse:
	case idempotent.ResultNone:
		fmt.Fprintln(w, "no result was recorded")
	case idempotent.ResultNoValue:
		fmt.Fprintln(w, "no value: the operation returns none")
	case kindUnreadable:
		fmt.Fprintln(w, "recorded in a form that this release cannot read:")
	default:
		fmt.Fprintf(w, "recorded as %s:\n", v.Kind)
	}
	if v.Unavailable {
		fmt.Fprintln(w, "the response could not be kept; repeats get 409 result-unavailable")
	}
	if v.Status != 0 {
		fmt.Fprintf(w, "%d %s\n", v.Status, http.StatusText(v.Status))
	}
	for _, name := range slices.Sorted(maps.Keys(v.Header)) {
		for _, value := range v.Header[name] {
			fmt.Fprintf(w, "%s:\t%s\n", name, printable(value))
		}
	}
	_ = w.Flush()
	if v.Body != "" {
		fmt.Fprintf(s.out, "\n%s\n", printable(v.Body, '\n', '\t'))
	}
	if v.Cut {
		fmt.Fprintf(s.out, "… %d bytes in all; -bytes shows more\n", v.Bytes)
	}
}
