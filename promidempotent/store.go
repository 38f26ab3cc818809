package promidempotent

import "github.com/prometheus/client_golang/prometheus"

// StoreStats is what a store holds at one moment. memstore.Store.Stats has
// these, and more.
type StoreStats struct {
	Entries int // running claims included
	Pending int // of these, claims without an outcome
	Bytes   int // of the entries, without the store's own overhead
}

// storeCollector asks a store at every scrape.
type storeCollector struct {
	read           func() StoreStats
	entries, bytes *prometheus.Desc
}

// NewStoreCollector returns a collector of what a store holds. It calls read at
// every scrape, possibly several times at once. It panics on nil.
func NewStoreCollector(read func() StoreStats) prometheus.Collector {
	if read == nil {
		panic("promidempotent: NewStoreCollector: the function is nil")
	}
	return &storeCollector{
		read:    read,
		entries: prometheus.NewDesc("idempotent_store_entries", "Entries that the store holds.", []string{"state"}, nil),
		bytes:   prometheus.NewDesc("idempotent_store_bytes", "Bytes of the entries that the store holds, without its own overhead.", nil, nil),
	}
}

// Describe tells a registry what there is.
func (c *storeCollector) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- c.entries
	descriptions <- c.bytes
}

// Collect tells a registry what the store holds now.
func (c *storeCollector) Collect(metrics chan<- prometheus.Metric) {
	s := c.read()
	metrics <- prometheus.MustNewConstMetric(c.entries, prometheus.GaugeValue, float64(s.Pending), "pending")
	metrics <- prometheus.MustNewConstMetric(c.entries, prometheus.GaugeValue, float64(s.Entries-s.Pending), "finished")
	metrics <- prometheus.MustNewConstMetric(c.bytes, prometheus.GaugeValue, float64(s.Bytes))
}
