package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/examples/internal/program"
	"github.com/idempotent-go/idempotent/internal/redistest"
)

func TestMain(m *testing.M) { program.Main(m, main) }

// behind is the program behind the proxy: it counts what reaches it.
type behind struct {
	*httptest.Server
	runs   atomic.Int64
	handle func(w http.ResponseWriter, r *http.Request, run int64)
}

func newBehind(t *testing.T) *behind {
	p := &behind{handle: func(w http.ResponseWriter, r *http.Request, run int64) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Location", fmt.Sprint("/orders/", run))
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "%s %s%s for %s: %s", r.Method, r.Host, r.URL, r.Header.Get("Idempotency-Key"), body)
	}}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.handle(w, r, p.runs.Add(1)) }))
	t.Cleanup(p.Close)
	return p
}

func TestProxy(t *testing.T) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		testProxy(t, "")
	})
	t.Run("Redis", func(t *testing.T) {
		t.Parallel()
		testProxy(t, "redis://"+redistest.Start(t).Addr)
	})
}

func testProxy(t *testing.T, store string) {
	behind := newBehind(t)
	p := start(t, store, "-to", behind.URL+"/base", "-principal", "X-User")
	const tea = `{"item":"tea"}`

	first := p.send(t, "POST", "/orders?q=1", "k1", "ada", tea)
	require.Equal(t, http.StatusCreated, first.status)
	require.Equal(t, "POST "+p.addr+"/base/orders?q=1 for k1: "+tea, first.body)
	require.Equal(t, "/orders/1", first.header.Get("Location"))
	require.Empty(t, first.header.Get("Idempotent-Replayed"))

	again := p.send(t, "POST", "/orders?q=1", "k1", "ada", `{ "item": "tea" }`)
	require.Equal(t, first.status, again.status)
	require.Equal(t, first.body, again.body)
	require.Equal(t, "/orders/1", again.header.Get("Location"))
	require.Equal(t, "true", again.header.Get("Idempotent-Replayed"))
	require.EqualValues(t, 1, behind.runs.Load())

	odd := p.send(t, "POST", "/orders?from=a;b&rate=5%", "odd", "ada", tea)
	require.Equal(t, "POST "+p.addr+"/base/orders?from=a;b&rate=5% for odd: "+tea, odd.body, "the query as it came")

	for _, tt := range []struct {
		name, method, key, user, body string
		status, runs                  int
	}{
		{"another body", "POST", "k1", "ada", "{}", http.StatusUnprocessableEntity, 0},
		{"another user", "POST", "k1", "bob", tea, http.StatusCreated, 1},
		{"nobody", "POST", "k1", "", tea, http.StatusUnauthorized, 0},
		{"no key", "POST", "", "ada", tea, http.StatusBadRequest, 0},
		{"a key for a GET", "GET", "k1", "ada", "", http.StatusCreated, 1},
		{"the same once more", "GET", "k1", "ada", "", http.StatusCreated, 1},
		{"too long", "POST", "k2", "ada", strings.Repeat("x", 1<<20+1), http.StatusRequestEntityTooLarge, 0},
	} {
		before := behind.runs.Load()
		require.Equal(t, tt.status, p.send(t, tt.method, "/orders?q=1", tt.key, tt.user, tt.body).status, tt.name)
		require.EqualValues(t, tt.runs, behind.runs.Load()-before, tt.name)
	}
	require.Equal(t, 0, p.Stop(t), p.Log())
}

// Two proxies over one Redis are one.
func TestTwoProxies(t *testing.T) {
	t.Parallel()
	store := "redis://" + redistest.Start(t).Addr
	behind := newBehind(t)
	a := start(t, store, "-to", behind.URL, "-anonymous")
	b := start(t, store, "-to", behind.URL, "-anonymous")
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			got := []proxy{a, b}[i%2].send(t, "POST", "/", "k1", "", "tea")
			if got.status != http.StatusCreated && got.status != http.StatusConflict {
				t.Errorf("%d %s", got.status, got.body)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 1, behind.runs.Load())
	for _, p := range []proxy{a, b} {
		require.Equal(t, "true", p.send(t, "POST", "/", "k1", "", "tea").header.Get("Idempotent-Replayed"))
		require.Equal(t, 0, p.Stop(t), p.Log())
	}
}

// A program that is not there has done nothing: when it is, the retry runs.
func TestProgramAway(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	p := start(t, "", "-to", "http://"+addr, "-anonymous")
	got := p.send(t, "POST", "/", "k1", "", "tea")
	require.Equal(t, http.StatusServiceUnavailable, got.status)
	require.NotEmpty(t, got.header.Get("Retry-After"))

	l, err = net.Listen("tcp", addr)
	require.NoError(t, err)
	behind := newBehind(t)
	forwarded := &http.Server{Handler: behind.Config.Handler, ReadHeaderTimeout: time.Minute}
	go func() { _ = forwarded.Serve(l) }()
	t.Cleanup(func() { _ = forwarded.Close() })
	require.Equal(t, http.StatusCreated, p.send(t, "POST", "/", "k1", "", "tea").status)
	require.EqualValues(t, 1, behind.runs.Load())
}

