package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/benchmarks/measure"
	"github.com/idempotent-go/idempotent/benchmarks/peer"
	"github.com/idempotent-go/idempotent/redisstore"
)

// redisBench is an empty database with our store, and what it is compared
// with.
type redisBench struct {
	client    *redis.Client
	pipelined *redis.AutoPipeliner
	ours      *redisstore.Store
	oursPiped *redisstore.Store
	lock      *peer.Lock
	rueidis   *peer.Rueidis
}

func openRedis(b *bench) (*redisBench, error) {
	client, err := b.client()
	if err != nil {
		return nil, err
	}
	pipelined, err := client.AutoPipeline()
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	r, err := peer.NewRueidis(work, b.server.Addr)
	if err != nil {
		return nil, errors.Join(err, pipelined.Close(), client.Close())
	}
	return &redisBench{
		client: client, pipelined: pipelined,
		ours: redisstore.New(client), oursPiped: redisstore.New(pipelined),
		lock: peer.NewLock(work, client), rueidis: r,
	}, nil
}

func (r *redisBench) close() {
	_, _ = r.ours.Close(), r.oursPiped.Close()
	_ = r.pipelined.Close()
	_ = r.rueidis.Close()
	_ = r.client.Close()
}

// calls measures ops calls from so many goroutines, each with a name.
func calls(name string, goroutines int, names func() []string, call func(name string) error) measure.Side {
	return measure.Side{Name: name, Run: func() (float64, error) {
		all := names()
		return measure.Parallel(goroutines, len(all), measure.Each(func(_, i int) error { return call(all[i]) }))
	}}
}

// deadline returns a context as a guard gives it to a store: with a deadline,
// by which go-redis ends the call itself.
func deadline(b *bench) (context.Context, context.CancelFunc) {
	return context.WithTimeout(b.ctx, time.Hour)
}

// redisFresh is P12.
func redisFresh(b *bench) (outcome, error) {
	var o outcome
	r, err := openRedis(b)
	if err != nil {
		return o, err
	}
	defer r.close()
	ctx, cancel := deadline(b)
	defer cancel()
	for _, at := range []struct {
		goroutines, ops int
		limit           float64
	}{{64, b.size(12_000, 256), 2.2}, {1, b.size(3000, 50), 1.4}} {
		b.progress("P12: %d goroutines", at.goroutines)
		names := func() []string { return b.names(at.ops) }
		got, err := b.compare(
			calls("2 × PING", at.goroutines, names, func(string) error {
				return errors.Join(r.client.Ping(ctx).Err(), r.client.Ping(ctx).Err())
			}),
			calls("redisstore", at.goroutines, names, func(name string) error { return cycle(ctx, r.ours, name) }),
			calls("lock, GET, SET, unlock", at.goroutines, names, func(name string) error {
				_, err := r.lock.Do(ctx, name, fingerprint)
				return err
			}),
			calls("redisstore, auto-pipelined", at.goroutines, names, func(name string) error { return cycle(ctx, r.oursPiped, name) }),
			calls("rueidis", at.goroutines, names, func(name string) error {
				_, err := r.rueidis.Do(ctx, name, fingerprint)
				return err
			}),
			calls("one string, SET NX GET + SET", at.goroutines, names, func(name string) error { return oneString(ctx, r.client, name) }),
		)
		if err != nil {
			return o, err
		}
		where := fmt.Sprintf("at %d", at.goroutines)
		o.checks = append(o.checks, check{what: where, got: got[1].Ratio(got[0]).Median(), limit: at.limit, unit: " × (2 × PING)"})
		if at.goroutines > 1 {
			o.checks = append(o.checks, check{got: got[1].Ratio(got[2]).Median(), limit: 0.8, unit: " × lock-get-set-unlock"})
		}
		o.note("%s: 2 × PING %s µs; over it: ours auto-pipelined %s ×, lock-get-set-unlock %s ×, one string (SET NX GET, SET) %s ×, the same with rueidis %s ×",
			where, number(got[0].Median()/1e3), number(got[3].Ratio(got[0]).Median()), number(got[2].Ratio(got[0]).Median()),
			number(got[5].Ratio(got[0]).Median()), number(got[4].Ratio(got[0]).Median()))
	}
	fresh, err := serverTime(ctx, r.client, b.names(b.size(12_000, 256)), func(name string) error { return cycle(ctx, r.ours, name) })
	if err != nil {
		return o, err
	}
	o.note("the server's processor spends %s µs on a fresh request", number(fresh))
	return o, nil
}

// serverTime returns the processor time, in µs, that the server spends on each
// call, 64 at a time. It is what divides a node's one thread.
func serverTime(ctx context.Context, client *redis.Client, names []string, call func(name string) error) (float64, error) {
	before, err := serverProcessor(ctx, client)
	if err != nil {
		return 0, err
	}
	if _, err := measure.Parallel(64, len(names), measure.Each(func(_, i int) error { return call(names[i]) })); err != nil {
		return 0, err
	}
	after, err := serverProcessor(ctx, client)
	return (after - before) * 1e6 / float64(len(names)), err
}

