//go:build !unix

package sqltest

import (
	"os"
	"os/exec"
)

// identity is as whom a server runs.
type identity = *struct{}

// quit ends a server at once.
func quit(p *os.Process) { _ = p.Kill() }

// place makes a directory for a server.
func place(string) (dir string, as identity, err error) {
	dir, err = os.MkdirTemp("", "sqltest-")
	return dir, nil, err
}

// command returns a command.
func command(_ identity, name string, args ...string) *exec.Cmd { return exec.Command(name, args...) }
