-- Entries of package idempotent in PostgreSQL 13 or later. One row is one key.
-- Texts are bytes, and times are microseconds since 1970 by the server's clock:
-- to_timestamp(set_at / 1e6) shows one.
CREATE TABLE IF NOT EXISTS idempotent_entries (
  name        BYTEA    NOT NULL PRIMARY KEY, -- the key; of one longer than 255 bytes its first 224 and the SHA-256 of all
  full_key    BYTEA    NOT NULL,
  format      SMALLINT NOT NULL,             -- of the row; 1
  status      VARCHAR(8) NOT NULL,           -- pending, success, failed, unknown, free
  owner       BYTEA    NOT NULL,
  fingerprint BYTEA    NOT NULL,
  trace       BYTEA    NOT NULL,
  result      BYTEA,                         -- NULL: none
  fence       BIGINT   NOT NULL,
  claimed_at  BIGINT   NOT NULL,
  set_at      BIGINT   NOT NULL,
  expires_at  BIGINT   NOT NULL,             -- end of the lease, or of the retention
  keep_for    BIGINT   NOT NULL,             -- how long after the lapse a claim is remembered
  sweep_at    BIGINT   NOT NULL,             -- when a sweep has to do with the row
  take_over   SMALLINT NOT NULL,
  gained      SMALLINT NOT NULL,             -- the claim was gained by take-over
  version     BIGINT   NOT NULL              -- grows with every change
);

-- CREATE INDEX IF NOT EXISTS would wait for every transaction that has written to
-- the table, and have every other one wait behind, also where the index is there.
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_index WHERE indrelid = CAST('idempotent_entries' AS regclass) AND NOT indisunique
      AND pg_get_indexdef(indexrelid, 1, true) = 'sweep_at') THEN
    CREATE INDEX idempotent_entries_sweep_at ON idempotent_entries (sweep_at);
  END IF;
END
$$;