// serverProcessor returns the seconds of processor time that the server has
// used.
func serverProcessor(ctx context.Context, client *redis.Client) (float64, error) {
	info, err := client.InfoMap(ctx, "cpu").Result()
	if err != nil {
		return 0, err
	}
	var sum float64
	for _, name := range []string{"used_cpu_sys", "used_cpu_user"} {
		seconds, err := strconv.ParseFloat(info["CPU"][name], 64)
		if err != nil {
			return 0, fmt.Errorf("INFO cpu: %s: %w", name, err)
		}
		sum += seconds
	}
	return sum, nil
}

// oneString is the fewest commands with go-redis: what a record of one string
// would cost.
func oneString(ctx context.Context, client *redis.Client, name string) error {
	name = "string:" + name
	err := client.SetArgs(ctx, name, "running\n"+fingerprint, redis.SetArgs{Mode: "NX", Get: true, TTL: retention}).Err()
	if err == nil {
		return fmt.Errorf("%s was not free", name)
	}
	if !errors.Is(err, redis.Nil) {
		return err
	}
	return client.Set(ctx, name, "done\n"+fingerprint+"\n"+answer, retention).Err()
}

// redisReplay is P13.
func redisReplay(b *bench) (outcome, error) {
	var o outcome
	r, err := openRedis(b)
	if err != nil {
		return o, err
	}
	defer r.close()
	ctx, cancel := deadline(b)
	defer cancel()
	recorded := b.names(b.size(10_000, 500))
	if err := fill(ctx, r.ours, recorded, 64); err != nil {
		return o, err
	}
	for _, name := range recorded {
		if err := oneString(ctx, r.client, name); err != nil {
			return o, err
		}
		if _, err := r.rueidis.Do(ctx, "r:"+name, fingerprint); err != nil {
			return o, err
		}
		if _, err := r.lock.Do(ctx, name, fingerprint); err != nil {
			return o, err
		}
	}
	for _, at := range []struct {
		goroutines, ops int
		limit           float64
	}{{64, b.size(15_000, 512), 1.8}, {1, b.size(5000, 100), 1.4}} {
		b.progress("P13: %d goroutines", at.goroutines)
		asked := repeated(recorded, at.ops)
		names := func() []string { return asked }
		got, err := b.compare(
			calls("PING", at.goroutines, names, func(string) error { return r.client.Ping(ctx).Err() }),
			calls("redisstore", at.goroutines, names, func(name string) error { return replay(ctx, r.ours, name) }),
			calls("redisstore, auto-pipelined", at.goroutines, names, func(name string) error { return replay(ctx, r.oursPiped, name) }),
			calls("lock", at.goroutines, names, func(name string) error {
				// Of two goroutines with one key one finds the lock taken.
				if _, err := r.lock.Do(ctx, name, fingerprint); err != nil && !errors.Is(err, peer.ErrInFlight) {
					return err
				}
				return nil
			}),
			calls("rueidis", at.goroutines, names, func(name string) error {
				_, err := r.rueidis.Do(ctx, "r:"+name, fingerprint)
				return err
			}),
			calls("one string, SET NX GET", at.goroutines, names, func(name string) error {
				return r.client.SetArgs(ctx, "string:"+name, "running\n"+fingerprint, redis.SetArgs{Mode: "NX", Get: true, TTL: retention}).Err()
			}),
		)
		if err != nil {
			return o, err
		}
		where := fmt.Sprintf("at %d", at.goroutines)
		o.checks = append(o.checks, check{what: where, got: got[1].Ratio(got[0]).Median(), limit: at.limit, unit: " × PING"})
		o.note("%s: PING %s µs; over it: ours auto-pipelined %s ×, lock-get-unlock %s ×, one string (SET NX GET) %s ×, the same with rueidis %s ×",
			where, number(got[0].Median()/1e3), number(got[2].Ratio(got[0]).Median()), number(got[3].Ratio(got[0]).Median()),
			number(got[5].Ratio(got[0]).Median()), number(got[4].Ratio(got[0]).Median()))
	}
	names := repeated(recorded, b.size(15_000, 512))
	replayed, err := serverTime(ctx, r.client, names, func(name string) error { return replay(ctx, r.ours, name) })
	if err != nil {
		return o, err
	}
	pinged, err := serverTime(ctx, r.client, names, func(string) error { return r.client.Ping(ctx).Err() })
	if err != nil {
		return o, err
	}
	o.note("the server's processor spends %s µs on a replay, %s µs on a PING", number(replayed), number(pinged))
	return o, nil
}

// repeated returns n of the names, in any order, some of them more than once.
func repeated(names []string, n int) []string {
	asked := shuffled(names)
	for len(asked) < n {
		asked = append(asked, asked...)
	}
	return asked[:n]
}

