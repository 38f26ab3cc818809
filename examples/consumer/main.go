// Command consumer books payments from a Redis stream, each once, although the
// stream delivers each at least once.
//
//	export IDEMPOTENCY_STORE=redis://127.0.0.1:6379/0
//	go run ./examples/consumer -queue redis://127.0.0.1:6379/0    as many as you like
//
//	redis-cli HSET balances ada 0
//	redis-cli XADD payments '*' event e1 account ada cents 1250
//	redis-cli XADD payments '*' event e1 account ada cents 1250   the producer was not sure
//	redis-cli HGET balances ada                                   1250
//
// A message comes again when its consumer died, when its acknowledgement was
// lost, when another consumer found it slow, and when its producer sent it
// twice. The key is therefore the producer's event, not the id that the stream
// gave to one of its messages.
//
//	what became of it                  the message
//	booked, now or before              is acknowledged
//	an error before the booking        stays pending and comes again
//	no answer from the booking         comes again, and is then set aside
//	it can never be booked             is set aside
//
// What is set aside is moved to the stream payments:aside with the reason, for a
// person to look at. IDEMPOTENCY_STORE names the store, as package storeurl says;
// without it keys are kept in memory, which is for one consumer that is never
// restarted.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/storeurl"
)

const (
	// giveUp is how old a message may be; an older one is set aside. Records are
	// kept for a day more, so that no message comes after its record has gone,
	// not even when all consumers were away for a month. That day is the time a
	// producer has to send an event again.
	giveUp    = 7 * 24 * time.Hour
	retention = giveUp + 24*time.Hour

	// inMemory keeps what is young: rather than forget a message that may come
	// again, a full store refuses, and the message stays pending.
	inMemory = "memory:?min_age=192h"

	group = "bookkeeping"
	batch = 16
	block = time.Second // of one read at most, and the pause after an error
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal kills
	os.Exit(run(ctx, os.Args[1:], os.Stderr))
}

// run is main with its surroundings passed in. It returns the exit code.
func run(ctx context.Context, args []string, stderr io.Writer) int {
	host, _ := os.Hostname()
	flags := flag.NewFlagSet("consumer", flag.ContinueOnError)
	flags.SetOutput(stderr)
	queue := flags.String("queue", "redis://127.0.0.1:6379/0", "`URL` of the Redis that has the stream and the balances")
	stream := flags.String("stream", "payments", "`name` of the stream")
	name := flags.String("name", fmt.Sprintf("%s-%d", host, os.Getpid()), "`name` of this consumer")
	idle := flags.Duration("idle", time.Minute, "how long a message may be with a consumer before another one takes it")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case *idle < idempotent.MinDuration: // to Redis, 0 means for ever
		_, _ = fmt.Fprintf(stderr, "consumer: -idle %v: it must be at least %v\n", *idle, idempotent.MinDuration)
		return 2
	}
	fail := func(err error) int {
		_, _ = fmt.Fprintln(stderr, "consumer:", err)
		return 1
	}
	options, err := redis.ParseURL(*queue)
	if err != nil {
		return fail(errors.New("-queue: this is no URL of a Redis")) // the error may hold a password
	}
	// A client that sends again by itself books twice: the balance may have
	// been changed although the answer was lost.
	options.MaxRetries = -1
	store, closeStore, err := storeurl.Open(ctx, cmp.Or(os.Getenv("IDEMPOTENCY_STORE"), inMemory))
	if err != nil {
		return fail(fmt.Errorf("IDEMPOTENCY_STORE: %w", err))
	}

	log := slog.New(slog.NewTextHandler(stderr, nil))
	c := &consumer{
		guard: idempotent.New(store, idempotent.WithLogger(log),
			idempotent.WithSuccessRetention(retention), idempotent.WithFailureRetention(retention)),
		redis: redis.NewClient(options), stream: *stream, name: *name, idle: *idle, log: log,
	}
	c.serve(ctx)

	// Nothing runs any more. In this order no outcome is lost.
	if err := errors.Join(closeStore(), c.redis.Close()); err != nil {
		return fail(err)
	}
	return 0
}

type consumer struct {
	guard  *idempotent.Guard
	redis  *redis.Client
	stream string
	name   string
	idle   time.Duration
	log    *slog.Logger
}

// serve handles messages until ctx ends.
func (c *consumer) serve(ctx context.Context) {
	for ctx.Err() == nil {
		if err := c.rounds(ctx); err != nil && ctx.Err() == nil {
			c.log.Error("the queue is away", "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(block):
			}
		}
	}
}

