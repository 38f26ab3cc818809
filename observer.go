package idempotent

import (
	"context"
	"time"
)

// EventKind says what happened. The words are those of the table in the
// package documentation.
type EventKind string

// The kinds of event.
const (
	EventClaimed     EventKind = "claimed"      // a key was claimed, its operation is about to run
	EventReplayed    EventKind = "replayed"     // a call was answered from the record
	EventInFlight    EventKind = "in-flight"    // a duplicate of a pending key was refused
	EventWaited      EventKind = "waited"       // a duplicate stopped waiting; Took says after how long
	EventKeyReused   EventKind = "key-reused"   // the key was used before for another request
	EventCompleted   EventKind = "completed"    // an outcome was recorded; Took is the operation's time
	EventNotRecorded EventKind = "not-recorded" // an outcome could not be recorded and never will be; Err says why
	EventReleased    EventKind = "released"     // a key was freed because nothing happened
	EventAbandoned   EventKind = "abandoned"    // a claim was found whose lease had lapsed
	EventTakenOver   EventKind = "taken-over"   // a lapsed claim was claimed anew, its operation runs again
	EventResolved    EventKind = "resolved"     // an unknown outcome was settled by hand
	EventLost        EventKind = "lost"         // an execution learnt that its claim is gone
	EventLongRunning EventKind = "long-running" // an operation has run for ten leases, or for ten more
	EventStoreError  EventKind = "store-error"  // a step of the store failed or was refused; Err says which, as a *StoreError, and how
	EventEvicted     EventKind = "evicted"      // a finished entry was dropped before its time; Age is its age
	EventUnkeyed     EventKind = "unkeyed"      // a request without a key ran unprotected, as an option allows
)

// Event is one thing that happened to one key. Fields that say nothing for a
// kind are zero.
type Event struct {
	Kind    EventKind
	Key     string // store name: it can name a principal and a client's key, so log LogKey(Key) instead
	Owner   string // the execution that holds or produced the entry
	Trace   string // correlation id of the call that tells this
	Status  Status
	Unknown bool
	Age     time.Duration // since the first claim of the key, or of the entry
	Took    time.Duration // of the operation, the wait or the store's step
	Err     error

	// OwnerTrace is the correlation id of the call whose execution Owner is,
	// where another call meets its entry: replayed, in-flight, waited,
	// key-reused, abandoned. It leads from a replay to the run behind it.
	OwnerTrace string
}

// Observer is told of every event, once, from the goroutine in which it
// happens and before the call that caused it goes on. It must be safe for
// concurrent use, must not block, and must not call the guard or the store. A
// panic of its own is not caught.
type Observer interface {
	Observe(ctx context.Context, e Event)
}

// ObserverFunc makes a function an [Observer].
type ObserverFunc func(ctx context.Context, e Event)

// Observe calls f.
func (f ObserverFunc) Observe(ctx context.Context, e Event) { f(ctx, e) }
