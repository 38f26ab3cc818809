package idempotent_test

import (
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/storetest"
)

// An answer of 500 is kept; whoever knows better says so, for all answers or
// for one.
func TestC074_ServerErrorsByPolicy(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		broken := func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Say") == "release" {
				idempotent.Release(r.Context())
			}
			http.Error(w, "broken", http.StatusInternalServerError)
		}
		b := w.bench(t, setup{handler: broken})
		b.pair(order{key: "kept"})
		b.requireEntry("kept", idempotent.ClassUnknown)
		b.post("said", "X-Say", "release")
		b.requireAbsent("said")

		other := w.bench(t, setup{handler: broken, options: []idempotent.HTTPOption{
			idempotent.WithClassify(func(status int, _ http.Header) idempotent.Class {
				if status == http.StatusInternalServerError {
					return idempotent.ClassRelease
				}
				return idempotent.ClassDefault
			}),
		}})
		for range 2 {
			require.False(t, other.post("k").replayed())
		}
		require.EqualValues(t, 2, other.runs.Load())
	})
}

// An answer that says "not yet" or "who are you" does not use up the key.
func TestC075_RefusalsDoNotBurnTheKey(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		for _, status := range []int{http.StatusUnauthorized, http.StatusTooManyRequests} {
			var b *bench
			b = w.bench(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
				if b.runs.Load() == 1 {
					w.Header().Set("Retry-After", "9")
					w.WriteHeader(status)
					return
				}
				b.created(w, r)
			}})
			require.Equal(t, status, b.post("k").status)
			second := b.post("k")
			requireFresh(t, second, 2)
			third := b.post("k")
			requireReplay(t, second, third)
			require.Nil(t, third.header["Retry-After"])
		}
		// A 403 is an answer.
		b := w.bench(t, setup{handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }})
		b.pair(order{key: "k"})
	})
}

// The status of an answer is kept, whatever it is.
func TestC076_StatusIsKept(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
			status, _ := strconv.Atoi(r.Header.Get("Idempotency-Key"))
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "body")
		}})
		for _, status := range []int{200, 201, 202, 204, 302, 400, 409, 418, 422} {
			first, again := b.pair(order{key: strconv.Itoa(status)})
			require.Equal(t, status, first.status)
			require.Equal(t, first.length, again.length)
		}
	})
}

// compressing is a layer that codes answers for clients that accept it.
func compressing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "gzip" {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		next.ServeHTTP(gzipWriter{w, z}, r)
		_ = z.Close()
	})
}

type gzipWriter struct {
	http.ResponseWriter
	z *gzip.Writer
}

func (w gzipWriter) Write(p []byte) (int, error) { return w.z.Write(p) }

func (w gzipWriter) WriteHeader(status int) {
	w.Header().Del("Content-Length") // of what is coded
	w.ResponseWriter.WriteHeader(status)
}

// On either side of the layer that codes, each client can read what it gets,
// and nothing is coded twice.
func TestC080_CodingOutsideAndInside(t *testing.T) {
	decoded := func(t *testing.T, a answer) string {
		t.Helper()
		if a.header.Get("Content-Encoding") == "" {
			return a.body
		}
		require.Equal(t, []string{"gzip"}, a.header["Content-Encoding"])
		z, err := gzip.NewReader(strings.NewReader(a.body))
		require.NoError(t, err)
		text, err := io.ReadAll(z)
		require.NoError(t, err)
		return string(text)
	}
	eachStore(t, func(t *testing.T, w world) {
		text := strings.Repeat("plain text ", 100)
		handler := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
		for name, s := range map[string]setup{
			"outside": {handler: handler, outer: compressing},
			"inside":  {handler: handler, inner: compressing},
		} {
			for _, accepts := range [][2]string{{"gzip", "identity"}, {"identity", "gzip"}, {"gzip", "gzip"}} {
				b := w.bench(t, s)
				first := b.post("k", "Accept-Encoding", accepts[0])
				again := b.post("k", "Accept-Encoding", accepts[1])
				require.True(t, again.replayed(), name)
				require.Equal(t, text, decoded(t, first), name)
				require.Equal(t, text, decoded(t, again), name)
				if accepts[1] == "identity" {
					require.Nil(t, again.header["Content-Encoding"], name)
				}
				require.EqualValues(t, 1, b.runs.Load())
			}
		}
	})
}

// The documents say what no layer above a data base can promise, and what does.
func TestC085_DocumentsSayWhatIsNotAtomic(t *testing.T) {
	t.Parallel()
	for document, said := range map[string][]string{
		"README.md": {"## The last line of defence", "No layer above a database is atomic with it", "CREATE UNIQUE INDEX", "idempotent.FromContext(ctx)"},
		"doc.go":    {"is not atomic with the record", "unique index in the transaction"},
	} {
		text, err := os.ReadFile(document)
		require.NoError(t, err)
		for _, s := range said {
			require.Contains(t, string(text), s, document)
		}
	}
}

