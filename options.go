package idempotent

import (
	"fmt"
	"log/slog"
	"time"
)

// The defaults of a [Guard].
const (
	DefaultLease            = 30 * time.Second
	DefaultSuccessRetention = 24 * time.Hour
	DefaultFailureRetention = 2 * time.Hour
	DefaultStoreTimeout     = 2 * time.Second
)

// settings are what one guard may do differently from another one over the
// same store.
type settings struct {
	lease            time.Duration
	successRetention time.Duration // also of unknown outcomes and of abandoned claims
	failureRetention time.Duration
	storeTimeout     time.Duration
	takeOver         bool
}

// Option changes a setting of a [Guard]. The With functions make options; the
// zero Option changes nothing.
type Option struct {
	name  string
	apply func(*Guard)
	alone bool // belongs to New, since all guards over one store share it
}

// WithLease sets how long a claim stands without renewal; 30 s by default. It
// is renewed at a third of that while the operation runs, so it bounds how
// long a key stays in flight after its process has died, not how long an
// operation may take. It must be at least a millisecond.
func WithLease(d time.Duration) Option {
	return durationOption("WithLease", d, func(s *settings) *time.Duration { return &s.lease })
}

// WithSuccessRetention sets how long successes are answered to repeats,
// counted from completion; 24 h by default. Unknown outcomes and abandoned
// claims are kept as long. It must be at least a millisecond.
func WithSuccessRetention(d time.Duration) Option {
	return durationOption("WithSuccessRetention", d, func(s *settings) *time.Duration { return &s.successRetention })
}

// WithFailureRetention sets how long definite failures are answered to
// repeats, counted from completion; 2 h by default. Afterwards the key is
// free. It must be at least a millisecond.
func WithFailureRetention(d time.Duration) Option {
	return durationOption("WithFailureRetention", d, func(s *settings) *time.Duration { return &s.failureRetention })
}

// WithStoreTimeout bounds every single call of the store; 2 s by default. It
// must be at least a millisecond. [WithCallWait] bounds a wait instead.
func WithStoreTimeout(d time.Duration) Option {
	return durationOption("WithStoreTimeout", d, func(s *settings) *time.Duration { return &s.storeTimeout })
}

// WithTakeOver lets the next call with the same key and fingerprint run the
// operation again when the owner's lease has lapsed. It is for operations that
// may be repeated: the first owner's work may have happened, callers may get
// different answers, and an unknown reading may become another owner's
// outcome. Without it an abandoned claim is answered as
// [ErrOutcomeUnknown] and never run again.
func WithTakeOver() Option {
	return Option{name: "WithTakeOver", apply: func(g *Guard) { g.takeOver = true }}
}

// WithLogger sets where the guard logs; [slog.Default], looked up at each
// line, by default. Log lines name a key by the first 16 hex digits of the
// SHA-256 of its store name. It is an option of [New] alone.
func WithLogger(l *slog.Logger) Option {
	if l == nil {
		panic("idempotent: WithLogger: the logger is nil; leave the option out for slog.Default, or use slog.DiscardHandler")
	}
	return Option{name: "WithLogger", alone: true, apply: func(g *Guard) { g.log.logger = l }}
}

// WithObserver sets who is told of every event; nil, the default, is nobody
// and costs nothing. It is an option of [New] alone.
func WithObserver(o Observer) Option {
	if isNil(o) {
		o = nil
	}
	return Option{name: "WithObserver", alone: true, apply: func(g *Guard) { g.log.observer = o }}
}

func durationOption(name string, d time.Duration, field func(*settings) *time.Duration) Option {
	mustBeDuration(name, d)
	return Option{name: name, apply: func(g *Guard) { *field(&g.settings) = d }}
}

func mustBeDuration(name string, d time.Duration) {
	if d < MinDuration {
		panic(fmt.Sprintf("idempotent: %s: the duration is %v; it must be at least %v", name, d, MinDuration))
	}
}

// CallOption changes one call of [Guard.Run], [Do] or [Guard.Do]. The zero
// CallOption changes nothing.
type CallOption struct {
	apply func(*call)
}

// call is what one call says beside its key and its operation.
type call struct {
	fingerprint string
	trace       string
	wait        time.Duration
	waiters     *waiterLimit // nil: no bound
	waited      bool         // set when it did
	detached    bool
	codec       Codec
	classify    func(error) Class

	owner    string      // of the first claim, where the caller has made it
	claiming lateContext // room for the context of the first claim
}

// claimContext returns a new context for a claim.
func (c *call) claimContext() *lateContext {
	if c.claiming.parent != nil {
		return new(lateContext) // another claim, after a wait
	}
	return &c.claiming
}

func newCall(opts []CallOption) *call {
	c := new(call)
	for _, o := range opts {
		if o.apply != nil {
			o.apply(c)
		}
	}
	return c
}

// WithCallFingerprint says what the request is, so that another one under the
// same key is refused with [ErrKeyReused]; "" by default. Calls of one key
// that give different texts, none included, are different requests.
func WithCallFingerprint(fingerprint string) CallOption {
	return CallOption{func(c *call) { c.fingerprint = fingerprint }}
}

// WithCallWait lets a duplicate of a pending key wait up to d for the outcome
// before it is answered with [*InFlightError]. Zero, the default, and negative
// durations do not wait.
func WithCallWait(d time.Duration) CallOption {
	return CallOption{func(c *call) { c.wait = d }}
}

// WithCallTrace records the caller's correlation id with the claim: duplicates
// are told it, and log lines carry it. "" by default.
func WithCallTrace(trace string) CallOption {
	return CallOption{func(c *call) { c.trace = trace }}
}

// WithCallDetached keeps the operation running when the context of the call is
// cancelled: its own context keeps values and deadline, and is cancelled
// by the deadline and by a lost claim only. The middleware uses it, so that a
// client that hangs up does not leave half an operation behind.
func WithCallDetached() CallOption {
	return CallOption{func(c *call) { c.detached = true }}
}

// WithCallCodec sets how [Do] encodes its result; encoding/json by default.
// All calls of one key must use the same codec. It panics on nil.
func WithCallCodec(codec Codec) CallOption {
	if codec == nil {
		panic("idempotent: WithCallCodec: the Codec is nil; leave the option out for encoding/json")
	}
	return CallOption{func(c *call) { c.codec = codec }}
}

// WithCallClassify sets what an error of a function under [Do] says of the
// operation. It is asked for every error that is not nil; [ClassDefault] means
// that it does not know and the default applies. What the operation itself
// said, as by [Fail], goes first. It panics on nil.
func WithCallClassify(classify func(error) Class) CallOption {
	if classify == nil {
		panic("idempotent: WithCallClassify: the function is nil; leave the option out")
	}
	return CallOption{func(c *call) { c.classify = classify }}
}
