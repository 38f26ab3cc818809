package idempotent_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"log"
	"log/slog"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/redisstore"
	"github.com/idempotent-go/idempotent/storetest"
)

// The tests of the files behaviour_*_test.go are named after the rows of the
// behaviour table, TestB<nn>_…, one at least for each row that
// testdata/behaviour-rows.txt lists. They go through a server and a client,
// and after each answer they look at what the store holds.

// patience is how long a test waits for something that must happen.
const patience = time.Minute

// world is a kind of store to run a row on.
type world struct {
	name string
	fake bool // in a bubble: time is fake, and connections are pipes
	open func(t *testing.T) idempotent.Store
}

var memory = world{name: "memstore", open: func(t *testing.T) idempotent.Store {
	s := memstore.New(memstore.WithLogger(slog.New(slog.DiscardHandler)))
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}}

// worlds are all kinds of store.
var worlds = []world{
	memory,
	{name: "redis", open: func(t *testing.T) idempotent.Store { return openRedis(t, redistest.Shared(t).Addr) }},
	{name: "miniredis", open: func(t *testing.T) idempotent.Store { return openRedis(t, miniredis.RunT(t).Addr()) }},
}

var redisPrefixes atomic.Int64

func openRedis(t *testing.T, addr string) *redisstore.Store {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr, DisableIdentity: true})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	s := redisstore.New(client, redisstore.WithPrefix(fmt.Sprintf("b%d:", redisPrefixes.Add(1))))
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// eachStore runs a row on every kind of store, over real sockets.
func eachStore(t *testing.T, run func(t *testing.T, w world)) {
	t.Helper()
	t.Parallel()
	eachStoreOf(t, run)
}

// eachStoreOf is eachStore for a part of a row.
func eachStoreOf(t *testing.T, run func(t *testing.T, w world)) {
	t.Helper()
	for _, w := range worlds {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			run(t, w)
		})
	}
}

// eachClock runs a row that needs time to pass: on the memory store in a
// bubble, on a Redis server in real time. In miniredis nothing expires by
// itself.
func eachClock(t *testing.T, run func(t *testing.T, w world)) {
	t.Helper()
	t.Parallel()
	eachClockOf(t, run)
}

// eachClockOf is eachClock for a part of a row.
func eachClockOf(t *testing.T, run func(t *testing.T, w world)) {
	t.Helper()
	for _, w := range worlds {
		if w.name == "miniredis" {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			if w.name != memory.name {
				run(t, w)
				return
			}
			w.fake = true
			synctest.Test(t, func(t *testing.T) { run(t, w) })
		})
	}
}

// onFakeTime runs a row on the memory store in a bubble.
func onFakeTime(t *testing.T, run func(t *testing.T, w world)) {
	t.Helper()
	t.Parallel()
	onFakeTimeOf(t, run)
}

// onFakeTimeOf is onFakeTime for a part of a row.
func onFakeTimeOf(t *testing.T, run func(t *testing.T, w world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := memory
		w.fake = true
		run(t, w)
	})
}

// lease is long enough to look at a key inside it and short enough to wait for
// its end.
func (w world) lease() time.Duration {
	if w.fake {
		return idempotent.DefaultLease
	}
	return 800 * time.Millisecond
}

// setup is what differs from the usual server: a guard with its defaults, the
// principal of the header X-User ("alice" without one), and a handler that
// answers 201 with the number of its run.
type setup struct {
	store     idempotent.Store // nil: one of the world's
	guard     []idempotent.Option
	options   []idempotent.HTTPOption
	principal idempotent.PrincipalFunc
	handler   http.HandlerFunc
	inner     func(http.Handler) http.Handler // between the middleware and the handler
	outer     func(http.Handler) http.Handler // around the middleware
	http2     bool
}

