package httptestsuite

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/storetest"
)

// usualPatience is how long a case waits for something that must happen.
const usualPatience = 10 * time.Second

// testCase is one rule.
type testCase struct {
	name string // with the number of the row
	why  string // printed when the case fails
	run  func(c *trial)
}

// allCases returns the whole suite, in the order of the table.
func allCases() []testCase {
	var all []testCase
	for _, part := range [][]testCase{intakeCases, scopeCases, flightCases, replayCases, outcomeCases, troubleCases} {
		all = append(all, part...)
	}
	return all
}

// check runs the case on the adapter.
func (tc testCase) check(t testing.TB, a Adapter, patience time.Duration) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("the rule: %s", tc.why)
		}
	}()
	tc.run(&trial{TB: t, adapter: a, patience: patience})
}

// setup is what differs from the usual server: a guard with its defaults, the
// principal of the field X-User ("alice" without one, nobody for "nobody", an
// error for "broken"), and an operation that answers 201 with the number of its
// run.
type setup struct {
	guard   []idempotent.Option
	options []idempotent.HTTPOption
	operate func(ctx context.Context, body []byte) Reply
}

// trial is one case under way. Its methods fail the case where an answer is
// not as they say.
type trial struct {
	testing.TB
	adapter  Adapter
	patience time.Duration
	store    *storetest.Faulty
	guard    *idempotent.Guard
	url      string
	client   *http.Client

	runs     atomic.Int64 // of the operation
	attempts atomic.Int64 // that the layer outside has seen

	mu    sync.Mutex // guards both
	came  context.Context
	gates []*gate
}

func (c *trial) serve(s setup) {
	c.Helper()
	quiet := slog.New(slog.DiscardHandler)
	inner := memstore.New(memstore.WithLogger(quiet))
	c.Cleanup(func() { _ = inner.Close() })
	c.store = storetest.NewFaulty(inner)
	c.guard = idempotent.New(c.store, append([]idempotent.Option{idempotent.WithLogger(quiet)}, s.guard...)...)
	if s.operate == nil {
		s.operate = func(context.Context, []byte) Reply { return c.created() }
	}
	c.url = c.adapter.Serve(c.TB, App{
		Guard:     c.guard,
		Principal: c.principal,
		Options:   s.options,
		Operate: func(ctx context.Context, body []byte) Reply {
			c.runs.Add(1)
			return s.operate(ctx, body)
		},
		Outside: func(set func(name, value string)) {
			set("X-Attempt", fmt.Sprint("attempt ", c.attempts.Add(1)))
		},
	})
	transport := &http.Transport{DisableCompression: true, ExpectContinueTimeout: c.patience}
	c.client = &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	// Before the server is closed, which waits for its handlers.
	c.Cleanup(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, g := range c.gates {
			g.open()
		}
		transport.CloseIdleConnections()
	})
}

// principal is as setup says, and remembers the context of the request as the
// adapter had it from its server.
func (c *trial) principal(r *http.Request) (string, error) {
	c.mu.Lock()
	c.came = r.Context()
	c.mu.Unlock()
	switch user := r.Header.Get("X-User"); user {
	case "nobody":
		return "", idempotent.ErrUnauthenticated
	case "broken":
		return "", errors.New("the directory is away")
	default:
		return cmp.Or(user, "alice"), nil
	}
}

// created is the usual reply.
func (c *trial) created() Reply {
	n := c.runs.Load()
	return Reply{
		Status: http.StatusCreated,
		Header: http.Header{"Content-Type": {"text/plain; charset=utf-8"}, "Location": {fmt.Sprint("/orders/", n)}},
		Body:   fmt.Sprint("run ", n),
	}
}

// plain is a reply with that status and a text.
func plain(status int) Reply {
	return Reply{Status: status, Header: http.Header{"Content-Type": {"text/plain; charset=utf-8"}}, Body: fmt.Sprint("answer ", status)}
}

// gate stops an operation until it is opened.
type gate struct {
	entered chan struct{} // has room for one
	opened  chan struct{}
	once    sync.Once
}

func (c *trial) gate() *gate {
	g := &gate{entered: make(chan struct{}, 1), opened: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gates = append(c.gates, g)
	return g
}

func (g *gate) open() { g.once.Do(func() { close(g.opened) }) }

// pass stops its caller until the gate is open.
func (g *gate) pass() {
	select {
	case g.entered <- struct{}{}:
	default:
	}
	<-g.opened
}

// reached waits until somebody stands before the gate.
func (c *trial) reached(g *gate) {
	c.Helper()
	select {
	case <-g.entered:
	case <-time.After(c.patience):
		c.Fatalf("the operation did not begin within %v", c.patience)
	}
}

// until waits for a condition.
func (c *trial) until(what string, holds func() bool) {
	c.Helper()
	for end := time.Now().Add(c.patience); !holds(); <-time.After(2 * time.Millisecond) {
		if time.Now().After(end) {
			c.Fatalf("still not so after %v: %s", c.patience, what)
		}
	}
}

// request is POST /orders with a JSON body, and the fields given as pairs of
// name and value, each a line of its own. The key is the field's value as
// sent; none is sent for "".
type request struct {
	method, path, key, body string
	fields                  []string
}

const someBody = `{"amount":1}`

// answer is what a client got.
type answer struct {
	interim []string // of each: its status, and what Link says
	status  int
	header  http.Header
	body    string
	length  int64
	trailer http.Header
}

func (a answer) replayed() bool { return a.header.Get("Idempotent-Replayed") == "true" }

func (a answer) String() string { return fmt.Sprintf("%d %v %.200q", a.status, a.header, a.body) }

func (c *trial) build(ctx context.Context, q request) *http.Request {
	c.Helper()
	r, err := http.NewRequestWithContext(ctx, cmp.Or(q.method, http.MethodPost), c.url+cmp.Or(q.path, "/orders"), strings.NewReader(cmp.Or(q.body, someBody)))
	if err != nil {
		c.Fatalf("%v", err)
	}
	r.Header.Set("Content-Type", "application/json")
	if q.key != "" {
		r.Header.Set("Idempotency-Key", q.key)
	}
	for i := 0; i < len(q.fields); i += 2 {
		if name, value := q.fields[i], q.fields[i+1]; name == "Content-Type" {
			r.Header.Set(name, value)
		} else {
			r.Header.Add(name, value)
		}
	}
	return r
}

func (c *trial) do(r *http.Request) (answer, error) {
	var interim []string
	res, err := c.client.Do(r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(status int, h textproto.MIMEHeader) error {
			interim = append(interim, strings.Join(append([]string{strconv.Itoa(status)}, h["Link"]...), " "))
			return nil
		},
	})))
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	return answer{
		interim: interim, status: res.StatusCode, header: res.Header, body: string(body), length: res.ContentLength, trailer: res.Trailer,
	}, err
}

