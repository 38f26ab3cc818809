package idempotent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

// byStatus answers with the status that the request asks for, and counts the
// runs in the body.
func byStatus(b **bench) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		status, _ := strconv.Atoi(r.Header.Get("X-Status"))
		if v, ok := r.Header["X-Retry-After"]; ok {
			w.Header().Set("Retry-After", v[0])
		}
		w.Header().Set("Location", "/x")
		w.WriteHeader(status)
		if status != 204 && status != 205 && status != 304 {
			fmt.Fprintf(w, "run %d", (*b).runs.Load())
		}
	}
}

// short is a deadline that leaves time for a claim.
func (w world) short() time.Duration {
	if w.fake {
		return 5 * time.Second
	}
	return 700 * time.Millisecond
}

func TestB55_Success(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		var b *bench
		b = w.bench(t, setup{handler: byStatus(&b)})
		for _, status := range []string{"200", "201", "202", "203", "204", "205", "206", "226", "299", "300", "301", "302", "303", "304", "307", "308", "399"} {
			first, _ := b.pair(order{key: status, fields: []string{"X-Status", status}})
			require.Equal(t, status, strconv.Itoa(first.status))
			e := b.requireEntry(status, idempotent.ClassSuccess)
			require.NotEmpty(t, e.Result)
		}
		require.Equal(t, 17, b.observed(idempotent.EventCompleted))
	})
	t.Run("kept for 24 h from completion", func(t *testing.T) {
		onFakeTimeOf(t, func(t *testing.T, w world) {
			var b *bench
			b = w.bench(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
				<-time.After(time.Hour)
				b.created(w, r)
			}})
			first := b.post("k")
			requireFresh(t, first, 1)
			b.pass(24*time.Hour - time.Second)
			requireReplay(t, first, b.post("k"))
			b.pass(2 * time.Second)
			requireFresh(t, b.post("k"), 2)
		})
	})
}

func TestB56_DefiniteFailure(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		var b *bench
		b = w.bench(t, setup{handler: byStatus(&b)})
		for _, status := range []string{"400", "402", "403", "404", "405", "406", "409", "410", "411", "412", "413", "415", "418", "422", "423", "424", "426", "428", "431", "451", "499"} {
			first, _ := b.pair(order{key: status, fields: []string{"X-Status", status}})
			require.Equal(t, status, strconv.Itoa(first.status))
			b.requireEntry(status, idempotent.ClassFailure)
		}
	})
	t.Run("then the key is free", func(t *testing.T) {
		eachClockOf(t, func(t *testing.T, w world) {
			retention := 2 * time.Hour
			s := setup{}
			if !w.fake {
				retention = time.Second
				s.guard = []idempotent.Option{idempotent.WithFailureRetention(retention)}
			}
			var b *bench
			s.handler = byStatus(&b)
			b = w.bench(t, s)
			first := b.post("k", "X-Status", "404")
			e, found := b.load(name("k"))
			require.True(t, found)
			require.InDelta(t, retention, e.Expires.Sub(e.Timestamp), float64(10*time.Millisecond))
			if w.fake {
				b.pass(retention - time.Second)
				requireReplay(t, first, b.post("k", "X-Status", "404"))
				b.pass(2 * time.Second)
			}
			b.until("free", func() bool { return b.absent("k") })
			again := b.post("k", "X-Status", "404")
			require.Equal(t, "run 2", again.body)
			require.Nil(t, again.header["Idempotent-Replayed"])
		})
	})
}

