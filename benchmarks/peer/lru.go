package peer

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/expirable"
)

// lruMap has no add-if-absent, so claims go one at a time.
type lruMap struct {
	c  *expirable.LRU[string, *Record]
	mu sync.Mutex // held while a key is looked up and set
}

func newLRU() (Map, error) {
	return &lruMap{c: expirable.NewLRU[string, *Record](Bound, nil, Retention)}, nil
}

func (m *lruMap) Load(key string) (*Record, bool) { return m.c.Get(key) }

func (m *lruMap) Claim(key string, r *Record) (*Record, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if standing, ok := m.c.Get(key); ok {
		return standing, false
	}
	m.c.Add(key, r)
	return r, true
}

func (m *lruMap) Complete(key string, r *Record) { m.c.Add(key, r) }

func (m *lruMap) Len() int { return m.c.Len() }

// Close empties the cache; its goroutine has no end.
func (m *lruMap) Close() { m.c.Purge() }
