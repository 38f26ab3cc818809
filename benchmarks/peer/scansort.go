package peer

import (
	"slices"
	"sync"
	"sync/atomic"
)

// ScanSort is a sync.Map that makes room the obvious way: it looks at all
// entries, sorts them by age and deletes the oldest tenth.
type ScanSort struct {
	entries sync.Map // string to *Record
	size    atomic.Int64
	most    int64
	room    sync.Mutex // held by the request that makes room
}

// NewScanSort returns one that makes room when it is more than a tenth above
// most.
func NewScanSort(most int) *ScanSort { return &ScanSort{most: int64(most)} }

// Load returns the record of key.
func (m *ScanSort) Load(key string) (*Record, bool) {
	v, ok := m.entries.Load(key)
	if !ok {
		return nil, false
	}
	return v.(*Record), true
}

// Claim stores r unless there is a record.
func (m *ScanSort) Claim(key string, r *Record) (*Record, bool) {
	if m.size.Load() >= m.most+m.most/10 && m.room.TryLock() {
		m.Evict(int(m.size.Load()/10 + 1))
		m.room.Unlock()
	}
	v, loaded := m.entries.LoadOrStore(key, r)
	if !loaded {
		m.size.Add(1)
	}
	return v.(*Record), !loaded
}

// Complete stores r.
func (m *ScanSort) Complete(key string, r *Record) { m.entries.Store(key, r) }

// Evict removes the oldest n finished records and returns how many it found.
func (m *ScanSort) Evict(n int) int {
	type entry struct {
		key    string
		record *Record
	}
	var all []entry
	m.entries.Range(func(k, v any) bool {
		if r := v.(*Record); r.Done {
			all = append(all, entry{k.(string), r})
		}
		return true
	})
	slices.SortFunc(all, func(a, b entry) int { return int(a.record.Completed - b.record.Completed) })
	gone := 0
	for _, e := range all[:min(n, len(all))] {
		if m.entries.CompareAndDelete(e.key, e.record) {
			gone++
		}
	}
	m.size.Add(int64(-gone))
	return gone
}

// Len returns how many records there are.
func (m *ScanSort) Len() int { return int(m.size.Load()) }

// Close does nothing.
func (m *ScanSort) Close() {}
