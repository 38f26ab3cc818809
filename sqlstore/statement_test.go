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
		{"fresh claim", func() error { _, _, err := s.Claim(ctx, "k", claim("a")); return err }, []string{"select", "insert"}},
		{"in flight", func() error { _, _, err := s.Claim(ctx, "k", claim("b")); return err }, []string{"select"}},
		{"load", func() error { _, _, err := s.Load(ctx, "k"); return err }, []string{"select"}},
		{"renewal", func() error { return s.Renew(ctx, "k", "a", time.Minute) }, []string{"update"}},
		{"completion", func() error { return s.Complete(ctx, "k", "a", success("r")) }, []string{"update"}},
		{"replay", func() error { _, _, err := s.Claim(ctx, "k", claim("b")); return err }, []string{"select"}},
		{"completion again", func() error { return s.Complete(ctx, "k", "a", success("r")) }, []string{"update", "select"}},
		{"completion of an absent key", func() error { return s.Complete(ctx, "k2", "a", success("r")) }, []string{"update", "select", "insert"}},
		{"wait for nothing", func() error { _, _, err := s.Wait(ctx, "k"); return err }, []string{"select"}},
		{"delete", func() error { return s.Delete(ctx, "k") }, []string{"update"}},
		{"claim of a freed key", func() error { _, _, err := s.Claim(ctx, "k", claim("a")); return err }, []string{"select", "update"}},
		{"release", func() error { return s.Release(ctx, "k", "a") }, []string{"update"}},
		{"sweep of nothing", func() error { _, err := s.Sweep(ctx); return err }, []string{"select"}},
	} {
		require.NoError(t, c.step(), c.name)
		require.Equal(t, c.sent, r.take(), c.name)
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
