package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/redisstore"
)

// sound returns an error that tells an operator what to do where the store is a
// Redis that does not keep the promise, or, during a move, one of two. With allow
// it is logged instead.
func sound(store idempotent.Store, allow bool, log *slog.Logger) error {
	stores := idempotent.Stores(store)
	names := []string{"this"}
	if len(stores) > 1 {
		names = []string{"the old", "the new"}
	}
	var text strings.Builder
	for i, s := range stores {
		findings, err := check(s)
		if err != nil {
			return fmt.Errorf("-store: %w", err)
		}
		if allow {
			for _, f := range findings {
				log.Warn("unsafe Redis", "which", names[i], "setting", f.Setting, "value", f.Value, "breaks", f.Breaks, "fix", f.Fix)
			}
			continue
		}
		if len(findings) > 0 {
			fmt.Fprintf(&text, "-store: %s Redis does not keep the promise that nothing is paid twice:\n", names[i])
		}
		for _, f := range findings {
			fmt.Fprintf(&text, "\n  %s: %s\n    breaks: %s\n    fix:    %s\n", f.Setting, f.Value, f.Breaks, f.Fix)
		}
	}
	if text.Len() == 0 {
		return nil
	}
	text.WriteString("\nChange that and start again, or start with -unsafe-redis to run on it as it is.")
	return errors.New(text.String())
}

// check returns what is wrong with a Redis.
func check(store idempotent.Store) ([]redisstore.Finding, error) {
	s, ok := store.(*redisstore.Store)
	if !ok {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*idempotent.DefaultStoreTimeout)
	defer cancel()
	return s.Check(ctx)
}
