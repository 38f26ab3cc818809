package main

import (
	"cmp"
	"flag"
	"log/slog"
	"os"
	"strconv"

	"github.com/idempotent-go/idempotent"
)

// settleFlags are those of the commands that change an entry.
type settleFlags struct {
	key    keyFlags
	reason string
	yes    bool
}

func (f *settleFlags) declare(flags *flag.FlagSet) {
	f.key.declare(flags)
	flags.StringVar(&f.reason, "reason", "", "`why`, for the log; it must be given")
	flags.BoolVar(&f.yes, "yes", false, "do not ask")
}

// name returns the key that is meant.
func (f *settleFlags) name(args []string) (string, error) {
	name, err := f.key.name(args)
	if err == nil && f.reason == "" {
		err = usage("-reason is missing: say why, for those who read the log")
	}
	return name, err
}

// settled logs what was done to an entry that was in a state, and by whom.
func (s *session) settled(what string, e idempotent.Entry, was, reason string) {
	by := cmp.Or(s.env("SUDO_USER"), s.env("USER"), s.env("USERNAME"))
	if by == "" { // as in many a container
		by = "uid " + strconv.Itoa(os.Getuid())
	}
	s.log.Warn("idempotent: "+what, slog.String("key", idempotent.LogKey(e.Key)), slog.String("was", was),
		slog.String("owner", e.Owner), slog.String("reason", reason), slog.String("by", by))
}
