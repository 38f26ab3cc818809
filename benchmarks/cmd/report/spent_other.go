//go:build !linux

package main

import "time"

// spent starts a watch on what this goroutine costs, until stop is called.
// Here that is the time on the clock, with what other programs take.
func spent() (watch func() time.Duration, stop func()) {
	began := time.Now()
	return func() time.Duration { return time.Since(began) }, func() {}
}
