package idempotent_test

import (
	"testing"
	"testing/synctest"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/storetest"
)

// A pair of stores keeps the contract of one.
func TestMoving_Contract(t *testing.T) {
	t.Run("memory to memory", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) storetest.Harness {
			old, new := tierMem(t), tierMem(t)
			open := func() idempotent.Store { return idempotent.Moving(old, new) }
			return storetest.Harness{Store: open(), Second: open, Wrap: synctest.Test}
		})
	})
	t.Run("memory to Redis", func(t *testing.T) {
		addr := redistest.Start(t).Addr
		storetest.Run(t, func(t *testing.T) storetest.Harness {
			h := redisHarness(t, addr)
			old, new := tierMem(t), h.Second
			h.Store = idempotent.Moving(old, h.Store)
			h.Second = func() idempotent.Store { return idempotent.Moving(old, new()) }
			return h
		})
	})
}