// try sends a request, of which nothing may come back.
func (c *trial) try(q request) (answer, error) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), c.patience)
	defer cancel()
	return c.do(c.build(ctx, q))
}

// send sends a request and expects an answer.
func (c *trial) send(q request) answer {
	c.Helper()
	a, err := c.try(q)
	if err != nil {
		c.Fatalf("%s %s: %v; want an answer", cmp.Or(q.method, http.MethodPost), cmp.Or(q.path, "/orders"), err)
	}
	return a
}

// post sends the usual request under key.
func (c *trial) post(key string, fields ...string) answer {
	c.Helper()
	return c.send(request{key: key, fields: fields})
}

// attempt is a request on its way.
type attempt struct {
	c      *trial
	cancel context.CancelFunc
	done   chan struct{}
	answer answer
	err    error
}

func (c *trial) begin(q request) *attempt {
	c.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), c.patience)
	a := &attempt{c: c, cancel: cancel, done: make(chan struct{})}
	r := c.build(ctx, q)
	go func() {
		defer close(a.done)
		a.answer, a.err = c.do(r)
	}()
	c.Cleanup(cancel)
	return a
}

// wait returns the answer.
func (a *attempt) wait() answer {
	a.c.Helper()
	<-a.done
	if a.err != nil {
		a.c.Fatalf("the request that was under way: %v; want an answer", a.err)
	}
	return a.answer
}

// ran expects the operation to have begun so often until now.
func (c *trial) ran(want int64) {
	c.Helper()
	if got := c.runs.Load(); got != want {
		c.Fatalf("the operation ran %d times; want %d", got, want)
	}
}

// untouched expects the store not to have been asked.
func (c *trial) untouched() {
	c.Helper()
	if n := c.store.Calls(storetest.OpClaim) + c.store.Calls(storetest.OpLoad); n != 0 {
		c.Fatalf("the store was asked %d times; want it left alone", n)
	}
}

// fresh expects the answer of a run.
func (c *trial) fresh(a answer, status int) {
	c.Helper()
	if a.status != status || a.header["Idempotent-Replayed"] != nil {
		c.Fatalf("got %v; want the fresh answer with status %d", a, status)
	}
}

// replayOf expects what first was answered with, marked, and every field of it
// that is not of one message.
func (c *trial) replayOf(first, a answer) {
	c.Helper()
	if a.status != first.status || a.body != first.body {
		c.Fatalf("got %v; want the replay of %v", a, first)
	}
	if got := a.header["Idempotent-Replayed"]; len(got) != 1 || got[0] != "true" {
		c.Fatalf("the marker of the replay is %q; want it once, and true", got)
	}
	for name, want := range first.header {
		switch name {
		case "Date", "Content-Length", "Connection", "Transfer-Encoding", "Set-Cookie", "X-Attempt":
			continue
		}
		if got := a.header[name]; strings.Join(got, "\n") != strings.Join(want, "\n") {
			c.Fatalf("the replay has %s %q; want %q as in the first answer", name, got, want)
		}
	}
}

// refused expects a problem document.
func (c *trial) refused(a answer, status int, code string) (doc map[string]any) {
	c.Helper()
	if a.status != status || a.header.Get("Content-Type") != "application/problem+json" {
		c.Fatalf("got %v; want %d %s as application/problem+json", a, status, code)
	}
	if got := a.header.Get("Cache-Control"); got != "no-store" {
		c.Fatalf("Cache-Control is %q; want no-store", got)
	}
	if err := json.Unmarshal([]byte(a.body), &doc); err != nil {
		c.Fatalf("the problem document %q: %v", a.body, err)
	}
	kind, _ := doc["type"].(string)
	if doc["status"] != float64(status) || doc["code"] != code || !strings.HasSuffix(kind, "#"+code) {
		c.Fatalf("the problem document is %s; want status %d and code %s", a.body, status, code)
	}
	return doc
}

// pauses expects Retry-After in whole seconds, one at least.
func (c *trial) pauses(a answer) {
	c.Helper()
	var seconds int
	if _, err := fmt.Sscanf(a.header.Get("Retry-After"), "%d", &seconds); err != nil || seconds < 1 {
		c.Fatalf("Retry-After is %q; want whole seconds, one at least", a.header.Get("Retry-After"))
	}
}
