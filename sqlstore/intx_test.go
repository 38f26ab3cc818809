package sqlstore_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/sqlstore"
	"github.com/idempotent-go/idempotent/sqlstore/internal/sqltest"
)

// ledger is a table of a business: a row says that an operation has happened.
type ledger struct {
	db     *sql.DB
	insert string
}

func newLedger(t testing.TB, d sqltest.Database, db *sql.DB) ledger {
	t.Helper()
	_, err := db.Exec("CREATE TABLE IF NOT EXISTS ledger (payment VARCHAR(64) NOT NULL, id VARCHAR(64) NOT NULL, status INTEGER NOT NULL)")
	require.NoError(t, err)
	return ledgerOf(d.Kind, db)
}

func ledgerOf(kind sqltest.Kind, db *sql.DB) ledger {
	l := ledger{db, "INSERT INTO ledger (payment, id, status) VALUES (?, ?, ?)"}
	if kind == sqltest.Postgres {
		l.insert = "INSERT INTO ledger (payment, id, status) VALUES ($1, $2, $3)"
	}
	return l
}

// execer is a database or a transaction.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func (l ledger) add(ctx context.Context, on execer, key, id string) error {
	_, err := on.ExecContext(ctx, l.insert, key, id, 201)
	return err
}

// rows returns the ids of the rows of a key.
func (l ledger) rows(t testing.TB, key string) (ids []string) {
	t.Helper()
	return l.all(t)[key]
}

func (l ledger) all(t testing.TB) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	rows, err := l.db.Query("SELECT payment, id FROM ledger")
	require.NoError(t, err)
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var key, id string
		require.NoError(t, rows.Scan(&key, &id))
		all[key] = append(all[key], id)
	}
	require.NoError(t, rows.Err())
	return all
}

// quiet is a logger for tests in which things go wrong by design.
var quiet = idempotent.WithLogger(slog.New(slog.DiscardHandler))

// patient options for a busy machine.
func patient(opts ...sqlstore.TxOption) []sqlstore.TxOption {
	return append([]sqlstore.TxOption{sqlstore.WithGuard(quiet, idempotent.WithStoreTimeout(2*time.Minute))}, opts...)
}

// txWorld is a database with a table of a business and a TxGuard.
type txWorld struct {
	d      sqltest.Database
	db     *sql.DB
	store  *sqlstore.Store
	ledger ledger
	guard  *sqlstore.TxGuard
}

func newTxWorld(t *testing.T, d sqltest.Database, opts ...sqlstore.TxOption) txWorld {
	t.Helper()
	w := txWorld{d: d, db: d.Open(t)}
	w.store = newStore(t, w.db, d.Kind)
	w.ledger = newLedger(t, d, w.db)
	w.guard = sqlstore.NewTxGuard(w.store, patient(opts...)...)
	return w
}

// pay enters the payment in the ledger, and returns a receipt.
func (w txWorld) pay(key, id string) func(context.Context, *sql.Tx) (string, error) {
	return func(ctx context.Context, tx *sql.Tx) (string, error) {
		return "receipt " + id, w.ledger.add(ctx, tx, key, id)
	}
}

