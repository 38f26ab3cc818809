package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
)

const wantTable = `
chapter         what was sent or looked at      expected                seen                    ok
--------------------------------------------------------------------------------------------------
1 duplicates    100 equal POST /orders at once  1 first, 99 replay/409  1 first, 99 replay/409  yes
                once more, later                replay of 201           replay of 201           yes
                GET /orders: new ones           1                       1                       yes
2 hang-up       POST /payments, then hang up    no answer               no answer               yes
                the server notices              yes                     yes                     yes
                retry while it still runs       409 in-flight           409 in-flight           yes
                retry with Prefer: wait=10      replay of 201           replay of 201           yes
                charges at the provider         1                       1                       yes
3 changed body  the same key, another payment   422 key-reused          422 key-reused          yes
                charges at the provider         1                       1                       yes
4 crash         POST /payments: handler panics  no answer               no answer               yes
                retry                           replay of 500           replay of 500           yes
                its code                        operation-aborted       operation-aborted       yes
                retry once more                 replay of 500           replay of 500           yes
                charges at the provider         1                       1                       yes
5 two users     POST /orders by Ada             201 first               201 first               yes
                the same, same key, by Bob      201 first               201 first               yes
                Ada again, with a new token     replay of 201           replay of 201           yes
                new orders of Ada, of Bob       1, 1                    1, 1                    yes
6 no key        POST /orders without a key      400 key-missing         400 key-missing         yes
                GET /orders: new ones           0                       0                       yes
7 inspector     the page, asked for by nobody   401                     401                     yes
                the payment of the hang-up      success                 success                 yes
                the crashed payment             unknown                 unknown                 yes
                after Resolve as success        success                 success                 yes
                retry of the crashed payment    replay of 201           replay of 201           yes
8 SIGTERM       SIGTERM while a payment runs    sent                    sent                    yes
                the shop begins to stop         yes                     yes                     yes
                the answer to that payment      201 first               201 first               yes
                drained, its store still open   yes                     yes                     yes
                its record in the store         success                 success                 yes
                retry                           replay of 201           replay of 201           yes
                a new payment                   503 store-unavailable   503 store-unavailable   yes
                charges at the provider         1                       1                       yes
                the shop has closed its store   no error                no error                yes

all 35 rows are as expected
`

// durable configures a Redis that keeps what it was told.
var durable = []string{"--appendonly", "yes", "--appendfsync", "always"}

// The story sends SIGTERM to this process: tests that play it are not parallel.

func TestDemo(t *testing.T) {
	play := func(t *testing.T, args ...string) {
		var stdout, stderr bytes.Buffer
		code := run(append([]string{"-demo"}, args...), &stdout, &stderr)
		require.Equal(t, strings.TrimPrefix(wantTable, "\n"), stdout.String())
		require.Empty(t, stderr.String())
		require.Equal(t, 0, code)
	}
	t.Run("memory", func(t *testing.T) { play(t) })
	t.Run("Redis", func(t *testing.T) {
		url := "redis://" + redistest.Start(t, durable...).Addr + "/0"
		play(t, "-store", url)
		play(t, "-store", url) // an earlier run's keys are still there
	})
	t.Run("a move", func(t *testing.T) {
		play(t, "-store", "moving:redis://"+redistest.Start(t, durable...).Addr+" redis://"+redistest.Start(t, durable...).Addr)
	})
	t.Run("an unsafe Redis", func(t *testing.T) {
		play(t, "-unsafe-redis", "-store", "redis://"+redistest.Start(t).Addr)
	})
}

