package redisstore

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/idempotent-go/idempotent"
)

// The record, format 1. An entry is a hash of four fields:
//
//	status  pending, success, failed or unknown (failed, and may have happened)
//	time    "<set> <until>": when status was set, and the end of the lease or
//	        of the retention, both in microseconds of the server's clock
//	claim   "1 <key> <owner> <fingerprint> <trace> <keep> <takeover> <claimed>
//	        <fence> <gained>\n", then key, owner, fingerprint and trace
//	result  of a finished entry, byte for byte
//
// and, while somebody waits for a running claim, a fifth one, wait. In claim,
// the first number is the format; key to trace are lengths in bytes; keep is in
// milliseconds; claimed is the time of the first claim in microseconds;
// takeover and gained (by take-over) are 0 or 1. Numbers are decimal, without
// leading zeros. A later format keeps a field claim that begins with its number
// and a space, so that this release can tell it apart.
const (
	format     = 1
	claimWords = 10
)

// The first byte of what a script answers.
const (
	answerAbsent  = '-' // nothing there
	answerDone    = '+' // the step was made, or had been
	answerLost    = '!' // somebody else's, or gone
	answerCorrupt = 'x' // cannot be read
	answerFormat  = 'f' // another format; the beginning of claim follows
	answerClaimed = 'c' // claimed; the entry follows
	answerEntry   = 'e' // the entry follows
	answerMarked  = 'm' // a running claim follows, whose end will be published
	answerLapsed  = 'l' // a lapsed claim follows
)

var (
	errLayout = fmt.Errorf("%w: the hash is not a record", idempotent.ErrCorrupt)
	errAnswer = errors.New("unexpected answer of a script")
)

// look is what one reading found.
type look struct {
	entry   idempotent.Entry
	found   bool
	claimed bool
	marked  bool          // the claim's end will be published
	left    time.Duration // of the lease, by the server's clock; 0 unless a claim is running
}

// held is what the claim field says.
type held struct {
	key, owner, fingerprint, trace string
	keep                           time.Duration
	claimed                        time.Time
	fence                          int64
}

// statusWord returns the status field of an outcome.
func statusWord(o idempotent.Outcome) string {
	if o.Unknown {
		return "unknown"
	}
	return string(o.Status)
}

// encodeClaim returns the claim field of a new claim in two parts, between
// which the script writes what only the server knows: claimed, fence, gained.
func encodeClaim(key string, c idempotent.Claim) (head, tail string) {
	b := make([]byte, 0, 48)
	for _, n := range [...]int64{
		format, int64(len(key)), int64(len(c.Owner)), int64(len(c.Fingerprint)), int64(len(c.Trace)), millis(c.Keep),
	} {
		b = append(strconv.AppendInt(b, n, 10), ' ')
	}
	if c.TakeOver {
		b = append(b, "1 "...)
	} else {
		b = append(b, "0 "...)
	}
	return string(b), key + c.Owner + c.Fingerprint + c.Trace
}

// verdict returns the error that a script's answer stands for.
func verdict(reply string) error {
	if reply == "" {
		return errAnswer
	}
	switch reply[0] {
	case answerDone, answerAbsent, answerClaimed, answerEntry, answerMarked, answerLapsed:
		return nil
	case answerLost:
		return idempotent.ErrLost
	case answerCorrupt:
		return errLayout
	case answerFormat:
		word, _, _ := strings.Cut(reply[1:], " ")
		if n, ok := number(word); ok && n > format {
			return fmt.Errorf("%w: format %d, this release reads %d", idempotent.ErrNewerFormat, n, format)
		}
		return errLayout
	}
	return errAnswer
}

// decodeLook reads the answer of the scripts that return an entry:
//
//	<byte><status> <set> <until> <now> <length of claim>\n<claim><result>
//
// The result shares the memory of reply.
func decodeLook(key, reply string) (look, error) {
	if err := verdict(reply); err != nil {
		return look{}, err
	}
	kind := reply[0]
	switch kind {
	case answerAbsent:
		return look{}, nil
	case answerDone:
		return look{}, errAnswer
	}
	head, body, ok := strings.Cut(reply[1:], "\n")
	status, head, _ := strings.Cut(head, " ")
	var n [4]int64
	if !ok || !numbers(head, n[:]) || n[3] > int64(len(body)) {
		return look{}, errLayout
	}
	set, until, now := time.UnixMicro(n[0]).UTC(), time.UnixMicro(n[1]).UTC(), time.UnixMicro(n[2]).UTC()
	h, ok := decodeClaim(body[:n[3]])
	if !ok {
		return look{}, errLayout
	}
	if h.key != key {
		return look{}, fmt.Errorf("%w: the hash carries another key", idempotent.ErrCorrupt)
	}
	l := look{found: true, claimed: kind == answerClaimed, marked: kind == answerMarked, entry: idempotent.Entry{
		Key:         key,
		Status:      idempotent.Status(status),
		Result:      body[n[3]:],
		Timestamp:   set,
		Claimed:     h.claimed,
		Expires:     until,
		Fingerprint: h.fingerprint,
		Owner:       h.owner,
		Trace:       h.trace,
		Fence:       h.fence,
	}}
	switch {
	case status == "pending" && kind == answerLapsed && l.entry.Result == "":
		l.entry.Status, l.entry.Unknown = idempotent.Failed, true
		l.entry.Timestamp, l.entry.Expires = until, until.Add(h.keep)
	case status == "pending" && l.entry.Result == "":
		l.left = until.Sub(now)
	case kind != answerEntry:
		return look{}, errLayout
	case status == "unknown":
		l.entry.Status, l.entry.Unknown = idempotent.Failed, true
	case status != "success" && status != "failed":
		return look{}, errLayout
	}
	return l, nil
}

// decodeClaim reads the claim field. It takes nothing that encodeClaim and the
// scripts would not write, so that a damaged record is not half understood.
func decodeClaim(claim string) (held, bool) {
	head, tail, ok := strings.Cut(claim, "\n")
	var n [claimWords]int64
	if !ok || !numbers(head, n[:]) || n[0] != format || n[6] > 1 || n[9] > 1 || n[1] == 0 || n[2] == 0 {
		return held{}, false
	}
	var text [4]string
	for i, length := range n[1:5] {
		if length > int64(len(tail)) {
			return held{}, false
		}
		text[i], tail = tail[:length], tail[length:]
	}
	if tail != "" {
		return held{}, false
	}
	return held{
		key: text[0], owner: text[1], fingerprint: text[2], trace: text[3],
		keep:    time.Duration(min(n[5], int64(longest/time.Millisecond))) * time.Millisecond,
		claimed: time.UnixMicro(n[7]).UTC(),
		fence:   n[8],
	}, true
}

// numbers reads exactly len(into) numbers with one space between them.
func numbers(s string, into []int64) bool {
	for i := range into {
		word, rest, more := strings.Cut(s, " ")
		n, ok := number(word)
		if !ok || more != (i < len(into)-1) {
			return false
		}
		into[i], s = n, rest
	}
	return true
}

// number reads a decimal number without sign or leading zero that a Lua number
// holds exactly.
func number(s string) (int64, bool) {
	if s == "" || len(s) > 16 || s[0] == '0' && len(s) > 1 {
		return 0, false
	}
	var n int64
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int64(c-'0')
	}
	return n, n <= 1<<53
}
