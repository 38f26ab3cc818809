package idempotent_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

// rawHead sends the usual order over a connection of its own and returns the
// head and the body of the answer as they came.
func (b *bench) rawHead(key string, fields ...string) (head []string, body string) {
	b.t.Helper()
	_, r := b.raw(rawOrder(append([]string{"Connection: close", "Idempotency-Key: " + key}, fields...)...))
	all, err := io.ReadAll(r)
	require.NoError(b.t, err)
	text, body, ok := strings.Cut(string(all), "\r\n\r\n")
	require.True(b.t, ok, "%q", all)
	return strings.Split(text, "\r\n"), body
}

// samePair sends the usual order twice and checks that heads and bodies are
// the same but for the marker and, of the fields, those named. It returns both
// heads.
func (b *bench) samePair(key string, but ...string) (first, again []string) {
	b.t.Helper()
	first, firstBody := b.rawHead(key)
	again, againBody := b.rawHead(key)
	require.Contains(b.t, again, "Idempotent-Replayed: true")
	if has(first, "Transfer-Encoding") {
		firstBody = strings.TrimSuffix(firstBody, "0\r\n\r\n") // an empty body in chunks
	}
	require.Equal(b.t, firstBody, againBody)
	rest := func(head []string) (lines []string) {
		for _, line := range head {
			name, _, _ := strings.Cut(line, ":")
			if name != "Idempotent-Replayed" && name != "Date" && !slices.Contains(but, name) {
				lines = append(lines, line)
			}
		}
		slices.SortStableFunc(lines, func(a, b string) int { // net/http sends names in no fixed order of ours
			an, _, _ := strings.Cut(a, ":")
			bn, _, _ := strings.Cut(b, ":")
			return strings.Compare(an, bn)
		})
		return lines
	}
	require.Equal(b.t, rest(first), rest(again))
	require.Equal(b.t, has(first, "Date"), has(again, "Date"))
	require.False(b.t, has(first, "Idempotent-Replayed"))
	return first, again
}

func has(head []string, name string) bool {
	return slices.ContainsFunc(head, func(line string) bool { return strings.HasPrefix(line, name+":") })
}

// byCase lets one handler answer by the header X-Case.
func byCase(cases map[string]http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { cases[r.Header.Get("Idempotency-Key")](w, r) }
}

func TestB42_RetryAfterSuccess(t *testing.T) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	answers := map[string]http.HandlerFunc{
		"binary":       func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(all) },
		"nothing":      func(http.ResponseWriter, *http.Request) {},
		"no bytes":     func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(nil) },
		"status alone": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) },
		"second status": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, "x")
		},
		"fields": func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			h.Set("Location", "/orders/1?a=b c")
			h.Set("ETag", `W/"1"`)
			h.Set("Content-Type", `application/json; charset="utf-8"`)
			h.Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
			h.Set("Cache-Control", "private, max-age=1")
			h.Set("Content-Digest", "sha-256=:x:")
			h.Set("Retry-After", "5")
			h.Set("X-Empty", "")
			h.Set("X-Bytes", "caf\xe9")
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, `{"id":1}`)
		},
		"header after the status": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			w.Header().Set("X-Late", "1")
		},
		"digits": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "15947634569000323") },
		"large": func(w http.ResponseWriter, _ *http.Request) {
			for range 1 << 10 {
				_, _ = w.Write(bytes.Repeat(all[:64], 16))
			}
		},
		"read from": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.Copy(w, io.LimitReader(strings.NewReader(strings.Repeat("y", 70_000)), 65_000))
		},
	}
	for _, status := range []int{200, 201, 202, 203, 206, 207, 226, 299, 300, 301, 302, 303, 307, 308} {
		answers[fmt.Sprintf("status %d", status)] = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "body")
		}
	}
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{handler: func(w http.ResponseWriter, r *http.Request) { answers[r.Header.Get("X-Case")](w, r) }})
		bare := w.bench(t, setup{options: []idempotent.HTTPOption{idempotent.WithOptionalKey()}, handler: func(w http.ResponseWriter, r *http.Request) {
			answers[r.Header.Get("X-Case")](w, r)
		}})
		for name := range answers {
			key := strings.ReplaceAll(name, " ", "-")
			first, again := b.pair(order{key: key, fields: []string{"X-Case", name}})
			unprotected := bare.send(order{fields: []string{"X-Case", name}})
			for _, a := range []answer{first, again, unprotected} {
				a.header.Del("Date")
				a.header.Del("Idempotent-Replayed")
			}
			if name != "large" && name != "read from" { // these go without a length when nobody holds them
				require.Equal(t, unprotected.header, first.header, name)
				require.Equal(t, unprotected.header, again.header, name)
			}
			require.Equal(t, unprotected.status, again.status, name)
			require.Equal(t, unprotected.body, again.body, name)
			b.requireEntry(key, idempotent.ClassSuccess)
		}
		require.EqualValues(t, len(answers), b.runs.Load())
	})
}

