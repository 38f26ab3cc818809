//go:build unix

package memstore

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// The child of a process that starts another one while it closes its store holds
// a copy of the lock until it has become the other program.
func TestSnapshot_LockEndsWithItsStore(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys")
	sn, _, err := openSnapshot(path)
	require.NoError(t, err)
	held, err := syscall.Dup(int(sn.lock.Fd()))
	require.NoError(t, err)
	defer func() { _ = syscall.Close(held) }()
	_, _, err = openSnapshot(path)
	require.ErrorContains(t, err, "another store uses it")
	require.NoError(t, sn.end(true))
	sn, _, err = openSnapshot(path)
	require.NoError(t, err)
	require.NoError(t, sn.end(true))
}
