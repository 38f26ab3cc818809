// Command shop is a small shop whose orders and payments happen once, however
// often a client sends them.
//
//	go run ./examples/shop                                      keys in memory; begins with a story
//	go run ./examples/shop -store 'memory:?snapshot=shop.keys'  the same, kept across restarts
//	go run ./examples/shop -store redis://127.0.0.1:6379/0      keys in Redis
//	go run ./examples/shop -demo                                play a story and check it
//
// Without -store the environment variable IDEMPOTENCY_STORE names the store;
// package storeurl says what it may name. So a shop moves from one Redis to
// another by three values of one setting: the old URL, "moving:redis://old
// redis://new" while both are in use, and the new URL; see docs/moving.md.
//
// Told nothing, it first plays what clients do in the story, and then stays open.
// It prints the address of its inspector, the page for whoever looks after the
// keys, which asks for a name and a password: olga, olga-password. Both stand in
// the source, so keep the shop on loopback, where it listens unless -addr says
// otherwise.
//
// It does not start on a Redis that could forget what has been paid, such as
// one without its append-only file, unless -unsafe-redis allows that.
//
// Read shop.go first: the handlers know nothing of idempotency. This file puts
// the guard around them, and stops in the order that loses no outcome.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/storeurl"
)

const (
	// grace is how long running requests may take after SIGTERM. It should be
	// a little less than what the platform waits before it kills the process.
	grace = 20 * time.Second

	// inMemory is the store of a shop that is told nothing else. Entries of the
	// last minutes are not evicted from memory: rather than forget a payment that
	// a client may still retry, the shop answers 503 to new ones.
	inMemory = "memory:?min_age=10m"

	// silent is the level of a log that says nothing.
	silent = slog.LevelError + 1
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is main with its surroundings passed in. It returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("shop", flag.ContinueOnError)
	flags.SetOutput(stderr)
	addr := flags.String("addr", "127.0.0.1:8080", "`address` to listen on")
	storeURL := flags.String("store", inMemory, "`URL` of where keys are kept, instead of $IDEMPOTENCY_STORE")
	if where := os.Getenv("IDEMPOTENCY_STORE"); where != "" {
		*storeURL = where // not as the flag's default, which is printed: it may hold a password
	}
	providerURL := flags.String("provider", "", "payment provider's `URL`; without one, a stand-in takes 3 s and agrees")
	unsafe := flags.Bool("unsafe-redis", false, "start although Redis is set up so that a payment could be made twice")
	lease := flags.Duration("lease", idempotent.DefaultLease, "how long a key stays in flight after its process has died")
	retention := flags.Duration("retention", idempotent.DefaultSuccessRetention, "how long a repeat of a finished request gets its answer")
	play := flags.Bool("demo", false, "play a story against the shop, print what happened, exit with 1 if any of it was wrong")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	var level slog.LevelVar
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: &level}))
	if *play {
		level.Set(silent) // the table tells it all
	}

	for name, d := range map[string]time.Duration{"-lease": *lease, "-retention": *retention} {
		if d < idempotent.MinDuration {
			_, _ = fmt.Fprintf(stderr, "shop: %s %v: it must be at least %v\n", name, d, idempotent.MinDuration)
			return 2
		}
	}
	store, closeStore, err := openStore(*storeURL)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "shop:", err)
		return 1
	}
	if err := sound(store, *unsafe, log); err != nil {
		_, _ = fmt.Fprintln(stderr, "shop:", errors.Join(err, closeStore()))
		return 1
	}
	v := newService(store, closeStore, provider(*providerURL), log, idempotent.WithLease(*lease),
		idempotent.WithSuccessRetention(*retention), idempotent.WithFailureRetention(min(*retention, idempotent.DefaultFailureRetention)))
	if *play {
		return demo(stdout, v)
	}
	l, err := net.Listen("tcp", *addr)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "shop:", errors.Join(err, closeStore()))
		return 1
	}
	code := 0
	if flags.NFlag() == 0 && *storeURL == inMemory { // nobody has anything in mind for it
		code, err = show(untilSignal(), stdout, v, l, &level)
	} else {
		err = v.serve(untilSignal(), l)
	}
	if err != nil {
		log.Error("stopped", "err", err)
		return 1
	}
	log.Info("stopped, every outcome is recorded")
	return code
}

// openStore is all that changes between one process and many. The function it
// returns closes the store, and then what the store stands on. Without its store
// the shop could only refuse: a store that does not answer is an error at once.
func openStore(where string) (idempotent.Store, func() error, error) {
	ctx, cancel := context.WithTimeout(context.Background(), idempotent.DefaultStoreTimeout)
	defer cancel()
	store, closeStore, err := storeurl.Open(ctx, where)
	if err != nil {
		return nil, nil, fmt.Errorf("-store: %w", err)
	}
	return store, closeStore, nil
}

// service is the shop and what it needs to run and to stop.
type service struct {
	log        *slog.Logger
	store      idempotent.Store
	closeStore func() error
	guard      *idempotent.Guard
	shop       *shop
	server     *http.Server
}

func newService(store idempotent.Store, closeStore func() error, charge chargeFunc, log *slog.Logger, opts ...idempotent.Option) *service {
	opts = append(opts, idempotent.WithLogger(log), idempotent.WithObserver(logOutcomes(log)))
	guard := idempotent.New(store, opts...)
	v := &service{log: log, store: store, closeStore: closeStore, guard: guard, shop: &shop{charge: charge}}
	v.server = &http.Server{
		Handler:           v.operate(v.shop.handler(guard.Middleware(principal))),
		ReadHeaderTimeout: 5 * time.Second,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelError),
	}
	return v
}

// serve answers on l until ctx ends. Then it stops: the server first, so that
// running requests end; the guard, so that their outcomes are recorded; the
// store last, because the guard records in it.
func (v *service) serve(ctx context.Context, l net.Listener) error {
	v.log.Info("listening", "url", "http://"+l.Addr().String())
	v.log.Info("inspector", "url", inspectorURL(l))
	failed := make(chan error, 1)
	go func() { failed <- v.server.Serve(l) }()
	select {
	case err := <-failed:
		return errors.Join(err, v.closeStore())
	case <-ctx.Done():
	}
	v.log.Info("stopping")
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	shutdownErr := v.server.Shutdown(ctx)
	drainErr := v.guard.Drain(ctx)
	return errors.Join(shutdownErr, drainErr, v.closeStore())
}

// untilSignal returns a context that the first SIGINT or SIGTERM ends. The
// second one kills the process, as if nobody had asked for signals.
func untilSignal() context.Context {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx
}

// logOutcomes logs each execution and each replay. Observers are told of much
// more; metrics are counted here too. A store name holds the user and the
// client's key, and neither belongs into a log.
func logOutcomes(log *slog.Logger) idempotent.Observer {
	return idempotent.ObserverFunc(func(ctx context.Context, e idempotent.Event) {
		switch e.Kind {
		case idempotent.EventCompleted:
			log.InfoContext(ctx, "executed", "key", idempotent.LogKey(e.Key), "status", e.Status, "unknown", e.Unknown, "took", e.Took)
		case idempotent.EventReplayed:
			log.InfoContext(ctx, "replayed", "key", idempotent.LogKey(e.Key), "status", e.Status, "unknown", e.Unknown, "age", e.Age)
		}
	})
}
