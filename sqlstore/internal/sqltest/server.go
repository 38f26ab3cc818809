package sqltest

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

// patience is how long a server may take to start or to end.
const patience = 30 * time.Second

// Server is a database server on loopback that nobody else uses.
type Server struct {
	Addr string // host:port

	kind   Kind
	dir    string
	launch func(port string) *exec.Cmd
	cmd    *exec.Cmd
	output bytes.Buffer
	exited chan struct{}
}

// shared is the one server of a kind that all tests of a binary use.
type shared struct {
	sync.Mutex
	start  func(config ...string) (*Server, error)
	server *Server
}

var (
	postgresServer = shared{start: startPostgres}
	mariaServer    = shared{start: startMaria}
)

// errNotInstalled says that there is no server to start.
var errNotInstalled = errors.New("not installed")

// started returns the server, and skips the test where there is none.
func started(t testing.TB, s *shared) *Server {
	t.Helper()
	s.Lock()
	defer s.Unlock()
	if s.server == nil {
		server, err := s.start()
		skip(t, err)
		s.server = server
	}
	return s.server
}

// skip ends the test at an error.
func skip(t testing.TB, err error) {
	t.Helper()
	switch {
	case errors.Is(err, errNotInstalled) && os.Getenv(RequireServers) == "1":
		t.Fatalf("sqltest: %v, and %s=1 makes that a failure", err, RequireServers)
	case errors.Is(err, errNotInstalled):
		t.Skipf("sqltest: %v; install postgresql and mariadb-server, or set %s and %s, to run this test", err, PostgresURL, MySQLDSN)
	case err != nil:
		t.Fatal(err)
	}
}

// Start starts a server that the test has for itself, and ends it when the test
// ends. It is skipped or fails as [New] says.
func Start(t testing.TB, kind Kind, config ...string) *Server {
	t.Helper()
	start := startPostgres
	if kind == MySQL {
		start = startMaria
	}
	s, err := start(config...)
	skip(t, err)
	t.Cleanup(s.stop)
	return s
}

// Database returns a database on the server, which ends with it.
func (s *Server) Database(t testing.TB) Database {
	t.Helper()
	d := Database{Kind: s.kind, Driver: "pgx", DSN: s.url(), Addr: s.Addr}
	if s.kind == MySQL {
		d.Driver, d.DSN = "mysql", s.dsn()
		create(t, d.Driver, d.DSN, "CREATE DATABASE test", "DROP DATABASE test")
		d.DSN += "test"
	}
	return d
}

// Stop ends the servers that tests share. It is called when all have ended.
func Stop() {
	for _, s := range []*shared{&postgresServer, &mariaServer} {
		s.Lock()
		if s.server != nil {
			s.server.stop()
			s.server = nil
		}
		s.Unlock()
	}
}

// Kill ends the server at once, as kill -9 does, and keeps what it wrote. It may
// be called more than once.
func (s *Server) Kill() {
	_ = s.cmd.Process.Kill()
	<-s.exited
}

// Revive ends the server if it runs, and starts it again at its address on what
// it wrote.
func (s *Server) Revive(t testing.TB) {
	t.Helper()
	s.Kill()
	if err := s.run(); err != nil {
		t.Fatal(err)
	}
}

// stop ends the server and removes what it wrote.
func (s *Server) stop() {
	// PostgreSQL then takes its processes and shared memory along.
	quit(s.cmd.Process)
	select {
	case <-s.exited:
	case <-time.After(time.Second):
		s.Kill()
	}
	_ = os.RemoveAll(s.dir)
}

func (s *Server) url() string { return "postgres://postgres@" + s.Addr + "/postgres?sslmode=disable" }

func (s *Server) dsn() string { return "root@tcp(" + s.Addr + ")/" }

