package idempotent_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// faultRow is a line of a table of docs/faults.md.
type faultRow struct {
	promise string
	shown   string
}

// Every known fault has a row that names the tests that show it, or says why
// it cannot happen here, and those tests are there.
func TestFaults(t *testing.T) {
	t.Parallel()
	list, err := os.ReadFile("testdata/fault-cases.txt")
	require.NoError(t, err)
	cases := strings.Fields(string(list))
	require.True(t, slices.IsSorted(cases))
	require.Equal(t, slices.Compact(slices.Clone(cases)), cases, "a case twice")
	require.Len(t, cases, 108)
	document, err := os.ReadFile("docs/faults.md")
	require.NoError(t, err)
	tests := testsHere(t)
	for _, problem := range checkFaults(cases, string(document), tests) {
		t.Error(problem)
	}
	for name := range tests {
		for _, number := range faultNumber.FindAllString(name, -1) {
			if !slices.Contains(cases, number) {
				t.Errorf("%s: there is no case %s", name, number)
			}
		}
	}
}

var faultNumber = regexp.MustCompile(`C\d\d\d`)

// checkFaults compares rows with cases and tests. A row names its tests in
// backquotes, and without any it says why there is none: "No test: …".
func checkFaults(cases []string, document string, tests map[string][]string) (problems []string) {
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	rows := map[string]faultRow{}
	for _, m := range regexp.MustCompile(`(?m)^\| (C\d+) \| (.*) \| (.*) \|$`).FindAllStringSubmatch(document, -1) {
		if _, twice := rows[m[1]]; twice {
			wrong("%s has two rows", m[1])
		}
		rows[m[1]] = faultRow{strings.TrimSpace(m[2]), strings.TrimSpace(m[3])}
	}
	for number := range rows {
		if !slices.Contains(cases, number) {
			wrong("there is no case %s", number)
		}
	}
	for _, number := range cases {
		row, found := rows[number]
		named := regexp.MustCompile("`([^`]*)`").FindAllStringSubmatch(row.shown, -1)
		switch {
		case !found:
			wrong("%s has no row", number)
		case row.promise == "":
			wrong("%s promises nothing", number)
		case len(named) == 0 && !regexp.MustCompile(`^No test: \S`).MatchString(row.shown):
			wrong("%s has neither a test nor a reason", number)
		}
		for _, m := range named {
			name, sub, parts := strings.Cut(m[1], "/")
			texts, found := tests[name]
			numbers := faultNumber.FindAllString(m[1], -1)
			switch {
			case !found:
				wrong("%s: there is no test %s", number, name)
			case parts && !slices.Contains(texts, sub):
				wrong("%s: %s has no part %q", number, name, sub)
			case numbers != nil && !slices.Contains(numbers, number):
				wrong("%s: %s is a test of something else", number, m[1])
			}
		}
	}
	return problems
}

// testsHere returns the tests of the module, as package.Test, each with the
// texts of its file, among which are the names of its parts. The parts of
// storetest.Run are the cases of that package.
func testsHere(t *testing.T) map[string][]string {
	t.Helper()
	tests := map[string][]string{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		contract := filepath.Dir(path) == "storetest" && filepath.Ext(path) == ".go" && !strings.HasSuffix(path, "_test.go")
		if err != nil || d.IsDir() || !contract && !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		texts := map[string]bool{}
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil {
					texts[text] = true
				}
			}
			return true
		})
		parts := slices.Collect(maps.Keys(texts))
		if contract {
			tests["storetest.Run"] = append(tests["storetest.Run"], parts...)
			return nil
		}
		pkg := filepath.Base(filepath.Dir(path))
		if pkg == "." {
			pkg = "idempotent"
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") && f.Name.Name != "TestMain" {
				tests[pkg+"."+f.Name.Name] = parts
			}
		}
		return nil
	})
	require.NoError(t, err)
	return tests
}

// The check of the table finds what it is there to find.
func TestFaults_CheckCanFail(t *testing.T) {
	t.Parallel()
	tests := map[string][]string{"p.TestA": {"part"}, "p.TestC002_B": nil}
	row := func(number, promise, shown string) string {
		return "| " + number + " | " + promise + " | " + shown + " |\n"
	}
	for name, tt := range map[string]struct {
		document string
		problem  string
	}{
		"test":           {row("C001", "A.", "`p.TestA`"), ""},
		"part":           {row("C001", "A.", "`p.TestA/part`, `p.TestA`"), ""},
		"reason":         {row("C001", "A.", "No test: there are no locks."), ""},
		"no row":         {"C001", "C001 has no row"},
		"two rows":       {row("C001", "A.", "`p.TestA`") + row("C001", "B.", "`p.TestA`"), "C001 has two rows"},
		"no such case":   {row("C001", "A.", "`p.TestA`") + row("C009", "A.", "`p.TestA`"), "there is no case C009"},
		"no promise":     {row("C001", "", "`p.TestA`"), "C001 promises nothing"},
		"nothing shown":  {row("C001", "A.", "soon"), "C001 has neither a test nor a reason"},
		"empty reason":   {row("C001", "A.", "No test:"), "C001 has neither a test nor a reason"},
		"no such test":   {row("C001", "A.", "`p.TestA`, `p.TestZ`"), "C001: there is no test p.TestZ"},
		"other package":  {row("C001", "A.", "`q.TestA`"), "C001: there is no test q.TestA"},
		"no such part":   {row("C001", "A.", "`p.TestA/other`"), `C001: p.TestA has no part "other"`},
		"of another one": {row("C001", "A.", "`p.TestC002_B`"), "C001: p.TestC002_B is a test of something else"},
	} {
		t.Run(name, func(t *testing.T) {
			problems := checkFaults([]string{"C001"}, tt.document, tests)
			if tt.problem == "" {
				require.Empty(t, problems)
			} else {
				require.Equal(t, []string{tt.problem}, problems)
			}
		})
	}
}