func TestB57_Released(t *testing.T) {
	type release struct{ status, retryAfter string }
	released := []release{{"401", ""}, {"407", ""}, {"421", ""}, {"425", ""}, {"429", ""}, {"429", "60"}, {"503", "3"}, {"503", "Wed, 21 Oct 2026 07:28:00 GMT"}}
	eachStore(t, func(t *testing.T, w world) {
		var b *bench
		b = w.bench(t, setup{handler: byStatus(&b)})
		for i, r := range released {
			key := fmt.Sprintf("k%d", i)
			fields := []string{"X-Status", r.status}
			if r.retryAfter != "" {
				fields = append(fields, "X-Retry-After", r.retryAfter)
			}
			runs := b.runs.Load()
			for range 2 {
				a := b.post(key, fields...)
				runs++
				require.Equal(t, r.status, strconv.Itoa(a.status))
				require.Equal(t, r.retryAfter, a.header.Get("Retry-After"))
				require.Equal(t, fmt.Sprintf("run %d", runs), a.body)
				require.Nil(t, a.header["Idempotent-Replayed"])
				b.requireAbsent(key)
			}
			// The key is free for another request, too.
			a := b.send(order{key: key, body: "{}", fields: []string{"X-Status", "201"}})
			require.Equal(t, http.StatusCreated, a.status)
			require.Nil(t, a.header["Retry-After"])
			b.requireEntry(key, idempotent.ClassSuccess)
		}
		require.Equal(t, 2*len(released), b.observed(idempotent.EventReleased))
	})
	t.Run("with its context done it is unknown", func(t *testing.T) {
		eachClockOf(t, func(t *testing.T, w world) {
			var b *bench
			answer := byStatus(&b)
			b = w.bench(t, setup{outer: withDeadline(w.short()), handler: func(w http.ResponseWriter, r *http.Request) {
				<-r.Context().Done()
				answer(w, r)
			}})
			for i, r := range released {
				if !w.fake && i > 1 {
					break
				}
				key := fmt.Sprintf("k%d", i)
				fields := []string{"X-Status", r.status, "X-Deadline", "1"}
				if r.retryAfter != "" {
					fields = append(fields, "X-Retry-After", r.retryAfter)
				}
				first := b.post(key, fields...)
				require.Equal(t, r.status, strconv.Itoa(first.status))
				b.requireEntry(key, idempotent.ClassUnknown)
				again := b.post(key, fields...)
				requireReplay(t, first, again)
				require.EqualValues(t, i+1, b.runs.Load())
			}
		})
	})
	t.Run("a client that left does not end the context", func(t *testing.T) {
		b, a, g := disconnected(t, memory, setup{}, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) })
		a.cancel()
		g.release()
		b.until("released", func() bool { return b.observed(idempotent.EventReleased) == 1 })
		b.requireAbsent("k")
	})
}

func TestB58_ServerErrors(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		var b *bench
		b = w.bench(t, setup{handler: byStatus(&b)})
		for _, status := range []string{"500", "501", "502", "503", "504", "505", "507", "508", "511", "520", "599", "600", "999", "408"} {
			first, again := b.pair(order{key: status, fields: []string{"X-Status", status}})
			require.Equal(t, status, strconv.Itoa(first.status))
			require.Equal(t, status, strconv.Itoa(again.status))
			b.requireEntry(status, idempotent.ClassUnknown)
		}
		first, _ := b.pair(order{key: "empty-retry-after", fields: []string{"X-Status", "503", "X-Retry-After", ""}})
		require.Equal(t, 503, first.status)
		b.requireEntry("empty-retry-after", idempotent.ClassUnknown)
		// Only 503 is a shed.
		first, again := b.pair(order{key: "500-retry-after", fields: []string{"X-Status", "500", "X-Retry-After", "5"}})
		require.Equal(t, first.header["Retry-After"], again.header["Retry-After"])
		b.requireEntry("500-retry-after", idempotent.ClassUnknown)
	})
	t.Run("kept for 24 h", func(t *testing.T) {
		onFakeTimeOf(t, func(t *testing.T, w world) {
			var b *bench
			b = w.bench(t, setup{handler: byStatus(&b)})
			first := b.post("k", "X-Status", "502")
			b.pass(24*time.Hour - time.Second)
			requireReplay(t, first, b.post("k", "X-Status", "502"))
			b.pass(2 * time.Second)
			require.Equal(t, "run 2", b.post("k", "X-Status", "502").body)
		})
	})
}