// bench is one server over one store, with a client.
type bench struct {
	t      *testing.T
	world  world
	inner  idempotent.Store  // where the data is
	store  *storetest.Faulty // what the guard sees
	guard  *idempotent.Guard
	server *httptest.Server
	client *http.Client
	dial   func(ctx context.Context) (net.Conn, error)
	logs   lockedBuffer

	runs    atomic.Int64 // how often the handler began
	running atomic.Int64
	most    atomic.Int64 // the most handlers that ran at one time

	mu     sync.Mutex // guards events
	events []idempotent.Event
}

func (w world) bench(t *testing.T, s setup) *bench {
	t.Helper()
	b := &bench{t: t, world: w, inner: s.store}
	if b.inner == nil {
		b.inner = w.open(t)
	}
	b.store = storetest.NewFaulty(b.inner)
	storeTimeout := patience // a busy machine is no outage
	if w.fake {
		storeTimeout = idempotent.DefaultStoreTimeout
	}
	b.guard = idempotent.New(b.store, append([]idempotent.Option{
		idempotent.WithStoreTimeout(storeTimeout),
		idempotent.WithObserver(idempotent.ObserverFunc(b.observe)),
		idempotent.WithLogger(slog.New(slog.NewTextHandler(&b.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))),
	}, s.guard...)...)
	if s.principal == nil {
		s.principal = func(r *http.Request) (string, error) { return cmp.Or(r.Header.Get("X-User"), "alice"), nil }
	}
	if s.handler == nil {
		s.handler = b.created
	}
	var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.runs.Add(1)
		n := b.running.Add(1)
		defer b.running.Add(-1)
		for most := b.most.Load(); n > most && !b.most.CompareAndSwap(most, n); most = b.most.Load() {
		}
		s.handler(w, r)
	})
	if s.inner != nil {
		h = s.inner(h)
	}
	h = b.guard.Middleware(s.principal, s.options...)(h)
	if s.outer != nil {
		h = s.outer(h)
	}
	b.serve(h, s.http2)
	return b
}

// serve starts server and client, in a bubble over pipes.
func (b *bench) serve(h http.Handler, http2 bool) {
	config := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}
	if b.world.fake {
		l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
		b.server = &httptest.Server{Listener: l, Config: config}
		b.dial = l.dial
	} else {
		b.server = httptest.NewUnstartedServer(nil)
		b.server.Config = config
		b.dial = func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", b.server.Listener.Addr().String())
		}
	}
	if http2 {
		b.server.EnableHTTP2 = true
		b.server.StartTLS()
		b.client = b.server.Client()
		b.t.Cleanup(func() {
			releaseGates(b.t)
			b.server.Close()
		})
		return
	}
	b.server.Start()
	b.client = &http.Client{
		Transport: &http.Transport{
			DisableCompression: true,
			DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return b.dial(ctx) },
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	b.t.Cleanup(func() {
		releaseGates(b.t)
		b.client.CloseIdleConnections()
		b.server.Close()
	})
}

// created is the usual handler.
func (b *bench) created(w http.ResponseWriter, _ *http.Request) {
	n := b.runs.Load()
	w.Header().Set("Location", fmt.Sprintf("/orders/%d", n))
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "run %d", n)
}

func (b *bench) observe(_ context.Context, e idempotent.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = append(b.events, e)
}

// observed counts the events of a kind.
func (b *bench) observed(kind idempotent.EventKind) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// until waits for a condition.
func (b *bench) until(what string, holds func() bool) {
	b.t.Helper()
	step, most := 2*time.Millisecond, patience
	if b.world.fake {
		step, most = 100*time.Millisecond, time.Hour
	}
	for end := time.Now().Add(most); !holds(); <-time.After(step) {
		if time.Now().After(end) {
			b.t.Fatalf("still not so after %v: %s", most, what)
		}
	}
}

// pass lets fake time pass.
func (b *bench) pass(d time.Duration) {
	b.t.Helper()
	require.True(b.t, b.world.fake, "time passes in bubbles only")
	<-time.After(d)
}