// Work that was done before a panic is not done again; a handler that knows
// that it was not done recovers and says so.
func TestC086_PanicAfterTheWork(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		work := 0
		b := w.bench(t, setup{handler: func(_ http.ResponseWriter, r *http.Request) {
			switch said := r.Header.Get("X-Say"); said {
			case "":
				work++
			case "release", "fail":
				defer func() {
					_ = recover()
					if said == "fail" {
						idempotent.Fail(r.Context())
					} else {
						idempotent.Release(r.Context())
					}
				}()
			}
			panic(http.ErrAbortHandler)
		}})
		_, err := b.try(t.Context(), order{key: "k"})
		require.Error(t, err)
		b.untilSettled("k")
		requireRefused(t, b.post("k"), "operation-aborted", markedReplay)
		require.Equal(t, 1, work)

		b.post("nothing-done", "X-Say", "release")
		b.requireAbsent("nothing-done")
		b.post("refused", "X-Say", "fail")
		b.requireEntry("refused", idempotent.ClassFailure)
	})
}

// sealed is a codec that lets nobody read what is stored.
type sealed struct{}

func (sealed) Encode(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	return []byte(base64.StdEncoding.EncodeToString(text)), err
}

func (sealed) Decode(data []byte, v any) error {
	text, err := base64.StdEncoding.DecodeString(string(data))
	if err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

// What is stored of a result is what a codec made of it, and no more.
func TestC088_CodecHidesTheResult(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		store := w.open(t)
		g := idempotent.New(store)
		fn := func(context.Context) (string, error) { return "secret-answer", nil }
		for range 2 {
			got, err := idempotent.Do(t.Context(), g, "k", fn, idempotent.WithCallCodec(sealed{}))
			require.NoError(t, err)
			require.Equal(t, "secret-answer", got)
		}
		e, found, err := store.Load(t.Context(), "k")
		require.NoError(t, err)
		require.True(t, found)
		require.NotContains(t, e.Result, "secret")
	})
}

// Requests that are safe to repeat pass by, also with a key.
func TestC091_SafeMethodsPass(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{})
		runs := 0
		for _, method := range []string{"GET", "HEAD", "OPTIONS"} {
			for range 2 {
				a := b.send(order{method: method, key: "k", body: "none"})
				runs++
				require.Equal(t, http.StatusCreated, a.status)
				require.False(t, a.replayed())
			}
		}
		require.EqualValues(t, runs, b.runs.Load())
		require.Zero(t, b.storeCalls())
	})
}

// An answer that is not as long as it says is not repeated.
func TestC108_LengthThatIsNotTrue(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "10")
			if r.Method != http.MethodHead {
				_, _ = io.WriteString(w, "five!")
			}
		}})
		a, err := b.try(t.Context(), order{key: "k"})
		require.True(t, err != nil || a.err != nil, "the first client sees that bytes are missing")
		b.untilSettled("k")
		b.requireEntry("k", idempotent.ClassUnknown)
		requireRefused(t, b.post("k"), "outcome-unknown", markedReplay)
		head := b.send(order{method: "HEAD", key: "k", body: "none"})
		require.EqualValues(t, 10, head.length)
		require.EqualValues(t, 2, b.runs.Load())
	})
}

// Those who wait get one body each, whole, also when the client that they wait
// for has gone.
func TestC112_FollowersGetOneBody(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		gate := newGate(t)
		var b *bench
		body := strings.Repeat("0123456789", 5000)
		b = w.bench(t, setup{handler: func(w http.ResponseWriter, _ *http.Request) {
			gate.pass()
			_, _ = io.WriteString(w, body[:30_000])
			_, _ = io.WriteString(w, body[30_000:])
		}})
		leader := b.begin(order{key: "k"})
		b.receive("the handler", gate.entered)
		var followers []*attempt
		for range 10 {
			followers = append(followers, b.begin(order{key: "k", fields: []string{"Prefer", "wait=10"}}))
		}
		b.until("all wait", func() bool { return b.store.Calls(storetest.OpWait) == 10 })
		leader.cancel()
		b.receive("the end of the first request", leader.done)
		gate.release()
		for _, f := range followers {
			a := f.wait()
			require.Equal(t, http.StatusOK, a.status)
			require.True(t, a.replayed())
			require.Equal(t, body, a.body)
		}
		require.EqualValues(t, 1, b.runs.Load())
	})
}

// closed counts how often a body was closed.
type closed struct {
	io.ReadCloser
	n int
}

func (c *closed) Close() error { c.n++; return c.ReadCloser.Close() }

