package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// State is what a row of a business table says of the operation that wrote it.
// The zero value is none.
type State int

// The states.
const (
	StateRunning  State = iota + 1 // the operation is not finished, or died before it was
	StateFinished                  // it happened: the row is what to answer with
	StateDeleted                   // it happened, and the row has been deleted softly since
)

// String returns "running", "finished" or "deleted".
func (s State) String() string {
	switch s {
	case StateRunning:
		return "running"
	case StateFinished:
		return "finished"
	case StateDeleted:
		return "deleted"
	}
	return fmt.Sprintf("State(%d)", int(s))
}

// Errors of [Existing]. None of them says that the operation happened.
var (
	// ErrNotVisible: a unique index has refused a row, and the row for which it
	// did cannot be seen. It may have been deleted since, or the reading is
	// older than it: one of a snapshot or of a replica. Try again later with the
	// same key.
	ErrNotVisible = errors.New("sqlstore: the existing row is not visible")

	// ErrRunning: the row is there and its operation is not finished. Try again
	// later with the same key; one that stays so needs a reconciler.
	ErrRunning = errors.New("sqlstore: the existing row's operation is running")

	// ErrDeleted: the operation happened, and what it made has been deleted
	// since. Do not run it again under this key.
	ErrDeleted = errors.New("sqlstore: the existing row has been deleted")
)

// DefaultVisibleWithin is how long [Existing] looks for a row where
// [WithVisibleWithin] says nothing else.
const DefaultVisibleWithin = 2 * time.Second

// The pauses between two looks for a row.
const (
	existingFirst = 5 * time.Millisecond
	existingMost  = 250 * time.Millisecond
)

// ExistingOption changes a setting of [Existing].
type ExistingOption func(*existingSettings)

type existingSettings struct{ within time.Duration }

// WithVisibleWithin sets for how long [Existing] looks again for a row that is
// not there; the default is [DefaultVisibleWithin]. Take a little more than a
// replica may lag. With 0 it looks once. It panics on a negative d.
func WithVisibleWithin(d time.Duration) ExistingOption {
	if d < 0 {
		panic(fmt.Sprintf("sqlstore: WithVisibleWithin: %v is negative", d))
	}
	return func(s *existingSettings) { s.within = d }
}

// Existing reads the row that has won, after [IsDuplicate] has said that there is
// one. Load reads it by what the unique index is on, such as principal and
// idempotency key, and says its state; where there is none it returns
// [sql.ErrNoRows], as [sql.Row.Scan] does.
//
// Only a finished row comes with a nil error. A running one comes with
// [ErrRunning] and a deleted one with [ErrDeleted], the row as well. Where there
// is none, load is called again, after pauses that double from 5 to 250
// milliseconds and carry 50 % jitter, until the time of [WithVisibleWithin] is
// over: then the error matches [ErrNotVisible]. Every other error of load is
// returned as it is, at once and without the row; so load can itself compare
// what the row was made for with what is asked now, and return
// [idempotent.ErrKeyReused].
//
// Load must read what is committed now: by a *sql.DB on the primary, not in the
// transaction that was refused. That one PostgreSQL has ended, and in MySQL's
// repeatable read it goes on seeing the table as it was, without the row.
//
// Existing blocks until then or until ctx ends, and returns ctx's error in that
// case. Load is called from the caller's goroutine.
func Existing[T any](ctx context.Context, load func(context.Context) (T, State, error), opts ...ExistingOption) (T, error) {
	settings := existingSettings{within: DefaultVisibleWithin}
	for _, opt := range opts {
		opt(&settings)
	}
	var none T
	end := time.Now().Add(settings.within)
	for pause := existingFirst; ; pause = min(2*pause, existingMost) {
		if err := ctx.Err(); err != nil {
			return none, err
		}
		row, state, err := load(ctx)
		switch {
		case errors.Is(err, sql.ErrNoRows):
		case err != nil:
			return none, err
		case state == StateFinished:
			return row, nil
		case state == StateRunning:
			return row, ErrRunning
		case state == StateDeleted:
			return row, ErrDeleted
		default:
			return none, fmt.Errorf("sqlstore: Existing: the row's state is %v, which is none", state)
		}
		left := time.Until(end)
		if left <= 0 {
			return none, fmt.Errorf("%w after %v: %w", ErrNotVisible, settings.within, err)
		}
		if !rest(ctx, min(jitter(pause), left)) {
			return none, ctx.Err()
		}
	}
}