// answer is what a client got.
type answer struct {
	status  int
	header  http.Header
	trailer http.Header
	body    string
	length  int64
	err     error // reading the body
}

func (a answer) replayed() bool { return a.header.Get("Idempotent-Replayed") == "true" }

// order is a request: POST /orders with a JSON body, and the fields given as
// pairs of name and value. The key is the field's value as sent; none is sent
// for "".
type order struct {
	method, path, key, body string
	fields                  []string
}

const someBody = `{"amount":1}`

func (b *bench) request(ctx context.Context, o order) *http.Request {
	b.t.Helper()
	var body io.Reader = strings.NewReader(cmp.Or(o.body, someBody))
	if o.body == "none" {
		body = nil
	}
	r, err := http.NewRequestWithContext(ctx, cmp.Or(o.method, "POST"), b.server.URL+cmp.Or(o.path, "/orders"), body)
	require.NoError(b.t, err)
	r.Header.Set("Content-Type", "application/json")
	if o.key != "" {
		r.Header.Set("Idempotency-Key", o.key)
	}
	for i := 0; i < len(o.fields); i += 2 {
		switch name, value := o.fields[i], o.fields[i+1]; {
		case value == "absent":
			r.Header.Del(name)
		case name == "Host":
			r.Host = value
		case name == "Content-Type":
			r.Header.Set(name, value)
		default:
			r.Header.Add(name, value)
		}
	}
	return r
}

// try sends an order; it may be called from any goroutine.
func (b *bench) try(ctx context.Context, o order) (answer, error) {
	return b.trySend(b.request(ctx, o))
}

func (b *bench) trySend(r *http.Request) (answer, error) {
	res, err := b.client.Do(r)
	if err != nil {
		return answer{}, err
	}
	return readAnswer(res), nil
}

func readAnswer(res *http.Response) answer {
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	return answer{status: res.StatusCode, header: res.Header, trailer: res.Trailer, body: string(body), length: res.ContentLength, err: err}
}

// send sends an order and fails the test where no answer comes.
func (b *bench) send(o order) answer {
	b.t.Helper()
	ctx := b.t.Context()
	if !b.world.fake {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	a, err := b.try(ctx, o)
	require.NoError(b.t, err)
	return a
}

// post sends the usual order under key.
func (b *bench) post(key string, fields ...string) answer {
	b.t.Helper()
	return b.send(order{key: key, fields: fields})
}

// formWithFile returns a form with a file of 200 KiB in it, and its Content-Type.
func formWithFile(t *testing.T) (form, contentType string) {
	t.Helper()
	var b strings.Builder
	m := multipart.NewWriter(&b)
	part, err := m.CreateFormFile("file", "x")
	require.NoError(t, err)
	_, err = part.Write(make([]byte, 200<<10))
	require.NoError(t, err)
	require.NoError(t, m.Close())
	return b.String(), m.FormDataContentType()
}

// attempt is an order on its way.
type attempt struct {
	b      *bench
	cancel context.CancelFunc
	done   chan struct{}
	answer answer
	err    error
}

func (b *bench) begin(o order) *attempt {
	ctx, cancel := context.WithCancel(context.Background())
	a := &attempt{b: b, cancel: cancel, done: make(chan struct{})}
	r := b.request(ctx, o)
	go func() {
		defer close(a.done)
		a.answer, a.err = b.trySend(r)
	}()
	b.t.Cleanup(cancel)
	return a
}

// wait returns the answer.
func (a *attempt) wait() answer {
	a.b.t.Helper()
	a.b.receive("the answer", a.done)
	require.NoError(a.b.t, a.err)
	return a.answer
}

// receive waits for a channel.
func (b *bench) receive(what string, ch <-chan struct{}) {
	b.t.Helper()
	select {
	case <-ch:
	case <-b.patience():
		b.t.Fatalf("nothing came: %s", what)
	}
}

// next waits for the next value of a channel.
func next[T any](b *bench, ch <-chan T) (v T) {
	b.t.Helper()
	select {
	case v = <-ch:
	case <-b.patience():
		b.t.Fatalf("nothing came: %T", v)
	}
	return v
}

// patience ends when a test has waited for long enough.
func (b *bench) patience() <-chan time.Time {
	if b.world.fake {
		return time.After(24 * time.Hour)
	}
	return time.After(patience)
}

// raw sends bytes over a connection of its own and returns it with a reader.
func (b *bench) raw(text string) (net.Conn, *bufio.Reader) {
	b.t.Helper()
	conn, err := b.dial(b.t.Context())
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = conn.Close() })
	if !b.world.fake {
		require.NoError(b.t, conn.SetDeadline(time.Now().Add(patience)))
	}
	_, err = io.WriteString(conn, text)
	require.NoError(b.t, err)
	return conn, bufio.NewReader(conn)
}

