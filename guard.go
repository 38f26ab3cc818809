package idempotent

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"
)

// Guard runs operations at most once per key, over one store. It is made by
// [New] and safe for concurrent use.
type Guard struct {
	settings
	store    Store
	log      *journal
	drain    *drain
	unclaims *unclaims
	leases   *leaseClock
}

// New returns a guard over store. It panics on a nil store and on an option
// that makes no sense.
func New(store Store, opts ...Option) *Guard {
	if isNil(store) {
		panic("idempotent: New: the store is nil; memstore.New and redisstore.New make one")
	}
	g := &Guard{
		store:    store,
		log:      &journal{},
		drain:    &drain{},
		unclaims: newUnclaims(),
		leases:   &leaseClock{},
		settings: settings{
			lease:            DefaultLease,
			successRetention: DefaultSuccessRetention,
			failureRetention: DefaultFailureRetention,
			storeTimeout:     DefaultStoreTimeout,
		},
	}
	for _, o := range opts {
		if o.apply != nil {
			o.apply(g)
		}
	}
	return g
}

// With returns a guard with other settings, for one route or function. Store,
// observer, logger and [Guard.Drain] are shared with g, which is not changed.
// It panics on [WithLogger] and [WithObserver], which belong to [New].
func (g *Guard) With(opts ...Option) *Guard {
	other := *g
	for _, o := range opts {
		if o.alone {
			panic("idempotent: With: " + o.name + " belongs to New, since all guards over one store share it")
		}
		if o.apply != nil {
			o.apply(&other)
		}
	}
	return &other
}

// Record is what a store knows of one finished operation.
type Record struct {
	Class     Class     // ClassSuccess, ClassFailure, ClassUnknown, or ClassRelease where nothing is kept
	Result    string    // as the operation returned it
	Claimed   time.Time // when the key was first claimed, by the store's clock
	Completed time.Time // when the outcome was recorded

	missing bool // noResult was recorded: the result is not merely empty
}

// noResult is recorded where an outcome is known and its result is not: it
// tells "no result" from an empty one. [Guard.Run] reads it as "".
const noResult = "\x00"

// Run runs op unless key has been used before, and records what became of it.
// It is the one door to the protocol: everything else is built on it.
//
// If key is free, op runs in this goroutine, with a context that carries its
// [Execution]. The outcome is recorded before Run returns; where the store
// fails at that point it is recorded in the background, and Run returns the
// outcome all the same. The result is op's own, false, nil. A panic or
// runtime.Goexit of op is recorded as unknown and goes on.
//
// Otherwise op does not run:
//   - The outcome is recorded: it is returned with true. A recorded unknown
//     outcome comes with [ErrOutcomeUnknown].
//   - The operation is running: [*InFlightError], after the wait that
//     [WithCallWait] allows.
//   - An earlier claim was abandoned: [ErrOutcomeUnknown] and false.
//   - The key was used with another fingerprint: [ErrKeyReused].
//   - The store refuses: [ErrFull], [ErrCorrupt], [ErrNewerFormat],
//     [ErrClosed], or [ErrInvalid], as for an empty key.
//   - The store fails or does not answer: [*StoreError]. Should the claim have
//     been made all the same, it is released in the background.
//   - ctx ended before op began: its error, or a *StoreError that wraps it.
//
// Run blocks as long as op does, plus at most two store timeouts; with a wait
// plus that, and a store timeout more.
// A result of one zero byte means none, and is replayed as "".
func (g *Guard) Run(ctx context.Context, key string, op func(context.Context) (Class, string), opts ...CallOption) (rec Record, replayed bool, err error) {
	switch {
	case op == nil:
		return Record{}, false, fmt.Errorf("%w: the operation is nil", ErrInvalid)
	case key == "":
		return Record{}, false, fmt.Errorf("%w: the key is empty", ErrInvalid)
	}
	return g.run(ctx, key, workFunc(op), newCall(opts))
}

// work is an operation and room for its execution. The middleware's has both in
// one allocation, and costs no closure.
type work interface {
	execution() *execution // a new one
	do(ctx context.Context) (Class, string)
}

type workFunc func(context.Context) (Class, string)

func (workFunc) execution() *execution                    { return new(execution) }
func (f workFunc) do(ctx context.Context) (Class, string) { return f(ctx) }

