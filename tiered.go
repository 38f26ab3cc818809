package idempotent

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// copyAge is how long a copy may be served: a minute, less what a near store
// that reads a coarse clock may be late.
const copyAge = time.Minute - 100*time.Millisecond

// Tiered returns a store that keeps everything in far, and copies of finished
// entries in near: a replay of which near has a copy costs no call of far. Near
// is usually a memory store, far one that several processes share.
//
// Only known outcomes are copied, since they never change; claims, unknown
// outcomes and all decisions are far's alone. A copy is written from far's own
// answer and is served for at most a minute and never past its Expires. So a
// first repeat still costs a call of far, and what is deleted, or evicted, in
// far by somebody else may be replayed for up to a minute more. A Delete through
// this store reaches near and far, and no copy made before it is served after
// it; it needs both to be a [Deleter], and is otherwise an error that matches
// [errors.ErrUnsupported]. Delete may be repeated where it failed.
//
// When an entry expires is known by far's clock, which this process learns from
// each claim it makes: clocks need not agree. Until its first one, far's clock
// is taken to be its own.
//
// Near is for this store alone. It may be small, forget at will, and fail: far
// answers then. A memory store warns of entries that it evicts early, which are
// only copies here; give it a silent logger.
//
// The store is a [Waiter], a [Pinger], a [Deleter] and a [Lister] of what far
// has, as far as far is; it is no [Sweeper], so that a far store that needs one gets its own [Janitor]. Near
// and far stay the caller's to close. Tiered panics on nil.
func Tiered(near, far Store) Store {
	if isNil(near) || isNil(far) {
		panic("idempotent: Tiered: a store is nil; it takes a near and a far one")
	}
	t := &tiered{near: near, far: far, start: time.Now()}
	t.farStart.Store(t.start.UnixNano())
	return t
}

type tiered struct {
	near, far Store

	start    time.Time    // of this store, on the monotonic clock
	farStart atomic.Int64 // what far's clock showed then, or somewhat later; nanoseconds since 1970

	// No copy may be written from an answer that far gave before a Delete: who
	// writes one holds deleting for reading and looks whether deletes is what
	// it was before far was asked.
	deleting sync.RWMutex
	deletes  atomic.Uint64 // changed under deleting
}

var (
	_ Store     = (*tiered)(nil)
	_ Waiter    = (*tiered)(nil)
	_ Pinger    = (*tiered)(nil)
	_ Deleter   = (*tiered)(nil)
	_ Lister    = (*tiered)(nil)
	_ Composite = (*tiered)(nil)
)

// Load returns the entry of key, from near where it has a copy.
func (t *tiered) Load(ctx context.Context, key string) (Entry, bool, error) {
	if e, ok := t.copied(ctx, key); ok {
		return e, true, nil
	}
	q := t.ask()
	e, found, err := t.far.Load(ctx, key)
	if found && err == nil {
		t.copy(ctx, e, q)
	}
	return e, found, err
}

// Claim answers with near's copy, or asks far.
func (t *tiered) Claim(ctx context.Context, key string, c Claim) (Entry, bool, error) {
	if c.Validate() == nil { // otherwise far says what is wrong
		if e, ok := t.copied(ctx, key); ok {
			return e, false, nil
		}
	}
	q := t.ask()
	e, claimed, err := t.far.Claim(ctx, key, c)
	switch {
	case err != nil:
	case !claimed:
		t.copy(ctx, e, q)
	case madeNow(e, c.Lease): // no repeat of an earlier claim
		t.farStart.Store(e.Timestamp.UnixNano() - int64(q.sent))
	}
	return e, claimed, err
}

// madeNow reports whether a claim was made as its lease began. A store may round
// the lease up to a whole millisecond.
func madeNow(e Entry, lease time.Duration) bool {
	rounded := e.Expires.Sub(e.Timestamp) - lease
	return rounded >= 0 && rounded < time.Millisecond
}

// Wait asks near, and then waits in far.
func (t *tiered) Wait(ctx context.Context, key string) (Entry, bool, error) {
	if e, ok := t.copied(ctx, key); ok {
		return e, true, nil
	}
	q := t.ask()
	e, found, err := Wait(ctx, t.far, key)
	if found && err == nil {
		t.copy(ctx, e, q) // a wait of more than a minute makes none: the next look does
	}
	return e, found, err
}

func (t *tiered) Renew(ctx context.Context, key, owner string, lease time.Duration) error {
	return t.far.Renew(ctx, key, owner, lease)
}

func (t *tiered) Complete(ctx context.Context, key, owner string, o Outcome) error {
	return t.far.Complete(ctx, key, owner, o)
}

func (t *tiered) Release(ctx context.Context, key, owner string) error {
	return t.far.Release(ctx, key, owner)
}

func (t *tiered) Ping(ctx context.Context) error { return Ping(ctx, t.far) }

func (t *tiered) List(ctx context.Context, q ListQuery) (Page, error) { return List(ctx, t.far, q) }

// Stores returns far, which has the entries; near has only copies.
func (t *tiered) Stores() []Store { return []Store{t.far} }