// rawAnswer sends bytes and reads one answer.
func (b *bench) rawAnswer(text string) answer {
	b.t.Helper()
	_, r := b.raw(text)
	res, err := http.ReadResponse(r, nil)
	require.NoError(b.t, err)
	return readAnswer(res)
}

// rawOrder is an HTTP/1.1 request with the usual body.
func rawOrder(lines ...string) string {
	return "POST /orders HTTP/1.1\r\nHost: shop\r\nContent-Type: application/json\r\nContent-Length: " +
		strconv.Itoa(len(someBody)) + "\r\n" + strings.Join(append(lines, "", ""), "\r\n") + someBody
}

// name is where the store keeps the usual order under key.
func name(key string) string { return idempotent.StoreKey("POST", "/orders", "alice", key) }

// load reads an entry past the guard.
func (b *bench) load(name string) (idempotent.Entry, bool) {
	b.t.Helper()
	e, found, err := b.inner.Load(context.Background(), name)
	require.NoError(b.t, err)
	return e, found
}

func (b *bench) requireAbsent(key string) {
	b.t.Helper()
	e, found := b.load(name(key))
	require.False(b.t, found, "the store holds %+v", e)
}

func (b *bench) absent(key string) bool {
	_, found := b.load(name(key))
	return !found
}

// requireEntry checks that the store holds what is recorded for the usual
// order under key.
func (b *bench) requireEntry(key string, class idempotent.Class) idempotent.Entry {
	b.t.Helper()
	return b.requireNamed(name(key), class)
}

func (b *bench) requireNamed(name string, class idempotent.Class) idempotent.Entry {
	b.t.Helper()
	e, found := b.load(name)
	require.True(b.t, found, "the store holds nothing under %s", name)
	require.Equal(b.t, name, e.Key)
	status, unknown, retention := idempotent.Failed, false, idempotent.DefaultSuccessRetention
	switch class {
	case idempotent.ClassSuccess:
		status = idempotent.Success
	case idempotent.ClassFailure:
		retention = idempotent.DefaultFailureRetention
	case idempotent.ClassUnknown:
		unknown = true
	default:
		status = idempotent.Pending
		retention = e.Expires.Sub(e.Timestamp)
	}
	require.Equal(b.t, status, e.Status)
	require.Equal(b.t, unknown, e.Unknown)
	require.InDelta(b.t, retention, e.Expires.Sub(e.Timestamp), float64(10*time.Millisecond), "retention")
	require.NotEmpty(b.t, e.Owner)
	require.NotEmpty(b.t, e.Fingerprint)
	return e
}

// untilSettled waits until the usual order under key has an outcome: a client
// can have its whole answer before that where the handler flushes.
func (b *bench) untilSettled(key string) {
	b.t.Helper()
	b.until("recorded", func() bool {
		e, found := b.load(name(key))
		return found && e.Status != idempotent.Pending
	})
}

