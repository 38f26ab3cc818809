package idempotent_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/storetest"
)

const statusPath = "/operations"

// withStatus mounts the status handler of a bench beside its guarded routes.
func withStatus(b **bench, opts ...idempotent.HTTPOption) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		status := sync.OnceValue(func() http.Handler {
			return (*b).guard.StatusHandler(func(r *http.Request) (string, error) {
				switch user := r.Header.Get("X-User"); user {
				case "":
					return "alice", nil
				case "nobody":
					return "", idempotent.ErrUnauthenticated
				default:
					return user, nil
				}
			}, opts...)
		})
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == statusPath {
				status().ServeHTTP(w, r)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

// statusOf is a query for the usual order under key.
func statusOf(key string, fields ...string) order {
	return order{method: "GET", body: "none", path: statusPath + "?" + url.Values{"key": {key}, "path": {"/orders"}}.Encode(), fields: fields}
}

// state is a status document.
type state struct {
	State          string    `json:"state"`
	Since          time.Time `json:"since"`
	FirstSeen      time.Time `json:"first_seen"`
	Expires        time.Time `json:"expires"`
	Trace          string    `json:"trace"`
	OriginalStatus int       `json:"original_status"`
	Location       string    `json:"location"`
}

func readState(t *testing.T, text string) (doc state) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&doc), text)
	return doc
}

// requireState checks the answer to a status query.
func requireState(t *testing.T, a answer, want string) state {
	t.Helper()
	require.NoError(t, a.err)
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.Equal(t, []string{"application/json"}, a.header["Content-Type"])
	require.Equal(t, []string{"no-store"}, a.header["Cache-Control"])
	require.EqualValues(t, len(a.body), a.length, "Content-Length")
	if want == "pending" {
		require.Equal(t, []string{"1"}, a.header["Retry-After"])
	} else {
		require.Nil(t, a.header["Retry-After"])
	}
	doc := readState(t, a.body)
	require.Equal(t, want, doc.State)
	return doc
}

// requireAccepted checks that an operation goes on without its client, and
// returns where to ask for it.
func requireAccepted(t *testing.T, a answer, applied string) (location string) {
	t.Helper()
	require.NoError(t, a.err)
	require.Equal(t, http.StatusAccepted, a.status, a.body)
	require.Equal(t, []string{"application/json"}, a.header["Content-Type"])
	require.Equal(t, []string{"no-store"}, a.header["Cache-Control"])
	require.Equal(t, []string{"1"}, a.header["Retry-After"])
	require.Equal(t, []string{applied}, a.header["Preference-Applied"])
	require.Nil(t, a.header["Idempotent-Replayed"])
	require.EqualValues(t, len(a.body), a.length, "Content-Length")
	require.Equal(t, "pending", readState(t, a.body).State)
	return a.header.Get("Location")
}

func async(key string, fields ...string) order {
	return order{key: key, fields: append([]string{"Prefer", "respond-async"}, fields...)}
}

// asyncSetup is a setup whose clients may ask for 202.
func asyncSetup(b **bench, s setup) setup {
	s.options = append([]idempotent.HTTPOption{idempotent.WithStatusURL(statusPath)}, s.options...)
	s.outer = withStatus(b)
	return s
}

// closeNoted is a body that tells when it is closed.
type closeNoted struct {
	io.ReadCloser
	closed func()
}

func (c closeNoted) Close() error {
	c.closed()
	return c.ReadCloser.Close()
}

