package storetest

import (
	"testing"
	"testing/synctest"
)

func TestRun_FakeClock(t *testing.T) {
	Run(t, func(*testing.T) Harness {
		h := newReference().harness()
		h.Wrap = synctest.Test
		return h
	})
}

func TestRun_RealClock(t *testing.T) {
	Run(t, func(*testing.T) Harness { return newReference().harness() })
}