func TestB59_Classify(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		var b *bench
		b = w.bench(t, setup{
			handler: byStatus(&b),
			options: []idempotent.HTTPOption{idempotent.WithClassify(func(status int, h http.Header) idempotent.Class {
				switch {
				case h.Get("Location") != "/x":
					panic("the header of the answer is missing")
				case status == 500:
					return idempotent.ClassRelease
				case status == 404:
					return idempotent.ClassSuccess
				case status == 201:
					return idempotent.ClassFailure
				case status == 429:
					return idempotent.ClassUnknown
				case status == 202:
					return idempotent.Class(42)
				case status == 203:
					return idempotent.Class(-1)
				}
				return idempotent.ClassDefault
			})},
		})
		for n := range 3 {
			a := b.post("500", "X-Status", "500")
			require.Equal(t, 500, a.status)
			require.Equal(t, fmt.Sprintf("run %d", n+1), a.body)
			require.Nil(t, a.header["Idempotent-Replayed"])
			b.requireAbsent("500")
		}
		for status, class := range map[string]idempotent.Class{
			"404": idempotent.ClassSuccess, "201": idempotent.ClassFailure, "429": idempotent.ClassUnknown,
			"202": idempotent.ClassUnknown, "203": idempotent.ClassUnknown, // nonsense: in doubt it may have happened
			"200": idempotent.ClassSuccess, "400": idempotent.ClassFailure, "502": idempotent.ClassUnknown, // as the table says
		} {
			b.pair(order{key: status, fields: []string{"X-Status", status}})
			b.requireEntry(status, class)
		}
		require.Equal(t, 401, b.post("401", "X-Status", "401").status)
		b.requireAbsent("401")
	})
}

func TestB60_Panic(t *testing.T) {
	type custom struct{ n int }
	value := &custom{1}
	anError := errors.New("error-secret")
	panics := map[string]func(http.ResponseWriter, *http.Request){
		"value":         func(http.ResponseWriter, *http.Request) { panic(value) },
		"error":         func(http.ResponseWriter, *http.Request) { panic(anError) },
		"string":        func(http.ResponseWriter, *http.Request) { panic("text") },
		"abort":         func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"nil":           func(http.ResponseWriter, *http.Request) { panic(nil) }, //nolint:govet // what becomes of it is the point
		"runtime error": func(w http.ResponseWriter, r *http.Request) { _ = []int{}[len(r.Header)] },
		"goexit":        func(http.ResponseWriter, *http.Request) { runtime.Goexit() },
		"after a status": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "done")
			panic(value)
		},
		"after a flush": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "half")
			w.(http.Flusher).Flush()
			panic(value)
		},
		"after a success": func(_ http.ResponseWriter, r *http.Request) { idempotent.Succeed(r.Context()); panic(value) },
		"after a release": func(w http.ResponseWriter, r *http.Request) {
			idempotent.Release(r.Context())
			w.WriteHeader(http.StatusTooManyRequests)
			panic(value)
		},
		"goexit after a release": func(_ http.ResponseWriter, r *http.Request) { idempotent.Release(r.Context()); runtime.Goexit() },
		"invalid status":         func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(1000) },
	}
	eachStore(t, func(t *testing.T, w world) {
		for kind, handler := range panics {
			t.Run(kind, func(t *testing.T) {
				raised := make(chan any, 10)
				b := w.bench(t, setup{handler: handler, outer: func(next http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						returned := false
						defer func() {
							if v := recover(); v != nil || !returned {
								raised <- v
								if v == nil {
									return // runtime.Goexit goes on
								}
								panic(http.ErrAbortHandler)
							}
						}()
						next.ServeHTTP(w, r)
						returned = true
					})
				}})
				a, err := b.try(t.Context(), order{key: "k"})
				if kind == "after a flush" {
					require.NoError(t, err)
					require.Error(t, a.err, "the client sees that the answer was cut")
				} else {
					require.Error(t, err)
				}
				switch v := next(b, raised); kind {
				case "goexit", "goexit after a release":
					require.Nil(t, v)
				case "error":
					require.Same(t, anError, v)
				case "string":
					require.Equal(t, "text", v)
				case "abort":
					require.Equal(t, http.ErrAbortHandler, v)
				case "nil":
					require.IsType(t, (*runtime.PanicNilError)(nil), v)
				case "runtime error":
					require.Implements(t, (*runtime.Error)(nil), v)
				case "invalid status":
					require.Equal(t, "invalid WriteHeader code 1000", v)
				default:
					require.Same(t, value, v)
				}
				b.untilSettled("k")
				e := b.requireEntry("k", idempotent.ClassUnknown)
				for range 2 {
					a := b.post("k")
					requireRefused(t, a, "operation-aborted", markedReplay)
					require.NotContains(t, a.body, "secret")
				}
				require.Equal(t, e, b.requireEntry("k", idempotent.ClassUnknown))
				require.EqualValues(t, 1, b.runs.Load())
				require.Empty(t, raised)
			})
		}
	})
}

