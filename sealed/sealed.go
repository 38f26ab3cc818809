package sealed

import (
	"context"
	"time"

	"github.com/idempotent-go/idempotent"
)

// New returns a store that keeps everything in inner, and results sealed. It
// keeps the contract of [idempotent.Store] as far as inner does, and is safe
// for concurrent use. Sealing and opening take processor time and never block.
//
// It is a [idempotent.Waiter], a [idempotent.Pinger], a [idempotent.Deleter] and
// an [idempotent.Lister] as far as inner is, and a [idempotent.Sweeper] where
// inner is one. List looks at no result: one that cannot be opened is not among
// the corrupt keys of a page. Inner stays the caller's to close. New panics on a
// nil store and on the zero Keys.
//
// Where a result cannot be opened, Load, Claim and Wait return
// [idempotent.ErrCorrupt], or [idempotent.ErrNewerFormat] where a newer release
// sealed it; the text says why.
func New(inner idempotent.Store, keys Keys, opts ...Option) idempotent.Store {
	if inner == nil || keys.ring == nil {
		panic("sealed: New takes a store and the result of NewKeys")
	}
	s := &store{inner: inner, keys: keys.ring, zstd: newCompressor(maxResult)}
	for _, opt := range opts {
		opt(s)
	}
	if w, ok := inner.(idempotent.Sweeper); ok {
		return sweeper{s, w}
	}
	return s
}

type store struct {
	inner idempotent.Store
	keys  *ring
	zstd  compressor
	plain bool // results that are not sealed are answered
}

// sweeper is a store whose inner one does not forget by itself: a janitor
// can be given either.
type sweeper struct {
	*store
	idempotent.Sweeper
}

var (
	_ idempotent.Store     = (*store)(nil)
	_ idempotent.Waiter    = (*store)(nil)
	_ idempotent.Pinger    = (*store)(nil)
	_ idempotent.Deleter   = (*store)(nil)
	_ idempotent.Lister    = (*store)(nil)
	_ idempotent.Composite = (*store)(nil)
	_ idempotent.Sweeper   = sweeper{}
)

func (s *store) Load(ctx context.Context, key string) (idempotent.Entry, bool, error) {
	e, found, err := s.inner.Load(ctx, key)
	return s.opened(e, found, err)
}

func (s *store) Wait(ctx context.Context, key string) (idempotent.Entry, bool, error) {
	e, found, err := idempotent.Wait(ctx, s.inner, key)
	return s.opened(e, found, err)
}

func (s *store) Claim(ctx context.Context, key string, c idempotent.Claim) (idempotent.Entry, bool, error) {
	e, claimed, err := s.inner.Claim(ctx, key, c)
	return s.opened(e, claimed, err)
}

func (s *store) Complete(ctx context.Context, key, owner string, o idempotent.Outcome) error {
	result, err := s.seal(key, owner, o)
	if err != nil {
		return err
	}
	o.Result = result
	return s.inner.Complete(ctx, key, owner, o)
}

func (s *store) Renew(ctx context.Context, key, owner string, lease time.Duration) error {
	return s.inner.Renew(ctx, key, owner, lease)
}

func (s *store) Release(ctx context.Context, key, owner string) error {
	return s.inner.Release(ctx, key, owner)
}

func (s *store) Ping(ctx context.Context) error { return idempotent.Ping(ctx, s.inner) }

func (s *store) Delete(ctx context.Context, key string) error {
	return idempotent.Delete(ctx, s.inner, key)
}

func (s *store) Stores() []idempotent.Store { return []idempotent.Store{s.inner} }

func (s *store) List(ctx context.Context, q idempotent.ListQuery) (idempotent.Page, error) {
	return idempotent.List(ctx, s.inner, q)
}

// opened is an answer of inner with its result opened. A result that cannot be
// is no answer.
func (s *store) opened(e idempotent.Entry, ok bool, err error) (idempotent.Entry, bool, error) {
	if err != nil {
		return e, ok, err
	}
	if e.Result, err = s.open(e); err != nil {
		return idempotent.Entry{}, false, err
	}
	return e, ok, nil
}