func TestB40_Accepted(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		g := newGate(t)
		var body string
		var b *bench
		s := asyncSetup(&b, setup{handler: func(w http.ResponseWriter, r *http.Request) {
			g.pass()
			content, err := io.ReadAll(r.Body)
			require.NoError(t, r.Body.Close())
			body = fmt.Sprint(string(content), err, r.Context().Err(), r.Header.Get("X-Extra"))
			b.created(w, r)
			require.Error(t, http.NewResponseController(w).SetReadDeadline(time.Now()), "the connection is another request's")
			_ = http.NewResponseController(w).Flush()
		}})
		// Once it has been answered, a request is no longer the handler's.
		mount := s.outer
		s.outer = func(next http.Handler) http.Handler {
			next = mount(next)
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var answered atomic.Bool
				r.Body = closeNoted{r.Body, func() { require.False(t, answered.Load(), "the connection has another request") }}
				next.ServeHTTP(w, r)
				answered.Store(true)
				r.Header.Set("X-Extra", "changed")
			})
		}
		b = w.bench(t, s)
		location := requireAccepted(t, b.send(async("k", "X-Extra", "kept", "X-Request-Id", "trace-1")), "respond-async")
		require.Equal(t, "/operations?key=k&path=%2Forders", location)
		b.receive("the handler", g.entered)
		b.client.CloseIdleConnections()

		pending := requireState(t, b.send(order{method: "GET", path: location, body: "none"}), "pending")
		require.Equal(t, "trace-1", pending.Trace)
		requireRefused(t, b.post("k"), "in-flight")
		require.Equal(t, location, requireAccepted(t, b.send(async("k")), "respond-async"))
		requireRefused(t, b.send(order{key: "k", body: `{"amount":2}`, fields: []string{"Prefer", "respond-async"}}), "key-reused")

		g.release()
		b.untilSettled("k")
		done := requireState(t, b.send(order{method: "GET", path: location, body: "none"}), "success")
		require.Equal(t, http.StatusCreated, done.OriginalStatus)
		require.Equal(t, "/orders/1", done.Location)
		require.Equal(t, someBody+"<nil> <nil>kept", body)
		for _, o := range []order{{key: "k"}, async("k")} {
			a := b.send(o)
			require.Equal(t, http.StatusCreated, a.status)
			require.Equal(t, "run 1", a.body)
			require.True(t, a.replayed())
			require.Nil(t, a.header["Preference-Applied"])
		}
		require.EqualValues(t, 1, b.runs.Load())
		require.NoError(t, b.guard.Drain(t.Context()))
	})
}

// What ends within the wait is answered as if nothing had been preferred.
func TestB40_WaitEndsInTime(t *testing.T) {
	handlers := map[string]http.HandlerFunc{
		"fields": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Add("X-Many", "handler")
			w.Header()["Date"] = nil
			w.Header().Set("Set-Cookie", "a=b")
			w.Header().Del("X-Removed")
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusTeapot)
			_, _ = io.WriteString(w, "tea")
		},
		"flushed, with trailers": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			_, _ = io.WriteString(w, "one ")
			if http.NewResponseController(w).Flush() != nil {
				return
			}
			_, _ = io.WriteString(w, "two")
			w.Header().Set("X-Sum", "7")
			w.Header().Set(http.TrailerPrefix+"X-More", "8")
		},
		"nothing":   func(http.ResponseWriter, *http.Request) {},
		"no body":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"released":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) },
		"cut short": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "9") },
		"in place": func(_ http.ResponseWriter, r *http.Request) {
			idempotent.Unknown(r.Context()) // a 200 all the same
		},
	}
	eachStore(t, func(t *testing.T, w world) {
		for kind, handler := range handlers {
			var b *bench
			s := asyncSetup(&b, setup{handler: handler})
			mount := s.outer
			s.outer = func(next http.Handler) http.Handler {
				next = mount(next)
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("X-Many", "outer")
					w.Header().Set("X-Removed", "outer")
					next.ServeHTTP(w, r)
				})
			}
			b = w.bench(t, s)
			want := b.send(order{key: "sync"})
			got := b.send(async("async", "Prefer", "wait=10"))
			require.NotEqual(t, http.StatusAccepted, got.status, kind)
			got.header.Del("Date")
			want.header.Del("Date")
			require.Equal(t, want, got, kind)
			first, second := b.post("sync"), b.post("async")
			first.header.Del("Date")
			second.header.Del("Date")
			require.Equal(t, first, second, "%s: repeats", kind)
		}
	})
}

func TestB40_WaitTooShort(t *testing.T) {
	onFakeTime(t, func(t *testing.T, w world) {
		g := newGate(t)
		var b *bench
		b = w.bench(t, asyncSetup(&b, setup{handler: gated(&b, g), options: []idempotent.HTTPOption{idempotent.WithWait(3 * time.Second)}}))
		for i, want := range []struct {
			prefer, applied string
			took            time.Duration
		}{
			{"respond-async, wait=5", "respond-async, wait=5", 5 * time.Second},
			{"wait=5, respond-async", "respond-async, wait=5", 5 * time.Second}, // a duplicate from here on
			{"respond-async, wait=60", "respond-async, wait=10", 10 * time.Second},
			{"respond-async", "respond-async", 0},
			{"Respond-Async; foo=bar", "respond-async", 0},
		} {
			began := time.Now()
			requireAccepted(t, b.send(order{key: "k", fields: []string{"Prefer", want.prefer}}), want.applied)
			require.Equal(t, want.took, time.Since(began), "%d: %s", i, want.prefer)
		}
		require.EqualValues(t, 1, b.runs.Load())
		g.release()
		b.untilSettled("k")
		require.True(t, b.post("k").replayed())
	})
}

