-- Entries of package idempotent in MySQL 8 or MariaDB 10.6 or later. One row is
-- one key. Texts are bytes, and times are microseconds since 1970 by the
-- server's clock: FROM_UNIXTIME(set_at / 1e6) shows one.
CREATE TABLE IF NOT EXISTS idempotent_entries (
  name        VARBINARY(256) NOT NULL PRIMARY KEY, -- the key; of one longer than 255 bytes its first 224 and the SHA-256 of all
  full_key    LONGBLOB    NOT NULL,
  format      SMALLINT    NOT NULL,                -- of the row; 1
  status      VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- pending, success, failed, unknown, free
  owner       LONGBLOB    NOT NULL,
  fingerprint LONGBLOB    NOT NULL,
  trace       LONGBLOB    NOT NULL,
  result      LONGBLOB,                            -- NULL: none
  fence       BIGINT      NOT NULL,
  claimed_at  BIGINT      NOT NULL,
  set_at      BIGINT      NOT NULL,
  expires_at  BIGINT      NOT NULL,                -- end of the lease, or of the retention
  keep_for    BIGINT      NOT NULL,                -- how long after the lapse a claim is remembered
  sweep_at    BIGINT      NOT NULL,                -- when a sweep has to do with the row
  take_over   SMALLINT    NOT NULL,
  gained      SMALLINT    NOT NULL,                -- the claim was gained by take-over
  version     BIGINT      NOT NULL,                -- grows with every change
  INDEX idempotent_entries_sweep_at (sweep_at)
) ENGINE = InnoDB;
