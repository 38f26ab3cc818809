package sqlstore_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"modernc.org/sqlite"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/sqlstore"
	"github.com/idempotent-go/idempotent/sqlstore/internal/sqltest"
)

var sqliteDriver = &sqlite.Driver{}

// recorder is a driver that writes down what it is sent.
type recorder struct {
	driver driver.Driver
	dsn    string
	fail   func(query string) error // nil: nothing is

	mu   sync.Mutex
	sent []string // first words
}

func (r *recorder) Connect(context.Context) (driver.Conn, error) {
	c, err := r.driver.Open(r.dsn)
	return recordedConn{c, r}, err
}

func (r *recorder) Driver() driver.Driver { return r.driver }

type recordedConn struct {
	driver.Conn
	r *recorder
}

// note writes down a statement, and returns how it is to fail.
func (c recordedConn) note(query string) error {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.r.sent = append(c.r.sent, strings.ToLower(strings.Fields(query)[0]))
	if c.r.fail == nil {
		return nil
	}
	return c.r.fail(query)
}

func (c recordedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.note(query); err != nil {
		return nil, err
	}
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
}

func (c recordedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.note(query); err != nil {
		return nil, err
	}
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
}

func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	sent := r.sent
	r.sent = nil
	return sent
}

// What each step sends: the table of the package documentation.
func TestC034_Statements(t *testing.T) {
	t.Parallel()
	d := sqltest.New(t, sqltest.SQLite)
	r := &recorder{driver: sqliteDriver, dsn: d.DSN}
	db := sql.OpenDB(r)
	t.Cleanup(func() { _ = db.Close() })
	s := newStore(t, db, d.Kind)
	r.take()
	ctx := t.Context()
	for _, c := range []struct {
		name string
		step func() error
		sent []string
	}{
		{"fresh claim", func() error { _, _, err := s.Claim(ctx, "k", claim("a")); return err }, []string{"select", "begin", "select", "insert", "commit"}},
		{"in flight", func() error { _, _, err := s.Claim(ctx, "k", claim("b")); return err }, []string{"select"}},
		{"load", func() error { _, _, err := s.Load(ctx, "k"); return err }, []string{"select"}},
		{"renewal", func() error { return s.Renew(ctx, "k", "a", time.Minute) }, []string{"update"}},
		{"completion", func() error { return s.Complete(ctx, "k", "a", success("r")) }, []string{"update"}},
		{"replay", func() error { _, _, err := s.Claim(ctx, "k", claim("b")); return err }, []string{"select"}},
		{"completion again", func() error { return s.Complete(ctx, "k", "a", success("r")) }, []string{"update", "select"}},
		{"completion of an absent key", func() error { return s.Complete(ctx, "k2", "a", success("r")) }, []string{"update", "select", "begin", "select", "insert", "commit"}},
		{"wait for nothing", func() error { _, _, err := s.Wait(ctx, "k"); return err }, []string{"select"}},
		{"delete", func() error { return s.Delete(ctx, "k") }, []string{"update"}},
		{"claim of a freed key", func() error { _, _, err := s.Claim(ctx, "k", claim("a")); return err }, []string{"select", "begin", "select", "update", "commit"}},
		{"release", func() error { return s.Release(ctx, "k", "a") }, []string{"update"}},
		{"sweep of nothing", func() error { _, err := s.Sweep(ctx); return err }, []string{"select"}},
	} {
		require.NoError(t, c.step(), c.name)
		require.Equal(t, c.sent, r.take(), c.name)
	}
}

