package peer

import "github.com/jellydator/ttlcache/v3"

type ttlMap struct {
	c *ttlcache.Cache[string, *Record]
}

func newTTLCache() (Map, error) {
	c := ttlcache.New(
		ttlcache.WithTTL[string, *Record](Retention),
		ttlcache.WithCapacity[string, *Record](Bound),
		ttlcache.WithDisableTouchOnHit[string, *Record](),
	)
	go c.Start() // until Stop
	return ttlMap{c}, nil
}

func (m ttlMap) Load(key string) (*Record, bool) {
	item := m.c.Get(key)
	if item == nil {
		return nil, false
	}
	return item.Value(), true
}

func (m ttlMap) Claim(key string, r *Record) (*Record, bool) {
	item, found := m.c.GetOrSet(key, r)
	return item.Value(), !found
}

func (m ttlMap) Complete(key string, r *Record) { m.c.Set(key, r, ttlcache.DefaultTTL) }

func (m ttlMap) Len() int { return m.c.Len() }

func (m ttlMap) Close() { m.c.Stop() }
