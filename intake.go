package idempotent

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	keyErrFunc   keyError = "The key could not be found in the request."
	keyErrPolicy keyError = "The key does not have the form that this operation asks for."
)

// intake checks a request in a fixed order, so that nothing is read that a
// refusal does not need: field lines, key, principal, body. Only a key
// function has the principal checked and the body read before the key.
func (x *exchange) intake() (refusal *problem) {
	r := x.r
	x.call.trace = cleanTrace(x.trace(r))
	var key, principal string
	if x.keyFunc == nil {
		if key, x.unkeyed, refusal = x.headerKey(r); refusal != nil || x.unkeyed {
			return refusal
		}
	}
	if principal, refusal = x.principalOf(r); refusal != nil {
		return refusal
	}
	body, refusal := x.hold()
	if refusal != nil {
		return refusal
	}
	if x.body.held {
		// The functions of users may read it.
		defer func(original io.ReadCloser) {
			r.Body = original
			x.body.rewind()
		}(r.Body)
		r.Body = &x.body
	}
	if x.keyFunc != nil {
		if key, x.unkeyed, refusal = x.funcKey(r, body); refusal != nil || x.unkeyed {
			return refusal
		}
	}
	x.key = key
	method, path := r.Method, requestPath(r)
	scopeMethod, scopePath := "", ""
	if x.principalScope {
		scopeMethod, scopePath, method, path = method, path, "", ""
	}
	// One text holds name, fingerprint and owner: they are kept together.
	b := appendStoreKey(make([]byte, 0, keyMaxName+fingerprintMaxTag+32+ownerBytes), method, path, principal, key)
	nameEnd := len(b)
	b, err := appendFingerprint(b, r, body, x.fingerprint, scopeMethod, scopePath)
	if err != nil {
		x.note(r.Context(), slog.LevelDebug, "the body has no fingerprint", err)
		return &problemBodyUnreadable
	}
	fingerprintEnd := len(b)
	text := string(appendOwner(b))
	x.name, x.call.fingerprint, x.call.owner = text[:nameEnd], text[nameEnd:fingerprintEnd], text[fingerprintEnd:]
	return nil
}

func (h *handler) headerKey(r *http.Request) (key string, unkeyed bool, refusal *problem) {
	key, present, err := headerKey(r.Header, h.headers)
	switch {
	case err != nil:
		return "", false, invalidKey(err)
	case !present && h.optional:
		return "", true, nil
	case !present:
		return "", false, &problemKeyMissing
	}
	return key, false, h.checkKey(key)
}

func (h *handler) funcKey(r *http.Request, body []byte) (key string, unkeyed bool, refusal *problem) {
	text, err := h.keyFunc(r, body)
	switch {
	case err != nil:
		h.note(r.Context(), slog.LevelDebug, "the key function failed", err)
		return "", false, invalidKey(keyErrFunc)
	case text == "" && h.optional:
		return "", true, nil
	case text == "":
		return "", false, &problemKeyMissing
	}
	if key, err = ParseKey([]string{text}); err != nil {
		return "", false, invalidKey(err)
	}
	return key, false, h.checkKey(key)
}

func (h *handler) checkKey(key string) *problem {
	if h.keyPolicy == nil {
		return nil
	}
	err := h.keyPolicy(key)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrKeyExpired):
		return &problemKeyExpired
	}
	return invalidKey(keyErrPolicy)
}

// invalidKey says what is wrong with a key; err is a keyError.
func invalidKey(err error) *problem {
	p := problemKeyInvalid
	p.detail = err.Error() + " Nothing was done."
	return &p
}

func (h *handler) principalOf(r *http.Request) (string, *problem) {
	principal, err := h.principal(r)
	switch {
	case errors.Is(err, ErrUnauthenticated), err == nil && principal == "":
		return "", &problemUnauthenticated
	case err != nil:
		h.note(r.Context(), slog.LevelError, "the principal function failed", err)
		return "", &problemInternal
	}
	return principal, nil
}

// hold reads the body, up to the limit, and keeps it for the handler.
func (x *exchange) hold() ([]byte, *problem) {
	r := x.r
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	if r.ContentLength > x.maxBody {
		// Refused unread: with "Expect: 100-continue" it is never sent.
		x.w.Header().Set("Connection", "close")
		return nil, &problemBodyTooLarge
	}
	content, err := readBody(x.body.room[:0], r.Body, r.ContentLength, x.maxBody)
	switch {
	case int64(len(content)) > x.maxBody, isTooLarge(err):
		x.w.Header().Set("Connection", "close")
		return nil, &problemBodyTooLarge
	case err == nil && int64(len(content)) < r.ContentLength:
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		x.note(r.Context(), slog.LevelDebug, "the body could not be read", err)
		return nil, &problemBodyUnreadable
	}
	x.body.hold(content, r.Body)
	return content, nil
}

