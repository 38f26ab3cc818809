package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/sqlstore"
	"github.com/idempotent-go/idempotent/sqlstore/internal/sqltest"
)

// unknownOutcome is one that may have happened.
func unknownOutcome() idempotent.Outcome {
	return idempotent.Outcome{Status: idempotent.Failed, Unknown: true, Result: "\x00", Fingerprint: "f", Retention: time.Hour}
}

// abandon leaves a claim whose lease has ended.
func abandon(t testing.TB, s idempotent.Store, key, owner string, keep time.Duration) {
	t.Helper()
	c := claim(owner)
	c.Lease, c.Keep = time.Millisecond, keep
	_, ok, err := s.Claim(t.Context(), key, c)
	require.NoError(t, err)
	require.True(t, ok)
	redistest.Eventually(t, "the lease has ended", func() bool {
		e, found, err := s.Load(t.Context(), key)
		require.NoError(t, err)
		return !found || e.Unknown
	})
}

// endLeases lets a minute pass for what stands in db.
func endLeases(t testing.TB, db *sql.DB) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), "UPDATE "+sqlstore.DefaultTable+" SET expires_at = expires_at - 60000000")
	require.NoError(t, err)
}

// unknowns collects the view.
func unknowns(t testing.TB, s *sqlstore.Store) (all []sqlstore.Unknown) {
	t.Helper()
	for u, err := range s.Unknowns(t.Context()) {
		require.NoError(t, err)
		all = append(all, u)
	}
	return all
}

// The view shows what Load reads as unknown, and nothing else.
func TestUnknowns(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		db := d.Open(t)
		table := newTable()
		s := newStore(t, db, d.Kind, sqlstore.WithTable(table))
		ctx := t.Context()
		long := strings.Repeat("long", 100)
		odd := "odd \x00\xff'\\ ключ"
		short := success("r")
		short.Retention = time.Millisecond
		gone := unknownOutcome()
		gone.Retention = time.Millisecond
		failed := unknownOutcome()
		failed.Unknown = false
		for key, make := range map[string]func(key string){
			"running":   func(key string) { claimed(t, s, key, "a") },
			"success":   func(key string) { require.NoError(t, s.Complete(ctx, key, "a", success("r"))) },
			"failed":    func(key string) { require.NoError(t, s.Complete(ctx, key, "a", failed)) },
			"past":      func(key string) { require.NoError(t, s.Complete(ctx, key, "a", short)) },
			"past too":  func(key string) { require.NoError(t, s.Complete(ctx, key, "a", gone)) },
			"forgotten": func(key string) { abandon(t, s, key, "a", time.Millisecond) },
			"freed": func(key string) {
				claimed(t, s, key, "a")
				require.NoError(t, s.Release(ctx, key, "a"))
			},
			"late": func(key string) {
				abandon(t, s, key, "a", time.Hour)
				require.NoError(t, s.Renew(ctx, key, "a", time.Hour))
			},
			"abandoned": func(key string) { abandon(t, s, key, "a", time.Hour) },
			"recorded":  func(key string) { require.NoError(t, s.Complete(ctx, key, "a", unknownOutcome())) },
			long:        func(key string) { abandon(t, s, key, "a", time.Hour) },
			odd:         func(key string) { require.NoError(t, s.Complete(ctx, key, "a", unknownOutcome())) },
			"newer": func(key string) {
				abandon(t, s, key, "a", time.Hour)
				_, err := db.Exec("UPDATE " + table + " SET format = 2 WHERE name = " + quoted(d.Kind, key))
				require.NoError(t, err)
			},
		} {
			make(key)
		}
		redistest.Eventually(t, "what is short is past", func() bool {
			for _, key := range []string{"past", "past too", "forgotten"} {
				if _, found, err := s.Load(ctx, key); found || err != nil {
					return false
				}
			}
			return true
		})
		var keys []string
		for _, u := range unknowns(t, s) {
			keys = append(keys, u.Key)
			e, found, err := s.Load(ctx, u.Key)
			require.NoError(t, err)
			require.True(t, found)
			require.True(t, e.Unknown)
			require.Equal(t, e.Owner, u.Owner)
			require.Equal(t, e.Trace, u.Trace)
			require.Equal(t, e.Fingerprint, u.Fingerprint)
			require.Equal(t, e.Fence, u.Fence)
			require.True(t, e.Claimed.Equal(u.Claimed))
			require.True(t, e.Timestamp.Equal(u.Ended))
			require.True(t, e.Expires.Equal(u.Forgotten))
			require.Equal(t, e.Result == "", u.Abandoned, u.Key)
			require.GreaterOrEqual(t, u.Ago, time.Duration(0))
			require.Less(t, u.Ago, 10*time.Minute)
		}
		require.True(t, sort.StringsAreSorted(keys))
		require.ElementsMatch(t, []string{"abandoned", "recorded", long, odd}, keys)

		// As an operator reads it.
		rows, err := db.Query("SELECT key_text, owner_text, trace_text, kind, claimed, ended FROM " + table + "_unknown ORDER BY ended")
		require.NoError(t, err)
		defer rows.Close()
		kinds := map[string]string{}
		for rows.Next() {
			var key, owner, trace, kind string
			var claimed, ended any
			require.NoError(t, rows.Scan(&key, &owner, &trace, &kind, &claimed, &ended))
			require.Equal(t, "a", owner)
			require.NotNil(t, claimed)
			require.NotNil(t, ended)
			kinds[key] = kind
		}
		require.NoError(t, rows.Err())
		require.Len(t, kinds, 4)
		require.Equal(t, "abandoned", kinds["abandoned"])
		require.Equal(t, "recorded", kinds["recorded"])
	})
}

