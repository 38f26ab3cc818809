// Package model is the state table of a store as one pure function, for tests
// that compare a store, or something built on one, with what the contract says.
package model

import (
	"fmt"
	"time"

	"github.com/idempotent-go/idempotent"
)

// Op is a method of a store that decides something about one key.
type Op int

// The operations. Delete is the optional one of [idempotent.Deleter].
const (
	Load Op = iota
	Claim
	Renew
	Complete
	Release
	Delete
)

// String returns the name of the method.
func (op Op) String() string {
	names := [...]string{"Load", "Claim", "Renew", "Complete", "Release", "Delete"}
	if op < 0 || int(op) >= len(names) {
		return fmt.Sprintf("Op(%d)", int(op))
	}
	return names[op]
}

// Event is one call of one method. Fields that the method does not take are
// ignored.
type Event struct {
	Op      Op
	Key     string
	Owner   string             // of Renew, Complete and Release
	Claim   idempotent.Claim   // of Claim
	Lease   time.Duration      // of Renew
	Outcome idempotent.Outcome // of Complete
}

// String describes the event in one line, for the log of a failed test.
func (e Event) String() string {
	switch e.Op {
	case Claim:
		return fmt.Sprintf("Claim(%q, %+v)", e.Key, e.Claim)
	case Renew:
		return fmt.Sprintf("Renew(%q, %q, %v)", e.Key, e.Owner, e.Lease)
	case Complete:
		return fmt.Sprintf("Complete(%q, %q, %+v)", e.Key, e.Owner, e.Outcome)
	case Release:
		return fmt.Sprintf("Release(%q, %q)", e.Key, e.Owner)
	default:
		return fmt.Sprintf("%v(%q)", e.Op, e.Key)
	}
}

// Answer is what a method returns. OK is the second result of Load and Claim.
type Answer struct {
	Entry idempotent.Entry
	OK    bool
	Err   error // one of the root package's errors, possibly wrapped
}

// String describes the answer in one line.
func (a Answer) String() string {
	if a.Entry.Status == "" {
		return fmt.Sprintf("no entry, %v, %v", a.OK, a.Err)
	}
	const layout = "15:04:05.000000"
	e := a.Entry
	return fmt.Sprintf("%s of %q (unknown %v, result %q, fingerprint %q, trace %q, fence %d; first claimed %s, set %s, until %s), %v, %v",
		e.Status, e.Owner, e.Unknown, e.Result, e.Fingerprint, e.Trace, e.Fence,
		e.Claimed.Format(layout), e.Timestamp.Format(layout), e.Expires.Format(layout), a.OK, a.Err)
}

// State is what a store knows of one key. The zero value is a key that was
// never used.
type State struct {
	// Entry as it is stored, not as it is read: a lapsed claim stays Pending.
	// Its Status is "" where the key is absent.
	Entry idempotent.Entry

	Keep     time.Duration // how long after the lapse a claim is remembered
	TakeOver bool          // the claim may be taken over
	Gained   bool          // the claim was gained by take-over
	Fence    int64         // the largest that the key ever had, also while it is absent
}

// Step returns the state after the event and the answer to it, at a given
// moment of the store's clock.
func (s State) Step(now time.Time, e Event) (State, Answer) {
	if err := e.validate(); err != nil {
		return s, Answer{Err: err}
	}
	now = now.Round(0) // stores know no monotonic clock
	if s.Gone(now) {
		s = s.removed()
	}
	switch e.Op {
	case Load:
		entry := s.Read(now)
		return s, Answer{Entry: entry, OK: entry.Status != ""}
	case Claim:
		return s.claim(now, e.Key, e.Claim)
	case Renew:
		return s.renew(now, e.Owner, e.Lease)
	case Complete:
		return s.complete(now, e.Key, e.Owner, e.Outcome)
	case Release:
		return s.release(now, e.Owner)
	case Delete:
		return s.removed(), Answer{}
	}
	panic("model: no such operation: " + e.Op.String())
}

// Boundary returns the moments at which s changes its reading by itself, for
// tests that stay clear of them. An absent key has none.
func (s State) Boundary() []time.Time {
	switch s.Entry.Status {
	case "":
		return nil
	case idempotent.Pending:
		return []time.Time{s.Entry.Expires, s.Entry.Expires.Add(s.Keep)}
	default:
		return []time.Time{s.Entry.Expires}
	}
}

// Gone reports whether nothing is left of the key: it was never used, or its
// retention or Keep has passed.
func (s State) Gone(now time.Time) bool {
	switch s.Entry.Status {
	case "":
		return true
	case idempotent.Pending:
		return !now.Before(s.Entry.Expires.Add(s.Keep))
	default:
		return !now.Before(s.Entry.Expires)
	}
}

