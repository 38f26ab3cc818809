package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/memstore"
)

func TestMain(m *testing.M) {
	code := m.Run()
	redistest.StopShared()
	os.Exit(code)
}

// terminal is a program in a test.
type terminal struct {
	program
	in          strings.Reader
	stdout, err lockedBuffer
	env         map[string]string
}

// newTerminal returns one whose every store is this one.
func newTerminal(store idempotent.Store) *terminal {
	t := &terminal{env: map[string]string{storeVariable: "test:"}}
	t.program = program{
		stdin: &t.in, stdout: &t.stdout, stderr: &t.err,
		env: func(name string) string { return t.env[name] },
		open: func(context.Context, string) (idempotent.Store, func() error, error) {
			return store, func() error { return nil }, nil
		},
	}
	return t
}

// newRealTerminal returns one that opens the store of a URL.
func newRealTerminal(url string) *terminal {
	t := newTerminal(nil)
	t.env[storeVariable] = url
	t.open = openStore
	return t
}

// says runs the program and returns what it has written and its exit code.
func (t *terminal) says(args ...string) (code int, stdout, stderr string) {
	t.stdout.Reset()
	t.err.Reset()
	code = t.run(context.Background(), args)
	return code, t.stdout.String(), t.err.String()
}

// answers runs the program for somebody who answers at a terminal.
func (t *terminal) answers(line string, args ...string) (code int, stdout, stderr string) {
	t.asks = true
	defer func() { t.asks = false }()
	t.in = *strings.NewReader(line)
	return t.says(args...)
}

func newMemory(t *testing.T) *memstore.Store {
	t.Helper()
	store := memstore.New(memstore.WithLogger(silent))
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return store
}

// fill puts a key in each state into store, under a name that begins with prefix
// and ends in the state. The one called abandoned needs a moment to lapse.
func fill(t testing.TB, store idempotent.Store, prefix string) {
	t.Helper()
	ctx := t.Context()
	for _, state := range []string{"pending", "success", "failed", "unknown", "abandoned"} {
		claim := idempotent.Claim{Owner: "owner-" + state, Fingerprint: "f1:x", Trace: "trace-" + state, Lease: time.Minute, Keep: time.Hour}
		if state == "abandoned" {
			claim.Lease = idempotent.MinDuration
		}
		_, claimed, err := store.Claim(ctx, prefix+state, claim)
		require.NoError(t, err)
		require.True(t, claimed)
		o := idempotent.Outcome{Status: idempotent.Failed, Result: "\x00", Fingerprint: "f1:x", Retention: time.Hour}
		switch state {
		case "success":
			o.Status = idempotent.Success
			o.Result, err = idempotent.EncodeResponse(201, map[string][]string{
				"Location": {"/orders/7"}, "Content-Type": {"text/plain"}, "X-Api-Token": {"s3cret"}, "Authorization": {"s3cret"},
			}, []byte("hello \x1b[2Jworld"))
			require.NoError(t, err)
		case "unknown":
			o.Unknown = true
		case "failed":
		default:
			continue
		}
		require.NoError(t, store.Complete(ctx, prefix+state, claim.Owner, o))
	}
	redistest.Eventually(t, "the claim lapses", func() bool {
		e, _, err := store.Load(ctx, prefix+"abandoned")
		return err == nil && e.Status == idempotent.Failed
	})
}

