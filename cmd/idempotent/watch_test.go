package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
)

// flaky is a store whose listing fails while it holds an error.
type flaky struct {
	*memstore.Store
	err atomic.Pointer[error]
}

func (f *flaky) List(ctx context.Context, q idempotent.ListQuery) (idempotent.Page, error) {
	if err := f.err.Load(); err != nil {
		return idempotent.Page{}, *err
	}
	return f.Store.List(ctx, q)
}

func TestWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &flaky{Store: memstore.New(memstore.WithLogger(silent), memstore.WithSweepInterval(0))}
		ctx := t.Context()
		claim := func(key, owner string, lease time.Duration, takeOver bool) {
			_, claimed, err := store.Claim(ctx, key, idempotent.Claim{Owner: owner, Trace: "t", Lease: lease, Keep: time.Hour, TakeOver: takeOver})
			require.NoError(t, err)
			require.True(t, claimed)
		}
		complete := func(key, owner string, o idempotent.Outcome) {
			o.Result, o.Retention = "x", time.Hour
			require.NoError(t, store.Complete(ctx, key, owner, o))
		}
		failed := idempotent.Outcome{Status: idempotent.Failed}
		success := idempotent.Outcome{Status: idempotent.Success}
		unknown := idempotent.Outcome{Status: idempotent.Failed, Unknown: true}
		claim("old", "o", time.Hour, false)
		complete("doubt", "o", unknown)
		claim("stuck", "o", time.Second, true)

		term := newTerminal(store)
		watching, stop := context.WithCancel(ctx)
		defer stop() // also where the test fails, or the bubble waits for ever
		ended := make(chan int, 1)
		go func() { ended <- term.run(watching, []string{"watch", "-json"}) }()
		synctest.Wait()
		require.Equal(t, "3 entries, 2 pending, 1 unknown; changes from now on:\n", term.err.String())
		require.Empty(t, term.stdout.String(), "what is there is no change")
		// changed returns what the next look tells.
		changed := func() string {
			time.Sleep(2 * time.Second)
			synctest.Wait()
			var all []string
			for line := range strings.Lines(term.stdout.String()) {
				var c struct{ Change, Was, State, Key, Owner string }
				require.NoError(t, json.Unmarshal([]byte(line), &c))
				all = append(all, strings.TrimSpace(c.Key+" "+c.Change+" "+c.Was+">"+c.State+" "+c.Owner))
			}
			term.stdout.Reset()
			return strings.Join(all, "; ")
		}
		require.Equal(t, "stuck unknown pending>unknown o", changed())
		require.Empty(t, changed(), "the same twice is no change")
		claim("young", "p", time.Hour, false)
		complete("quick", "q", success)
		claim("stuck", "r", time.Hour, true)
		require.Equal(t, "quick new >success q; stuck taken unknown>pending r; young new >pending p", changed())
		complete("old", "o", success)
		complete("young", "p", failed)
		complete("doubt", "o", success)
		require.Equal(t, "doubt resolved unknown>success o; old finished pending>success o; young finished pending>failed p", changed())
		require.NoError(t, store.Delete(ctx, "old"))
		require.NoError(t, store.Delete(ctx, "quick"))
		claim("quick", "z", time.Hour, false)
		require.Equal(t, "quick new success>pending z; old gone success>success o", changed())

		outage := errors.New("out of order")
		store.err.Store(&outage)
		require.Empty(t, changed(), "what cannot be looked at is not gone")
		require.Contains(t, term.err.String(), "this look failed: out of order")
		store.err.Store(nil)
		require.Empty(t, changed())

		stop()
		require.Equal(t, exitOK, <-ended)
		require.NoError(t, store.Close())
	})
}

// For people a change is a line, and a store that fails at once is an error.
func TestWatch_Table(t *testing.T) {
	t.Parallel()
	store := newMemory(t)
	var out bytes.Buffer
	term := newTerminal(store)
	s := &session{program: &term.program}
	w := watcher{session: s}
	s.out = bufio.NewWriter(&out)
	fill(t, store, "")
	e, _, err := store.Load(t.Context(), "success")
	require.NoError(t, err)
	require.NoError(t, w.write([]change{{"finished", "pending", seen{"success", e}}}, time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)))
	require.Equal(t, "03:04:05  finished  success   trace-success  success\n", out.String())

	broken, outage := &flaky{Store: store}, errors.New("out of order")
	broken.err.Store(&outage)
	code, _, said := newTerminal(broken).says("watch")
	require.Equal(t, exitError, code)
	require.Contains(t, said, "out of order")
}

func TestBecame(t *testing.T) {
	t.Parallel()
	in := func(state, owner string) seen { return seen{state, idempotent.Entry{Owner: owner}} }
	for _, c := range []struct {
		was, is seen
		what    string
	}{
		{in("pending", "a"), in("pending", "a"), ""},
		{in("pending", "a"), in("pending", "b"), "taken"},
		{in("success", "a"), in("corrupt", ""), "corrupt"},
		{in("corrupt", ""), in("corrupt", ""), ""},
		{in("corrupt", ""), in("pending", "a"), "new"},
		{in("unknown", "a"), in("pending", "a"), "resolved"},
	} {
		require.Equal(t, c.what, became(c.was, c.is), c)
	}
}
