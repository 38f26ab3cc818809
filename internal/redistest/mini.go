package redistest

import (
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// Mini starts a miniredis whose clock stands still but for advance. It has two
// clocks of its own, the one that TIME tells and the one by which entries
// expire; here they agree.
func Mini(t testing.TB) (addr string, advance func(time.Duration)) {
	t.Helper()
	m := miniredis.RunT(t)
	now := time.Now()
	m.SetTime(now)
	var mu sync.Mutex // guards now, and keeps the two clocks together
	return m.Addr(), func(d time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		now = now.Add(d)
		m.SetTime(now)
		m.FastForward(d)
	}
}
