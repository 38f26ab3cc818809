package faultbench_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/redisstore"
)

const (
	outageStoreTimeout = time.Second
	outageRetention    = time.Hour
	outageLease        = 6 * time.Second
	// outageLeaseMost is the lease where a duplicate waits: no renewal falls
	// into the wait.
	outageLeaseMost = time.Minute
	outageWait      = "4" // seconds: longer than two polls, shorter than the bound
	// outageBound shows a hang, not a speed.
	outageBound = 10 * outageStoreTimeout

	outageParallel = 20 // cells wait more than they work
	outageDocument = "../../docs/outages.md"
	outageMark     = "<!-- measured by go test ./internal/faultbench -->\n"
)

// The steps that an outage meets, in the order of a request's life.
const (
	claimStep    = "Claim"
	renewStep    = "Renew"
	completeStep = "Complete"
	releaseStep  = "Release"
	waitStep     = "Wait"
)

var outageSteps = []string{claimStep, renewStep, completeStep, releaseStep, waitStep}

// outageRow is what one cell has measured.
type outageRow struct {
	client, handler, left, took, after string
}

// line is the row in the document.
func (r outageRow) line(fault, step string) string {
	return "| " + strings.Join([]string{fault, step, r.client, r.handler, r.left, r.took, r.after}, " | ") + " |\n"
}

// TestOutages measures every outage at every step, and compares all of it with
// docs/outages.md, which IDEMPOTENT_UPDATE=1 writes anew. IDEMPOTENT_LONG=1
// measures each cell five times.
func TestOutages(t *testing.T) {
	redistest.Require(t)
	document, err := os.ReadFile(outageDocument)
	require.NoError(t, err)
	intro, written, marked := strings.Cut(string(document), outageMark)
	require.True(t, marked, "the document has no line %s", outageMark)
	update := os.Getenv("IDEMPOTENT_UPDATE") == "1"
	rounds := 1
	if os.Getenv("IDEMPOTENT_LONG") == "1" {
		rounds = 5
	}

	var mu sync.Mutex // guards rows
	rows := map[string]string{}
	var cells errgroup.Group
	// Not by t.Parallel, whose bound is the number of processors.
	cells.SetLimit(outageParallel)
	for _, step := range outageSteps { // the longest ones first
		for _, o := range outages {
			cells.Go(func() error {
				name := o.name + "/" + step
				t.Run(name, func(t *testing.T) {
					row := playOutage(t, o, step)
					for range rounds - 1 {
						require.Equal(t, row, playOutage(t, o, step))
					}
					line := row.line(o.name, step)
					if !update {
						require.Contains(t, written, line)
					}
					mu.Lock()
					defer mu.Unlock()
					rows[name] = line
				})
				return nil
			})
		}
	}
	_ = cells.Wait() // who has failed is a subtest
	table := outageTable(rows)
	t.Log("\n" + table)
	switch {
	case len(rows) < len(outages)*len(outageSteps): // not all were asked for, or some have failed
	case update:
		require.NoError(t, os.WriteFile(outageDocument, []byte(intro+outageMark+table), 0o644))
	default:
		require.Equal(t, table, written, "IDEMPOTENT_UPDATE=1 writes %s anew", outageDocument)
	}
}

// outageTable writes what was measured, and how.
func outageTable(rows map[string]string) string {
	var b strings.Builder
	b.WriteString("\n| fault | step | client sees | handler | in the store then | took | afterwards |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for _, o := range outages {
		for _, step := range outageSteps {
			b.WriteString(rows[o.name+"/"+step])
		}
	}
	b.WriteString("\nHow each fault is made, always with a real redis-server:\n\n| fault | made by |\n| --- | --- |\n")
	for _, o := range outages {
		fmt.Fprintf(&b, "| %s | %s |\n", o.name, o.played)
	}
	return b.String()
}