// storeCalls counts what the guard asked of the store.
func (b *bench) storeCalls() (n int) {
	for _, op := range []storetest.Op{
		storetest.OpLoad, storetest.OpClaim, storetest.OpRenew, storetest.OpComplete, storetest.OpRelease,
		storetest.OpWait, storetest.OpDelete, storetest.OpSweep, storetest.OpPing, storetest.OpList,
	} {
		n += b.store.Calls(op)
	}
	return n
}

// requireUntouched checks that nothing ran and the store was not asked.
func (b *bench) requireUntouched() {
	b.t.Helper()
	require.Zero(b.t, b.runs.Load(), "runs of the handler")
	require.Zero(b.t, b.storeCalls(), "calls of the store")
}

// refusal is what a problem document must say.
type refusal struct {
	status                int
	retryable, newKeySafe bool
	retryAfter, state     string
	replayed              bool
	base                  string
}

var refusals = map[string]refusal{
	"key-missing":        {status: 400, newKeySafe: true},
	"key-invalid":        {status: 400, newKeySafe: true},
	"body-unreadable":    {status: 400, retryable: true},
	"unauthenticated":    {status: 401, retryable: true},
	"in-flight":          {status: 409, retryable: true, retryAfter: "1", state: "pending"},
	"outcome-unknown":    {status: 409, state: "unknown"},
	"result-unavailable": {status: 409, state: "success"},
	"key-expired":        {status: 412},
	"body-too-large":     {status: 413},
	"key-reused":         {status: 422},
	"operation-aborted":  {status: 500, state: "unknown"},
	"record-corrupt":     {status: 500},
	"internal":           {status: 500, retryable: true},
	"store-unavailable":  {status: 503, retryable: true, retryAfter: "1"},
	"store-full":         {status: 503, retryable: true, retryAfter: "1"},
	"no-record":          {status: 404, retryable: true},
	"method-not-allowed": {status: 405},
}

// document is a problem document.
type document struct {
	Type           string  `json:"type"`
	Title          string  `json:"title"`
	Status         int     `json:"status"`
	Detail         string  `json:"detail"`
	Code           string  `json:"code"`
	Retryable      *bool   `json:"retryable"`
	NewKeySafe     *bool   `json:"new_key_safe"`
	State          string  `json:"state"`
	FirstSeen      *string `json:"first_seen"`
	Trace          string  `json:"trace"`
	OriginalStatus int     `json:"original_status"`
	Location       string  `json:"location"`
}

// requireRefused checks every part of a refusal.
func requireRefused(t *testing.T, a answer, code string, changes ...func(*refusal)) document {
	t.Helper()
	want, ok := refusals[code]
	require.True(t, ok, "no such code: %s", code)
	want.base = "https://pkg.go.dev/github.com/idempotent-go/idempotent#"
	for _, change := range changes {
		change(&want)
	}
	require.NoError(t, a.err)
	require.Equal(t, want.status, a.status, "%s", a.body)
	require.Equal(t, []string{"application/problem+json"}, a.header["Content-Type"])
	require.Equal(t, []string{"no-store"}, a.header["Cache-Control"])
	require.Equal(t, want.retryAfter, strings.Join(a.header["Retry-After"], " and "), "Retry-After")
	require.Equal(t, want.replayed, a.header["Idempotent-Replayed"] != nil, "replay marker")
	require.Contains(t, a.header["Link"], "<"+want.base+code+`>; rel="help"`)
	require.Empty(t, a.header["Etag"])
	require.Empty(t, a.header["Content-Encoding"])
	require.EqualValues(t, len(a.body), a.length, "Content-Length")

	d := json.NewDecoder(strings.NewReader(a.body))
	d.DisallowUnknownFields()
	var doc document
	require.NoError(t, d.Decode(&doc), a.body)
	require.Equal(t, code, doc.Code)
	require.Equal(t, want.base+code, doc.Type)
	require.Equal(t, want.status, doc.Status)
	require.NotEmpty(t, doc.Title)
	require.NotEmpty(t, doc.Detail)
	require.NotNil(t, doc.Retryable)
	require.Equal(t, want.retryable, *doc.Retryable, "retryable")
	require.NotNil(t, doc.NewKeySafe)
	require.Equal(t, want.newKeySafe, *doc.NewKeySafe, "new_key_safe")
	require.Equal(t, want.state, doc.State, "state")
	return doc
}

