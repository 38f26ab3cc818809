package sqlstore_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/sqlstore"
	"github.com/idempotent-go/idempotent/sqlstore/internal/sqltest"
)

// calls returns a call of each method for the key k and the owner a.
func calls(s *sqlstore.Store) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"ping":     s.Ping,
		"load":     func(ctx context.Context) error { _, _, err := s.Load(ctx, "k"); return err },
		"wait":     func(ctx context.Context) error { _, _, err := s.Wait(ctx, "k"); return err },
		"claim":    func(ctx context.Context) error { _, _, err := s.Claim(ctx, "k", claim("a")); return err },
		"renew":    func(ctx context.Context) error { return s.Renew(ctx, "k", "a", time.Minute) },
		"complete": func(ctx context.Context) error { return s.Complete(ctx, "k", "a", success("r")) },
		"release":  func(ctx context.Context) error { return s.Release(ctx, "k", "a") },
		"delete":   func(ctx context.Context) error { return s.Delete(ctx, "k") },
		"sweep":    func(ctx context.Context) error { _, err := s.Sweep(ctx); return err },
		"list":     func(ctx context.Context) error { _, err := s.List(ctx, idempotent.ListQuery{}); return err },
	}
}

// requireOutage expects an error of which nobody knows whether the step was
// taken: none of the contract's.
func requireOutage(t *testing.T, err error) {
	t.Helper()
	require.Error(t, err)
	for _, known := range []error{
		idempotent.ErrLost, idempotent.ErrFull, idempotent.ErrCorrupt, idempotent.ErrNewerFormat,
		idempotent.ErrInvalid, idempotent.ErrClosed,
	} {
		require.NotErrorIs(t, err, known)
	}
}

// Rule 2: a step whose reply was lost was taken, and the second send answers as
// the first would have.
func TestLostReply(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, d sqltest.Database) {
		ctx := t.Context()
		for _, c := range []struct {
			name  string
			claim bool // before the step
			write string
			want  idempotent.Status
			taken idempotent.Status // after the lost reply alone
		}{
			{name: "claim", write: "INSERT INTO", want: idempotent.Pending, taken: idempotent.Pending},
			{name: "renew", claim: true, write: "SET expires_at", want: idempotent.Pending, taken: idempotent.Pending},
			{name: "complete", claim: true, write: "SET status", want: idempotent.Success, taken: idempotent.Success},
			{name: "release", claim: true, write: "SET status = 'free'"},
			{name: "delete", claim: true, write: "SET full_key"},
		} {
			t.Run(c.name, func(t *testing.T) {
				relay := redistest.NewRelay(t, d.Addr)
				through := d.At(t, relay.Addr)
				if d.Kind == sqltest.MySQL { // or the relay would see names of prepared statements
					through = through.With("interpolateParams", "true")
				} else {
					through = through.With("default_query_exec_mode", "exec")
				}
				table := newTable()
				straight := newStore(t, d.Open(t), d.Kind, sqlstore.WithTable(table))
				s := newStore(t, through.Open(t), d.Kind, sqlstore.WithTable(table))
				if c.claim {
					claimed(t, s, "k", "a")
				}
				relay.SwallowReply(func(request []byte) bool { return bytes.Contains(request, []byte(c.write)) })
				err := calls(s)[c.name](ctx)
				require.True(t, relay.Swallowed())
				requireOutage(t, err)
				status := func(want idempotent.Status) {
					t.Helper()
					e, _, err := straight.Load(ctx, "k")
					require.NoError(t, err)
					require.Equal(t, want, e.Status)
				}
				status(c.taken)
				require.NoError(t, calls(s)[c.name](ctx))
				status(c.want)
				if c.name == "claim" {
					e, ok, err := s.Claim(ctx, "k", claim("a"))
					require.NoError(t, err)
					require.True(t, ok, "the owner is told that somebody else has the key")
					require.Equal(t, "a", e.Owner)
				}
			})
		}
	})
}