func TestB40_RefusedAtOnce(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		var b *bench
		b = w.bench(t, asyncSetup(&b, setup{}))
		requireRefused(t, b.send(async("")), "key-missing")
		b.store.Down(errOutage)
		requireRefused(t, b.send(async("k")), "store-unavailable")
		require.Zero(t, b.runs.Load())

		b = w.bench(t, asyncSetup(&b, setup{}))
		require.NoError(t, b.guard.Drain(t.Context()))
		requireRefused(t, b.send(async("k")), "store-unavailable")
		require.Zero(t, b.runs.Load())
	})
}

func TestB40_Panic(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		g, aborting := newGate(t), newGate(t)
		raised := make(chan any, 10)
		var b *bench
		s := asyncSetup(&b, setup{handler: func(_ http.ResponseWriter, r *http.Request) {
			switch r.Header.Get("X-How") {
			case "later":
				g.pass()
			case "abort":
				aborting.pass()
				panic(http.ErrAbortHandler)
			case "goexit":
				runtime.Goexit()
			}
			panic("panic-secret")
		}})
		mount := s.outer
		s.outer = func(next http.Handler) http.Handler {
			next = mount(next)
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer func() {
					if v := recover(); v != nil {
						raised <- v
						panic(http.ErrAbortHandler)
					}
				}()
				next.ServeHTTP(w, r)
			})
		}
		b = w.bench(t, s)
		// The client waits: the panic goes on where it is waited for.
		_, err := b.try(t.Context(), async("waits", "Prefer", "wait=10"))
		require.Error(t, err)
		require.Equal(t, "panic-secret", next(b, raised))
		require.NotContains(t, b.logs.String(), "a handler panicked")

		// So does the end of a goroutine that leaves no answer.
		_, err = b.try(t.Context(), async("exits", "Prefer", "wait=10", "X-How", "goexit"))
		require.Error(t, err)
		require.Equal(t, http.ErrAbortHandler, next(b, raised))
		requireRefused(t, b.post("exits"), "operation-aborted", markedReplay)

		// The client has gone: the process goes on, and the log tells of it,
		// unless the handler wanted no more than to end.
		requireAccepted(t, b.send(async("aborted", "X-How", "abort")), "respond-async")
		aborting.release()
		b.untilSettled("aborted")
		location := requireAccepted(t, b.send(async("k", "X-How", "later")), "respond-async")
		g.release()
		b.untilSettled("k")
		doc := requireState(t, b.send(order{method: "GET", path: location, body: "none"}), "unknown")
		require.Equal(t, http.StatusInternalServerError, doc.OriginalStatus)
		b.until("logged", func() bool { return strings.Contains(b.logs.String(), "a handler panicked") })
		require.Equal(t, 1, strings.Count(b.logs.String(), "a handler panicked"))
		require.Contains(t, b.logs.String(), "panic=string")
		require.NotContains(t, b.logs.String(), "secret")
		requireRefused(t, b.post("k"), "operation-aborted", markedReplay)
	})
}

