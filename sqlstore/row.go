package sqlstore

import (
	"crypto/sha256"
	"database/sql"
	"fmt"
	"time"

	"github.com/idempotent-go/idempotent"
)

// format is the number of the rows that this release writes.
const format = 1

// What the status column says. A free row is an absent key that remembers its
// fence until a sweep removes it: the next claim has a larger one although the
// clock may not have moved since.
const (
	statusPending = "pending"
	statusSuccess = "success"
	statusFailed  = "failed"
	statusUnknown = "unknown"
	statusFree    = "free"
)

// shortKey is how long a key may be to be its own name. Databases index no more
// than some 2,700 bytes; the name of a longer key is one byte longer than any
// key that is its own name, so that no two keys meet in one.
const shortKey = 255

// longNamePrefix is how many bytes of a longer key its name begins with.
const longNamePrefix = shortKey + 1 - sha256.Size

// rowName returns the name under which a key's row is found.
func rowName(key string) []byte {
	if len(key) <= shortKey {
		return []byte(key)
	}
	sum := sha256.Sum256([]byte(key))
	return append([]byte(key[:longNamePrefix]), sum[:]...)
}

// row is what the table holds of a key: the entry as it is stored, not as it is
// read. Instants are microseconds since 1970, durations microseconds.
type row struct {
	found       bool
	key         string
	format      int64
	status      string
	owner       string
	fingerprint string
	trace       string
	result      []byte // nil: none
	fence       int64
	claimed     int64
	set         int64
	expires     int64
	keep        int64
	takeOver    bool
	gained      bool
	version     int64
}

// scanRow reads what the look and list statements select, and the time of the
// look. A row of a list has an empty result where there is one.
func scanRow(s interface{ Scan(dest ...any) error }) (r row, now int64, err error) {
	var (
		key, owner, fingerprint, trace                    []byte
		status                                            sql.NullString
		format, fence, claimed, set, expires, keep, taken sql.NullInt64
		gained, version                                   sql.NullInt64
		finished                                          int64
	)
	err = s.Scan(&now, &key, &format, &status, &owner, &fingerprint, &trace, &r.result, &finished, &fence,
		&claimed, &set, &expires, &keep, &taken, &gained, &version)
	if err != nil || !status.Valid {
		return row{}, now, err
	}
	r.found = true
	if finished != 0 && r.result == nil {
		r.result = []byte{} // some drivers do not tell an empty one from none
	}
	r.key, r.owner, r.fingerprint, r.trace = string(key), string(owner), string(fingerprint), string(trace)
	r.format, r.status, r.fence, r.version = format.Int64, status.String, fence.Int64, version.Int64
	r.claimed, r.set, r.expires, r.keep = claimed.Int64, set.Int64, expires.Int64, keep.Int64
	r.takeOver, r.gained = taken.Int64 != 0, gained.Int64 != 0
	return r, now, nil
}

// values returns what the insert and replace statements set, in their order.
func (r row) values() []any {
	var result any // not a nil []byte, which some drivers take for an empty one
	if r.result != nil {
		result = r.result
	}
	return []any{
		r.status, []byte(r.owner), []byte(r.fingerprint), []byte(r.trace), result, r.fence,
		r.claimed, r.set, r.expires, r.keep, r.sweepAt(), flag(r.takeOver), flag(r.gained),
	}
}

// sweepAt is when a sweep has to do with the row: at its end, and at that of a
// lease to report it.
func (r row) sweepAt() int64 {
	if r.status == statusFree {
		return r.set + micros(graceOfFree)
	}
	return r.expires
}

// check reports whether r is an entry of key that can be read.
func (r row) check(key string) error {
	if !r.found {
		return nil
	}
	switch {
	case r.format > format:
		return fmt.Errorf("%w: its format is %d, and this release reads up to %d", idempotent.ErrNewerFormat, r.format, format)
	case r.format < format:
		return fmt.Errorf("%w: its format is %d", idempotent.ErrCorrupt, r.format)
	case r.key != key:
		return fmt.Errorf("%w: the row holds another key", idempotent.ErrCorrupt)
	}
	switch r.status {
	case statusPending, statusFree:
		return nil
	case statusSuccess, statusFailed, statusUnknown:
		if r.result == nil {
			return fmt.Errorf("%w: it is finished and has no result", idempotent.ErrCorrupt)
		}
		return nil
	}
	return fmt.Errorf("%w: its status is none", idempotent.ErrCorrupt)
}

// absent reports whether nothing is left of the key.
func (r row) absent(now int64) bool {
	switch {
	case !r.found, r.status == statusFree:
		return true
	case r.status == statusPending:
		return now >= r.expires+r.keep
	}
	return now >= r.expires
}

// lapsed reports whether the lease of a running claim is over.
func (r row) lapsed(now int64) bool { return r.status == statusPending && now >= r.expires }

// entry returns the row as Load shows it, and false where the key is absent.
func (r row) entry(now int64) (idempotent.Entry, bool) {
	if r.absent(now) {
		return idempotent.Entry{}, false
	}
	set, expires := r.set, r.expires
	if r.lapsed(now) {
		set, expires = r.expires, r.expires+r.keep
	}
	e := idempotent.Entry{
		Key:         r.key,
		Status:      idempotent.Failed,
		Result:      string(r.result),
		Timestamp:   time.UnixMicro(set),
		Claimed:     time.UnixMicro(r.claimed),
		Expires:     time.UnixMicro(expires),
		Fingerprint: r.fingerprint,
		Owner:       r.owner,
		Trace:       r.trace,
		Fence:       r.fence,
	}
	switch {
	case r.lapsed(now), r.status == statusUnknown:
		e.Unknown = true
	case r.status == statusPending:
		e.Status = idempotent.Pending
	case r.status == statusSuccess:
		e.Status = idempotent.Success
	}
	return e, true
}

// statusOf returns how an outcome's status is stored.
func statusOf(o idempotent.Outcome) string {
	switch {
	case o.Unknown:
		return statusUnknown
	case o.Status == idempotent.Success:
		return statusSuccess
	}
	return statusFailed
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// longest is what any duration is cut to, so that sums of three instants do not
// overflow.
const longest = 100 * 365 * 24 * time.Hour

// micros returns d in microseconds, rounded up: an entry may live longer than
// asked, not shorter.
func micros(d time.Duration) int64 {
	return int64((min(d, longest) + time.Microsecond - 1) / time.Microsecond)
}
