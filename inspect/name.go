package inspect

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"strconv"
	"strings"

	"github.com/idempotent-go/idempotent"
)

// storeName is the name of an entry, taken apart where it is that of a request:
// see [idempotent.StoreKey].
type storeName struct {
	Whole     string
	Request   bool // the four parts below are known
	Method    string
	Path      string // "" with WithPrincipalScope, as Method
	Principal string
	Key       string
	Cut       bool // the name was too long: its last part lacks its end
}

func parseName(name string) storeName {
	_, cut := cutDigest(name)
	n := storeName{Whole: name, Cut: cut}
	parts := strings.Split(name, ":")
	if len(parts) != 4 || !(parts[0] == "" && parts[1] == "" || strings.HasPrefix(parts[1], "/")) {
		return n
	}
	for i, to := range []*string{&n.Method, &n.Path, &n.Principal, &n.Key} {
		part, _ := cutDigest(parts[i])
		text, err := url.PathUnescape(part)
		if err != nil {
			return storeName{Whole: name, Cut: n.Cut}
		}
		*to = text
	}
	n.Request = true
	return n
}

// What a search looks at.
const (
	byAny       = "any"
	byPrincipal = "principal"
	byKey       = "key"
	byPrefix    = "prefix"
)

// matcher returns what a search for text finds among store names.
func matcher(by, text string) func(name string) bool {
	escaped := idempotent.Key(text) // as text stands in a name of several parts
	part := func(n int) func(string) bool {
		return func(name string) bool {
			parts := strings.Split(name, ":")
			return len(parts) > n && partIs(parts[n], escaped)
		}
	}
	switch by {
	case byPrincipal:
		return part(2)
	case byKey:
		key := part(3)
		// What Do and Run are given is a key as a whole.
		return func(name string) bool { return key(name) || name == text }
	case byPrefix:
		return func(name string) bool { return strings.HasPrefix(name, text) }
	}
	return func(name string) bool {
		return strings.Contains(name, escaped) || strings.Contains(name, text) || idempotent.LogKey(name) == text
	}
}

// partIs reports whether a part of a name is escaped, or may be: the last part
// of an over-long name has lost its end and carries a digest instead.
func partIs(part, escaped string) bool {
	head, cut := cutDigest(part)
	if !cut {
		return part == escaped
	}
	return head != "" && strings.HasPrefix(escaped, head)
}

// cutDigest takes the digest off a name, or off its last part, that was too
// long. Another # is one of a key that is no request's: what [idempotent.Do] is
// given is any text.
func cutDigest(text string) (head string, cut bool) {
	head, digest, cut := strings.Cut(text, "#")
	if _, err := hex.DecodeString(digest); !cut || err != nil || len(digest) != hex.EncodedLen(sha256.Size) {
		return text, false
	}
	return head, true
}

// shortName is the length below which a name is not looked for in texts: it
// would be found inside of words.
const shortName = 8

// withoutName returns the text of a store's error, in which name, should the
// store have quoted it, is replaced by what logs may show.
func withoutName(name string, err error) string {
	text := err.Error()
	if len(name) < shortName {
		return text
	}
	quoted := strconv.Quote(name)
	return strings.NewReplacer(name, logName(name), quoted[1:len(quoted)-1], logName(name)).Replace(text)
}

func logName(name string) string {
	if name == "" {
		return ""
	}
	return idempotent.LogKey(name)
}

// encodeText makes any text, also one with bytes that forms would change, fit
// for links and hidden fields.
func encodeText(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

func decodeText(s string) (string, bool) {
	text, err := base64.RawURLEncoding.DecodeString(s)
	return string(text), err == nil
}
