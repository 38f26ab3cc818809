package peer

import "github.com/maypok86/otter/v2"

type otterMap struct{ c *otter.Cache[string, *Record] }

func newOtter() (Map, error) {
	c, err := otter.New(&otter.Options[string, *Record]{MaximumSize: Bound, ExpiryCalculator: otter.ExpiryWriting[string, *Record](Retention)})
	return otterMap{c}, err
}

func (m otterMap) Load(key string) (*Record, bool) { return m.c.GetIfPresent(key) }

func (m otterMap) Claim(key string, r *Record) (*Record, bool) { return m.c.SetIfAbsent(key, r) }

func (m otterMap) Complete(key string, r *Record) { m.c.Set(key, r) }

func (m otterMap) Len() int { return m.c.EstimatedSize() }

func (m otterMap) Close() { m.c.StopAllGoroutines() }
