package sqlstore_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/sqlstore"
	"github.com/idempotent-go/idempotent/sqlstore/internal/sqltest"
)

// soon are pauses for tests.
func soon() sqlstore.ReconcileOption {
	return sqlstore.WithReconcilePauses(time.Millisecond, 20*time.Millisecond)
}

// unhurried is of a guard whose settlements a busy machine does not cut off: an
// answer that was not stored is asked for again.
var unhurried = idempotent.WithStoreTimeout(time.Minute)

// reconcile runs a reconciler in the background until the test or stop ends it.
func reconcile(t *testing.T, s *sqlstore.Store, g *idempotent.Guard, ask sqlstore.AskFunc, opts ...sqlstore.ReconcileOption) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- sqlstore.Reconcile(ctx, s, g, ask, opts...) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error("Reconcile:", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func TestReconcile_Panics(t *testing.T) {
	t.Parallel()
	db := sqltest.New(t, sqltest.SQLite).Open(t)
	s := newStore(t, db, sqltest.SQLite)
	ask := func(context.Context, sqlstore.Unknown) (idempotent.Class, string, error) { return 0, "", nil }
	for name, f := range map[string]func(){
		"store":          func() { _ = sqlstore.Reconcile(t.Context(), nil, idempotent.New(s), ask) },
		"guard":          func() { _ = sqlstore.Reconcile(t.Context(), s, nil, ask) },
		"ask":            func() { _ = sqlstore.Reconcile(t.Context(), s, idempotent.New(s), nil) },
		"age":            func() { sqlstore.WithReconcileAge(-1) },
		"first":          func() { sqlstore.WithReconcilePauses(0, 1) },
		"most":           func() { sqlstore.WithReconcilePauses(2, 1) },
		"errors for nil": func() { sqlstore.WithReconcileErrors(nil) },
	} {
		require.Panics(t, f, name)
	}
}

// Each answer settles its outcome; none, and an error, leave it.
func TestReconcile(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		s := newStore(t, d.Open(t), d.Kind)
		g := idempotent.New(s, unhurried)
		ctx := t.Context()
		boom := errors.New("boom")
		answers := map[string]struct {
			class  idempotent.Class
			result string
			err    error
		}{
			"success": {idempotent.ClassSuccess, "found", nil},
			"failure": {idempotent.ClassFailure, "refused", nil},
			"release": {idempotent.ClassRelease, "", nil},
			"default": {idempotent.ClassDefault, "found", nil},
			"unknown": {idempotent.ClassUnknown, "found", nil},
			"error":   {idempotent.ClassSuccess, "found", boom},
			"none":    {idempotent.ClassDefault, "", boom},
			"invalid": {idempotent.Class(99), "found", nil},
		}
		for _, kind := range []string{"abandoned ", "recorded "} {
			for key := range answers {
				if kind == "recorded " {
					require.NoError(t, s.Complete(ctx, kind+key, "a", unknownOutcome()))
				} else {
					abandon(t, s, kind+key, "a", time.Hour)
				}
			}
		}
		var mu sync.Mutex
		asked, told := map[string]int{}, map[string]error{}
		stop := reconcile(t, s, g, func(_ context.Context, u sqlstore.Unknown) (idempotent.Class, string, error) {
			mu.Lock()
			defer mu.Unlock()
			asked[u.Key]++
			_, key, _ := strings.Cut(u.Key, " ")
			a := answers[key]
			return a.class, a.result, a.err
		}, soon(), sqlstore.WithReconcileAge(0), sqlstore.WithReconcileErrors(func(_ context.Context, u sqlstore.Unknown, err error) {
			mu.Lock()
			defer mu.Unlock()
			told[u.Key] = err
		}))
		redistest.Eventually(t, "all are asked about, and those without an answer again", func() bool {
			mu.Lock()
			defer mu.Unlock()
			for _, kind := range []string{"abandoned ", "recorded "} {
				for _, key := range []string{"default", "unknown", "error", "none", "invalid"} {
					if asked[kind+key] < 3 {
						return false
					}
				}
			}
			return true
		})
		stop()
		for _, kind := range []string{"abandoned ", "recorded "} {
			for key, a := range answers {
				e, found, err := s.Load(ctx, kind+key)
				require.NoError(t, err)
				switch key {
				case "success", "failure":
					require.Equal(t, 1, asked[kind+key], told[kind+key])
					require.False(t, e.Unknown, kind+key)
					require.Equal(t, key == "success", e.Status == idempotent.Success)
					require.Equal(t, a.result, e.Result)
				case "release":
					require.Equal(t, 1, asked[kind+key])
					require.False(t, found)
				default:
					require.True(t, e.Unknown, kind+key)
				}
				require.Equal(t, key == "error" || key == "none", errors.Is(told[kind+key], boom), kind+key)
				require.Equal(t, key == "invalid", errors.Is(told[kind+key], idempotent.ErrInvalid), kind+key)
			}
		}
	})
}