// outageShop is a service whose operation waits, in the middle of its first
// run, until the test lets it go on.
type outageShop struct {
	t      *testing.T
	step   string
	guard  *idempotent.Guard
	server *httptest.Server

	started chan struct{} // closed when the first run is in the middle
	proceed chan struct{} // closed to let it go on
	let     func()        // closes proceed; may be called twice
	runs    atomic.Int32
	done    atomic.Int32 // how often the operation has happened
	cause   atomic.Value // why the context of the first run ended: an error, or nothing

	mu     sync.Mutex // guards events
	events []idempotent.Event
}

func newOutageShop(t *testing.T, s *outageScene, step string) *outageShop {
	t.Helper()
	store := redisstore.New(s.client)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	shop := &outageShop{t: t, step: step, started: make(chan struct{}), proceed: make(chan struct{})}
	shop.let = sync.OnceFunc(func() { close(shop.proceed) })
	lease := outageLease
	if step == waitStep {
		lease = outageLeaseMost
	}
	shop.guard = idempotent.New(store,
		idempotent.WithLease(lease), idempotent.WithSuccessRetention(outageRetention), idempotent.WithStoreTimeout(outageStoreTimeout),
		idempotent.WithLogger(slog.New(slog.DiscardHandler)), idempotent.WithObserver(shop))
	shop.server = httptest.NewServer(shop.guard.Middleware(idempotent.Anonymous)(shop))
	t.Cleanup(shop.server.Close)
	t.Cleanup(shop.let)
	t.Cleanup(func() {
		if t.Failed() {
			shop.mu.Lock()
			defer shop.mu.Unlock()
			for _, e := range shop.events {
				t.Log(e.Kind, e.Status, e.Took, e.Err)
			}
		}
	})
	return shop
}

// ServeHTTP is the operation.
func (shop *outageShop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if shop.runs.Add(1) > 1 || shop.step == claimStep {
		shop.done.Add(1)
		w.WriteHeader(http.StatusCreated)
		return
	}
	if shop.step != releaseStep {
		shop.done.Add(1)
	}
	close(shop.started)
	// Only an operation that has much left to do looks at its context.
	var told <-chan struct{}
	if shop.step == renewStep {
		told = r.Context().Done()
	}
	select {
	case <-shop.proceed:
	case <-told:
	}
	if cause := context.Cause(r.Context()); cause != nil {
		shop.cause.Store(cause)
		return
	}
	if shop.step == releaseStep {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusCreated)
}

// Observe keeps every event.
func (shop *outageShop) Observe(_ context.Context, e idempotent.Event) {
	shop.mu.Lock()
	defer shop.mu.Unlock()
	shop.events = append(shop.events, e)
}

// failures counts the attempts of a step that failed, and those of them that
// the store time-out ended.
func (shop *outageShop) failures(op string) (all, late int) {
	shop.mu.Lock()
	defer shop.mu.Unlock()
	for _, e := range shop.events {
		var failed *idempotent.StoreError
		if e.Kind != idempotent.EventStoreError || !errors.As(e.Err, &failed) || failed.Op != op {
			continue
		}
		all++
		if errors.Is(e.Err, context.DeadlineExceeded) {
			late++
		}
	}
	return all, late
}

func (shop *outageShop) told(kind idempotent.EventKind) bool {
	shop.mu.Lock()
	defer shop.mu.Unlock()
	for _, e := range shop.events {
		if e.Kind == kind {
			return true
		}
	}
	return false
}

// outageAnswer is what a client sees.
type outageAnswer struct {
	status   int
	code     string // of a refusal
	replayed bool
	at       time.Time
	err      error
}

func (a outageAnswer) String() string {
	text := fmt.Sprint(a.status)
	switch {
	case a.err != nil:
		return a.err.Error()
	case a.code != "":
		text += " " + a.code
	case a.status == http.StatusServiceUnavailable:
		text += " of the handler"
	}
	if a.replayed {
		text += ", replayed"
	}
	return text
}

const (
	outagePath = "/orders"
	outageKey  = "k-1"
)

