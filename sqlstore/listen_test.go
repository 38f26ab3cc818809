package sqlstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/sqlstore"
	"github.com/idempotent-go/idempotent/sqlstore/internal/sqltest"
	"github.com/idempotent-go/idempotent/sqlstore/pglisten"
	"github.com/idempotent-go/idempotent/storetest"
)

// waiting starts to wait for key, and returns where the answer arrives.
func waiting(t *testing.T, s *sqlstore.Store, key string) <-chan idempotent.Entry {
	t.Helper()
	answer := make(chan idempotent.Entry, 1)
	ctx := ctxFor(t, 20*time.Second)
	go func() {
		e, _, err := s.Wait(ctx, key)
		if err != nil {
			t.Error(err)
		}
		answer <- e
	}()
	return answer
}

// listening returns a store that polls too seldom to be of any use here while it
// listens through dsn.
func listening(t *testing.T, d sqltest.Database, dsn, table string) *sqlstore.Store {
	t.Helper()
	s := newStore(t, d.Open(t), d.Kind, sqlstore.WithTable(table), sqlstore.WithListen(pglisten.Func(dsn)))
	s.SlowPoll(time.Hour)
	return s
}

// Whatever ends a claim, by whichever store, wakes those who wait for it.
func TestListen(t *testing.T) {
	t.Parallel()
	d := sqltest.New(t, sqltest.Postgres)
	table := newTable()
	s := listening(t, d, d.DSN, table)
	other := newStore(t, d.Open(t), d.Kind, sqlstore.WithTable(table)) // knows nothing of it
	long := string(make([]byte, 1000))
	for name, end := range map[string]func(key string) error{
		"complete":      func(key string) error { return other.Complete(t.Context(), key, "a", success("r")) },
		"release":       func(key string) error { return other.Release(t.Context(), key, "a") },
		"delete":        func(key string) error { return other.Delete(t.Context(), key) },
		"short renewal": func(key string) error { return other.Renew(t.Context(), key, "a", time.Millisecond) },
	} {
		for _, key := range []string{name, name + long} {
			claimed(t, other, key, "a")
			answer := waiting(t, s, key)
			redistest.Eventually(t, "it listens", s.Listening)
			require.NoError(t, end(key), name)
			<-answer
		}
	}
	redistest.Eventually(t, "nobody waits", func() bool { return s.Waiting() == 0 })
}

// Without its connection the store polls, and it listens again when it can.
func TestListen_ConnectionLost(t *testing.T) {
	t.Parallel()
	d := sqltest.New(t, sqltest.Postgres)
	relay := redistest.NewRelay(t, d.Addr)
	s := listening(t, d, d.At(t, relay.Addr).DSN, newTable())
	claimed(t, s, "first", "a")
	answer := waiting(t, s, "first")
	redistest.Eventually(t, "it listens", s.Listening)
	relay.Cut()
	redistest.Eventually(t, "it is noticed", func() bool { return !s.Listening() })
	require.NoError(t, s.Complete(t.Context(), "first", "a", success("r")))
	require.Equal(t, "r", (<-answer).Result)

	claimed(t, s, "second", "a")
	answer = waiting(t, s, "second")
	relay.Mend()
	redistest.Eventually(t, "it listens again", s.Listening)
	require.NoError(t, s.Complete(t.Context(), "second", "a", success("r")))
	require.Equal(t, "r", (<-answer).Result)
}

// The contract holds with notifications too, and without prepared statements.
func TestListen_Store(t *testing.T) {
	t.Parallel()
	d := sqltest.New(t, sqltest.Postgres)
	db := d.With("default_query_exec_mode", "simple_protocol").Open(t)
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		table := newTable()
		open := func() *sqlstore.Store {
			return newStore(t, db, d.Kind, sqlstore.WithTable(table), sqlstore.WithListen(pglisten.Func(d.DSN)))
		}
		return storetest.Harness{Store: open(), Second: func() idempotent.Store { return open() }}
	})
}

func TestListen_BadURL(t *testing.T) {
	t.Parallel()
	f := pglisten.Func("postgres://%")
	err := f(context.Background(), "channel", func() { t.Error("ready") }, func(string) {})
	require.Error(t, err)
}
