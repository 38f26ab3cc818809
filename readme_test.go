package idempotent_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fenced matches the fenced blocks of one language.
func fenced(language string) *regexp.Regexp {
	return regexp.MustCompile("(?ms)^```" + language + "\n(.*?)^```$")
}

// blocks returns the fenced blocks of one language in a document.
func blocks(t *testing.T, document, language string) []string {
	t.Helper()
	text, err := os.ReadFile(document)
	require.NoError(t, err)
	var found []string
	for _, m := range fenced(language).FindAllStringSubmatch(string(text), -1) {
		found = append(found, m[1])
	}
	require.NotEmpty(t, found, "%s has no block of %s", document, language)
	return found
}

// The first program of the README is one that CI builds.
func TestREADME_ProgramIsTheQuickstart(t *testing.T) {
	source, err := os.ReadFile("examples/quickstart/main.go")
	require.NoError(t, err)
	_, program, found := strings.Cut(string(source), "\npackage main\n")
	require.True(t, found)
	require.Equal(t, "package main\n"+program, blocks(t, "README.md", "go")[0])
}

// Every Go block of a document stands, line by line, in a Go file of this
// repository, which CI compiles and vets; most are part of an Example, which it
// runs. Indentation alone may differ.
func TestDocuments_GoIsCompiled(t *testing.T) {
	code := func(text string) string {
		var lines []string
		for line := range strings.Lines(text) {
			lines = append(lines, strings.TrimSpace(line))
		}
		return "\n" + strings.Join(lines, "\n") + "\n"
	}
	var sources []string
	require.NoError(t, filepath.WalkDir(".", func(path string, _ os.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" {
			return err
		}
		text, err := os.ReadFile(path)
		sources = append(sources, code(string(text)))
		return err
	}))
	documents, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	for _, document := range append(documents, "README.md", "CONTRIBUTING.md", "SECURITY.md") {
		text, err := os.ReadFile(document)
		require.NoError(t, err)
		for _, m := range fenced("go").FindAllStringSubmatch(string(text), -1) {
			require.True(t, slices.ContainsFunc(sources, func(source string) bool { return strings.Contains(source, code(m[1])) }),
				"%s shows code that stands in no Go file, such as an Example of the package it is about:\n%s", document, m[1])
		}
	}
}

// Where an example keeps keys is configuration. The quickstart is the exception:
// it shows the shortest program there is, and links nothing but memory.
func TestExamples_TakeTheURLOfAStore(t *testing.T) {
	for _, pattern := range []string{"examples/*/main.go", "examples/*/*/main.go"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			quickstart := filepath.Dir(file) == filepath.Join("examples", "quickstart")
			require.NotEqual(t, quickstart, strings.Contains(string(text), "storeurl.Open("), file)
			require.NotEqual(t, quickstart, strings.Contains(string(text), `os.Getenv("IDEMPOTENCY_STORE")`), file)
		}
	}
}

// Every command that a document tells people to run is run by CI. The
// transcript of the README is played by the test of examples/shop.
func TestDocuments_CommandsAreRunByCI(t *testing.T) {
	script, err := os.ReadFile(".ci/run")
	require.NoError(t, err)
	lines := strings.Split(string(script), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	require.Contains(t, lines, "bash .ci/documents docs/*.md", "CI runs the commands of all other documents as they stand")
	for _, document := range []string{"README.md", "CONTRIBUTING.md"} {
		for _, block := range blocks(t, document, "sh") {
			for command := range strings.Lines(block) {
				command = strings.TrimSpace(command)
				if command == "bash .ci/run" {
					continue // that is the script itself
				}
				require.Contains(t, lines, command, "%s shows a command that CI does not run", document)
			}
		}
	}
}

// Every error, event and problem code has its place in the one table.
func TestManual_TableIsWhole(t *testing.T) {
	manual, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	names := func(file, pattern string) []string {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var found []string
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
			found = append(found, m[1])
		}
		require.NotEmpty(t, found)
		return found
	}
	for _, code := range names("problem.go", `code: "([a-z-]+)"`) {
		require.Regexp(t, `(?m)^//\t.*\b`+code+` \d{3}\b`, string(manual), "doc.go")
		require.Contains(t, string(readme), "`"+code+"`", "README.md")
	}
	for _, event := range names("observer.go", `EventKind = "([a-z-]+)"`) {
		require.Regexp(t, `(?m)^//\t.*\s`+event+`\s+idempotent_[a-z_]+$`, string(manual), "doc.go")
	}
	for _, name := range names("errors.go", `(?m)^\t(Err[A-Za-z]+) += errors.New`) {
		require.Contains(t, string(manual), name, "doc.go")
	}
}

// Sizing plans with what was measured: a report that is written anew, and says
// something else by more than the differences between two machines, makes it lie.
func TestSizing_PlansWithWhatWasMeasured(t *testing.T) {
	figures := func(document, pattern string) []float64 {
		text, err := os.ReadFile(document)
		require.NoError(t, err)
		m := regexp.MustCompile(pattern).FindStringSubmatch(string(text))
		require.NotNil(t, m, "%s: %s", document, pattern)
		var found []float64
		for _, figure := range m[1:] {
			n, err := strconv.ParseFloat(strings.ReplaceAll(figure, ",", ""), 64)
			require.NoError(t, err)
			found = append(found, n)
		}
		return found
	}
	const sizing, measured = "docs/sizing.md", "docs/benchmarks.md"
	for name, c := range map[string]struct{ planned, measured []float64 }{
		"processor of Redis": {
			figures(sizing, `one thread of a node: (\S+) µs .* fresh request \(two scripts\), (\S+) µs for a replay, (\S+) µs for a PING`),
			slices.Concat(figures(measured, `spends (\S+) µs on a fresh request`), figures(measured, `spends (\S+) µs on a replay, (\S+) µs on a PING`)),
		},
		"fresh requests at half load": {
			figures(sizing, `(\S+) fresh requests a second and node at half load`),
			[]float64{0.5e6 / figures(measured, `spends (\S+) µs on a fresh request`)[0]},
		},
		"bytes of a record": {
			slices.Concat(figures(sizing, `\| Redis \| (\S+) \(`), figures(sizing, `\| memory \| .* \| (\d+) \|`)),
			slices.Concat(figures(measured, `(?s)### redisstore: bytes per record.*?\| 1 M \| \d+ \| (\d+) \|`), figures(measured, `\| P6 \| .* \| (\d+) B`)),
		},
	} {
		require.Len(t, c.planned, len(c.measured), name)
		for i, planned := range c.planned {
			require.InEpsilon(t, c.measured[i], planned, 0.15, "%s, figure %d", name, i+1)
		}
	}
}

// Who writes a store learns of every ability that it may have.
func TestWritingAStore_NamesTheAbilities(t *testing.T) {
	source, err := os.ReadFile("capability.go")
	require.NoError(t, err)
	text, err := os.ReadFile("docs/writing-a-store.md")
	require.NoError(t, err)
	abilities := regexp.MustCompile(`(?m)^type ([A-Z]\w+) interface`).FindAllStringSubmatch(string(source), -1)
	require.NotEmpty(t, abilities)
	for _, m := range abilities {
		require.Contains(t, string(text), "| `"+m[1]+"`:", "its table of abilities")
	}
}
