package sqlstore

import (
	"context"
	"iter"
	"time"
)

// Unknown is an operation that may have happened: its claim was abandoned, or its
// outcome was recorded as unknown. Repeats of it are refused with
// [idempotent.ErrOutcomeUnknown] until it is settled or forgotten. Instants are
// by the database's clock.
type Unknown struct {
	Key         string
	Owner       string // as [idempotent.Guard.Resolve] wants it
	Trace       string
	Fingerprint string
	Fence       int64
	Abandoned   bool          // the lease has ended without an outcome; false: recorded as unknown
	Claimed     time.Time     // first claim of the key
	Ended       time.Time     // when the lease ended, or when the outcome was recorded
	Ago         time.Duration // from Ended until it was read
	Forgotten   time.Time     // from then on the key is free, and the operation may run again
}

// unknownBatch is how many unknown outcomes one statement reads.
const unknownBatch = 100

// Unknowns returns the unknown outcomes, in the order of their keys' bytes. They
// are read from the view that [Store.Migrate] makes, a hundred at a time, and no
// connection is held while the loop's body runs; so the loop may settle what it
// is given. One that is settled or becomes unknown meanwhile may be missed or
// come late. The last pair is an error where the database has failed.
//
// Each reading looks at the whole table where there is no index for it; see
// docs/sql.md for one that a large table wants.
func (s *Store) Unknowns(ctx context.Context) iter.Seq2[Unknown, error] {
	return func(yield func(Unknown, error) bool) {
		after := []byte{}
		for {
			page, err := do(ctx, s, "unknowns", func(q querier) ([]unknownRow, error) { return s.text.unknownPage(ctx, q, after) })
			if err != nil {
				yield(Unknown{}, err)
				return
			}
			for _, r := range page {
				if !yield(r.Unknown, nil) {
					return
				}
				after = r.name
			}
			if len(page) < unknownBatch {
				return
			}
		}
	}
}

// unknownRow is a row of the view.
type unknownRow struct {
	Unknown
	name []byte
}

// unknownPage reads the rows whose names come next.
func (t *statements) unknownPage(ctx context.Context, q querier, after []byte) (page []unknownRow, err error) {
	rows, err := q.QueryContext(ctx, t.unknowns, after)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var (
			r                              unknownRow
			key, owner, trace, fingerprint []byte
			kind                           string
			claimed, ended, forgotten, now int64
		)
		err := rows.Scan(&r.name, &key, &owner, &trace, &fingerprint, &r.Fence, &kind, &claimed, &ended, &forgotten, &now)
		if err != nil {
			return nil, err
		}
		r.Key, r.Owner, r.Trace, r.Fingerprint = string(key), string(owner), string(trace), string(fingerprint)
		r.Abandoned = kind == "abandoned"
		r.Claimed, r.Ended, r.Forgotten = time.UnixMicro(claimed), time.UnixMicro(ended), time.UnixMicro(forgotten)
		r.Ago = max(0, time.Duration(now-ended)*time.Microsecond)
		page = append(page, r)
	}
	return page, rows.Err()
}
