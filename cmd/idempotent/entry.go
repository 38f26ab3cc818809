package main

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/idempotent-go/idempotent"
)

// The states that people ask for. Unknown is the one to settle; corrupt is that
// of a record which cannot be read.
const (
	statePending = "pending"
	stateSuccess = "success"
	stateFailed  = "failed"
	stateUnknown = "unknown"
	stateCorrupt = "corrupt"
)

var states = []string{statePending, stateSuccess, stateFailed, stateUnknown, stateCorrupt}

func stateOf(e idempotent.Entry) string {
	switch {
	case e.Status == idempotent.Pending:
		return statePending
	case e.Status == idempotent.Success:
		return stateSuccess
	case e.Unknown:
		return stateUnknown
	}
	return stateFailed
}

// keyView is a key as JSON shows it.
type keyView struct {
	Key   string `json:"key"`
	Bytes []byte `json:"key_base64,omitempty"` // where Key is not UTF-8, of which JSON would lose bytes
	Log   string `json:"log_key"`
}

func viewKey(key string) keyView {
	v := keyView{Key: key, Log: idempotent.LogKey(key)}
	if !utf8.ValidString(key) {
		v.Bytes = []byte(key)
	}
	return v
}

// entryView is an entry as JSON shows it.
type entryView struct {
	keyView
	State       string    `json:"state"`
	Owner       string    `json:"owner"`
	Trace       string    `json:"trace,omitempty"`
	Fingerprint string    `json:"fingerprint,omitempty"`
	Fence       int64     `json:"fence"`
	Claimed     time.Time `json:"claimed"`
	Since       time.Time `json:"since"`
	Expires     time.Time `json:"expires"`
}

func view(e idempotent.Entry) entryView {
	return entryView{
		keyView: viewKey(e.Key), State: stateOf(e), Owner: e.Owner, Trace: e.Trace, Fingerprint: e.Fingerprint,
		Fence: e.Fence, Claimed: e.Claimed.UTC(), Since: e.Timestamp.UTC(), Expires: e.Expires.UTC(),
	}
}

// corruptView is a record of which no more than its key is known.
type corruptView struct {
	keyView
	State string `json:"state"`
}

func viewCorrupt(key string) corruptView {
	return corruptView{keyView: viewKey(key), State: stateCorrupt}
}

// duration is d as people read it: two units at most.
func duration(d time.Duration) string {
	sign := ""
	if d < 0 {
		sign, d = "-", -d
	}
	const day = 24 * time.Hour
	switch {
	case d < time.Second:
		return sign + d.Round(time.Millisecond).String()
	case d < time.Minute:
		return fmt.Sprintf("%s%ds", sign, d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%s%dm%ds", sign, d/time.Minute, d%time.Minute/time.Second)
	case d < 2*day:
		return fmt.Sprintf("%s%dh%dm", sign, d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%s%dd%dh", sign, d/day, d%day/time.Hour)
}

// printable returns text with everything escaped that could move a terminal's
// cursor or its columns, except for what is kept: keys, traces and results are
// other people's text.
func printable(text string, keep ...rune) string {
	var b strings.Builder
	for i, r := range text {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(text[i:], string(utf8.RuneError)):
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case unicode.IsPrint(r) || strings.ContainsRune(string(keep), r):
			b.WriteRune(r)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u{%x}`, r)
		}
	}
	return b.String()
}