// Read returns the entry as Load shows it: a lapsed claim is Failed and
// Unknown. The entry of an absent key is zero.
func (s State) Read(now time.Time) idempotent.Entry {
	e := s.Entry
	switch {
	case s.Gone(now):
		return idempotent.Entry{}
	case s.lapsed(now):
		e.Status, e.Unknown = idempotent.Failed, true
		e.Timestamp, e.Expires = e.Expires, e.Expires.Add(s.Keep)
	}
	return e
}

func (s State) claim(now time.Time, key string, c idempotent.Claim) (State, Answer) {
	held := s.Entry
	switch {
	case held.Status == "":
		s = s.claimed(now, key, c)
		s.Entry.Claimed = now
		s.Gained = false
	case held.Status == idempotent.Pending && held.Owner == c.Owner:
		s.Entry.Expires = now.Add(c.Lease)
	case s.lapsed(now) && s.TakeOver && c.TakeOver && held.Fingerprint == c.Fingerprint:
		s = s.claimed(now, key, c)
		s.Entry.Claimed = held.Claimed
		s.Gained = true
	default:
		return s, Answer{Entry: s.Read(now)}
	}
	return s, Answer{Entry: s.Entry, OK: true}
}

// claimed returns the state of a key that c has just gained, except for what
// depends on how it was gained.
func (s State) claimed(now time.Time, key string, c idempotent.Claim) State {
	s.Fence = max(s.Fence+1, now.UnixMicro())
	s.Keep, s.TakeOver = c.Keep, c.TakeOver
	s.Entry = idempotent.Entry{
		Key:         key,
		Status:      idempotent.Pending,
		Timestamp:   now,
		Expires:     now.Add(c.Lease),
		Fingerprint: c.Fingerprint,
		Owner:       c.Owner,
		Trace:       c.Trace,
		Fence:       s.Fence,
	}
	return s
}

func (s State) renew(now time.Time, owner string, lease time.Duration) (State, Answer) {
	switch {
	case !s.owned(owner):
		return s, Answer{Err: idempotent.ErrLost}
	case s.Entry.Status == idempotent.Pending:
		s.Entry.Expires = now.Add(lease)
	}
	return s, Answer{}
}

func (s State) complete(now time.Time, key, owner string, o idempotent.Outcome) (State, Answer) {
	held := s.Entry
	switch {
	case held.Status == "":
		s.Fence = max(s.Fence+1, now.UnixMicro())
		s.Entry = idempotent.Entry{
			Key:         key,
			Claimed:     now,
			Fingerprint: o.Fingerprint,
			Owner:       owner,
			Fence:       s.Fence,
		}
	case !s.owned(owner):
		return s, Answer{Err: idempotent.ErrLost}
	case held.Status == idempotent.Pending:
	case held.Unknown && !o.Unknown:
	case held.Unknown, o.Unknown, held.Status == o.Status && held.Result == o.Result:
		return s, Answer{}
	default:
		return s, Answer{Err: idempotent.ErrLost}
	}
	s.Entry.Status, s.Entry.Unknown, s.Entry.Result = o.Status, o.Unknown, o.Result
	s.Entry.Timestamp, s.Entry.Expires = now, now.Add(o.Retention)
	return s, Answer{}
}

func (s State) release(now time.Time, owner string) (State, Answer) {
	held := s.Entry
	switch {
	case held.Status == "":
	case !s.owned(owner):
		return s, Answer{Err: idempotent.ErrLost}
	case held.Status == idempotent.Pending && s.Gained:
		if !s.lapsed(now) {
			s.Entry.Expires = now
		}
	case held.Status == idempotent.Pending, held.Unknown:
		s = s.removed()
	}
	return s, Answer{}
}

// lapsed reports whether the lease of a running claim is over.
func (s State) lapsed(now time.Time) bool {
	return s.Entry.Status == idempotent.Pending && !now.Before(s.Entry.Expires)
}

// owned reports whether owner holds or finished the key.
func (s State) owned(owner string) bool {
	return s.Entry.Status != "" && s.Entry.Owner == owner
}

// removed returns an absent key that remembers its fence.
func (s State) removed() State { return State{Fence: s.Fence} }

func (e Event) validate() error {
	switch e.Op {
	case Claim:
		if err := e.Claim.Validate(); err != nil {
			return err
		}
		return idempotent.ValidateKey(e.Key, e.Claim.Owner)
	case Renew:
		if err := idempotent.ValidateDuration("lease", e.Lease); err != nil {
			return err
		}
	case Complete:
		if err := e.Outcome.Validate(); err != nil {
			return err
		}
	case Load, Delete:
		return idempotent.ValidateKey(e.Key, "nobody")
	}
	return idempotent.ValidateKey(e.Key, e.Owner)
}