// send makes the request whose key the cell is about.
func (shop *outageShop) send(prefer ...string) outageAnswer {
	r, err := http.NewRequestWithContext(shop.t.Context(), http.MethodPost, shop.server.URL+outagePath, strings.NewReader(`{"amount":1}`))
	if err != nil {
		return outageAnswer{err: err}
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", outageKey)
	for _, p := range prefer {
		r.Header.Set("Prefer", p)
	}
	response, err := shop.server.Client().Do(r)
	if err != nil {
		return outageAnswer{err: err}
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	a := outageAnswer{status: response.StatusCode, replayed: response.Header.Get("Idempotent-Replayed") == "true", at: time.Now(), err: err}
	if response.Header.Get("Content-Type") == "application/problem+json" {
		var problem struct{ Code string }
		a.err = errors.Join(err, json.NewDecoder(bytes.NewReader(body)).Decode(&problem))
		a.code = problem.Code
	}
	if (a.status == http.StatusServiceUnavailable || a.code == "in-flight") && response.Header.Get("Retry-After") != "1" {
		a.err = errors.Join(a.err, fmt.Errorf("%s without Retry-After: 1", a))
	}
	return a
}

// later sends a request in the background.
func (shop *outageShop) later(prefer ...string) <-chan outageAnswer {
	answer := make(chan outageAnswer, 1)
	go func() { answer <- shop.send(prefer...) }()
	return answer
}

// outagePlay is one cell while it is played.
type outagePlay struct {
	*testing.T
	o     outage
	scene *outageScene
	shop  *outageShop
	row   outageRow
}

// playOutage measures one cell: step meets o.
func playOutage(t *testing.T, o outage, step string) outageRow {
	scene := o.open(t)
	scene.name = redisstore.DefaultPrefix + idempotent.StoreKey(http.MethodPost, outagePath, "anonymous", outageKey)
	p := &outagePlay{T: t, o: o, scene: scene, shop: newOutageShop(t, scene, step)}
	var answer outageAnswer
	var since time.Time // when the part began that the fault can make longer
	switch step {
	case claimStep:
		answer, since = p.claim()
	case renewStep:
		answer, since = p.renew()
	case completeStep, releaseStep:
		answer, since = p.settle()
	case waitStep:
		answer, since = p.wait()
	}
	require.NoError(t, answer.err)
	require.Less(t, answer.at.Sub(since), outageBound)
	p.row.client = answer.String()
	p.end(step)
	return p.row
}

// fault begins the fault.
func (p *outagePlay) fault() { p.o.fail(p.scene) }

// note writes down what has come of the request, before the fault ends.
func (p *outagePlay) note() {
	switch runs := p.shop.runs.Load(); runs {
	case 0:
		p.row.handler = "not run"
	case 1:
		p.row.handler = "ran once"
	default:
		p.row.handler = fmt.Sprintf("**ran %d times**", runs)
	}
	if cause, ok := p.shop.cause.Load().(error); ok {
		require.ErrorIs(p, cause, idempotent.ErrLost)
		p.row.handler += ", cancelled (claim lost)"
	}
	p.row.left = "cannot be read"
	if !p.o.unreadable {
		p.row.left = p.scene.left()
	}
}

// took classifies by the attempts that the store time-out has ended, not by a
// clock: a busy machine changes nothing.
func (p *outagePlay) took(op string) string {
	switch _, late := p.shop.failures(op); late {
	case 0:
		return "less than a time-out"
	case 1:
		return "one time-out"
	default:
		return fmt.Sprint(late, " time-outs")
	}
}

// claim begins the fault before the request is sent. Where the fault is that
// entries are forgotten, there is one: the operation has been carried out.
func (p *outagePlay) claim() (answer outageAnswer, since time.Time) {
	if p.o.forgets {
		require.Equal(p, "201", p.shop.send().String())
	}
	p.fault()
	since = time.Now()
	answer = p.shop.send()
	if answer.status != http.StatusCreated {
		require.Zero(p, p.shop.runs.Load(), "a claim failed and the handler was run")
	}
	if p.o.deaf {
		// The claim stands, until its first release has been sent.
		p.scene.eventually("a release has met the fault", func() bool {
			all, _ := p.shop.failures("release")
			return all > 0
		})
	}
	p.row.took = p.took("claim")
	p.note()
	p.o.mend(p.scene)
	return answer, since
}

// renew begins the fault while the operation runs, and ends it when a renewal
// has met it. The operation goes on until one has succeeded, or until it is
// told that there is nothing to renew.
func (p *outagePlay) renew() (answer outageAnswer, since time.Time) {
	first := p.shop.later()
	p.begun(first)
	p.fault()
	before := p.scene.until()
	lost := false
	p.scene.eventually("a renewal has met the fault", func() bool {
		all, _ := p.shop.failures("renew")
		lost = p.shop.told(idempotent.EventLost)
		return lost || all > 0 || before > 0 && p.scene.until() > before
	})
	since = time.Now()
	if lost {
		answer = <-first
		p.row.took = p.took("complete")
		p.note()
		p.o.mend(p.scene)
		return answer, since
	}
	p.note()
	p.o.mend(p.scene)
	before = p.scene.until()
	p.scene.eventually("renewals go on", func() bool { return p.scene.until() > before })
	since = time.Now()
	p.shop.let()
	answer = <-first
	p.row.took = p.took("complete")
	return answer, since
}

// settle begins the fault while the operation runs, which then ends.
func (p *outagePlay) settle() (answer outageAnswer, since time.Time) {
	first := p.shop.later()
	p.begun(first)
	p.fault()
	since = time.Now()
	p.shop.let()
	answer = <-first
	p.row.took = p.took(strings.ToLower(p.shop.step))
	p.note()
	p.o.mend(p.scene)
	return answer, since
}

// wait begins the fault while the operation runs and a duplicate waits for it.
// The operation ends under the fault; where that is that entries are
// forgotten, it goes on until the duplicate has its answer.
func (p *outagePlay) wait() (answer outageAnswer, since time.Time) {
	first := p.shop.later()
	p.begun(first)
	duplicate := p.shop.later("wait=" + outageWait)
	p.scene.eventually("the duplicate waits to be told", func() bool { return p.scene.do("HEXISTS", p.scene.name, "wait") == "1" })
	p.fault()
	since = time.Now()
	if !p.o.forgets {
		p.shop.let()
	}
	answer = <-duplicate
	p.row.took = "less than the wait"
	if answer.code == "in-flight" {
		p.row.took = "the wait"
	}
	if !p.o.forgets {
		require.Equal(p, "201", (<-first).String())
	}
	p.note()
	p.o.mend(p.scene)
	if p.o.forgets {
		p.shop.let()
		require.Equal(p, "201", (<-first).String())
	}
	return answer, since
}

// begun returns when the first run is in the middle.
func (p *outagePlay) begun(first <-chan outageAnswer) {
	select {
	case <-p.shop.started:
	case answer := <-first:
		require.Fail(p, "the handler was not run", answer.String())
	}
}

// end repeats the request, now that the fault is over, until the key is in one
// of the states that the promise names, and checks that it stays there.
func (p *outagePlay) end(step string) {
	var answer outageAnswer
	p.scene.eventually("the key is neither in flight nor unavailable", func() bool {
		answer = p.shop.send()
		return answer.code != "in-flight" && answer.code != "store-unavailable"
	})
	switch answer.String() {
	case "201, replayed":
		p.row.after = "replay"
	case "409 outcome-unknown, replayed", "409 outcome-unknown":
		p.row.after = "outcome-unknown"
	case "201":
		p.row.after = "free: the repeat runs"
		require.Equal(p, "201, replayed", p.shop.send().String())
	default:
		require.Fail(p, "the key is in no documented state", answer.String())
	}

	// All bookkeeping ends, and changes nothing more.
	last := p.shop.send().String()
	ctx, cancel := context.WithTimeout(p.Context(), 2*(outageLease+outageStoreTimeout))
	defer cancel()
	require.NoError(p, p.shop.guard.Drain(ctx))
	require.Equal(p, last, p.shop.send().String())
	p.scene.requireExpiries()

	most := int32(1)
	if p.o.forgets && (step == claimStep || step == waitStep) {
		// The documented limit: what the store has forgotten nobody can know.
		most = 2
	}
	require.Equal(p, most, p.shop.done.Load(), "how often the operation has happened")
}