// A handler reads the body as if nobody had before.
func TestC113_BodyIsTheBody(t *testing.T) {
	t.Parallel()
	var body *closed
	read := map[string]func(t *testing.T, r *http.Request){
		"bytes": func(t *testing.T, r *http.Request) {
			require.EqualValues(t, len(someBody), r.ContentLength)
			text, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			require.Equal(t, someBody, string(text))
			n, err := r.Body.Read(make([]byte, 1))
			require.Zero(t, n)
			require.Equal(t, io.EOF, err)
		},
		"json": func(t *testing.T, r *http.Request) {
			var v struct{ Amount int }
			require.NoError(t, json.NewDecoder(r.Body).Decode(&v))
			require.Equal(t, 1, v.Amount)
		},
		"closed twice": func(t *testing.T, r *http.Request) {
			require.NoError(t, r.Body.Close())
			require.NoError(t, r.Body.Close())
			require.Equal(t, 1, body.n)
		},
		"form": func(t *testing.T, r *http.Request) {
			require.NoError(t, r.ParseForm())
			require.Equal(t, "1", r.PostForm.Get("amount"))
		},
		"multipart": func(t *testing.T, r *http.Request) {
			parts, err := r.MultipartReader()
			require.NoError(t, err)
			part, err := parts.NextPart()
			require.NoError(t, err)
			require.Equal(t, "amount", part.FormName())
		},
		"none": func(t *testing.T, r *http.Request) { require.Equal(t, http.NoBody, r.Body) },
	}
	sent := map[string]order{
		"form": {body: "amount=1", fields: []string{"Content-Type", "application/x-www-form-urlencoded"}},
		"multipart": {
			body:   "--b\r\nContent-Disposition: form-data; name=\"amount\"\r\n\r\n1\r\n--b--\r\n",
			fields: []string{"Content-Type", "multipart/form-data; boundary=b"},
		},
		"none": {body: "none"},
	}
	for name, check := range read {
		t.Run(name, func(t *testing.T) {
			b := memory.bench(t, setup{
				outer: func(next http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if r.Body != http.NoBody {
							body = &closed{ReadCloser: r.Body}
							r.Body = body
						}
						next.ServeHTTP(w, r)
					})
				},
				handler: func(_ http.ResponseWriter, r *http.Request) { check(t, r) },
			})
			o := sent[name]
			o.key = "k"
			b.pair(o)
		})
	}
}

// A body that does not arrive whole is no request: nothing is claimed, and the
// whole one runs.
func TestC114_UploadCutShort(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{})
		conn, _ := b.raw("POST /orders HTTP/1.1\r\nHost: shop\r\nContent-Type: application/json\r\nIdempotency-Key: k\r\nContent-Length: 100\r\n\r\n" + someBody)
		require.NoError(t, conn.Close())
		b.until("the request was given up", func() bool { return strings.Contains(b.logs.String(), "the body could not be read") })
		b.requireUntouched()
		b.requireAbsent("k")
		requireFresh(t, b.post("k"), 1)
	})
}

// The limit of a layer outside is answered as one's own is.
func TestC116_LimitOfALayerOutside(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{outer: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.Body = http.MaxBytesReader(w, r.Body, 12)
				next.ServeHTTP(w, r)
			})
		}})
		long := strings.Repeat("x", 13)
		_, r := b.raw("POST /orders HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: k\r\nContent-Length: " + strconv.Itoa(len(long)) + "\r\n\r\n" + long)
		res, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
		require.True(t, res.Close, "Connection: close")
		requireRefused(t, readAnswer(res), "body-too-large")
		b.requireUntouched()
		b.pair(order{key: "k", body: long[1:]})
	})
}

// A client can tell from a refusal whether and when to try again.
func TestC133_RefusalsSayWhenToRetry(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{})
		b.die("k", false, false)
		running := b.post("k")
		requireRefused(t, running, "in-flight")
		reused := b.send(order{key: "k", body: "{}"})
		requireRefused(t, reused, "key-reused")
		b.store.Down(errOutage)
		away := b.post("other")
		requireRefused(t, away, "store-unavailable")
		b.store.Up()
		for _, a := range []answer{running, away} {
			seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
			require.NoError(t, err)
			require.GreaterOrEqual(t, seconds, 1)
			require.LessOrEqual(t, seconds, int(idempotent.DefaultLease.Seconds()))
		}
	})
}

// That a memory store is for one process is said first.
func TestC135_OneProcessIsSaidFirst(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	top, _, found := strings.Cut(string(readme), "```")
	require.True(t, found)
	require.Contains(t, top, "A memory store serves *one process only*")
	source, err := os.ReadFile("memstore/memstore.go")
	require.NoError(t, err)
	first, _, found := strings.Cut(string(source), "\n//\n")
	require.True(t, found)
	require.Contains(t, first, "of one process")
}