// Much of net/http is another program over HTTP/2.
func TestB42_OverHTTP2(t *testing.T) {
	t.Parallel()
	var b *bench
	interim := 0
	b = memory.bench(t, setup{http2: true, handler: func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("Idempotency-Key") {
		case "panic":
			panic(http.ErrAbortHandler)
		case "trailer":
			w.Header().Set("Trailer", "X-Sum")
			w.WriteHeader(http.StatusEarlyHints)
			_, _ = io.WriteString(w, "half")
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, " and half")
			w.Header().Set("X-Sum", "42")
		case "no-content":
			w.WriteHeader(http.StatusNoContent)
		case "hijack":
			_, _, err := http.NewResponseController(w).Hijack()
			fmt.Fprint(w, errors.Is(err, http.ErrNotSupported))
		case "short":
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "five!")
		default:
			b.created(w, r)
		}
	}})
	send := func(o order) (answer, error) {
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(int, textproto.MIMEHeader) error { interim++; return nil },
		})
		r := b.request(ctx, o)
		res, err := b.client.Do(r)
		if err != nil {
			return answer{}, err
		}
		require.Equal(t, 2, res.ProtoMajor)
		return readAnswer(res), nil
	}
	for key, body := range map[string]string{"k": "run 1", "trailer": "half and half", "no-content": "", "hijack": "true"} {
		b.runs.Store(0)
		first, err := send(order{key: key})
		require.NoError(t, err)
		require.Equal(t, body, first.body)
		b.untilSettled(key)
		again, err := send(order{key: key})
		require.NoError(t, err)
		requireReplay(t, first, again)
		require.Equal(t, first.trailer, again.trailer)
		require.EqualValues(t, 1, b.runs.Load())
		b.requireEntry(key, idempotent.ClassSuccess)
	}
	require.Equal(t, 1, interim, "interim answers: of the first run alone")
	for key, code := range map[string]string{"panic": "operation-aborted", "short": "outcome-unknown"} {
		b.runs.Store(0)
		a, err := send(order{key: key})
		require.True(t, err != nil || a.err != nil || len(a.body) < 10)
		b.untilSettled(key)
		a, err = send(order{key: key})
		require.NoError(t, err)
		requireRefused(t, a, code, markedReplay)
		require.EqualValues(t, 1, b.runs.Load())
		b.requireEntry(key, idempotent.ClassUnknown)
	}
	a, err := send(order{key: "k", body: "{}"})
	require.NoError(t, err)
	requireRefused(t, a, "key-reused")
	a, err = send(order{})
	require.NoError(t, err)
	requireRefused(t, a, "key-missing")
}

func TestB43_FirstAnswerHasNoMarker(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		mark := func(w http.ResponseWriter) {
			w.Header().Set("Idempotent-Replayed", "true")
			w.Header()["idempotent-replayed"] = []string{"true"}
		}
		b := w.bench(t, setup{
			outer: func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(w, r) })
			},
			handler: byCase(map[string]http.HandlerFunc{
				"plain":    func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "x") },
				"lies":     func(w http.ResponseWriter, _ *http.Request) { mark(w); _, _ = io.WriteString(w, "x") },
				"silent":   func(w http.ResponseWriter, _ *http.Request) { mark(w) },
				"flushes":  func(w http.ResponseWriter, _ *http.Request) { mark(w); w.(http.Flusher).Flush() },
				"released": func(w http.ResponseWriter, _ *http.Request) { mark(w); w.WriteHeader(http.StatusTooManyRequests) },
				"trailer": func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Trailer", "Idempotent-Replayed")
					_, _ = io.WriteString(w, "x")
					mark(w)
					w.Header().Set(http.TrailerPrefix+"Idempotent-Replayed", "true")
				},
			}),
		})
		for _, key := range []string{"plain", "lies", "silent", "flushes", "released", "trailer"} {
			head, _ := b.rawHead(key)
			for _, line := range head {
				require.NotContains(t, strings.ToLower(line), "idempotent-replayed:", key)
			}
			a := b.post(key)
			require.Nil(t, a.trailer["Idempotent-Replayed"])
			if key == "released" {
				require.False(t, a.replayed())
				continue
			}
			require.Equal(t, []string{"true"}, a.header["Idempotent-Replayed"], key)
		}
	})
}

func TestB43_InterimAnswersHaveNoMarker(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		for _, field := range []string{"Idempotent-Replayed", "idempotent-replayed"} {
			b := w.bench(t, setup{handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header()[field] = []string{"true"}
				w.WriteHeader(http.StatusEarlyHints)
				w.WriteHeader(http.StatusCreated)
			}})
			head, _ := b.rawHead("k")
			require.Equal(t, "HTTP/1.1 103 Early Hints", head[0])
			require.False(t, has(head, field), "a marker on the interim answer")
		}
	})
}

