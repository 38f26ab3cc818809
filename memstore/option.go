package memstore

import (
	"fmt"
	"log/slog"
	"reflect"
	"time"

	"github.com/idempotent-go/idempotent"
)

// Defaults of the options.
const (
	DefaultMaxEntries    = 10_000
	DefaultMaxBytes      = 256 << 20
	DefaultSweepInterval = time.Minute
)

// Option sets one thing of a store. An impossible value panics at once.
type Option func(*config)

type config struct {
	maxEntries    int
	maxBytes      int64
	maxAge        time.Duration
	minAge        time.Duration
	sweepInterval time.Duration
	logger        *slog.Logger
	observer      idempotent.Observer
	snapshot      string
}

func newConfig(opts []Option) config {
	c := config{
		maxEntries:    DefaultMaxEntries,
		maxBytes:      DefaultMaxBytes,
		maxAge:        time.Duration(forever),
		sweepInterval: DefaultSweepInterval,
		logger:        slog.Default(),
	}
	for _, o := range opts {
		o(&c)
	}
	if c.minAge > c.maxAge {
		panic(fmt.Sprintf("memstore: WithMinAge(%v) is more than WithMaxAge(%v): entries would have to stay and to go", c.minAge, c.maxAge))
	}
	return c
}

// WithMaxEntries bounds the number of entries; the default is
// [DefaultMaxEntries]. Above it the oldest tenth of the finished entries is
// forgotten, by the next sweep, or by a claim that finds the bound exceeded by
// more than a tenth. Nothing is allocated in advance, so that math.MaxInt
// means that there is no bound. It panics if n is not positive.
func WithMaxEntries(n int) Option {
	if n < 1 {
		panic(fmt.Sprintf("memstore: WithMaxEntries(%d): the bound must be positive", n))
	}
	return func(c *config) { c.maxEntries = n }
}

// WithMaxBytes bounds the bytes of keys, owners, fingerprints, traces and
// results together; the default is [DefaultMaxBytes]. Above it old finished
// entries are forgotten by the claim or the completion that exceeds it. The
// store's own overhead, some 250 bytes an entry, comes on top. It panics if n
// is not positive.
func WithMaxBytes(n int64) Option {
	if n < 1 {
		panic(fmt.Sprintf("memstore: WithMaxBytes(%d): the bound must be positive", n))
	}
	return func(c *config) { c.maxBytes = n }
}

// WithMaxAge caps the retention of finished entries, whatever retention they
// are recorded with. There is no cap by default. It panics if d is below
// [idempotent.MinDuration].
func WithMaxAge(d time.Duration) Option {
	if d < idempotent.MinDuration {
		panic(fmt.Sprintf("memstore: WithMaxAge(%v): it must be at least %v", d, idempotent.MinDuration))
	}
	return func(c *config) { c.maxAge = min(d, time.Duration(forever)) }
}

// WithMinAge protects finished entries younger than d from eviction. Where
// only such entries could go, claims are refused with [idempotent.ErrFull]
// instead. The default is 0: none is protected. It panics if d is negative, and
// [New] does if d is more than a [WithMaxAge].
func WithMinAge(d time.Duration) Option {
	if d < 0 {
		panic(fmt.Sprintf("memstore: WithMinAge(%v): it must not be negative", d))
	}
	return func(c *config) { c.minAge = min(d, time.Duration(forever)) }
}

// WithSweepInterval sets how often the store sweeps in the background; the
// default is [DefaultSweepInterval]. 0 turns the background off: the store
// starts no goroutine, reads the clock for every answer, and removes what is
// past its time only where a call meets it, where room is needed, or in
// [Store.Sweep]. It panics on other values below [idempotent.MinDuration].
func WithSweepInterval(d time.Duration) Option {
	if d != 0 && d < idempotent.MinDuration {
		panic(fmt.Sprintf("memstore: WithSweepInterval(%v): it must be 0 (no background) or at least %v", d, idempotent.MinDuration))
	}
	return func(c *config) { c.sweepInterval = d }
}

// WithLogger sets where the store warns of abandoned claims and of entries
// evicted early; the default is the slog.Default of the moment [New] is
// called. It panics on nil; a logger over slog.DiscardHandler is silent.
func WithLogger(l *slog.Logger) Option {
	if l == nil {
		panic("memstore: WithLogger: the logger is nil")
	}
	return func(c *config) { c.logger = l }
}

// WithObserver sets who is told of abandoned claims
// ([idempotent.EventAbandoned]) and of entries evicted early
// ([idempotent.EventEvicted]), one call each. nil, the default, is nobody.
func WithObserver(o idempotent.Observer) Option {
	if v := reflect.ValueOf(o); v.IsValid() && (v.Kind() == reflect.Pointer || v.Kind() == reflect.Func) && v.IsNil() {
		o = nil // not a panic at the first sweep
	}
	return func(c *config) { c.observer = o }
}

// WithSnapshot keeps what the store holds in a file across an orderly restart.
// [Store.Close] writes it: finished entries, and claims that still run, which
// are abandoned from then on. [Open] reads it, and what is left of a retention or
// a Keep has run on meanwhile, by the wall clock. The default is no file.
//
// A file that does not exist is a first start. Any other that cannot be read is
// an error, and is left alone: of [Open], or of every call of a store made by
// [New]. It matches [idempotent.ErrCorrupt] where the file is damaged, and
// [idempotent.ErrNewerFormat] where a newer release wrote it. Nobody but an
// operator should decide to start with nothing, by moving the file away.
//
// A process that dies without Close leaves the file as it was: what came after
// is forgotten, and the next start logs a warning. The file is replaced as a
// whole, has mode 0600, and holds keys and results in the clear. A link is
// followed, and a relative path is one from the directory at the time of [Open].
// Next to the file are one that ends in .lock, which stays, and one in .tmp while
// it is written. One store at a time has it: the next one is refused until Close
// has returned or the process has ended (where the system has no flock, as on
// Windows, it is not). It panics on an empty path.
func WithSnapshot(path string) Option {
	if path == "" {
		panic("memstore: WithSnapshot: the path is empty")
	}
	return func(c *config) { c.snapshot = path }
}
