//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package memstore

import (
	"errors"
	"os"
	"syscall"
)

// lockFile takes f for this process until it is closed, also by the death of
// the process.
func lockFile(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// syncDir makes a rename in dir last.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
