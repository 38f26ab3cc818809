package sqlstore

import (
	"context"

	"github.com/idempotent-go/idempotent"
)

// sweepBatch is how many rows one statement of a sweep touches. No statement
// holds locks for longer than these take.
const sweepBatch = 100

// Sweep removes what is past its time and reports claims that were abandoned
// since the last sweep, of any process. It does so in batches of a hundred rows,
// each statement a transaction of its own, and may be called at any time, also
// concurrently; it counts only what it did itself. It ends early with ctx, and
// returns what it has done until then together with the error.
//
// A database does not forget by itself: some process has to call this now and
// then, by [idempotent.NewJanitor] for one. Nothing but room depends on it.
func (s *Store) Sweep(ctx context.Context) (idempotent.Swept, error) {
	var n idempotent.Swept
	for {
		names, err := do(ctx, s, "sweep", func(q querier) ([]any, error) { return s.text.dueNames(ctx, q) })
		if err != nil || len(names) == 0 {
			return n, err
		}
		last := len(names) < sweepBatch
		for len(names) < sweepBatch { // a statement has room for so many
			names = append(names, names[0])
		}
		var freed int
		for _, part := range []struct {
			text  string
			count *int
		}{
			{s.text.abandoned, &n.Abandoned}, // first: what is reported may be due again
			{s.text.freed, &freed},
			{s.text.expired, &n.Expired},
		} {
			changed, err := do(ctx, s, "sweep", func(q querier) (int64, error) { return affected(ctx, q, part.text, names...) })
			if err != nil {
				return n, err
			}
			*part.count += int(changed)
		}
		if last {
			return n, nil
		}
	}
}

// dueNames returns the names of rows that a sweep has to do with.
func (t *statements) dueNames(ctx context.Context, q querier) (names []any, err error) {
	rows, err := q.QueryContext(ctx, t.due)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name []byte
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, rows.Err()
}
