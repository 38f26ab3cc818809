package idempotent

import (
	"context"
	"fmt"
	"time"
)

// Status says what is known of a key. The zero value is no status: an entry
// always has one of the three below.
type Status string

// A key is pending while an operation runs, and then success or failed.
const (
	Pending Status = "pending"
	Success Status = "success"
	Failed  Status = "failed"
)

// MinDuration is the shortest lease, keep or retention that a store accepts.
// Shorter ones, zero and negative ones are [ErrInvalid]: they would make an
// entry that is gone before anybody can read it, or one that lives for ever.
const MinDuration = time.Millisecond

// Entry is what a store knows of one key. It is a value: changing it changes
// nothing in the store.
type Entry struct {
	Key         string
	Status      Status
	Unknown     bool      // Failed, and the operation may have happened
	Result      string    // recorded outcome, opaque to stores; its first byte tells the encoding
	Timestamp   time.Time // when Status was set, by the store's clock; of an abandoned claim, the lapse
	Claimed     time.Time // first claim; survives completion
	Expires     time.Time // Pending: end of the lease; abandoned: lapse + Keep; otherwise end of the retention
	Fingerprint string    // of the request that claimed the key; "" where it was lost
	Owner       string    // the execution that holds or produced it
	Trace       string    // caller's correlation id, for logs and for the 409 answer
	Fence       int64     // grows with every claim of the key; pass it to systems that can compare it
}

// Abandoned reports whether e is the reading of a claim that lapsed before an
// outcome was recorded. An outcome that was recorded as unknown is none: a guard
// gives it a result, if only one that says that there is none.
func (e Entry) Abandoned() bool { return e.Status == Failed && e.Unknown && e.Result == "" }

// Claim asks for a key.
type Claim struct {
	Owner       string        // random, one per execution
	Fingerprint string        // of the request; "" where there is none
	Trace       string        // caller's correlation id; may be ""
	Lease       time.Duration // how long the claim stands without renewal
	Keep        time.Duration // how long an abandoned claim is remembered after the lapse
	TakeOver    bool          // a lapsed claim may be taken over and run again; kept with the claim
}

// Outcome is what became of a claimed operation.
type Outcome struct {
	Status      Status        // Success or Failed
	Unknown     bool          // Failed only: the operation may have happened
	Result      string        // what to answer repeats with; kept byte for byte
	Fingerprint string        // repeated, for the case that the claim has been lost
	Retention   time.Duration // how long the outcome is kept, counted from completion
}

// Validate reports whether every backend accepts the claim. The error wraps
// [ErrInvalid] and names the field.
func (c Claim) Validate() error {
	if c.Owner == "" {
		return fmt.Errorf("%w: Claim.Owner is empty; use a random text, one per execution", ErrInvalid)
	}
	if err := ValidateDuration("Claim.Lease", c.Lease); err != nil {
		return err
	}
	return ValidateDuration("Claim.Keep", c.Keep)
}

// Validate reports whether every backend accepts the outcome. The error wraps
// [ErrInvalid] and names the field.
func (o Outcome) Validate() error {
	switch {
	case o.Status != Success && o.Status != Failed:
		return fmt.Errorf("%w: Outcome.Status is %q; an outcome is Success or Failed", ErrInvalid, o.Status)
	case o.Unknown && o.Status != Failed:
		return fmt.Errorf("%w: Outcome.Unknown goes with Failed, not with %q", ErrInvalid, o.Status)
	}
	return ValidateDuration("Outcome.Retention", o.Retention)
}

// ValidateKey reports whether every backend accepts key and owner, the two
// texts that no entry can do without. The error wraps [ErrInvalid].
func ValidateKey(key, owner string) error {
	if key == "" {
		return fmt.Errorf("%w: the key is empty", ErrInvalid)
	}
	if owner == "" {
		return fmt.Errorf("%w: the owner is empty", ErrInvalid)
	}
	return nil
}

// ValidateDuration reports whether every backend accepts d, which the error
// calls name. The error wraps [ErrInvalid].
func ValidateDuration(name string, d time.Duration) error {
	if d < MinDuration {
		return fmt.Errorf("%w: %s is %v; it must be at least %v", ErrInvalid, name, d, MinDuration)
	}
	return nil
}

// Store keeps one entry per key and moves it by atomic decisions. It is safe
// for concurrent use, also from several processes where the backend is shared.
//
// The contract is the state table of the package documentation together with
// these rules; package storetest checks every line of both.
//
//  1. Each method is one atomic decision. Load before Store: a claim looks
//     first and answers with what it found; only a miss stores. Look and store
//     are one step.
//  2. Every method may be sent twice: while nothing else has changed the entry,
//     the second send answers the same and changes nothing but the lease.
//  3. A lapse is decided when the entry is read, by the store's own clock. A
//     sweep only tidies; nothing depends on it.
//  4. Durations cross the interface, never instants. One below [MinDuration],
//     an empty key or an empty owner is [ErrInvalid]; very long durations do
//     not overflow.
//  5. An entry that is Pending, lapsed or not, is never evicted for room. If no
//     room can be made, Claim fails with [ErrFull] and nothing is claimed. A
//     completion is never refused for room and never evicts itself.
//  6. What a store keeps nobody else can change.
//  7. Retention counts from completion. Fingerprint, trace, fence and the time
//     of the first claim survive completion. A fence is the larger of the last
//     one plus one and the store's clock in microseconds, so that it grows
//     across removal too.
//  8. An entry carries its own key; one found under another name is
//     [ErrCorrupt], never an answer.
//  9. An entry that cannot be read is [ErrCorrupt], one of a newer format
//     [ErrNewerFormat]: no replay, no run.
//
// Methods return ErrLost, ErrFull, ErrCorrupt, ErrNewerFormat, ErrInvalid and
// ErrClosed, possibly wrapped; any other error means that the backend failed
// and that the decision may or may not have been made. Each respects ctx: a
// call ends when ctx does.
type Store interface {
	// Load returns the entry of key, and false where there is none. An
	// abandoned claim is returned as Failed and Unknown, without a result.
	Load(ctx context.Context, key string) (Entry, bool, error)

	// Claim claims key for c.Owner. It returns the entry that stands
	// afterwards, and true where it is this owner's running claim.
	Claim(ctx context.Context, key string, c Claim) (e Entry, claimed bool, err error)

	// Renew starts owner's lease anew. ErrLost: the claim is gone or
	// somebody else's.
	Renew(ctx context.Context, key, owner string, lease time.Duration) error

	// Complete records owner's outcome. ErrLost: somebody else holds or
	// finished the key, or owner has recorded another known outcome.
	// [ErrReleased], of a store that commits the operation's own writes with
	// the outcome: it has undone both, and the key is free.
	Complete(ctx context.Context, key, owner string, o Outcome) error

	// Release frees a key that owner holds because nothing happened. ErrLost:
	// somebody else holds or finished it.
	Release(ctx context.Context, key, owner string) error
}
