package sqlstore

import (
	"fmt"
	"strconv"
	"strings"
)

// Dialect is a kind of database. The zero value is none.
type Dialect int

// The dialects. MySQL is MariaDB's too.
const (
	PostgreSQL Dialect = iota + 1 // 13 or later
	MySQL                         // MySQL 8, MariaDB 10.6 or later
	SQLite                        // 3.24 or later
)

// String returns the name of the constant.
func (d Dialect) String() string {
	switch d {
	case PostgreSQL:
		return "PostgreSQL"
	case MySQL:
		return "MySQL"
	case SQLite:
		return "SQLite"
	}
	return fmt.Sprintf("Dialect(%d)", int(d))
}

func (d Dialect) valid() bool { return d >= PostgreSQL && d <= SQLite }

// clock is the database's clock in microseconds since 1970. Each stands still
// during a statement, so that one may read it twice, and none knows of time
// zones: an hour that comes twice a year would give leases an hour too much.
func (d Dialect) clock() string {
	switch d {
	case PostgreSQL:
		// The double of releases before 14 has room for a quarter of a microsecond.
		return "CAST(ROUND(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000) AS BIGINT)"
	case MySQL:
		return "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
	default:
		// To a millisecond; there is nothing finer.
		return "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000"
	}
}

// unlessPresent makes an INSERT one that inserts or leaves the row that is there
// alone, without an error: PostgreSQL would abort the transaction of a caller.
//
// MySQL has IGNORE, which hides other errors too. A no-op update is told apart
// from an insertion by the number of affected rows, but not where the client has
// set clientFoundRows: both are 1 then. A change is 2 in either case, and a new
// version means nothing but that whoever looked before looks again.
func (d Dialect) unlessPresent() string {
	if d == MySQL {
		return "ON DUPLICATE KEY UPDATE version = version + 1"
	}
	return "ON CONFLICT (name) DO NOTHING"
}

// unlessLocked has a SELECT pass over rows that somebody's transaction holds: a
// DELETE of many would wait for its end, and have others wait for what it has
// locked until then. SQLite's writers wait for each other whatever they write.
func (d Dialect) unlessLocked() string {
	if d == SQLite {
		return ""
	}
	return " FOR UPDATE SKIP LOCKED"
}

// deleteByName begins a DELETE of rows that it names. MySQL locks all that it looks
// at, not only what it deletes, and would at times rather look at the whole table.
func (d Dialect) deleteByName(table string) string {
	if d == MySQL {
		return "DELETE t FROM " + table + " t FORCE INDEX (PRIMARY)"
	}
	return "DELETE FROM " + table
}

// statements are the texts of one dialect for one table. Each decides by
// itself, by the database's clock.
type statements struct {
	alone bool // what is decided on a look is looked at again under the lock

	look     string
	list     string
	insert   string
	replace  string
	renew    string
	complete string
	release  string
	remove   string

	due       string
	abandoned string
	freed     string
	expired   string

	unknowns string
}

