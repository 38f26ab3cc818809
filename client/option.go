package client

import (
	"fmt"
	"net/url"
	"time"
)

// The defaults of a [Transport].
const (
	DefaultRetries        = 3 // beside the first attempt
	DefaultBackOff        = 100 * time.Millisecond
	DefaultMaxBackOff     = 10 * time.Second
	DefaultAttemptTimeout = 10 * time.Second
	DefaultTotalTimeout   = time.Minute
)

// Option changes a setting of [New]. The zero Option changes nothing.
type Option struct {
	apply func(*Transport)
}

// WithRetries sets how often a request is sent again at most; 3 by default, 0
// for never. It panics below zero.
func WithRetries(n int) Option {
	if n < 0 {
		panic(fmt.Sprintf("client: WithRetries: the number is %d; it must not be negative", n))
	}
	return Option{func(t *Transport) { t.retries = n }}
}

// WithBackOff sets the pauses: each is a random part of first at the first
// retry, of twice as much at the next, and so on up to most; 100 ms and 10 s by
// default. A Retry-After of the server is waited for in any case. It panics
// below a millisecond and where most is below first.
func WithBackOff(first, most time.Duration) Option {
	mustBeDuration("WithBackOff", first)
	if most < first {
		panic(fmt.Sprintf("client: WithBackOff: the longest pause is %v; it must be at least %v", most, first))
	}
	return Option{func(t *Transport) { t.first, t.most = first, most }}
}

// WithAttemptTimeout bounds one attempt, the reading of its answer included;
// 10 s by default. It panics below a millisecond.
func WithAttemptTimeout(d time.Duration) Option {
	mustBeDuration("WithAttemptTimeout", d)
	return Option{func(t *Transport) { t.attempt = d }}
}

// WithTotalTimeout bounds all attempts and pauses together; one minute by
// default. It panics below a millisecond.
func WithTotalTimeout(d time.Duration) Option {
	mustBeDuration("WithTotalTimeout", d)
	return Option{func(t *Transport) { t.total = d }}
}

// WithStatusURL says where the server tells what became of a key, as by
// [idempotent.Guard.StatusHandler]. Where an answer was lost, it is asked before
// the request is sent again: a request whose first attempt still runs is not.
// The query has the header of the request, so that it comes from the same
// principal. A relative URL, such as "/operations", is taken at the host of the
// request, and an absolute one gets the same header at a host of its own. It
// panics on a text that is no URL, or has a query or a fragment.
func WithStatusURL(base string) Option {
	u, err := url.Parse(base)
	if err != nil || u.Path == "" && u.Host == "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		panic(fmt.Sprintf("client: WithStatusURL: %q is not a URL without query and fragment", base))
	}
	return Option{func(t *Transport) { t.statusURL = u }}
}

// WithPrincipalScope says that the server keeps keys per principal, as by
// [idempotent.WithPrincipalScope]: status queries then name the key alone.
func WithPrincipalScope() Option {
	return Option{func(t *Transport) { t.principalScope = true }}
}

// WithRetryRefusals also sends again what was refused with 429, or with 503 and
// a Retry-After, which say that nothing was done. By default these are returned
// like any other answer. Where retries or time end, the last one is returned.
func WithRetryRefusals() Option {
	return Option{func(t *Transport) { t.refusals = true }}
}

func mustBeDuration(name string, d time.Duration) {
	if d < time.Millisecond {
		panic(fmt.Sprintf("client: %s: the duration is %v; it must be at least %v", name, d, time.Millisecond))
	}
}
