// Package redisstore keeps the entries of package idempotent in Redis 6.2 or
// later, or in Valkey: one server, one behind Sentinel, or a Cluster. Every
// process that uses the same server and prefix shares them.
//
// One key is one hash, and every step is one script that touches this one hash
// and decides by the server's clock. A fresh operation costs two round trips, a
// replay one. Every entry carries an expiry; nothing needs sweeping.
//
// What Redis cannot promise: replication is asynchronous, so a failover can
// lose the newest writes. A claim lost that way can be claimed again while its
// first owner still runs; whoever records first wins, the other one gets
// [idempotent.ErrLost]. [WithReplicas] makes this unlikely, not impossible. An
// eviction policy other than noeviction throws claims away under memory
// pressure. With noeviction a full server refuses new claims with
// [idempotent.ErrFull], goes on replaying, and still takes renewals,
// completions and releases.
//
// A crash loses what is not in the append-only file. [Store.Check] names what of
// a server's set-up would break the promise, for programs that would rather not
// start.
//
// The Redis user needs the keys and channels of the prefix and the commands
// that the error on a missing permission lists.
package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/waitroom"
)

var (
	_ idempotent.Store   = (*Store)(nil)
	_ idempotent.Waiter  = (*Store)(nil)
	_ idempotent.Pinger  = (*Store)(nil)
	_ idempotent.Deleter = (*Store)(nil)
	_ idempotent.Lister  = (*Store)(nil)
)

// DefaultPrefix begins the name of every hash where [WithPrefix] says nothing
// else.
const DefaultPrefix = "idempotent:"

// readBound ends a read from a socket where the client has no time-out of its
// own: the goroutine of a call that nobody waits for any more must end some
// day.
const readBound = 30 * time.Second

// Store is an [idempotent.Store] in Redis. It is made by [New] and safe for
// concurrent use. The errors of its methods keep Redis' own error in their
// chain, and their text never shows a key.
type Store struct {
	client   redis.UniversalClient
	punctual bool // client ends what it does at the deadline of a context
	prefix   string
	channel  string // on which completions tell who waits
	acks     int    // replicas that must have a claim; 0: not asked
	ackTime  time.Duration
	waiters  *waitroom.Room
	closed   atomic.Bool
}

// Option changes a setting of [New].
type Option func(*Store)

// WithPrefix sets the text that begins the name of every hash and of the
// channel on which waiters are woken; the default is [DefaultPrefix]. Stores
// with one prefix on one server share their entries. A hash tag in it, as in
// "{idempotent}:", puts all entries into one Cluster slot. It panics on an
// empty prefix: names without one could be anybody's, and no ACL rule could
// tell them apart.
func WithPrefix(prefix string) Option {
	if prefix == "" {
		panic("redisstore: WithPrefix: the prefix is empty")
	}
	return func(s *Store) { s.prefix = prefix }
}

// WithReplicas makes a claim count only when n replicas have acknowledged it
// within timeout, by one more round trip (WAIT). With fewer the claim is an
// error, and whether it stands is not known; the guard releases it. By default
// no replica is waited for. It panics unless n is positive and timeout at least
// a millisecond. While a Cluster moves the slot of a key, and once after its
// fail-over, such claims fail.
func WithReplicas(n int, timeout time.Duration) Option {
	if n < 1 {
		panic(fmt.Sprintf("redisstore: WithReplicas: the number is %d; it must be at least 1", n))
	}
	if timeout < idempotent.MinDuration {
		panic(fmt.Sprintf("redisstore: WithReplicas: the timeout is %v; it must be at least %v", timeout, idempotent.MinDuration))
	}
	return func(s *Store) { s.acks, s.ackTime = n, timeout }
}

// New returns a Store on client, which stays the caller's: close the Store
// first, then the client. Nothing is sent before the first call, and no
// goroutine is started before the first [Store.Wait]. New panics on a nil
// client, and with [WithReplicas] on a client that is none of *redis.Client,
// *redis.ClusterClient and *redis.Ring.
//
// A call returns at its context's deadline, whatever the time-outs of the client,
// and what it had sent may still be carried out. A call whose context is
// cancelled before that returns at once, but for one: on a *redis.Client a
// context with a deadline ends a call that has been sent by its deadline alone,
// and no goroutine is started for it. Elsewhere the goroutine and the connection
// that waited for an answer are free at the client's ReadTimeout, or after 30
// seconds where a *redis.Client has none. A Cluster or Ring client without one
// needs ContextTimeoutEnabled instead. Hooks must be added to client before New.
//
// A *redis.ClusterClient notices the successor of a primary that died at its
// next look at the map of slots, once a minute unless ClusterStateReloadInterval
// says otherwise. Until then the keys of that primary are refused.
//
// On a *redis.Ring waiters are not notified: they poll.
//
// A *redis.AutoPipeliner, which go-redis calls experimental, is a client too: what
// the AutoPipeline method of another one returns. Calls that are made at the same
// time then share round trips; a lone call gains nothing.
func New(client redis.UniversalClient, opts ...Option) *Store {
	if v := reflect.ValueOf(client); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		panic("redisstore: New: the client is nil")
	}
	s := &Store{client: client, prefix: DefaultPrefix}
	if c, ok := client.(*redis.Client); ok {
		s.client, s.punctual = punctual(c), true
	}
	for _, opt := range opts {
		opt(s)
	}
	if s.acks > 0 {
		switch client.(type) {
		case *redis.Client, *redis.ClusterClient, *redis.Ring:
		default:
			panic(fmt.Sprintf("redisstore: WithReplicas: a %T cannot keep two commands on one connection", client))
		}
	}
	s.channel = s.prefix + "ended"
	s.waiters = newWaiters(s)
	return s
}

