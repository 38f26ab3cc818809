package client

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Transport is an http.RoundTripper that sends an operation until its answer is
// here. It is made by [New] and safe for concurrent use.
//
// The key of a request is the first of: the one its header has; that of
// [WithKey]; that of the request which was redirected to it; inside an
// operation of a Guard, one derived from that operation with method and URL as
// the step; and a new one. GET, HEAD, OPTIONS and TRACE have no key, PUT and
// DELETE only one of the first two: without a key a request is handed on as it
// is, once. Two calls of one operation to the same URL that are both meant to
// happen are told apart by WithKey(ctx, idempotent.Derive(ctx, step)); without
// it the second is a repeat of the first.
//
// Sent again, after a pause and with the same key, is what got no answer (a
// connection that was refused, reset or cut, an attempt that timed out, an
// answer of known length up to 1 MiB that broke off) and what the server
// refused because an earlier attempt is in flight. Every other answer is
// returned at once: 4xx, 5xx, replays. A request with a body needs GetBody, as
// http.NewRequest sets it; without it there is one attempt.
//
// Where retries or time end, the error is an [*UnknownError]. So it is where
// the context ends after the first attempt has begun. What fails before
// anything can have been sent, such as a malformed URL or a certificate that is
// not trusted, is returned as it is. Use [WithTotalTimeout] in the place of
// http.Client.Timeout, whose error hides this one from all but [Do].
type Transport struct {
	base           http.RoundTripper
	retries        int
	first, most    time.Duration // pauses
	attempt, total time.Duration // time-outs
	statusURL      *url.URL      // nil: nobody is asked
	principalScope bool
	refusals       bool
}

var _ http.RoundTripper = (*Transport)(nil)

// New returns a Transport that sends through base; nil is
// http.DefaultTransport. A base that adds credentials does so for each attempt,
// so that a token may be refreshed in between.
func New(base http.RoundTripper, opts ...Option) *Transport {
	t := &Transport{
		base: base, retries: DefaultRetries, first: DefaultBackOff, most: DefaultMaxBackOff,
		attempt: DefaultAttemptTimeout, total: DefaultTotalTimeout,
	}
	for _, o := range opts {
		if o.apply != nil {
			o.apply(t)
		}
	}
	return t
}

// transport is the base, looked up late as http.Client does.
func (t *Transport) transport() http.RoundTripper {
	if t.base == nil {
		return http.DefaultTransport
	}
	return t.base
}

// CloseIdleConnections closes those of the base, if it can.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.transport().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// RoundTrip sends r, several times if it must.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL == nil {
		return t.transport().RoundTrip(r) // which says what is wrong
	}
	k, err := keyOf(r)
	if err == nil && k.key != "" {
		err = r.Context().Err() // nothing is sent for somebody who has left
	}
	switch {
	case err != nil:
		closeBody(r)
		return nil, err
	case k.key == "":
		return t.transport().RoundTrip(r)
	}
	ctx, cancel := context.WithTimeout(r.Context(), t.total)
	res, err := t.operate(ctx, r, k)
	if err != nil {
		cancel()
		return nil, err
	}
	res.Body = &endBody{res.Body, cancel}
	return res, nil
}

// operate is the life of one operation.
func (t *Transport) operate(ctx context.Context, r *http.Request, k keyed) (*http.Response, error) {
	// Half the interval, and up to twice that: full jitter.
	pauses := &backoff.ExponentialBackOff{
		InitialInterval: max(1, t.first/2), RandomizationFactor: 1, Multiplier: 2, MaxInterval: max(1, t.most/2),
	}
	rewinds := r.Body == nil || r.Body == http.NoBody || r.GetBody != nil
	sent := 0
	lost := false                  // an answer was: its attempt may still run
	var held *http.Response        // a refusal, returned if nothing better comes
	var last error                 // why there is no answer yet
	var pauseAtLeast time.Duration // as the server asks
	for n := 0; ; n++ {
		pauseAtLeast = 0
		pending := false
		if lost && t.statusURL != nil {
			pending, pauseAtLeast = t.pending(ctx, r, k)
		}
		if pending {
			last = errInFlight
		} else {
			sent++
			a := t.send(ctx, r, k, sent)
			switch {
			case a.err != nil && !a.network && sent == 1:
				return nil, a.err
			case a.err != nil:
				last, lost = a.err, lost || a.reached
				if !a.network {
					return nil, &UnknownError{Key: k.key, Attempts: sent, Err: last}
				}
			case inFlight(a.res):
				last = errInFlight
				pauseAtLeast = retryAfter(a.res.Header)
				_ = a.res.Body.Close()
			case t.refusals && refused(a.res):
				held = a.res
				pauseAtLeast = retryAfter(a.res.Header)
			default:
				return a.res, nil
			}
		}
		if n >= t.retries || !rewinds || !pause(ctx, max(pauses.NextBackOff(), pauseAtLeast)) {
			if held != nil {
				return held, nil
			}
			if err := ctx.Err(); err != nil && !errors.Is(last, err) {
				last = errors.Join(last, err)
			}
			return nil, &UnknownError{Key: k.key, Attempts: sent, Err: last}
		}
		if held != nil {
			_ = held.Body.Close()
			held = nil
		}
	}
}

// pause waits for d; false where the context ends before that or would.
func pause(ctx context.Context, d time.Duration) bool {
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= d || ctx.Err() != nil {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// attempted is what came of one attempt.
type attempted struct {
	res     *http.Response
	err     error
	network bool // err is a failure of the network: worth another attempt
	reached bool // the server may have got the request
}

// send makes one attempt, under its own deadline.
func (t *Transport) send(ctx context.Context, r *http.Request, k keyed, n int) (a attempted) {
	ctx, cancel := context.WithTimeout(ctx, t.attempt)
	defer func() {
		if a.err != nil {
			cancel()
		}
	}()
	var connected atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	out := r.Clone(traced)
	if out.Header == nil {
		out.Header = make(http.Header)
	}
	out.Header[k.field] = []string{k.line}
	if n > 1 && r.GetBody != nil {
		body, err := r.GetBody()
		if err != nil {
			return attempted{err: err}
		}
		out.Body = body
	}
	res, err := t.transport().RoundTrip(out)
	if err == nil {
		err = hold(ctx, res)
		connected.Store(true)
	}
	if err != nil {
		timeout := ctx.Err() != nil
		return attempted{
			err: err, network: connected.Load() || timeout || isNetwork(err), reached: connected.Load() || timeout,
		}
	}
	res.Body = &endBody{res.Body, cancel}
	return attempted{res: res}
}

// isNetwork reports whether err is a failure of the network. What else fails
// without a connection fails again.
func isNetwork(err error) bool {
	var n net.Error
	return errors.As(err, &n) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

// endBody ends an attempt with its answer.
type endBody struct {
	io.ReadCloser
	end func()
}

func (b *endBody) Close() error {
	err := b.ReadCloser.Close()
	b.end()
	return err
}

// Read frees what the attempt holds at the end of the answer, for callers that
// forget to close it.
func (b *endBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.end()
	}
	return n, err
}