// The lease of a claim that has waited for SQLite's lock runs from when it is
// stored, not from a look before.
func TestClaim_WaitsForLock(t *testing.T) {
	t.Parallel()
	const lease = 100 * time.Millisecond
	d := sqltest.New(t, sqltest.SQLite)
	r := &recorder{driver: sqliteDriver, dsn: d.DSN}
	db := sql.OpenDB(r)
	t.Cleanup(func() { _ = db.Close() })
	s := newStore(t, db, d.Kind)
	other, err := d.Open(t).Conn(t.Context())
	require.NoError(t, err)
	defer func() { _ = other.Close() }()
	clock := func() (now int64) {
		require.NoError(t, other.QueryRowContext(t.Context(), "SELECT "+sqlstore.SQLite.Clock()).Scan(&now))
		return now
	}
	_, err = other.ExecContext(t.Context(), "BEGIN IMMEDIATE")
	require.NoError(t, err)

	waits := make(chan struct{})
	once := sync.OnceFunc(func() { close(waits) })
	r.fail = func(query string) error {
		if strings.Contains(query, "INSERT INTO") || query == "BEGIN IMMEDIATE" {
			once()
		}
		return nil
	}
	type answer struct {
		entry   idempotent.Entry
		claimed bool
		err     error
	}
	answered := make(chan answer, 1)
	go func() {
		c := claim("a")
		c.Lease = lease
		e, ok, err := s.Claim(t.Context(), "k", c)
		answered <- answer{e, ok, err}
	}()
	<-waits
	looked := clock()
	redistest.Eventually(t, "a lease passes", func() bool { return clock() > looked+2*lease.Microseconds() })
	let := clock()
	_, err = other.ExecContext(t.Context(), "COMMIT")
	require.NoError(t, err)
	got := <-answered
	require.NoError(t, got.err)
	require.True(t, got.claimed)
	require.GreaterOrEqual(t, got.entry.Timestamp.UnixMicro(), let)
	require.GreaterOrEqual(t, got.entry.Expires.UnixMicro(), let+lease.Microseconds())
	require.GreaterOrEqual(t, got.entry.Fence, let)
}

// A step that ends in the midst of its transaction leaves none behind on a
// connection.
func TestClaim_FailsUnderLock(t *testing.T) {
	t.Parallel()
	d := sqltest.New(t, sqltest.SQLite)
	for _, at := range []string{"BEGIN", "INSERT", "COMMIT", "ROLLBACK"} {
		r := &recorder{driver: sqliteDriver, dsn: d.DSN}
		db := sql.OpenDB(r)
		db.SetMaxOpenConns(1)
		s := newStore(t, db, d.Kind, sqlstore.WithTable(newTable()))
		r.fail = func(query string) error {
			if strings.Contains(query, at) || at == "ROLLBACK" && strings.Contains(query, "INSERT") {
				return sqliteError(1)
			}
			return nil
		}
		_, _, err := s.Claim(t.Context(), "k", claim("a"))
		require.ErrorIs(t, err, sqliteError(1), at)
		r.fail = nil
		_, ok, err := s.Claim(t.Context(), "k", claim("b"))
		require.NoError(t, err, at)
		require.True(t, ok, at)
		require.NoError(t, db.Close())
	}
}

// The claims of a hundred owners at once, from several pools: one has the key.
func TestC001_OneOfMany(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		var stores []*sqlstore.Store
		for range 4 {
			stores = append(stores, newStore(t, d.Open(t), d.Kind))
		}
		for _, key := range []string{"k", strings.Repeat("long", 1000)} {
			var all sync.WaitGroup
			var mu sync.Mutex
			owners := map[string]int{} // that the answers name
			won := 0
			for i := range 100 {
				all.Go(func() {
					owner := string(rune('a'+i%26)) + string(rune('a'+i/26))
					e, ok, err := stores[i%len(stores)].Claim(t.Context(), key, claim(owner))
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					defer mu.Unlock()
					owners[e.Owner]++
					if ok {
						won++
						if e.Owner != owner {
							t.Errorf("%s was told that it has the key of %s", owner, e.Owner)
						}
					}
				})
			}
			all.Wait()
			require.Equal(t, 1, won)
			require.Len(t, owners, 1)
		}
	})
}
