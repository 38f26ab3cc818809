package peer

import (
	"sync"

	"github.com/dgraph-io/ristretto/v2"
)

// ristrettoMap has no add-if-absent, so claims go one at a time. What it was
// told it may drop, or show later.
type ristrettoMap struct {
	c  *ristretto.Cache[string, *Record]
	mu sync.Mutex // held while a key is looked up and set
}

func newRistretto() (Map, error) {
	c, err := ristretto.NewCache(&ristretto.Config[string, *Record]{NumCounters: 10 * Bound, MaxCost: Bound, BufferItems: 64, Metrics: true, IgnoreInternalCost: true})
	return &ristrettoMap{c: c}, err
}

func (m *ristrettoMap) Load(key string) (*Record, bool) { return m.c.Get(key) }

func (m *ristrettoMap) Claim(key string, r *Record) (*Record, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if standing, ok := m.c.Get(key); ok {
		return standing, false
	}
	m.c.SetWithTTL(key, r, 1, Retention)
	return r, true
}

func (m *ristrettoMap) Complete(key string, r *Record) { m.c.SetWithTTL(key, r, 1, Retention) }

func (m *ristrettoMap) Len() int { return int(m.c.Metrics.KeysAdded() - m.c.Metrics.KeysEvicted()) }

func (m *ristrettoMap) Close() { m.c.Close() }
