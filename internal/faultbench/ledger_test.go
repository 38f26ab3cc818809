//go:build unix

package faultbench

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// execution is one line of the ledger: the operation happened.
type execution struct {
	key, id string
	status  int // of the answer to come
}

// append writes the execution and returns when it is on disk.
func (x execution) append(ledger *os.File) error {
	if _, err := fmt.Fprintf(ledger, "%s %s %d\n", x.key, x.id, x.status); err != nil {
		return err
	}
	return ledger.Sync()
}

// readLedger returns all executions by key.
func readLedger(t *testing.T, name string) map[string][]execution {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	all := map[string][]execution{}
	for line := range strings.Lines(string(text)) {
		var x execution
		_, err := fmt.Sscanf(line, "%s %s %d\n", &x.key, &x.id, &x.status)
		require.NoError(t, err, line)
		all[x.key] = append(all[x.key], x)
	}
	return all
}

// answer is what a customer got for one attempt.
type answer struct {
	status   int
	code     string // of a refusal
	id       string // of the execution
	replayed bool
}

// known reports whether the answer tells what became of the operation.
func (a answer) known() bool { return a.code == "" }

// unknown reports whether the answer says that nobody knows.
func (a answer) unknown() bool { return a.code == "outcome-unknown" }

// final reports whether asking again is of no use.
func (a answer) final() bool { return a.known() || a.unknown() }

func (a answer) String() string {
	if a.known() {
		return fmt.Sprintf("%d for %s", a.status, a.id)
	}
	return fmt.Sprintf("%d %s", a.status, a.code)
}

// verdict is what the ledger says of the answers.
type verdict struct {
	executions, success, failed, unknown int // of keys; executions are all

	twice    []string // keys that ran more than once
	disagree []string // answers that the ledger does not know, and keys without an end
}

// judge compares the ledger with all the answers to each key, in their order.
// Strict: what was once answered stays the answer. A store that has lost its
// newest writes may know less than before.
func judge(ledger map[string][]execution, answers map[string][]answer, strict bool) (v verdict) {
	for key, ran := range ledger {
		v.executions += len(ran)
		if len(ran) > 1 {
			v.twice = append(v.twice, fmt.Sprintf("%s ran %d times", key, len(ran)))
		}
		if _, ok := answers[key]; !ok {
			v.disagree = append(v.disagree, key+" ran, and nobody asked for it")
		}
	}
	for key, got := range answers {
		told := false // what became of it
		for _, a := range got {
			switch {
			case a.known():
				told = true
				if a.status == http.StatusNotFound && len(ledger[key]) == 0 {
					continue // nothing was done, and the answer says so
				}
				if !slices.Contains(ledger[key], execution{key, a.id, a.status}) {
					v.disagree = append(v.disagree, fmt.Sprintf("%s was answered %v, the ledger has %v", key, a, ledger[key]))
				}
			case a.unknown():
				if told && strict {
					v.disagree = append(v.disagree, key+" was answered, and is unknown now")
				}
			case a.code != "in-flight" && a.code != "store-unavailable":
				v.disagree = append(v.disagree, fmt.Sprintf("%s was answered %v", key, a))
			}
		}
		switch end := last(got); {
		case !end.final():
			v.disagree = append(v.disagree, fmt.Sprintf("%s has no end but %v", key, end))
		case end.unknown():
			v.unknown++
		case end.status == http.StatusCreated:
			v.success++
		default:
			v.failed++
		}
	}
	return v
}

func last(answers []answer) answer {
	if len(answers) == 0 {
		return answer{code: "no answer"}
	}
	return answers[len(answers)-1]
}

func TestJudge(t *testing.T) {
	t.Parallel()
	paid := execution{"k", "x", http.StatusCreated}
	ok := answer{status: http.StatusCreated, id: "x"}
	unknown := answer{status: http.StatusConflict, code: "outcome-unknown"}
	busy := answer{status: http.StatusConflict, code: "in-flight"}
	for name, c := range map[string]struct {
		ran             []execution
		answers         []answer
		strict          bool
		twice, disagree int
	}{
		"ran and answered":         {[]execution{paid}, []answer{busy, ok, ok}, true, 0, 0},
		"ran and unknown":          {[]execution{paid}, []answer{busy, unknown}, true, 0, 0},
		"unknown, never ran":       {nil, []answer{unknown}, true, 0, 0},
		"refused, never ran":       {nil, []answer{{status: http.StatusNotFound}}, true, 0, 0},
		"refused, and ran":         {[]execution{paid}, []answer{{status: http.StatusNotFound}}, true, 0, 1},
		"ran twice":                {[]execution{paid, {"k", "y", http.StatusCreated}}, []answer{ok}, true, 1, 0},
		"answered, never ran":      {nil, []answer{ok}, true, 0, 1},
		"another's answer":         {[]execution{{"k", "y", http.StatusCreated}}, []answer{ok}, true, 0, 1},
		"another status":           {[]execution{paid}, []answer{{status: http.StatusPaymentRequired, id: "x"}}, true, 0, 1},
		"no end":                   {[]execution{paid}, []answer{ok, busy}, true, 0, 1},
		"no answer":                {[]execution{paid}, []answer{}, true, 0, 1},
		"nobody asked":             {[]execution{paid}, nil, true, 0, 1},
		"forgotten":                {[]execution{paid}, []answer{ok, unknown}, true, 0, 1},
		"forgotten, not so strict": {[]execution{paid}, []answer{ok, unknown}, false, 0, 0},
		"another refusal":          {nil, []answer{{status: 422, code: "key-reused"}, unknown}, true, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ledger, answers := map[string][]execution{}, map[string][]answer{}
			if c.ran != nil {
				ledger["k"] = c.ran
			}
			if c.answers != nil {
				answers["k"] = c.answers
			}
			v := judge(ledger, answers, c.strict)
			require.Len(t, v.twice, c.twice)
			require.Len(t, v.disagree, c.disagree)
		})
	}
}
