package sqlstore

import "github.com/idempotent-go/idempotent"

// A decision is a row of the state table: what becomes of r, looked at now, and
// whether that is to be written. Where nothing is, r stands.
type decision func(r row, now int64) (next row, write bool, err error)

// decideClaim writes where the key is this owner's afterwards.
func decideClaim(key string, c idempotent.Claim) decision {
	return func(r row, now int64) (row, bool, error) {
		next := row{
			key: key, status: statusPending, owner: c.Owner, fingerprint: c.Fingerprint, trace: c.Trace,
			fence: max(r.fence+1, now), claimed: now, set: now, expires: now + micros(c.Lease),
			keep: micros(c.Keep), takeOver: c.TakeOver,
		}
		switch {
		case r.absent(now):
		case r.status == statusPending && r.owner == c.Owner: // sent again
			next = r
			next.expires = now + micros(c.Lease)
		case r.lapsed(now) && r.takeOver && c.TakeOver && r.fingerprint == c.Fingerprint:
			next.claimed, next.gained = r.claimed, true
		default:
			return r, false, nil
		}
		return next, true, nil
	}
}

func decideRenew(owner string, lease int64) decision {
	return func(r row, now int64) (row, bool, error) {
		switch {
		case r.absent(now), r.owner != owner:
			return r, false, idempotent.ErrLost
		case r.status != statusPending:
			return r, false, nil
		}
		r.expires = now + lease
		return r, true, nil
	}
}

func decideComplete(key, owner string, o idempotent.Outcome) decision {
	status := statusOf(o)
	return func(r row, now int64) (row, bool, error) {
		switch {
		case r.absent(now):
			r = row{
				key: key, owner: owner, fingerprint: o.Fingerprint, fence: max(r.fence+1, now), claimed: now,
			}
		case r.owner != owner:
			return r, false, idempotent.ErrLost
		case r.status == statusPending:
		case status == statusUnknown, r.status == status && string(r.result) == o.Result:
			return r, false, nil
		case r.status != statusUnknown:
			return r, false, idempotent.ErrLost
		}
		r.status, r.result = status, []byte(o.Result)
		r.set, r.expires = now, now+micros(o.Retention)
		return r, true, nil
	}
}

func decideRelease(owner string) decision {
	return func(r row, now int64) (row, bool, error) {
		switch {
		case r.absent(now):
			return r, false, nil
		case r.owner != owner:
			return r, false, idempotent.ErrLost
		case r.status == statusPending && r.gained: // the first owner's work may have happened
			if r.lapsed(now) {
				return r, false, nil
			}
			r.expires = now
		case r.status == statusPending, r.status == statusUnknown:
			r.status, r.result, r.set = statusFree, nil, now
		default:
			return r, false, nil
		}
		return r, true, nil
	}
}