// Go's Transport sends a POST that carries a key once more when a connection
// it has used before ends without an answer.
func TestB60_TransportSendsAgain(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		for _, field := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
			var attempts atomic.Int64
			b := w.bench(t, setup{
				options: []idempotent.HTTPOption{idempotent.WithOptionalKey()},
				outer: func(next http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						attempts.Add(1)
						next.ServeHTTP(w, r)
					})
				},
				handler: func(w http.ResponseWriter, r *http.Request) {
					if r.Method == "POST" {
						_, _ = io.Copy(io.Discard, r.Body)
						panic(http.ErrAbortHandler)
					}
				},
			})
			require.Equal(t, 200, b.send(order{method: "GET", body: "none"}).status) // warms the connection
			attempts.Store(0)
			b.runs.Store(0)
			a := b.send(order{fields: []string{field, "k"}})
			requireRefused(t, a, "operation-aborted", markedReplay)
			require.EqualValues(t, 2, attempts.Load(), "the client has sent it twice by itself")
			require.EqualValues(t, 1, b.runs.Load())
			b.requireEntry("k", idempotent.ClassUnknown)
		}
	})
}

func TestB61_SaidByTheHandler(t *testing.T) {
	says := map[string]func(context.Context){
		"succeed": idempotent.Succeed, "fail": idempotent.Fail, "unknown": idempotent.Unknown, "release": idempotent.Release,
	}
	class := map[string]idempotent.Class{
		"succeed": idempotent.ClassSuccess, "fail": idempotent.ClassFailure, "unknown": idempotent.ClassUnknown, "release": idempotent.ClassRelease,
	}
	eachStore(t, func(t *testing.T, w world) {
		var b *bench
		b = w.bench(t, setup{
			options: []idempotent.HTTPOption{idempotent.WithClassify(func(status int, _ http.Header) idempotent.Class {
				if status == 226 {
					return idempotent.ClassRelease
				}
				return idempotent.ClassDefault
			})},
			handler: func(w http.ResponseWriter, r *http.Request) {
				ctx, cancel := context.WithCancel(context.WithValue(r.Context(), custom{}, 1)) // as layers inside make them
				defer cancel()
				for word := range strings.FieldsSeq(r.Header.Get("X-Say")) {
					says[word](ctx)
				}
				byStatus(&b)(w, r)
			},
		})
		n := 0
		for _, status := range []string{"201", "404", "429", "500", "226"} {
			for _, said := range []string{"succeed", "fail", "unknown", "release", "succeed release", "release unknown succeed fail", "fail fail unknown"} {
				n++
				key := fmt.Sprintf("k%d", n)
				words := strings.Fields(said)
				o := order{key: key, fields: []string{"X-Status", status, "X-Say", said}}
				want := class[words[len(words)-1]]
				if want != idempotent.ClassRelease {
					first, _ := b.pair(o)
					require.Equal(t, status, strconv.Itoa(first.status))
					b.requireEntry(key, want)
					continue
				}
				for range 2 {
					runs := b.runs.Load()
					a := b.send(o)
					require.Equal(t, status, strconv.Itoa(a.status))
					require.Nil(t, a.header["Idempotent-Replayed"])
					require.Equal(t, runs+1, b.runs.Load())
					b.requireAbsent(key)
				}
			}
		}
	})
	t.Run("too late", func(t *testing.T) {
		var ctx context.Context
		var b *bench
		b = memory.bench(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
			ctx = r.Context()
			b.created(w, r)
		}})
		first := b.post("k")
		idempotent.Release(ctx)
		requireReplay(t, first, b.post("k"))
	})
}

