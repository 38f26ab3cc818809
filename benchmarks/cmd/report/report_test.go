package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/benchmarks/measure"
	"github.com/idempotent-go/idempotent/benchmarks/peer"
	"github.com/idempotent-go/idempotent/internal/redistest"
)

func TestVerdict(t *testing.T) {
	atMost, atLeast := check{got: 2, limit: 2, unit: " ×"}, check{got: 1.2, limit: 1.2, atLeast: true, unit: " ×"}
	for name, test := range map[string]struct {
		checks []check
		err    error
		want   verdict
		figure string
	}{
		"met exactly":        {[]check{atMost, atLeast}, nil, met, "2 ×; 1.20 ×"},
		"too much":           {[]check{atLeast, {what: "at 64", got: 2.01, limit: 2, unit: " ×"}}, nil, short, "1.20 ×; at 64 2.01 × (at most 2 ×)"},
		"too little":         {[]check{{got: 0.7, limit: 0.75, atLeast: true, unit: " ×"}, atMost}, nil, short, "0.70 × (at least 0.75 ×); 2 ×"},
		"one of none":        {[]check{{got: 1, unit: " allocations"}}, nil, short, "1 allocations (at most 0 allocations)"},
		"no number":          {[]check{{got: math.NaN(), limit: 1}}, nil, short, "? (at most 1)"},
		"no number at least": {[]check{{got: math.NaN(), limit: 1, atLeast: true}}, nil, short, "? (at least 1)"},
		"nothing measured":   {nil, nil, notMeasured, ""},
		"failed":             {[]check{atMost}, errors.New("boom"), broken, "boom"},
	} {
		got := judge(row{id: "P1"}, outcome{checks: test.checks}, test.err)
		require.Equal(t, test.want, got.verdict, name)
		require.Equal(t, test.figure, got.figure(), name)
	}
}

func TestReportStatus(t *testing.T) {
	of := func(verdicts ...verdict) (r report) {
		for _, v := range verdicts {
			r.results = append(r.results, result{verdict: v})
		}
		return r
	}
	require.False(t, of().short())
	require.False(t, of(met, met).short())
	require.True(t, of(met, short).short())
	require.True(t, of(notMeasured).short())
	require.False(t, of(met, short).failed())
	require.True(t, of(met, notMeasured).failed())
	require.True(t, of(broken, met).failed())
}

func TestRowsAreTheTargets(t *testing.T) {
	all := rows()
	require.Len(t, all, 17)
	for i, r := range all {
		require.Equal(t, "P"+number(float64(i+1)), r.id)
		require.NotEmpty(t, r.target)
		require.NotNil(t, r.measure)
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 2: "2", 0.5: "0.50", 1.239: "1.24", 12.34: "12.3", 123.4: "123", 10000: "10000", 0.0123: "0.012", 2_500_000: "2.5 M", 5_000_000: "5 M",
	} {
		require.Equal(t, want, number(v))
	}
}

