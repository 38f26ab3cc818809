// Package sqlstore keeps the entries of package idempotent in a table of a
// relational database. Every process that uses the same table shares them, and
// they are as durable as everything else there.
//
//	dialect     database                     drivers tried
//	PostgreSQL  PostgreSQL 13 or later       pgx (stdlib), lib/pq
//	MySQL       MySQL 8, MariaDB 10.6        go-sql-driver/mysql
//	SQLite      SQLite 3.24 or later         modernc.org/sqlite
//
// The package imports none of them: the *sql.DB is the caller's. The tests run on
// PostgreSQL, MariaDB and SQLite, and on MySQL where IDEMPOTENT_MYSQL_DSN names
// one; they also look that nothing is sent that MariaDB alone understands.
//
//	step             statements in the common case
//	Load, replay     1, which writes nothing
//	Claim            2: a look, then an INSERT or an UPDATE of what was looked at
//	Renew            1
//	Complete         1
//	Release          1
//	Wait             1 a look, shared by those who wait for one key
//	Sweep            3 for a hundred rows, and 1 for each claim that it finds abandoned
//	InTx             6 beside the operation's, with BEGIN, SAVEPOINT and COMMIT
//
// Each statement is a transaction of its own and decides by the database's
// clock. A claim's second one stores only if the row is still the one that was
// looked at, or still absent: look and store are one step, and who loses a race
// looks again. In SQLite, whose statements may wait long for its one lock, these
// two follow a first look, in a transaction. Where the common case does not hold,
// such as the completion of a claim that is gone, a step is a look and a store
// too.
//
// A claim in one statement would have to be an upsert that returns the row. It
// would lock the row, and write, for each replay and conflict too, and MySQL has
// no way to return it; that one of many gets the key is shown by the tests
// C001_OneOfMany and History.
//
// # The table
//
// [Store.Migrate] makes it, or a migration tool does from the files in the
// directory schema. Its unique index is the last word: of two claims of one key
// at once, one inserts. A key longer than 255 bytes is indexed by its beginning
// and a SHA-256. A freed key's row stays for a minute, so that the fences of a
// key grow. Nothing else removes rows but [Store.Sweep]: have one process or all
// of them call it by [idempotent.NewJanitor].
//
// # In a transaction
//
// An operation that writes to the same database can do so in one transaction
// with its claim and its outcome: see [InTx], and [TxGuard.Middleware] for
// handlers. Then a crash at any point leaves everything or nothing, and no unknown
// outcome to settle. Only an operation that ends without knowing leaves one.
//
// # The business table's own index
//
// A unique index on (principal, idempotency_key) of the table that the operation
// writes stops what no layer above it can. [IsDuplicate] knows its violation from
// any other error, and [Existing] loads the row that won with its state.
//
// # When nobody knows
//
// [Store.Migrate] also makes the view of unknown outcomes, the table's name and
// _unknown: recorded ones and abandoned claims. [Reconcile] walks it and asks the
// program what became of each.
//
// # What the database must be
//
// The clock is the primary's. A failover to a replica that lacks the last
// commits loses claims and outcomes, as it loses orders; so does a setting by
// which a commit does not wait for the disk. Reads go where the *sql.DB goes:
// give it no replica.
//
// For MySQL, interpolateParams=true in the DSN saves a round trip a statement,
// and results may be as long as max_allowed_packet lets them. For SQLite, give
// each connection a busy_timeout, and use journal_mode(WAL); the clock has
// milliseconds only, and the file is on a local disk.
//
// # Errors
//
// A statement that the database has undone because of others (a deadlock, a
// serialization failure, a busy file) is sent again, up to ten times. A full disk
// refuses claims with [idempotent.ErrFull]. Every other error of the database or
// on the way to it is returned with the driver's error in its chain: whether the
// step was taken is not known, and it may be sent again.
package sqlstore
