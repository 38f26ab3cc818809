package sqltest

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	code := m.Run()
	Stop()
	os.Exit(code)
}

// verdict is a test that writes down how it was ended.
type verdict struct {
	testing.TB
	skipped, failed string
}

func (v *verdict) Helper()                   {}
func (v *verdict) Skipf(f string, a ...any)  { v.skipped = fmt.Sprintf(f, a...) }
func (v *verdict) Fatalf(f string, a ...any) { v.failed = fmt.Sprintf(f, a...) }
func (v *verdict) Fatal(a ...any)            { v.failed = fmt.Sprint(a...) }

// A server that is not there skips a test and says what to do, or fails it where
// servers are required; one that does not start always fails it.
func TestMissingServer(t *testing.T) {
	missing := fmt.Errorf("initdb is %w", errNotInstalled)
	t.Setenv(RequireServers, "")
	var v verdict
	skip(&v, missing)
	require.Contains(t, v.skipped, "initdb is not installed")
	require.Contains(t, v.skipped, PostgresURL)
	require.Empty(t, v.failed)

	t.Setenv(RequireServers, "1")
	v = verdict{}
	skip(&v, missing)
	require.Contains(t, v.failed, RequireServers)
	require.Empty(t, v.skipped)

	t.Setenv(RequireServers, "")
	v = verdict{}
	skip(&v, os.ErrPermission)
	require.NotEmpty(t, v.failed)
	skip(&v, nil)
	require.Empty(t, v.skipped)

	_, err := find("no such program")
	require.ErrorIs(t, err, errNotInstalled)
}

// Every database is its test's own, on a server that all of them share, and a
// named server is used in the place of a started one.
func TestNew(t *testing.T) {
	for _, kind := range Kinds {
		t.Run(string(kind), func(t *testing.T) {
			first, second := New(t, kind), New(t, kind)
			for _, d := range []Database{first, second} {
				_, err := d.Open(t).Exec("CREATE TABLE t (n INTEGER)")
				require.NoError(t, err)
			}
			require.Equal(t, first.Addr, second.Addr)
			switch kind {
			case Postgres:
				t.Setenv(PostgresURL, started(t, &postgresServer).url())
			case MySQL:
				t.Setenv(MySQLDSN, started(t, &mariaServer).dsn())
			default:
				return
			}
			_, err := New(t, kind).Open(t).Exec("CREATE TABLE t (n INTEGER)")
			require.NoError(t, err)
		})
	}
}
