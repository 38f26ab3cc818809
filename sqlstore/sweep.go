package sqlstore

import (
	"context"
	"time"

	"github.com/idempotent-go/idempotent"
)

// sweepBatch is how many rows a sweep looks at and removes at a time. No
// statement holds locks for longer than these take.
const sweepBatch = 100

// WithObserver sets who is told of each claim that [Store.Sweep] finds abandoned
// ([idempotent.EventAbandoned]), by the one sweep of all processes that found it.
// It is called from Sweep's goroutine. nil, the default, is nobody.
func WithObserver(o idempotent.Observer) Option {
	return func(s *Store) { s.observer = o }
}

// Sweep removes what is past its time and reports claims that were abandoned
// since the last sweep, of any process: it counts them, and tells the observer;
// see [WithObserver]. It looks at a hundred rows at a time, each statement is a
// transaction of its own, and it may be called at any time, also concurrently; it
// counts only what it did itself. A row that a transaction is changing, such as one
// of [InTx] that claims its key anew, is left to the next sweep. It ends early with
// ctx, and returns what it has done until then together with the error.
//
// A database does not forget by itself: some process has to call this now and
// then, by [idempotent.NewJanitor] for one. Nothing but room depends on it.
func (s *Store) Sweep(ctx context.Context) (idempotent.Swept, error) {
	var n idempotent.Swept
	for {
		rows, err := do(ctx, s, "sweep", func(q querier) ([]dueRow, error) { return s.text.dueRows(ctx, q) })
		if err != nil || len(rows) == 0 {
			return n, err
		}
		// First: what is reported may be due again.
		for _, r := range rows {
			if !r.abandoned {
				continue
			}
			reported, err := s.report(ctx, r)
			if err != nil {
				return n, err
			}
			if reported {
				n.Abandoned++
			}
		}
		names := make([]any, 0, sweepBatch)
		for i := range sweepBatch { // a statement has room for so many
			names = append(names, rows[i%len(rows)].name)
		}
		for _, part := range []struct {
			text  string
			count *int
		}{
			{s.text.freed, new(int)}, // nobody is told of these
			{s.text.expired, &n.Expired},
		} {
			changed, err := do(ctx, s, "sweep", func(q querier) (int64, error) { return affected(ctx, q, part.text, names...) })
			if err != nil {
				return n, err
			}
			*part.count += int(changed)
		}
		if len(rows) < sweepBatch {
			return n, nil
		}
	}
}

// report notes that the claim of r was found abandoned, and tells the observer
// where nobody has noted it before. It is a statement for each row: a database
// says how many rows a statement has changed, but MySQL not which.
func (s *Store) report(ctx context.Context, r dueRow) (bool, error) {
	first, err := do(ctx, s, "sweep", func(q querier) (bool, error) {
		return s.text.change(ctx, q, s.text.abandoned, r.name, r.fence, r.version)
	})
	if err != nil || !first {
		return false, err
	}
	if s.observer != nil {
		s.observer.Observe(ctx, idempotent.Event{
			Kind: idempotent.EventAbandoned, Key: string(r.key), Owner: string(r.owner), Trace: string(r.trace),
			Status: idempotent.Failed, Unknown: true, Age: time.Duration(r.age) * time.Microsecond,
		})
	}
	return true, nil
}

// dueRow is a row that a sweep has to do with.
type dueRow struct {
	name, key, owner, trace []byte
	fence, version          int64
	age                     int64 // microseconds since the first claim
	abandoned               bool  // and not reported
}

// dueRows returns those that are due for longest.
func (t *statements) dueRows(ctx context.Context, q querier) (due []dueRow, err error) {
	rows, err := q.QueryContext(ctx, t.due)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var r dueRow
		var abandoned int64
		if err := rows.Scan(&r.name, &r.key, &r.owner, &r.trace, &r.fence, &r.version, &r.age, &abandoned); err != nil {
			return nil, err
		}
		r.abandoned = abandoned != 0
		due = append(due, r)
	}
	return due, rows.Err()
}