// A demo that cannot fail would show nothing.
func TestDemo_MarksFaults(t *testing.T) {
	tests := []struct {
		name  string
		fault func(*service)
		wrong []string // the rows that must be marked, as they begin
	}{
		{
			name:  "a handler without the middleware",
			fault: func(v *service) { v.server.Handler = v.shop.handler(func(h http.Handler) http.Handler { return h }) },
			wrong: []string{
				"100 equal POST /orders at once  1 first, 99 replay/409  100 first, 0 replay/409",
				"GET /orders: new ones           1                       101",
				"the same key, another payment   422 key-reused          201 first",
				"retry                           replay of 500           201 first",
				"POST /orders without a key      400 key-missing         201 first",
				"its record in the store         success                 ",
			},
		},
		{
			name: "a store that always claims",
			fault: func(v *service) {
				rebuild(v, alwaysClaims{v.store}, principal)
			},
			wrong: []string{
				"100 equal POST /orders at once  1 first, 99 replay/409  100 first, 0 replay/409",
				"retry while it still runs       409 in-flight           201 first",
				"new orders of Ada, of Bob       1, 1                    2, 1",
			},
		},
		{
			name: "the token for the user",
			fault: func(v *service) {
				rebuild(v, v.store, func(r *http.Request) (string, error) { return r.Header.Get("Authorization"), nil })
			},
			wrong: []string{"Ada again, with a new token     replay of 201           201 first"},
		},
		{
			name: "everybody the same user",
			fault: func(v *service) {
				rebuild(v, v.store, idempotent.Anonymous)
			},
			wrong: []string{"the same, same key, by Bob      201 first               replay of 201"},
		},
		{
			name: "a handler that is cancelled with its client",
			fault: func(v *service) {
				rebuild(v, v.store, principal, idempotent.WithCancelOnDisconnect())
			},
			wrong: []string{"retry with Prefer: wait=10      replay of 201           replay of 502"},
		},
		{
			name: "a store that cannot be closed",
			fault: func(v *service) {
				closeStore := v.closeStore
				v.closeStore = func() error { return errors.Join(closeStore(), errors.New("disk on fire")) }
			},
			wrong: []string{"the shop has closed its store   no error                disk on fire"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			log := slog.New(slog.DiscardHandler)
			store, closeStore, err := openStore(inMemory)
			require.NoError(t, err)
			v := newService(store, closeStore, nil, log)
			tt.fault(v)

			var out bytes.Buffer
			code := demo(&out, v)
			require.Equal(t, 1, code, out.String())
			require.Contains(t, out.String(), "rows are wrong")
			for _, want := range tt.wrong {
				marked := slices.ContainsFunc(strings.Split(out.String(), "\n"), func(line string) bool {
					return strings.Contains(line, want) && strings.HasSuffix(line, " NO")
				})
				require.True(t, marked, "no row %q marked in\n%s", want, out.String())
			}
		})
	}
}

// The shop that is told nothing begins with the story, and leaves its keys to be
// looked at.
func TestShow(t *testing.T) {
	t.Parallel()
	var stderr bytes.Buffer
	var level slog.LevelVar
	log := slog.New(slog.NewTextHandler(&stderr, &slog.HandlerOptions{Level: &level}))
	store, closeStore, err := openStore(inMemory)
	require.NoError(t, err)
	charged := make(chan struct{}, 1)
	v := newService(store, closeStore, func(context.Context, payment) error {
		charged <- struct{}{}
		return nil
	}, log)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	out, printed := io.Pipe()
	code := make(chan int, 1)
	go func() {
		c, err := show(ctx, printed, v, l, &level)
		if err != nil {
			t.Error(err)
		}
		code <- c
	}()

	var text, link string
	for in := bufio.NewScanner(out); link == "" && in.Scan(); {
		text += in.Text() + "\n"
		_, link, _ = strings.Cut(in.Text(), "a decision: ")
	}
	rows, _, _ := strings.Cut(wantTable, "7 inspector")
	require.Contains(t, "\n"+text, rows)
	require.Contains(t, text, "all 21 rows are as expected")
	require.Equal(t, inspectorURL(l), link)

	page := func(query string) string {
		resp, err := http.Get(link + query)
		require.NoError(t, err)
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, resp.StatusCode, string(body))
		return string(body)
	}
	_, run, _ := strings.Cut(firstOf(page(""), `(crash-[A-Z2-7]{8})`), "-")
	for key, state := range map[string]string{"order": "success", "hang-up": "success", "crash": "unknown", "shared": "success"} {
		path := "/payments"
		if key == "order" || key == "shared" {
			path = "/orders"
		}
		body := page(entryQuery(request{path: path, token: ada, key: key + "-" + run}))
		require.Equal(t, state, firstOf(body, `<p class="lead"><span class="state (\w+)">`), key)
	}

	c := newClient("http://" + l.Addr().String())
	order := c.send(t.Context(), request{path: "/orders", token: ada, key: "mine", body: tea})
	pay := fmt.Sprintf(`{"order":%q,"amount_cents":1250}`, firstOf(order.body, `"id":"([^"]+)"`))
	require.Equal(t, "201 first", c.send(t.Context(), request{path: "/payments", token: ada, key: "mine", body: pay}).String())
	<-charged // by the provider that the shop was started with

	stop()
	require.Zero(t, <-code)
	require.NotContains(t, stderr.String(), "story's crash")
	require.Contains(t, stderr.String(), "msg=stopping")
}

