package idempotent

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"
)

// keyError says what is wrong with a client's key and what to do about it. The
// text goes to the client as it is, so it is fixed and never carries the key,
// and has no package prefix.
type keyError string

func (e keyError) Error() string        { return string(e) }
func (e keyError) Is(target error) bool { return target == ErrInvalid }

const (
	keyErrLines    keyError = "The key is sent more than once; send it exactly once."
	keyErrConflict keyError = "Two fields carry different keys; send one of them, or the same key in both."
	keyErrEmpty    keyError = "The key is empty; send 1 to 255 characters, for example a UUID."
	keyErrLong     keyError = "The key is longer than 255 bytes; send a shorter one, for example a UUID."
	keyErrList     keyError = "The key is a list; send exactly one, and put a key that contains a comma in double quotes."
	keyErrParams   keyError = "A key without quotes cannot have parameters; put it in double quotes: whether the semicolon belongs to the key is then clear."
	keyErrByte     keyError = "The key contains a byte that is not allowed; use visible ASCII characters, and put a key with blanks or quotes in double quotes."
	keyErrString   keyError = `The quoted key is malformed; it must end with a double quote, hold ASCII from space to ~, and escape only \" and \\.`
	keyErrTrailing keyError = "The key is followed by something that is no well-formed parameter; end the field after the closing quote."
)

// maxKeyBytes is the longest key that a client may send, after unquoting.
const maxKeyBytes = 255

// keyMaxName bounds what [Key] returns: databases index texts of this length,
// and Redis keys stay readable.
const keyMaxName = 512

// keyDigest is what an over-long name ends in: '#' and SHA-256 in hex.
const keyDigest = 1 + 2*sha256.Size

// keyPlain marks the bytes that a name carries as they are. Everything else is
// escaped: the separator and '%' and '#' because they mean something here,
// braces because Redis Cluster takes the text between them for the slot, the
// rest because names end up in logs, shells and patterns.
var keyPlain = func() (plain [256]bool) {
	for _, c := range []byte("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/@+=") {
		plain[c] = true
	}
	return plain
}()

// Key joins parts into one name without ambiguity: Key("charge", orderID).
// Letters, digits and - . _ ~ / @ + = stand for themselves, every other byte
// is written as % and two upper-case hex digits, and colons separate the
// parts, so that two different lists never give the same name. A name that
// would be longer than 512 bytes is cut and ends in '#' and the SHA-256 of the
// whole.
//
// Key("") is "", and so is Key(): every store refuses an empty key, so that a
// forgotten id is an error and not a key that all share. An empty part beside
// others is kept: check ids before joining them.
func Key(parts ...string) string {
	b := make([]byte, 0, keyMaxName) // stays on the stack
	return string(appendKey(b, parts...))
}

// appendKey appends what Key returns.
func appendKey(b []byte, parts ...string) []byte {
	start := len(b)
	for i, part := range parts {
		if i > 0 {
			b = append(b, ':')
		}
		b = appendKeyPart(b, part)
	}
	if len(b)-start <= keyMaxName {
		return b
	}
	return append(b[:start], keyShorten(string(b[start:]))...)
}

// StoreKey is the name under which the middleware keeps an answer: the four
// parts joined by [Key], so that no two requests meet in one name. Use it to
// find the record of a request, with [Store.Load] or [Guard.Resolve].
//
// The path is the one that the client sent, without the query and still
// escaped. The principal is what the [PrincipalFunc] returned, the key the
// client's without its quotes. With WithPrincipalScope method and path are "".
// The host is not part of the name.
func StoreKey(method, path, principal, key string) string {
	return string(appendStoreKey(make([]byte, 0, keyMaxName), method, path, principal, key))
}

// appendStoreKey appends what StoreKey returns.
func appendStoreKey(b []byte, method, path, principal, key string) []byte {
	return appendKey(b, method, path, principal, key)
}

// ParseKey reads the client's key from all lines of its header field, or all
// values of its metadata, as the middleware does: as a String of RFC 9651,
// whose parameters say nothing, or bare. It is for code to which keys come by
// another way. What the key means is never changed by folding or normalising.
//
// Anything doubtful is an error, no line at all included: an ignored field
// would run the operation unprotected. The error matches [ErrInvalid]; its text
// says what is wrong and what to do, never carries the key, and is meant for
// the client.
func ParseKey(lines []string) (string, error) {
	// HTTP joins repeated lines with commas, and equal ones are a list too.
	if len(lines) > 1 {
		return "", keyErrLines
	}
	text := ""
	if len(lines) == 1 {
		text = strings.Trim(lines[0], " \t")
	}
	if strings.HasPrefix(text, `"`) {
		return keyQuoted(text)
	}
	return keyBare(text)
}