// A young abandoned claim is its owner's to settle; one recorded as unknown is
// asked about at once.
func TestReconcile_Age(t *testing.T) {
	t.Parallel()
	d := sqltest.New(t, sqltest.SQLite)
	db := d.Open(t)
	s := newStore(t, db, d.Kind)
	abandon(t, s, "young", "a", time.Hour)
	abandon(t, s, "old", "a", time.Hour)
	_, err := db.Exec("UPDATE " + sqlstore.DefaultTable + " SET expires_at = expires_at - 3600000000, keep_for = 7200000000 WHERE name = " + quoted(d.Kind, "old"))
	require.NoError(t, err)
	require.NoError(t, s.Complete(t.Context(), "recorded", "a", unknownOutcome()))
	keys := make(chan string, 100)
	stop := reconcile(t, s, idempotent.New(s, unhurried), func(_ context.Context, u sqlstore.Unknown) (idempotent.Class, string, error) {
		keys <- u.Key
		return idempotent.ClassSuccess, "r", nil
	}, soon())
	got := []string{<-keys, <-keys}
	require.NoError(t, s.Complete(t.Context(), "second", "a", unknownOutcome())) // a round later
	require.Equal(t, "second", <-keys)
	redistest.Eventually(t, "only the young one is left", func() bool { return len(unknowns(t, s)) == 1 })
	stop()
	require.Empty(t, keys)
	require.Equal(t, []string{"old", "recorded"}, got)
	require.Equal(t, "young", unknowns(t, s)[0].Key)
}

// The pauses between two questions about one outcome grow, up to the most, and
// those between two readings while the database fails. Time is the bubble's.
func TestReconcile_Pauses(t *testing.T) {
	dsn := sqltest.New(t, sqltest.SQLite).DSN
	synctest.Test(t, func(t *testing.T) {
		db, err := sql.Open("sqlite", dsn)
		require.NoError(t, err)
		defer func() { _ = db.Close() }()
		s := newStore(t, db, sqltest.SQLite)
		g := idempotent.New(s)
		require.NoError(t, s.Complete(t.Context(), "k", "a", unknownOutcome()))
		const first, most = time.Minute, 8 * time.Minute
		pauses := sqlstore.WithReconcilePauses(first, most)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
		defer cancel()
		var at []time.Time
		err = sqlstore.Reconcile(ctx, s, g, func(context.Context, sqlstore.Unknown) (idempotent.Class, string, error) {
			at = append(at, time.Now())
			return idempotent.ClassDefault, "", nil
		}, pauses)
		require.Equal(t, context.DeadlineExceeded, err)
		require.Greater(t, len(at), 12)
		for i := 1; i < len(at); i++ {
			pause := min(first<<min(i-1, 20), most)
			require.GreaterOrEqual(t, at[i].Sub(at[i-1]), pause/2, i)
			require.LessOrEqual(t, at[i].Sub(at[i-1]), pause+first, i)
		}

		_, err = db.Exec("DROP VIEW " + sqlstore.DefaultTable + "_unknown")
		require.NoError(t, err)
		ctx, cancel = context.WithTimeout(t.Context(), 2*time.Hour)
		defer cancel()
		at = nil
		err = sqlstore.Reconcile(ctx, s, g, func(context.Context, sqlstore.Unknown) (idempotent.Class, string, error) {
			t.Error("nobody is asked")
			return idempotent.ClassDefault, "", nil
		}, pauses, sqlstore.WithReconcileErrors(func(_ context.Context, u sqlstore.Unknown, err error) {
			require.Zero(t, u)
			require.Error(t, err)
			at = append(at, time.Now())
		}))
		require.Equal(t, context.DeadlineExceeded, err)
		require.Greater(t, len(at), 12)
		require.Less(t, len(at), 40)

		require.NoError(t, s.Close())
		require.ErrorIs(t, sqlstore.Reconcile(t.Context(), s, g, func(context.Context, sqlstore.Unknown) (idempotent.Class, string, error) {
			return idempotent.ClassDefault, "", nil
		}), idempotent.ErrClosed)
	})
}

