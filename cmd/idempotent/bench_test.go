package main

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/storetest"
)

// benched runs bench and returns its parts.
func benched(t *testing.T, term *terminal, code int) []part {
	t.Helper()
	got, out, err := term.says("bench", "-json", "-duration", "20ms", "-parallel", "3")
	require.Equal(t, code, got, err)
	var parts []part
	for line := range strings.Lines(out) {
		var p part
		require.NoError(t, json.Unmarshal([]byte(line), &p))
		parts = append(parts, p)
	}
	return parts
}

func TestBench(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	memory := newMemory(t)
	for name, c := range map[string]struct {
		term *terminal
		left func() int
	}{
		"memory": {newTerminal(memory), memory.Len},
		"redis": {newRealTerminal("redis://" + server.Addr + "?prefix=benched:"), func() int {
			return strings.Count(server.Must(t, "KEYS", "benched:*"), "benched:")
		}},
	} {
		parts := benched(t, c.term, exitOK)
		require.Len(t, parts, 2, name)
		require.Equal(t, "fresh", parts[0].Name)
		require.Equal(t, "replay", parts[1].Name)
		for _, p := range parts {
			require.GreaterOrEqual(t, p.Calls, int64(3), name)
			require.Zero(t, p.Failed, "%s: %s", name, p.Error)
			require.Positive(t, p.PerSecond)
			require.Positive(t, p.P50)
			require.LessOrEqual(t, p.P50, p.P99)
			require.LessOrEqual(t, p.P99, p.Max)
		}
		require.Zero(t, c.left(), "%s: its keys are removed", name)
	}
	code, out, err := newTerminal(memory).says("bench", "-duration", "1ms")
	require.Equal(t, exitOK, code, err)
	require.Contains(t, out, "PER SECOND")
	require.Equal(t, 3, strings.Count(out, "\n"))
}

// refusing is a store that gives out no keys.
type refusing struct{ idempotent.Store }

func (refusing) Claim(context.Context, string, idempotent.Claim) (idempotent.Entry, bool, error) {
	return idempotent.Entry{}, false, errors.New("refused")
}

// forgetful is a store that keeps no outcome.
type forgetful struct{ idempotent.Store }

func (f forgetful) Complete(ctx context.Context, key, owner string, o idempotent.Outcome) error {
	return errors.Join(f.Store.Complete(ctx, key, owner, o), idempotent.Delete(ctx, f.Store, key))
}

func TestBench_Failures(t *testing.T) {
	t.Parallel()
	parts := benched(t, newTerminal(refusing{newMemory(t)}), exitFindings)
	require.Len(t, parts, 1)
	require.Equal(t, parts[0].Calls, parts[0].Failed)
	require.Contains(t, parts[0].Error, "refused")
	parts = benched(t, newTerminal(forgetful{newMemory(t)}), exitFindings)
	require.Zero(t, parts[0].Failed)
	require.Equal(t, parts[1].Calls, parts[1].Failed)
	require.Contains(t, parts[1].Error, "ran again")
}

// A bench whose store fails before there are enough keys to repeat repeats those
// that there are, and removes them.
func TestBench_FewKeys(t *testing.T) {
	t.Parallel()
	const duration = 20 * time.Millisecond
	memory := newMemory(t)
	store := storetest.NewFaulty(memory)
	store.Before(storetest.OpClaim, func(context.Context, string) error {
		switch store.Calls(storetest.OpClaim) {
		case 1:
			time.Sleep(duration) // all of the first part
		case 2:
			return idempotent.ErrFull
		}
		return nil
	})
	code, _, err := newTerminal(store).says("bench", "-duration", duration.String(), "-parallel", "1")
	require.Equal(t, exitFindings, code, err) // the key that was refused ran when it was repeated
	require.Contains(t, err, "1 of ")
	require.Zero(t, memory.Len())
}

// An interrupted bench removes its keys too.
func TestBench_Interrupted(t *testing.T) {
	t.Parallel()
	store := newMemory(t)
	term := newTerminal(store)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan int)
	go func() { ended <- term.run(ctx, []string{"bench", "-duration", "1h"}) }()
	redistest.Eventually(t, "it has begun", func() bool { return store.Len() > 100 })
	stop()
	select {
	case code := <-ended:
		require.Equal(t, exitError, code)
	case <-time.After(time.Minute):
		t.Fatal("it goes on")
	}
	require.Zero(t, store.Len())
	require.Contains(t, term.err.String(), "interrupted")
}
