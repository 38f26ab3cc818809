package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/idempotent-go/idempotent/benchmarks/measure"
)

// report is all that was measured.
type report struct {
	machine machine
	rounds  int
	quick   bool
	results []result
	peers   []compared
	figures []figure
}

// short reports whether a row falls short, was not measured or failed.
func (r report) short() bool { return r.any(met) }

// failed reports whether a row could not be measured.
func (r report) failed() bool { return r.any(met, short) }

// status is the exit status: 1 where a row falls short, unless the run was too
// quick to tell, and where one was not measured.
func (r report) status() int {
	if r.failed() || r.short() && !r.quick {
		return 1
	}
	return 0
}

// any reports whether a row has another verdict than those given.
func (r report) any(but ...verdict) bool {
	for _, res := range r.results {
		fine := false
		for _, v := range but {
			fine = fine || res.verdict == v
		}
		if !fine {
			return true
		}
	}
	return false
}

// writeTable writes the table of targets.
func (r report) writeTable(w io.Writer) {
	fmt.Fprintln(w, "| # | what | target | figure | verdict |")
	fmt.Fprintln(w, "|---|---|---|---|---|")
	for _, res := range r.results {
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s |\n", res.id, cell(res.what), cell(res.target), cell(res.figure()), res.verdict)
	}
}

// cell makes a text fit into a cell.
func cell(s string) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(s, "|", "\\|")), " ")
}

// writeDocument writes the whole report as Markdown.
func (r report) writeDocument(w io.Writer) {
	fmt.Fprintf(w, `# Benchmarks

Written by `+"`go run ./benchmarks/cmd/report`"+`, which starts its own Redis server, takes ten to fifteen minutes and exits with 1
where a row falls short. All sides of a comparison run one after the other in each of %d rounds, every second round in reverse, and
medians count; a ratio is that of each round. Compare ratios, not times: those hold for one machine.

`, r.rounds)
	if r.quick {
		fmt.Fprint(w, "**A quick run with small sizes: it shows that the command works, nothing else.**\n\n")
	}
	r.machine.write(w)
	fmt.Fprint(w, "## Targets\n\nStore names have about 90 bytes, answers 512. \"Bare\" is the same work without the library.\n\n")
	r.writeTable(w)
	fmt.Fprint(w, "\nBeside the targets:\n\n")
	for _, res := range r.results {
		if len(res.notes) > 0 {
			fmt.Fprintf(w, "- %s: %s.\n", res.id, strings.Join(res.notes, "; "))
		}
	}
	r.writePeers(w)
	if len(r.figures) > 0 {
		fmt.Fprint(w, "\n## How cost grows\n")
	}
	for _, f := range r.figures {
		f.write(w)
	}
}

func (m machine) write(w io.Writer) {
	server := m.redis
	if server == "" {
		server = "not installed"
	}
	fmt.Fprintf(w, "Machine: %s, %d cores, GOMAXPROCS %d, %s. Go: %s. redis-server: %s, on loopback, without persistence.\n\nModules: %s.\n\n",
		m.cpu, m.cores, m.maxprocs, m.system, m.goVer, server, strings.Join(m.modules, ", "))
}

// writePeers writes what a user might pick instead.
func (r report) writePeers(w io.Writer) {
	if len(r.peers) == 0 {
		return
	}
	fmt.Fprint(w, `
## Peers

Before a peer is timed, 64 goroutines ask it for one key, 1,000 keys are run and repeated, and another request comes under a used
key. "Once" says whether each key ran once and each repeat got the recorded bytes; one that fails is timed all the same, and what it
saves is the work it does not do. The maps are used as a store under the protocol load, claim, complete, without owners, leases,
fences or waiters. Times are those of one call with all goroutines running (as many as processors; 64 with Redis), beside an
operation that costs nothing; apps of the middleware are driven in process, and their bare apps are in the figures.

| peer | once | refuses another request | fresh | replay | fresh, over ours | replay, over ours | note |
|---|---|---|---|---|---|---|---|
`)
	var ours compared
	for _, c := range r.peers {
		if c.Ours && !strings.Contains(c.Name, "pipelined") {
			ours = c
		}
		refuses := "yes"
		if c.verdict.Unguarded {
			refuses = "no"
		}
		once := c.verdict.String()
		if c.err != nil {
			once, refuses = c.err.Error(), ""
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", c.Name, cell(once), refuses,
			nanoseconds(c.fresh), nanoseconds(c.replay), over(c.fresh, ours.fresh), over(c.replay, ours.replay), c.Note)
	}
}

func nanoseconds(s measure.Samples) string {
	if len(s) == 0 {
		return ""
	}
	if m := s.Median(); m < 10_000 {
		return number(m) + " ns"
	}
	return number(s.Median()/1e3) + " µs"
}

func over(s, ours measure.Samples) string {
	if len(s) == 0 || len(ours) != len(s) {
		return ""
	}
	return number(s.Ratio(ours).Median()) + " ×"
}

// write writes a chart and its numbers.
func (f figure) write(w io.Writer) {
	fmt.Fprintf(w, "\n### %s\n\n![%s](charts/%s.svg)\n\n", f.title, f.title, f.file)
	fmt.Fprintf(w, "%s\n\n", f.words)
	head, rule := "| "+f.x+" |", "|---|"
	for _, l := range f.lines {
		head += " " + l.name + " |"
		rule += "---|"
	}
	fmt.Fprintf(w, "%s\n%s\n", head, rule)
	if len(f.lines) == 0 {
		return
	}
	for i, p := range f.lines[0].points {
		label := number(p.x)
		if f.bars != nil {
			label = f.bars[i]
		}
		fmt.Fprintf(w, "| %s |", label)
		for _, l := range f.lines {
			fmt.Fprintf(w, " %s |", f.at(l, p.x))
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "\nIn %s.", f.y)
	if f.bars == nil {
		var grown []string
		for _, l := range f.lines {
			if l.points[0].y == 0 {
				continue
			}
			grown = append(grown, fmt.Sprintf("%s %s ×", l.name, number(l.grown())))
		}
		first := f.lines[0].points
		fmt.Fprintf(w, " While %s grow %s ×: %s.", f.x, number(first[len(first)-1].x/first[0].x), strings.Join(grown, ", "))
	}
	fmt.Fprintln(w)
}

// at is the number of a line at x.
func (f figure) at(l line, x float64) string {
	for _, p := range l.points {
		if p.x == x {
			return number(p.y)
		}
	}
	return ""
}
