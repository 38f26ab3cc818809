package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
)

func TestCheck_Redis(t *testing.T) {
	t.Parallel()
	bad := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	term := newRealTerminal("redis://" + bad.Addr)
	code, out, err := term.says("check")
	require.Equal(t, exitFindings, code, err)
	require.Contains(t, out, "maxmemory-policy: allkeys-lru\n  breaks  at its maxmemory the server throws away claims")
	require.Contains(t, out, "\n  fix     set maxmemory-policy noeviction")
	require.Contains(t, out, "appendonly: no\n")
	require.Contains(t, err, "2 found")
	_, out, _ = term.says("check", "-json")
	require.Equal(t, 2, strings.Count(out, "\n"))
	for line := range strings.Lines(out) {
		var f finding
		require.NoError(t, json.Unmarshal([]byte(line), &f))
		require.NotContains(t, []string{f.Setting, f.Value, f.Breaks, f.Fix}, "")
	}
	require.Equal(t, "*0", "*"+bad.Must(t, "KEYS", "*"), "nothing of the trial stays")

	good := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	code, out, err = newRealTerminal("redis://" + good.Addr).says("check")
	require.Equal(t, exitOK, code, err+out)
	require.Contains(t, out, "ok: ")

	gone := redistest.Start(t)
	gone.Kill()
	code, out, err = newRealTerminal("redis://ada:hunter2@" + gone.Addr + "?max_retries=0").says("check")
	require.Equal(t, exitError, code)
	require.Empty(t, out)
	require.Contains(t, err, "the store cannot be opened")
	require.NotContains(t, err, "hunter2")
}

func TestCheck_SQL(t *testing.T) {
	t.Parallel()
	code, out, err := newRealTerminal(newSQLite(t, true)).says("check")
	require.Equal(t, exitOK, code, err+out)
	code, out, err = newRealTerminal(newSQLite(t, false)).says("check")
	require.Equal(t, exitFindings, code, err)
	require.Contains(t, out, "table: ")
	require.Contains(t, out, "no such table: idempotent_entries")
	require.Contains(t, out, "have the program call Migrate")
}

// Of a move both stores are checked.
func TestCheck_Move(t *testing.T) {
	t.Parallel()
	durable := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	bad := redistest.Start(t)
	for moving, finding := range map[string]string{
		"moving:redis://" + durable.Addr + " redis://" + durable.Addr + "/1": "",
		"moving:redis://" + durable.Addr + " redis://" + bad.Addr:            "new store, appendonly: no\n  breaks  ",
		"moving:redis://" + bad.Addr + " redis://" + durable.Addr:            "old store, appendonly: no\n  breaks  ",
	} {
		code, out, err := newRealTerminal(moving).says("check")
		if finding == "" {
			require.Equal(t, exitOK, code, err+out)
			continue
		}
		require.Equal(t, exitFindings, code, err+out)
		require.Contains(t, out, finding)
		require.Contains(t, err, "1 found")
	}
	require.Equal(t, "*0", "*"+bad.Must(t, "KEYS", "*"), "nothing of the trial stays")
}

// generous is a store that gives a key to everybody.
type generous struct{ idempotent.Store }

func (g generous) Claim(ctx context.Context, key string, c idempotent.Claim) (idempotent.Entry, bool, error) {
	e, _, err := g.Store.Claim(ctx, key, c)
	return e, true, err
}

// full is a store without room.
type full struct{ idempotent.Store }

func (full) Claim(context.Context, string, idempotent.Claim) (idempotent.Entry, bool, error) {
	return idempotent.Entry{}, false, idempotent.ErrFull
}

// deaf is a store that answers late.
type deaf struct{ idempotent.Store }

func (deaf) Claim(ctx context.Context, _ string, _ idempotent.Claim) (idempotent.Entry, bool, error) {
	<-ctx.Done()
	return idempotent.Entry{}, false, ctx.Err()
}

// Each step is really taken.
func TestCheck_Steps(t *testing.T) {
	t.Parallel()
	memory := newMemory(t)
	for name, c := range map[string]struct {
		store idempotent.Store
		says  []string
	}{
		"generous":  {generous{memory}, []string{"step second claim: a key was given out twice"}},
		"forgetful": {forgetful{memory}, []string{"step load: what was recorded did not come back", "mend what the error names"}},
		"refusing":  {refusing{memory}, []string{"step claim: refused"}},
		"full":      {full{memory}, []string{"step claim: ", "the store is full"}},
		"deaf":      {deaf{memory}, []string{"step claim: ", "give -timeout more than 10ms"}},
	} {
		code, out, err := newTerminal(c.store).says("check", "-timeout", "10ms")
		require.Equal(t, exitFindings, code, name+err)
		for _, text := range c.says {
			require.Contains(t, out, text, name)
		}
	}
	code, out, err := newTerminal(memory).says("check")
	require.Equal(t, exitOK, code, err)
	require.Contains(t, out, "every step works")
}
