package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/idempotent-go/idempotent"
)

var listCommand = command{
	name:    "list",
	summary: "list entries, all of them or those in a state, of an age, under a prefix",
	help: `The order is the store's. The store goes on meanwhile: an entry that comes or
goes may be missing, and one may be listed twice. AGE counts since the entry is
in its state, LEFT is what is left of its lease or retention; both by this
machine's clock. A state is pending, success, failed, unknown (to be settled
with resolve) or corrupt (a record that cannot be read, which free -force
removes).
`,
	setup: setupList,
}

// filter says which entries of a listing are meant.
type filter struct {
	prefix, state, log string
	older              time.Duration
}

func (f *filter) declare(flags *flag.FlagSet) {
	flags.StringVar(&f.prefix, "prefix", "", "only keys that begin with `text`")
	flags.StringVar(&f.state, "state", "", "only entries in this `state`: "+strings.Join(states, ", "))
	flags.StringVar(&f.log, "log", "", "only the entry that log lines call `key`")
	flags.DurationVar(&f.older, "older", 0, "only entries that have been in their state for longer than this")
}

func (f *filter) validate() error {
	switch {
	case f.state != "" && !slices.Contains(states, f.state):
		return usage("-state %q is none; it is one of %s", f.state, strings.Join(states, ", "))
	case f.older < 0:
		return usage("-older is %v; it must not be negative", f.older)
	}
	return nil
}

func (f *filter) matches(e idempotent.Entry, now time.Time) bool {
	return (f.state == "" || f.state == stateOf(e)) &&
		(f.log == "" || f.log == idempotent.LogKey(e.Key)) &&
		(f.older == 0 || now.Sub(e.Timestamp) > f.older)
}

// matchesCorrupt is matches for a record of which only the key is known.
func (f *filter) matchesCorrupt(key string) bool {
	return (f.state == "" || f.state == stateCorrupt) && (f.log == "" || f.log == idempotent.LogKey(key)) && f.older == 0
}

func setupList(flags *flag.FlagSet) action {
	var f filter
	f.declare(flags)
	limit := flags.Int("limit", 0, "stop after this `number` of entries; 0: all")
	always := flags.Bool("progress", false, "tell how far it is, also where stderr is no terminal")
	return func(ctx context.Context, s *session) error {
		if err := errors.Join(s.noArguments(), f.validate()); err != nil {
			return err
		}
		if *limit < 0 {
			return usage("-limit is %d; it must not be negative", *limit)
		}
		store, err := s.connect(ctx)
		if err != nil {
			return err
		}
		l := lister{session: s, filter: f, limit: *limit, progress: s.newProgress(*always)}
		return l.run(ctx, store)
	}
}

// pages calls f with each page of a listing, until f returns false.
func (s *session) pages(ctx context.Context, store idempotent.Store, prefix string, f func(idempotent.Page) (bool, error)) error {
	q := idempotent.ListQuery{Prefix: prefix, Limit: idempotent.MaxListLimit}
	for {
		page, err := s.page(ctx, store, q)
		if err != nil {
			return err
		}
		if on, err := f(page); err != nil || !on || page.Next == "" {
			return err
		}
		q.Cursor = page.Next
	}
}

func (s *session) page(ctx context.Context, store idempotent.Store, q idempotent.ListQuery) (idempotent.Page, error) {
	ctx, cancel := s.step(ctx)
	defer cancel()
	page, err := idempotent.List(ctx, store, q)
	if errors.Is(err, errors.ErrUnsupported) && len(idempotent.Stores(store)) > 1 {
		err = usage("a move is of two stores, each of which lists its own entries: name one of them by -store")
	}
	return page, err
}

// lister writes a listing page by page, so that it may be of any length.
type lister struct {
	*session
	filter   filter
	limit    int
	progress *progress

	seen, shown int
}

func (l *lister) run(ctx context.Context, store idempotent.Store) error {
	err := l.pages(ctx, store, l.filter.prefix, func(page idempotent.Page) (bool, error) {
		err := l.write(page)
		l.progress.tell("%d entries seen, %d shown", l.seen, l.shown)
		return !l.full(), err
	})
	l.progress.end()
	if err == nil && !l.json && l.shown == 0 {
		fmt.Fprintf(l.stderr, "no such entry among %d\n", l.seen)
	}
	return err
}

func (l *lister) full() bool { return l.limit > 0 && l.shown == l.limit }

// write writes what is meant of a page.
func (l *lister) write(page idempotent.Page) error {
	l.progress.end()
	now := time.Now()
	w := tabwriter.NewWriter(l.out, 10, 0, 2, ' ', 0)
	row := func(cells ...string) {
		if l.shown == 1 {
			fmt.Fprintln(w, "STATE\tAGE\tLEFT\tTRACE\tKEY")
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	for _, e := range page.Entries {
		l.seen++
		if l.full() || !l.filter.matches(e, now) {
			continue
		}
		l.shown++
		if !l.json {
			trace := "-"
			if e.Trace != "" {
				trace = printable(e.Trace)
			}
			row(stateOf(e), duration(now.Sub(e.Timestamp)), duration(e.Expires.Sub(now)), trace, printable(e.Key))
		} else if err := l.writeJSON(view(e)); err != nil {
			return err
		}
	}
	for _, key := range page.Corrupt {
		l.seen++
		if l.full() || !l.filter.matchesCorrupt(key) {
			continue
		}
		l.shown++
		if !l.json {
			row(stateCorrupt, "-", "-", "-", printable(key))
		} else if err := l.writeJSON(viewCorrupt(key)); err != nil {
			return err
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return l.out.Flush()
}
