package sqlstore

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/idempotent-go/idempotent"
)

// fault is what an error of a driver means to a step.
type fault int

const (
	faultOther fault = iota
	faultRetry       // the statement was undone because of others: it may be sent again
	faultFull        // the disk is
	faultTable       // there is no such table
)

// Codes of PostgreSQL; see appendix A of its manual.
var sqlStates = map[string]fault{
	"40001": faultRetry, // serialization_failure
	"40P01": faultRetry, // deadlock_detected
	"53100": faultFull,  // disk_full
	"42P01": faultTable, // undefined_table
}

// Codes of MySQL and MariaDB.
var mysqlNumbers = map[int64]fault{
	1213: faultRetry, // ER_LOCK_DEADLOCK
	1205: faultRetry, // ER_LOCK_WAIT_TIMEOUT
	1020: faultRetry, // ER_CHECKREAD: MariaDB's innodb_snapshot_isolation
	1021: faultFull,  // ER_DISK_FULL
	1114: faultFull,  // ER_RECORD_FILE_FULL
	1146: faultTable, // ER_NO_SUCH_TABLE
}

// Primary codes of SQLite. It has none for a table that is not there.
var sqliteCodes = map[int64]fault{
	5:  faultRetry, // SQLITE_BUSY
	6:  faultRetry, // SQLITE_LOCKED
	13: faultFull,  // SQLITE_FULL
}

// classify tells faults by their code, never by their text. An operation may have
// joined the error to one of its own.
func (d Dialect) classify(err error) (f fault) {
	anyIn(err, func(err error) bool {
		f, _ = d.code(err)
		return f != faultOther
	})
	return f
}

// code reads the code of one error in a chain. Drivers are not imported, so it
// is found by the method or the field that they have in common.
func (d Dialect) code(err error) (fault, bool) {
	switch d {
	case PostgreSQL: // pgx, lib/pq
		if e, ok := err.(interface{ SQLState() string }); ok {
			return sqlStates[e.SQLState()], true
		}
	case MySQL: // go-sql-driver
		if n, ok := number(err, "Number"); ok {
			return mysqlNumbers[n], true
		}
	case SQLite:
		if e, ok := err.(interface{ Code() int }); ok { // modernc.org/sqlite, extended
			return sqliteCodes[int64(e.Code())&0xff], true
		}
		if n, ok := number(err, "Code"); ok { // mattn/go-sqlite3
			return sqliteCodes[n&0xff], true
		}
	}
	return faultOther, false
}

// number returns an integer field of a driver's error.
func number(err error, field string) (int64, bool) {
	v := reflect.ValueOf(err)
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return 0, false
		}
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return 0, false
	}
	switch f := v.FieldByName(field); {
	case !f.IsValid():
		return 0, false
	case f.CanInt():
		return f.Int(), true
	case f.CanUint():
		return int64(f.Uint()), true
	}
	return 0, false
}

// explain turns an error of a step into one that the guard can branch on and an
// operator can act on.
func (s *Store) explain(op string, err error) error {
	if err == nil {
		return nil
	}
	switch fault := s.dialect.classify(err); {
	case fault == faultFull && op == "claim":
		err = fmt.Errorf("%w: the database has no room: %w", idempotent.ErrFull, err)
	case fault == faultTable:
		err = fmt.Errorf("there is no table %s (see Store.Migrate): %w", s.table, err)
	}
	return fmt.Errorf("sqlstore: %s: %w", op, err)
}

// kind returns the error of the contract that err matches, and nil where it
// says that the database failed.
func kind(err error) error {
	for _, known := range []error{
		idempotent.ErrLost, idempotent.ErrFull, idempotent.ErrCorrupt, idempotent.ErrNewerFormat,
		idempotent.ErrInvalid, idempotent.ErrClosed,
	} {
		if errors.Is(err, known) {
			return known
		}
	}
	return nil
}