// KeyMaxAge returns a key policy under which a UUIDv7 older than d is
// [ErrKeyExpired]: by then its record may be gone, and running it could be a
// repeat. Use the retention, or a little less. Other keys pass, as do those
// whose time lies ahead, since clocks differ. The time in a key is the
// client's word: the policy protects honest clients that retry too late, not
// against made-up times. KeyMaxAge panics where d is below [MinDuration]. The
// policy is safe for concurrent use.
func KeyMaxAge(d time.Duration) func(key string) error {
	if d < MinDuration {
		panic(fmt.Sprintf("idempotent: KeyMaxAge: the age is %v; it must be at least %v", d, MinDuration))
	}
	return func(key string) error {
		if made, ok := keyUUIDv7Time(key); ok && time.Since(made) > d {
			return ErrKeyExpired
		}
		return nil
	}
}

// headerKey finds the client's key in h under one of names, which must be in
// canonical form. A field without a line is absent; one that is there but
// empty is an error, never a missing key.
func headerKey(h http.Header, names []string) (key string, present bool, err error) {
	for _, name := range names {
		lines := h[name]
		if len(lines) == 0 {
			continue
		}
		k, err := ParseKey(lines)
		if err != nil {
			return "", true, err
		}
		if present && k != key {
			return "", true, keyErrConflict
		}
		key, present = k, true
	}
	return key, present, nil
}

// keyBare reads a key that is sent without quotes, which the draft does not
// allow and most clients do. A semicolon is refused: taken literally,
// abc;a=1 and "abc";a=1 would be two keys, and read as a parameter, a client
// whose keys contain semicolons would see its operations merged.
func keyBare(text string) (string, error) {
	for i := range len(text) {
		switch c := text[i]; {
		case c == ',':
			return "", keyErrList
		case c == ';':
			return "", keyErrParams
		case c <= ' ' || c > '~' || c == '"':
			return "", keyErrByte
		}
	}
	return keySized(text)
}

// keyQuoted reads a String of RFC 9651 with its parameters, which say nothing
// here but must be well-formed: a field that does not parse is malformed as a
// whole.
func keyQuoted(text string) (string, error) {
	key, rest, ok := keySFString(text)
	if !ok {
		return "", keyErrString
	}
	rest, ok = keySFParameters(rest)
	rest = strings.TrimLeft(rest, " \t")
	switch {
	case strings.HasPrefix(rest, ","):
		return "", keyErrList
	case !ok || rest != "":
		return "", keyErrTrailing
	}
	return keySized(key)
}

func keySized(key string) (string, error) {
	switch {
	case key == "":
		return "", keyErrEmpty
	case len(key) > maxKeyBytes:
		return "", keyErrLong
	}
	return key, nil
}

// requestPath is the path as the client sent it, still escaped. RequestURI
// goes first because http.StripPrefix and routers rewrite the URL only: behind
// them two routes could look like one.
func requestPath(r *http.Request) string {
	path, _, _ := strings.Cut(r.RequestURI, "?")
	if !strings.HasPrefix(path, "/") { // none, absolute-form, * or authority-form
		_, rest, absolute := strings.Cut(path, "://")
		if absolute {
			_, rest, _ = strings.Cut(rest, "/")
			return "/" + rest
		}
		path = r.URL.EscapedPath()
	}
	if path == "" {
		return "/"
	}
	return path
}

// appendKeyPart appends part, escaped.
func appendKeyPart(b []byte, part string) []byte {
	const digits = "0123456789ABCDEF"
	from := 0
	for i := range len(part) {
		c := part[i]
		if keyPlain[c] {
			continue
		}
		b = append(b, part[from:i]...)
		b = append(b, '%', digits[c>>4], digits[c&15])
		from = i + 1
	}
	return append(b, part[from:]...)
}

// keyShorten cuts name and ends it in a digest of the whole. No shorter name
// contains '#', so the result meets none.
func keyShorten(name string) string {
	sum := sha256.Sum256([]byte(name))
	cut := keyMaxName - keyDigest
	// An escape is three bytes: do not leave one or two of them behind.
	if i := strings.LastIndexByte(name[:cut], '%'); i > cut-3 {
		cut = i
	}
	return name[:cut] + "#" + hex.EncodeToString(sum[:])
}

// keyUUIDv7Time reads the milliseconds that a UUIDv7 in its usual text form
// begins with.
func keyUUIDv7Time(key string) (time.Time, bool) {
	if len(key) != 36 || key[14] != '7' || !strings.Contains("89abAB", key[19:20]) {
		return time.Time{}, false
	}
	ms := int64(0)
	for i := range len(key) {
		c := key[i]
		if i == 8 || i == 13 || i == 18 || i == 23 {
			if c != '-' {
				return time.Time{}, false
			}
			continue
		}
		digit := strings.IndexByte("0123456789abcdef", c|0x20)
		if digit < 0 || c < '0' {
			return time.Time{}, false
		}
		if i < 13 {
			ms = ms<<4 | int64(digit)
		}
	}
	return time.UnixMilli(ms), true
}

