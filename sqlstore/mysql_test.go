package sqlstore_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/sqlstore"
	"github.com/idempotent-go/idempotent/sqlstore/internal/sqltest"
)

// The words of the MySQL dialect: those of the language, which the manuals of
// MySQL 8.0 and of MariaDB both have, and names that neither of them reserves.
const (
	mysqlLanguage = `
ADD AND AS ascii ascii_bin BIGINT BY CASE CHARACTER COLLATE CONVERT CREATE DELETE DUPLICATE ELSE END ENGINE EXISTS FOR FORCE FROM
FROM_UNIXTIME IF IN INDEX InnoDB INSERT INTO INVOKER IS JOIN KEY latin1 LEFT LIMIT LOCKED LONGBLOB MICROSECOND NOT NULL ON OR ORDER
PRIMARY REPLACE ROLLBACK SAVEPOINT SECURITY SELECT SET SKIP SMALLINT SQL TABLE THEN TIMESTAMPDIFF TO UPDATE USING UTC_TIMESTAMP
VALUES VARBINARY VARCHAR VIEW WHEN WHERE e6`
	mysqlNames = `
c t moment idempotent_claimed idempotent_entries idempotent_entries_sweep_at idempotent_entries_unknown name full_key format status
owner fingerprint trace result fence claimed_at set_at expires_at keep_for sweep_at take_over gained version kind ended_at
forgotten_at key_text owner_text trace_text claimed ended`
)

// What only one of the two understands, though each word of it is known to both.
var mysqlOfOne = map[string]*regexp.Regexp{
	"MariaDB alone has IF NOT EXISTS for indexes and columns": regexp.MustCompile(`(?i)(INDEX|COLUMN|ADD)\s+IF\b`),
	"MariaDB alone replaces tables and indexes":               regexp.MustCompile(`(?i)OR\s+REPLACE\s+(TABLE|INDEX)`),
	"MySQL deprecates VALUES() of a duplicate":                regexp.MustCompile(`(?is)DUPLICATE.*VALUES`),
	"MySQL alone has an alias for the row":                    regexp.MustCompile(`(?is)VALUES\s*\([^()]*\)\s*AS\b`),
}

// foreign returns what in text not both of MySQL 8 and MariaDB understand.
func foreign(text string) (found []string) {
	known := map[string]bool{}
	for word := range strings.FieldsSeq(mysqlLanguage + mysqlNames) {
		known[strings.ToLower(word)] = true
	}
	text = regexp.MustCompile(`'[^']*'|(?m:--.*$)`).ReplaceAllString(text, "")
	for _, word := range regexp.MustCompile(`[A-Za-z_]\w*`).FindAllString(text, -1) {
		if !known[strings.ToLower(word)] {
			found = append(found, word)
		}
	}
	for why, form := range mysqlOfOne {
		if form.MatchString(text) {
			found = append(found, why)
		}
	}
	return found
}

// MySQL is not among the servers that the tests start, MariaDB is: nothing may be
// sent that only MariaDB understands.
func TestMySQL_NothingOfMariaDBAlone(t *testing.T) {
	t.Parallel()
	db := sqltest.New(t, sqltest.SQLite).Open(t) // nothing is sent to it
	texts := sqlstore.New(db, sqlstore.MySQL).Texts()
	require.Greater(t, len(texts), 15)
	for name, text := range texts {
		require.Empty(t, foreign(text), name)
	}
	for _, text := range []string{
		"INSERT INTO t (name) VALUES (?) RETURNING fence",
		"CREATE OR REPLACE TABLE t (name BIGINT)",
		"CREATE INDEX IF NOT EXISTS sweep_at ON t (sweep_at)",
		"INSERT INTO t (name) VALUES (?) ON DUPLICATE KEY UPDATE name = VALUES(name)",
		"INSERT INTO t (name) VALUES (?) AS c ON DUPLICATE KEY UPDATE name = c.name",
		"SELECT name FROM t FOR UPDATE WAIT 1",
		"SELECT rank FROM t",
	} {
		require.NotEmpty(t, foreign(text), text)
	}
}