// Delete removes key from far and then its copy, whatever far said: what far
// may have done counts as done.
func (t *tiered) Delete(ctx context.Context, key string) error {
	if _, ok := t.near.(Deleter); !ok {
		return fmt.Errorf("idempotent: the near store, a %T, cannot delete a key: %w", t.near, errors.ErrUnsupported)
	}
	err := Delete(ctx, t.far, key)
	t.deleting.Lock()
	defer t.deleting.Unlock()
	t.deletes.Add(1)
	return errors.Join(err, Delete(ctx, t.near, key))
}

// question is what is known before far is asked.
type question struct {
	sent    time.Duration // since the store was made
	deletes uint64
}

func (t *tiered) ask() question {
	return question{sent: time.Since(t.start), deletes: t.deletes.Load()}
}

// left returns how long e stands by far's clock, or less.
func (t *tiered) left(e *Entry, now time.Duration) time.Duration {
	return e.Expires.Sub(time.Unix(0, t.farStart.Load()).Add(now))
}

// copyOwner is the owner of every copy; an entry of another one is none.
const copyOwner = "idempotent:copy"

// copied returns the entry of which near has a copy.
func (t *tiered) copied(ctx context.Context, key string) (e Entry, ok bool) {
	c, found, err := t.near.Load(ctx, key)
	if err != nil || !found || c.Owner != copyOwner || !decodeCopy(&e, c.Result) {
		return Entry{}, false
	}
	e.Key, e.Fingerprint = key, c.Fingerprint
	if t.left(&e, time.Since(t.start)) <= 0 {
		return Entry{}, false
	}
	return e, true
}

// copy gives near a copy of what far has answered to q, where it is one that
// will not change. A copy that cannot be kept is none: far is asked again.
func (t *tiered) copy(ctx context.Context, e Entry, q question) {
	if e.Status == Pending || e.Unknown {
		return
	}
	now := time.Since(t.start)
	life := min(copyAge-(now-q.sent), t.left(&e, now))
	if life < MinDuration {
		return
	}
	o := Outcome{Status: e.Status, Fingerprint: e.Fingerprint, Result: encodeCopy(e), Retention: life}
	t.deleting.RLock()
	defer t.deleting.RUnlock()
	if t.deletes.Load() == q.deletes {
		_ = t.near.Complete(ctx, e.Key, copyOwner, o)
	}
}

// A copy is recorded in near as the result of an outcome: near has an owner, a
// fence and times of its own, and the entry's are to stay far's.
//
//	byte 0        the format, '1'
//	byte 1        's' or 'f', success or failed
//	byte 2        'u' where far tells times in UTC, or 'l', local
//	bytes 3-46    Timestamp, Claimed and Expires, each as seconds since 1970
//	              (8 bytes) and nanoseconds (4); Fence (8 bytes); big endian
//	bytes 47-54   the lengths of owner and trace, 4 bytes each
//	the rest      owner, trace, result
const (
	copyFormat = '1'
	copyHeader = 55
)

func encodeCopy(e Entry) string {
	b := make([]byte, 0, copyHeader+len(e.Owner)+len(e.Trace)+len(e.Result))
	zone := byte('l')
	if e.Timestamp.Location() == time.UTC {
		zone = 'u'
	}
	b = append(b, copyFormat, e.Status[0], zone)
	for _, at := range [...]time.Time{e.Timestamp, e.Claimed, e.Expires} {
		b = binary.BigEndian.AppendUint64(b, uint64(at.Unix()))
		b = binary.BigEndian.AppendUint32(b, uint32(at.Nanosecond()))
	}
	b = binary.BigEndian.AppendUint64(b, uint64(e.Fence))
	b = binary.BigEndian.AppendUint32(b, uint32(len(e.Owner)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(e.Trace)))
	b = append(b, e.Owner...)
	b = append(b, e.Trace...)
	b = append(b, e.Result...)
	return string(b)
}

// decodeCopy fills e, all but key and fingerprint, and reports whether s is a
// copy.
func decodeCopy(e *Entry, s string) bool {
	if len(s) < copyHeader || s[0] != copyFormat {
		return false
	}
	switch s[1] {
	case Success[0]:
		e.Status = Success
	case Failed[0]:
		e.Status = Failed
	default:
		return false
	}
	var head [copyHeader]byte
	copy(head[:], s)
	at := func(i int) time.Time {
		at := time.Unix(int64(binary.BigEndian.Uint64(head[i:])), int64(binary.BigEndian.Uint32(head[i+8:])))
		if head[2] == 'u' {
			return at.UTC()
		}
		return at
	}
	e.Timestamp, e.Claimed, e.Expires = at(3), at(15), at(27)
	e.Fence = int64(binary.BigEndian.Uint64(head[39:]))
	owner, trace := int(binary.BigEndian.Uint32(head[47:])), int(binary.BigEndian.Uint32(head[51:]))
	rest := s[copyHeader:]
	if owner > len(rest) || trace > len(rest)-owner {
		return false
	}
	e.Owner, e.Trace, e.Result = rest[:owner], rest[owner:owner+trace], rest[owner+trace:]
	return true
}