// startPostgres makes an empty PostgreSQL and starts it. Settings are written
// as name=value.
func startPostgres(config ...string) (*Server, error) {
	initdb, err := find("initdb")
	if err != nil {
		return nil, err
	}
	dir, as, err := place("postgres")
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	if err := prepare(as, initdb, "--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "-D", data); err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	settings := append([]string{"fsync=off", "unix_socket_directories=" + dir, "max_connections=300"}, config...)
	return begin(&Server{kind: Postgres, dir: dir, launch: func(port string) *exec.Cmd {
		args := []string{"-D", data, "-h", "127.0.0.1", "-p", port}
		for _, setting := range settings {
			args = append(args, "-c", setting)
		}
		return command(as, filepath.Join(filepath.Dir(initdb), "postgres"), args...)
	}})
}

// startMaria makes an empty MariaDB and starts it. Settings are written as
// --name=value.
func startMaria(config ...string) (*Server, error) {
	install, err := find("mariadb-install-db")
	if err != nil {
		return nil, err
	}
	daemon, err := find("mariadbd")
	if err != nil {
		return nil, err
	}
	dir, as, err := place("mysql")
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	// A server that starts removes the temporary tables of others from the
	// directory that it shares with them.
	tmp := "--tmpdir=" + dir
	if err := prepare(as, install, "--no-defaults", "--datadir="+data, tmp, "--skip-test-db", "--auth-root-authentication-method=normal"); err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return begin(&Server{kind: MySQL, dir: dir, launch: func(port string) *exec.Cmd {
		return command(as, daemon, append([]string{
			"--no-defaults", "--datadir=" + data, tmp, "--bind-address=127.0.0.1", "--port=" + port,
			"--socket=" + filepath.Join(dir, "socket"), "--pid-file=" + filepath.Join(dir, "pid"),
			"--innodb-flush-log-at-trx-commit=2", "--max-connections=300",
			// Unlike every release of MySQL, whose text is UTF-8 where nothing else is said.
			"--character-set-server=utf8mb4",
		}, config...)...)
	}})
}

// find returns where a program is. Debian has those of PostgreSQL in a directory
// for each release, and servers where only root looks.
func find(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			return path, nil
		}
	}
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin/", "/usr/sbin/"} {
		found, _ := filepath.Glob(pattern + name)
		if len(found) > 0 {
			return slices.Max(found), nil
		}
	}
	return "", fmt.Errorf("%s is %w", name, errNotInstalled)
}

// prepare runs a program that ends.
func prepare(as identity, name string, args ...string) error {
	cmd := command(as, name, args...)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("sqltest: %s: %w\n%s", name, err, output)
	}
	return nil
}

// begin starts the server at a free port. Somebody else may take that before the
// server does; then another one is tried.
func begin(s *Server) (*Server, error) {
	var err error
	for range 5 {
		var port string
		if port, err = freePort(); err != nil {
			break
		}
		s.Addr = net.JoinHostPort("127.0.0.1", port)
		if err = s.run(); err == nil {
			return s, nil
		}
	}
	_ = os.RemoveAll(s.dir)
	return nil, err
}

// run starts the process, and returns when it answers.
func (s *Server) run() error {
	_, port, _ := net.SplitHostPort(s.Addr)
	s.output.Reset()
	s.exited = make(chan struct{})
	s.cmd = s.launch(port)
	s.cmd.Stdout, s.cmd.Stderr = &s.output, &s.output
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
			return fmt.Errorf("sqltest: %s ended: %s", s.kind, s.output.String())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(end) {
			s.Kill()
			return fmt.Errorf("sqltest: %s does not answer: %s", s.kind, s.output.String())
		}
	}
}

// answers reports whether the process that answers at the address is this
// server: somebody else may have taken a port that was free a moment ago.
func (s *Server) answers() bool {
	driver, dsn, text := "pgx", s.url(), "SHOW data_directory"
	if s.kind == MySQL {
		driver, dsn, text = "mysql", s.dsn(), "SELECT @@datadir"
	}
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return false
	}
	defer func() { _ = db.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var data string
	err = db.QueryRowContext(ctx, text).Scan(&data)
	return err == nil && filepath.Clean(data) == filepath.Join(s.dir, "data")
}
