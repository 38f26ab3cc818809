package main

import (
	"context"
	"flag"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/idempotent-go/idempotent"
)

var getCommand = command{
	name: "get", args: keyArgs,
	summary: "show one entry: its state, owner, ages, and with -result what was recorded",
	help: keyHelp + `
Ages and what is left are counted by this machine's clock, while the instants
are the store's. Results may hold personal data: they are shown with -result
only, and headers that may carry secrets with -secrets only.
`,
	setup: setupGet,
}

func setupGet(flags *flag.FlagSet) action {
	var key keyFlags
	key.declare(flags)
	var r resultFlags
	r.declare(flags)
	return func(ctx context.Context, s *session) error {
		name, err := key.name(s.args)
		if err != nil {
			return err
		}
		if err := r.validate(); err != nil {
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
		var result *resultView
		if r.show {
			shown := r.view(e)
			result = &shown
		}
		if s.json {
			return s.writeJSON(struct {
				entryView
				Abandoned   bool        `json:"abandoned,omitempty"`
				ResultBytes int         `json:"result_bytes"`
				Result      *resultView `json:"result,omitempty"`
			}{view(e), e.Abandoned(), len(e.Result), result})
		}
		s.writeEntry(e, time.Now())
		if result != nil {
			s.writeResult(*result)
		}
		return nil
	}
}

// writeEntry writes what is known of e, a line for each thing.
func (s *session) writeEntry(e idempotent.Entry, now time.Time) {
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	line := func(name, text string) { fmt.Fprintf(w, "%s\t%s\n", name, text) }
	instant := func(t time.Time) string {
		text := t.UTC().Format(time.RFC3339)
		if d := now.Sub(t); d >= 0 {
			return text + ", " + duration(d) + " ago"
		}
		return text + ", in " + duration(t.Sub(now))
	}
	state := stateOf(e)
	line("key", printable(e.Key))
	line("log key", idempotent.LogKey(e.Key))
	switch {
	case e.Abandoned():
		line("state", "unknown: abandoned, its lease ended without an outcome")
	case state == stateUnknown:
		line("state", "unknown: the operation may have happened")
	default:
		line("state", state)
	}
	line("owner", printable(e.Owner))
	line("claimed", instant(e.Claimed))
	if state == statePending {
		line("lease left", duration(e.Expires.Sub(now)))
	} else {
		line("since", instant(e.Timestamp))
		line("expires", instant(e.Expires))
	}
	if e.Trace != "" {
		line("trace", printable(e.Trace))
	}
	if e.Fingerprint != "" {
		line("fingerprint", printable(e.Fingerprint))
	}
	line("fence", fmt.Sprint(e.Fence))
	line("result", fmt.Sprintf("%d bytes as recorded", len(e.Result)))
	if state == stateUnknown {
		line("to settle", "find out what became of it, then: idempotent resolve -as success|failure|release -owner "+printable(e.Owner)+" -reason WHY KEY")
	}
	_ = w.Flush()
}