func TestInTx(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		w := newTxWorld(t, d)
		ctx := t.Context()
		for _, id := range []string{"a", "b"} {
			receipt, err := sqlstore.InTx(ctx, w.guard, "k", w.pay("k", id))
			require.NoError(t, err)
			require.Equal(t, "receipt a", receipt)
		}
		require.Equal(t, []string{"a"}, w.ledger.rows(t, "k"))

		// A guard over the same table answers from it, and the reverse.
		guard := idempotent.New(w.store)
		receipt, err := idempotent.Do(ctx, guard, "k", func(context.Context) (string, error) { return "another", nil })
		require.NoError(t, err)
		require.Equal(t, "receipt a", receipt)
		_, err = idempotent.Do(ctx, guard, "k2", func(context.Context) (string, error) { return "the guard's", nil })
		require.NoError(t, err)
		receipt, err = sqlstore.InTx(ctx, w.guard, "k2", w.pay("k2", "a"))
		require.NoError(t, err)
		require.Equal(t, "the guard's", receipt)
		require.Empty(t, w.ledger.rows(t, "k2"))

		// Another request, a running one and an unknown one are refused.
		_, err = sqlstore.InTx(ctx, w.guard, "k", w.pay("k", "c"), idempotent.WithCallFingerprint("other"))
		require.ErrorIs(t, err, idempotent.ErrKeyReused)
		claimed(t, w.store, "running", "a")
		_, err = sqlstore.InTx(ctx, w.guard, "running", w.pay("running", "a"), idempotent.WithCallFingerprint("f"))
		var inFlight *idempotent.InFlightError
		require.ErrorAs(t, err, &inFlight)
		require.NoError(t, w.store.Complete(ctx, "unknown", "a", idempotent.Outcome{
			Status: idempotent.Failed, Unknown: true, Result: "r", Retention: time.Hour,
		}))
		_, err = sqlstore.InTx(ctx, w.guard, "unknown", w.pay("unknown", "a"))
		require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
		require.Empty(t, w.ledger.rows(t, "unknown"))
	})
}

func TestTxGuard_Run(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		w := newTxWorld(t, d)
		for i := range 2 {
			rec, replayed, err := w.guard.Run(t.Context(), "k", func(ctx context.Context, tx *sql.Tx) (idempotent.Class, string) {
				x, ok := idempotent.FromContext(ctx)
				require.True(t, ok)
				require.NoError(t, w.ledger.add(ctx, tx, "k", x.Owner))
				return idempotent.ClassSuccess, "r"
			})
			require.NoError(t, err)
			require.Equal(t, i == 1, replayed)
			require.Equal(t, "r", rec.Result)
		}
		require.Len(t, w.ledger.rows(t, "k"), 1)
	})
}

// What becomes of the writes and of the key, by how the operation ends.
func TestInTx_Outcomes(t *testing.T) {
	t.Parallel()
	errDeclined := errors.New("declined")
	onEach(t, func(t *testing.T, d sqltest.Database) {
		w := newTxWorld(t, d)
		ctx := t.Context()
		for _, c := range []struct {
			name   string
			end    func(ctx context.Context, tx *sql.Tx) error
			first  error // of the first call
			second error // of the second; nil: it runs and succeeds
		}{
			{"an error", func(context.Context, *sql.Tx) error { return errDeclined }, errDeclined, nil},
			{"released", func(context.Context, *sql.Tx) error { return fmt.Errorf("%w: later", idempotent.ErrReleased) }, idempotent.ErrReleased, nil},
			{"said to be released", func(ctx context.Context, _ *sql.Tx) error { idempotent.Release(ctx); return nil }, nil, nil},
			{"failed", func(context.Context, *sql.Tx) error { return fmt.Errorf("%w: no funds", idempotent.ErrFailed) }, idempotent.ErrFailed, idempotent.ErrFailed},
			{"said to have failed", func(ctx context.Context, _ *sql.Tx) error { idempotent.Fail(ctx); return errDeclined }, errDeclined, idempotent.ErrFailed},
			{"said to be unknown", func(ctx context.Context, _ *sql.Tx) error { idempotent.Unknown(ctx); return errDeclined }, errDeclined, idempotent.ErrOutcomeUnknown},
			{"failed, behind a savepoint", func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, "SAVEPOINT idempotent") // not the guard's
				require.NoError(t, err)
				return idempotent.ErrFailed
			}, idempotent.ErrFailed, idempotent.ErrFailed},
			{"a statement that fails", func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, "INSERT INTO nowhere VALUES (1)")
				return fmt.Errorf("%w: %w", errDeclined, err)
			}, errDeclined, nil},
			{"a statement that fails, failed", func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, "INSERT INTO nowhere VALUES (1)")
				return fmt.Errorf("%w: %w", idempotent.ErrFailed, err)
			}, idempotent.ErrFailed, idempotent.ErrFailed},
		} {
			t.Run(c.name, func(t *testing.T) {
				key := c.name
				_, err := sqlstore.InTx(ctx, w.guard, key, func(ctx context.Context, tx *sql.Tx) (string, error) {
					require.NoError(t, w.ledger.add(ctx, tx, key, "a"))
					return "", c.end(ctx, tx)
				})
				require.ErrorIs(t, err, c.first)
				require.False(t, c.first == errDeclined && errors.Is(err, idempotent.ErrReleased), "%v", err)
				require.Empty(t, w.ledger.rows(t, key), "nothing has happened")
				_, err = sqlstore.InTx(ctx, w.guard, key, w.pay(key, "b"))
				require.ErrorIs(t, err, c.second)
				want := []string{"b"}
				if c.second != nil {
					want = nil
				}
				require.Equal(t, want, w.ledger.rows(t, key))
			})
		}
	})
}