// rebuild gives v another guard.
func rebuild(v *service, store idempotent.Store, p idempotent.PrincipalFunc, opts ...idempotent.HTTPOption) {
	v.store = store
	v.guard = idempotent.New(store, idempotent.WithLogger(v.log))
	v.server.Handler = v.shop.handler(v.guard.Middleware(p, opts...))
}

// alwaysClaims gives every key to everybody.
type alwaysClaims struct{ idempotent.Store }

func (s alwaysClaims) Claim(ctx context.Context, key string, c idempotent.Claim) (idempotent.Entry, bool, error) {
	e, _, err := s.Store.Claim(ctx, key, c)
	e.Owner, e.Status = c.Owner, idempotent.Pending
	return e, err == nil, err
}

// TestBinary runs the shop as a process, with a payment provider that answers
// when the test lets it.
func TestBinary(t *testing.T) {
	t.Parallel()
	binary := build(t)

	// A payment runs, is repeated, and the process is told to stop.
	stopWhilePaying := func(t *testing.T, args ...string) request {
		entered, opened := make(chan string, 10), make(chan struct{})
		bank := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			entered <- r.Header.Get("Idempotency-Key")
			<-opened
		}))
		defer bank.Close()
		open := sync.OnceFunc(func() { close(opened) })
		defer open()
		p := start(t, binary, append(args, "-provider", bank.URL)...)

		placed := p.send(t.Context(), request{path: "/orders", token: ada, key: "order", body: tea})
		require.Equal(t, "201 first", placed.String())
		id := placed.body[len(`{"id":"`):][:len("ord-")+10]
		pay := request{path: "/payments", token: ada, key: "pay", body: fmt.Sprintf(`{"order":%q,"amount_cents":1250}`, id)}

		paid := make(chan answer, 1)
		go func() { paid <- p.send(t.Context(), pay) }()
		require.Len(t, <-entered, 64, "the provider is told a key")
		require.Equal(t, "409 in-flight", p.send(t.Context(), pay).String())

		require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
		redistest.Eventually(t, "the shop stops", func() bool { return strings.Contains(p.log(), "msg=stopping") })
		open()
		require.Equal(t, "201 first", (<-paid).String())
		code, log := p.wait()
		require.Equal(t, 0, code, log)
		require.Empty(t, entered, "the provider was asked once")

		_, after, _ := strings.Cut(log, "msg=stopping")
		require.Regexp(t, `msg=executed key=[0-9a-f]{16} status=success unknown=false took=`, after)
		require.Contains(t, after, `msg="stopped, every outcome is recorded"`)
		require.NotContains(t, log, "user-ada")
		return pay
	}

	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		stopWhilePaying(t)
	})
	t.Run("Redis outlives the process", func(t *testing.T) {
		t.Parallel()
		store := "redis://" + redistest.Start(t, durable...).Addr + "/0"
		pay := stopWhilePaying(t, "-store", store)

		p := start(t, binary, "-store", store)
		require.Equal(t, "replay of 201", p.send(t.Context(), pay).String())
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
		code, log := p.wait()
		require.Equal(t, 0, code, log)
		require.Regexp(t, `msg=replayed key=[0-9a-f]{16} status=success`, log)
		require.NotContains(t, log, "msg=executed")
	})
}

