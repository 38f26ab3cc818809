// Package sqltest gives tests databases of their own: SQLite's in a file,
// PostgreSQL's and MariaDB's on servers that it starts, one of each for a test
// binary, or on running ones that the environment names. Only tests import it.
package sqltest

import (
	"database/sql"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // drivers
	_ "github.com/lib/pq"
	_ "modernc.org/sqlite"
)

// Environment variables.
const (
	PostgresURL    = "IDEMPOTENT_POSTGRES_URL"    // of a running PostgreSQL, whose user may create schemas
	MySQLDSN       = "IDEMPOTENT_MYSQL_DSN"       // of a running MySQL or MariaDB, whose user may create databases
	RequireServers = "IDEMPOTENT_REQUIRE_SERVERS" // 1: a missing server is a failure, not a skipped test
)

// Kind is a kind of database.
type Kind string

// The kinds.
const (
	Postgres Kind = "postgres"
	MySQL    Kind = "mysql"
	SQLite   Kind = "sqlite"
)

// Kinds lists them all.
var Kinds = []Kind{SQLite, Postgres, MySQL}

// Database is one that nobody else uses.
type Database struct {
	Kind   Kind
	Driver string // for [sql.Open]
	DSN    string
	Addr   string // host:port of the server; "" for SQLite
}

var (
	databases atomic.Int64
	run       = time.Now().UnixNano() // a running server is used by one binary after the other
)

// New returns a new database, which is removed when the test ends. The test is
// skipped where there is no server to start or to use, or fails where
// [RequireServers] is 1. TestMain must call [Stop].
func New(t testing.TB, kind Kind) Database {
	t.Helper()
	name := fmt.Sprintf("idempotent_%x_%d", run, databases.Add(1))
	switch kind {
	case SQLite:
		file := filepath.Join(t.TempDir(), "test.db")
		return Database{
			Kind: SQLite, Driver: "sqlite",
			DSN: "file:" + file + "?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_txlock=immediate",
		}
	case Postgres:
		base := os.Getenv(PostgresURL)
		if base == "" {
			base = started(t, &postgresServer).url()
		}
		u, err := url.Parse(base)
		if err != nil {
			t.Fatal(err)
		}
		create(t, "pgx", base, "CREATE SCHEMA "+name, "DROP SCHEMA "+name+" CASCADE")
		q := u.Query()
		q.Set("search_path", name)
		u.RawQuery = q.Encode()
		return Database{Kind: Postgres, Driver: "pgx", DSN: u.String(), Addr: u.Host}
	case MySQL:
		base := os.Getenv(MySQLDSN)
		if base == "" {
			base = started(t, &mariaServer).dsn()
		}
		c, err := mysql.ParseDSN(base)
		if err != nil {
			t.Fatal(err)
		}
		create(t, "mysql", base, "CREATE DATABASE "+name, "DROP DATABASE "+name)
		c.DBName = name
		return Database{Kind: MySQL, Driver: "mysql", DSN: c.FormatDSN(), Addr: c.Addr}
	}
	t.Fatalf("sqltest: no such kind: %q", kind)
	return Database{}
}

// create runs a statement on the database that dsn names, and another one when
// the test has ended.
func create(t testing.TB, driver, dsn, before, after string) {
	t.Helper()
	one := func(text string) error {
		db, err := sql.Open(driver, dsn)
		if err != nil {
			return err
		}
		defer func() { _ = db.Close() }()
		_, err = db.Exec(text)
		return err
	}
	if err := one(before); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = one(after) }) // a server that the test has killed takes it along
}

// Open opens the database and closes it when the test ends.
func (d Database) Open(t testing.TB) *sql.DB {
	t.Helper()
	db, err := sql.Open(d.Driver, d.DSN)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(16)
	db.SetMaxIdleConns(16)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// At returns the same database behind another address, that of a relay.
func (d Database) At(t testing.TB, addr string) Database {
	t.Helper()
	switch d.Kind {
	case Postgres:
		u, err := url.Parse(d.DSN)
		if err != nil {
			t.Fatal(err)
		}
		u.Host = addr
		d.DSN = u.String()
	case MySQL:
		c, err := mysql.ParseDSN(d.DSN)
		if err != nil {
			t.Fatal(err)
		}
		c.Net, c.Addr = "tcp", addr
		d.DSN = c.FormatDSN()
	default:
		t.Fatalf("sqltest: %s has no address", d.Kind)
	}
	d.Addr = addr
	return d
}

// With returns the same database with a parameter of the driver in its DSN.
func (d Database) With(name, value string) Database {
	separator := "?"
	if strings.Contains(d.DSN, "?") {
		separator = "&"
	}
	d.DSN += separator + name + "=" + url.QueryEscape(value)
	return d
}

// freePort returns a port of loopback that nobody has just now.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port, l.Close()
}
