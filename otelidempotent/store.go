package otelidempotent

import (
	"context"

	"go.opentelemetry.io/otel/metric"
)

// StoreStats is what a store holds at one moment. memstore.Store.Stats has
// these, and more.
type StoreStats struct {
	Entries int // running claims included
	Pending int // of these, claims without an outcome
	Bytes   int // of the entries, without the store's own overhead
}

// ObserveStore measures what a store holds, by read, whenever the meter
// collects, until Unregister of the registration. It panics on a nil function.
// The error is that of the meter.
func (o *Observer) ObserveStore(read func() StoreStats) (metric.Registration, error) {
	if read == nil {
		panic("otelidempotent: ObserveStore: the function is nil")
	}
	entries, err := o.meter.Int64ObservableUpDownCounter("idempotency.store.entries", metric.WithUnit("{entry}"),
		metric.WithDescription("Entries that the store holds."))
	if err != nil {
		return nil, err
	}
	size, err := o.meter.Int64ObservableUpDownCounter("idempotency.store.size", metric.WithUnit("By"),
		metric.WithDescription("Bytes of the entries that the store holds, without its own overhead."))
	if err != nil {
		return nil, err
	}
	pending := metric.WithAttributes(attrEntryState.String("pending"))
	finished := metric.WithAttributes(attrEntryState.String("finished"))
	return o.meter.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		s := read()
		to.ObserveInt64(entries, int64(s.Pending), pending)
		to.ObserveInt64(entries, int64(s.Entries-s.Pending), finished)
		to.ObserveInt64(size, int64(s.Bytes))
		return nil
	}, entries, size)
}