// isTooLarge reports whether a layer outside has a limit of its own.
func isTooLarge(err error) bool {
	if err == nil {
		return false
	}
	var e *http.MaxBytesError
	return errors.As(err, &e)
}

// readBody reads body to its end, or until there is more than most, into
// content, which is empty, as long as it has room. What a client announces, -1
// for nothing, costs memory only up to a bound.
func readBody(content []byte, body io.Reader, announced, most int64) ([]byte, error) {
	const bound = 64 << 10
	size := int64(512)
	if announced >= 0 {
		size = min(announced, bound) + 1 // one more, to see the end
	}
	if size > int64(cap(content)) {
		content = make([]byte, 0, size)
	}
	for {
		room := content[len(content):cap(content)]
		if left := most - int64(len(content)); int64(len(room)) > left {
			room = room[:left+1]
		}
		n, err := body.Read(room)
		content = content[:len(content)+n]
		switch {
		case err == io.EOF:
			return content, nil
		case err != nil, int64(len(content)) > most:
			return content, err
		case len(content) == cap(content):
			content = slices.Grow(content, len(content))
		}
	}
}

// heldBody is a request body that has been read already.
type heldBody struct {
	held     bool // there is one
	content  bytes.Reader
	original io.Closer // nil once it has been closed
	closed   bool
	room     [256]byte // of a small one
}

func (b *heldBody) hold(content []byte, original io.Closer) {
	b.held, b.original = true, original
	b.content.Reset(content)
}

func (b *heldBody) Read(p []byte) (int, error) {
	if b.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	return b.content.Read(p)
}

func (b *heldBody) Close() error {
	b.closed = true
	original := b.original
	if original == nil {
		return nil
	}
	b.original = nil
	return original.Close()
}

// rewind lets the handler read the body from its start, whatever the key and
// fingerprint functions have read of it, as by Request.FormValue.
func (b *heldBody) rewind() {
	_, _ = b.content.Seek(0, io.SeekStart) // the start is always there
	b.closed = false
}

// pass has the handler run without a claim.
func (x *exchange) pass() {
	if !x.body.held {
		x.next.ServeHTTP(x.w, x.r)
		return
	}
	r := *x.r
	r.Body = &x.body
	x.next.ServeHTTP(x.w, &r)
	// For the layers outside, and net/http removes the files of this form.
	x.r.Pattern, x.r.MultipartForm = r.Pattern, r.MultipartForm
}

// waitOf is how long a duplicate may wait, and whether its client asked for
// that: "Prefer: wait=N" (RFC 7240) goes before the setting.
func (h *handler) waitOf(r *http.Request) (wait time.Duration, preferred bool) {
	seconds, ok := preferredWait(r.Header["Prefer"])
	if !ok {
		return h.wait, false
	}
	if most := int64(h.maxWait / time.Second); seconds > most {
		return h.maxWait, true
	}
	return time.Duration(seconds) * time.Second, true
}

// preferredWait reads the wait preference; one whose value is no number of
// seconds is ignored, as unknown preferences are.
func preferredWait(lines []string) (seconds int64, ok bool) {
	value, ok := preference(lines, "wait")
	if !ok {
		return 0, false
	}
	seconds, err := strconv.ParseInt(value, 10, 64)
	if errors.Is(err, strconv.ErrRange) && seconds > 0 {
		err = nil // a very long wait is a wait all the same
	}
	if err != nil || seconds < 0 {
		return 0, false
	}
	return seconds, true
}

// preference finds the first preference of that name in all field lines.
func preference(lines []string, name string) (value string, ok bool) {
	for _, line := range lines {
		for item := range strings.SplitSeq(line, ",") {
			item, _, _ = strings.Cut(item, ";")
			this, value, _ := strings.Cut(item, "=")
			if strings.EqualFold(strings.TrimSpace(this), name) {
				return strings.Trim(strings.TrimSpace(value), `"`), true
			}
		}
	}
	return "", false
}

// waitPreference is what is said of a wait that was granted.
func waitPreference(wait time.Duration) string {
	return "wait=" + strconv.FormatInt(int64(wait/time.Second), 10)
}

// requestTrace is where a correlation id comes from by default.
func requestTrace(r *http.Request) string {
	return cmp.Or(firstLine(r.Header, "X-Request-Id"), firstLine(r.Header, "Traceparent"))
}

// firstLine is h.Get for a name in canonical form, which Get would make first.
func firstLine(h http.Header, name string) string {
	if lines := h[name]; len(lines) > 0 {
		return lines[0]
	}
	return ""
}

// cleanTrace keeps a correlation id that can be logged and sent, and drops any
// other one.
func cleanTrace(trace string) string {
	const most = 255
	if len(trace) > most {
		return ""
	}
	for i := range len(trace) {
		if trace[i] < ' ' || trace[i] > '~' {
			return ""
		}
	}
	return trace
}
