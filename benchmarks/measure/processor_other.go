//go:build !linux

package measure

import "time"

var began = time.Now()

// processorTime returns the time on the clock, with what other programs take.
func processorTime() time.Duration { return time.Since(began) }
