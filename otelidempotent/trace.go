package otelidempotent

import (
	"context"
	"errors"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/telemetry"
)

// The names of spans, of their events and of their attributes.
const (
	spanRun     = "idempotency.run"
	spanReplay  = "idempotency.replay"
	spanRefusal = "idempotency.refusal"

	eventLost        = "idempotency.lost"
	eventLongRunning = "idempotency.long_running"
	eventStoreError  = "idempotency.store_error"

	attrKey        = attribute.Key("idempotency.key")
	attrOwner      = attribute.Key("idempotency.owner")
	attrOwnerTrace = attribute.Key("idempotency.owner_trace")
	attrTakenOver  = attribute.Key("idempotency.taken_over")
	attrAnswer     = attribute.Key("idempotency.answer")
)

// Trace returns the W3C traceparent of the span in the context of r, or "". It
// is for idempotent.WithTrace: replays then link to the request that ran. The
// span is that of the layer outside, such as otelhttp.
func Trace(r *http.Request) string { return Traceparent(r.Context()) }

// Traceparent returns the W3C traceparent of the span in ctx, or "". It is for
// idempotent.WithCallTrace: replays then link to the call that ran.
func Traceparent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier["traceparent"]
}

// run is the span of an execution.
type run struct {
	span  trace.Span
	began time.Time
}

// trace begins, ends and marks the spans that e is about.
func (o *Observer) trace(ctx context.Context, e idempotent.Event) {
	switch e.Kind {
	case idempotent.EventClaimed, idempotent.EventTakenOver:
		o.begin(ctx, e)
	case idempotent.EventCompleted, idempotent.EventReleased, idempotent.EventNotRecorded:
		o.end(e)
	case idempotent.EventLost:
		o.mark(e, eventLost)
	case idempotent.EventLongRunning:
		o.mark(e, eventLongRunning)
	case idempotent.EventReplayed:
		o.answered(ctx, e, spanReplay, outcomeOf(e))
	case idempotent.EventInFlight, idempotent.EventKeyReused, idempotent.EventAbandoned:
		o.answered(ctx, e, spanRefusal, attrAnswer.String(string(e.Kind)))
	case idempotent.EventStoreError:
		if span := trace.SpanFromContext(ctx); span.IsRecording() {
			span.AddEvent(eventStoreError, trace.WithAttributes(
				attrStep.String(telemetry.Step(e.Err)), attrErrorType.String(telemetry.Error(e.Err)),
			))
		}
	}
}

// begin keeps the span of an execution until its end is told: only then is the
// time of the operation known, and its outcome may be recorded much later.
func (o *Observer) begin(ctx context.Context, e idempotent.Event) {
	now := time.Now()
	_, span := o.tracer.Start(ctx, spanRun, trace.WithTimestamp(now))
	if !span.IsRecording() {
		span.End()
		return
	}
	span.SetAttributes(attrKey.String(idempotent.LogKey(e.Key)), attrOwner.String(e.Owner))
	if e.Kind == idempotent.EventTakenOver {
		span.SetAttributes(attrTakenOver.Bool(true))
	}
	o.runs.Store(e.Owner, run{span, now})
}

func (o *Observer) end(e idempotent.Event) {
	r, ok := o.runs.LoadAndDelete(e.Owner)
	if !ok {
		return
	}
	span, began := r.(run).span, r.(run).began
	span.SetAttributes(outcomeOf(e))
	switch {
	case e.Kind == idempotent.EventNotRecorded:
		// The text of the error may quote a key.
		kind := telemetry.Error(e.Err)
		if errors.Is(e.Err, idempotent.ErrLost) {
			kind = "lost"
		}
		span.SetAttributes(attrErrorType.String(kind))
		span.SetStatus(codes.Error, "the outcome is not recorded")
	case telemetry.Outcome(e) == idempotent.ClassUnknown:
		span.SetStatus(codes.Error, "the outcome is unknown")
	}
	span.End(trace.WithTimestamp(began.Add(e.Took)))
}

// mark adds an event to the span of an execution.
func (o *Observer) mark(e idempotent.Event, name string) {
	if r, ok := o.runs.Load(e.Owner); ok {
		r.(run).span.AddEvent(name)
	}
}

// answered makes the span of a call that another call's run has answered.
// Without a trace of its own, as in a sweep, it would be one that nobody looks
// for.
func (o *Observer) answered(ctx context.Context, e idempotent.Event, name string, answer attribute.KeyValue) {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return
	}
	behind := spanContextOf(e.OwnerTrace)
	now := time.Now()
	opts := []trace.SpanStartOption{trace.WithTimestamp(now)}
	if behind.IsValid() {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: behind}))
	}
	_, span := o.tracer.Start(ctx, name, opts...)
	if span.IsRecording() {
		span.SetAttributes(attrKey.String(idempotent.LogKey(e.Key)), attrOwner.String(e.Owner), answer)
		if !behind.IsValid() && e.OwnerTrace != "" {
			span.SetAttributes(attrOwnerTrace.String(e.OwnerTrace))
		}
	}
	span.End(trace.WithTimestamp(now))
}

// spanContextOf reads a traceparent; what is none gives an invalid context.
func spanContextOf(traceparent string) trace.SpanContext {
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": traceparent})
	return trace.SpanContextFromContext(ctx)
}

func outcomeOf(e idempotent.Event) attribute.KeyValue {
	return attrOutcome.String(telemetry.Outcome(e).String())
}
