// Command cron runs a command at every tick, once, however many instances of it
// are started.
//
//	export IDEMPOTENCY_STORE=redis://127.0.0.1:6379/0
//	go run ./examples/cron -job report -every 1m -- date    on one machine
//	go run ./examples/cron -job report -every 1m -- date    on another one
//
// Both wake at every full minute, and one of them runs the command. The key is
// the name of the job with the time of the tick, which all instances work out
// alike; the command finds that time in $CRON_TICK. The instances must see one
// store: memory, the default, is for one instance alone, and forgets at its end
// which ticks have been run.
//
// What happens once is the start of the command. One that ends with an error,
// or whose instance dies, may have done half of its work, and its tick is not
// run again. While a command takes longer than a tick, its instance sleeps
// through the ticks in between, and they are left to the others.
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
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/storeurl"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal kills
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is main with its surroundings passed in. It returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("cron", flag.ContinueOnError)
	flags.SetOutput(stderr)
	job := flags.String("job", "", "`name` of the job, the same in all instances")
	every := flags.Duration("every", time.Minute, "time from one tick to the next; ticks are counted in UTC")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case *job == "" || *every < idempotent.MinDuration || flags.NArg() == 0:
		_, _ = fmt.Fprintln(stderr, "cron: it needs a -job, a positive -every and, after --, a command")
		return 2
	}

	store, closeStore, err := storeurl.Open(ctx, cmp.Or(os.Getenv("IDEMPOTENCY_STORE"), "memory:"))
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "cron: IDEMPOTENCY_STORE:", err)
		return 1
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))
	c := &cron{
		guard: idempotent.New(store, idempotent.WithLogger(log)),
		job:   *job, every: *every, log: log,
		command: func(tick string) *exec.Cmd {
			cmd := exec.Command(flags.Arg(0), flags.Args()[1:]...)
			cmd.Env = append(os.Environ(), "CRON_TICK="+tick)
			cmd.Stdout, cmd.Stderr = stdout, stderr
			return cmd
		},
	}
	c.serve(ctx)

	// A command that was running has ended, and the guard has recorded it.
	if err := closeStore(); err != nil {
		log.Error("close the store", "err", err)
		return 1
	}
	return 0
}

type cron struct {
	guard   *idempotent.Guard
	job     string
	every   time.Duration
	command func(tick string) *exec.Cmd
	log     *slog.Logger
}

// serve runs ticks until ctx ends.
func (c *cron) serve(ctx context.Context) {
	for tick := time.Now(); ; {
		// Truncate counts from the same instant everywhere. The tick is taken
		// from the plan, never from the clock at waking, which differs between
		// instances. One that wakes early must not run the same tick again:
		// that would only be a repeat, but a needless one.
		if now := time.Now(); now.After(tick) {
			tick = now
		}
		tick = tick.UTC().Truncate(c.every).Add(c.every)
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(tick)):
		}
		c.run(context.WithoutCancel(ctx), tick) // what has begun may end
	}
}

// run runs the command of one tick unless somebody else does or did.
func (c *cron) run(ctx context.Context, tick time.Time) {
	at := tick.Format(time.RFC3339Nano)
	log := c.log.With("job", c.job, "tick", at)
	ran := false
	err := c.guard.Do(ctx, idempotent.Key("cron", c.job, at), func(context.Context) error {
		ran = true
		cmd := c.command(at)
		if err := cmd.Start(); err != nil {
			// Nothing has happened: an instance that wakes later may run it.
			return fmt.Errorf("%w: %w", idempotent.ErrReleased, err)
		}
		return cmd.Wait() // from here on, an error says little of what was done
	})
	_, inFlight := errors.AsType[*idempotent.InFlightError](err)
	switch {
	case ran && err == nil:
		log.Info("ran")
	case ran:
		log.Error("failed", "err", err)
	case err == nil, inFlight, errors.Is(err, idempotent.ErrOutcomeUnknown):
		log.Info("left to another instance")
	default:
		log.Error("not run", "err", err) // above all, a store that is away
	}
}