// run is Run with its call prepared; c serves once.
func (g *Guard) run(ctx context.Context, key string, op work, c *call) (rec Record, replayed bool, err error) {
	var w waiting
	for {
		e, found, sent, err := g.claim(ctx, key, c)
		if err != nil {
			return Record{}, false, err
		}
		if found == claimed {
			return g.execute(ctx, e, sent, c, op), false, nil
		}
		seen := sent // the record is about as new as the claim it refused
		if e.Status == Pending {
			e, found, err = g.await(ctx, e, c, &w)
			if err != nil {
				return Record{Claimed: e.Claimed}, false, err
			}
			if found == free || (g.takeOver && e.Abandoned()) {
				continue
			}
			seen = time.Now()
		}
		return g.answer(ctx, e, seen, c)
	}
}

// finding is what a look at a key has found.
type finding int

const (
	free    finding = iota // no entry
	held                   // an entry that is not ours
	claimed                // our running claim
)

// claim looks key up and claims it where it is free. Where the guard is
// draining it only looks, and a free key is ErrClosed. A claimed key has been
// registered with drain.
func (g *Guard) claim(ctx context.Context, key string, c *call) (e Entry, f finding, sent time.Time, err error) {
	if err := ctx.Err(); err != nil {
		return e, free, sent, err
	}
	sent = time.Now()
	if !g.drain.begin() {
		e, err = g.look(ctx, key, c)
		return e, held, sent, err
	}
	if g.unclaims.full() {
		g.drain.end()
		return e, held, sent, &StoreError{Op: "claim", Err: errBacklog}
	}
	owner := c.newOwner()
	landed := sent.Add(g.storeTimeout).Add(g.lease) // by then, if ever
	decided := false                                // it is known that no claim is left without anybody
	// Also on a panic, of the store or of an observer.
	defer func() {
		if !decided {
			g.unclaim(key, owner, landed)
		}
		if f != claimed {
			g.drain.end()
		}
	}()
	var ok bool
	err = g.stepIn(ctx, c.claimContext(), "claim", key, sent, g.storeTimeout, func(ctx context.Context) (err error) {
		e, ok, err = g.store.Claim(ctx, key, Claim{
			Owner:       owner,
			Fingerprint: c.fingerprint,
			Trace:       c.trace,
			Lease:       g.lease,
			Keep:        g.successRetention,
			TakeOver:    g.takeOver,
		})
		if err == nil && !ok {
			err = checkState(e)
		}
		return err
	})
	if err == nil && ok {
		switch answered := time.Now(); {
		case answered.Sub(sent) > g.lease:
			// Others may have found it lapsed by now.
			err = &StoreError{Op: "claim", Err: errLate}
		case ctx.Err() != nil:
			// Nothing has happened yet, and nobody is left who wants it.
			err = &StoreError{Op: "claim", Err: ctx.Err()}
			landed = answered // for certain: one release is enough
		}
	}
	if err == nil && ok {
		g.tellClaimed(ctx, e)
		decided = true
		return e, claimed, sent, nil
	}
	decided = err == nil || definite(err)
	return e, held, sent, err
}

var errNoState = errors.New("the store breaks its contract: it answered with an entry that is neither pending, success nor failed")

// checkState returns an error for an entry without a state, which nobody may be
// answered from.
func checkState(e Entry) error {
	if e.Status != Pending && classOf(e) == ClassDefault {
		return errNoState
	}
	return nil
}

var errLate = errors.New("the claim was answered after its lease had passed")

func (g *Guard) tellClaimed(ctx context.Context, e Entry) {
	kind := EventClaimed
	if e.Timestamp.After(e.Claimed) {
		kind = EventTakenOver
	}
	g.log.tell(ctx, Event{Kind: kind, Key: e.Key, Owner: e.Owner, Trace: e.Trace, Status: e.Status, Age: e.Timestamp.Sub(e.Claimed)})
}

// load reads key. It changes and extends nothing.
func (g *Guard) load(ctx context.Context, key string) (e Entry, found bool, err error) {
	err = g.step(ctx, "load", key, g.storeTimeout, func(ctx context.Context) (err error) {
		e, found, err = g.store.Load(ctx, key)
		if err == nil && found {
			err = checkState(e)
		}
		return err
	})
	return e, found, err
}

// look loads key for a guard that makes no new claims.
func (g *Guard) look(ctx context.Context, key string, c *call) (e Entry, err error) {
	e, ok, err := g.load(ctx, key)
	if err == nil && (!ok || g.takeOver && e.Abandoned() && e.Fingerprint == c.fingerprint) {
		// Another instance can run it.
		err = fmt.Errorf("%w: the guard is draining", ErrClosed)
	}
	return e, err
}

// step sends one call to the store, under its own timeout.
func (g *Guard) step(ctx context.Context, name, key string, timeout time.Duration, send func(context.Context) error) error {
	return g.stepIn(ctx, new(lateContext), name, key, time.Now(), timeout, send)
}

