package idempotent

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	keyErrFunc   keyError = "The key could not be found in the request."
	keyErrPolicy keyError = "The key does not have the form that this operation asks for."
)

// intake is a request that may be run.
type intake struct {
	request     *http.Request
	unkeyed     bool
	name        string // in the store
	fingerprint string
	trace       string
}

// intake checks a request in a fixed order, so that nothing is read that a
// refusal does not need: field lines, key, principal, body. Only a key
// function has the principal checked and the body read before the key.
func (h *handler) intake(w http.ResponseWriter, r *http.Request) (in intake, refusal *problem) {
	in = intake{request: r, trace: cleanTrace(h.trace(r))}
	var key, principal string
	var body []byte
	if h.keyFunc == nil {
		if key, in.unkeyed, refusal = h.headerKey(r); refusal != nil || in.unkeyed {
			return in, refusal
		}
	}
	if principal, refusal = h.principalOf(r); refusal != nil {
		return in, refusal
	}
	if in.request, body, refusal = h.hold(w, r); refusal != nil {
		return in, refusal
	}
	defer rewindBody(in.request)
	if h.keyFunc != nil {
		if key, in.unkeyed, refusal = h.funcKey(in.request, body); refusal != nil || in.unkeyed {
			return in, refusal
		}
	}
	method, path := r.Method, requestPath(r)
	scopeMethod, scopePath := "", ""
	if h.principalScope {
		scopeMethod, scopePath, method, path = method, path, "", ""
	}
	fingerprint, err := requestFingerprint(in.request, body, h.fingerprint, scopeMethod, scopePath)
	if err != nil {
		h.note(r.Context(), slog.LevelDebug, "the body has no fingerprint", err)
		return in, &problemBodyUnreadable
	}
	in.fingerprint = fingerprint
	in.name = StoreKey(method, path, principal, key)
	return in, nil
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
	if key, err = parseKey([]string{text}); err != nil {
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

// hold reads the body, up to the limit, and returns a request whose handler
// reads the same bytes.
func (h *handler) hold(w http.ResponseWriter, r *http.Request) (*http.Request, []byte, *problem) {
	if r.Body == nil || r.Body == http.NoBody {
		return r, nil, nil
	}
	if r.ContentLength > h.maxBody {
		// Refused unread: with "Expect: 100-continue" it is never sent.
		w.Header().Set("Connection", "close")
		return r, nil, &problemBodyTooLarge
	}
	var buffer bytes.Buffer
	if r.ContentLength > 0 {
		// What a client announces costs memory only up to a bound.
		buffer.Grow(int(min(r.ContentLength, 64<<10)) + bytes.MinRead)
	}
	_, err := buffer.ReadFrom(http.MaxBytesReader(w, r.Body, h.maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		w.Header().Set("Connection", "close")
		return r, nil, &problemBodyTooLarge
	case err == nil && int64(buffer.Len()) < r.ContentLength:
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		h.note(r.Context(), slog.LevelDebug, "the body could not be read", err)
		return r, nil, &problemBodyUnreadable
	}
	held := new(http.Request)
	*held = *r
	body := &heldBody{original: r.Body}
	body.content.Reset(buffer.Bytes())
	held.Body = body
	return held, buffer.Bytes(), nil
}

// heldBody is a request body that has been read already.
type heldBody struct {
	content  bytes.Reader
	original io.Closer // nil once it has been closed
	closed   bool
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

// rewindBody lets the handler read the body from its start, whatever the key
// and fingerprint functions have read of it, as by Request.FormValue.
func rewindBody(r *http.Request) {
	if b, ok := r.Body.(*heldBody); ok {
		_, _ = b.content.Seek(0, io.SeekStart) // the start is always there
		b.closed = false
	}
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

// preferredWait finds the first wait preference of all field lines; one whose
// value is no number of seconds is ignored, as unknown preferences are.
func preferredWait(lines []string) (seconds int64, ok bool) {
	for _, line := range lines {
		for preference := range strings.SplitSeq(line, ",") {
			preference, _, _ = strings.Cut(preference, ";")
			name, value, _ := strings.Cut(preference, "=")
			if !strings.EqualFold(strings.TrimSpace(name), "wait") {
				continue
			}
			value = strings.Trim(strings.TrimSpace(value), `"`)
			seconds, err := strconv.ParseInt(value, 10, 64)
			if errors.Is(err, strconv.ErrRange) && seconds > 0 {
				err = nil // a very long wait is a wait all the same
			}
			if err == nil && seconds >= 0 {
				return seconds, true
			}
			return 0, false
		}
	}
	return 0, false
}

// requestTrace is where a correlation id comes from by default.
func requestTrace(r *http.Request) string {
	if id := r.Header.Get("X-Request-Id"); id != "" {
		return id
	}
	return r.Header.Get("Traceparent")
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
