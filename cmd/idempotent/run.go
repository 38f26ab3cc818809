package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/idempotent-go/idempotent"
)

// storeVariable is the environment variable that names the store where -store
// does not. It keeps a password out of the list of processes.
const storeVariable = "IDEMPOTENCY_STORE"

// silent is the logger of what the command says itself.
var silent = slog.New(slog.DiscardHandler)

// program is the command line with its surroundings passed in.
type program struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	env            func(string) string
	open           func(ctx context.Context, url string) (idempotent.Store, func() error, error)
	asks           bool // there is somebody to answer a question
	shows          bool // there is somebody to look at progress
}

// command is one word after the program's name.
type command struct {
	name    string
	args    string // what follows the name
	summary string // one line
	help    string
	setup   func(*flag.FlagSet) action // declares the flags
}

// action does what a command is for, once its flags have been parsed.
type action func(ctx context.Context, s *session) error

// commands lists them in the order of the help.
var commands = []command{getCommand, listCommand, watchCommand, resolveCommand, freeCommand, checkCommand, benchCommand, copyCommand}

// session is one call of the program.
type session struct {
	*program
	args    []string // that are no flags
	out     *bufio.Writer
	log     *slog.Logger
	url     string
	json    bool
	timeout time.Duration
	close   func() error
}

// run does what args say and returns the exit code. Ending ctx interrupts it.
func (p *program) run(ctx context.Context, args []string) int {
	s := &session{
		program: p,
		out:     bufio.NewWriter(p.stdout),
		log:     slog.New(slog.NewTextHandler(p.stderr, nil)),
		close:   func() error { return nil },
	}
	err := s.dispatch(ctx, args)
	err = errors.Join(err, s.close(), s.out.Flush())
	if err != nil {
		text := redact(s.url, err.Error())
		for _, arg := range args { // where a URL stands in the wrong place
			text = redact(arg, text)
		}
		fmt.Fprintln(p.stderr, "idempotent:", printable(strings.TrimPrefix(text, "idempotent: "), '\n', '\t'))
	}
	return exitCode(err)
}

func (s *session) dispatch(ctx context.Context, args []string) error {
	if len(args) == 0 {
		fmt.Fprint(s.stderr, overview())
		return usage("there is no command")
	}
	name, args := args[0], args[1:]
	switch name {
	case "help", "-h", "-help", "--help":
		if len(args) == 0 {
			fmt.Fprint(s.out, overview())
			return nil
		}
		name, args = args[0], []string{"-h"}
	}
	at := slices.IndexFunc(commands, func(c command) bool { return c.name == name })
	if at < 0 {
		return usage("there is no command %q; see idempotent help", name)
	}
	c := &commands[at]
	flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&s.url, "store", "", "`URL` of the store; without it, what "+storeVariable+" says")
	flags.BoolVar(&s.json, "json", false, "write JSON, one object a line")
	flags.DurationVar(&s.timeout, "timeout", 10*time.Second, "how long the store may take for each step")
	act := c.setup(flags)
	err := s.parse(flags, args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(s.out, c.text(flags))
		return nil
	case err != nil:
		return usage("%s: %v; see idempotent help %s", c.name, err, c.name)
	case s.timeout <= 0:
		return usage("-timeout is %v; it must be positive", s.timeout)
	}
	s.url = cmp.Or(s.url, s.env(storeVariable))
	return act(ctx, s)
}

// parse takes flags also behind arguments, as people write them. What follows
// "--" is no flag.
func (s *session) parse(flags *flag.FlagSet, args []string) error {
	var literal []string
	if i := slices.Index(args, "--"); i >= 0 {
		args, literal = args[:i], args[i+1:]
	}
	for {
		if err := flags.Parse(args); err != nil {
			return err
		}
		if flags.NArg() == 0 {
			s.args = append(s.args, literal...)
			return nil
		}
		s.args = append(s.args, flags.Arg(0))
		args = flags.Args()[1:]
	}
}

// connect opens the store of a command that looks at what others have stored.
func (s *session) connect(ctx context.Context) (idempotent.Store, error) {
	if strings.HasPrefix(strings.ToLower(s.url), "memory:") {
		return nil, usage("memory: is a new and empty store of this command alone: a store in memory can only be looked at by the program that holds it (its inspector), or with copy once it has ended")
	}
	return s.connectAny(ctx)
}

// connectAny opens the store; run closes it.
func (s *session) connectAny(ctx context.Context) (idempotent.Store, error) {
	if s.url == "" {
		return nil, usage("no store is named: give -store URL or set %s, to redis://…, postgres://… or another URL of idempotent help", storeVariable)
	}
	ctx, cancel := s.step(ctx)
	defer cancel()
	store, end, err := s.open(ctx, s.url)
	if errors.Is(err, idempotent.ErrInvalid) {
		return nil, usage("%v", err)
	}
	if err != nil {
		return nil, fmt.Errorf("the store cannot be opened: %w", err)
	}
	s.close = end
	return store, nil
}

// step bounds one step of the store.
func (s *session) step(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.timeout)
}

// load reads one entry. That there is none is an error here.
func (s *session) load(ctx context.Context, store idempotent.Store, key string) (idempotent.Entry, error) {
	ctx, cancel := s.step(ctx)
	defer cancel()
	e, found, err := store.Load(ctx, key)
	switch {
	case errors.Is(err, idempotent.ErrCorrupt):
		return e, fmt.Errorf("%w; repeats of this key are refused until free -force removes it", err)
	case err == nil && !found:
		return e, fail(exitNotFound, "no entry under %s: never claimed, freed, or past its retention", printable(key))
	}
	return e, err
}

// noArguments refuses arguments where a command has none.
func (s *session) noArguments() error {
	if len(s.args) > 0 {
		return usage("%q is no flag, and this command takes no arguments", s.args[0])
	}
	return nil
}

// confirm asks the operator, who may have said yes beforehand.
func (s *session) confirm(yes bool, question string) error {
	if yes {
		return nil
	}
	if !s.asks {
		return usage("there is no terminal to ask on; add -yes to go on without a question")
	}
	fmt.Fprintf(s.stderr, "%s [y/N] ", question)
	answer, err := bufio.NewReader(s.stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return fail(exitDeclined, "nothing was changed")
}

// writeJSON writes v as one line.
func (s *session) writeJSON(v any) error {
	e := json.NewEncoder(s.out)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// overview is the help without a command.
func overview() string {
	var b strings.Builder
	fmt.Fprint(&b, "idempotent looks at the keys of a store, and settles them, for people on call.\n\n"+
		"Usage: idempotent COMMAND [flags] [arguments]\n\n")
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, c := range commands {
		fmt.Fprintf(w, "  %s\t%s\n", c.name, c.summary)
	}
	fmt.Fprint(w, "  help [COMMAND]\tthis, or the flags of one command\n")
	_ = w.Flush()
	fmt.Fprint(&b, "\n", storeURLs, "\n", exitCodes)
	return b.String()
}

// text is the help of one command.
func (c *command) text(flags *flag.FlagSet) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "Usage: idempotent %s [flags] %s\n\n%s\nFlags:\n", c.name, c.args, c.help)
	flags.SetOutput(&b)
	flags.PrintDefaults()
	return b.String()
}