func TestDocument(t *testing.T) {
	r := report{
		rounds:  5,
		machine: machine{cpu: "A processor", cores: 2, maxprocs: 2, system: "linux/amd64", goVer: "go1.26", redis: "7.0.15", modules: []string{"example.com/m v1"}},
		results: []result{
			judge(row{id: "P1", what: "a | b", target: "≤ 2 ×"}, outcome{checks: []check{{got: 1.5, limit: 2, unit: " ×"}}, notes: []string{"bare 5 ns"}}, nil),
			judge(row{id: "P2", what: "c", target: "≤ 1 ×"}, outcome{}, errors.New("line one\nline two")),
		},
		peers: []compared{
			{Kind: peer.Kind{Name: "ours", Ours: true}, fresh: measure.Samples{100}, replay: measure.Samples{50}},
			{Kind: peer.Kind{Name: "other", Note: "a note"}, verdict: peer.Verdict{Duplicates: 3, Unguarded: true}, fresh: measure.Samples{200}, replay: measure.Samples{25}},
		},
		figures: []figure{
			{file: "f", title: "A figure", x: "entries", y: "ns", words: "Look at it.", lines: []line{{name: "l", points: []point{{10, 2}, {100, 4}}}}},
			{file: "bars", title: "Bars", y: "µs", bars: []string{"fresh"}, lines: []line{{name: "memory", points: []point{{0, 7}}}}},
		},
	}
	var out bytes.Buffer
	r.writeDocument(&out)
	for _, want := range []string{
		"Machine: A processor, 2 cores, GOMAXPROCS 2, linux/amd64. Go: go1.26. redis-server: 7.0.15,",
		"Modules: example.com/m v1.",
		"| P1 | a \\| b | ≤ 2 × | 1.50 × | met |\n",
		"| P2 | c | ≤ 1 × | line one line two | **failed to run** |\n",
		"- P1: bare 5 ns.\n",
		"| ours | yes | yes | 100 ns | 50 ns | 1 × | 1 × |  |\n",
		"| other | NO: ran 3 duplicates | no | 200 ns | 25 ns | 2 × | 0.50 × | a note |\n",
		"### A figure\n\n![A figure](charts/f.svg)\n\nLook at it.\n\n| entries | l |\n|---|---|\n| 10 | 2 |\n| 100 | 4 |\n\nIn ns. While entries grow 10 ×: l 2 ×.\n",
		"| fresh | 7 |\n\nIn µs.\n",
	} {
		require.Contains(t, out.String(), want)
	}
	require.NotContains(t, out.String(), "quick")
	host, err := os.Hostname()
	require.NoError(t, err)
	out.Reset()
	thisMachine("").write(&out)
	require.NotContains(t, out.String(), " "+host)
}

func TestCharts(t *testing.T) {
	dir := t.TempDir()
	for _, f := range []figure{
		{file: "log", logX: true, logY: true, lines: []line{{name: "l", points: []point{{1, 0}, {10, 5}, {1e6, 50}}}}},
		{file: "one", logX: true, logY: true, lines: []line{{name: "l", points: []point{{1, 3}}}}},
		{file: "linear", lines: []line{{name: "l", points: []point{{1, 0}, {10, 0}}}}},
		{file: "empty", logX: true, logY: true, lines: newLines("l")},
		{file: "bars", bars: []string{"a", "b"}, lines: []line{{name: "l", points: []point{{0, 1}, {1, 2}}}, {name: "m", points: []point{{0, 3}, {1, 1}}}}},
	} {
		require.NoError(t, f.draw(dir), f.file)
		data, err := os.ReadFile(filepath.Join(dir, f.file+".svg"))
		require.NoError(t, err)
		require.Contains(t, string(data), "<svg")
		require.NotContains(t, string(data), "NaN")
	}
}

func TestParse(t *testing.T) {
	t.Chdir(filepath.Join("..", "..", ".."))
	parsed := func(args ...string) options {
		o, err := parse(args, io.Discard)
		require.NoError(t, err)
		return o
	}
	require.Equal(t, options{rounds: 5, out: "docs"}, parsed())
	require.Equal(t, options{rounds: 2, quick: true}, parsed("-quick"))
	require.Equal(t, options{rounds: 7, quick: true, out: "x"}, parsed("-quick", "-rounds", "7", "-out", "x"))
	o := parsed("-only", "p7, P8,waiters")
	require.Empty(t, o.out, "a part is no document")
	require.True(t, o.wants("P7"))
	require.True(t, o.wants("waiters"))
	require.False(t, o.wants("P1"))
	require.True(t, options{}.wants("P1"))
	for want, args := range map[string][]string{
		"no such row":    {"-only", "P18"},
		"no flag":        {"quick"},
		"-rounds -1":     {"-rounds", "-1"},
		"not defined: -": {"-nonsense"},
	} {
		_, err := parse(args, io.Discard)
		require.ErrorContains(t, err, want)
	}
	t.Chdir(t.TempDir())
	_, err := parse(nil, io.Discard)
	require.ErrorContains(t, err, "root of the repository")
	parsed("-quick")
}

func TestHelpSaysTheStatus(t *testing.T) {
	var out bytes.Buffer
	_, err := parse([]string{"-help"}, &out)
	require.Error(t, err)
	require.Contains(t, out.String(), "Exit status: 0")
	require.Contains(t, out.String(), "With -quick a row that falls short")
}

