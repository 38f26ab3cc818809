package httptestsuite

import (
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// The middleware needs no adapter under net/http.
func TestServeMux(t *testing.T) {
	Run(t, Adapter{Serve: func(t testing.TB, app App) string {
		mux := http.NewServeMux()
		mux.Handle("/", app.Guard.Middleware(app.Principal, app.Options...)(app.Handler()))
		return Serve(t, app.Layer(mux))
	}})
}

// Outside of the mux it works as well.
func TestAroundServeMux(t *testing.T) {
	Run(t, Adapter{Serve: func(t testing.TB, app App) string {
		mux := http.NewServeMux()
		mux.Handle("POST /orders", app.Handler())
		mux.Handle("/", app.Handler())
		return Serve(t, app.Layer(app.Guard.Middleware(app.Principal, app.Options...)(mux)))
	}})
}

// A buffered adapter is asked for no more than the whole answer.
func TestBuffered(t *testing.T) {
	Run(t, Adapter{Buffered: true, Serve: func(t testing.TB, app App) string {
		return Serve(t, app.Layer(app.Guard.Middleware(app.Principal, app.Options...)(withoutFlush(app.Handler()))))
	}})
}

// TestBrokenAdapters runs the cases that a broken adapter is to be caught by.
func TestBrokenAdapters(t *testing.T) {
	cases := make(map[string]testCase)
	for _, c := range allCases() {
		cases[c.name] = c
	}
	for _, b := range brokenAdapters {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			if len(b.caughtBy) == 0 {
				t.Fatal("no case is named")
			}
			for _, name := range b.caughtBy {
				c, ok := cases[name]
				if !ok {
					t.Fatalf("no case has the name %q", name)
				}
				t.Run(name, func(t *testing.T) {
					rec := c.record(t, Adapter{Serve: func(t testing.TB, app App) string { return Serve(t, b.serve(app)) }})
					if !rec.Failed() {
						t.Fatalf("the case passes with this adapter")
					}
					if !strings.Contains(rec.text(), c.why) {
						t.Fatalf("the rule is not told: %s", rec.text())
					}
				})
			}
		})
	}
}

// TestEveryCaseCanFail shows that no case is idle.
func TestEveryCaseCanFail(t *testing.T) {
	for _, c := range allCases() {
		if !slices.ContainsFunc(brokenAdapters, func(b brokenAdapter) bool { return slices.Contains(b.caughtBy, c.name) }) {
			t.Errorf("no broken adapter is caught by %s", c.name)
		}
	}
}

func TestCasesAreNamedAndExplained(t *testing.T) {
	seen := make(map[string]bool)
	for _, c := range allCases() {
		if c.name == "" || seen[c.name] {
			t.Errorf("the name %q is empty or there twice", c.name)
		}
		seen[c.name] = true
		if !strings.HasSuffix(c.why, ".") {
			t.Errorf("%s: the rule is no sentence: %q", c.name, c.why)
		}
	}
}

// record runs the case and notes what it reports.
func (tc testCase) record(t *testing.T, a Adapter) *recorder {
	t.Helper()
	rec := &recorder{TB: t}
	ended := make(chan struct{})
	go func() { // which Fatalf ends
		defer close(ended)
		tc.check(rec, a, time.Second)
	}()
	<-ended
	return rec
}

// recorder is a [testing.TB] that notes failures in the place of the test's.
type recorder struct {
	testing.TB

	mu     sync.Mutex // guards both
	failed bool
	lines  []string
}

func (r *recorder) note(failed bool, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = r.failed || failed
	r.lines = append(r.lines, text)
}

func (r *recorder) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.lines, "\n")
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) Logf(format string, args ...any)   { r.note(false, fmt.Sprintf(format, args...)) }
func (r *recorder) Errorf(format string, args ...any) { r.note(true, fmt.Sprintf(format, args...)) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.note(true, fmt.Sprintf(format, args...))
	runtime.Goexit()
}