// A program that ends half-way may have done its work. The request is not sent
// again: not by the client's retries, and not by Go's transport, which would
// like to where the key came without a body on a connection used before.
func TestProgramDies(t *testing.T) {
	t.Parallel()
	behind := newBehind(t)
	answers := behind.handle
	behind.handle = func(w http.ResponseWriter, r *http.Request, run int64) {
		switch r.URL.Path {
		case "/silent":
			panic(http.ErrAbortHandler)
		case "/cut":
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		answers(w, r, run)
	}
	p := start(t, "", "-to", behind.URL, "-anonymous")
	for _, path := range []string{"/silent", "/cut"} {
		for _, body := range []string{"", "tea"} {
			require.Equal(t, http.StatusCreated, p.send(t, "POST", "/warm", path+body, "", "tea").status)
			before := behind.runs.Load()
			for range 3 {
				got := p.send(t, "POST", path, path+body, "", body)
				require.True(t, got.status == 0 || got.status >= 500, "%d %s", got.status, got.body)
			}
			require.EqualValues(t, 1, behind.runs.Load()-before, "%s with body %q", path, body)
		}
	}
}

// With -optional, what comes without a key passes each time.
func TestOptional(t *testing.T) {
	t.Parallel()
	behind := newBehind(t)
	p := start(t, "", "-to", behind.URL, "-anonymous", "-optional", "-max-body", "3")
	for range 2 {
		require.Equal(t, http.StatusCreated, p.send(t, "POST", "/", "", "", "coffee").status)
		require.Equal(t, http.StatusCreated, p.send(t, "POST", "/", "k1", "", "tea").status)
	}
	require.EqualValues(t, 3, behind.runs.Load())
	require.Equal(t, http.StatusRequestEntityTooLarge, p.send(t, "POST", "/", "k2", "", "coffee").status)
}

// A request that runs when the proxy is stopped gets its answer.
func TestStop(t *testing.T) {
	t.Parallel()
	store := "redis://" + redistest.Start(t).Addr
	behind := newBehind(t)
	arrived, goOn := make(chan bool), make(chan bool)
	answers := behind.handle
	behind.handle = func(w http.ResponseWriter, r *http.Request, run int64) {
		arrived <- true
		<-goOn
		answers(w, r, run)
	}
	p := start(t, store, "-to", behind.URL, "-anonymous")
	got := make(chan answer)
	go func() { got <- p.send(t, "POST", "/", "k1", "", "tea") }()
	<-arrived
	p.Terminate(t)
	redistest.Eventually(t, "it listens no more", func() bool {
		conn, err := net.Dial("tcp", p.addr)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	goOn <- true
	first := <-got
	require.Equal(t, http.StatusCreated, first.status)
	require.Equal(t, 0, p.Wait(), p.Log())

	next := start(t, store, "-to", behind.URL, "-anonymous")
	require.Equal(t, first.body, strings.Replace(next.send(t, "POST", "/", "k1", "", "tea").body, next.addr, p.addr, 1))
	require.EqualValues(t, 1, behind.runs.Load())
}

func TestRefusals(t *testing.T) {
	to := []string{"-to", "http://127.0.0.1:1"}
	for _, tt := range []struct {
		store string
		args  []string
		code  int
		text  string
	}{
		{"", []string{"-h"}, 0, "-principal"},
		{"", []string{"-nonsense"}, 2, "nonsense"},
		{"", []string{"-anonymous"}, 2, "-to"},
		{"", []string{"-anonymous", "-to", "127.0.0.1:9000"}, 2, "-to"},
		{"", []string{"-anonymous", "-to", "ftp://127.0.0.1"}, 2, "-to"},
		{"", to, 2, "-principal"},
		{"", append(to, "-anonymous", "-principal", "X-User"), 2, "-principal"},
		{"", append(to, "-anonymous", "-lease", "0"), 2, "-lease"},
		{"", append(to, "-anonymous", "-retention", "0"), 2, "-retention"},
		{"", append(to, "-anonymous", "-max-body", "0"), 2, "-max-body"},
		{"mysql:", append(to, "-anonymous"), 1, "IDEMPOTENCY_STORE"},
		{"", append(to, "-anonymous", "-addr", "127.0.0.1:port"), 1, "port"},
	} {
		t.Setenv("IDEMPOTENCY_STORE", tt.store)
		var stderr bytes.Buffer
		require.Equal(t, tt.code, run(t.Context(), tt.args, &stderr), tt.args)
		require.Contains(t, stderr.String(), tt.text)
	}
}

// proxy is a running one.
type proxy struct {
	*program.Process
	addr string
}

func start(t *testing.T, store string, args ...string) proxy {
	t.Helper()
	p := program.Start(t, []string{"IDEMPOTENCY_STORE=" + store}, append([]string{"-addr", "127.0.0.1:0"}, args...)...)
	return proxy{p, p.Addr(t)}
}

// answer is what came back; its status is 0 where nothing whole did.
type answer struct {
	status int
	header http.Header
	body   string
}

func (p proxy) send(t *testing.T, method, path, key, user, body string) answer {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+p.addr+path, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return answer{}
	}
	if strings.HasPrefix(body, "{") {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	if user != "" {
		req.Header.Set("X-User", user)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Log(err)
		return answer{}
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Log(err)
		return answer{}
	}
	return answer{resp.StatusCode, resp.Header, string(text)}
}