// A deadline or a cancellation ends a call although nothing is answered.
func TestDeadline(t *testing.T) {
	t.Parallel()
	const deadline = 50 * time.Millisecond
	onServers(t, func(t *testing.T, d sqltest.Database) {
		drivers := map[string]string{d.Driver: d.Driver}
		if d.Kind == sqltest.Postgres {
			drivers["lib/pq"] = "postgres"
		}
		for _, driver := range drivers {
			t.Run(driver, func(t *testing.T) {
				relay := redistest.NewRelay(t, d.Addr)
				through := d.At(t, relay.Addr)
				through.Driver = driver
				s := newStore(t, through.Open(t), d.Kind, sqlstore.WithTable(newTable()))
				relay.Stall()
				for name, f := range calls(s) {
					require.ErrorIs(t, f(ctxFor(t, deadline)), context.DeadlineExceeded, name)
				}
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(deadline, cancel)
				require.ErrorIs(t, s.Release(ctx, "k", "a"), context.Canceled)
				relay.Resume()
				again := ctxFor(t, time.Minute) // a busy machine's database may take its time
				for s.Complete(again, "k2", "a", success("r")) != nil {
					require.NoError(t, again.Err(), "it does not work again")
				}
			})
		}
	})
}

// A database that is away is an error, never an answer; it is noticed when it is
// back.
func TestC051_C052_DatabaseAway(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, d sqltest.Database) {
		relay := redistest.NewRelay(t, d.Addr)
		s := newStore(t, d.At(t, relay.Addr).Open(t), d.Kind)
		guard := idempotent.New(s)
		claimed(t, s, "k", "a")
		relay.Cut()
		for name, f := range calls(s) {
			t.Log(name)
			requireOutage(t, f(t.Context()))
		}
		err := guard.Do(t.Context(), "k2", func(context.Context) error {
			t.Error("the operation runs although nothing is known of its key")
			return nil
		})
		var away *idempotent.StoreError
		require.ErrorAs(t, err, &away)
		relay.Mend()
		redistest.Eventually(t, "it works again", func() bool { return s.Complete(t.Context(), "k", "a", success("r")) == nil })
	})
}

// A server that is killed has what it answered when it comes back.
func TestRestart(t *testing.T) {
	t.Parallel()
	for kind, durable := range map[sqltest.Kind]string{
		sqltest.Postgres: "fsync=on",
		sqltest.MySQL:    "--innodb-flush-log-at-trx-commit=1",
	} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			server := sqltest.Start(t, kind, durable)
			s := newStore(t, server.Database(t).Open(t), kind)
			claimed(t, s, "running", "a")
			claimed(t, s, "done", "a")
			require.NoError(t, s.Complete(t.Context(), "done", "a", success("r")))
			server.Kill()
			_, _, err := s.Load(t.Context(), "done")
			requireOutage(t, err)
			server.Revive(t)
			redistest.Eventually(t, "it answers", func() bool { return s.Ping(t.Context()) == nil })
			e, claimed, err := s.Claim(t.Context(), "done", claim("b"))
			require.NoError(t, err)
			require.False(t, claimed)
			require.Equal(t, "r", e.Result)
			_, claimed, err = s.Claim(t.Context(), "running", claim("b"))
			require.NoError(t, err)
			require.False(t, claimed)
			require.NoError(t, s.Renew(t.Context(), "running", "a", time.Minute))
		})
	}
}

func TestClosed(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		db := d.Open(t)
		s := newStore(t, db, d.Kind)
		claimed(t, s, "k", "a")
		waited := make(chan error, 1)
		go func() {
			_, _, err := s.Wait(context.Background(), "k")
			waited <- err
		}()
		for range 2 {
			require.NoError(t, s.Close())
		}
		require.ErrorIs(t, <-waited, idempotent.ErrClosed)
		for name, f := range calls(s) {
			require.ErrorIs(t, f(t.Context()), idempotent.ErrClosed, name)
		}
		require.ErrorIs(t, s.Migrate(t.Context(), db), idempotent.ErrClosed)
	})
}

// Whoever forgot the table is told of it.
func TestNoTable(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		s := sqlstore.New(d.Open(t), dialects[d.Kind])
		err := s.Ping(t.Context())
		requireOutage(t, err)
		require.NotNil(t, errors.Unwrap(err))
		if d.Kind != sqltest.SQLite { // which has no code for it
			require.ErrorContains(t, err, "Migrate")
		}
	})
}