// A panic and a Goexit roll back, go on, and leave the key free.
func TestInTx_Panic(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		w := newTxWorld(t, d)
		for name, end := range map[string]func(){
			"panic":  func() { panic("the operation's own") },
			"goexit": runtime.Goexit,
		} {
			done := make(chan any)
			go func() {
				defer close(done)
				defer func() {
					if got := recover(); got != nil {
						done <- got
					}
				}()
				_, _ = sqlstore.InTx(t.Context(), w.guard, name, func(ctx context.Context, tx *sql.Tx) (string, error) {
					if err := w.ledger.add(ctx, tx, name, "a"); err != nil {
						return "", err
					}
					end()
					return "", nil
				})
			}()
			got := <-done
			if name == "panic" {
				require.Equal(t, "the operation's own", got)
			}
			for range done {
			}
			require.Empty(t, w.ledger.rows(t, name))
			_, err := sqlstore.InTx(t.Context(), w.guard, name, w.pay(name, "b"))
			require.NoError(t, err)
			require.Equal(t, []string{"b"}, w.ledger.rows(t, name))
		}
		require.Zero(t, w.db.Stats().InUse, "no transaction is left open")
	})
}

// One effect per key, whatever the level, with other keys in the way, and with a
// counter that all of them change.
func TestInTx_Isolation(t *testing.T) {
	t.Parallel()
	const callers, keys = 64, 4
	onEach(t, func(t *testing.T, d sqltest.Database) {
		levels := []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}
		if d.Kind == sqltest.SQLite {
			levels = []sql.IsolationLevel{sql.LevelDefault} // which is serializable
		}
		for _, level := range levels {
			t.Run(level.String(), func(t *testing.T) {
				w := newTxWorld(t, d, sqlstore.WithIsolation(level), sqlstore.WithTries(1000))
				table := newTable()
				_, err := w.db.Exec("CREATE TABLE " + table + " (n INTEGER NOT NULL)")
				require.NoError(t, err)
				_, err = w.db.Exec("INSERT INTO " + table + " VALUES (0)")
				require.NoError(t, err)
				var calls atomic.Int64
				var all sync.WaitGroup
				start := make(chan struct{})
				receipts := make([]string, callers)
				for i := range callers {
					all.Go(func() {
						<-start
						key := fmt.Sprint(level, i%keys)
						receipt, err := sqlstore.InTx(t.Context(), w.guard, key, func(ctx context.Context, tx *sql.Tx) (string, error) {
							calls.Add(1)
							var n int
							if err := tx.QueryRowContext(ctx, "SELECT n FROM "+table).Scan(&n); err != nil {
								return "", err
							}
							if _, err := tx.ExecContext(ctx, "UPDATE "+table+" SET n = n + 1"); err != nil {
								return "", err
							}
							return fmt.Sprint(i), w.ledger.add(ctx, tx, key, fmt.Sprint(i))
						}, idempotent.WithCallWait(time.Minute))
						if err != nil {
							t.Error(err)
						}
						receipts[i] = receipt
					})
				}
				close(start)
				all.Wait()
				for i, receipt := range receipts {
					require.Equal(t, []string{receipt}, w.ledger.rows(t, fmt.Sprint(level, i%keys)), "one effect, and everybody is told of it")
				}
				var n int
				require.NoError(t, w.db.QueryRow("SELECT n FROM "+table).Scan(&n))
				require.Equal(t, keys, n)
				t.Logf("%d callers of %d keys, the operation was called %d times", callers, keys, calls.Load())
			})
		}
	})
}