// Everything that the help says is in the package documentation too.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	for line := range strings.Lines(exitCodes) {
		if code, ok := strings.CutPrefix(line, "  "); ok {
			require.Contains(t, string(doc), "//\t"+code)
		}
	}
	term := newTerminal(nil)
	code, out, _ := term.says("help")
	require.Equal(t, exitOK, code)
	require.Contains(t, out, exitCodes)
	for _, c := range commands {
		require.Contains(t, out, c.summary)
		require.Contains(t, string(doc), "//\tidempotent "+c.name)
		code, help, _ := term.says("help", c.name)
		require.Equal(t, exitOK, code)
		require.Contains(t, help, c.help)
		require.Contains(t, help, "-store URL")
		code, same, _ := term.says(c.name, "-h")
		require.Equal(t, exitOK, code)
		require.Equal(t, help, same)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	term := newTerminal(newMemory(t))
	for _, c := range []struct {
		args, says string
	}{
		{"", "there is no command"},
		{"frobnicate", `there is no command "frobnicate"`},
		{"get", "the key is missing"},
		{"get a b", "2 arguments"},
		{"get a -key b", "use either"},
		{"get -key b", "-key and -principal go together"},
		{"get -principal p -key b -method POST", "-method and -path go together"},
		{"get a -secrets", "-secrets goes with -result"},
		{"get a -result -bytes -1", "-bytes is -1"},
		{"get a -timeout 0s", "-timeout is 0s"},
		{"get a -nonsense", "see idempotent help get"},
		{"list a", "takes no arguments"},
		{"list -state open", "it is one of pending, success, failed, unknown, corrupt"},
		{"list -older -1s", "must not be negative"},
		{"list -limit -1", "must not be negative"},
		{"watch -interval 0s", "must be positive"},
		{"watch a", "takes no arguments"},
		{"resolve a -as success -owner o", "-reason is missing"},
		{"resolve a -as success -reason r", "-owner is missing"},
		{"resolve a -owner o -reason r", "-as is"},
		{"resolve a -as done -owner o -reason r", "it is success, failure or release"},
		{"resolve a -as release -status 200 -owner o -reason r", "-as release records no answer"},
		{"resolve a -as success -body-file f -owner o -reason r", "-body-file goes with -status"},
		{"resolve a -as success -status 200 -content-type f -owner o -reason r", "-content-type goes with -body-file"},
		{"resolve a -as success -status 200 -body-file /none/such -owner o -reason r", "-body-file: open /none/such"},
		{"resolve a -as success -status 99 -owner o -reason r", "a final status is 200 to 999"},
		{"resolve a -as success -retention 1us -owner o -reason r", "-retention is 1µs"},
		{"free a", "-reason is missing"},
		{"check a", "takes no arguments"},
		{"bench a", "takes no arguments"},
		{"bench -duration 0s", "-duration is 0s"},
		{"bench -parallel 0", "-parallel is 0"},
		{"bench -size -1", "-size is -1"},
		{"copy", "one SNAPSHOT is meant"},
	} {
		code, out, err := term.says(strings.Fields(c.args)...)
		require.Equal(t, exitUsage, code, c.args)
		require.Empty(t, out, c.args)
		require.Contains(t, err, c.says, c.args)
	}
	delete(term.env, storeVariable)
	code, _, err := term.says("list")
	require.Equal(t, exitUsage, code)
	require.Contains(t, err, "give -store URL or set IDEMPOTENCY_STORE")
	code, _, err = term.says("list", "-store", "memory:")
	require.Equal(t, exitUsage, code)
	require.Contains(t, err, "new and empty store of this command alone")
}

// The program as people have it.
func TestBinary(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	program := filepath.Join(t.TempDir(), "idempotent")
	out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	run := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Env = append(os.Environ(), storeVariable+"=redis://"+server.Addr+"?prefix=binary:")
		return cmd
	}
	out, err = run("get", "nobody").CombinedOutput()
	var ended *exec.ExitError
	require.ErrorAs(t, err, &ended)
	require.Equal(t, exitNotFound, ended.ExitCode())
	require.Contains(t, string(out), "no entry under nobody")

	watch := run("watch", "-interval", "10ms")
	var told lockedBuffer
	watch.Stderr = &told
	require.NoError(t, watch.Start())
	redistest.Eventually(t, "watch has made its first look", func() bool { return strings.Contains(told.String(), "changes from now on") })
	require.NoError(t, watch.Process.Signal(os.Interrupt))
	require.NoError(t, watch.Wait(), "exit code 0 on SIGINT: %s", told.String())
}
