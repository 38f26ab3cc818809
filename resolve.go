package idempotent

import (
	"context"
	"fmt"
)

// Resolve settles an unknown outcome, once somebody has found out what became
// of it: as ClassSuccess or ClassFailure, which repeats are then answered with
// result, or as ClassRelease, which frees the key. Owner is the entry's, as
// read by [Store.Load], so that a newer execution is never settled by mistake.
//
// A recorded unknown outcome may be settled at any time. An abandoned claim
// may be settled only when its process is known to be dead: an owner that
// still runs is not told, and may act after the key was freed.
//
// Result is what the operation would have recorded: any text for [Guard.Run],
// [EncodeValue] or [EncodeFailure] for [Do], [EncodeResponse] for the
// middleware. "" says that there is none: repeats of a success then get
// [ErrResultUnavailable] from Do and 409 result-unavailable over HTTP.
//
// Resolve may be repeated. Errors: [ErrLost] where the key is absent (but a
// release of it is nil), is somebody else's, or has another known outcome;
// [*InFlightError] where the operation is running; [ErrInvalid] for an empty
// key or owner and for any other class; those of the store.
func (g *Guard) Resolve(ctx context.Context, key, owner string, c Class, result string) error {
	if err := ValidateKey(key, owner); err != nil {
		return err
	}
	if c != ClassSuccess && c != ClassFailure && c != ClassRelease {
		return fmt.Errorf("%w: Resolve settles an outcome as success, failure or release, not as %v", ErrInvalid, c)
	}
	if result == "" {
		result = noResult
	}
	e, found, err := g.load(ctx, key)
	switch {
	case err != nil:
		return err
	case !found && c == ClassRelease:
		return nil
	case !found || e.Owner != owner:
		return ErrLost
	case e.Status == Pending:
		return g.inFlight(e)
	case classOf(e) == c && e.Result == result:
		return nil
	case classOf(e) != ClassUnknown:
		return ErrLost
	}
	outcome := g.outcome(c, result, e.Fingerprint)
	if c == ClassRelease {
		// A claim gained by take-over would stay abandoned when released; a
		// recorded unknown outcome can be freed whoever claimed it.
		outcome = g.outcome(ClassUnknown, noResult, e.Fingerprint)
	}
	if c != ClassRelease || e.Abandoned() {
		err = g.step(ctx, "complete", key, g.storeTimeout, func(ctx context.Context) error {
			return g.store.Complete(ctx, key, owner, outcome)
		})
	}
	if err == nil && c == ClassRelease {
		err = g.step(ctx, "release", key, g.storeTimeout, func(ctx context.Context) error {
			return g.store.Release(ctx, key, owner)
		})
		if err == nil {
			err = g.freed(ctx, key, owner)
		}
	}
	if err != nil {
		return err
	}
	event := Event{Kind: EventResolved, Key: key, Owner: owner, Trace: e.Trace}
	if c != ClassRelease {
		event.Status = outcome.Status
	}
	g.log.tell(ctx, event)
	return nil
}

// freed returns nil where owner's entry is gone. A release says the same of a
// known outcome, which a late owner may have recorded since Resolve looked.
func (g *Guard) freed(ctx context.Context, key, owner string) error {
	e, found, err := g.load(ctx, key)
	if err == nil && found && e.Owner == owner {
		return ErrLost
	}
	return err
}
