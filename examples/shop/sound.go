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
// Redis that does not keep the promise. With allow it is logged instead.
func sound(store idempotent.Store, allow bool, log *slog.Logger) error {
	s, ok := store.(*redisstore.Store)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*idempotent.DefaultStoreTimeout)
	defer cancel()
	findings, err := s.Check(ctx)
	if err != nil {
		return fmt.Errorf("-store: %w", err)
	}
	if allow {
		for _, f := range findings {
			log.Warn("unsafe Redis", "setting", f.Setting, "value", f.Value, "breaks", f.Breaks, "fix", f.Fix)
		}
		return nil
	}
	if len(findings) == 0 {
		return nil
	}
	var text strings.Builder
	text.WriteString("-store: this Redis does not keep the promise that nothing is paid twice:\n")
	for _, f := range findings {
		fmt.Fprintf(&text, "\n  %s: %s\n    breaks: %s\n    fix:    %s\n", f.Setting, f.Value, f.Breaks, f.Fix)
	}
	text.WriteString("\nChange that and start again, or start with -unsafe-redis to run on it as it is.")
	return errors.New(text.String())
}