type custom struct{}

// disconnected is an order whose handler has begun and whose client may leave.
func disconnected(t *testing.T, w world, s setup, answer http.HandlerFunc) (*bench, *attempt, *gate) {
	t.Helper()
	g := newGate(t)
	s.handler = func(w http.ResponseWriter, r *http.Request) {
		g.pass()
		answer(w, r)
	}
	b := w.bench(t, s)
	a := b.begin(order{key: "k"})
	b.receive("the handler", g.entered)
	return b, a, g
}

func TestB62_ClientLeaves(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		type state struct {
			err, cause error
			value      any
			deadline   time.Time
			ok         bool
		}
		states := make(chan state, 10)
		gone := make(chan struct{})
		deadline := time.Now().Add(time.Hour)
		outer := func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ctx, cancel := context.WithDeadline(context.WithValue(r.Context(), custom{}, "value"), deadline)
				defer cancel()
				defer context.AfterFunc(r.Context(), func() {
					select {
					case gone <- struct{}{}:
					default:
					}
				})()
				next.ServeHTTP(w, r.WithContext(ctx))
			})
		}
		var b *bench
		b, a, g := disconnected(t, w, setup{outer: outer}, func(w http.ResponseWriter, r *http.Request) {
			ctx := r.Context()
			s := state{err: ctx.Err(), cause: context.Cause(ctx), value: ctx.Value(custom{})}
			s.deadline, s.ok = ctx.Deadline()
			states <- s
			b.created(w, r)
		})
		a.cancel()
		b.receive("the server has noticed", gone)
		require.Equal(t, idempotent.Pending, b.requireEntry("k", idempotent.ClassDefault).Status)
		requireRefused(t, b.post("k"), "in-flight")
		g.release()
		s := next(b, states)
		require.NoError(t, s.err)
		require.NoError(t, s.cause)
		require.Equal(t, "value", s.value)
		require.True(t, s.ok)
		require.WithinDuration(t, deadline, s.deadline, 0)
		b.untilSettled("k")
		again := b.post("k")
		require.True(t, again.replayed())
		require.Equal(t, "run 1", again.body)
		require.EqualValues(t, 1, b.runs.Load())
		b.requireEntry("k", idempotent.ClassSuccess)
	})
	t.Run("WithCancelOnDisconnect", func(t *testing.T) {
		eachStoreOf(t, func(t *testing.T, w world) {
			for _, writes := range []bool{false, true} {
				causes := make(chan error, 1)
				b, a, g := disconnected(t, w, setup{options: []idempotent.HTTPOption{idempotent.WithCancelOnDisconnect()}}, func(w http.ResponseWriter, r *http.Request) {
					<-r.Context().Done()
					causes <- context.Cause(r.Context())
					if writes {
						w.WriteHeader(http.StatusCreated)
						_, _ = io.WriteString(w, "done all the same")
					}
				})
				g.release()
				a.cancel()
				require.ErrorIs(t, next(b, causes), context.Canceled)
				b.untilSettled("k")
				if writes {
					b.requireEntry("k", idempotent.ClassSuccess)
					require.Equal(t, "done all the same", b.post("k").body)
				} else {
					b.requireEntry("k", idempotent.ClassUnknown)
					requireRefused(t, b.post("k"), "outcome-unknown", markedReplay)
				}
				require.EqualValues(t, 1, b.runs.Load())
			}
		})
	})
}

