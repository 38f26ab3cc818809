package main

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// spent starts a watch on what this goroutine costs, and keeps it on its
// thread until stop is called. On Linux that is processor time: what other
// programs take meanwhile is not counted.
func spent() (watch func() time.Duration, stop func()) {
	runtime.LockOSThread()
	return func() time.Duration {
		var t unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
		return time.Duration(t.Nano())
	}, runtime.UnlockOSThread
}
