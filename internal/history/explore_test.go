package history

import (
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/internal/model"
)

// long is the environment variable that, set to 1, selects the long runs.
const long = "IDEMPOTENT_LONG"

// found is what a search has found.
type found struct {
	states, events int
	runs           int             // the most of any state
	reached        map[string]path // the shortest way to each goal
	broken         error           // the rule that does not hold
	way            path            // and the shortest way there
}

// path is a list of events.
type path []event

// explore visits every world that c allows, breadth first, and stops at the
// first that breaks a rule.
func (c *configuration) explore(table step) found {
	type node struct {
		parent int32
		event  event
	}
	type open struct {
		world world
		node  int32
	}
	w := world{now: epoch, left: c.budget}
	nodes := []node{{parent: -1}}
	visited := map[place]struct{}{c.place(&w): {}}
	f := found{reached: map[string]path{}}
	back := func(i int32) (p path) {
		for ; nodes[i].parent >= 0; i = nodes[i].parent {
			p = append(p, nodes[i].event)
		}
		slices.Reverse(p)
		return p
	}
	for queue := []open{{w, 0}}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		for _, e := range c.enabled(&at.world) {
			f.events++
			w, _, broken := c.happen(at.world, table, e)
			p := c.place(&w)
			if _, ok := visited[p]; ok && broken == nil {
				continue
			}
			visited[p] = struct{}{}
			i := int32(len(nodes))
			nodes = append(nodes, node{at.node, e})
			if broken != nil {
				f.states, f.broken, f.way = len(visited), broken, back(i)
				return f
			}
			f.runs = max(f.runs, w.ran())
			for _, l := range c.limits {
				if _, ok := f.reached[l.goal.name]; !ok && l.goal.reached(&w) {
					f.reached[l.goal.name] = back(i)
				}
			}
			queue = append(queue, open{w, i})
		}
	}
	f.states = len(visited)
	return f
}

// explored is the search through each configuration of the table as it is,
// made once for all tests.
var explored = func() (searches []func() found) {
	for _, c := range configurations {
		searches = append(searches, sync.OnceValue(func() found { return c.explore(model.State.Step) }))
	}
	return searches
}()

// words returns p as one line an event.
func (c *configuration) words(table step, p path) (lines []string) {
	w := world{now: epoch, left: c.budget}
	for _, e := range p {
		var text string
		w, text, _ = c.happen(w, table, e)
		lines = append(lines, text)
	}
	return lines
}

// Every rule holds in every state. Without a limit nothing runs twice; and
// every limit that is stated is real. A long run has the same once more, with
// every message sent twice once more, and with renewals.
func TestTable(t *testing.T) {
	check := func(t *testing.T, c configuration, f found) {
		t.Helper()
		if f.broken != nil {
			t.Fatalf("%v, after\n%v", f.broken, strings.Join(c.words(model.State.Step, f.way), "\n"))
		}
		t.Logf("%d states, %d events", f.states, f.events)
		if c.limits == nil {
			require.Equal(t, 1, f.runs, "the most operations that may have happened")
		}
	}
	for i, c := range configurations {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := explored[i]()
			check(t, c, f)
			for _, l := range c.limits {
				require.Contains(t, f.reached, l.goal.name)
			}
			if os.Getenv(long) == "1" { // it takes minutes
				c.budget.resends++
				c.renewals = c.executions < most
				check(t, c, c.explore(model.State.Step))
			}
		})
	}
}