// An answer that comes when ctx has ended settles nothing, and Reconcile does
// not go on.
func TestReconcile_StopsAtContext(t *testing.T) {
	t.Parallel()
	d := sqltest.New(t, sqltest.SQLite)
	s := newStore(t, d.Open(t), d.Kind)
	for i := range 5 {
		require.NoError(t, s.Complete(t.Context(), fmt.Sprint(i), "a", unknownOutcome()))
	}
	ctx, cancel := context.WithCancel(t.Context())
	asked := 0
	err := sqlstore.Reconcile(ctx, s, idempotent.New(s), func(context.Context, sqlstore.Unknown) (idempotent.Class, string, error) {
		asked++
		cancel()
		return idempotent.ClassSuccess, "r", nil
	}, sqlstore.WithReconcileErrors(func(_ context.Context, _ sqlstore.Unknown, err error) { t.Error(err) }))
	require.Equal(t, context.Canceled, err)
	require.Equal(t, 1, asked)
	require.Len(t, unknowns(t, s), 5)
}

// Several at once, whose answers differ: one answer stands for each outcome, and
// an execution that has begun since is left alone.
func TestReconcile_SeveralAtOnce(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		db := d.Open(t)
		s := newStore(t, db, d.Kind)
		ctx := t.Context()
		const n = 24
		for i := range n {
			require.NoError(t, s.Complete(ctx, fmt.Sprint("k", i), "a", unknownOutcome()))
		}
		var stops []func()
		var mu sync.Mutex
		settled := map[string][]string{} // by key, who was told that it had settled it
		for i := range 4 {
			name := fmt.Sprint("process ", i)
			observer := idempotent.ObserverFunc(func(_ context.Context, e idempotent.Event) {
				if e.Kind == idempotent.EventResolved {
					mu.Lock()
					defer mu.Unlock()
					settled[e.Key] = append(settled[e.Key], name)
				}
			})
			g := idempotent.New(newStore(t, db, d.Kind), idempotent.WithObserver(observer), unhurried)
			stops = append(stops, reconcile(t, s, g, func(context.Context, sqlstore.Unknown) (idempotent.Class, string, error) {
				return idempotent.ClassSuccess, name, nil
			}, soon(), sqlstore.WithReconcileErrors(func(_ context.Context, _ sqlstore.Unknown, err error) { t.Error(err) })))
		}
		redistest.Eventually(t, "all are settled", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(settled) == n
		})
		require.Empty(t, unknowns(t, s))
		for _, stop := range stops {
			stop()
		}
		for key, by := range settled {
			e, _, err := s.Load(ctx, key)
			require.NoError(t, err)
			require.Equal(t, []string{e.Result}, by, "who is told so has settled it")
		}
	})
}

// While the question is asked, somebody frees the key and it runs anew: the
// answer is about another execution, and changes nothing.
func TestReconcile_KeyRunsAnew(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		s := newStore(t, d.Open(t), d.Kind)
		g := idempotent.New(s, unhurried)
		ctx := t.Context()
		abandon(t, s, "k", "dead", time.Hour)
		asked := 0
		stop := reconcile(t, s, g, func(_ context.Context, u sqlstore.Unknown) (idempotent.Class, string, error) {
			asked++
			if err := g.Resolve(ctx, u.Key, u.Owner, idempotent.ClassRelease, ""); err != nil {
				t.Error(err)
			}
			if _, ok, err := s.Claim(ctx, u.Key, claim("new")); !ok || err != nil {
				t.Error(ok, err)
			}
			if err := s.Complete(ctx, "asked", "a", success("")); err != nil {
				t.Error(err)
			}
			return idempotent.ClassFailure, "stale", nil
		}, soon(), sqlstore.WithReconcileAge(0), sqlstore.WithReconcileErrors(func(_ context.Context, _ sqlstore.Unknown, err error) { t.Error(err) }))
		redistest.Eventually(t, "it is asked", func() bool {
			_, found, err := s.Load(ctx, "asked")
			require.NoError(t, err)
			return found
		})
		stop()
		require.Equal(t, 1, asked)
		e, _, err := s.Load(ctx, "k")
		require.NoError(t, err)
		require.Equal(t, "new", e.Owner)
		require.Equal(t, idempotent.Pending, e.Status)
	})
}

// The payment of the story, in a process that is killed.
const (
	paymentDriver = "IDEMPOTENT_TEST_PAYMENT_DRIVER" // set in the process that pays
	paymentDSN    = "IDEMPOTENT_TEST_PAYMENT_DSN"
	paymentKind   = "IDEMPOTENT_TEST_PAYMENT_KIND"
)

// pay makes the payment at the provider, which is a table that takes anything.
func pay(ctx context.Context, db *sql.DB, key string) error {
	_, err := db.ExecContext(ctx, "INSERT INTO payments (id, receipt) VALUES ('"+key+"', 'receipt 17')")
	return err
}

