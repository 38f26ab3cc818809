package history

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/internal/model"
)

// document is the file that shows what the search finds.
const document = "../../docs/model.md"

// update is the environment variable that, set to 1, writes [document] anew.
const update = "IDEMPOTENT_UPDATE"

const preface = `# The state table, explored

The table of a store (section "The life of a key" of the package documentation) is one pure function, ` + "`internal/model`" + `.
The backends are compared with it, and it is explored here by itself: every world that the lines below allow, breadth first.

One key, and two or three executions, each a claim, an operation and what became of it. In every configuration a message
may be late, lost, or sent twice; an answer may be lost; an execution may give up its claim, withdraw because nothing
happened, not know what happened, or crash at any point; and leases lapse. Each message is sent twice only as often as
the column *resends* says, in all. A message that is late arrives at any later time, after its sender's end as well.
` + "`" + long + "=1`" + ` explores every configuration with one resend more, and with renewals.

In every state that is reached these rules hold:

- At most one operation may have happened, and callers are told at most one known outcome: and one more of each for every
  time that a limit (take-over, Keep or retention passing, eviction, failover, Delete) has struck. A run is not forgotten
  where no limit struck.
- A replay is what its author recorded, and a record never changes. A completion that was accepted is there.
- Another request (a different fingerprint) neither takes a claim over nor is answered without the fingerprint that tells
  it so.
- Time alone ends every claim: not in flight after its lease, nothing left after Keep.
- Who is not the owner changes nothing, except that a claim may take over, where both claims allow it.
- Fences grow with every new claim, and stay the same in between.
- A message that arrives twice in a row is answered the same and changes nothing more.

Written by ` + "`" + update + "=1 go test ./internal/history`" + `; the test fails where this file says something else.

`

// render returns the document.
func render() string {
	var b strings.Builder
	b.WriteString(preface)
	b.WriteString("| configuration | executions | resends | renewals | what may happen besides | states | events | operations that may have happened |\n")
	b.WriteString("| --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for i, c := range configurations {
		f := explored[i]()
		fmt.Fprintf(&b, "| %s | %d | %d | %s | %s | %d | %d | at most %d |\n",
			c.name, c.executions, c.budget.resends, yes(c.renewals), c.besides(), f.states, f.events, f.runs)
	}
	b.WriteString("\n## The limits, and the shortest way to each\n")
	for i, c := range configurations {
		f := explored[i]()
		for j, l := range c.limits {
			if j == 0 {
				fmt.Fprintf(&b, "\n### %s\n", c.name)
			}
			fmt.Fprintf(&b, "\n%s The shortest way until %s:\n\n", l.says, l.goal.name)
			for n, line := range c.words(model.State.Step, f.reached[l.goal.name]) {
				fmt.Fprintf(&b, "%d. %s\n", n+1, line)
			}
		}
	}
	return b.String()
}

// besides lists what the configuration allows beyond what all do.
func (c *configuration) besides() string {
	var list []string
	add := func(ok bool, text string) {
		if ok {
			list = append(list, text)
		}
	}
	add(c.another, "the last execution is another request")
	add(c.takeOver, "take-over is allowed")
	add(c.forgets, "Keep and retention pass")
	add(c.settles, "an operator settles an unknown outcome")
	add(c.budget.evictions > 0 && !c.anything, "a finished entry is evicted")
	add(c.budget.evictions > 0 && c.anything, "an entry is evicted, also a claim")
	add(c.budget.deletes > 0, "an operator deletes the key")
	add(c.budget.failovers > 0, "the store falls back to an older state of its own")
	add(c.acknowledged, "a claim is answered only when the replica that takes over has it")
	if len(list) == 0 {
		return "nothing"
	}
	return strings.Join(list, "; ")
}

func yes(ok bool) string {
	if ok {
		return "yes"
	}
	return "no"
}

func TestDocument(t *testing.T) {
	want := render()
	if os.Getenv(update) == "1" {
		require.NoError(t, os.WriteFile(document, []byte(want), 0o644))
	}
	got, err := os.ReadFile(document)
	require.NoError(t, err)
	if string(got) != want {
		t.Fatalf("%s is not what the search finds; look at the difference, and where it is meant run the test with %s=1\n%s",
			document, update, firstDifference(string(got), want))
	}
}

// firstDifference returns the first line in which two texts differ.
func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(g), len(w)) {
		var a, b string
		if i < len(g) {
			a = g[i]
		}
		if i < len(w) {
			b = w[i]
		}
		if a != b {
			return fmt.Sprintf("line %d is  %q\nand must be %q", i+1, a, b)
		}
	}
	return ""
}
