package redistest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// StartSentinel starts a Sentinel that watches the primary at addr under name,
// with quorum and further lines of its configuration, and stops it when the
// test ends, also when it fails.
func StartSentinel(t testing.TB, name, addr string, quorum int, lines string) *Server {
	t.Helper()
	Require(t)
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	var s *Server
	for range 5 { // somebody may take the port, see start
		if s, err = newServer("0", nil); err != nil {
			break
		}
		_, own, _ := net.SplitHostPort(s.Addr)
		text := fmt.Sprintf("port %s\nbind 127.0.0.1\ndir %s\nsentinel monitor %s %s %s %d\n%s\n", own, s.dir, name, host, port, quorum, lines)
		if err = os.WriteFile(s.sentinelFile(), []byte(text), 0o600); err != nil {
			break
		}
		if err = s.launch(); err == nil {
			t.Cleanup(s.Stop)
			return s
		}
		_ = os.RemoveAll(s.dir)
	}
	t.Fatal(err)
	return nil
}

// sentinelFile is the configuration of a Sentinel, which writes to it. Only a
// Sentinel's directory has one.
func (s *Server) sentinelFile() string { return filepath.Join(s.dir, "sentinel.conf") }