func TestMonitored(t *testing.T) {
	for line, want := range map[string]struct {
		command string
		script  bool
	}{
		`1339518083.107412 [0 127.0.0.1:60866] "EVALSHA" "abc" "1"`: {"evalsha", false},
		`1339518083.107412 [0 lua] "hset" "k"`:                      {"hset", true},
		`+OK`:                                                       {"", false},
	} {
		command, script := monitored(line)
		require.Equal(t, want.command, command, line)
		require.Equal(t, want.script, script, line)
	}
}

// What the server reports is what was sent: no more, no less.
func TestCommands(t *testing.T) {
	b := &bench{ctx: t.Context(), server: redistest.Start(t)}
	client, err := b.client()
	require.NoError(t, err)
	defer func() { _ = client.Close() }()
	n, err := commands(b, func() error {
		for range 3 {
			if err := client.Ping(b.ctx).Err(); err != nil {
				return err
			}
		}
		return client.Eval(b.ctx, "redis.call('SET', 'a', '1'); return redis.call('GET', 'a')", nil).Err()
	})
	require.NoError(t, err)
	require.Equal(t, 4, n)
	boom := errors.New("boom")
	_, err = commands(b, func() error { return boom })
	require.ErrorIs(t, err, boom)
}

func TestOrderIsOneKilobyte(t *testing.T) {
	require.InDelta(t, 1024, len(orderOf(1<<10)), 128)
}

// The whole command, as small as it gets.
func TestQuickRun(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the whole command")
	}
	dir := t.TempDir()
	o, err := parse([]string{"-quick", "-rounds", "1", "-out", dir}, io.Discard)
	require.NoError(t, err)
	var stdout, stderr bytes.Buffer
	status, err := run(context.Background(), o, &stdout, &stderr)
	require.NoError(t, err)
	table := stdout.String()
	for _, r := range rows() {
		require.Contains(t, table, "| "+r.id+" |")
	}
	document, err := os.ReadFile(filepath.Join(dir, "benchmarks.md"))
	require.NoError(t, err)
	require.Contains(t, string(document), table)
	require.Contains(t, string(document), "A quick run")
	for _, chart := range charts(string(document)) {
		require.FileExists(t, filepath.Join(dir, chart))
	}
	require.NotContains(t, stderr.String(), "failed")
	if !redistest.Installed() {
		require.Equal(t, 1, status)
		require.Contains(t, table, "not measured")
		return
	}
	require.Equal(t, 0, status, "%s\n%s", stderr.String(), table)
	require.NotContains(t, table, "not measured")
	require.Len(t, charts(string(document)), 14)
	for _, kind := range peer.Kinds() {
		require.Contains(t, string(document), "| "+kind.Name+" |")
	}
	require.Regexp(t, `x/sync singleflight \| NO: ran \d+ duplicates`, string(document))
}

// charts are the pictures that a document shows.
func charts(document string) []string {
	var names []string
	for part := range strings.SplitSeq(document, "](") {
		if name, _, ok := strings.Cut(part, ")"); ok && strings.HasSuffix(name, ".svg") {
			names = append(names, name)
		}
	}
	return names
}

func TestMissingServer(t *testing.T) {
	o, err := parse([]string{"-quick", "-only", "P17", "-redis", filepath.Join(t.TempDir(), "no-such-server")}, io.Discard)
	require.NoError(t, err)
	status, err := run(t.Context(), o, io.Discard, io.Discard)
	require.ErrorContains(t, err, "-redis")
	require.Equal(t, 1, status)

	t.Setenv("PATH", t.TempDir())
	o.redis = ""
	var stdout, stderr bytes.Buffer
	status, err = run(t.Context(), o, &stdout, &stderr)
	require.NoError(t, err)
	require.Equal(t, 1, status)
	require.Contains(t, stdout.String(), "| not measured |")
	require.Contains(t, stderr.String(), "redis-server is not installed")
}

// A row that falls short is a failure, but not in a quick run; one that fails
// to run always is.
func TestStatus(t *testing.T) {
	for name, test := range map[string]struct {
		verdict verdict
		quick   bool
		want    int
	}{
		"met": {met, false, 0}, "short": {short, false, 1}, "short, quick": {short, true, 0},
		"failed, quick": {broken, true, 1}, "not measured, quick": {notMeasured, true, 1},
	} {
		require.Equal(t, test.want, report{quick: test.quick, results: []result{{verdict: test.verdict}}}.status(), name)
	}
}
