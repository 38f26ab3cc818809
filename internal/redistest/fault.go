package redistest

import "testing"

// Kill ends the server at once, as kill -9 does, and keeps what it wrote. It
// may be called more than once.
func (s *Server) Kill() {
	_ = s.cmd.Process.Kill()
	<-s.exited
}

// Revive ends the server if it runs, and starts it again with its settings on
// what it wrote: with an append-only file it has its data back, without one it
// is empty.
func (s *Server) Revive(t testing.TB) {
	t.Helper()
	s.Kill()
	if err := s.launch(); err != nil {
		t.Fatal(err)
	}
}

// Must sends one command as [Server.Do] does, and fails the test where the
// answer is an error.
func (s *Server) Must(t testing.TB, args ...string) string {
	t.Helper()
	got, err := s.Do(args...)
	if err != nil {
		t.Fatalf("redistest: %v: %v", args, err)
	}
	return got
}

// Fill makes the server one whose memory is full, until [Server.Drain].
func (s *Server) Fill(t testing.TB) {
	t.Helper()
	s.Must(t, "CONFIG", "SET", "maxmemory", "1")
}

// Drain takes the limit on memory away.
func (s *Server) Drain(t testing.TB) {
	t.Helper()
	s.Must(t, "CONFIG", "SET", "maxmemory", "0")
}

// FlushScripts makes the server forget every script.
func (s *Server) FlushScripts(t testing.TB) {
	t.Helper()
	s.Must(t, "SCRIPT", "FLUSH", "SYNC")
}

// Revoke changes what clients that do not log in may do, by ACL rules such as
// "-evalsha" or "resetkeys", until [Server.Grant]. Keep them the commands ACL
// and CONFIG: these methods need them.
func (s *Server) Revoke(t testing.TB, rules ...string) {
	t.Helper()
	s.Must(t, append([]string{"ACL", "SETUSER", "default"}, rules...)...)
}

// Grant permits everything again.
func (s *Server) Grant(t testing.TB) {
	t.Helper()
	s.Revoke(t, "+@all", "~*", "&*")
}
