package main

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"github.com/idempotent-go/idempotent"
)

var freeCommand = command{
	name: "free", args: "-reason WHY " + keyArgs,
	summary: "free a key whose outcome is unknown, so that the next repeat runs it; -force: any key",
	help: keyHelp + `
A key whose outcome is unknown is released, as by resolve -as release with the
owner that it has now. Any other state is refused, unless -force removes the
entry as it is: of a running operation, which is not told and may finish beside
its own repeat; of a known outcome, which then happens again; or a record that
cannot be read. A line with the reason and the log key goes to stderr.
`,
	setup: setupFree,
}

func setupFree(flags *flag.FlagSet) action {
	var f settleFlags
	f.declare(flags)
	force := flags.Bool("force", false, "remove the entry whatever its state: the operation may run twice")
	return func(ctx context.Context, s *session) error {
		name, err := f.name(s.args)
		if err != nil {
			return err
		}
		store, err := s.connect(ctx)
		if err != nil {
			return err
		}
		if *force {
			return s.remove(ctx, store, name, f)
		}
		e, err := s.load(ctx, store, name)
		if err != nil {
			return err
		}
		switch state := stateOf(e); state {
		case stateUnknown:
		case statePending:
			return fail(exitInFlight, "an operation is running under this key; -force removes its claim, and it may run twice")
		default:
			return fail(exitConflict, "the outcome is known (%s) and answers repeats; -force removes it, and the operation runs again", state)
		}
		if err := s.confirm(f.yes, settleQuestion(e, "release")); err != nil {
			return err
		}
		if err := s.resolve(ctx, store, e, e.Owner, idempotent.ClassRelease, ""); err != nil {
			return err
		}
		s.settled("freed", e, stateUnknown, f.reason)
		return nil
	}
}

// remove deletes the entry of key, whatever it is.
func (s *session) remove(ctx context.Context, store idempotent.Store, key string, f settleFlags) error {
	e, err := s.load(ctx, store, key)
	corrupt := errors.Is(err, idempotent.ErrCorrupt) || errors.Is(err, idempotent.ErrNewerFormat)
	if err != nil && !corrupt {
		return err
	}
	was, warning := stateOf(e), "its operation will run again"
	switch {
	case corrupt:
		e, was, warning = idempotent.Entry{Key: key}, stateCorrupt, "whether its operation has happened is not known, and it will run again"
	case was == statePending:
		warning = "its operation is RUNNING, is not told, and may run twice"
	case was == stateUnknown:
		warning = "its operation may have happened, and will run again"
	}
	fmt.Fprintf(s.stderr, "warning: the entry is %s: %s\n", was, warning)
	if err := s.confirm(f.yes, "Remove "+printable(key)+"?"); err != nil {
		return err
	}
	ctx, cancel := s.step(ctx)
	defer cancel()
	if err := idempotent.Delete(ctx, store, key); err != nil {
		return err
	}
	s.settled("removed by force", e, was, f.reason)
	return nil
}