// Each page goes on where the last one ended, and a loop may settle as it goes.
func TestUnknowns_Pages(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		db := d.Open(t)
		db.SetMaxOpenConns(1) // a page holds no connection
		s := newStore(t, db, d.Kind)
		ctx := t.Context()
		require.Empty(t, unknowns(t, s))
		const n = 2 * sqlstore.UnknownBatch
		require.NoError(t, s.Complete(ctx, "k000", "a", unknownOutcome()))
		const rest = "format, status, owner, fingerprint, trace, result, fence, claimed_at, set_at, expires_at, keep_for, sweep_at, take_over, gained, version"
		tx, err := db.Begin()
		require.NoError(t, err)
		for i := 1; i < n; i++ {
			key := quoted(d.Kind, fmt.Sprintf("k%03d", i))
			_, err := tx.Exec("INSERT INTO " + sqlstore.DefaultTable + " (name, full_key, " + rest + ") SELECT " + key + ", " + key + ", " + rest +
				" FROM " + sqlstore.DefaultTable + " WHERE name = " + quoted(d.Kind, "k000"))
			require.NoError(t, err)
		}
		require.NoError(t, tx.Commit())
		i, settled := 0, 0
		for u, err := range s.Unknowns(ctx) {
			require.NoError(t, err)
			require.Equal(t, fmt.Sprintf("k%03d", i), u.Key)
			if i%20 == 0 {
				require.NoError(t, s.Complete(ctx, u.Key, u.Owner, success("r")))
				settled++
			}
			i++
		}
		require.Equal(t, n, i)
		require.Len(t, unknowns(t, s), n-settled)
		for range s.Unknowns(ctx) {
			break
		}

		ended, cancel := context.WithCancel(ctx)
		cancel()
		for _, err := range s.Unknowns(ended) {
			require.ErrorIs(t, err, context.Canceled)
		}
		require.NoError(t, s.Close())
		for _, err := range s.Unknowns(ctx) {
			require.ErrorIs(t, err, idempotent.ErrClosed)
		}
	})
}

// A missing view is an error that names what makes it.
func TestUnknowns_NoView(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, d sqltest.Database) {
		s := sqlstore.New(d.Open(t), dialects[d.Kind])
		n := 0
		for _, err := range s.Unknowns(t.Context()) {
			n++
			require.ErrorContains(t, err, "Store.Migrate")
		}
		require.Equal(t, 1, n)
	})
}

// The files for migration tools hold the clock that the statements use, and are
// statements that may be run again.
func TestUnknownSchema(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		db := d.Open(t)
		file, err := os.ReadFile("schema/" + string(d.Kind) + "_unknown.sql")
		require.NoError(t, err)
		require.Equal(t, 2, strings.Count(string(file), dialects[d.Kind].Clock()))
		s := sqlstore.New(db, dialects[d.Kind])
		require.Equal(t, string(file), s.UnknownSchema())
		_, err = db.Exec(s.Schema())
		require.NoError(t, err)
		for range 2 {
			_, err = db.Exec(s.UnknownSchema())
			require.NoError(t, err)
		}
		require.Empty(t, unknowns(t, s))
		require.Contains(t, sqlstore.New(db, dialects[d.Kind], sqlstore.WithTable("mine")).UnknownSchema(), "VIEW "+map[bool]string{true: "IF NOT EXISTS "}[d.Kind == sqltest.SQLite]+"mine_unknown AS")
	})
}
