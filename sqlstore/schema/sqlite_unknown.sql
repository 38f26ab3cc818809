-- The unknown outcomes of idempotent_entries: what may have happened, and is not
-- run again until somebody has found out. The columns that end in _text and the
-- timestamps, which are in UTC, are for people:
--
--   SELECT key_text, owner_text, trace_text, kind, claimed, ended FROM idempotent_entries_unknown ORDER BY ended;
CREATE VIEW IF NOT EXISTS idempotent_entries_unknown AS
SELECT
  name, full_key, owner, trace, fingerprint, fence,
  CASE status WHEN 'pending' THEN 'abandoned' ELSE 'recorded' END AS kind, -- the lease has lapsed, or the outcome is recorded as unknown
  claimed_at,                                                              -- first claim
  CASE status WHEN 'pending' THEN expires_at ELSE set_at END AS ended_at,  -- when the lease has ended, or the outcome was recorded
  CASE status WHEN 'pending' THEN expires_at + keep_for ELSE expires_at END AS forgotten_at, -- the key is free from then on
  CAST(full_key AS TEXT) AS key_text,
  CAST(owner AS TEXT) AS owner_text,
  CAST(trace AS TEXT) AS trace_text,
  datetime(claimed_at / 1e6, 'unixepoch') AS claimed,
  datetime(CASE status WHEN 'pending' THEN expires_at ELSE set_at END / 1e6, 'unixepoch') AS ended
FROM idempotent_entries
WHERE format = 1 AND status IN ('pending', 'unknown')
  AND (status = 'unknown' OR expires_at <= CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000)
  AND CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 < CASE status WHEN 'pending' THEN expires_at + keep_for ELSE expires_at END;
