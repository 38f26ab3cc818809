package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/idempotent-go/idempotent"
)

var watchCommand = command{
	name:    "watch",
	summary: "tell what changes, by listing again and again, until it is interrupted",
	help: `Changes are:
  new       a key was claimed, or claimed and settled between two looks
  finished  a running operation has an outcome
  unknown   an outcome became unknown: its process died, or said so
  resolved  an unknown outcome was settled
  taken     a key went from one owner to another
  corrupt   a record cannot be read any more
  gone      a key was freed, or is past its retention
What comes and goes between two looks is not seen. Every look lists all entries
under -prefix, so choose a longer interval for a large store. A look that fails
is told on stderr and made again. It ends with exit code 0 on SIGINT.
`,
	setup: setupWatch,
}

func setupWatch(flags *flag.FlagSet) action {
	interval := flags.Duration("interval", 2*time.Second, "how long to wait between two looks")
	prefix := flags.String("prefix", "", "only keys that begin with `text`")
	return func(ctx context.Context, s *session) error {
		if err := s.noArguments(); err != nil {
			return err
		}
		if *interval <= 0 {
			return usage("-interval is %v; it must be positive", *interval)
		}
		store, err := s.connect(ctx)
		if err != nil {
			return err
		}
		w := watcher{session: s, store: store, prefix: *prefix}
		return w.run(ctx, *interval)
	}
}

// seen is a key at one look.
type seen struct {
	state string
	entry idempotent.Entry // only Key, where the state is corrupt
}

// change is what became of a key between two looks.
type change struct {
	what, was string
	seen
}

// watcher compares each look with the one before.
type watcher struct {
	*session
	store  idempotent.Store
	prefix string
	known  map[string]seen
}

func (w *watcher) run(ctx context.Context, interval time.Duration) error {
	var err error
	w.known, err = w.look(ctx)
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return err
	}
	counts := map[string]int{}
	for _, k := range w.known {
		counts[k.state]++
	}
	fmt.Fprintf(w.stderr, "%d entries", len(w.known))
	for _, state := range states {
		if counts[state] > 0 {
			fmt.Fprintf(w.stderr, ", %d %s", counts[state], state)
		}
	}
	fmt.Fprintln(w.stderr, "; changes from now on:")
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now, err := w.look(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, idempotent.ErrClosed):
			return err // for ever
		case err != nil:
			fmt.Fprintln(w.stderr, "idempotent: this look failed:", printable(redact(w.url, err.Error())))
			continue
		}
		if err := w.write(changes(w.known, now), time.Now()); err != nil {
			return err
		}
		w.known = now
	}
}

// look lists all keys.
func (w *watcher) look(ctx context.Context) (map[string]seen, error) {
	now := map[string]seen{}
	err := w.pages(ctx, w.store, w.prefix, func(page idempotent.Page) (bool, error) {
		for _, e := range page.Entries {
			now[e.Key] = seen{stateOf(e), e}
		}
		for _, key := range page.Corrupt {
			now[key] = seen{stateCorrupt, idempotent.Entry{Key: key}}
		}
		return true, nil
	})
	return now, err
}

// changes returns what became of each key, in the order of keys.
func changes(before, now map[string]seen) []change {
	var all []change
	for _, key := range slices.Sorted(maps.Keys(now)) {
		was, known := before[key]
		is := now[key]
		if !known {
			all = append(all, change{"new", "", is})
		} else if what := became(was, is); what != "" {
			all = append(all, change{what, was.state, is})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(before)) {
		if _, still := now[key]; !still {
			all = append(all, change{"gone", before[key].state, before[key]})
		}
	}
	return all
}

// became names the way from one state to the next; "" where there was none.
func became(was, is seen) string {
	switch {
	case is.state == stateCorrupt:
		if was.state == stateCorrupt {
			return ""
		}
		return "corrupt"
	case was.entry.Owner != is.entry.Owner && was.state != stateCorrupt:
		if was.state == stateSuccess || was.state == stateFailed {
			return "new" // freed and claimed anew between the looks
		}
		return "taken"
	case was.state == is.state:
		return ""
	case is.state == stateUnknown:
		return "unknown"
	case was.state == stateUnknown:
		return "resolved"
	case was.state == statePending:
		return "finished"
	}
	return "new"
}

func (w *watcher) write(all []change, now time.Time) error {
	at := now.UTC().Truncate(time.Second)
	table := tabwriter.NewWriter(w.out, 10, 0, 2, ' ', 0)
	for _, c := range all {
		if w.json {
			if err := w.writeChange(c, at); err != nil {
				return err
			}
			continue
		}
		trace := "-"
		if c.entry.Trace != "" {
			trace = printable(c.entry.Trace)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", at.Format(time.TimeOnly), c.what, c.state, trace, printable(c.entry.Key))
	}
	return errors.Join(table.Flush(), w.out.Flush())
}

func (w *watcher) writeChange(c change, at time.Time) error {
	type head struct {
		Time   time.Time `json:"time"`
		Change string    `json:"change"`
		Was    string    `json:"was,omitempty"`
	}
	h := head{at, c.what, c.was}
	if c.state == stateCorrupt {
		return w.writeJSON(struct {
			head
			corruptView
		}{h, viewCorrupt(c.entry.Key)})
	}
	return w.writeJSON(struct {
		head
		entryView
	}{h, view(c.entry)})
}