// punctual returns c with reads and writes that end at the deadline of their
// context. It shares c's connections and hooks; c stays as it is.
func punctual(c *redis.Client) *redis.Client {
	read, write := c.Options().ReadTimeout, c.Options().WriteTimeout
	if read <= 0 {
		read = readBound
	}
	c = c.WithTimeout(read)
	// The options of the copy are its own. There is no other way to set this one
	// on a client that exists.
	c.Options().WriteTimeout, c.Options().ContextTimeoutEnabled = write, true
	return c
}

// Close ends the subscription and every Wait, and returns when their
// goroutines have ended. The client stays open. Later calls of other methods
// return [idempotent.ErrClosed]. It may be called more than once, also
// concurrently, and always returns nil.
func (s *Store) Close() error {
	s.closed.Store(true)
	s.waiters.Close()
	return nil
}

// Ping returns nil where a server answers. It blocks until then or until ctx
// ends.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.open(ctx); err != nil {
		return err
	}
	_, err := call(ctx, s.endsItself(ctx), func() (string, error) { return s.client.Ping(ctx).Result() })
	return s.explain("ping", "", err)
}

// Load returns the entry of key; see [idempotent.Store]. In a Cluster the
// primary is asked, also by a client that reads from replicas: EVALSHA is no
// read-only command.
func (s *Store) Load(ctx context.Context, key string) (idempotent.Entry, bool, error) {
	l, err := s.look(ctx, "load", key, false)
	return l.entry, l.found, err
}

// Claim claims key; see [idempotent.Store]. [idempotent.ErrFull] means that
// the server is at its maxmemory and that nothing was claimed.
func (s *Store) Claim(ctx context.Context, key string, c idempotent.Claim) (idempotent.Entry, bool, error) {
	if err := idempotent.ValidateKey(key, c.Owner); err != nil {
		return idempotent.Entry{}, false, err
	}
	if err := c.Validate(); err != nil {
		return idempotent.Entry{}, false, err
	}
	if err := s.open(ctx); err != nil {
		return idempotent.Entry{}, false, err
	}
	reply, err := s.run(ctx, "claim", claimScript, key, encodeClaim(key, c), micros(c.Lease), micros(c.Keep))
	if err != nil {
		return idempotent.Entry{}, false, err
	}
	if reply != "" && reply[0] == answerNew {
		e, err := decodeNew(key, c, reply)
		return e, err == nil, wrap("claim", err)
	}
	l, err := decodeLook(key, reply)
	if err != nil {
		return idempotent.Entry{}, false, wrap("claim", err)
	}
	return l.entry, l.claimed, nil
}

// Renew starts owner's lease anew; see [idempotent.Store].
func (s *Store) Renew(ctx context.Context, key, owner string, lease time.Duration) error {
	if err := idempotent.ValidateKey(key, owner); err != nil {
		return err
	}
	if err := idempotent.ValidateDuration("lease", lease); err != nil {
		return err
	}
	return s.step(ctx, "renew", renewScript, key, identity(key, owner), micros(lease))
}

// Complete records owner's outcome; see [idempotent.Store]. A full server
// takes it, also where the claim is gone.
func (s *Store) Complete(ctx context.Context, key, owner string, o idempotent.Outcome) error {
	if err := idempotent.ValidateKey(key, owner); err != nil {
		return err
	}
	if err := o.Validate(); err != nil {
		return err
	}
	return s.step(ctx, "complete", completeScript, key,
		identity(key, owner), statusWord(o), o.Result, micros(o.Retention), o.Fingerprint)
}

// Release frees a key that owner holds; see [idempotent.Store].
func (s *Store) Release(ctx context.Context, key, owner string) error {
	if err := idempotent.ValidateKey(key, owner); err != nil {
		return err
	}
	return s.step(ctx, "release", releaseScript, key, identity(key, owner))
}

// Delete removes key whatever its state, also an entry that cannot be read;
// see [idempotent.Deleter].
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := idempotent.ValidateKey(key, "any"); err != nil {
		return err
	}
	return s.step(ctx, "delete", deleteScript, key)
}

// open reports why a call cannot even begin.
func (s *Store) open(ctx context.Context) error {
	if s.closed.Load() {
		return fmt.Errorf("redisstore: %w", idempotent.ErrClosed)
	}
	return ctx.Err()
}

