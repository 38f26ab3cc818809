package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"

	"github.com/idempotent-go/idempotent"
)

// MaxResult is the longest answer that [Do] reads, in bytes.
const MaxResult = 10 << 20

// Do sends in as JSON and returns the answer, decoded from JSON; an in of nil
// sends no body, and an empty answer is the zero value. c should have a
// [Transport] of this package: it retries. Without one, Do sends the key all the
// same, once.
//
// An answer other than 2xx is an [*AnswerError]. Where no answer was to be had
// the error is an [*UnknownError], which carries the key. A 2xx that cannot be
// read matches [idempotent.ErrResultUnavailable]: the operation has happened.
// Any other error means that nothing was sent. Do blocks until then, at most as
// long as the Transport and ctx allow.
func Do[T any](ctx context.Context, c *http.Client, method, url string, in any) (out T, err error) {
	r, err := newRequest(ctx, method, url, in)
	if err != nil {
		return out, err
	}
	k, err := keyOf(r)
	if err != nil {
		return out, err
	}
	if k.key != "" {
		// Here, so that it is known whatever the client does.
		r.Header[k.field] = []string{k.line}
	}
	sent := &noted{base: c.Transport}
	noting := *c
	noting.Transport = sent
	res, err := noting.Do(r)
	if err != nil {
		var unknown *UnknownError
		switch {
		case errors.As(err, &unknown):
			return out, unknown
		case k.key != "" && sent.attempts > 0:
			return out, &UnknownError{Key: k.key, Attempts: sent.attempts, Err: err}
		}
		return out, err
	}
	defer res.Body.Close()
	content, err := io.ReadAll(io.LimitReader(res.Body, MaxResult+1))
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return out, answerError(res, k.key, content)
	}
	switch {
	case err != nil:
		err = fmt.Errorf("%w: %w", idempotent.ErrResultUnavailable, err)
	case len(content) > MaxResult:
		err = fmt.Errorf("%w: the answer is longer than %d bytes", idempotent.ErrResultUnavailable, MaxResult)
	case len(content) == 0:
	default:
		if err = json.Unmarshal(content, &out); err != nil {
			err = fmt.Errorf("%w: %w", idempotent.ErrResultUnavailable, err)
		}
	}
	return out, err
}

// noted is the transport of one operation, and counts how often its request may
// have reached a server. http.Client has errors of its own, which hide those of
// its transport or follow an answer: its Timeout, and redirects that it does not
// follow.
type noted struct {
	base     http.RoundTripper
	attempts int
}

func (n *noted) RoundTrip(r *http.Request) (*http.Response, error) {
	base := n.base
	if base == nil {
		base = http.DefaultTransport
	}
	var connected atomic.Bool
	ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	res, err := base.RoundTrip(r.WithContext(ctx))
	var unknown *UnknownError
	switch {
	case errors.As(err, &unknown):
		n.attempts += unknown.Attempts
	case err == nil || connected.Load():
		n.attempts++
	}
	return res, err
}

func newRequest(ctx context.Context, method, url string, in any) (*http.Request, error) {
	var body io.Reader
	if in != nil {
		content, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("client: the request does not encode: %w", err)
		}
		body = bytes.NewReader(content)
	}
	r, err := http.NewRequestWithContext(context.WithValue(ctx, wholeKey{}, int64(MaxResult)), method, url, body)
	if err != nil {
		return nil, err
	}
	if in != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	r.Header.Set("Accept", "application/json")
	return r, nil
}

func answerError(res *http.Response, key string, content []byte) *AnswerError {
	e := &AnswerError{Status: res.StatusCode, Key: key, Replayed: replayed(res.Header), Header: res.Header, Body: content}
	if kind, _, err := mime.ParseMediaType(res.Header.Get("Content-Type")); err == nil && kind == "application/problem+json" {
		var doc struct {
			Code, Title, Detail string
			Retryable           bool
			NewKeySafe          bool `json:"new_key_safe"`
		}
		if json.Unmarshal(content, &doc) == nil {
			e.Code, e.Title, e.Detail, e.Retryable, e.NewKeySafe = doc.Code, doc.Title, doc.Detail, doc.Retryable, doc.NewKeySafe
		}
	}
	return e
}
