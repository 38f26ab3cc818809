package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	holdMost     = 1 << 20  // bytes of an answer that are read as part of the attempt
	documentMost = 64 << 10 // bytes of a problem or status document
)

type wholeKey struct{}

// hold reads an answer as part of its attempt, so that one that breaks off is a
// lost one. Long answers and streams are left to the caller, unless the
// context asks for the whole.
func hold(ctx context.Context, res *http.Response) error {
	most := int64(holdMost)
	whole, ok := ctx.Value(wholeKey{}).(int64)
	switch {
	case ok:
		most = whole
	case res.ContentLength < 0 || res.ContentLength > most:
		return nil
	}
	return peek(res, most)
}

// peek reads up to most bytes of an answer and puts them back.
func peek(res *http.Response, most int64) error {
	content, err := io.ReadAll(io.LimitReader(res.Body, most+1))
	if err != nil {
		_ = res.Body.Close()
		return err
	}
	res.Body = &peekedBody{Reader: io.MultiReader(bytes.NewReader(content), res.Body), Closer: res.Body, content: content}
	return nil
}

type peekedBody struct {
	io.Reader
	io.Closer
	content []byte
}

// inFlight reports whether an answer is the server's own refusal because an
// earlier attempt is still running. Every other 409 is the operation's.
func inFlight(res *http.Response) bool {
	if res.StatusCode != http.StatusConflict || replayed(res.Header) {
		return false
	}
	if kind, _, err := mime.ParseMediaType(res.Header.Get("Content-Type")); err != nil || kind != "application/problem+json" {
		return false
	}
	if peek(res, documentMost) != nil {
		return false // the caller sees the same failure
	}
	var doc struct{ Code string }
	content := res.Body.(*peekedBody).content
	return json.Unmarshal(content, &doc) == nil && doc.Code == "in-flight"
}

// refused reports whether an answer says that nothing was done and that the
// same request may come again.
func refused(res *http.Response) bool {
	if replayed(res.Header) {
		return false
	}
	return res.StatusCode == http.StatusTooManyRequests ||
		res.StatusCode == http.StatusServiceUnavailable && res.Header.Get("Retry-After") != ""
}

func replayed(h http.Header) bool { return h.Get("Idempotent-Replayed") != "" }

// retryAfter is the pause that the server asks for: seconds, or a date.
func retryAfter(h http.Header) time.Duration {
	text := h.Get("Retry-After")
	switch seconds, err := strconv.ParseUint(text, 10, 31); {
	case err == nil:
		return time.Duration(seconds) * time.Second
	case errors.Is(err, strconv.ErrRange):
		return math.MaxInt64 // longer than anybody waits, and no reason to come at once
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, time.Until(at))
	}
	return 0
}

// pending asks the server whether an earlier attempt is still running. It waits
// for the end as long as the server lets it, within one attempt. No answer is
// none: the key protects the attempt that follows.
func (t *Transport) pending(ctx context.Context, r *http.Request, k keyed) (pending bool, pauseAtLeast time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, t.attempt)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, t.statusOf(r, k.key), http.NoBody)
	if err != nil {
		return false, 0
	}
	if t.statusURL.Host == "" {
		q.Host = r.Host // at the host of the request, as it calls it
	}
	q.Header = r.Header.Clone() // the principal is in it
	for _, name := range []string{
		keyField, xKeyField, "Content-Type", "Content-Length", "Content-Encoding", "Content-Digest", "Repr-Digest",
		"Expect", "Prefer", "Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If-Range",
	} {
		q.Header.Del(name)
	}
	if q.Header == nil {
		q.Header = http.Header{}
	}
	q.Header.Set("Accept", "application/json")
	if wait := int64(t.attempt / 2 / time.Second); wait > 0 {
		q.Header.Set("Prefer", "wait="+strconv.FormatInt(wait, 10))
	}
	res, err := t.transport().RoundTrip(q)
	if err != nil {
		return false, 0
	}
	defer res.Body.Close()
	var doc struct{ State string }
	err = json.NewDecoder(io.LimitReader(res.Body, documentMost)).Decode(&doc)
	if err != nil || res.StatusCode != http.StatusOK || doc.State != "pending" {
		return false, 0
	}
	return true, retryAfter(res.Header)
}

// statusOf is where the server tells of a request.
func (t *Transport) statusOf(r *http.Request, key string) string {
	query := url.Values{"key": {key}}
	if !t.principalScope {
		path := r.URL.EscapedPath()
		if path == "" {
			path = "/"
		}
		query.Set("path", path)
		if r.Method != http.MethodPost {
			query.Set("method", r.Method)
		}
	}
	u := *r.URL.ResolveReference(t.statusURL)
	u.RawQuery = query.Encode()
	return u.String()
}
