package idempotent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// journal tells observer and log what happens. All guards over one store share
// it.
type journal struct {
	observer Observer     // nil: nobody
	logger   *slog.Logger // nil: slog.Default
	outage   outage
}

// tell logs one event and passes it to the observer.
func (j *journal) tell(ctx context.Context, e Event) {
	l := j.log()
	if level := eventLevel(e); l.Enabled(ctx, level) {
		logEvent(ctx, l, level, e)
	}
	if j.observer != nil {
		j.observer.Observe(ctx, e)
	}
}

func (j *journal) log() *slog.Logger {
	if j.logger != nil {
		return j.logger
	}
	return slog.Default()
}

// eventLevel is the one place that decides how loud an event is. A failing
// store is quiet here, because outage sums its failures up.
func eventLevel(e Event) slog.Level {
	switch e.Kind {
	case EventAbandoned, EventLost, EventLongRunning, EventEvicted:
		return slog.LevelWarn
	case EventNotRecorded:
		return slog.LevelError
	case EventStoreError:
		if errors.Is(e.Err, ErrCorrupt) {
			return slog.LevelError
		}
	}
	return slog.LevelDebug
}

func logEvent(ctx context.Context, l *slog.Logger, level slog.Level, e Event) {
	attrs := make([]slog.Attr, 0, 9)
	if e.Key != "" {
		attrs = append(attrs, slog.String("key", LogKey(e.Key)))
	}
	if e.Owner != "" {
		attrs = append(attrs, slog.String("owner", e.Owner))
	}
	if e.Trace != "" {
		attrs = append(attrs, slog.String("trace", e.Trace))
	}
	if e.OwnerTrace != "" {
		attrs = append(attrs, slog.String("owner_trace", e.OwnerTrace))
	}
	if e.Status != "" {
		attrs = append(attrs, slog.String("status", string(e.Status)), slog.Bool("unknown", e.Unknown))
	}
	if e.Age != 0 {
		attrs = append(attrs, slog.Duration("age", e.Age))
	}
	if e.Took != 0 {
		attrs = append(attrs, slog.Duration("took", e.Took))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.String("err", logText(e.Key, e.Err)))
	}
	l.LogAttrs(ctx, level, "idempotent: "+string(e.Kind), attrs...)
}

// LogKey returns the name by which log lines of this package know a store
// name: the first 16 hex digits of its SHA-256. Store names hold principals and
// clients' keys, which logs must not show; a digest still lets lines be
// matched.
func LogKey(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:8])
}

// shortKey is the length below which a store name is not looked for in texts:
// it would be found inside of words.
const shortKey = 8

// logText returns the text of a store's error, in which key, should the store
// have quoted it, is replaced by LogKey(key).
func logText(key string, err error) string {
	text := err.Error()
	if len(key) < shortKey {
		return text
	}
	quoted := strconv.Quote(key)
	return strings.NewReplacer(key, LogKey(key), quoted[1:len(quoted)-1], LogKey(key)).Replace(text)
}

// outage turns many failures of one store into a few log lines: one at the
// start, one a minute, one at the end. A store that comes and goes has no more
// of them.
type outage struct {
	down     atomic.Bool // read without the lock by every answer of a healthy store
	mu       sync.Mutex  // guards the fields below
	since    time.Time
	failures int
	logged   time.Time // the last line that told of an outage
	told     bool      // a line has told of this one
}

const outageInterval = time.Minute

// answered notes that the store has answered.
func (j *journal) answered(ctx context.Context) {
	o := &j.outage
	if !o.down.Load() {
		return
	}
	o.mu.Lock()
	ends := o.down.Swap(false) && o.told
	since, failures := o.since, o.failures
	o.mu.Unlock()
	if ends {
		j.log().LogAttrs(ctx, slog.LevelInfo, "idempotent: store answers again",
			slog.Duration("after", time.Since(since)), slog.Int("failures", failures))
	}
}

// failed notes that the store has failed in a step for key.
func (j *journal) failed(ctx context.Context, key string, err error) {
	o := &j.outage
	now := time.Now()
	o.mu.Lock()
	if !o.down.Swap(true) {
		o.since, o.failures, o.told = now, 0, false
	}
	o.failures++
	since, failures := o.since, o.failures
	due := now.Sub(o.logged) >= outageInterval
	if due {
		o.logged, o.told = now, true
	}
	o.mu.Unlock()
	if due {
		j.log().LogAttrs(ctx, slog.LevelError, "idempotent: store does not answer; keyed operations are refused",
			slog.Duration("for", now.Sub(since)), slog.Int("failures", failures), slog.String("err", logText(key, err)))
	}
}