// Two operations that read what the other one writes: one of them is run again
// where the level forbids that, and the sum is right.
func TestInTx_SerializationFailure(t *testing.T) {
	t.Parallel()
	d := sqltest.New(t, sqltest.Postgres)
	for _, tries := range []int{1, 10} {
		t.Run(fmt.Sprint(tries, " tries"), func(t *testing.T) {
			var mu sync.Mutex
			events := map[idempotent.EventKind]int{}
			w := newTxWorld(t, d, sqlstore.WithIsolation(sql.LevelSerializable), sqlstore.WithTries(tries),
				sqlstore.WithGuard(idempotent.WithObserver(idempotent.ObserverFunc(func(_ context.Context, e idempotent.Event) {
					mu.Lock()
					defer mu.Unlock()
					events[e.Kind]++
				}))))
			var calls atomic.Int64
			// Both have read before one writes, and both have written before one
			// commits: the loser is told when it has no statement left to run.
			read, wrote := make(chan struct{}, 2), make(chan struct{}, 2)
			meet := func(at chan struct{}) {
				at <- struct{}{}
				for len(at) < 2 && calls.Load() <= 2 {
					time.Sleep(time.Millisecond)
				}
			}
			errs := make([]error, 2)
			var all sync.WaitGroup
			for i := range 2 {
				key := fmt.Sprint(tries, "-", i)
				all.Go(func() {
					_, errs[i] = sqlstore.InTx(t.Context(), w.guard, key, func(ctx context.Context, tx *sql.Tx) (int, error) {
						first := calls.Add(1) <= 2
						var n int
						if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM ledger").Scan(&n); err != nil {
							return 0, err
						}
						if first {
							meet(read)
						}
						err := w.ledger.add(ctx, tx, key, fmt.Sprint(n))
						if first {
							meet(wrote)
						}
						return n, err
					})
				})
			}
			all.Wait()
			failed := errors.Join(errs...)
			if tries == 1 {
				require.Error(t, failed)
				require.ErrorContains(t, failed, "40001")
				require.EqualValues(t, 2, calls.Load())
				require.Len(t, w.ledger.all(t), 1)
				require.Equal(t, map[idempotent.EventKind]int{
					idempotent.EventClaimed: 2, idempotent.EventCompleted: 1, idempotent.EventLost: 1, idempotent.EventNotRecorded: 1,
				}, events)
				return
			}
			require.NoError(t, failed)
			require.EqualValues(t, 3, calls.Load())
			require.Len(t, w.ledger.all(t), 3)
			require.Equal(t, map[idempotent.EventKind]int{
				idempotent.EventClaimed: 3, idempotent.EventCompleted: 2, idempotent.EventReleased: 1,
			}, events, "what runs again is no loss")
		})
	}
}

// A duplicate of an open transaction is in flight after a while, also where it
// may wait, and gets the outcome where it waits for long enough.
func TestInTx_InFlight(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, d sqltest.Database) {
		w := newTxWorld(t, d)
		hasty := sqlstore.NewTxGuard(w.store, sqlstore.WithGuard(quiet, idempotent.WithStoreTimeout(2*time.Second)))
		open, end := make(chan struct{}), make(chan struct{})
		finish := sync.OnceFunc(func() { close(end) })
		defer finish()
		var all sync.WaitGroup
		all.Go(func() {
			_, err := sqlstore.InTx(t.Context(), w.guard, "k", func(ctx context.Context, tx *sql.Tx) (string, error) {
				close(open)
				<-end
				return w.pay("k", "a")(ctx, tx)
			})
			if err != nil {
				t.Error(err)
			}
		})
		<-open
		for _, wait := range []time.Duration{0, 100 * time.Millisecond} {
			var inFlight *idempotent.InFlightError
			eventually(t, "the key is in flight", func() bool { // a busy machine's database may take its time
				_, err := sqlstore.InTx(t.Context(), hasty, "k", w.pay("k", "b"), idempotent.WithCallWait(wait))
				return errors.As(err, &inFlight)
			})
			require.Positive(t, inFlight.RetryAfter)
		}
		all.Go(func() {
			receipt, err := sqlstore.InTx(t.Context(), w.guard, "k", w.pay("k", "b"), idempotent.WithCallWait(time.Minute))
			if err != nil || receipt != "receipt a" {
				t.Error(receipt, err)
			}
		})
		finish()
		all.Wait()
		require.Equal(t, []string{"a"}, w.ledger.rows(t, "k"))
	})
}

