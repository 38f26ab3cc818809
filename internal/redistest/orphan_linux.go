package redistest

import (
	"os/exec"
	"syscall"
)

// EndWithParent has the kernel kill cmd's process when this one ends, also by a
// panic or by the time-out of go test, when no Cleanup runs. It must be called
// before the process is started. Where that is not possible it does nothing.
func EndWithParent(cmd *exec.Cmd) {
	// The signal is sent when the thread that started the process ends. Go's
	// threads live as long as the process unless a locked one is left locked,
	// and tests lock none.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