// build returns the path of the shop's program.
func build(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "shop")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, string(out))
	return binary
}

// process is a running shop.
type process struct {
	client
	cmd  *exec.Cmd
	done chan struct{} // closed when its log has ended

	mu    sync.Mutex
	lines []string
}

func start(t *testing.T, binary string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(binary, append([]string{"-addr", "127.0.0.1:0"}, args...)...), done: make(chan struct{})}
	stderr, err := p.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	go func() {
		defer close(p.done)
		for in := bufio.NewScanner(stderr); in.Scan(); {
			p.mu.Lock()
			p.lines = append(p.lines, in.Text())
			p.mu.Unlock()
		}
	}()
	redistest.Eventually(t, "the shop listens", func() bool {
		_, url, ok := strings.Cut(p.log(), "msg=listening url=")
		url, _, _ = strings.Cut(url, "\n")
		p.client = newClient(url)
		return ok
	})
	return p
}

func (p *process) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

func (p *process) wait() (code int, log string) {
	<-p.done
	_ = p.cmd.Wait()
	return p.cmd.ProcessState.ExitCode(), p.log()
}

func TestRun_Refusals(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = taken.Close() }) // a defer would run before the subtests do
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, gone.Close())

	tests := []struct {
		name string
		args []string
		code int
		text string
	}{
		{"help is no error", []string{"-h"}, 0, "-store"},
		{"unknown flag", []string{"-nonsense"}, 2, "-nonsense"},
		{"a lease that makes no sense", []string{"-lease", "0"}, 2, "-lease 0s"},
		{"a retention that makes no sense", []string{"-retention", "-1h"}, 2, "-retention -1h0m0s"},
		{"no store", []string{"-store", ""}, 1, "-store:"},
		{"another kind of store", []string{"-store", "mysql://127.0.0.1"}, 1, "-store:"},
		{"a URL that cannot be read", []string{"-store", "redis://ada:pa55word@127.0.0.1:port"}, 1, "-store: storeurl: idempotent: invalid argument: a port is not a number"},
		{"a parameter that is not known", []string{"-store", "memory:?minimum_age=10m"}, 1, "minimum_age is not known"},
		{"a store that is away", []string{"-store", "redis://ada:pa55word@" + gone.Addr().String()}, 1, "-store:"},
		{"a store that is away, demo", []string{"-demo", "-store", "redis://" + gone.Addr().String()}, 1, "-store:"},
		{"a move from a store that is away", []string{"-store", "moving:redis://:pa55word@" + gone.Addr().String() + " redis://127.0.0.1"}, 1, "-store: storeurl: the old store: "},
		{"a move to itself", []string{"-store", "moving:redis://:pa55word@127.0.0.1 redis://127.0.0.1"}, 1, "nothing to move"},
		{"a port in use", []string{"-addr", taken.Addr().String()}, 1, "in use"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			require.Equal(t, tt.code, run(tt.args, &stdout, &stderr))
			require.Contains(t, stderr.String(), tt.text)
			require.NotContains(t, stderr.String(), "pa55word")
			require.Empty(t, stdout.String())
		})
	}
}