// stepIn is step, begun at start, with room for its context, which must be
// new.
func (g *Guard) stepIn(ctx context.Context, bounded *lateContext, name, key string, start time.Time, timeout time.Duration, send func(context.Context) error) error {
	bounded.parent, bounded.deadline = ctx, start.Add(timeout)
	defer bounded.end(nil)
	return g.sorted(ctx, name, key, start, send(bounded))
}

// sorted is the one place that tells a decision of the store from a failure:
// the log learns of an outage and of its end, and what comes back is definite
// or a StoreError.
func (g *Guard) sorted(ctx context.Context, name, key string, start time.Time, err error) error {
	if err == nil || definite(err) {
		g.log.answered(ctx)
		if errors.Is(err, ErrFull) || errors.Is(err, ErrClosed) || errors.Is(err, ErrCorrupt) || errors.Is(err, ErrNewerFormat) {
			// Whoever operates the store must know. What else is definite, such as
			// a lost claim, has an event of its own.
			g.log.tell(ctx, Event{Kind: EventStoreError, Key: key, Took: time.Since(start), Err: asStoreError(name, err)})
		}
		return err
	}
	if err = asStoreError(name, err); ctx.Err() == nil {
		// A caller who leaves says nothing about the store.
		g.log.failed(ctx, key, err)
		g.log.tell(ctx, Event{Kind: EventStoreError, Key: key, Took: time.Since(start), Err: err})
	}
	return err
}

// definite reports whether a store has answered with err: it has decided, and
// nothing was claimed or changed.
func definite(err error) bool {
	for _, sentinel := range []error{ErrLost, ErrFull, ErrCorrupt, ErrNewerFormat, ErrInvalid, ErrClosed, ErrReleased} {
		if errors.Is(err, sentinel) {
			return true
		}
	}
	return false
}

func asStoreError(name string, err error) error {
	var e *StoreError
	if errors.As(err, &e) {
		return err
	}
	return &StoreError{Op: name, Err: err}
}

// answer tells a caller what the entry of somebody else says, as seen at a
// time.
func (g *Guard) answer(ctx context.Context, e Entry, seen time.Time, c *call) (Record, bool, error) {
	event := Event{
		Key: e.Key, Owner: e.Owner, Trace: c.trace, OwnerTrace: e.Trace,
		Status: e.Status, Unknown: e.Unknown, Age: max(0, seen.Sub(e.Claimed)),
	}
	rec := Record{Class: classOf(e), Claimed: e.Claimed}
	var err error
	replayed := false
	switch {
	case e.Fingerprint != c.fingerprint:
		// First, also while the key is pending: it stays the truth.
		event.Kind, err = EventKeyReused, ErrKeyReused
	case e.Status == Pending:
		event.Kind, err = EventInFlight, g.inFlight(e)
	case e.Abandoned():
		event.Kind, err = EventAbandoned, ErrOutcomeUnknown
	default:
		event.Kind, replayed = EventReplayed, true
		rec.Completed = e.Timestamp
		if e.Result == noResult {
			rec.missing = true
		} else {
			rec.Result = e.Result
		}
		if rec.Class == ClassUnknown {
			err = ErrOutcomeUnknown
		}
	}
	g.log.tell(ctx, event)
	return rec, replayed, err
}

func (g *Guard) inFlight(e Entry) error {
	return &InFlightError{RetryAfter: min(time.Second, g.lease), Since: e.Timestamp, Trace: e.Trace}
}

// classOf is the class of a recorded outcome, and ClassDefault of a pending
// entry.
func classOf(e Entry) Class {
	switch {
	case e.Status == Success:
		return ClassSuccess
	case e.Status == Failed && e.Unknown:
		return ClassUnknown
	case e.Status == Failed:
		return ClassFailure
	}
	return ClassDefault
}

// outcome is what is recorded for a class other than ClassRelease.
func (g *Guard) outcome(c Class, result, fingerprint string) Outcome {
	o := Outcome{Status: Failed, Result: result, Fingerprint: fingerprint, Retention: g.successRetention}
	switch c {
	case ClassSuccess:
		o.Status = Success
	case ClassFailure:
		o.Retention = g.failureRetention
	default:
		o.Unknown = true
		if result == "" {
			o.Result = noResult // see abandoned
		}
	}
	return o
}

// isNil reports whether v is nil or an interface that holds a nil pointer or
// function, which would panic at the first request instead of at construction.
func isNil(v any) bool {
	if v == nil {
		return true
	}
	r := reflect.ValueOf(v)
	return (r.Kind() == reflect.Pointer || r.Kind() == reflect.Func) && r.IsNil()
}
