//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package memstore

import (
	"errors"
	"os"
	"syscall"
)

// lockFile takes f for this process until unlockFile, or the death of the
// process.
func lockFile(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// unlockFile closes f, and gives it up first: a child that was just being started
// may hold a copy of it for a moment longer.
func unlockFile(f *os.File) error {
	return errors.Join(syscall.Flock(int(f.Fd()), syscall.LOCK_UN), f.Close())
}

// syncDir makes a rename in dir last.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
