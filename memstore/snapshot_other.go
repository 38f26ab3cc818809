//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package memstore

import "os"

// Where there are no advisory locks nobody is kept from a file that is in use.
func lockFile(*os.File) error { return nil }

func unlockFile(f *os.File) error { return f.Close() }

// Directories cannot be synced everywhere; a rename is then as durable as the
// file system makes it.
func syncDir(string) error { return nil }