// newStatements writes the statements, once for a store.
func newStatements(d Dialect, table string) statements {
	write := func(text string) string {
		text = strings.NewReplacer(
			"{delete}", d.deleteByName(table),
			"{table}", table,
			"{now}", d.clock(),
			"{mine}", "name = ? AND full_key = ? AND owner = ? AND format = 1 AND status = 'pending' AND "+d.clock()+" < expires_at + keep_for",
			"{batch}", "("+strings.Repeat("?, ", sweepBatch-1)+"?)",
			"{unlessPresent}", d.unlessPresent(),
			"{unlessLocked}", d.unlessLocked(),
		).Replace(text)
		if d == PostgreSQL {
			text = numbered(text)
		}
		return text
	}
	const (
		before = "t.full_key, t.format, t.status, t.owner, t.fingerprint, t.trace"
		behind = `CASE WHEN t.result IS NULL THEN 0 ELSE 1 END,
  t.fence, t.claimed_at, t.set_at, t.expires_at, t.keep_for, t.take_over, t.gained, t.version`
	)
	return statements{
		alone: d == SQLite,

		// The join is a row also where the key is absent, to tell the time.
		look: write(`
SELECT c.moment, ` + before + `, t.result, ` + behind + `
FROM (SELECT {now} AS moment) c LEFT JOIN {table} t ON t.name = ?`),

		list: write(`
SELECT {now}, ` + before + `, NULL, ` + behind + `, t.name
FROM {table} t WHERE t.name >= ? AND t.name < ? ORDER BY t.name LIMIT ?`),

		insert: write(`
INSERT INTO {table} (status, owner, fingerprint, trace, result, fence, claimed_at, set_at, expires_at,
  keep_for, sweep_at, take_over, gained, name, full_key, format, version)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, 0)
{unlessPresent}`),

		// Where the row is still the one that was looked at. A fence is of one
		// claim, also across removal, and a version of one change since.
		replace: write(`
UPDATE {table} SET status = ?, owner = ?, fingerprint = ?, trace = ?, result = ?, fence = ?, claimed_at = ?,
  set_at = ?, expires_at = ?, keep_for = ?, sweep_at = ?, take_over = ?, gained = ?, version = version + 1
WHERE name = ? AND full_key = ? AND format = 1 AND fence = ? AND version = ?`),

		renew: write(`
UPDATE {table} SET expires_at = {now} + ?, sweep_at = {now} + ?, version = version + 1
WHERE {mine}`),

		complete: write(`
UPDATE {table} SET status = ?, result = ?, set_at = {now}, expires_at = {now} + ?, sweep_at = {now} + ?,
  version = version + 1
WHERE {mine}`),

		release: write(`
UPDATE {table} SET status = 'free', sweep_at = {now} + ?, version = version + 1
WHERE {mine} AND gained = 0`),

		remove: write(`
UPDATE {table} SET full_key = ?, format = 1, status = 'free', owner = ?, fingerprint = ?, trace = ?,
  result = NULL, set_at = {now}, expires_at = {now}, keep_for = 0, sweep_at = {now} + ?, take_over = 0, gained = 0,
  version = version + 1
WHERE name = ?`),

		// A claim is due at its lapse, and once that is reported when it is to be
		// forgotten.
		due: write(`
SELECT name, full_key, owner, trace, fence, version, {now} - claimed_at,
  CASE WHEN status = 'pending' AND sweep_at = expires_at THEN 1 ELSE 0 END
FROM {table}
WHERE sweep_at <= {now} AND format = 1 AND status IN ('pending', 'success', 'failed', 'unknown', 'free')
ORDER BY sweep_at LIMIT ` + strconv.Itoa(sweepBatch) + `{unlessLocked}`),

		abandoned: write(`
UPDATE {table} SET sweep_at = expires_at + keep_for, version = version + 1
WHERE name = ? AND fence = ? AND version = ? AND format = 1 AND status = 'pending'`),

		freed: write(`
{delete} WHERE sweep_at <= {now} AND status = 'free' AND format = 1 AND name IN {batch}`),

		expired: write(`
{delete}
WHERE sweep_at <= {now} AND (status IN ('success', 'failed', 'unknown') OR status = 'pending' AND sweep_at > expires_at)
  AND format = 1 AND name IN {batch}`),

		unknowns: write(`
SELECT name, full_key, owner, trace, fingerprint, fence, kind, claimed_at, ended_at, forgotten_at, {now}
FROM {table}_unknown WHERE name > ? ORDER BY name LIMIT ` + strconv.Itoa(unknownBatch)),
	}
}

// numbered writes $1, $2 and so on for the question marks.
func numbered(text string) string {
	var b strings.Builder
	n := 0
	for _, r := range text {
		if r != '?' {
			b.WriteRune(r)
			continue
		}
		n++
		b.WriteByte('$')
		b.WriteString(strconv.Itoa(n))
	}
	return b.String()
}
