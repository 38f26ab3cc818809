-- The unknown outcomes of idempotent_entries: what may have happened, and is not
-- run again until somebody has found out. The columns that end in _text and the
-- timestamps are for people:
--
--   SELECT key_text, owner_text, trace_text, kind, claimed, ended FROM idempotent_entries_unknown ORDER BY ended;
CREATE OR REPLACE VIEW idempotent_entries_unknown AS
SELECT
  name, full_key, owner, trace, fingerprint, fence,
  CASE status WHEN 'pending' THEN 'abandoned' ELSE 'recorded' END AS kind, -- the lease has lapsed, or the outcome is recorded as unknown
  claimed_at,                                                              -- first claim
  CASE status WHEN 'pending' THEN expires_at ELSE set_at END AS ended_at,  -- when the lease has ended, or the outcome was recorded
  CASE status WHEN 'pending' THEN expires_at + keep_for ELSE expires_at END AS forgotten_at, -- the key is free from then on
  encode(full_key, 'escape') AS key_text,
  encode(owner, 'escape') AS owner_text,
  encode(trace, 'escape') AS trace_text,
  to_timestamp(claimed_at / 1e6) AS claimed,
  to_timestamp(CASE status WHEN 'pending' THEN expires_at ELSE set_at END / 1e6) AS ended
FROM idempotent_entries
WHERE format = 1 AND status IN ('pending', 'unknown')
  AND (status = 'unknown' OR expires_at <= CAST(ROUND(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000) AS BIGINT))
  AND CAST(ROUND(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000) AS BIGINT) < CASE status WHEN 'pending' THEN expires_at + keep_for ELSE expires_at END;