// A client that goes away while it waits changes nothing, and one whose answer
// is too long to hold is told where to ask.
func TestB40_NobodyWaits(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		g := newGate(t)
		ended := make(chan struct{}, 10)
		var b *bench
		s := asyncSetup(&b, setup{
			options: []idempotent.HTTPOption{
				idempotent.WithMaxResponse(10), idempotent.WithCancelOnDisconnect(), idempotent.WithMaxWait(time.Hour),
			},
			handler: func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("X-How") == "long" {
					for range 100 {
						_, err := io.WriteString(w, "0123456789")
						require.NoError(t, err)
					}
				}
				g.pass()
				b.created(w, r)
			},
		})
		mount := s.outer
		s.outer = func(next http.Handler) http.Handler {
			next = mount(next)
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				next.ServeHTTP(w, r)
				ended <- struct{}{}
			})
		}
		b = w.bench(t, s)
		a := b.begin(async("gone", "Prefer", "wait=3600"))
		b.receive("the handler", g.entered)
		a.cancel()
		b.receive("the end of the client", a.done)
		b.receive("the end of its request", ended)
		requireAccepted(t, b.send(async("long", "X-How", "long", "Prefer", "wait=3600")), "respond-async, wait=3600")
		g.release()
		b.untilSettled("gone")
		b.untilSettled("long")
		require.True(t, b.post("gone").replayed())
		requireRefused(t, b.post("long"), "result-unavailable")
		require.EqualValues(t, 2, b.runs.Load())
	})
}

func TestB40_DrainWaits(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		g := newGate(t)
		var b *bench
		b = w.bench(t, asyncSetup(&b, setup{handler: gated(&b, g)}))
		requireAccepted(t, b.send(async("k")), "respond-async")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorContains(t, b.guard.Drain(ctx), "1 still running")
		g.release()
		require.NoError(t, b.guard.Drain(t.Context()))
		b.requireEntry("k", idempotent.ClassSuccess)
	})
}

// The files of a form outlive the request, and are removed after the handler.
func TestB40_Form(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		g := newGate(t)
		files := make(chan string, 1)
		var b *bench
		b = w.bench(t, asyncSetup(&b, setup{handler: func(w http.ResponseWriter, r *http.Request) {
			g.pass()
			require.NoError(t, r.ParseMultipartForm(1))
			f, err := r.MultipartForm.File["file"][0].Open()
			require.NoError(t, err)
			defer f.Close()
			content, err := io.ReadAll(f)
			require.NoError(t, err)
			require.Len(t, content, 200<<10)
			files <- f.(*os.File).Name()
			b.created(w, r)
		}}))
		form, contentType := formWithFile(t)
		requireAccepted(t, b.send(order{key: "k", body: form, fields: []string{
			"Content-Type", contentType, "Prefer", "respond-async",
		}}), "respond-async")
		g.release()
		file := next(b, files)
		b.until("the file is gone", func() bool {
			_, err := os.Stat(file)
			return errors.Is(err, os.ErrNotExist)
		})
		b.requireEntry("k", idempotent.ClassSuccess)
	})
}

func TestB40_Bounded(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		g := newGate(t)
		var b *bench
		b = w.bench(t, asyncSetup(&b, setup{handler: gated(&b, g), options: []idempotent.HTTPOption{idempotent.WithMaxWaiters(1)}}))
		requireAccepted(t, b.send(async("k1")), "respond-async")
		a := b.begin(async("k2")) // runs as if nothing had been preferred
		for range 2 {
			b.receive("the handler", g.entered)
		}
		g.release()
		require.Equal(t, http.StatusCreated, a.wait().status)
		b.untilSettled("k1")
		require.EqualValues(t, 2, b.runs.Load(), "a run each")
		n := 0
		b.until("there is a place again", func() bool {
			n++
			return b.send(async(fmt.Sprint("later", n))).status == http.StatusAccepted
		})
	})
}

func TestB40_Locations(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		for _, c := range []struct {
			base string
			o    order
			more []idempotent.HTTPOption
			want string
		}{
			{statusPath, order{key: "k"}, nil, "/operations?key=k&path=%2Forders"},
			{"https://shop.example/operations", order{key: "k"}, nil, "https://shop.example/operations?key=k&path=%2Forders"},
			{statusPath, order{key: `"a b&c"`, method: "PATCH", path: "/orders/1%2F2?x=y"}, nil, "/operations?key=a+b%26c&method=PATCH&path=%2Forders%2F1%252F2"},
			{statusPath, order{key: "k"}, []idempotent.HTTPOption{idempotent.WithPrincipalScope()}, "/operations?key=k"},
		} {
			g := newGate(t)
			var b *bench
			b = w.bench(t, setup{
				options: append(c.more, idempotent.WithStatusURL(c.base)), outer: withStatus(&b), handler: gated(&b, g),
			})
			c.o.fields = []string{"Prefer", "respond-async"}
			location := requireAccepted(t, b.send(c.o), "respond-async")
			require.Equal(t, c.want, location)
			query := order{method: "GET", body: "none", path: strings.TrimPrefix(location, "https://shop.example")}
			requireState(t, b.send(query), "pending")
			g.release()
			query.fields = []string{"Prefer", "wait=10"}
			requireState(t, b.send(query), "success")
		}
	})
	for _, bad := range []string{"/operations#", "", "?x", "/a?b=c", "/a?", "/a#b", "%zz"} {
		require.Panics(t, func() { idempotent.WithStatusURL(bad) }, bad)
	}
}

