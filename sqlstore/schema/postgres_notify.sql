-- Tells who waits for a key of idempotent_entries that its claim has ended. Run
-- it after postgres.sql where programs use WithListen; without it they poll.
CREATE OR REPLACE FUNCTION idempotent_entries_notify() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('idempotent_entries', encode(OLD.name, 'hex'));
  RETURN NULL;
END
$$;

-- A trigger is made where there is none: that waits for every transaction that
-- has written to the table, and has every other one wait behind.
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = CAST('idempotent_entries' AS regclass) AND tgname = 'idempotent_ended') THEN
    CREATE TRIGGER idempotent_ended AFTER UPDATE ON idempotent_entries FOR EACH ROW
      WHEN (OLD.status = 'pending' AND (NEW.status <> 'pending' OR NEW.expires_at < OLD.expires_at))
      EXECUTE FUNCTION idempotent_entries_notify();
  END IF;
END
$$;
