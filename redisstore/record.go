package redisstore

import (
	"crypto/sha256"
	"encoding/base64"
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
//	claim   four lines:
//	        "1 <key> <owner>\n", then key and owner, "\n"
//	        "<fingerprint> <trace> <keep> <takeover>\n", then fingerprint and
//	        trace, "\n"
//	        "<claimed> <later> <gained>"
//	result  of a finished entry, byte for byte
//
// and, while somebody waits for a running claim, a fifth one, wait: the channel
// on which its end is to be published. In claim, the first number is the format;
// key to trace are lengths in bytes; keep is in milliseconds; claimed is the
// time of the first claim in microseconds, and later is what the fence is above
// it; takeover and gained (by take-over) are 0 or 1. Numbers are decimal,
// without leading zeros. A later format keeps a field claim that begins with its
// number and a space, so that this release can tell it apart.
//
// The lines up to owner are the identity of a claim: a step of the owner, who
// knows them, compares them as they stand. The last line is the server's, and
// everything before it is sent by who claims.
//
// The name of the hash has the whole key already. So the entry carries a key of
// more than keyLongest bytes as "#" and keyDigest letters of its SHA-256, in the
// URL alphabet of base64; and one that begins with "#", so that the two cannot
// be confused.
const (
	format     = 1
	keyLongest = 40
	keyDigest  = 16
)

// The first byte of what a script answers.
const (
	answerAbsent  = '-' // nothing there
	answerDone    = '+' // the step was made, or had been
	answerLost    = '!' // somebody else's, or gone
	answerCorrupt = 'x' // cannot be read
	answerFormat  = 'f' // another format; the beginning of claim follows
	answerNew     = 'n' // claimed, nothing was there; the field time follows
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
	key, owner, fingerprint, trace string // key as an entry carries it
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

// appendCarried appends key as an entry carries it.
func appendCarried(b []byte, key string) []byte {
	if len(key) <= keyLongest && !strings.HasPrefix(key, "#") {
		return append(b, key...)
	}
	var room [512]byte
	sum := sha256.Sum256(append(room[:0], key...))
	return base64.RawURLEncoding.AppendEncode(append(b, '#'), sum[:keyDigest*6/8])
}

// carries reports whether text is what an entry of key carries.
func carries(text, key string) bool {
	var room [64]byte
	return text == string(appendCarried(room[:0], key))
}

// identity returns how the claim field of owner's claim of key begins.
func identity(key, owner string) string {
	var room [128]byte
	return string(appendIdentity(room[:0], key, owner))
}

func appendIdentity(b []byte, key, owner string) []byte {
	var room [64]byte
	text := appendCarried(room[:0], key)
	b = append(strconv.AppendInt(b, format, 10), ' ')
	b = append(strconv.AppendInt(b, int64(len(text)), 10), ' ')
	b = append(strconv.AppendInt(b, int64(len(owner)), 10), '\n')
	return append(append(b, text...), owner...)
}

// encodeClaim returns the claim field of a new claim without its last line,
// which the server adds.
func encodeClaim(key string, c idempotent.Claim) string {
	var room [256]byte
	b := append(appendIdentity(room[:0], key, c.Owner), '\n')
	b = append(strconv.AppendInt(b, int64(len(c.Fingerprint)), 10), ' ')
	b = append(strconv.AppendInt(b, int64(len(c.Trace)), 10), ' ')
	b = append(strconv.AppendInt(b, millis(c.Keep), 10), ' ')
	if c.TakeOver {
		b = append(b, "1\n"...)
	} else {
		b = append(b, "0\n"...)
	}
	return string(append(append(b, c.Fingerprint...), c.Trace...))
}

// verdict returns the error that a script's answer stands for.
func verdict(reply string) error {
	if reply == "" {
		return errAnswer
	}
	switch reply[0] {
	case answerDone, answerAbsent, answerNew, answerClaimed, answerEntry, answerMarked, answerLapsed:
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

// decodeNew reads the answer to a claim where nothing was: what the server
// added, in the words of the field time.
func decodeNew(key string, c idempotent.Claim, reply string) (idempotent.Entry, error) {
	var n [2]int64
	if !numbers(reply[1:], n[:]) {
		return idempotent.Entry{}, errAnswer
	}
	set := time.UnixMicro(n[0]).UTC()
	return idempotent.Entry{
		Key: key, Status: idempotent.Pending, Timestamp: set, Claimed: set, Expires: time.UnixMicro(n[1]).UTC(),
		Fingerprint: c.Fingerprint, Owner: c.Owner, Trace: c.Trace, Fence: n[0],
	}, nil
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
	case answerDone, answerNew:
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
	if !carries(h.key, key) {
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
func decodeClaim(claim string) (h held, ok bool) {
	var who [3]int64
	var what [4]int64
	var when [3]int64
	rest, ok := line(claim, who[:])
	if !ok || who[0] != format || who[1] == 0 || who[1] > keyLongest || who[2] == 0 ||
		!texts(&rest, who[1:], &h.key, &h.owner) {
		return held{}, false
	}
	if rest, ok = line(rest, what[:]); !ok || what[3] > 1 || !texts(&rest, what[:2], &h.fingerprint, &h.trace) {
		return held{}, false
	}
	if !numbers(rest, when[:]) || when[2] > 1 {
		return held{}, false
	}
	h.keep = time.Duration(min(what[2], int64(longest/time.Millisecond))) * time.Millisecond
	h.claimed = time.UnixMicro(when[0]).UTC()
	h.fence = when[0] + when[1]
	return h, true
}

// line reads a line of exactly len(into) numbers and returns what follows it.
func line(s string, into []int64) (rest string, ok bool) {
	s, rest, ok = strings.Cut(s, "\n")
	return rest, ok && numbers(s, into)
}

// texts takes texts of the given lengths and the end of their line off s.
func texts(s *string, lengths []int64, into ...*string) bool {
	for i, length := range lengths {
		if length > int64(len(*s)) {
			return false
		}
		*into[i], *s = (*s)[:length], (*s)[length:]
	}
	rest, ok := strings.CutPrefix(*s, "\n")
	*s = rest
	return ok
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
