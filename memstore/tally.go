package memstore

import "sync/atomic"

// tally counts running claims and finished entries in one word, so that a
// completion, which makes one out of the other, never shows as two entries or
// none. Each count has 32 bits.
type tally struct{ n atomic.Int64 }

func (t *tally) add(pending, finished int64) (nowPending, nowFinished int) {
	return split(t.n.Add(pending<<32 + finished))
}

func (t *tally) load() (pending, finished int) { return split(t.n.Load()) }

func split(n int64) (pending, finished int) { return int(n >> 32), int(n & (1<<32 - 1)) }
