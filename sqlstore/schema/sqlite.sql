-- Entries of package idempotent in SQLite 3.24 or later. One row is one key.
-- Texts are bytes, and times are microseconds since 1970:
-- datetime(set_at / 1e6, 'unixepoch') shows one.
CREATE TABLE IF NOT EXISTS idempotent_entries (
  name        BLOB    NOT NULL PRIMARY KEY, -- the key; of one longer than 255 bytes its first 224 and the SHA-256 of all
  full_key    BLOB    NOT NULL,
  format      INTEGER NOT NULL,             -- of the row; 1
  status      TEXT    NOT NULL,             -- pending, success, failed, unknown, free
  owner       BLOB    NOT NULL,
  fingerprint BLOB    NOT NULL,
  trace       BLOB    NOT NULL,
  result      BLOB,                         -- NULL: none
  fence       INTEGER NOT NULL,
  claimed_at  INTEGER NOT NULL,
  set_at      INTEGER NOT NULL,
  expires_at  INTEGER NOT NULL,             -- end of the lease, or of the retention
  keep_for    INTEGER NOT NULL,             -- how long after the lapse a claim is remembered
  sweep_at    INTEGER NOT NULL,             -- when a sweep has to do with the row
  take_over   INTEGER NOT NULL,
  gained      INTEGER NOT NULL,             -- the claim was gained by take-over
  version     INTEGER NOT NULL              -- grows with every change
);

CREATE INDEX IF NOT EXISTS idempotent_entries_sweep_at ON idempotent_entries (sweep_at);
