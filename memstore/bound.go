package memstore

import (
	"math"
	"sync/atomic"
)

// bound is an instant before which none of many ends comes. It says whether a
// look at them all is worth while.
//
// Who adds an end makes it visible first and lowers the bound then; who looks
// forgets the bound first, and lowers it to what still stands. Whatever is
// added meanwhile is either seen or lowers the bound again.
type bound struct{ at atomic.Int64 }

func (b *bound) due(now int64) bool { return now >= b.at.Load() }

func (b *bound) forget() { b.at.Store(math.MaxInt64) }

func (b *bound) lower(end int64) {
	for {
		at := b.at.Load()
		if end >= at || b.at.CompareAndSwap(at, end) {
			return
		}
	}
}
