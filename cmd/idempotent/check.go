package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/redisstore"
	"github.com/idempotent-go/idempotent/sqlstore"
)

var checkCommand = command{
	name:    "check",
	summary: "tell what breaks the promise: settings, permissions, a missing table; and try every step",
	help: `It asks whether the store answers, asks a Redis for the settings, permissions and
roles that break the promise (see redisstore.Store.Check) and a database for its
table, and takes every step of an operation once, under a throw-away key that is
removed again; of a move it checks both stores. Each finding says what comes of it and what to do. Exit code 6
says that there are findings.
`,
	setup: setupCheck,
}

// trialTime is how long the throw-away entry stays where the command dies.
const trialTime = 10 * time.Second

// finding is one thing that is wrong, in the words of package redisstore.
type finding struct {
	Setting string `json:"setting"`
	Value   string `json:"value"`
	Breaks  string `json:"breaks"`
	Fix     string `json:"fix"`
}

func setupCheck(*flag.FlagSet) action {
	return func(ctx context.Context, s *session) error {
		if err := s.noArguments(); err != nil {
			return err
		}
		store, err := s.connectAny(ctx)
		if err != nil {
			return err
		}
		found, err := s.checkAll(ctx, idempotent.Stores(store))
		if err != nil {
			return err
		}
		if err := s.writeFindings(found); err != nil {
			return err
		}
		if len(found) > 0 {
			return fail(exitFindings, "%d found", len(found))
		}
		return nil
	}
}

// checkAll returns what is wrong with a store, or with both of a move.
func (s *session) checkAll(ctx context.Context, stores []idempotent.Store) ([]finding, error) {
	if len(stores) == 1 {
		return s.check(ctx, stores[0])
	}
	var all []finding
	for i, name := range []string{"old", "new"} {
		found, err := s.check(ctx, stores[i])
		if err != nil {
			return nil, fmt.Errorf("the %s store: %w", name, err)
		}
		for _, f := range found {
			f.Setting = name + " store, " + f.Setting
			all = append(all, f)
		}
	}
	return all, nil
}

// check returns what is wrong with a store. Where a part fails, the next ones
// would fail too and say less.
func (s *session) check(ctx context.Context, store idempotent.Store) ([]finding, error) {
	var found []finding
	switch store := store.(type) {
	case *redisstore.Store:
		ctx, cancel := s.step(ctx)
		defer cancel()
		list, err := store.Check(ctx)
		if err != nil {
			return nil, err
		}
		for _, f := range list {
			found = append(found, finding(f))
		}
	case *sqlstore.Store:
		ctx, cancel := s.step(ctx)
		defer cancel()
		// The database has answered when it was opened.
		if err := store.Ping(ctx); err != nil {
			return append(found, finding{
				Setting: "table", Value: err.Error(),
				Breaks: "every keyed operation is refused",
				Fix:    "have the program call Migrate, or make the table from the files in sqlstore/schema; give the user SELECT, INSERT, UPDATE and DELETE on it",
			}), nil
		}
	}
	if f, bad := s.rehearse(ctx, store); bad {
		found = append(found, f)
	}
	return found, nil
}

// rehearse takes the steps of an operation under a throw-away key.
func (s *session) rehearse(ctx context.Context, store idempotent.Store) (finding, bool) {
	key, owner := "idempotent:check:"+rand.Text(), rand.Text()
	const result = "checked"
	steps := []struct {
		name string
		take func(context.Context) error
	}{
		{"ping", func(ctx context.Context) error { return idempotent.Ping(ctx, store) }},
		{"claim", func(ctx context.Context) error {
			_, claimed, err := store.Claim(ctx, key, idempotent.Claim{Owner: owner, Lease: trialTime, Keep: trialTime})
			return orElse(err, claimed, "a key that nobody had was not given out")
		}},
		{"second claim", func(ctx context.Context) error {
			_, claimed, err := store.Claim(ctx, key, idempotent.Claim{Owner: rand.Text(), Lease: trialTime, Keep: trialTime})
			return orElse(err, !claimed, "a key was given out twice")
		}},
		{"renew", func(ctx context.Context) error { return store.Renew(ctx, key, owner, trialTime) }},
		{"complete", func(ctx context.Context) error {
			return store.Complete(ctx, key, owner, idempotent.Outcome{Status: idempotent.Success, Result: result, Retention: trialTime})
		}},
		{"load", func(ctx context.Context) error {
			e, _, err := store.Load(ctx, key)
			return orElse(err, e.Status == idempotent.Success && e.Result == result, "what was recorded did not come back")
		}},
		{"delete", func(ctx context.Context) error {
			if err := idempotent.Delete(ctx, store, key); !errors.Is(err, errors.ErrUnsupported) {
				return err
			}
			return nil // it goes by itself
		}},
	}
	for _, step := range steps {
		ctx, cancel := s.step(ctx)
		err := step.take(ctx)
		cancel()
		if err == nil {
			continue
		}
		fix := "mend what the error names; the steps before this one work"
		switch {
		case errors.Is(err, idempotent.ErrFull):
			fix = "the store is full: make room or raise its limit"
		case errors.Is(err, context.DeadlineExceeded):
			fix = "the store is too slow or stuck: look at its load, or give -timeout more than " + s.timeout.String()
		}
		return finding{
			Setting: "step " + step.name, Value: err.Error(),
			Breaks: "keyed operations are refused, or their outcome is not recorded", Fix: fix,
		}, true
	}
	return finding{}, false
}

// orElse is err, or the text as an error where a step did not do what it must.
func orElse(err error, done bool, text string) error {
	if err == nil && !done {
		err = errors.New(text)
	}
	return err
}

func (s *session) writeFindings(found []finding) error {
	for _, f := range found {
		f.Value = printable(redact(s.url, f.Value))
		if s.json {
			if err := s.writeJSON(f); err != nil {
				return err
			}
			continue
		}
		fmt.Fprintf(s.out, "%s: %s\n  breaks  %s\n  fix     %s\n", f.Setting, f.Value, f.Breaks, f.Fix)
	}
	if len(found) == 0 && !s.json {
		fmt.Fprintln(s.out, "ok: the store answers, every step works, and nothing that can be read breaks the promise")
	}
	return nil
}
