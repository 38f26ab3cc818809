package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

func TestResolve(t *testing.T) {
	t.Parallel()
	store := newMemory(t)
	body := filepath.Join(t.TempDir(), "body")
	require.NoError(t, os.WriteFile(body, []byte(`{"id":7}`), 0o600))
	for _, c := range []struct {
		as      string
		extra   []string
		becomes string
	}{
		{"success", nil, "success"},
		{"failure", []string{"-retention", "90m"}, "failed"},
		{"release", nil, ""},
		{"success", []string{"-status", "201", "-body-file", body, "-content-type", "application/json"}, "success"},
	} {
		for _, key := range []string{"unknown", "abandoned"} {
			name := strings.Join(append([]string{c.as, key}, c.extra...), " ")
			require.NoError(t, store.Delete(t.Context(), key))
			for _, other := range []string{"pending", "success", "failed", "unknown", "abandoned"} {
				require.NoError(t, store.Delete(t.Context(), other))
			}
			fill(t, store, "")
			term := newTerminal(store)
			term.env["USER"] = "ada"
			code, out, err := term.says(append([]string{"resolve", key, "-as", c.as, "-owner", "owner-" + key, "-reason", "seen at the bank", "-yes"}, c.extra...)...)
			require.Equal(t, exitOK, code, "%s: %s", name, err)
			require.Empty(t, out)
			require.Contains(t, err, `msg="idempotent: resolved as `+c.as+`" key=`+idempotent.LogKey(key)+` was=unknown owner=owner-`+key+` reason="seen at the bank" by=ada`)
			e, found, loadErr := store.Load(t.Context(), key)
			require.NoError(t, loadErr)
			require.Equal(t, c.becomes != "", found, name)
			if !found {
				continue
			}
			require.Equal(t, c.becomes, stateOf(e), name)
			result, decodeErr := idempotent.DecodeResult(e)
			require.NoError(t, decodeErr)
			if len(c.extra) == 6 {
				require.Equal(t, 201, result.Status)
				require.Equal(t, "application/json", result.Header.Get("Content-Type"))
				require.Equal(t, `{"id":7}`, result.Text)
			} else {
				require.Equal(t, idempotent.ResultNone, result.Encoding)
			}
			if c.as == "failure" {
				require.InDelta(t, 90, e.Expires.Sub(e.Timestamp).Minutes(), 0.01)
			}
		}
	}
}

func TestResolve_Refuses(t *testing.T) {
	t.Parallel()
	store := newMemory(t)
	fill(t, store, "")
	term := newTerminal(store)
	for _, c := range []struct {
		key, owner string
		code       int
		says       string
	}{
		{"nobody", "o", exitNotFound, "no entry under nobody"},
		{"pending", "owner-pending", exitInFlight, "in flight"},
		{"pending", "somebody", exitConflict, "the entry's owner is owner-pending by now"},
		{"unknown", "somebody", exitConflict, "the entry's owner is owner-unknown by now"},
		{"success", "owner-success", exitConflict, "known outcome (success)"},
		{"failed", "owner-failed", exitConflict, "known outcome (failed)"},
	} {
		before, _, err := store.Load(t.Context(), c.key)
		require.NoError(t, err)
		code, out, said := term.says("resolve", c.key, "-as", "release", "-owner", c.owner, "-reason", "r", "-yes")
		require.Equal(t, c.code, code, "%v: %s", c, said)
		require.Empty(t, out)
		require.Contains(t, said, c.says)
		require.NotContains(t, said, "msg=", "nothing was done, and nothing is logged")
		after, _, err := store.Load(t.Context(), c.key)
		require.NoError(t, err)
		require.Equal(t, before, after)
	}
}

// Nothing changes without a yes.
func TestConfirmation(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		asks string
	}{
		{[]string{"resolve", "abandoned", "-as", "release", "-owner", "owner-abandoned", "-reason", "r"}, "only if the process that ran it is dead. Release it, so that the next repeat RUNS it? [y/N]"},
		{[]string{"resolve", "unknown", "-as", "success", "-owner", "owner-unknown", "-reason", "r"}, "Settle it as success? [y/N]"},
		{[]string{"free", "unknown", "-reason", "r"}, "RUNS it? [y/N]"},
		{[]string{"free", "pending", "-reason", "r", "-force"}, "RUNNING, is not told, and may run twice\nRemove pending? [y/N]"},
	} {
		store := newMemory(t)
		fill(t, store, "")
		term := newTerminal(store)
		key := c.args[1]
		before, _, err := store.Load(t.Context(), key)
		require.NoError(t, err)
		unchanged := func() {
			t.Helper()
			after, found, err := store.Load(t.Context(), key)
			require.NoError(t, err)
			require.True(t, found)
			require.Equal(t, before, after)
		}
		for _, answer := range []string{"n\n", "\n", "", "yesterday\n"} {
			code, _, said := term.answers(answer, c.args...)
			require.Equal(t, exitDeclined, code, said)
			require.Contains(t, said, c.asks)
			require.NotContains(t, said, "msg=")
			unchanged()
		}
		code, _, said := term.says(c.args...)
		require.Equal(t, exitUsage, code, said)
		require.Contains(t, said, "add -yes")
		unchanged()
		code, _, said = term.answers("Yes\n", c.args...)
		require.Equal(t, exitOK, code, said)
		after, found, err := store.Load(t.Context(), key)
		require.NoError(t, err)
		require.False(t, found && stateOf(after) == stateOf(before))
	}
}

