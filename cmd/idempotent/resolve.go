package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/idempotent-go/idempotent"
)

var resolveCommand = command{
	name: "resolve", args: "-as success|failure|release -owner OWNER -reason WHY " + keyArgs,
	summary: "settle an unknown outcome, once somebody knows what became of it",
	help: keyHelp + `
First find out, in the system that the operation was about, what became of it:
  -as success   it happened: repeats get the result
  -as failure   it definitely did not happen: repeats get the refusal
  -as release   it did not happen: the next repeat runs it
-owner is the entry's as get shows it, so that a newer execution is never
settled by mistake. An abandoned claim may be settled only when its process is
known to be dead: one that still runs is not told.

Without a result, repeats of a success are answered 409 result-unavailable. For
HTTP the answer can be given with -status, -body-file and -content-type. A line
with the reason and the log key goes to stderr.
`,
	setup: setupResolve,
}

// answerFlags make the answer that repeats get.
type answerFlags struct {
	status            int
	body, contentType string
}

func (a *answerFlags) declare(flags *flag.FlagSet) {
	flags.IntVar(&a.status, "status", 0, "answer repeats with this HTTP `status`")
	flags.StringVar(&a.body, "body-file", "", "with -status: `file` with the body of the answer")
	flags.StringVar(&a.contentType, "content-type", "", "with -body-file: its media `type`; guessed where it is not given")
}

// result returns what to record.
func (a *answerFlags) result() (string, error) {
	switch {
	case a.body != "" && a.status == 0:
		return "", usage("-body-file goes with -status")
	case a.contentType != "" && a.body == "":
		return "", usage("-content-type goes with -body-file")
	case a.status == 0:
		return "", nil
	}
	var body []byte
	h := http.Header{}
	if a.body != "" {
		var err error
		if body, err = os.ReadFile(a.body); err != nil {
			return "", usage("-body-file: %v", err)
		}
	}
	if a.contentType != "" {
		h.Set("Content-Type", a.contentType)
	}
	result, err := idempotent.EncodeResponse(a.status, h, body)
	if err != nil {
		return "", usage("%v", err)
	}
	return result, nil
}

func setupResolve(flags *flag.FlagSet) action {
	var f settleFlags
	f.declare(flags)
	var answer answerFlags
	answer.declare(flags)
	as := flags.String("as", "", "`outcome`: success, failure or release")
	owner := flags.String("owner", "", "`owner` of the entry, as get shows it")
	retention := flags.Duration("retention", 0, "how long to keep the outcome; 0: 24h a success, 2h a failure")
	return func(ctx context.Context, s *session) error {
		name, err := f.name(s.args)
		if err != nil {
			return err
		}
		class, ok := map[string]idempotent.Class{
			"success": idempotent.ClassSuccess, "failure": idempotent.ClassFailure, "release": idempotent.ClassRelease,
		}[*as]
		switch {
		case !ok:
			return usage("-as is %q; it is success, failure or release", *as)
		case *owner == "":
			return usage("-owner is missing: get shows it")
		case class == idempotent.ClassRelease && answer != answerFlags{}:
			return usage("-as release records no answer")
		}
		result, err := answer.result()
		if err != nil {
			return err
		}
		options, err := retentions(*retention)
		if err != nil {
			return err
		}
		store, err := s.connect(ctx)
		if err != nil {
			return err
		}
		e, err := s.load(ctx, store, name)
		if err != nil {
			return err
		}
		if stateOf(e) == stateUnknown && e.Owner == *owner { // otherwise Resolve refuses
			if err := s.confirm(f.yes, settleQuestion(e, *as)); err != nil {
				return err
			}
		}
		if err := s.resolve(ctx, store, e, *owner, class, result, options...); err != nil {
			return err
		}
		s.settled("resolved as "+*as, e, stateOf(e), f.reason)
		return nil
	}
}

func retentions(d time.Duration) ([]idempotent.Option, error) {
	switch {
	case d == 0:
		return nil, nil
	case d < idempotent.MinDuration:
		return nil, usage("-retention is %v; it must be at least %v", d, idempotent.MinDuration)
	}
	return []idempotent.Option{idempotent.WithSuccessRetention(d), idempotent.WithFailureRetention(d)}, nil
}

func settleQuestion(e idempotent.Entry, as string) string {
	text := fmt.Sprintf("The outcome of %s is unknown since %s ago. ", printable(e.Key), duration(time.Since(e.Timestamp)))
	if e.Abandoned() {
		text = fmt.Sprintf("%s was abandoned %s ago: settle it only if the process that ran it is dead. ", printable(e.Key), duration(time.Since(e.Timestamp)))
	}
	switch as {
	case "release":
		return text + "Release it, so that the next repeat RUNS it?"
	}
	return text + "Settle it as " + as + "?"
}

// resolve settles e, of which owner is the one that the operator has seen.
func (s *session) resolve(ctx context.Context, store idempotent.Store, e idempotent.Entry, owner string, c idempotent.Class, result string, opts ...idempotent.Option) error {
	opts = append(opts, idempotent.WithStoreTimeout(s.timeout), idempotent.WithLogger(silent))
	err := idempotent.New(store, opts...).Resolve(ctx, e.Key, owner, c, result)
	var running *idempotent.InFlightError
	switch {
	case errors.As(err, &running):
		return fmt.Errorf("%w; its owner still renews its lease: wait for it, or see free -force", err)
	case errors.Is(err, idempotent.ErrLost) && e.Owner != owner:
		return fmt.Errorf("%w: the entry's owner is %s by now; look at it again with get", err, printable(e.Owner))
	case errors.Is(err, idempotent.ErrLost):
		return fmt.Errorf("%w: the entry has a known outcome (%s) or has changed; look at it again with get", err, stateOf(e))
	}
	return err
}