// markedReplay is for refusals that are what a record says.
func markedReplay(r *refusal) { r.replayed = true }

// requireFresh checks an answer of the usual handler's n-th run.
func requireFresh(t *testing.T, a answer, n int) {
	t.Helper()
	require.NoError(t, a.err)
	require.Equal(t, http.StatusCreated, a.status, a.body)
	require.Equal(t, fmt.Sprintf("run %d", n), a.body)
	require.Equal(t, fmt.Sprintf("/orders/%d", n), a.header.Get("Location"))
	require.Nil(t, a.header["Idempotent-Replayed"], "replay marker")
}

// requireReplay checks the repetition of an answer.
func requireReplay(t *testing.T, first, again answer) {
	t.Helper()
	require.NoError(t, again.err)
	require.Equal(t, first.status, again.status, again.body)
	require.Equal(t, first.body, again.body)
	require.Equal(t, []string{"true"}, again.header["Idempotent-Replayed"], "replay marker")
	require.Nil(t, first.header["Idempotent-Replayed"], "replay marker of the first answer")
	for _, name := range []string{"Content-Type", "Location", "Etag"} {
		require.Equal(t, first.header[name], again.header[name], name)
	}
}

// pair sends the same order twice and checks that the second answer is a
// replay of the first one.
func (b *bench) pair(o order) (first, again answer) {
	b.t.Helper()
	before := b.runs.Load()
	first = b.send(o)
	require.Equal(b.t, before+1, b.runs.Load(), "runs of the handler; answer: %s", first.body)
	again = b.send(o)
	require.Equal(b.t, before+1, b.runs.Load(), "runs of the handler after the repeat")
	requireReplay(b.t, first, again)
	return first, again
}

// gate is a handler that announces itself and goes on when it is told to.
type gate struct {
	entered, open chan struct{}
	once          sync.Once
}

// gates are those of each running test: a server waits for its handlers when
// it is closed, also after the test has failed.
var gates struct {
	sync.Mutex
	of map[*testing.T][]*gate
}

func newGate(t *testing.T) *gate {
	g := &gate{entered: make(chan struct{}, 1000), open: make(chan struct{})}
	gates.Lock()
	defer gates.Unlock()
	if gates.of == nil {
		gates.of = make(map[*testing.T][]*gate)
	}
	gates.of[t] = append(gates.of[t], g)
	return g
}

func releaseGates(t *testing.T) {
	gates.Lock()
	defer gates.Unlock()
	for _, g := range gates.of[t] {
		g.release()
	}
	delete(gates.of, t)
}

func (g *gate) pass() {
	g.entered <- struct{}{}
	<-g.open
}

func (g *gate) release() { g.once.Do(func() { close(g.open) }) }

// die leaves a claim of the usual order behind, as a process does that ends in
// the middle of its work: with a lease that runs for a minute, or one that has
// lapsed.
func (b *bench) die(key string, lapsed, takeOver bool) idempotent.Entry {
	b.t.Helper()
	return b.dieWith(key, b.fingerprint(), lapsed, takeOver)
}

// fingerprint is that of the usual order.
func (b *bench) fingerprint() string {
	b.t.Helper()
	var got string
	other := b.world.bench(b.t, setup{handler: func(_ http.ResponseWriter, r *http.Request) {
		x, _ := idempotent.FromContext(r.Context())
		got = x.Key
	}})
	other.post("fingerprint")
	return other.requireNamed(got, idempotent.ClassSuccess).Fingerprint
}