// What follows parses the bits of RFC 9651 that may stand in a key's field.
// Each function takes the text from the item on and returns what is behind it.

// keySFString parses a String.
func keySFString(text string) (value, rest string, ok bool) {
	var b strings.Builder // used from the first escape on
	from := 1
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			if b.Len() == 0 {
				return text[from:i], text[i+1:], true
			}
			b.WriteString(text[from:i])
			return b.String(), text[i+1:], true
		case c == '\\':
			if i+1 == len(text) || text[i+1] != '"' && text[i+1] != '\\' {
				return "", "", false
			}
			b.WriteString(text[from:i])
			b.WriteByte(text[i+1])
			i++
			from = i + 1
		case c < ' ' || c > '~':
			return "", "", false
		}
	}
	return "", "", false
}

// keySFParameters parses any number of parameters.
func keySFParameters(text string) (rest string, ok bool) {
	for strings.HasPrefix(text, ";") {
		text = strings.TrimLeft(text[1:], " ")
		if text == "" || !keySFLower(text[0]) && text[0] != '*' {
			return text, false
		}
		text = keySFSkip(text, func(c byte) bool {
			return keySFLower(c) || keySFDigit(c) || strings.IndexByte("_-.*", c) >= 0
		})
		if strings.HasPrefix(text, "=") {
			if text, ok = keySFBareItem(text[1:]); !ok {
				return text, false
			}
		}
	}
	return text, true
}

// keySFBareItem parses the value of a parameter, of whatever type.
func keySFBareItem(text string) (rest string, ok bool) {
	if text == "" {
		return "", false
	}
	switch c := text[0]; {
	case c == '"':
		_, rest, ok = keySFString(text)
		return rest, ok
	case c == '-' || keySFDigit(c):
		rest, _, ok = keySFNumber(text)
		return rest, ok
	case c == '@':
		rest, integer, ok := keySFNumber(text[1:])
		return rest, ok && integer
	case c == '?':
		if len(text) < 2 || text[1] != '0' && text[1] != '1' {
			return text, false
		}
		return text[2:], true
	case c == ':':
		value, rest, ok := strings.Cut(text[1:], ":")
		// Parsers fill in missing padding.
		_, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(value, "="))
		return rest, ok && err == nil
	case c == '%':
		return keySFDisplayString(text)
	case c == '*' || keySFAlpha(c):
		return keySFSkip(text, func(c byte) bool {
			return keySFAlpha(c) || keySFDigit(c) || strings.IndexByte("!#$%&'*+-.^_`|~:/", c) >= 0
		}), true
	}
	return text, false
}

// keySFNumber parses an Integer of up to 15 digits, or a Decimal of up to 12
// and one to three behind the point.
func keySFNumber(text string) (rest string, integer, ok bool) {
	text = strings.TrimPrefix(text, "-")
	rest = keySFSkip(text, keySFDigit)
	whole := len(text) - len(rest)
	if !strings.HasPrefix(rest, ".") {
		return rest, true, whole >= 1 && whole <= 15
	}
	fraction := rest[1:]
	rest = keySFSkip(fraction, keySFDigit)
	places := len(fraction) - len(rest)
	return rest, false, whole >= 1 && whole <= 12 && places >= 1 && places <= 3
}

// keySFDisplayString parses a Display String: UTF-8 with lower-case escapes.
func keySFDisplayString(text string) (rest string, ok bool) {
	text, ok = strings.CutPrefix(text, `%"`)
	if !ok {
		return text, false
	}
	value, rest, ok := strings.Cut(text, `"`)
	for i := range len(value) {
		c := value[i]
		if c < ' ' || c > '~' || c == '%' && (i+2 >= len(value) || !keySFHex(value[i+1]) || !keySFHex(value[i+2])) {
			return rest, false
		}
	}
	decoded, err := url.PathUnescape(value)
	return rest, ok && err == nil && utf8.ValidString(decoded)
}

func keySFSkip(text string, in func(byte) bool) string {
	i := 0
	for i < len(text) && in(text[i]) {
		i++
	}
	return text[i:]
}

func keySFLower(c byte) bool { return c >= 'a' && c <= 'z' }
func keySFDigit(c byte) bool { return c >= '0' && c <= '9' }
func keySFAlpha(c byte) bool { return keySFLower(c | 0x20) }
func keySFHex(c byte) bool   { return keySFDigit(c) || c >= 'a' && c <= 'f' }
