package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/waitroom"
)

var (
	_ idempotent.Store   = (*Store)(nil)
	_ idempotent.Waiter  = (*Store)(nil)
	_ idempotent.Sweeper = (*Store)(nil)
	_ idempotent.Pinger  = (*Store)(nil)
	_ idempotent.Deleter = (*Store)(nil)
	_ idempotent.Lister  = (*Store)(nil)
)

// DefaultTable is the name of the table where [WithTable] says nothing else.
const DefaultTable = "idempotent_entries"

// Store is an [idempotent.Store] in a table. It is made by [New] and safe for
// concurrent use. The errors of its methods keep the driver's own error in
// their chain.
type Store struct {
	db       *sql.DB
	dialect  Dialect
	table    string
	text     statements
	listen   ListenFunc          // nil: waiters poll
	observer idempotent.Observer // nil: nobody is told
	waiters  *waitroom.Room
	closed   atomic.Bool
}

// Option changes a setting of [New].
type Option func(*Store)

// tableName is what needs no quotes anywhere.
var tableName = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]{0,47}\.)?[A-Za-z_][A-Za-z0-9_]{0,47}$`)

// WithTable sets the name of the table; the default is [DefaultTable]. Stores
// with one table share their entries. It panics unless name is made of letters,
// digits and underscores, begins with no digit and has at most 48 characters; a
// schema may come before it, with a full stop, but not for SQLite.
func WithTable(name string) Option {
	if !tableName.MatchString(name) {
		panic(fmt.Sprintf("sqlstore: WithTable: %q is no plain name of a table", name))
	}
	return func(s *Store) { s.table = name }
}

// New returns a Store on db, which stays the caller's: close the Store first,
// then the database. Nothing is sent before the first call; [Store.Migrate]
// makes the table. No goroutine is started before the first [Store.Wait]. New
// panics on a nil db and on a Dialect that is none.
//
// A call returns when its context ends, whatever the driver; what it had sent
// may still be carried out.
func New(db *sql.DB, d Dialect, opts ...Option) *Store {
	if db == nil {
		panic("sqlstore: New: the db is nil")
	}
	if !d.valid() {
		panic(fmt.Sprintf("sqlstore: New: %v is no dialect", d))
	}
	s := &Store{db: db, dialect: d, table: DefaultTable}
	for _, opt := range opts {
		opt(s)
	}
	if d == SQLite && strings.Contains(s.table, ".") {
		panic("sqlstore: New: SQLite's indexes lie in the schema main; WithTable must name none")
	}
	if s.listen != nil && d != PostgreSQL {
		panic(fmt.Sprintf("sqlstore: New: WithListen is for PostgreSQL; %v has no notifications", d))
	}
	s.text = newStatements(d, s.table)
	s.waiters = newWaiters(s)
	return s
}

// Close ends every Wait and returns when the goroutines of the Store have
// ended. The database stays open. Later calls of other methods return
// [idempotent.ErrClosed]. It may be called more than once, also concurrently,
// and always returns nil.
func (s *Store) Close() error {
	s.closed.Store(true)
	s.waiters.Close()
	return nil
}

// Ping returns nil where the database answers and has the table. It blocks
// until then or until ctx ends.
func (s *Store) Ping(ctx context.Context) error {
	_, err := do(ctx, s, "ping", func(q querier) (row, error) {
		r, _, err := s.text.read(ctx, q, "idempotent:ping")
		return r, err
	})
	return err
}

// Load returns the entry of key; see [idempotent.Store].
func (s *Store) Load(ctx context.Context, key string) (idempotent.Entry, bool, error) {
	if err := idempotent.ValidateKey(key, "any"); err != nil {
		return idempotent.Entry{}, false, err
	}
	key = strings.Clone(key) // the driver may still read it when the call has returned
	a, err := do(ctx, s, "load", func(q querier) (answer, error) {
		e, found, err := s.text.load(ctx, q, key)
		return answer{e, found}, err
	})
	return a.entry, a.ok, err
}

// Claim claims key; see [idempotent.Store]. [idempotent.ErrFull] means that
// the database's disk is full and that nothing was claimed. Where a transaction
// of somebody else's has claimed key and not ended yet, it blocks until that
// ends or ctx does; the lease runs from before that.
func (s *Store) Claim(ctx context.Context, key string, c idempotent.Claim) (idempotent.Entry, bool, error) {
	if err := idempotent.ValidateKey(key, c.Owner); err != nil {
		return idempotent.Entry{}, false, err
	}
	if err := c.Validate(); err != nil {
		return idempotent.Entry{}, false, err
	}
	key = strings.Clone(key)
	c.Owner, c.Fingerprint, c.Trace = strings.Clone(c.Owner), strings.Clone(c.Fingerprint), strings.Clone(c.Trace)
	a, err := do(ctx, s, "claim", func(q querier) (answer, error) {
		e, claimed, err := s.text.claim(ctx, q, key, c)
		return answer{e, claimed}, err
	})
	return a.entry, a.ok, err
}

// Renew starts owner's lease anew; see [idempotent.Store].
func (s *Store) Renew(ctx context.Context, key, owner string, lease time.Duration) error {
	if err := idempotent.ValidateKey(key, owner); err != nil {
		return err
	}
	if err := idempotent.ValidateDuration("lease", lease); err != nil {
		return err
	}
	key, owner = strings.Clone(key), strings.Clone(owner)
	return s.step(ctx, "renew", func(q querier) error { return s.text.renewal(ctx, q, key, owner, lease) })
}

// Complete records owner's outcome; see [idempotent.Store].
func (s *Store) Complete(ctx context.Context, key, owner string, o idempotent.Outcome) error {
	if err := idempotent.ValidateKey(key, owner); err != nil {
		return err
	}
	if err := o.Validate(); err != nil {
		return err
	}
	key, owner, o.Fingerprint = strings.Clone(key), strings.Clone(owner), strings.Clone(o.Fingerprint)
	return s.step(ctx, "complete", func(q querier) error { return s.text.completion(ctx, q, key, owner, o) })
}

// Release frees a key that owner holds; see [idempotent.Store].
func (s *Store) Release(ctx context.Context, key, owner string) error {
	if err := idempotent.ValidateKey(key, owner); err != nil {
		return err
	}
	key, owner = strings.Clone(key), strings.Clone(owner)
	return s.step(ctx, "release", func(q querier) error { return s.text.freeing(ctx, q, key, owner) })
}

// Delete removes key whatever its state, also an entry that cannot be read;
// see [idempotent.Deleter].
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := idempotent.ValidateKey(key, "any"); err != nil {
		return err
	}
	key = strings.Clone(key)
	return s.step(ctx, "delete", func(q querier) error { return s.text.removal(ctx, q, key) })
}

// answer is what Load and Claim return.
type answer struct {
	entry idempotent.Entry
	ok    bool
}

func (s *Store) step(ctx context.Context, op string, f func(querier) error) error {
	_, err := do(ctx, s, op, func(q querier) (struct{}, error) { return struct{}{}, f(q) })
	return err
}

// open reports why a call cannot even begin.
func (s *Store) open(ctx context.Context) error {
	if s.closed.Load() {
		return fmt.Errorf("sqlstore: %w", idempotent.ErrClosed)
	}
	return ctx.Err()
}

// bare returns the name of the table without its schema. It is the channel of
// the notifications too, whose names are short.
func (s *Store) bare() string {
	_, bare, qualified := strings.Cut(s.table, ".")
	if !qualified {
		return s.table
	}
	return bare
}