// The transaction takes the place of the lease: an operation that runs for many
// of them is reported, and nobody takes it for abandoned.
func TestInTx_LongRunning(t *testing.T) {
	t.Parallel()
	long := make(chan struct{}, 100)
	w := newTxWorld(t, sqltest.New(t, sqltest.SQLite), sqlstore.WithGuard(idempotent.WithLease(100*time.Millisecond),
		idempotent.WithObserver(idempotent.ObserverFunc(func(_ context.Context, e idempotent.Event) {
			if e.Kind == idempotent.EventLongRunning {
				long <- struct{}{}
			}
		}))))
	var began bool
	eventually(t, "the claim is answered within its lease", func() bool {
		_, err := sqlstore.InTx(t.Context(), w.guard, "k", func(ctx context.Context, tx *sql.Tx) (string, error) {
			began = true
			select {
			case <-long:
			case <-ctx.Done():
			}
			require.NoError(t, ctx.Err())
			return w.pay("k", "a")(ctx, tx)
		})
		require.False(t, began && err != nil, "%v", err)
		return err == nil
	})
	require.Equal(t, []string{"a"}, w.ledger.rows(t, "k"))
}

// An operation may not begin another one in its transaction's place.
func TestInTx_Nested(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		w := newTxWorld(t, d)
		var kept context.Context
		_, err := sqlstore.InTx(t.Context(), w.guard, "outer", func(ctx context.Context, tx *sql.Tx) (string, error) {
			kept = ctx
			got, ok := sqlstore.Tx(ctx)
			require.True(t, ok)
			require.Same(t, tx, got)
			_, err := sqlstore.InTx(ctx, w.guard, "inner", w.pay("inner", "a"))
			require.ErrorIs(t, err, idempotent.ErrInvalid)
			return w.pay("outer", "a")(ctx, tx)
		})
		require.NoError(t, err)
		require.Empty(t, w.ledger.rows(t, "inner"))
		_, ok := sqlstore.Tx(kept)
		require.False(t, ok)
		_, err = sqlstore.InTx(context.WithoutCancel(kept), w.guard, "later", w.pay("later", "a"))
		require.NoError(t, err)
	})
}

// An operation that ends the transaction itself is told so, and nothing runs
// twice.
func TestInTx_EndsItself(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		w := newTxWorld(t, d)
		_, err := sqlstore.InTx(t.Context(), w.guard, "rollback", func(ctx context.Context, tx *sql.Tx) (string, error) {
			require.NoError(t, w.ledger.add(ctx, tx, "rollback", "a"))
			return "", tx.Rollback()
		})
		require.ErrorIs(t, err, sqlstore.ErrRolledBack)
		require.Empty(t, w.ledger.rows(t, "rollback"))
		_, err = sqlstore.InTx(t.Context(), w.guard, "commit", func(ctx context.Context, tx *sql.Tx) (string, error) {
			require.NoError(t, w.ledger.add(ctx, tx, "commit", "a"))
			return "", tx.Commit()
		})
		require.ErrorIs(t, err, sqlstore.ErrCommitUnknown)
		var stored *idempotent.StoreError
		require.ErrorAs(t, err, &stored)
		_, err = sqlstore.InTx(t.Context(), w.guard, "commit", w.pay("commit", "b"))
		var inFlight *idempotent.InFlightError
		require.ErrorAs(t, err, &inFlight)
		require.Equal(t, []string{"a"}, w.ledger.rows(t, "commit"))
	})
}