func TestB63_TimeoutHandlerOutside(t *testing.T) {
	eachClock(t, func(t *testing.T, w world) {
		g, stopping := newGate(t), newGate(t)
		var b *bench
		b = w.bench(t, setup{
			outer: func(next http.Handler) http.Handler { return http.TimeoutHandler(next, w.short(), "too slow") },
			handler: func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Idempotency-Key") == "stops" {
					<-r.Context().Done()
					stopping.pass() // or the client might get our answer just in time
					return
				}
				g.pass()
				b.created(w, r)
			},
		})
		// It goes on.
		a := b.post("goes-on")
		require.Equal(t, http.StatusServiceUnavailable, a.status)
		require.Equal(t, "too slow", a.body)
		require.Nil(t, a.header["Idempotent-Replayed"])
		requireRefused(t, b.post("goes-on"), "in-flight")
		g.release()
		b.untilSettled("goes-on")
		b.requireEntry("goes-on", idempotent.ClassSuccess)
		again := b.post("goes-on")
		require.Equal(t, http.StatusCreated, again.status)
		require.True(t, again.replayed())
		require.Equal(t, "run 1", again.body)

		// It stops.
		a = b.post("stops")
		require.Equal(t, http.StatusServiceUnavailable, a.status)
		stopping.release()
		b.untilSettled("stops")
		b.requireEntry("stops", idempotent.ClassUnknown)
		requireRefused(t, b.post("stops"), "outcome-unknown", markedReplay)
		require.EqualValues(t, 2, b.runs.Load())
	})
}

func TestB63_TimeoutHandlerInside(t *testing.T) {
	eachClock(t, func(t *testing.T, w world) {
		g := newGate(t)
		late := make(chan error, 1)
		timeout := time.Second
		if !w.fake {
			timeout = 30 * time.Millisecond
		}
		b := w.bench(t, setup{
			inner: func(next http.Handler) http.Handler { return http.TimeoutHandler(next, timeout, "too slow") },
			handler: func(w http.ResponseWriter, r *http.Request) {
				g.pass()
				_, err := io.WriteString(w, "late")
				late <- err
			},
		})
		first := b.post("k")
		require.Equal(t, http.StatusServiceUnavailable, first.status)
		require.Equal(t, "too slow", first.body)
		require.Nil(t, first.header["Idempotent-Replayed"])
		e := b.requireEntry("k", idempotent.ClassUnknown)
		requireReplay(t, first, b.post("k"))
		g.release()
		require.ErrorIs(t, next(b, late), http.ErrHandlerTimeout)
		requireReplay(t, first, b.post("k"))
		require.EqualValues(t, 1, b.runs.Load())
		require.Equal(t, e, b.requireEntry("k", idempotent.ClassUnknown))
	})
}

