//go:build unix

package sqltest

import (
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"

	"github.com/idempotent-go/idempotent/internal/redistest"
)

// identity is as whom a server runs; nil is oneself.
type identity = *syscall.Credential

// quit asks a server to end at once and to leave nothing behind.
func quit(p *os.Process) { _ = p.Signal(syscall.SIGQUIT) }

// place makes a directory for a server, and says as whom it runs: as the user of
// that name, or nobody, where this process is root's, which servers refuse to be.
func place(name string) (dir string, as identity, err error) {
	// Not in a test's own directory, which other users may not enter.
	dir, err = os.MkdirTemp("", "sqltest-")
	if err != nil || os.Geteuid() != 0 {
		return dir, nil, err
	}
	u, err := user.Lookup(name)
	if err != nil {
		u, err = user.Lookup("nobody")
	}
	if err != nil {
		return "", nil, err
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	return dir, &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, os.Chown(dir, uid, gid)
}

// command returns a command that runs as somebody and ends with this process.
func command(as identity, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = "/" // the working directory may be one that the user may not enter
	// What is installed with a script needs the usual tools, whatever PATH a test
	// is run with.
	cmd.Env = append(os.Environ(), "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
	redistest.EndWithParent(cmd)
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Credential = as
	return cmd
}
