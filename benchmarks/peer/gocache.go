package peer

import (
	"time"

	cache "github.com/patrickmn/go-cache"
)

type goCache struct{ c *cache.Cache }

func newGoCache() (Map, error) { return goCache{cache.New(Retention, time.Minute)}, nil }

func (m goCache) Load(key string) (*Record, bool) {
	v, ok := m.c.Get(key)
	if !ok {
		return nil, false
	}
	return v.(*Record), true
}

func (m goCache) Claim(key string, r *Record) (*Record, bool) {
	for m.c.Add(key, r, cache.DefaultExpiration) != nil {
		if standing, ok := m.Load(key); ok {
			return standing, false
		}
	}
	return r, true
}

func (m goCache) Complete(key string, r *Record) { m.c.SetDefault(key, r) }

func (m goCache) Len() int { return m.c.ItemCount() }

func (m goCache) Close() { m.c.Flush() }