func TestB44_FieldsOfOneMessage(t *testing.T) {
	handler := func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Date", "Mon, 02 Jan 2006 15:04:05 GMT")
		h.Set("Age", "7")
		h.Set("Connection", "X-Hop, keep-alive")
		h.Add("Connection", "x-other-hop")
		h.Set("X-Hop", "1")
		h.Set("X-Other-Hop", "1")
		h.Set("Keep-Alive", "timeout=5")
		h.Set("Proxy-Connection", "keep-alive")
		h.Set("TE", "trailers")
		h.Set("Upgrade", "h2c")
		h.Set("Server-Timing", "db;dur=1")
		h["traceparent"] = []string{"00-a-b-01"}
		h.Set("Tracestate", "a=b")
		h.Set("Content-Length", "4")
		h.Set("X-Kept", "1")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "body")
	}
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{handler: handler})
		first := b.post("k")
		require.Equal(t, "7", first.header.Get("Age"))
		require.Equal(t, "1", first.header.Get("X-Hop"))
		require.Equal(t, "Mon, 02 Jan 2006 15:04:05 GMT", first.header.Get("Date"))
		again := b.post("k")
		requireReplay(t, first, again)
		for _, name := range []string{
			"Age", "Connection", "X-Hop", "X-Other-Hop", "Keep-Alive", "Proxy-Connection", "Te", "Upgrade", "Server-Timing", "Traceparent", "Tracestate",
			"Transfer-Encoding",
		} {
			require.Nil(t, again.header[name], name)
		}
		require.Equal(t, []string{"4"}, again.header["Content-Length"])
		require.Equal(t, "1", again.header.Get("X-Kept"))
		date, err := http.ParseTime(again.header.Get("Date"))
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), date, time.Minute)
		require.NotContains(t, b.requireEntry("k", idempotent.ClassSuccess).Result, "2006")
	})
	t.Run("time passes", func(t *testing.T) {
		onFakeTimeOf(t, func(t *testing.T, w world) {
			b := w.bench(t, setup{})
			dates := map[string]bool{}
			for range 3 {
				a := b.post("k")
				require.Equal(t, time.Now().UTC().Format(http.TimeFormat), a.header.Get("Date"))
				dates[a.header.Get("Date")] = true
				b.pass(90 * time.Minute)
			}
			require.Len(t, dates, 3)
		})
	})
	t.Run("length without a declared one", func(t *testing.T) {
		eachStoreOf(t, func(t *testing.T, w world) {
			b := w.bench(t, setup{handler: func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "one")
				w.(http.Flusher).Flush()
				_, _ = io.WriteString(w, strings.Repeat("two", 5000))
			}})
			first, again := b.pair(order{key: "k"})
			require.EqualValues(t, -1, first.length, "it was sent in chunks")
			require.EqualValues(t, len(again.body), again.length)
		})
	})
}

func TestB45_Cookies(t *testing.T) {
	handler := func(w http.ResponseWriter, _ *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "session", Value: "cookie-secret"})
		http.SetCookie(w, &http.Cookie{Name: "b", Value: "2"})
		w.Header()["set-cookie"] = []string{"c=cookie-secret"}
		w.WriteHeader(http.StatusCreated)
	}
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{handler: handler})
		first, again := b.pair(order{key: "k"})
		require.Len(t, first.header["Set-Cookie"], 3)
		require.Nil(t, again.header["Set-Cookie"])
		require.NotContains(t, b.requireEntry("k", idempotent.ClassSuccess).Result, "cookie-secret")

		kept := w.bench(t, setup{handler: handler, options: []idempotent.HTTPOption{idempotent.WithReplayCookies()}})
		first, again = kept.pair(order{key: "k"})
		require.ElementsMatch(t, first.header["Set-Cookie"], again.header["Set-Cookie"])
		require.Len(t, again.header["Set-Cookie"], 3)
	})
	t.Run("of a layer outside", func(t *testing.T) {
		n := 0
		b := memory.bench(t, setup{outer: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n++
				w.Header().Add("Set-Cookie", fmt.Sprintf("outer=%d", n))
				next.ServeHTTP(w, r)
			})
		}, handler: handler})
		first, again := b.pair(order{key: "k"})
		require.Contains(t, first.header["Set-Cookie"], "outer=1")
		require.Equal(t, []string{"outer=2"}, again.header["Set-Cookie"])
	})
}

