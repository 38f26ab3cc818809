-- The unknown outcomes of idempotent_entries: what may have happened, and is not
-- run again until somebody has found out. The columns that end in _text and the
-- timestamps, which are in the session's time zone, are for people:
--
--   SELECT key_text, owner_text, trace_text, kind, claimed, ended FROM idempotent_entries_unknown ORDER BY ended;
CREATE OR REPLACE SQL SECURITY INVOKER VIEW idempotent_entries_unknown AS
SELECT
  name, full_key, owner, trace, fingerprint, fence,
  CASE status WHEN 'pending' THEN 'abandoned' ELSE 'recorded' END AS kind, -- the lease has lapsed, or the outcome is recorded as unknown
  claimed_at,                                                              -- first claim
  CASE status WHEN 'pending' THEN expires_at ELSE set_at END AS ended_at,  -- when the lease has ended, or the outcome was recorded
  CASE status WHEN 'pending' THEN expires_at + keep_for ELSE expires_at END AS forgotten_at, -- the key is free from then on
  CONVERT(full_key USING latin1) AS key_text,
  CONVERT(owner USING latin1) AS owner_text,
  CONVERT(trace USING latin1) AS trace_text,
  FROM_UNIXTIME(claimed_at / 1e6) AS claimed,
  FROM_UNIXTIME(CASE status WHEN 'pending' THEN expires_at ELSE set_at END / 1e6) AS ended
FROM idempotent_entries
WHERE format = 1 AND status IN ('pending', 'unknown')
  AND (status = 'unknown' OR expires_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
  AND TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) < CASE status WHEN 'pending' THEN expires_at + keep_for ELSE expires_at END;