func TestB72_States(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		g := newGate(t)
		var b *bench
		b = w.bench(t, setup{outer: withStatus(&b), handler: func(w http.ResponseWriter, r *http.Request) {
			switch how := r.Header.Get("X-How"); how {
			case "pending":
				g.pass()
			case "panic":
				panic(http.ErrAbortHandler)
			case "400", "500", "429":
				http.Error(w, "no", map[string]int{"400": 400, "500": 500, "429": 429}[how])
				return
			case "hijack":
				conn, _, err := http.NewResponseController(w).Hijack()
				if err == nil {
					_ = conn.Close()
				}
				return
			}
			b.created(w, r)
		}})
		for _, how := range []string{"201", "400", "500", "429", "panic", "hijack"} {
			_, _ = b.try(t.Context(), order{key: how, fields: []string{"X-How", how, "X-Request-Id", "trace-" + how}})
		}
		pending := b.begin(order{key: "pending", fields: []string{"X-How", "pending", "X-Request-Id", "trace-pending"}})
		b.receive("the handler", g.entered)
		b.untilSettled("hijack")
		b.die("abandoned", true, false)
		b.dieWith("taken", "f", true, true)

		runs := b.runs.Load()
		for key, want := range map[string]state{
			"201":       {State: "success", OriginalStatus: 201, Location: "/orders/1", Trace: "trace-201"},
			"400":       {State: "failed", OriginalStatus: 400, Trace: "trace-400"},
			"500":       {State: "unknown", OriginalStatus: 500, Trace: "trace-500"},
			"panic":     {State: "unknown", OriginalStatus: 500, Trace: "trace-panic"},
			"hijack":    {State: "success", OriginalStatus: 101, Trace: "trace-hijack"},
			"pending":   {State: "pending", Trace: "trace-pending"},
			"abandoned": {State: "unknown", Trace: "trace-of-the-dead"},
			"taken":     {State: "unknown", Trace: "trace-of-the-dead"},
		} {
			before, found := b.load(name(key))
			require.True(t, found, key)
			got := requireState(t, b.send(statusOf(key)), want.State)
			want.Since, want.FirstSeen, want.Expires = before.Timestamp, before.Claimed, before.Expires
			for _, pair := range [][2]*time.Time{{&want.Since, &got.Since}, {&want.FirstSeen, &got.FirstSeen}, {&want.Expires, &got.Expires}} {
				require.WithinDuration(t, *pair[0], *pair[1], 0, key)
				*pair[0], *pair[1] = time.Time{}, time.Time{}
			}
			require.Equal(t, want, got, key)
			after, _ := b.load(name(key))
			require.Equal(t, before, after, "%s: nothing is extended", key)
		}
		require.Equal(t, runs, b.runs.Load(), "nothing runs")

		requireRefused(t, b.send(statusOf("429")), "no-record")
		requireRefused(t, b.send(statusOf("never")), "no-record")
		requireRefused(t, b.send(statusOf("201", "X-User", "bob")), "no-record")
		requireRefused(t, b.send(statusOf("201", "X-User", "nobody")), "unauthenticated")
		for _, query := range []string{"key=201", "key=201&path=/other", "key=201&path=/orders&method=PATCH", "key=201&path=/orders&method=post"} {
			requireRefused(t, b.send(order{method: "GET", body: "none", path: statusPath + "?" + query}), "no-record")
		}
		head := b.send(order{method: "HEAD", body: "none", path: statusPath + "?key=201&path=/orders"})
		require.Equal(t, http.StatusOK, head.status)
		require.Empty(t, head.body)

		g.release()
		pending.wait()
	})
}

