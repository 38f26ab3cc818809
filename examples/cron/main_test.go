package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/examples/internal/program"
	"github.com/idempotent-go/idempotent/internal/redistest"
)

// The test binary is the program, and the command that it runs, too.
func TestMain(m *testing.M) {
	tick, isCommand := os.LookupEnv("CRON_TICK")
	if !isCommand {
		program.Main(m, main)
	}
	if err := note(os.Getenv("CRON_TEST_FILE"), tick); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// note adds a line to a file. A single write in append mode is not torn apart.
func note(name, line string) error {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line + "\n")
	return err
}

// Two instances run every tick once: what one runs, the other leaves.
func TestTwoInstances(t *testing.T) {
	t.Parallel()
	store := "redis://" + redistest.Start(t).Addr
	file := filepath.Join(t.TempDir(), "ticks")
	command := []string{"-job", "report", "-every", "500ms", "--", os.Args[0]}
	a := start(t, store, file, command...)
	b := start(t, store, file, command...)
	both := func() (ticks []string) {
		seen := a.ticks("left to another instance|ran")
		for tick := range b.ticks("left to another instance|ran") {
			if seen[tick] > 0 {
				ticks = append(ticks, tick)
			}
		}
		return ticks
	}
	redistest.Eventually(t, "three ticks are seen by both", func() bool { return len(both()) >= 3 })
	require.Equal(t, 0, a.Stop(t), a.Log())
	require.Equal(t, 0, b.Stop(t), b.Log())

	ranA, ranB := a.ticks("ran"), b.ticks("ran")
	for _, tick := range both() {
		require.Equal(t, 1, ranA[tick]+ranB[tick], "%s\n%s\n%s", tick, a.Log(), b.Log())
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	times := map[string]int{}
	for tick := range strings.Lines(string(text)) {
		times[tick]++
		require.Equal(t, 1, times[tick], tick)
	}
	require.Len(t, times, len(ranA)+len(ranB))
}

// A command that fails is not run again for its tick; one that never started
// leaves the tick free. Both are told apart by what the store then holds.
func TestFailures(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, command, text string
		kept                bool
	}{
		{"ends with an error", os.Args[0], "exit status 1", true},
		{"cannot be started", filepath.Join(t.TempDir(), "nothing"), "released", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			redis := redistest.Start(t)
			noFile := filepath.Join(t.TempDir(), "no", "such", "directory")
			p := start(t, "redis://"+redis.Addr, noFile, "-job", "j", "-every", "100ms", "--", tt.command)
			redistest.Eventually(t, "two ticks", func() bool { return len(p.ticks("failed")) >= 2 })
			require.Equal(t, 0, p.Stop(t), p.Log())
			require.Contains(t, p.Log(), tt.text)
			require.Empty(t, p.ticks("ran"))
			keys, err := redis.Do("DBSIZE")
			require.NoError(t, err)
			require.Equal(t, tt.kept, keys != "0", keys)
		})
	}
}

// A store that is away runs nothing, and says so.
func TestStoreAway(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	file := filepath.Join(t.TempDir(), "ticks")
	p := start(t, "redis://"+redis.Addr, file, "-job", "j", "-every", "100ms", "--", os.Args[0])
	redistest.Eventually(t, "a tick", func() bool { return len(p.ticks("ran")) >= 1 })
	redis.Stop()
	redistest.Eventually(t, "a tick without the store", func() bool { return len(p.ticks("not run")) >= 1 })
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	ran, started := len(p.ticks("ran")), strings.Count(string(text), "\n")
	require.LessOrEqual(t, started-ran, 1, "only the one whose end could not be recorded")
	p.Stop(t)
}

func TestRefusals(t *testing.T) {
	for _, tt := range []struct {
		store string
		args  []string
		code  int
		text  string
	}{
		{"", []string{"-h"}, 0, "-every"},
		{"", []string{"-nonsense"}, 2, "nonsense"},
		{"", []string{"-job", "j"}, 2, "a command"},
		{"", []string{"--", "date"}, 2, "a -job"},
		{"", []string{"-job", "j", "-every", "0", "--", "date"}, 2, "a positive -every"},
		{"mysql:", []string{"-job", "j", "--", "date"}, 1, "IDEMPOTENCY_STORE"},
	} {
		t.Setenv("IDEMPOTENCY_STORE", tt.store)
		var stdout, stderr bytes.Buffer
		require.Equal(t, tt.code, run(t.Context(), tt.args, &stdout, &stderr), tt.args)
		require.Contains(t, stderr.String(), tt.text)
	}
}

// instance is a running cron.
type instance struct{ *program.Process }

func start(t *testing.T, store, file string, args ...string) instance {
	t.Helper()
	return instance{program.Start(t, []string{"CRON_TEST_FILE=" + file, "IDEMPOTENCY_STORE=" + store}, args...)}
}

// ticks returns how often the log says text of each tick.
func (p instance) ticks(text string) map[string]int {
	times := map[string]int{}
	for _, m := range regexp.MustCompile(`msg="?(?:`+text+`)"? job=\w+ tick=(\S+)`).FindAllStringSubmatch(p.Log(), -1) {
		times[m[1]]++
	}
	return times
}