// TestReconcile_PayingProcess is what runs in the process that is killed: it
// pays, and never comes to record it. By itself it does nothing.
func TestReconcile_PayingProcess(t *testing.T) {
	if os.Getenv(paymentDSN) == "" {
		return
	}
	db, err := sql.Open(os.Getenv(paymentDriver), os.Getenv(paymentDSN))
	require.NoError(t, err)
	s := sqlstore.New(db, dialects[sqltest.Kind(os.Getenv(paymentKind))])
	g := idempotent.New(s)
	_, err = idempotent.Do(context.Background(), g, "order-17", func(ctx context.Context) (string, error) {
		require.NoError(t, pay(ctx, db, "order-17"))
		fmt.Println("paid")
		select {} // killed here
	}, idempotent.WithCallTrace("trace-17"))
	t.Fatal("it goes on:", err)
}

// The payment is done and its record is not written, for the process was killed
// in between. Nobody pays twice: repeats are refused, the observer and the view
// tell of it, the reconciler finds the payment, and repeats get its receipt.
func TestReconcile_PaymentDoneRecordNotWritten(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d sqltest.Database) {
		db := d.Open(t)
		ctx := t.Context()
		_, err := db.Exec("CREATE TABLE payments (id VARCHAR(64), receipt VARCHAR(64))")
		require.NoError(t, err)
		s := newStore(t, db, d.Kind)

		cmd := exec.Command(os.Args[0], "-test.run=^TestReconcile_PayingProcess$")
		cmd.Env = append(os.Environ(), paymentDriver+"="+d.Driver, paymentDSN+"="+d.DSN, paymentKind+"="+string(d.Kind))
		output, err := cmd.StdoutPipe()
		require.NoError(t, err)
		var complaint strings.Builder
		cmd.Stderr = &complaint
		require.NoError(t, cmd.Start())
		said, err := bufio.NewReader(output).ReadString('\n')
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		t.Log(complaint.String())
		require.NoError(t, err)
		require.Equal(t, "paid\n", said)

		var mu sync.Mutex
		var events []idempotent.Event
		g := idempotent.New(s, unhurried, idempotent.WithObserver(idempotent.ObserverFunc(func(_ context.Context, e idempotent.Event) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, e)
		})))
		repeat := func() (string, error) {
			return idempotent.Do(ctx, g, "order-17", func(ctx context.Context) (string, error) {
				t.Error("paid twice")
				return "", pay(ctx, db, "order-17")
			})
		}
		_, err = repeat()
		var running *idempotent.InFlightError
		require.ErrorAs(t, err, &running, "nobody knows yet that the process is dead")
		endLeases(t, db)
		_, err = repeat()
		require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)

		require.Len(t, unknowns(t, s), 1)
		u := unknowns(t, s)[0]
		require.True(t, u.Abandoned)
		require.Equal(t, "order-17", u.Key)
		require.Equal(t, "trace-17", u.Trace)
		observed := func(kind idempotent.EventKind) bool {
			mu.Lock()
			defer mu.Unlock()
			return slices.ContainsFunc(events, func(e idempotent.Event) bool {
				return e.Kind == kind && e.Key == u.Key && e.Owner == u.Owner
			})
		}
		require.True(t, observed(idempotent.EventAbandoned))

		asked := 0
		stop := reconcile(t, s, g, func(ctx context.Context, u sqlstore.Unknown) (idempotent.Class, string, error) {
			if asked++; asked == 1 {
				return idempotent.ClassFailure, "", errors.New("the provider is away")
			}
			var receipt string
			err := db.QueryRowContext(ctx, "SELECT receipt FROM payments WHERE id = '"+u.Key+"'").Scan(&receipt)
			if errors.Is(err, sql.ErrNoRows) {
				return idempotent.ClassRelease, "", nil
			}
			if err != nil {
				return idempotent.ClassDefault, "", err
			}
			result, err := idempotent.EncodeValue(receipt)
			return idempotent.ClassSuccess, result, err
		}, soon(), sqlstore.WithReconcileAge(0))
		redistest.Eventually(t, "it is settled", func() bool { return observed(idempotent.EventResolved) })
		stop()
		require.Empty(t, unknowns(t, s))
		require.Equal(t, 2, asked)
		for range 2 {
			receipt, err := repeat()
			require.NoError(t, err)
			require.Equal(t, "receipt 17", receipt)
		}
		var payments int
		require.NoError(t, db.QueryRow("SELECT COUNT(*) FROM payments").Scan(&payments))
		require.Equal(t, 1, payments)
	})
}
