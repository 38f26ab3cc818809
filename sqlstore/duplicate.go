package sqlstore

import (
	"reflect"
	"slices"
	"strings"
)

// Codes that say that a row would be a second one under a unique index.
const (
	postgresUnique = "23505" // unique_violation
	mysqlDuplicate = 1062    // ER_DUP_ENTRY
)

var sqliteUnique = []int64{
	2067, // SQLITE_CONSTRAINT_UNIQUE
	1555, // SQLITE_CONSTRAINT_PRIMARYKEY
	2579, // SQLITE_CONSTRAINT_ROWID
}

// IsDuplicate reports whether err, or an error that it wraps, is a database's
// refusal of a row that would be a second one under a unique index or a primary
// key. With names it reports whether that index is one of them, as
// [DuplicateIndex] names it: give the one of the idempotency key, so that a
// user name that is taken is not answered with somebody's order. An index whose
// name the error does not tell is none of them.
//
// The refusal is recognised by its code: 23505 of PostgreSQL (pgx, lib/pq), 1062
// of MySQL and MariaDB (go-sql-driver/mysql), 2067, 1555 and 2579 of SQLite
// (modernc.org/sqlite, mattn/go-sqlite3). What any other error says in its text
// makes it no duplicate, and nil is none.
//
// Somebody else's row stands then, and nothing is known of it: read it, by
// [Existing], before anybody is told of a success. PostgreSQL takes no more
// statements in a transaction in which this has happened: roll it back first.
func IsDuplicate(err error, names ...string) bool {
	index, ok := DuplicateIndex(err)
	return ok && (len(names) == 0 || index != "" && slices.Contains(names, index))
}

// DuplicateIndex returns which index has refused a row, and true where err is
// such a refusal; see [IsDuplicate].
//
//	PostgreSQL   the index or constraint, from a field of the error: "orders_once"
//	MySQL        the index without its table, from the end of the error's text,
//	             since there is no field for it: "orders_once", "PRIMARY"
//	SQLite       the columns, from the text: "orders.principal, orders.idempotency_key";
//	             of an index on expressions "index 'orders_once'"
//
// Of a partitioned table PostgreSQL names the index of the partition. A name with a
// full stop or a quote in it is not told whole by MySQL.
//
// It is "" where the error does not tell. The text is looked at only after the
// code has decided, and what a client had in its row cannot be taken for a name.
func DuplicateIndex(err error) (index string, ok bool) {
	anyIn(err, func(err error) bool {
		index, ok = duplicate(err)
		return ok
	})
	return index, ok
}

// anyIn reports whether f holds for err or for an error that it wraps, also by
// [errors.Join]: a failed rollback may have been joined to it.
func anyIn(err error, f func(error) bool) bool {
	if err == nil {
		return false
	}
	if f(err) {
		return true
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return anyIn(e.Unwrap(), f)
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(e.Unwrap(), func(err error) bool { return anyIn(err, f) })
	}
	return false
}

// duplicate looks at one error of a chain. Which driver's it is shows in its
// methods and fields; none is imported.
func duplicate(err error) (index string, ok bool) {
	if v := reflect.ValueOf(err); v.Kind() == reflect.Pointer && v.IsNil() {
		return "", false
	}
	if e, is := err.(interface{ SQLState() string }); is { // pgx, lib/pq
		if e.SQLState() != postgresUnique {
			return "", false
		}
		if name := field(err, "ConstraintName"); name != "" { // pgx
			return name, true
		}
		return field(err, "Constraint"), true
	}
	if n, is := number(err, "Number"); is { // go-sql-driver/mysql
		return mysqlIndex(field(err, "Message")), n == mysqlDuplicate
	}
	code, is := number(err, "ExtendedCode") // mattn/go-sqlite3
	if e, coded := err.(interface{ Code() int }); coded {
		code, is = int64(e.Code()), true // modernc.org/sqlite
	}
	if is && slices.Contains(sqliteUnique, code) {
		return sqliteIndex(err.Error()), true
	}
	return "", false
}

// field returns a text field of a driver's error, or "".
func field(err error, name string) string {
	v := reflect.Indirect(reflect.ValueOf(err))
	if v.Kind() != reflect.Struct {
		return ""
	}
	if f := v.FieldByName(name); f.Kind() == reflect.String {
		return f.String()
	}
	return ""
}

// mysqlIndex finds the index in a message such as
//
//	Duplicate entry 'a-b' for key 'orders.orders_once'
//
// It is between the last two quotes in every language of the server. The entry
// is a client's text and may hold anything, but comes before. MariaDB and old
// releases of MySQL do not name the table.
func mysqlIndex(message string) string {
	end := strings.LastIndexByte(message, '\'')
	if end < 0 {
		return ""
	}
	name := message[strings.LastIndexByte(message[:end], '\'')+1 : end]
	return name[strings.LastIndexByte(name, '.')+1:]
}

// sqliteIndex finds the columns in a message such as
//
//	constraint failed: UNIQUE constraint failed: orders.principal, orders.key (2067)
//
// No text of a row is in it.
func sqliteIndex(message string) string {
	const before = "constraint failed: "
	at := strings.LastIndex(message, before)
	if at < 0 {
		return ""
	}
	columns := message[at+len(before):]
	if bracket := strings.LastIndex(columns, " ("); bracket >= 0 && strings.HasSuffix(columns, ")") {
		columns = columns[:bracket] // modernc.org/sqlite repeats the code
	}
	return columns
}