// rounds handles what other consumers have left behind and what is new, in turns.
func (c *consumer) rounds(ctx context.Context) error {
	err := c.redis.XGroupCreateMkStream(ctx, c.stream, group, "0").Err()
	if err != nil && !redis.HasErrorPrefix(err, "BUSYGROUP") {
		return err
	}
	for cursor := "0"; ctx.Err() == nil; {
		var messages []redis.XMessage
		messages, cursor, err = c.redis.XAutoClaim(ctx, &redis.XAutoClaimArgs{
			Stream: c.stream, Group: group, Consumer: c.name, MinIdle: c.idle, Start: cursor, Count: batch,
		}).Result()
		if err != nil {
			return err
		}
		fresh, err := c.redis.XReadGroup(ctx, &redis.XReadGroupArgs{
			Streams: []string{c.stream, ">"}, Group: group, Consumer: c.name, Count: batch, Block: min(block, c.idle),
		}).Result()
		if err != nil && !errors.Is(err, redis.Nil) { // Nil: nothing is new
			return err
		}
		for _, s := range fresh {
			messages = append(messages, s.Messages...)
		}
		for _, m := range messages {
			if ctx.Err() != nil {
				break // the rest stays pending
			}
			if err := c.handle(context.WithoutCancel(ctx), m); err != nil { // what has begun may end
				return err
			}
		}
	}
	return nil
}

// handle does what the table says. Its errors are those of the queue; the
// message is then still pending.
func (c *consumer) handle(ctx context.Context, m redis.XMessage) error {
	text := func(name string) string { s, _ := m.Values[name].(string); return s }
	event, account, cents := text("event"), text("account"), text("cents")
	log := c.log.With("event", event, "message", m.ID)
	aside := func(reason string) error {
		log.Error("set aside", "reason", reason)
		return c.setAside(ctx, m, reason)
	}
	switch {
	case event == "":
		return aside("it has no event")
	case time.Since(sent(m)) > giveUp:
		return aside("it is so old that it may have been booked and forgotten")
	}

	booked := false
	err := c.guard.Do(ctx, idempotent.Key("payment", event), func(ctx context.Context) error {
		booked = true
		return c.book(ctx, account, cents)
	}, idempotent.WithCallFingerprint(idempotent.Key(account, cents)))

	switch {
	case err == nil && booked:
		log.Info("booked")
	case err == nil:
		log.Info("already booked")
	case errors.Is(err, idempotent.ErrFailed), errors.Is(err, idempotent.ErrOutcomeUnknown), errors.Is(err, idempotent.ErrKeyReused):
		return aside(err.Error())
	default: // released, being booked by somebody else, or the store is away
		log.Warn("left pending", "err", err)
		return nil
	}
	return c.redis.XAck(ctx, c.stream, group, m.ID).Err()
}

// book adds a payment to the balance of its account. Its errors say what a
// repeat may do.
func (c *consumer) book(ctx context.Context, account, cents string) error {
	n, err := strconv.ParseInt(cents, 10, 64)
	if err != nil || n <= 0 || account == "" {
		return fmt.Errorf("%w: %q cents to account %q", idempotent.ErrFailed, cents, account) // and always will
	}
	open, err := c.redis.HExists(ctx, "balances", account).Result()
	if err != nil {
		return fmt.Errorf("%w: %w", idempotent.ErrReleased, err) // nothing has been written yet
	}
	if !open {
		return fmt.Errorf("%w: account %q is not open yet", idempotent.ErrReleased, account)
	}
	// The commit. A plain error means that it may have happened.
	return c.redis.HIncrBy(ctx, "balances", account, n).Err()
}

// setAside moves a message, in one step, to where a person finds it.
func (c *consumer) setAside(ctx context.Context, m redis.XMessage, reason string) error {
	_, err := c.redis.TxPipelined(ctx, func(p redis.Pipeliner) error {
		values := []any{"message", m.ID, "reason", reason}
		for name, value := range m.Values {
			values = append(values, name, value)
		}
		p.XAdd(ctx, &redis.XAddArgs{Stream: c.stream + ":aside", Values: values})
		p.XAck(ctx, c.stream, group, m.ID)
		return nil
	})
	return err
}

// sent returns when the producer added m: its id begins with the milliseconds.
func sent(m redis.XMessage) time.Time {
	milliseconds, _, _ := strings.Cut(m.ID, "-")
	n, _ := strconv.ParseInt(milliseconds, 10, 64)
	return time.UnixMilli(n)
}
