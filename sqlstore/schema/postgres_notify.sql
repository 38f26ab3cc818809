-- Tells who waits for a key of idempotent_entries that its claim has ended. Run
-- it after postgres.sql where programs use WithListen; without it they poll.
CREATE OR REPLACE FUNCTION idempotent_entries_notify() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('idempotent_entries', encode(OLD.name, 'hex'));
  RETURN NULL;
END
$$;

DROP TRIGGER IF EXISTS idempotent_ended ON idempotent_entries;
CREATE TRIGGER idempotent_ended AFTER UPDATE ON idempotent_entries FOR EACH ROW
  WHEN (OLD.status = 'pending' AND (NEW.status <> 'pending' OR NEW.expires_at < OLD.expires_at))
  EXECUTE FUNCTION idempotent_entries_notify();
