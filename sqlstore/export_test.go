package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"
	"time"

	"github.com/idempotent-go/idempotent"
)

// SlowPoll has waiters look every d while notifications come.
func (s *Store) SlowPoll(d time.Duration) { s.waiters.Slow = d }

// Listening reports whether notifications come.
func (s *Store) Listening() bool { return s.waiters.Told() }

// Waiting returns how many keys somebody waits for.
func (s *Store) Waiting() int {
	_, keys := s.waiters.Waiters()
	return keys
}

// SweepBatch is how many rows one statement of a sweep touches.
const SweepBatch = sweepBatch

// RowName is the name of a key's row.
func RowName(key string) []byte { return rowName(key) }

// Retries reports whether d takes err for one after which the same statement is
// sent again.
func (d Dialect) Retries(err error) bool { return d.classify(err) == faultRetry }

// Full reports whether d takes err for a full disk.
func (d Dialect) Full(err error) bool { return d.classify(err) == faultFull }

// ClaimIn and CompleteIn take a step in a transaction as a [TxGuard] does.
func (s *Store) ClaimIn(ctx context.Context, tx *sql.Tx, key string, c idempotent.Claim) (bool, error) {
	p, err := s.text.plan(ctx, s.db, key, decideClaim(key, c))
	if err != nil || !p.write {
		return false, err
	}
	return s.text.store(ctx, tx, key, p)
}

func (s *Store) CompleteIn(ctx context.Context, tx *sql.Tx, key, owner string, o idempotent.Outcome) error {
	return s.text.completion(ctx, tx, key, owner, o)
}

// UnknownBatch is how many unknown outcomes one statement reads.
const UnknownBatch = unknownBatch

// Clock is the expression that tells the database's time.
func (d Dialect) Clock() string { return d.clock() }

// ListStatement is what a page sends; it takes the first name, the one behind
// the last, and the number of rows.
func (s *Store) ListStatement() string { return s.text.list }

// Texts returns all that a Store may send, by name.
func (s *Store) Texts() map[string]string {
	all := map[string]string{"savepoint": savepoint, "rollback": rollbackToSavepoint}
	for i, text := range s.schemas() {
		all[fmt.Sprint("schema ", i)] = text
	}
	for field, value := range reflect.ValueOf(s.text).Fields() {
		if value.Kind() == reflect.String {
			all[field.Name] = value.String()
		}
	}
	return all
}