func TestB79_LengthDeclaredWrongly(t *testing.T) {
	cases := map[string]http.HandlerFunc{
		"fewer": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "five!")
		},
		"none": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10")
			w.WriteHeader(http.StatusCreated)
		},
		"fewer, flushed": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "five!")
			w.(http.Flusher).Flush()
		},
		"one too few, an error": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "6")
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, "five!")
		},
		"fewer, and a release": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "6")
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = io.WriteString(w, "five!")
		},
		"more at once": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "5")
			_, _ = io.WriteString(w, "five!six")
		},
		"more": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "5")
			_, _ = io.WriteString(w, "five!")
			if _, err := io.WriteString(w, "six"); !errors.Is(err, http.ErrContentLength) {
				panic(err)
			}
		},
		"more, flushed": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "5")
			_, _ = io.WriteString(w, "five!")
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, "six")
		},
		"large, cut": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(3<<20))
			_, _ = io.WriteString(w, strings.Repeat("x", 2<<20))
		},
	}
	eachStore(t, func(t *testing.T, w world) {
		handler := func(w http.ResponseWriter, r *http.Request) { cases[r.Header.Get("X-Case")](w, r) }
		b := w.bench(t, setup{handler: handler})
		bare := w.bench(t, setup{handler: handler, options: []idempotent.HTTPOption{idempotent.WithMethods("PUT")}})
		for kind := range cases {
			key := strings.NewReplacer(" ", "-", ",", "").Replace(kind)
			o := order{key: key, fields: []string{"X-Case", kind}}
			want, wantErr := bare.try(t.Context(), o)
			got, gotErr := b.try(t.Context(), o)
			require.Equal(t, wantErr == nil, gotErr == nil, "%s: %v, %v", kind, wantErr, gotErr)
			require.Equal(t, want.status, got.status, kind)
			require.Equal(t, want.body, got.body, kind)
			require.Equal(t, want.err, got.err, kind)
			require.Equal(t, want.header["Content-Length"], got.header["Content-Length"], kind)
			require.Nil(t, got.header["Idempotent-Replayed"])
			b.untilSettled(key)
			e := b.requireEntry(key, idempotent.ClassUnknown)
			require.NotContains(t, e.Result, "five!")
			for range 2 {
				requireRefused(t, b.send(o), "outcome-unknown", markedReplay)
			}
		}
		require.EqualValues(t, len(cases), b.runs.Load())
	})
	t.Run("a length without a body is fine", func(t *testing.T) {
		b := memory.bench(t, setup{
			options: []idempotent.HTTPOption{idempotent.WithMethods("POST", "HEAD")},
			handler: func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Length", "10")
				if r.Method == "POST" {
					w.WriteHeader(http.StatusNotModified)
				}
			},
		})
		b.pair(order{key: "k"})
		first, again := b.pair(order{key: "k", method: "HEAD", body: "none"})
		require.Equal(t, "10", first.header.Get("Content-Length"))
		require.Equal(t, "10", again.header.Get("Content-Length"))
	})
}

func TestB81_NothingWritten(t *testing.T) {
	eachClock(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{outer: withDeadline(w.short()), handler: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Prepared", "never sent")
			<-r.Context().Done()
			if r.Header.Get("Idempotency-Key") == "interim" {
				w.WriteHeader(http.StatusEarlyHints)
			}
		}})
		for i, key := range []string{"k", "interim"} {
			first := b.post(key, "X-Deadline", "1")
			requireRefused(t, first, "outcome-unknown")
			require.Nil(t, first.header["X-Prepared"])
			e := b.requireEntry(key, idempotent.ClassUnknown)
			for range 2 {
				requireRefused(t, b.post(key), "outcome-unknown", markedReplay)
			}
			require.Equal(t, e, b.requireEntry(key, idempotent.ClassUnknown))
			require.EqualValues(t, i+1, b.runs.Load())
		}
	})
	t.Run("what was written counts", func(t *testing.T) {
		eachClockOf(t, func(t *testing.T, w world) {
			b := w.bench(t, setup{outer: withDeadline(w.short()), handler: func(w http.ResponseWriter, r *http.Request) {
				<-r.Context().Done()
				switch r.Header.Get("Idempotency-Key") {
				case "status":
					w.WriteHeader(http.StatusCreated)
				case "empty":
					_, _ = w.Write(nil)
				case "said":
					idempotent.Succeed(r.Context())
				}
			}})
			for key, status := range map[string]int{"status": 201, "empty": 200, "said": 200} {
				if !w.fake && key != "said" {
					continue // one deadline is enough of real time
				}
				first, _ := b.pair(order{key: key, fields: []string{"X-Deadline", "1"}})
				require.Equal(t, status, first.status)
				b.requireEntry(key, idempotent.ClassSuccess)
			}
		})
	})
	t.Run("without a done context an empty answer is one", func(t *testing.T) {
		b := memory.bench(t, setup{handler: func(http.ResponseWriter, *http.Request) {}})
		first, _ := b.pair(order{key: "k"})
		require.Equal(t, 200, first.status)
		require.Empty(t, first.body)
		b.requireEntry("k", idempotent.ClassSuccess)
	})
}
