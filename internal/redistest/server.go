// Package redistest gives tests a Redis server of their own and a connection
// to it that fails on demand. Only tests import it.
package redistest

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// RequireServers is the environment variable that, set to 1, makes a missing
// server a failure instead of a skipped test.
const RequireServers = "IDEMPOTENT_REQUIRE_SERVERS"

// patience is how long a server may take to start or to end.
const patience = time.Minute

// Server is a running redis-server on loopback that nobody else uses.
type Server struct {
	Addr string // host:port

	program string // "" for the redis-server that is installed
	cmd     *exec.Cmd
	config  []string
	dir     string
	output  bytes.Buffer
	exited  chan struct{}
}

// Installed reports whether there is a redis-server to start.
func Installed() bool {
	_, err := exec.LookPath("redis-server")
	return err == nil
}

// Require ends the test unless redis-server is installed: it is skipped with
// the reason, or fails where [RequireServers] is 1.
func Require(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv(RequireServers) == "1" {
			t.Fatalf("redistest: %v, and %s=1 makes that a failure", err, RequireServers)
		}
		t.Skipf("redistest: %v; install redis-server to run this test", err)
	}
}

// Start starts a server with config, arguments such as "--maxmemory", "3mb",
// and stops it when the test ends, also when it fails.
func Start(t testing.TB, config ...string) *Server {
	t.Helper()
	Require(t)
	s, err := start("", "0", config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// Launch starts a server for a program that is no test, from the executable at
// program, or the installed one where that is "". The caller must call
// [Server.Stop]; on Linux the server also ends with the program.
func Launch(program string, config ...string) (*Server, error) {
	return start(program, "0", config)
}

// StartCluster starts a one-node Cluster that owns every slot.
func StartCluster(t testing.TB, config ...string) *Server {
	t.Helper()
	s := Start(t, append([]string{"--cluster-enabled", "yes"}, config...)...)
	if _, err := s.Do("CLUSTER", "ADDSLOTSRANGE", "0", "16383"); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "the cluster is up", func() bool {
		info, _ := s.Do("CLUSTER", "INFO")
		return strings.Contains(info, "cluster_state:ok")
	})
	return s
}

// Restart ends the server and starts a new, empty one at the same address.
func (s *Server) Restart(t testing.TB, config ...string) {
	t.Helper()
	s.Stop()
	_, port, _ := net.SplitHostPort(s.Addr)
	n, err := start(s.program, port, config)
	if err != nil {
		t.Fatal(err)
	}
	s.cmd, s.config, s.dir, s.exited = n.cmd, n.config, n.dir, n.exited
}

var shared struct {
	sync.Mutex
	server *Server
}

// Shared returns the server that all tests of a binary share. They keep apart
// by prefix, and none of them flushes it or changes its configuration. TestMain
// must call [StopShared].
func Shared(t testing.TB) *Server {
	t.Helper()
	Require(t)
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		s, err := start("", "0", nil)
		if err != nil {
			t.Fatal(err)
		}
		shared.server = s
	}
	return shared.server
}

// StopShared ends the shared server if there is one.
func StopShared() {
	shared.Lock()
	defer shared.Unlock()
	if shared.server != nil {
		shared.server.Stop()
		shared.server = nil
	}
}

// Stop ends the server at once and removes what it wrote. It may be called
// more than once.
func (s *Server) Stop() {
	s.Kill()
	_ = os.RemoveAll(s.dir)
}

// Do sends one command over a connection of its own and returns the raw answer
// without its first byte. An error answer is an error.
func (s *Server) Do(args ...string) (string, error) {
	conn, err := net.DialTimeout("tcp", s.Addr, patience)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write(Command(args...)); err != nil {
		return "", err
	}
	r := bufio.NewReader(conn)
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimRight(line, "\r\n")
	switch line[0] {
	case '-':
		return "", errors.New(line[1:])
	case '$':
		n, _ := strconv.Atoi(line[1:])
		b := make([]byte, max(n, 0))
		if _, err := io.ReadFull(r, b); err != nil {
			return "", err
		}
		return string(b), nil
	}
	return line[1:], nil
}

// Command returns a command in the form in which clients send it.
func Command(args ...string) []byte {
	b := fmt.Appendf(nil, "*%d\r\n", len(args))
	for _, a := range args {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b
}

// Eventually waits until holds returns true, and fails the test after a
// minute.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !holds(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("redistest: still not so after %v: %s", patience, what)
		}
	}
}

// start starts a server at port, "0" for a free one. Somebody else may take a
// free port before the server does; then another one is tried.
func start(program, port string, config []string) (*Server, error) {
	var err error
	for range 5 {
		var s *Server
		if s, err = startOnce(program, port, config); err == nil {
			return s, nil
		}
	}
	return nil, err
}

func startOnce(program, port string, config []string) (*Server, error) {
	s, err := newServer(port, config)
	if err != nil {
		return nil, err
	}
	s.program = program
	if err := s.launch(); err != nil {
		_ = os.RemoveAll(s.dir)
		return nil, err
	}
	return s, nil
}

// newServer returns a server with a directory that does not run yet.
func newServer(port string, config []string) (*Server, error) {
	if port == "0" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		_, port, _ = net.SplitHostPort(l.Addr().String())
		if err := l.Close(); err != nil {
			return nil, err
		}
	}
	dir, err := os.MkdirTemp("", "redistest-")
	if err != nil {
		return nil, err
	}
	return &Server{Addr: net.JoinHostPort("127.0.0.1", port), config: config, dir: dir}, nil
}

// launch starts the process on what is in the directory, and returns when it
// answers.
func (s *Server) launch() error {
	_, port, _ := net.SplitHostPort(s.Addr)
	args := append([]string{
		"--port", port, "--bind", "127.0.0.1", "--dir", s.dir, "--save", "", "--appendonly", "no",
		"--maxmemory-policy", "noeviction", "--daemonize", "no",
	}, s.config...)
	if name := s.sentinelFile(); exists(name) {
		args = []string{name, "--sentinel"}
	}
	s.output.Reset()
	s.exited = make(chan struct{})
	s.cmd = exec.Command(cmp.Or(s.program, "redis-server"), args...)
	s.cmd.Stdout, s.cmd.Stderr = &s.output, &s.output
	EndWithParent(s.cmd)
	if err := s.cmd.Start(); err != nil {
		close(s.exited)
		return err
	}
	go func(cmd *exec.Cmd, exited chan struct{}) {
		_ = cmd.Wait()
		close(exited)
	}(s.cmd, s.exited)
	for end := time.Now().Add(patience); ; {
		if s.answers() {
			return nil
		}
		select {
		case <-s.exited:
			return fmt.Errorf("redistest: redis-server ended: %s", s.output.String())
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(end) {
			s.Kill()
			return fmt.Errorf("redistest: redis-server does not answer: %s", s.output.String())
		}
	}
}

// answers reports whether the process that answers at the address is this
// server: somebody else may have taken a port that was free a moment ago, and
// two tests would then use one server. One that still reads its files does not
// answer yet. Where a password is asked for, who answers is not known.
func (s *Server) answers() bool {
	if _, err := s.Do("PING"); err != nil {
		return strings.HasPrefix(err.Error(), "NOAUTH")
	}
	info, err := s.Do("INFO", "server")
	return err == nil && strings.Contains(info, fmt.Sprintf("\r\nprocess_id:%d\r\n", s.cmd.Process.Pid))
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}