// redisRoundTrips is P11.
func redisRoundTrips(b *bench) (outcome, error) {
	var o outcome
	client, err := b.client()
	if err != nil {
		return o, err
	}
	defer func() { _ = client.Close() }()
	s := redisstore.New(client)
	defer func() { _ = s.Close() }()
	g := idempotent.New(s)
	op := func(context.Context) (idempotent.Class, string) { return idempotent.ClassSuccess, answer }
	run := func(name, request string) error {
		_, _, err := g.Run(b.ctx, name, op, idempotent.WithCallFingerprint(request))
		return err
	}
	const n = 100
	// The first call of each kind loads the scripts.
	if err := run(b.names(1)[0], fingerprint); err != nil {
		return o, err
	}
	names, running := b.names(n), b.names(1)[0]
	if _, _, err := s.Claim(b.ctx, running, idempotent.Claim{Owner: "other", Fingerprint: fingerprint, Lease: time.Hour, Keep: time.Hour}); err != nil {
		return o, err
	}
	each := func(call func(name string) error) func() error {
		return func() error {
			for _, name := range names {
				if err := call(name); err != nil {
					return err
				}
			}
			return nil
		}
	}
	var inFlight *idempotent.InFlightError
	for _, path := range []struct {
		what  string
		limit float64
		do    func() error
	}{
		{"fresh", 2, each(func(name string) error { return run(name, fingerprint) })},
		{"replay", 1, each(func(name string) error { return run(name, fingerprint) })},
		{"in flight", 1, each(func(string) error {
			if err := run(running, fingerprint); !errors.As(err, &inFlight) {
				return fmt.Errorf("want an InFlightError, got %v", err)
			}
			return nil
		})},
		{"mismatch", 1, each(func(name string) error {
			if err := run(name, "another"); !errors.Is(err, idempotent.ErrKeyReused) {
				return fmt.Errorf("want ErrKeyReused, got %v", err)
			}
			return nil
		})},
	} {
		sent, err := commands(b, path.do)
		if err != nil {
			return o, fmt.Errorf("%s: %w", path.what, err)
		}
		o.checks = append(o.checks, check{what: path.what, got: float64(sent) / n, limit: path.limit})
	}
	perWaiter, err := commandsPerWaiter(b, s, n, func(name string) error {
		_, replayed, err := g.Run(b.ctx, name, op, idempotent.WithCallFingerprint(fingerprint), idempotent.WithCallWait(time.Minute))
		if err == nil && !replayed {
			err = errors.New("a waiter ran the operation")
		}
		return err
	})
	if err != nil {
		return o, err
	}
	o.checks = append(o.checks, check{what: "waiting", got: perWaiter, limit: 1.5, unit: " commands a waiter"})
	o.note("commands that clients sent, as MONITOR shows them; %d calls of each kind, %d waiters on one key", n, n)
	return o, nil
}

// commandsPerWaiter counts what waiters of one running key send until they
// have its outcome, without the owner's completion.
func commandsPerWaiter(b *bench, s idempotent.Store, waiters int, wait func(name string) error) (float64, error) {
	name := b.names(1)[0]
	if _, _, err := s.Claim(b.ctx, name, claimBy(owner)); err != nil {
		return 0, err
	}
	sent, err := commands(b, func() error {
		completed := make(chan error, 1)
		go func() {
			time.Sleep(settleRedis)
			completed <- s.Complete(b.ctx, name, owner, outcomeOf(answer))
		}()
		err := together(waiters, func(int) error { return wait(name) })
		return errors.Join(err, <-completed)
	})
	return float64(sent-1) / float64(waiters), err
}

// redisBytes is P17: a record as the middleware writes it.
func redisBytes(b *bench) (outcome, error) {
	var o outcome
	client, err := b.client()
	if err != nil {
		return o, err
	}
	defer func() { _ = client.Close() }()
	used, name, err := recordBytes(b, client)
	if err != nil {
		return o, err
	}
	header := len("Content-Type"+"application/json") + len("Location"+"/orders/1")
	payload := len(name) + header + answerSize
	o.checks = []check{{got: float64(used) / float64(payload), limit: 1.9, unit: " ×"}}
	o.note("%d B for %d B of key (%d), headers (%d) and body", used, payload, len(name), header)
	return o, nil
}

// recordBytes records one answer through the middleware and returns what
// Redis says that it takes, and its store name.
func recordBytes(b *bench, client *redis.Client) (used int64, name string, err error) {
	s := redisstore.New(client)
	app := peer.GuardedBy(s, work, func() { _ = s.Close() })
	defer app.Close()
	key := b.keys(1)[0]
	if err := expect(app.Client(), key); err != nil {
		return 0, "", err
	}
	principal, _ := peer.Principal(nil)
	name = idempotent.StoreKey(http.MethodPost, peer.Path, principal, key)
	used, err = client.MemoryUsage(b.ctx, redisstore.DefaultPrefix+name, 0).Result()
	return used, name, err
}