// Functions under Do have no status code: their state stands alone.
func TestB72_OtherRecords(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		var b *bench
		b = w.bench(t, setup{outer: withStatus(&b)})
		ctx := t.Context()
		_, err := idempotent.Do(ctx, b.guard, name("value"), func(context.Context) (int, error) { return 1, nil })
		require.NoError(t, err)
		require.Zero(t, requireState(t, b.send(statusOf("value")), "success").OriginalStatus)
		e := b.die("settled", true, false)
		require.NoError(t, b.guard.Resolve(ctx, name("settled"), e.Owner, idempotent.ClassSuccess, ""))
		require.Zero(t, requireState(t, b.send(statusOf("settled")), "success").OriginalStatus)
	})
}

func TestB72_BadQueries(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		var b *bench
		b = w.bench(t, setup{outer: withStatus(&b)})
		for query, code := range map[string]string{
			"":                           "key-missing",
			"key=":                       "key-missing",
			"path=/orders":               "key-missing",
			"key=a&key=b&path=/orders":   "key-invalid",
			"key=a&path=/orders&path=/b": "key-invalid",
			"key=a&method=POST":          "key-invalid",
			"key=%zz":                    "key-invalid",
			"key=" + strings.Repeat("k", 256) + "&path=/orders": "key-invalid",
		} {
			requireRefused(t, b.send(order{method: "GET", body: "none", path: statusPath + "?" + query}), code)
		}
		a := b.send(order{key: "k", path: statusPath + "?key=k&path=/orders"})
		requireRefused(t, a, "method-not-allowed")
		require.Equal(t, "GET, HEAD", a.header.Get("Allow"))
		b.requireUntouched()
		require.Panics(t, func() { b.guard.StatusHandler(nil) })
	})
}

func TestB72_StoreTrouble(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		var b *bench
		b = w.bench(t, setup{outer: withStatus(&b)})
		b.post("k")
		b.store.Down(errOutage)
		doc := requireRefused(t, b.send(statusOf("k")), "store-unavailable")
		require.NotContains(t, doc.Detail, "nothing was done", "it is not known what was")
		b.store.Up()
		b.store.Before(storetest.OpLoad, func(context.Context, string) error { return idempotent.ErrCorrupt })
		doc = requireRefused(t, b.send(statusOf("k")), "record-corrupt")
		require.NotContains(t, doc.Detail, "Nothing was done")
		b.store.Before(storetest.OpLoad, nil)
		require.NoError(t, b.guard.Drain(t.Context()))
		requireState(t, b.send(statusOf("k")), "success")
	})
}

func TestB72_LongPoll(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		g := newGate(t)
		var b *bench
		b = w.bench(t, setup{outer: withStatus(&b, idempotent.WithMaxWaiters(1)), handler: func(w http.ResponseWriter, r *http.Request) {
			g.pass()
			if r.Header.Get("X-How") == "released" {
				idempotent.Release(r.Context())
			}
			b.created(w, r)
		}})
		waiting := b.countWaiters()
		first := b.begin(order{key: "k"})
		b.receive("the handler", g.entered)
		poll := b.begin(statusOf("k", "Prefer", "wait=60"))
		b.until("it waits", func() bool { return waiting.n.Load() == 1 })
		full := b.send(statusOf("k", "Prefer", "wait=60")) // no place: answered at once
		requireState(t, full, "pending")
		require.Nil(t, full.header["Preference-Applied"])
		g.release()
		got := poll.wait()
		requireState(t, got, "success")
		require.Equal(t, "wait=10", got.header.Get("Preference-Applied"))
		first.wait()
		late := b.send(statusOf("k", "Prefer", "wait=60"))
		requireState(t, late, "success")
		require.Nil(t, late.header["Preference-Applied"])
	})
}

func TestB72_LongPollEnds(t *testing.T) {
	onFakeTime(t, func(t *testing.T, w world) {
		g := newGate(t)
		var b *bench
		b = w.bench(t, setup{outer: withStatus(&b, idempotent.WithMaxWait(7*time.Second)), handler: func(_ http.ResponseWriter, r *http.Request) {
			g.pass()
			idempotent.Release(r.Context())
		}})
		first := b.begin(order{key: "k"})
		b.receive("the handler", g.entered)
		for prefer, took := range map[string]time.Duration{"wait=2": 2 * time.Second, "wait=60": 7 * time.Second, "wait=0": 0, "handling=strict": 0} {
			began := time.Now()
			requireState(t, b.send(statusOf("k", "Prefer", prefer)), "pending")
			require.Equal(t, took, time.Since(began), prefer)
		}
		poll := b.begin(statusOf("k", "Prefer", "wait=5"))
		b.pass(time.Second)
		g.release()
		requireRefused(t, poll.wait(), "no-record")
		first.wait()
	})
}

