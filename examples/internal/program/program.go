// Package program lets the tests of an example run it as a program of its own,
// which can be stopped and killed.
package program

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/internal/redistest"
)

// asProgram tells a test binary to be the program.
const asProgram = "EXAMPLE_AS_PROGRAM"

// Main is for the TestMain of an example: it runs main where [Start] has
// started the test binary, and the tests otherwise.
func Main(m *testing.M, main func()) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Process is a running example. It is safe for concurrent use.
type Process struct {
	cmd *exec.Cmd

	mu     sync.Mutex
	output bytes.Buffer // guarded by mu
}

// Start starts the test binary as the program, with env, each "NAME=value",
// added to the environment, and kills it when the test ends.
func Start(t *testing.T, env []string, args ...string) *Process {
	t.Helper()
	p := &Process{cmd: exec.Command(os.Args[0], args...)}
	p.cmd.Env = append(os.Environ(), asProgram+"=yes",
		"GORACE=atexit_sleep_ms=0") // the race detector lets a program linger for a second otherwise
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	redistest.EndWithParent(p.cmd)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	return p
}

// Write takes what the program prints.
func (p *Process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.Write(b)
}

// Log returns what the program has printed until now.
func (p *Process) Log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

var listening = regexp.MustCompile(`msg=listening addr=(\S+)\n`)

// Addr waits until the program says where it listens, and returns that.
func (p *Process) Addr(t *testing.T) string {
	t.Helper()
	redistest.Eventually(t, "it listens", func() bool { return listening.MatchString(p.Log()) })
	return listening.FindStringSubmatch(p.Log())[1]
}

// Terminate asks the program to end, as a platform does.
func (p *Process) Terminate(t *testing.T) {
	t.Helper()
	http.DefaultClient.CloseIdleConnections() // dialled and never used, they would make Shutdown wait
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
}

// Kill ends the program at once.
func (p *Process) Kill(t *testing.T) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Kill())
	p.Wait()
}

// Wait returns the exit code of the program once it has ended.
func (p *Process) Wait() int {
	_ = p.cmd.Wait() // the code says the same
	return p.cmd.ProcessState.ExitCode()
}

// Stop asks the program to end and returns its exit code.
func (p *Process) Stop(t *testing.T) int {
	t.Helper()
	p.Terminate(t)
	return p.Wait()
}