// The link to the inspector that the shop prints leads there, and nothing but
// the name and the password in it does.
func TestInspector(t *testing.T) {
	t.Parallel()
	p := start(t, build(t))
	require.Equal(t, "201 first", p.send(t.Context(), request{path: "/orders", token: ada, key: "shown", body: tea}).String())
	redistest.Eventually(t, "the link is printed", func() bool { return strings.Contains(p.log(), "msg=inspector url=") })
	_, link, _ := strings.Cut(p.log(), "msg=inspector url=")
	link, _, _ = strings.Cut(link, "\n")

	status := func(url string) (int, string) {
		resp, err := http.Get(url)
		require.NoError(t, err)
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(body)
	}
	code, body := status(link + "?page=search&q=shown")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, body, ">shown<")
	for _, wrong := range []string{"", "olga:@", "olga:ada-token-1@", ":olga-password@", "nobody:@", ":@"} {
		code, body := status(strings.Replace(link, "olga:olga-password@", wrong, 1))
		require.Equal(t, http.StatusUnauthorized, code, wrong)
		require.NotContains(t, body, "Running")
	}
}

func TestShop(t *testing.T) {
	t.Parallel()
	verdict := http.StatusOK // of the bank
	bank := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(verdict) }))
	defer bank.Close()
	log := slog.New(slog.DiscardHandler)
	store, closeStore, err := openStore(inMemory)
	require.NoError(t, err)
	defer func() { require.NoError(t, closeStore()) }()
	server := httptest.NewServer(newService(store, closeStore, provider(bank.URL), log).server.Handler)
	defer server.Close()
	c := newClient(server.URL)

	s := &story{client: c}
	bill := s.bill(ada)
	tests := []struct {
		name    string
		in      request
		verdict int
		want    string
		repeat  string
	}{
		{"an order", request{path: "/orders", token: ada, body: tea}, 200, "201 first", "replay of 201"},
		{"nobody", request{path: "/orders", token: "guessed", body: tea}, 200, "401", "401"},
		{"no JSON", request{path: "/orders", token: ada, body: "tea"}, 200, "400", "replay of 400"},
		{"more than JSON", request{path: "/orders", token: ada, body: tea + tea}, 200, "400", "replay of 400"},
		{"an unknown member", request{path: "/orders", token: ada, body: `{"item":"tea","quantity":1,"price":0}`}, 200, "400", "replay of 400"},
		{"no item", request{path: "/orders", token: ada, body: `{"quantity":1}`}, 200, "422", "replay of 422"},
		{"no quantity", request{path: "/orders", token: ada, body: `{"item":"tea"}`}, 200, "422", "replay of 422"},
		{"a payment", request{path: "/payments", token: ada, body: bill}, 200, "201 first", "replay of 201"},
		{"a payment, no JSON", request{path: "/payments", token: ada, body: "1250"}, 200, "400", "replay of 400"},
		{"a payment of nothing", request{path: "/payments", token: ada, body: strings.Replace(bill, "1250", "0", 1)}, 200, "422", "replay of 422"},
		{"for another's order", request{path: "/payments", token: bob, body: bill}, 200, "404", "replay of 404"},
		{"declined", request{path: "/payments", token: ada, body: bill}, 402, "402", "replay of 402"},
		{"no clear answer", request{path: "/payments", token: ada, body: bill}, 500, "502", "replay of 502"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			verdict = tt.verdict
			tt.in.key = strings.NewReplacer(" ", "-", ",", "").Replace(tt.name)
			require.Equal(t, tt.want, c.send(t.Context(), tt.in).String())
			verdict = http.StatusOK
			require.Equal(t, tt.repeat, c.send(t.Context(), tt.in).String())
		})
	}

	t.Run("Location leads to the order", func(t *testing.T) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/orders", strings.NewReader(tea))
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+bob)
		req.Header.Set("Idempotency-Key", "located")
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer func() { _ = resp.Body.Close() }()
		placed, err := io.ReadAll(resp.Body)
		require.NoError(t, err)

		path := resp.Header.Get("Location")
		require.Equal(t, string(placed), c.send(t.Context(), request{method: http.MethodGet, path: path, token: bob}).body)
		require.Equal(t, "404", c.send(t.Context(), request{method: http.MethodGet, path: path, token: ada}).String())
	})
}