// stream is a stream of events that is being read.
type stream struct {
	b   *bench
	res *http.Response
	in  *bufio.Scanner
}

// events opens a stream for the usual order under key.
func (b *bench) watch(key string, fields ...string) *stream {
	b.t.Helper()
	res, err := b.client.Do(b.request(b.t.Context(), statusOf(key, append([]string{"Accept", "text/event-stream"}, fields...)...)))
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = res.Body.Close() })
	return &stream{b: b, res: res, in: bufio.NewScanner(res.Body)}
}

// next reads an event; "" at the end.
func (s *stream) next() (id, event string, doc state) {
	s.b.t.Helper()
	for s.in.Scan() {
		field, value, _ := strings.Cut(s.in.Text(), ": ")
		switch field {
		case "id":
			id = value
		case "event":
			event = value
		case "data":
			doc = readState(s.b.t, value)
			require.Equal(s.b.t, event, doc.State)
		case "":
			if event != "" {
				return id, event, doc
			}
		}
	}
	return "", "", doc
}

func TestB72_Events(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		g := newGate(t)
		var b *bench
		b = w.bench(t, setup{outer: withStatus(&b), handler: func(w http.ResponseWriter, r *http.Request) {
			g.pass()
			if r.Header.Get("X-How") == "released" {
				idempotent.Release(r.Context())
			}
			b.created(w, r)
		}})
		first := b.begin(order{key: "k"})
		other := b.begin(order{key: "freed", fields: []string{"X-How", "released"}})
		for range 2 {
			b.receive("the handler", g.entered)
		}
		s, freed := b.watch("k"), b.watch("freed", "Accept", "application/json")
		require.Equal(t, http.StatusOK, s.res.StatusCode)
		require.Equal(t, "text/event-stream", s.res.Header.Get("Content-Type"))
		require.Equal(t, "no-store", s.res.Header.Get("Cache-Control"))
		pendingID, event, _ := s.next()
		require.Equal(t, "pending", event)
		_, event, _ = freed.next()
		require.Equal(t, "pending", event)
		again := b.watch("k", "Last-Event-ID", pendingID) // has seen that

		g.release()
		id, event, doc := s.next()
		require.Equal(t, "success", event)
		require.Equal(t, http.StatusCreated, doc.OriginalStatus)
		_, event, _ = s.next()
		require.Empty(t, event, "the stream has ended")
		_, event, _ = again.next()
		require.Equal(t, "success", event)
		id2, event, _ := freed.next()
		require.Equal(t, "released", event)
		require.Empty(t, id2)
		first.wait()
		other.wait()

		late := b.watch("k", "Last-Event-ID", pendingID)
		sameID, event, _ := late.next()
		require.Equal(t, "success", event)
		require.Equal(t, id, sameID)
		_, event, _ = late.next()
		require.Empty(t, event)
		require.Equal(t, http.StatusNoContent, b.watch("k", "Last-Event-ID", id).res.StatusCode)
		require.Equal(t, http.StatusNotFound, b.watch("freed").res.StatusCode)
		for _, accept := range []string{"*/*", "text/*", "text/event-stream;q=0", "application/json"} {
			requireState(t, b.send(statusOf("k", "Accept", accept)), "success")
		}
	})
}

func TestB72_EventsEnd(t *testing.T) {
	onFakeTime(t, func(t *testing.T, w world) {
		g := newGate(t)
		var b *bench
		b = w.bench(t, setup{outer: withStatus(&b), handler: gated(&b, g)})
		first := b.begin(order{key: "k"})
		b.receive("the handler", g.entered)
		began := time.Now()
		s := b.watch("k")
		_, event, _ := s.next()
		require.Equal(t, "pending", event)
		_, event, _ = s.next()
		require.Empty(t, event, "the client is to come back")
		require.Equal(t, idempotent.DefaultMaxWait, time.Since(began))
		g.release()
		first.wait()
	})
}
