package peer

import (
	"context"
	"sync/atomic"
	"time"
)

// Record is what a map keeps for a key. It is not changed once stored.
type Record struct {
	Done        bool
	Fingerprint string
	Result      string
	Completed   int64 // a number that grows with each completion
}

// Map is a map or cache in the place of a store: it must let one caller in
// per key, and remember.
type Map interface {
	Load(key string) (*Record, bool)
	// Claim stores r unless the key has a record, which it then returns.
	Claim(key string, r *Record) (standing *Record, claimed bool)
	// Complete stores r in the place of the claim.
	Complete(key string, r *Record)
	Len() int
	Close()
}

// MapKind is a sort of map.
type MapKind struct {
	Name string
	Note string
	Open func() (Map, error)
}

// Bound is how many entries the bounded maps hold, as memstore does by default.
const Bound = 10_000

// Retention is how long the maps keep a record.
const Retention = 24 * time.Hour

// Maps are the maps and caches.
func Maps() []MapKind {
	return []MapKind{
		{Name: "scan and sort", Note: "sync.Map; at 11,000 entries the oldest tenth goes", Open: func() (Map, error) { return NewScanSort(Bound), nil }},
		{Name: "otter v2", Open: newOtter},
		{Name: "ristretto v2", Note: "admits by frequency and in the background", Open: newRistretto},
		{Name: "ttlcache v3", Open: newTTLCache},
		{Name: "golang-lru v2 expirable", Note: "has no add-if-absent: a mutex stands around it", Open: newLRU},
		{Name: "go-cache", Note: "has no bound", Open: newGoCache},
	}
}

// overMap is the protocol of a store over a map: load, claim, run, complete.
// Owners, leases and fences are left out, which favours the maps.
type overMap struct {
	cache Map
	op    func() string
	clock atomic.Int64
}

func (p *overMap) Do(_ context.Context, key, request string) (string, error) {
	r, found := p.cache.Load(key)
	if !found {
		var claimed bool
		if r, claimed = p.cache.Claim(key, &Record{Fingerprint: request}); claimed {
			result := p.op()
			p.cache.Complete(key, &Record{Done: true, Fingerprint: request, Result: result, Completed: p.clock.Add(1)})
			return result, nil
		}
	}
	switch {
	case r.Fingerprint != request:
		return "", ErrMismatch
	case !r.Done:
		return "", ErrInFlight
	}
	return r.Result, nil
}

func (p *overMap) Close() error {
	p.cache.Close()
	return nil
}