func (b *bench) dieWith(key, fingerprint string, lapsed, takeOver bool) idempotent.Entry {
	b.t.Helper()
	c := idempotent.Claim{
		Owner: "dead-" + key, Fingerprint: fingerprint, Trace: "trace-of-the-dead",
		Lease: time.Minute, Keep: idempotent.DefaultSuccessRetention, TakeOver: takeOver,
	}
	if lapsed {
		c.Lease = idempotent.MinDuration
	}
	_, claimed, err := b.inner.Claim(b.t.Context(), name(key), c)
	require.NoError(b.t, err)
	require.True(b.t, claimed)
	if lapsed {
		b.until("the claim has lapsed", func() bool {
			e, found := b.load(name(key))
			return found && e.Status != idempotent.Pending
		})
	}
	e, found := b.load(name(key))
	require.True(b.t, found)
	return e
}

// withDeadline is a layer outside that ends the context of every request that
// has the header X-Deadline, when the test says so or at once.
func withDeadline(d time.Duration) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Deadline") == "" {
				next.ServeHTTP(w, r)
				return
			}
			ctx, cancel := context.WithTimeout(r.Context(), d)
			defer cancel()
			next.ServeHTTP(w, r.WithContext(ctx))
		})
	}
}

// pipeListener makes connections of net.Pipe, which work in a bubble.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return pipeAddr{} }

func (l *pipeListener) dial(ctx context.Context) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe:80" }

// lockedBuffer is a log that may be read while it is written.
type lockedBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

var errOutage = errors.New("connection refused: secret-address")

// TestBehaviourRows fails for a row without a running test, a test without a
// row, and a test that skips itself.
func TestBehaviourRows(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/behaviour-rows.txt")
	require.NoError(t, err)
	rows := strings.Fields(string(text))
	require.True(t, slices.IsSorted(rows))
	require.Equal(t, slices.Compact(slices.Clone(rows)), rows, "a row twice")

	var files []string
	for _, pattern := range []string{"*_test.go", "client/*_test.go"} { // each module has the rows of its side
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		files = append(files, found...)
	}
	form := regexp.MustCompile(`^Test(B\d\d)_[A-Z]`)
	tested := map[string]bool{}
	for _, file := range files {
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution|parser.ParseComments)
		require.NoError(t, err)
		for _, decl := range parsed.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !regexp.MustCompile(`^TestB\d`).MatchString(f.Name.Name) {
				continue
			}
			where := set.Position(f.Pos())
			m := form.FindStringSubmatch(f.Name.Name)
			if m == nil {
				t.Errorf("%s: %s is not named TestB<nn>_What", where, f.Name.Name)
				continue
			}
			if !slices.Contains(rows, m[1]) {
				t.Errorf("%s: there is no row %s", where, m[1])
			}
			if hasBuildTag(parsed) {
				t.Errorf("%s: %s does not run with every go test", where, f.Name.Name)
			}
			if name := parsed.Name.Name; name == "idempotent_test" || name == "client_test" { // the others see one part of the library only
				tested[m[1]] = true
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if sel, ok := n.(*ast.SelectorExpr); ok && slices.Contains([]string{"Skip", "Skipf", "SkipNow", "Short"}, sel.Sel.Name) {
					t.Errorf("%s: %s calls %s", set.Position(n.Pos()), f.Name.Name, sel.Sel.Name)
				}
				return true
			})
		}
	}
	for _, row := range rows {
		if !tested[row] {
			t.Errorf("row %s has no test", row)
		}
	}
}

func hasBuildTag(f *ast.File) bool {
	for _, group := range f.Comments {
		for _, c := range group.List {
			if strings.HasPrefix(c.Text, "//go:build") {
				return true
			}
		}
	}
	return false
}