// eventually waits for a moment at which holds is true: long, since a busy
// machine's database and processes take their time.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("still not so after a minute: ", what)
		}
	}
}

// isCommit tells a COMMIT as drivers send it.
func isCommit(request []byte) bool { return bytes.Contains(bytes.ToLower(request), []byte("commit")) }

// throughRelay returns a world behind a relay, beside one that is not.
func throughRelay(t *testing.T, d sqltest.Database, timeout time.Duration) (near, far txWorld, relay *redistest.Relay) {
	t.Helper()
	far = newTxWorld(t, d)
	relay = redistest.NewRelay(t, d.Addr)
	near = newTxWorld(t, d.At(t, relay.Addr))
	near.guard = sqlstore.NewTxGuard(near.store, sqlstore.WithGuard(quiet, idempotent.WithStoreTimeout(timeout)))
	return near, far, relay
}

// The reply to a COMMIT is lost: the database is asked, and the caller is told
// what has become of the operation.
func TestInTx_CommitReplyLost(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, d sqltest.Database) {
		near, far, relay := throughRelay(t, d, 20*time.Second)
		relay.SwallowReply(isCommit)
		receipt, err := sqlstore.InTx(t.Context(), near.guard, "k", near.pay("k", "a"))
		require.True(t, relay.Swallowed())
		require.NoError(t, err)
		require.Equal(t, "receipt a", receipt)
		receipt, err = sqlstore.InTx(t.Context(), far.guard, "k", far.pay("k", "b"))
		require.NoError(t, err)
		require.Equal(t, "receipt a", receipt)
		require.Equal(t, []string{"a"}, far.ledger.rows(t, "k"))
	})
}

// The COMMIT itself is lost.
func TestInTx_CommitLost(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, d sqltest.Database) {
		near, far, relay := throughRelay(t, d, 20*time.Second)
		caught := relay.HoldRequest(isCommit)
		go func() {
			<-caught
			relay.Cut()
			relay.Mend()
		}()
		_, err := sqlstore.InTx(t.Context(), near.guard, "k", near.pay("k", "a"))
		require.ErrorIs(t, err, sqlstore.ErrRolledBack)
		var stored *idempotent.StoreError
		require.ErrorAs(t, err, &stored)
		require.Empty(t, far.ledger.rows(t, "k"))
		receipt, err := sqlstore.InTx(t.Context(), near.guard, "k", near.pay("k", "b"))
		require.NoError(t, err)
		require.Equal(t, "receipt b", receipt)
	})
}

// Nothing can be learnt of a COMMIT: the caller is told that, and the key has
// the truth, whichever it is.
func TestInTx_CommitUnknown(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, d sqltest.Database) {
		for _, lands := range []bool{false, true} {
			key := fmt.Sprint("lands ", lands)
			near, far, relay := throughRelay(t, d, 6*time.Second)
			match := func(request, _ []byte) bool { return isCommit(request) }
			var caught <-chan struct{}
			if lands {
				caught = relay.HoldReply(match)
			} else {
				caught = relay.HoldRequest(isCommit)
			}
			// Whoever asks does not get through either.
			away := make(chan struct{})
			go func() {
				defer close(away)
				<-caught
				relay.Stall()
			}()
			_, err := sqlstore.InTx(t.Context(), near.guard, key, near.pay(key, "a"))
			require.ErrorIs(t, err, sqlstore.ErrCommitUnknown)
			<-away
			if lands {
				relay.Resume()
			} else {
				relay.Cut()
				relay.Mend()
				relay.Resume()
			}
			receipt, err := sqlstore.InTx(t.Context(), far.guard, key, far.pay(key, "b"))
			require.NoError(t, err)
			want := "b"
			if lands {
				want = "a"
			}
			require.Equal(t, "receipt "+want, receipt)
			require.Equal(t, []string{want}, far.ledger.rows(t, key))
		}
	})
}

