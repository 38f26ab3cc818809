package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/sqlstore"
)

// A URL that cannot be read, or names what is not there, says what to do, and
// gives no password away, however it is written.
func TestOpen_Errors(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	for _, c := range []struct {
		url  string
		code int
		says string
	}{
		{"nonsense", exitUsage, "or it is postgres://, mysql:// or sqlite:"},
		{"mongodb://ada:hunter2@db", exitUsage, "the scheme is not known"},
		{"redis://ada:hunter2@", exitUsage, "the host is missing"},
		{"redis://ada:hunter2@cache?nonsense=1", exitUsage, "the parameter nonsense is not known"},
		{"postgres://ada:hun/hunter2@db/shop", exitUsage, "the postgres:// URL cannot be read"},
		{"postgres://ada:hunter2@db:port/shop", exitUsage, "the postgres:// URL cannot be read"},
		{"postgres://ada:hunter2@127.0.0.1:1/shop?sslmode=disable", exitError, "the store cannot be opened"},
		{"postgres://127.0.0.1:1/shop?sslmode=disable&password=hunter2", exitError, "the store cannot be opened"},
		{"postgres://ada:hunter2@db/shop?table=1;drop", exitUsage, "is no plain name of a table"},
		{"postgres://ada:hunter2@db/shop?table=%zz", exitUsage, "the table cannot be read"},
		{"mysql://ada:hun#hunter2@db/shop", exitUsage, "the mysql:// URL cannot be read"},
		{"mysql://ada:hunter2@/shop", exitUsage, "the mysql:// URL cannot be read"},
		{"mysql://ada:hunter2@db", exitUsage, "names no database"},
		{"mysql://ada:hunter2@db/shop?tls=nonsense", exitUsage, "cannot be read"},
		{"mysql://ada:hunter2@127.0.0.1:1/shop", exitError, "the store cannot be opened"},
		{"moving:redis://ada:hunter2@h redis://:hunter2@h", exitUsage, "the old and the new store are the same one"},
		{"moving:redis://ada:hunter2@h sqlite:shop.db", exitUsage, "this command takes one at a time"},
		{"moving:redis://ada:hunter2@127.0.0.1:1 redis://:hunter2@h", exitError, "the store cannot be opened: storeurl: the old store"},
		{"sqlite:", exitUsage, "is followed by the path of a file"},
		{"sqlite:/none/such.db", exitError, "no such file"},
		{"sqlite:/none/such.db?table=a.b", exitError, "no such file"},
	} {
		for _, args := range [][]string{{"list", "-store", c.url}, {"list", "-store=" + c.url}} {
			code, out, err := newRealTerminal("").says(args...)
			require.Equal(t, c.code, code, "%s: %s", c.url, err)
			require.Empty(t, out)
			require.Contains(t, err, c.says, c.url)
			require.NotContains(t, err, secret, c.url)
		}
		_, _, err := newRealTerminal("").says("list", c.url)
		require.NotContains(t, err, secret, "a URL in the wrong place")
	}
}

// A misspelt file is not made.
func TestOpen_SQLite(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "shop.db")
	code, _, _ := newRealTerminal("sqlite:" + path).says("list")
	require.Equal(t, exitError, code)
	_, err := os.Stat(path)
	require.ErrorIs(t, err, os.ErrNotExist)

	odd := filepath.Join(t.TempDir(), "a #1 100%.db")
	plain := strings.TrimPrefix(newSQLite(t, true), "sqlite:")
	require.NoError(t, os.Rename(plain, odd))
	code, _, said := newRealTerminal("sqlite:" + odd).says("check")
	require.Equal(t, exitOK, code, said)
	code, out, _ := newRealTerminal("sqlite:" + odd + "?table=others").says("check")
	require.Equal(t, exitFindings, code)
	require.Contains(t, out, "no such table: others")
}

func TestCutTable(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]string{
		"x://h/d":                      {"x://h/d", sqlstore.DefaultTable},
		"x://h/d?table=t":              {"x://h/d", "t"},
		"x://h/d?a=1&table=s.t&b=%26":  {"x://h/d?a=1&b=%26", "s.t"},
		"x://h/d?tables=1&my_table=no": {"x://h/d?tables=1&my_table=no", sqlstore.DefaultTable},
	} {
		rest, table, err := cutTable(text)
		require.NoError(t, err)
		require.Equal(t, want, [2]string{rest, table})
	}
}

func TestRedact(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"redis://ada:p%40ss@h", "redis://:p%40ss@h", "postgres://h/d?password=p%40ss", "redis+sentinel://h?sentinel_password=p%40ss&master_name=m",
		"-store=redis://ada:p%40ss@h", "moving:redis://ada:p%40ss@h redis://i", "moving:redis://h redis://:p%40ss@i",
		"moving:redis://:p%40ss@h redis://:other@i",
	} {
		require.Equal(t, "dial … and …: refused", redact(url, "dial p@ss and p%40ss: refused"), url)
	}
	require.Equal(t, "as it is", redact("redis://ada@h", "as it is"))
	require.Equal(t, "as it is", redact("", "as it is"))
}

func TestMySQLConfig(t *testing.T) {
	t.Parallel()
	config, err := mysqlConfig("mysql://ada:p%40s%2Fs@[::1]/shop?interpolateParams=true&timeout=3s")
	require.NoError(t, err)
	require.Equal(t, "ada:p@s/s@tcp([::1]:3306)/shop?interpolateParams=true&timeout=3s", config.FormatDSN())
	config, err = mysqlConfig("mysql://db.example:3307/shop")
	require.NoError(t, err)
	require.Equal(t, "tcp(db.example:3307)/shop", config.FormatDSN())
}

// Should a driver quote a URL, its password is not printed, wherever the URL
// came from.
func TestRun_Redacts(t *testing.T) {
	t.Parallel()
	const url = "redis://ada:hunter2@cache"
	term := newTerminal(nil)
	term.open = func(_ context.Context, url string) (idempotent.Store, func() error, error) {
		return nil, nil, errors.New("cannot dial " + url)
	}
	term.env[storeVariable] = url
	for _, args := range [][]string{{"list"}, {"list", "-store", url}} {
		_, _, said := term.says(args...)
		require.Contains(t, said, "cannot dial redis://ada:…@cache")
	}
	_, _, said := term.says("list", url)
	require.Contains(t, said, `"redis://ada:…@cache" is no flag`)
}