func TestFree(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		key    string
		code   int
		says   string
		forced string
	}{
		{"unknown", exitOK, `msg="idempotent: freed"`, "may have happened"},
		{"abandoned", exitOK, `msg="idempotent: freed"`, "may have happened"},
		{"pending", exitInFlight, "an operation is running under this key; -force", "RUNNING"},
		{"success", exitConflict, "the outcome is known (success)", "will run again"},
		{"failed", exitConflict, "the outcome is known (failed)", "will run again"},
	} {
		store := newMemory(t)
		fill(t, store, "")
		term := newTerminal(store)
		code, _, said := term.says("free", c.key, "-reason", "never sent", "-yes")
		require.Equal(t, c.code, code, "%s: %s", c.key, said)
		require.Contains(t, said, c.says)
		_, found, err := store.Load(t.Context(), c.key)
		require.NoError(t, err)
		require.Equal(t, c.code != exitOK, found, c.key)

		fill(t, store, "again-")
		code, _, said = term.says("free", "again-"+c.key, "-reason", "never sent", "-yes", "-force")
		require.Equal(t, exitOK, code, said)
		require.Contains(t, said, "warning: the entry is ")
		require.Contains(t, said, c.forced)
		require.Contains(t, said, `msg="idempotent: removed by force" key=`+idempotent.LogKey("again-"+c.key))
		require.Contains(t, said, `reason="never sent"`)
		_, found, err = store.Load(t.Context(), "again-"+c.key)
		require.NoError(t, err)
		require.False(t, found)
	}
	term := newTerminal(newMemory(t))
	for _, force := range []string{"-force", "-force=false"} {
		code, _, said := term.says("free", "nobody", "-reason", "r", "-yes", force)
		require.Equal(t, exitNotFound, code, said)
	}
}

// A claim gained by take-over is freed too: a release by its owner alone would
// leave it abandoned.
func TestFree_TakenOver(t *testing.T) {
	t.Parallel()
	store := newMemory(t)
	fill(t, store, "")
	claim := idempotent.Claim{Owner: "second", Lease: idempotent.MinDuration, Keep: time.Hour, TakeOver: true}
	first := claim
	first.Owner = "first"
	for _, c := range []idempotent.Claim{first, claim} {
		require.Eventually(t, func() bool {
			_, claimed, err := store.Claim(t.Context(), "k", c)
			return err == nil && claimed
		}, 5*time.Second, time.Millisecond)
	}
	term := newTerminal(store)
	require.Eventually(t, func() bool {
		code, _, _ := term.says("free", "k", "-reason", "r", "-yes")
		return code == exitOK
	}, 5*time.Second, time.Millisecond)
	_, found, err := store.Load(t.Context(), "k")
	require.NoError(t, err)
	require.False(t, found)
}

// During a move a decision is one about both stores: either could answer.
func TestSettle_Move(t *testing.T) {
	t.Parallel()
	old, new := newMemory(t), newMemory(t)
	term := newTerminal(idempotent.Moving(old, new))
	fill(t, idempotent.Moving(old, new), "")
	code, _, said := term.says("resolve", "unknown", "-as", "success", "-owner", "owner-unknown", "-reason", "r", "-yes")
	require.Equal(t, exitOK, code, said)
	code, _, said = term.says("free", "abandoned", "-reason", "r", "-yes")
	require.Equal(t, exitOK, code, said)
	for _, store := range []idempotent.Store{old, new} {
		e, _, err := store.Load(t.Context(), "unknown")
		require.NoError(t, err)
		require.Equal(t, idempotent.Success, e.Status)
		_, found, err := store.Load(t.Context(), "abandoned")
		require.NoError(t, err)
		require.False(t, found)
	}
}