// A COMMIT that is late may still land: as long as it may, nobody is told that it
// has not, and the operation does not run again.
func TestInTx_CommitLate(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, d sqltest.Database) {
		near, far, relay := throughRelay(t, d, 8*time.Second)
		relay.HoldRequest(isCommit)
		_, err := sqlstore.InTx(t.Context(), near.guard, "k", near.pay("k", "a"))
		require.ErrorIs(t, err, sqlstore.ErrCommitUnknown)
		require.Empty(t, far.ledger.rows(t, "k"))
		relay.Resume()
		receipt, err := sqlstore.InTx(t.Context(), far.guard, "k", far.pay("k", "b"))
		require.NoError(t, err)
		require.Equal(t, []string{receipt[len("receipt "):]}, far.ledger.rows(t, "k"), "whichever has landed")
	})
}

// A database that is away refuses; nothing runs.
func TestInTx_Away(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, d sqltest.Database) {
		near, _, relay := throughRelay(t, d, time.Second)
		never := func(context.Context, *sql.Tx) (string, error) {
			t.Error("the operation runs although nothing is known of its key")
			return "", nil
		}
		var away *idempotent.StoreError
		relay.Stall()
		_, err := sqlstore.InTx(t.Context(), near.guard, "k", never)
		require.ErrorAs(t, err, &away)
		relay.Resume()
		relay.Cut()
		_, err = sqlstore.InTx(t.Context(), near.guard, "k", never)
		require.ErrorAs(t, err, &away)
		relay.Mend()
		again := sqlstore.NewTxGuard(near.store, patient()...) // a busy machine needs more than a second
		eventually(t, "it works again", func() bool {
			_, err := sqlstore.InTx(t.Context(), again, "k", near.pay("k", "a"))
			if err != nil {
				t.Log(err)
			}
			return err == nil
		})
		require.Len(t, near.ledger.rows(t, "k"), 1)
	})
}

// The caller's end neither tears the transaction nor stays unnoticed.
func TestInTx_Cancelled(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		w := newTxWorld(t, d)
		ctx, cancel := context.WithCancel(t.Context())
		_, err := sqlstore.InTx(ctx, w.guard, "done", func(ctx context.Context, tx *sql.Tx) (string, error) {
			defer cancel()
			return w.pay("done", "a")(ctx, tx)
		})
		require.NoError(t, err)
		require.Len(t, w.ledger.rows(t, "done"), 1)
		_, err = sqlstore.InTx(ctx, w.guard, "late", w.pay("late", "a"))
		require.ErrorIs(t, err, context.Canceled)
		ctx, cancel = context.WithCancel(t.Context())
		_, err = sqlstore.InTx(ctx, w.guard, "cut", func(ctx context.Context, tx *sql.Tx) (string, error) {
			cancel()
			return w.pay("cut", "a")(ctx, tx)
		})
		require.ErrorIs(t, err, context.Canceled)
		require.Empty(t, w.ledger.rows(t, "cut"))
		eventually(t, "no transaction is left open", func() bool { return w.db.Stats().InUse == 0 })
	})
}

func TestNewTxGuard_Panics(t *testing.T) {
	t.Parallel()
	require.Panics(t, func() { sqlstore.NewTxGuard(nil) })
	require.Panics(t, func() { sqlstore.WithTries(0) })
	s := newStore(t, sqltest.New(t, sqltest.SQLite).Open(t), sqltest.SQLite)
	g := sqlstore.NewTxGuard(s)
	_, err := sqlstore.InTx[int](t.Context(), g, "k", nil)
	require.ErrorIs(t, err, idempotent.ErrInvalid)
	_, _, err = g.Run(t.Context(), "k", nil)
	require.ErrorIs(t, err, idempotent.ErrInvalid)
	require.NoError(t, g.Drain(t.Context()))
	_, err = sqlstore.InTx(t.Context(), g, "k", func(context.Context, *sql.Tx) (int, error) { return 0, nil })
	require.ErrorIs(t, err, idempotent.ErrClosed)
	require.False(t, sqlstore.Again(t.Context(), &pgconn.PgError{Code: "40001"}))
}