func TestB46_FieldsAsFirstSent(t *testing.T) {
	page := "<html><body>" + strings.Repeat("x", 2000)
	cases := map[string]http.HandlerFunc{
		"many": func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			for _, v := range []string{"<b>; rel=b", "<a>; rel=a", "<b>; rel=b", ""} {
				h.Add("Link", v)
			}
			h["Vary"] = []string{"Accept", "Prefer"}
			h["x-lower"] = []string{"1", "2"}
			h["X-LOUD"] = []string{"3"}
			h["X-Loud"] = []string{"4"}
			h["X-None"] = []string{}
			_, _ = io.WriteString(w, "x")
		},
		"no-date": func(w http.ResponseWriter, _ *http.Request) { w.Header()["Date"] = nil; _, _ = io.WriteString(w, "x") },
		"no-type": func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			_, _ = io.WriteString(w, page)
		},
		"empty-type": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "")
			_, _ = io.WriteString(w, page)
		},
		"sniffed":      func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, page) },
		"sniffed-json": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"a":1}`) },
		"byte-by-byte": func(w http.ResponseWriter, _ *http.Request) {
			for i := range 100 {
				_, _ = io.WriteString(w, page[i:i+1])
			}
		},
		"flushed-first":    func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush() },
		"type-and-no-body": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", "text/css") },
		"coded-unsniffed": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "x-own")
			_, _ = io.WriteString(w, page[:50])
		},
		"late": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "x")
			w.Header().Set("X-Late", "1")
		},
		"deleted": func(w http.ResponseWriter, _ *http.Request) { w.Header().Del("X-Outer"); _, _ = io.WriteString(w, "x") },
		"newline": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Split", "a\r\nX-Evil: b")
			_, _ = io.WriteString(w, "x")
		},
	}
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{handler: byCase(cases), outer: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-Outer", "1")
				next.ServeHTTP(w, r)
			})
		}})
		heads := map[string][]string{}
		for key := range cases {
			but := []string{}
			if key == "flushed-first" {
				but = append(but, "Transfer-Encoding", "Content-Length")
			}
			heads[key], _ = b.samePair(key, but...)
			b.requireEntry(key, idempotent.ClassSuccess)
		}
		require.EqualValues(t, len(cases), b.runs.Load())
		require.False(t, has(heads["no-date"], "Date"))
		require.False(t, has(heads["no-type"], "Content-Type"))
		require.Contains(t, heads["sniffed"], "Content-Type: text/html; charset=utf-8")
		require.Contains(t, heads["many"], "x-lower: 1")
		require.False(t, has(heads["deleted"], "X-Outer"))
		require.False(t, has(heads["newline"], "X-Evil"))
	})
	t.Run("1 byte first, then flushed", func(t *testing.T) {
		b := memory.bench(t, setup{handler: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "<")
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, page[1:])
		}})
		first, again := b.pair(order{key: "k"})
		require.Equal(t, first.header["Content-Type"], again.header["Content-Type"])
	})
}

func TestB47_NoContent(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		errs := make(chan error, 10)
		b := w.bench(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
			status, _ := strconv.Atoi(r.Header.Get("Idempotency-Key"))
			w.Header().Set("ETag", `"1"`)
			w.WriteHeader(status)
			_, err := io.WriteString(w, "not allowed")
			errs <- err
		}})
		for status, length := range map[int]bool{204: false, 304: false} {
			first, again := b.samePair(strconv.Itoa(status))
			require.ErrorIs(t, next(b, errs), http.ErrBodyNotAllowed)
			for _, head := range [][]string{first, again} {
				require.True(t, strings.HasPrefix(head[0], fmt.Sprintf("HTTP/1.1 %d ", status)))
				require.Equal(t, length, has(head, "Content-Length"))
				require.False(t, has(head, "Transfer-Encoding"))
				require.False(t, has(head, "Content-Type"))
			}
			_, body := b.rawHead(strconv.Itoa(status))
			require.Empty(t, body)
			b.requireEntry(strconv.Itoa(status), idempotent.ClassSuccess)
		}
	})
	eachStoreOf(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{handler: func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusResetContent) }})
		first, again := b.samePair("205")
		require.Contains(t, first, "Content-Length: 0")
		require.Contains(t, again, "Content-Length: 0")
		b.requireEntry("205", idempotent.ClassSuccess)
		// With a body, which net/http lets a handler send, nothing of it comes back.
		bad := w.bench(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusResetContent)
			_, _ = io.WriteString(w, "body")
		}})
		_, _ = bad.rawHead("k")
		head, body := bad.rawHead("k")
		require.Contains(t, head, "Content-Length: 0")
		require.Contains(t, head, "Idempotent-Replayed: true")
		require.Empty(t, body)
	})
}

func TestB48_Trailers(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		cases := map[string]http.HandlerFunc{
			"both": func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Trailer", "X-Sum, X-Unset")
				w.Header().Add("Trailer", "X-Two")
				_, _ = io.WriteString(w, "body")
				w.Header().Set("X-Sum", "42")
				w.Header()["X-Two"] = []string{"a", "b"}
				w.Header().Set(http.TrailerPrefix+"X-Late", "7")
			},
			"flushed": func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Trailer", "X-Sum")
				_, _ = io.WriteString(w, "body")
				w.(http.Flusher).Flush()
				_, _ = io.WriteString(w, "more")
				w.Header().Set("X-Sum", "42")
				w.Header().Set(http.TrailerPrefix+"X-Late", "7")
			},
			"length": func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Trailer", "X-Sum")
				w.Header().Set("Content-Length", "4")
				_, _ = io.WriteString(w, "body")
				w.Header().Set("X-Sum", "42")
			},
			"no-body": func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Trailer", "X-Sum")
				w.WriteHeader(http.StatusOK)
				w.Header().Set("X-Sum", "42")
			},
			"late-flushed": func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "body")
				w.(http.Flusher).Flush()
				w.Header().Set(http.TrailerPrefix+"X-Late", "7")
			},
			"early": func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set(http.TrailerPrefix+"X-Late", "7")
				_, _ = io.WriteString(w, "body")
			},
		}
		b := w.bench(t, setup{handler: byCase(cases)})
		bare := w.bench(t, setup{options: []idempotent.HTTPOption{idempotent.WithMethods("PUT")}, handler: byCase(cases)})
		for key, want := range map[string]http.Header{
			"both":         {"X-Sum": {"42"}, "X-Two": {"a", "b"}, "X-Late": {"7"}},
			"late-flushed": {"X-Late": {"7"}},
			"early":        {"X-Late": {"7"}},
			"flushed":      {"X-Sum": {"42"}, "X-Late": {"7"}},
			"length":       nil, // net/http drops them
			"no-body":      {"X-Sum": {"42"}},
		} {
			first, again := b.pair(order{key: key})
			for which, a := range map[string]answer{"without the layer": bare.post(key), "first": first, "replay": again} {
				got := http.Header{}
				for name, values := range a.trailer {
					if len(values) > 0 {
						got[name] = values
					}
				}
				if want == nil {
					require.Empty(t, got, "%s, %s", key, which)
					require.Equal(t, "4", a.header.Get("Content-Length"), "%s, %s", key, which)
				} else {
					require.Equal(t, want, got, "%s, %s", key, which)
					require.Empty(t, a.header["Content-Length"], "%s, %s", key, which)
				}
				for name := range a.header {
					require.NotContains(t, name, "Trailer:", "%s, %s", key, which)
				}
				require.Nil(t, a.header["X-Sum"], "%s, %s", key, which)
			}
			b.requireEntry(key, idempotent.ClassSuccess)
		}
	})
}

func TestB48_TrailerThatComesTooLate(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		// Without a flush net/http has decided for a length by then.
		late := func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "body")
			w.Header().Set(http.TrailerPrefix+"X-Late", "7")
		}
		bare := w.bench(t, setup{options: []idempotent.HTTPOption{idempotent.WithOptionalKey()}, handler: late})
		require.Empty(t, bare.post("").trailer)
		b := w.bench(t, setup{handler: late})
		first, again := b.pair(order{key: "k"})
		require.Empty(t, first.trailer)
		require.Equal(t, "4", first.header.Get("Content-Length"))
		// The replay knows it in time: it may send it, as a trailer only.
		require.Nil(t, again.header["X-Late"])
		if again.trailer != nil {
			require.Equal(t, http.Header{"X-Late": {"7"}}, again.trailer)
		}
	})
}

func TestB49_InterimAnswers(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Link", "</style.css>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Set("Link", "</script.js>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusProcessing)
			w.Header().Del("Link")
			if r.Header.Get("Idempotency-Key") == "silent" {
				return
			}
			b0 := "body"
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, b0)
		}})
		for key, status := range map[string]int{"k": 201, "silent": 200} {
			send := func() (answer, []string) {
				var interim []string
				ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
					Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
						interim = append(interim, fmt.Sprint(code, h.Get("Link")))
						return nil
					},
				})
				a, err := b.try(ctx, order{key: key})
				require.NoError(t, err)
				return a, interim
			}
			first, interim := send()
			require.Equal(t, status, first.status)
			require.Equal(t, []string{"103</style.css>; rel=preload", "103</script.js>; rel=preload", "102</script.js>; rel=preload"}, interim)
			require.Nil(t, first.header["Link"])
			again, interim := send()
			requireReplay(t, first, again)
			require.Empty(t, interim)
			b.requireEntry(key, idempotent.ClassSuccess)
		}
		require.EqualValues(t, 2, b.runs.Load())
	})
}

func TestB50_Flush(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		step := make(chan struct{})
		b := w.bench(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range 3 {
				fmt.Fprintf(w, "data: %d\n\n", i)
				if i == 1 {
					w.(http.Flusher).Flush()
				} else if err := http.NewResponseController(w).Flush(); err != nil {
					panic(err)
				}
				<-step
			}
			_, _ = io.WriteString(w, "end")
		}})
		res, err := b.client.Do(b.request(t.Context(), order{key: "k"}))
		require.NoError(t, err)
		require.Nil(t, res.Header["Idempotent-Replayed"])
		r := bufio.NewReader(res.Body)
		for i := range 3 {
			// The handler has not returned: these bytes came at the flush.
			line, err := r.ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, fmt.Sprintf("data: %d\n", i), line)
			_, _ = r.ReadString('\n')
			requireRefused(t, b.post("k"), "in-flight")
			step <- struct{}{}
		}
		rest, err := io.ReadAll(r)
		require.NoError(t, err)
		require.Equal(t, "end", string(rest))
		require.NoError(t, res.Body.Close())
		b.untilSettled("k")
		again := b.post("k")
		require.True(t, again.replayed())
		require.Equal(t, "data: 0\n\ndata: 1\n\ndata: 2\n\nend", again.body)
		require.Equal(t, "text/event-stream", again.header.Get("Content-Type"))
		require.EqualValues(t, len(again.body), again.length)
		require.EqualValues(t, 1, b.runs.Load())
		b.requireEntry("k", idempotent.ClassSuccess)
	})
	t.Run("past the cap", func(t *testing.T) {
		b := memory.bench(t, setup{options: []idempotent.HTTPOption{idempotent.WithMaxResponse(10)}, handler: func(w http.ResponseWriter, _ *http.Request) {
			for range 4 {
				_, _ = io.WriteString(w, "12345")
				w.(http.Flusher).Flush()
			}
		}})
		first := b.post("k")
		require.Equal(t, strings.Repeat("12345", 4), first.body)
		b.untilSettled("k")
		requireRefused(t, b.post("k"), "result-unavailable")
		require.EqualValues(t, 1, b.runs.Load())
	})
	t.Run("nothing written before the flush", func(t *testing.T) {
		b := memory.bench(t, setup{handler: func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush() }})
		first, _ := b.pair(order{key: "k"})
		require.Equal(t, http.StatusOK, first.status)
	})
}

func TestB51_NotReplayable(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		big := strings.Repeat("x", 1<<20)
		b := w.bench(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
			status, _ := strconv.Atoi(r.Header.Get("Idempotency-Key"))
			w.Header().Set("Location", "/orders/1")
			w.Header().Set("ETag", `"1"`)
			w.Header().Set("X-Other", "other-secret")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, big)
			_, _ = io.WriteString(w, "y")
		}})
		for status, want := range map[int]struct {
			class idempotent.Class
			state string
		}{
			200: {idempotent.ClassSuccess, "success"}, 201: {idempotent.ClassSuccess, "success"}, 303: {idempotent.ClassSuccess, "success"},
			404: {idempotent.ClassFailure, "failure"}, 422: {idempotent.ClassFailure, "failure"},
			408: {idempotent.ClassUnknown, "unknown"}, 500: {idempotent.ClassUnknown, "unknown"}, 503: {idempotent.ClassUnknown, "unknown"},
		} {
			key := strconv.Itoa(status)
			first := b.post(key)
			b.untilSettled(key)
			require.NoError(t, first.err)
			require.Equal(t, status, first.status)
			require.Equal(t, len(big)+1, len(first.body), "the first client is not affected")
			require.Nil(t, first.header["Idempotent-Replayed"])
			e := b.requireEntry(key, want.class)
			require.Less(t, len(e.Result), 100, "a tombstone holds no body")
			for range 2 {
				a := b.post(key)
				doc := requireRefused(t, a, "result-unavailable", func(r *refusal) {
					r.state, r.newKeySafe = want.state, want.class == idempotent.ClassFailure
				})
				require.Equal(t, status, doc.OriginalStatus)
				require.Equal(t, "/orders/1", doc.Location)
				require.NotContains(t, a.body, "other-secret")
				require.NotNil(t, doc.FirstSeen)
			}
			require.Equal(t, e, b.requireEntry(key, want.class))
		}
		require.EqualValues(t, 8, b.runs.Load())
	})
	t.Run("exactly the cap", func(t *testing.T) {
		b := memory.bench(t, setup{handler: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("x", 1<<20))
		}})
		first, _ := b.pair(order{key: "k"})
		require.Len(t, first.body, 1<<20)
	})
	t.Run("hijacked", func(t *testing.T) {
		eachStoreOf(t, func(t *testing.T, w world) {
			errs := make(chan error, 10)
			b := w.bench(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
				var conn net.Conn
				var buffer *bufio.ReadWriter
				var err error
				if r.Header.Get("Idempotency-Key") == "controller" {
					conn, buffer, err = http.NewResponseController(w).Hijack()
				} else {
					conn, buffer, err = w.(http.Hijacker).Hijack()
				}
				if err != nil {
					errs <- err
					return
				}
				_, _ = buffer.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello")
				_ = buffer.Flush()
				line, err := buffer.ReadString('\n')
				_, _ = io.WriteString(conn, "echo "+line)
				_, werr := w.Write([]byte("after"))
				if werr == nil {
					err = fmt.Errorf("a write after the hijack went through")
				}
				errs <- err
				_ = conn.Close()
			}})
			for _, key := range []string{"interface", "controller"} {
				conn, r := b.raw(rawOrder("Idempotency-Key: "+key, "Connection: Upgrade", "Upgrade: echo"))
				res, err := http.ReadResponse(r, nil)
				require.NoError(t, err)
				require.Equal(t, http.StatusSwitchingProtocols, res.StatusCode)
				hello := make([]byte, 5)
				_, err = io.ReadFull(r, hello)
				require.NoError(t, err)
				_, err = io.WriteString(conn, "ping\n")
				require.NoError(t, err)
				rest, err := io.ReadAll(r)
				require.NoError(t, err)
				require.Equal(t, "helloecho ping\n", string(hello)+string(rest), "nothing follows")
				require.NoError(t, next(b, errs))
				b.untilSettled(key)
				b.requireEntry(key, idempotent.ClassSuccess)
				doc := requireRefused(t, b.post(key), "result-unavailable")
				require.Equal(t, http.StatusSwitchingProtocols, doc.OriginalStatus)
			}
			require.EqualValues(t, 2, b.runs.Load())
		})
	})
}

func TestB52_CodingNotAccepted(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		plain := strings.Repeat("plain text ", 100)
		deflated := func() string {
			var buffer bytes.Buffer
			z := zlib.NewWriter(&buffer)
			_, _ = io.WriteString(z, plain)
			_ = z.Close()
			return buffer.String()
		}()
		zipped := compress(t, plain, gzip.DefaultCompression)
		b := w.bench(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
			h := w.Header()
			h.Set("Content-Type", "text/plain")
			h.Set("ETag", `"strong"`)
			h.Set("Content-Digest", "sha-256=:x:")
			h.Set("Repr-Digest", "sha-256=:x:")
			h.Set("Content-MD5", "x")
			h.Set("X-Kept", "1")
			switch r.Header.Get("Idempotency-Key") {
			case "weak":
				h.Set("ETag", `W/"weak"`)
				fallthrough
			case "gzip":
				h.Set("Content-Encoding", "gzip")
				_, _ = io.WriteString(w, zipped)
			case "deflate":
				h.Set("Content-Encoding", "deflate")
				_, _ = io.WriteString(w, deflated)
			case "br":
				h.Set("Content-Encoding", "br")
				_, _ = io.WriteString(w, "not to be undone")
			case "twice":
				h.Set("Content-Encoding", "gzip, gzip")
				_, _ = io.WriteString(w, compress(t, zipped, 1))
			}
		}})
		accepting := func(key, accept string) answer {
			if accept == "" {
				return b.post(key)
			}
			return b.post(key, "Accept-Encoding", accept)
		}
		for _, key := range []string{"gzip", "weak", "deflate", "twice"} {
			first := accepting(key, "gzip, deflate")
			same := accepting(key, "gzip, deflate, br")
			requireReplay(t, first, same)
			require.Equal(t, first.header["Content-Encoding"], same.header["Content-Encoding"])
			require.Equal(t, first.header["Content-Digest"], same.header["Content-Digest"])
			for _, accept := range []string{"", "identity", "br", "gzip;q=0, deflate;q=0", "*;q=0, identity", "br;q=1.0, *;q=0, identity;q=0.5"} {
				a := accepting(key, accept)
				require.Equal(t, http.StatusOK, a.status, "%s %q", key, accept)
				require.True(t, a.replayed())
				require.Equal(t, plain, a.body, "%s %q", key, accept)
				for _, name := range []string{"Content-Encoding", "Content-Digest", "Repr-Digest", "Content-Md5"} {
					require.Nil(t, a.header[name], "%s %q %s", key, accept, name)
				}
				if key == "weak" {
					require.Equal(t, `W/"weak"`, a.header.Get("Etag"))
				} else {
					require.Nil(t, a.header["Etag"])
				}
				require.Equal(t, "1", a.header.Get("X-Kept"))
				require.Contains(t, a.header["Vary"], "Accept-Encoding")
				require.EqualValues(t, len(plain), a.length)
			}
		}
		first := accepting("br", "br")
		requireReplay(t, first, accepting("br", "br, gzip"))
		doc := requireRefused(t, accepting("br", "gzip"), "result-unavailable")
		require.Equal(t, 200, doc.OriginalStatus)
		require.EqualValues(t, 5, b.runs.Load())
		b.requireEntry("br", idempotent.ClassSuccess)
	})
}

func TestB53_FieldsOfOuterLayers(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{
			outer: func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					h, n := w.Header(), r.Header.Get("X-Attempt")
					h.Set("X-Request-Id", "request-"+n)
					h.Set("Access-Control-Allow-Origin", "https://origin-"+n)
					h.Set("Strict-Transport-Security", "max-age="+n)
					h.Set("Ratelimit-Remaining", n)
					h.Set("Vary", "Origin")
					h.Set("X-Overridden", "outer-"+n)
					h.Set("X-Deleted", "outer-"+n)
					h.Set("Content-Type", "text/outer")
					next.ServeHTTP(w, r)
				})
			},
			handler: func(w http.ResponseWriter, _ *http.Request) {
				h := w.Header()
				h.Add("Vary", "Accept")
				h.Set("X-Overridden", "handler")
				h.Del("X-Deleted")
				h.Set("X-Own", "handler")
				_, _ = io.WriteString(w, "<html>"+h.Get("X-Request-Id"))
			},
		})
		first := b.post("k", "X-Attempt", "1")
		again := b.post("k", "X-Attempt", "2")
		requireReplay(t, first, again)
		require.Equal(t, "<html>request-1", again.body)
		for _, a := range []struct {
			answer
			n string
		}{{first, "1"}, {again, "2"}} {
			require.Equal(t, []string{"request-" + a.n}, a.header["X-Request-Id"])
			require.Equal(t, []string{"https://origin-" + a.n}, a.header["Access-Control-Allow-Origin"])
			require.Equal(t, []string{"max-age=" + a.n}, a.header["Strict-Transport-Security"])
			require.Equal(t, []string{a.n}, a.header["Ratelimit-Remaining"])
			require.Equal(t, []string{"Origin", "Accept"}, a.header["Vary"])
			require.Equal(t, []string{"handler"}, a.header["X-Overridden"])
			require.Nil(t, a.header["X-Deleted"])
			require.Equal(t, []string{"text/outer"}, a.header["Content-Type"])
		}
		require.NotContains(t, b.requireEntry("k", idempotent.ClassSuccess).Result, "origin-1")

		// Refusals keep what outer layers say of the attempt, not of the answer.
		refused := b.send(order{key: "k", body: "{}", fields: []string{"X-Attempt", "3"}})
		requireRefused(t, refused, "key-reused")
		require.Equal(t, "request-3", refused.header.Get("X-Request-Id"))
		require.Equal(t, "https://origin-3", refused.header.Get("Access-Control-Allow-Origin"))
	})
	t.Run("compression outside", func(t *testing.T) {
		zip := func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
					next.ServeHTTP(w, r)
					return
				}
				z := gzip.NewWriter(w)
				defer z.Close()
				w.Header().Set("Content-Encoding", "gzip")
				next.ServeHTTP(&zipWriter{w, z}, r)
			})
		}
		b := memory.bench(t, setup{outer: zip, handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			_, _ = io.WriteString(w, strings.Repeat("plain ", 50))
		}})
		for i, accept := range []string{"gzip", "", "gzip", "identity"} {
			fields := []string{}
			if accept != "" {
				fields = []string{"Accept-Encoding", accept}
			}
			a := b.post("k", fields...)
			require.Equal(t, i > 0, a.replayed())
			body := a.body
			if accept == "gzip" {
				z, err := gzip.NewReader(strings.NewReader(body))
				require.NoError(t, err)
				all, err := io.ReadAll(z)
				require.NoError(t, err)
				body = string(all)
			}
			require.Equal(t, strings.Repeat("plain ", 50), body)
		}
	})
}

type zipWriter struct {
	http.ResponseWriter
	z *gzip.Writer
}

func (w *zipWriter) Write(p []byte) (int, error) { return w.z.Write(p) }

func (w *zipWriter) WriteHeader(status int) {
	w.Header().Del("Content-Length")
	w.ResponseWriter.WriteHeader(status)
}

func TestB54_ReplayHook(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		var asked []int
		b := w.bench(t, setup{
			options: []idempotent.HTTPOption{idempotent.WithReplayHook(func(w http.ResponseWriter, r *http.Request, status int) bool {
				asked = append(asked, status)
				switch r.Header.Get("X-Hook") {
				case "veto":
					w.WriteHeader(http.StatusForbidden)
					_, _ = io.WriteString(w, "revoked")
				case "rewrite":
					w.Header().Set("X-State", "newer")
					_, _ = io.WriteString(w, `{"state":"shipped"}`)
				default:
					w.Header().Set("X-Note", "seen")
					return false
				}
				return true
			})},
			handler: func(w http.ResponseWriter, r *http.Request) {
				status, _ := strconv.Atoi(r.Header.Get("Idempotency-Key"))
				w.WriteHeader(status)
				_, _ = io.WriteString(w, "secret answer")
			},
		})
		for _, status := range []int{201, 404, 500} {
			key := strconv.Itoa(status)
			asked = nil
			first := b.post(key, "X-Hook", "veto")
			require.Equal(t, status, first.status)
			require.Empty(t, asked, "a first run is not asked about")
			e, _ := b.load(name(key))

			a := b.post(key, "X-Hook", "veto")
			require.Equal(t, http.StatusForbidden, a.status)
			require.Equal(t, "revoked", a.body)
			a = b.post(key, "X-Hook", "rewrite")
			require.Equal(t, http.StatusOK, a.status)
			require.Equal(t, `{"state":"shipped"}`, a.body)
			require.Equal(t, "newer", a.header.Get("X-State"))
			a = b.post(key)
			requireReplay(t, first, a)
			require.Equal(t, "seen", a.header.Get("X-Note"))
			require.Equal(t, []int{status, status, status}, asked)
			after, _ := b.load(name(key))
			require.Equal(t, e, after, "the record is unchanged")

			requireRefused(t, b.send(order{key: key, body: "{}", fields: []string{"X-Hook", "veto"}}), "key-reused")
			require.Len(t, asked, 3, "a refusal is no replay")
		}
		require.EqualValues(t, 3, b.runs.Load())
	})
	t.Run("what cannot be replayed", func(t *testing.T) {
		b := memory.bench(t, setup{
			options: []idempotent.HTTPOption{
				idempotent.WithMaxResponse(1),
				idempotent.WithReplayHook(func(w http.ResponseWriter, _ *http.Request, status int) bool {
					w.WriteHeader(http.StatusForbidden)
					return true
				}),
			},
		})
		b.post("k")
		require.Equal(t, http.StatusForbidden, b.post("k").status, "status and Location are not for everybody either")
	})
}
