//go:build unix

package redistest

import (
	"syscall"
	"testing"
)

// Pause stops the process where it is: connections stay open, and nothing
// answers until [Server.Resume].
func (s *Server) Pause(t testing.TB) {
	t.Helper()
	s.signal(t, syscall.SIGSTOP)
}

// Resume lets a paused process go on. It then finds all that was sent to it.
func (s *Server) Resume(t testing.TB) {
	t.Helper()
	s.signal(t, syscall.SIGCONT)
}

func (s *Server) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}
