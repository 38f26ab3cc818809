// Command report measures this library against its targets, its limits and
// its peers, and writes docs/benchmarks.md with charts. See -help.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/idempotent-go/idempotent/internal/redistest"
)

const usage = `Usage: go run ./benchmarks/cmd/report [flags]

Measures every row of the table of targets in interleaved rounds, against a
redis-server that it starts on a free port and ends; prints the table; and
writes benchmarks.md and charts/*.svg into the directory of -out. It takes
ten to fifteen minutes and wants an idle machine.

Exit status: 0 when every row meets its target; 1 when one falls short, was not
measured or failed to run; 2 for wrong flags. With -quick a row that falls short
is no failure, since the sizes are too small to tell: the status is 1 only when
something failed to run or could not be measured.

`

// options are the flags.
type options struct {
	rounds int
	quick  bool
	only   []string
	out    string // "": write nothing
	redis  string
}

func main() {
	opts, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second interrupt ends the process where it stands
	status, err := run(ctx, opts, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
	}
	os.Exit(status)
}

// parse reads the flags, and checks what can be checked before a quarter
// of an hour has passed.
func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var only string
	f := flag.NewFlagSet("report", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprint(stderr, usage)
		f.PrintDefaults()
	}
	f.IntVar(&o.rounds, "rounds", 0, "rounds of each comparison; 0 means 5, or 2 with -quick")
	f.BoolVar(&o.quick, "quick", false, "small sizes, under a minute, to see that the command works; writes nothing unless -out is given")
	f.StringVar(&only, "only", "", "comma-separated rows and sections to run, such as P7,P8,waiters (sections: "+strings.Join(sectionNames(), ", ")+"); writes nothing unless -out is given")
	f.StringVar(&o.out, "out", "", "directory for benchmarks.md and charts (default: docs of this repository)")
	f.StringVar(&o.redis, "redis", "", "path of redis-server (default: the one that is installed)")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("%q is no flag; see -help", f.Arg(0))
	}
	if o.rounds < 0 {
		return o, fmt.Errorf("-rounds %d: it must be positive", o.rounds)
	}
	if o.rounds == 0 {
		o.rounds = 5
		if o.quick {
			o.rounds = 2
		}
	}
	for name := range strings.SplitSeq(only, ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		known := func(n string) bool { return strings.EqualFold(n, name) }
		if !slices.ContainsFunc(append(rowNames(), sectionNames()...), known) {
			return o, fmt.Errorf("-only %s: there is no such row or section; rows are P1 to P17, sections %s", name, strings.Join(sectionNames(), ", "))
		}
		o.only = append(o.only, name)
	}
	if o.out == "" && !o.quick && o.only == nil {
		if !isRepository(".") {
			return o, errors.New("the working directory is not the root of the repository: run it there, or give -out")
		}
		o.out = "docs"
	}
	return o, nil
}

// isRepository reports whether dir is the root of this library's repository.
func isRepository(dir string) bool {
	data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	return err == nil && strings.HasPrefix(string(data), "module github.com/idempotent-go/idempotent\n")
}

func rowNames() []string {
	var names []string
	for _, r := range rows() {
		names = append(names, r.id)
	}
	return names
}

const peersSection = "peers"

func sectionNames() []string {
	names := []string{peersSection}
	for _, s := range sections() {
		names = append(names, s.id)
	}
	return names
}

// wants reports whether a row or section is to run.
func (o options) wants(name string) bool {
	return o.only == nil || slices.ContainsFunc(o.only, func(n string) bool { return strings.EqualFold(n, name) })
}

// run measures, prints and writes, and returns the exit status.
func run(ctx context.Context, o options, stdout, stderr io.Writer) (status int, err error) {
	began := time.Now()
	b := &bench{ctx: ctx, rounds: o.rounds, quick: o.quick, progress: func(format string, args ...any) {
		fmt.Fprintf(stderr, "%6.1fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}}
	version := ""
	b.server, err = startServer(o.redis)
	switch {
	case errors.Is(err, exec.ErrNotFound) && o.redis == "":
		b.progress("redis-server is not installed: what needs it is not measured")
	case err != nil:
		return 1, err
	default:
		defer b.server.Stop()
		info, err := b.server.Do("INFO", "server")
		if err != nil {
			return 1, err
		}
		version = serverVersion(info)
	}
	rep := report{machine: thisMachine(version), rounds: o.rounds, quick: o.quick}
	sectionFailed := false
	for _, r := range rows() {
		if !o.wants(r.id) || ctx.Err() != nil {
			continue
		}
		b.progress("%s: %s", r.id, r.what)
		rep.results = append(rep.results, measureRow(b, r))
	}
	if o.wants(peersSection) && ctx.Err() == nil {
		if rep.peers, err = peers(b); err != nil {
			sectionFailed = true
			b.progress("peers failed: %v", err)
		}
	}
	for _, s := range sections() {
		if !o.wants(s.id) || ctx.Err() != nil {
			continue
		}
		if s.redis && b.server == nil {
			b.progress("%s: not measured without a server", s.id)
			continue
		}
		b.progress("%s", s.id)
		figures, err := s.measure(b)
		if err != nil {
			sectionFailed = true
			b.progress("%s failed: %v", s.id, err)
			continue
		}
		rep.figures = append(rep.figures, figures...)
	}
	if err := ctx.Err(); err != nil {
		return 1, errors.New("interrupted")
	}
	b.progress("done")
	rep.writeTable(stdout)
	if o.out != "" {
		if err := rep.save(o.out); err != nil {
			return 1, err
		}
	}
	if sectionFailed {
		return 1, nil
	}
	return rep.status(), nil
}

// startServer starts the server at path, or the installed one.
func startServer(path string) (*redistest.Server, error) {
	name := path
	if name == "" {
		name = "redis-server"
	}
	if _, err := exec.LookPath(name); err != nil {
		return nil, fmt.Errorf("-redis: %w", err)
	}
	return redistest.Launch(path)
}

// measureRow measures a row, unless what it needs is missing.
func measureRow(b *bench, r row) result {
	if r.redis && b.server == nil {
		return judge(r, outcome{notes: []string{"there was no redis-server"}}, nil)
	}
	o, err := r.measure(b)
	if err != nil {
		b.progress("%s failed: %v", r.id, err)
	}
	res := judge(r, o, err)
	b.progress("%s: %s %s", r.id, res.verdict, res.figure())
	return res
}

// save writes the document and its charts.
func (r report) save(dir string) error {
	charts := filepath.Join(dir, "charts")
	if err := os.MkdirAll(charts, 0o755); err != nil {
		return err
	}
	for _, f := range r.figures {
		if err := f.draw(charts); err != nil {
			return err
		}
	}
	var document strings.Builder
	r.writeDocument(&document)
	return os.WriteFile(filepath.Join(dir, "benchmarks.md"), []byte(document.String()), 0o644)
}