// look reads key once. Where watch is true a running claim is marked, so that
// its end is published.
func (s *Store) look(ctx context.Context, op, key string, watch bool) (look, error) {
	if err := idempotent.ValidateKey(key, "any"); err != nil {
		return look{}, err
	}
	if err := s.open(ctx); err != nil {
		return look{}, err
	}
	channel := ""
	if watch {
		channel = s.channel
	}
	reply, err := s.run(ctx, op, loadScript, key, identity(key, ""), channel)
	if err != nil {
		return look{}, err
	}
	l, err := decodeLook(key, reply)
	return l, wrap(op, err)
}

// step runs a script that answers with a verdict alone.
func (s *Store) step(ctx context.Context, op string, sc *script, key string, args ...any) error {
	if err := s.open(ctx); err != nil {
		return err
	}
	reply, err := s.run(ctx, op, sc, key, args...)
	if err != nil {
		return err
	}
	return wrap(op, verdict(reply))
}

// run sends a script.
func (s *Store) run(ctx context.Context, op string, sc *script, key string, args ...any) (string, error) {
	name := s.name(key)
	reply, err := call(ctx, s.endsItself(ctx), func() (string, error) {
		if s.acks > 0 && sc == claimScript {
			return s.claimAcknowledged(ctx, name, args)
		}
		return eval(ctx, s.client, sc, name, args)
	})
	return reply, s.explain(op, key, err)
}

// processor is a client, or one connection of it.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// eval sends EVALSHA, and EVAL where the server does not have the script: after
// a restart, a failover or SCRIPT FLUSH. It reads the answer as the text that it
// is, which [redis.Script] does not.
func eval(ctx context.Context, to processor, sc *script, name string, args []any) (string, error) {
	words := append(append(make([]any, 0, 9), "evalsha", sc.hash, 1, name), args...)
	cmd := redis.NewStringCmd(ctx, words...)
	err := to.Process(ctx, cmd)
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		cmd = redis.NewStringCmd(ctx, append([]any{"eval", sc.source}, words[2:]...)...)
		err = to.Process(ctx, cmd)
	}
	return cmd.Val(), err
}

// claimAcknowledged claims and then waits for replicas. WAIT speaks of what
// its own connection has written, so both commands share one.
func (s *Store) claimAcknowledged(ctx context.Context, name string, args []any) (string, error) {
	node, err := s.node(ctx, name)
	if err != nil {
		return "", err
	}
	conn := node.Conn()
	defer func() { _ = conn.Close() }()
	reply, err := eval(ctx, conn, claimScript, name, args)
	if _, moved := redis.IsMovedError(err); moved {
		// The client knows nothing of what is sent on one connection, and
		// would hand out the wrong node for up to a minute.
		if c, ok := s.client.(*redis.ClusterClient); ok {
			c.ReloadState(ctx)
		}
	}
	if err != nil || reply == "" || reply[0] != answerNew && reply[0] != answerClaimed {
		return reply, err
	}
	acks, err := conn.Wait(ctx, s.acks, s.ackTime).Result()
	if err != nil {
		return "", err
	}
	if acks < int64(s.acks) {
		return "", &acksError{got: int(acks), want: s.acks, within: s.ackTime}
	}
	return reply, nil
}

// node returns the client of the server that has name.
func (s *Store) node(ctx context.Context, name string) (*redis.Client, error) {
	switch c := s.client.(type) {
	case *redis.ClusterClient:
		return c.MasterForKey(ctx, name)
	case *redis.Ring:
		return c.GetShardClientForKey(name)
	default:
		return c.(*redis.Client), nil
	}
}

// endsItself reports whether the client ends by itself what it does under ctx.
func (s *Store) endsItself(ctx context.Context) bool {
	_, dated := ctx.Deadline()
	return dated && s.punctual
}

// undated is a context that hides its deadline. A call under it returns as soon
// as it is cancelled.
type undated struct{ context.Context }

func (undated) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

// call returns what f returns, or ctx's error when ctx ends. Where f does not
// end by itself it gets a goroutine of its own: go-redis looks at a context
// before it sends and, where that is set, at its deadline; a read that has begun
// ends by the socket's time-out alone. Handing over and back wakes an idle
// processor twice, which can cost as much as the command, so it is done only
// where it must be.
func call[T any](ctx context.Context, endsItself bool, f func() (T, error)) (T, error) {
	if endsItself || ctx.Done() == nil {
		value, err := f()
		return value, because(ctx, err)
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := f()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, because(ctx, r.err)
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// because returns why ctx has ended in the place of a failure that came of it.
func because(ctx context.Context, err error) error {
	if err == nil || fromServer(err) {
		return err
	}
	return cmp.Or(ended(ctx), err)
}

// ended returns why ctx has ended, or nil. A client that has given the deadline
// to its socket may notice the end first, in words of its own, before the timer
// of the context has run.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return nil
}

// longest is what any duration is cut to. Three instants are summed in a Lua
// number, which is exact up to 2^53 microseconds, the year 2255.
const longest = 100 * 365 * 24 * time.Hour

// micros returns d in microseconds, rounded up to a whole millisecond: Redis
// expires by milliseconds, and an entry may live longer than asked, not
// shorter.
func micros(d time.Duration) int64 { return millis(d) * 1000 }

func millis(d time.Duration) int64 {
	d = min(d, longest)
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
