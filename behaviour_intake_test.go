package idempotent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

// countReads is a layer outside that counts how often the body is read.
func countReads(reads *int) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Body != http.NoBody {
				r.Body = &countedBody{ReadCloser: r.Body, reads: reads}
			}
			next.ServeHTTP(w, r)
		})
	}
}

type countedBody struct {
	io.ReadCloser
	reads *int
}

func (c *countedBody) Read(p []byte) (int, error) {
	*c.reads++
	return c.ReadCloser.Read(p)
}

func TestB01_KeyMissing(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		for name, o := range map[string]order{
			"POST":                       {},
			"PATCH":                      {method: "PATCH"},
			"no body either":             {body: "none"},
			"key in the query":           {path: "/orders?idempotency_key=abc"},
			"key under another name":     {fields: []string{"Idempotency_Key", "abc", "Idempotence-Key", "abc"}},
			"a correlation id is no key": {fields: []string{"X-Request-Id", "abc", "X-Correlation-Id", "abc"}},
		} {
			t.Run(name, func(t *testing.T) {
				reads := 0
				b := w.bench(t, setup{
					outer:     countReads(&reads),
					principal: func(*http.Request) (string, error) { return "", errors.New("not to be asked") },
				})
				requireRefused(t, b.send(o), "key-missing")
				require.Zero(t, reads, "reads of the body")
				b.requireUntouched()
			})
		}
	})
	t.Run("problem base", func(t *testing.T) {
		b := memory.bench(t, setup{options: []idempotent.HTTPOption{idempotent.WithProblemBase("https://shop.example/problems/")}})
		requireRefused(t, b.send(order{}), "key-missing", func(r *refusal) { r.base = "https://shop.example/problems/" })
	})
}

func TestB02_OptionalKey(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{
			options: []idempotent.HTTPOption{idempotent.WithOptionalKey(), idempotent.WithMaxBody(4)},
			principal: func(*http.Request) (string, error) {
				return "", errors.New("an unprotected request needs no principal")
			},
			handler: func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				_, inside := idempotent.FromContext(r.Context())
				fmt.Fprintf(w, "%d %s %v %v", len(body), body[:1], err, inside)
			},
		})
		for n, o := range []order{{}, {}, {method: "PATCH"}, {body: strings.Repeat("x", 3<<20)}} {
			a := b.send(o)
			require.Equal(t, http.StatusOK, a.status)
			require.Nil(t, a.header["Idempotent-Replayed"])
			require.Contains(t, a.body, "<nil> false")
			require.EqualValues(t, n+1, b.runs.Load())
		}
		require.Zero(t, b.storeCalls())
		require.Equal(t, 4, b.observed(idempotent.EventUnkeyed))
	})
	t.Run("a keyed request is protected", func(t *testing.T) {
		b := memory.bench(t, setup{options: []idempotent.HTTPOption{idempotent.WithOptionalKey()}})
		b.pair(order{key: "k"})
		b.requireEntry("k", idempotent.ClassSuccess)
	})
	t.Run("key function without a key", func(t *testing.T) {
		b := memory.bench(t, setup{
			options: []idempotent.HTTPOption{
				idempotent.WithOptionalKey(),
				idempotent.WithKeyFunc(func(*http.Request, []byte) (string, error) { return "", nil }),
			},
			handler: func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) },
		})
		require.Equal(t, someBody, b.post("ignored").body)
		require.Equal(t, someBody, b.post("ignored").body)
		require.EqualValues(t, 2, b.runs.Load())
		require.Zero(t, b.storeCalls())
	})
	t.Run("what its handler leaves with the request", func(t *testing.T) {
		var file, pattern string
		mux := http.NewServeMux()
		b := memory.bench(t, setup{
			options: []idempotent.HTTPOption{
				idempotent.WithOptionalKey(),
				idempotent.WithKeyFunc(func(*http.Request, []byte) (string, error) { return "", nil }),
			},
			inner: func(next http.Handler) http.Handler {
				mux.Handle("POST /orders", next)
				return mux
			},
			outer: func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					next.ServeHTTP(w, r)
					pattern = r.Pattern
				})
			},
			handler: func(_ http.ResponseWriter, r *http.Request) {
				require.NoError(t, r.ParseMultipartForm(1))
				f, err := r.MultipartForm.File["file"][0].Open()
				require.NoError(t, err)
				file = f.(*os.File).Name()
				require.NoError(t, f.Close())
			},
		})
		form, contentType := formWithFile(t)
		a := b.send(order{body: form, fields: []string{"Content-Type", contentType}})
		require.Equal(t, http.StatusOK, a.status)
		b.until("the file is gone", func() bool {
			_, err := os.Stat(file)
			return errors.Is(err, os.ErrNotExist)
		})
		require.Equal(t, "POST /orders", pattern)
	})
}

func TestB03_KeyEmpty(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		for _, optional := range []bool{false, true} {
			s := setup{}
			if optional {
				s.options = []idempotent.HTTPOption{idempotent.WithOptionalKey()}
			}
			b := w.bench(t, s)
			for _, line := range []string{
				"Idempotency-Key:", "Idempotency-Key: ", "Idempotency-Key: \t  \t", `Idempotency-Key: ""`,
				`Idempotency-Key: "";a=1`, "idempotency-key:", "X-Idempotency-Key:",
				"X-Idempotency-Key:\r\nIdempotency-Key: good", "Idempotency-Key:\r\nX-Idempotency-Key: good",
			} {
				requireRefused(t, b.rawAnswer(rawOrder(line)), "key-invalid")
			}
			b.requireUntouched()
		}
	})
}

func TestB04_QuotedAndBareAreOneKey(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{})
		first := b.post(`"abc"`)
		requireFresh(t, first, 1)
		requireReplay(t, first, b.post("abc"))
		requireReplay(t, first, b.post(`"abc"`))
		requireReplay(t, first, b.send(order{fields: []string{"X-Idempotency-Key", "abc"}}))
		requireReplay(t, first, b.send(order{key: `"abc"`, fields: []string{"X-Idempotency-Key", "abc"}}))
		again := b.rawAnswer(rawOrder("Idempotency-Key: \t\"abc\" \t", "Connection: close"))
		require.True(t, again.replayed(), again.body)
		require.EqualValues(t, 1, b.runs.Load())
		b.requireEntry("abc", idempotent.ClassSuccess)

		quoted := b.post(`"a\"b\\c"`)
		requireFresh(t, quoted, 2)
		b.requireEntry(`a"b\c`, idempotent.ClassSuccess)
		bare := b.post(`a\c`)
		requireFresh(t, bare, 3)
		requireReplay(t, bare, b.post(`"a\\c"`))
	})
}

func TestB06_MalformedString(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		for _, optional := range []bool{false, true} {
			s := setup{}
			if optional {
				s.options = []idempotent.HTTPOption{idempotent.WithOptionalKey()}
			}
			b := w.bench(t, s)
			for _, key := range []string{
				`"a\bc"`, `"abc\`, `"abc\"`, `"abc`, `"`, `"abc"x`, `"abc" x`, `"abc" "def"`, `"abc""def"`,
				`"abc";`, `"abc";A=1`, `"abc";a=`, `"abc";a="`, `"abc";=1`, `"abc";a=1;`, `"abc";a=:x`, `"abc";a=?2`,
				`"abc";a=1.`, `"abc" ;a=1`, "\"a\tc\"", "\"a\xffc\"", `"a` + "\u00e9" + `"`,
			} {
				requireRefused(t, b.post(key), "key-invalid")
			}
			b.requireUntouched()
		}
	})
}

func TestB07_ParametersAreIgnored(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{})
		first := b.post(`"abc";a=1`)
		requireFresh(t, first, 1)
		for _, key := range []string{
			"abc", `"abc"`, `"abc";a`, `"abc"; a=2;b="x;y,\"z\""`, `"abc";a=?1;b=:YWJj:;c=1.5;d=tok/en;*e=@1659578233`,
		} {
			requireReplay(t, first, b.post(key))
		}
		require.EqualValues(t, 1, b.runs.Load())
		b.requireEntry("abc", idempotent.ClassSuccess)
	})
}

func TestB08_KeyTooLong(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{})
		for _, key := range []string{
			strings.Repeat("k", 256), `"` + strings.Repeat("k", 256) + `"`, `"` + strings.Repeat(`\"`, 256) + `"`,
			strings.Repeat("k", 10_000),
		} {
			requireRefused(t, b.post(key), "key-invalid")
		}
		b.requireUntouched()
		b.pair(order{key: strings.Repeat("k", 255)})
		b.requireEntry(strings.Repeat("k", 255), idempotent.ClassSuccess)
		b.pair(order{key: `"` + strings.Repeat(`\"`, 255) + `"`}) // 255 after unquoting
		b.requireEntry(strings.Repeat(`"`, 255), idempotent.ClassSuccess)
		b.pair(order{key: "1"})
	})
}

func TestB09_BytesNotAllowed(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{})
		for _, key := range []string{
			"k\u00e9y", "k\xffy", "\u200bkey", "a b", "a\tb", `a"b`, `abc"`, "a,b", "abc,", ",", "a;b", "abc;a=1", "a\u00a0b",
		} {
			requireRefused(t, b.post(key), "key-invalid")
		}
		// An obsolete folded line arrives as one value with a blank.
		requireRefused(t, b.rawAnswer(rawOrder("Idempotency-Key: abc\r\n def")), "key-invalid")
		// net/http answers these itself.
		for _, c := range []string{"\x00", "\x01", "\x1b", "\x7f"} {
			a := b.rawAnswer(rawOrder("Idempotency-Key: a" + c + "b"))
			require.Equal(t, http.StatusBadRequest, a.status)
		}
		b.requireUntouched()
	})
	t.Run("from a key function", func(t *testing.T) {
		b := memory.bench(t, setup{options: []idempotent.HTTPOption{
			idempotent.WithKeyFunc(func(_ *http.Request, body []byte) (string, error) { return string(body), nil }),
		}})
		for _, key := range []string{"a\x00b", "a\nb", "a\x7fb", "a b", " ", "\t", "k\u00e9y", `"a`, "a,b"} {
			requireRefused(t, b.send(order{body: key}), "key-invalid")
		}
		b.requireUntouched()
	})
}

func TestB10_MoreThanOneKey(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{})
		for _, lines := range []string{
			"Idempotency-Key: a\r\nIdempotency-Key: a",
			"Idempotency-Key: a\r\nIdempotency-Key: b",
			"Idempotency-Key: a\r\nidempotency-key: a",
			"Idempotency-Key: a\r\nIdempotency-Key:",
			"Idempotency-Key:\r\nIdempotency-Key: a",
			"X-Idempotency-Key: a\r\nX-Idempotency-Key: a",
			`Idempotency-Key: "a", "b"`,
			`Idempotency-Key: "a", "a"`,
			`Idempotency-Key: "a";x=1, "b"`,
			"Idempotency-Key: a,b",
			"Idempotency-Key: a, a",
			"Idempotency-Key: a\r\nX-Idempotency-Key: b",
			"Idempotency-Key: a\r\nX-Idempotency-Key: A",
		} {
			requireRefused(t, b.rawAnswer(rawOrder(lines)), "key-invalid")
		}
		b.requireUntouched()
	})
}

func TestB11_OtherMethodsPass(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{principal: func(*http.Request) (string, error) { return "", errors.New("not to be asked") }})
		runs := int64(0)
		for _, method := range []string{"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "PROPFIND", "post"} {
			for _, key := range []string{"abc", "abc", `"malformed`, "a,b", strings.Repeat("k", 300), ""} {
				body := "none"
				if method == "PUT" {
					body = someBody
				}
				a := b.send(order{method: method, key: key, body: body})
				runs++
				require.Equal(t, http.StatusCreated, a.status, method)
				require.Nil(t, a.header["Idempotent-Replayed"])
				require.Equal(t, runs, b.runs.Load())
			}
		}
		require.Zero(t, b.storeCalls())
	})
}

func TestB12_MethodsExtended(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{options: []idempotent.HTTPOption{idempotent.WithMethods("PUT", "DELETE")}})
		for _, method := range []string{"PUT", "DELETE"} {
			body := someBody
			if method == "DELETE" {
				body = "none"
			}
			b.pair(order{method: method, key: "k", body: body})
			b.requireNamed(idempotent.StoreKey(method, "/orders", "alice", "k"), idempotent.ClassSuccess)
			requireRefused(t, b.send(order{method: method, body: body}), "key-missing")
			requireRefused(t, b.send(order{method: method, key: `"`, body: body}), "key-invalid")
			requireRefused(t, b.send(order{method: method, key: "k", body: `{"amount":2}`}), "key-reused")
		}
		// The list replaces the default one.
		runs, calls := b.runs.Load(), b.storeCalls()
		for range 2 {
			require.Equal(t, http.StatusCreated, b.post("k").status)
		}
		require.Equal(t, runs+2, b.runs.Load())
		require.Equal(t, calls, b.storeCalls())
	})
	t.Run("HEAD", func(t *testing.T) {
		b := memory.bench(t, setup{options: []idempotent.HTTPOption{idempotent.WithMethods("HEAD", "GET")}})
		first, again := b.pair(order{method: "HEAD", key: "k", body: "none"})
		require.Empty(t, first.body)
		require.Equal(t, first.header["Content-Length"], again.header["Content-Length"])
		b.pair(order{method: "GET", key: "k", body: "none"}) // its own operation
	})
}

func TestB13_CaseMatters(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{})
		for i, key := range []string{"key-a", "Key-A", "KEY-A", `"key-A"`} {
			requireFresh(t, b.post(key), i+1)
		}
		for _, key := range []string{"key-a", "Key-A", "KEY-A", "key-A"} {
			b.requireEntry(key, idempotent.ClassSuccess)
			require.True(t, b.post(key).replayed())
		}
	})
}

func TestB14_StoreNames(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{})
		keys := []string{
			"{a}b", "a{b}", "}{", "{}", "a:b", "a%3Ab", "a%253Ab", "%00", `\x00`, `\r`, "%0D", "*", "a*b", "?", "[a]", "~", "#", "a#b", "'", "`",
			"..", "../x", "/", "$HOME", "${a}", "%", "%%", "%2", "+", "%2B", "%20",
		}
		names := map[string]string{}
		for _, key := range keys {
			first, _ := b.pair(order{key: `"` + strings.ReplaceAll(key, `\`, `\\`) + `"`})
			require.Equal(t, http.StatusCreated, first.status)
			n := name(key)
			require.Empty(t, names[n], "%q and %q have one name", names[n], key)
			names[n] = key
			b.requireEntry(key, idempotent.ClassSuccess)
			require.NotRegexp(t, `[{}\x00-\x20\x7f-\xff*?\[\]"'\\]`, n)
			require.Equal(t, 3, strings.Count(n, ":"), "%q: colons stand between the four parts only", n)
		}
		b.pair(order{key: `"a b"`})
		b.pair(order{key: `"a,b;c=\"d\""`})

		// The parts cannot run into each other.
		require.NotEqual(t, idempotent.StoreKey("POST", "/x", "a:b", "c"), idempotent.StoreKey("POST", "/x", "a", "b:c"))
		require.NotEqual(t, idempotent.StoreKey("POST", "/x", "a", "b:c"), idempotent.StoreKey("POST", "/x:a", "b", "c"))
		require.NotEqual(t, idempotent.StoreKey("", "", "a", "b"), idempotent.StoreKey("", "a", "", "b"))
		require.NotEqual(t, idempotent.StoreKey("POST", "/x", "a%3Ab", "c"), idempotent.StoreKey("POST", "/x", "a:b", "c"))

		// Over-long names end in a digest, and stay apart.
		long := "/orders/" + strings.Repeat("p", 900)
		for _, o := range []order{
			{path: long, key: strings.Repeat("k", 255)},
			{path: long, key: strings.Repeat("k", 254) + "l"},
			{path: long + "q", key: strings.Repeat("k", 255)},
			{path: long, key: strings.Repeat("k", 255), fields: []string{"X-User", strings.Repeat("u", 600)}},
		} {
			first, _ := b.pair(o)
			require.Equal(t, http.StatusCreated, first.status)
		}
		n := idempotent.StoreKey("POST", long, "alice", strings.Repeat("k", 255))
		require.LessOrEqual(t, len(n), 512)
		require.Regexp(t, `#[0-9a-f]{64}$`, n)
		b.requireNamed(n, idempotent.ClassSuccess)
	})
	t.Run("logs and errors carry no text of a request", func(t *testing.T) {
		b := memory.bench(t, setup{
			options: []idempotent.HTTPOption{
				idempotent.WithKeyPolicy(func(key string) error {
					if strings.Contains(key, "old") {
						return fmt.Errorf("policy-secret %s: %w", key, idempotent.ErrKeyExpired)
					}
					return nil
				}),
				idempotent.WithFingerprint(func(r *http.Request, body []byte) (string, error) {
					if strings.Contains(string(body), "fail") {
						return "", errors.New("no fingerprint")
					}
					return idempotent.CanonicalJSON(r, body)
				}),
			},
			handler: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "answer-secret") },
		})
		const body = `{"card":"body-secret"}`
		send := func(key, body string) answer {
			return b.send(order{path: "/path-secret?q=query-secret", key: key, body: body, fields: []string{"X-User", "user-secret"}})
		}
		require.Equal(t, 200, send("key-secret", body).status)
		refused := []answer{
			send("key-secret", `{"card":"other-body-secret"}`), send("key-secret-old", body), send("key secret", body), send("k", `"fail body-secret"`),
		}
		b.store.Down(errOutage)
		refused = append(refused, send("key-secret", body))
		b.store.Up()
		for _, a := range refused {
			require.GreaterOrEqual(t, a.status, 400)
			require.NotContains(t, a.body, "secret")
			require.NotContains(t, fmt.Sprint(a.header), "secret")
		}
		logs := b.logs.String()
		require.Contains(t, logs, "key=")
		for _, secret := range []string{"body-secret", "key-secret", "user-secret", "path-secret", "query-secret", "answer-secret"} {
			require.NotContains(t, logs, secret)
		}
	})
}

func TestB15_KeyFunc(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		asked := 0
		b := w.bench(t, setup{
			options: []idempotent.HTTPOption{
				idempotent.WithMaxBody(1000),
				idempotent.WithKeyFunc(func(r *http.Request, body []byte) (string, error) {
					asked++
					if strings.Contains(string(body), "error") {
						return "key-of-a-failure", errors.New("error-secret")
					}
					return r.Header.Get("X-From") + strings.TrimSpace(string(body)), nil
				}),
			},
			handler: func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusCreated)
				_, _ = io.Copy(w, r.Body)
			},
		})
		first, _ := b.pair(order{body: "abc"})
		require.Equal(t, "abc", first.body)
		b.requireEntry("abc", idempotent.ClassSuccess)
		require.Equal(t, 2, asked, "once for each request")
		requireReplay(t, first, b.send(order{body: "abc", key: "a header that is not looked at, not even when malformed"}))

		requireRefused(t, b.send(order{body: " "}), "key-missing")
		requireRefused(t, b.send(order{body: "none"}), "key-missing")
		requireRefused(t, b.send(order{body: strings.Repeat("k", 256)}), "key-invalid")
		requireRefused(t, b.send(order{body: `"abc`}), "key-invalid")
		requireRefused(t, b.send(order{body: "a b"}), "key-invalid")
		requireRefused(t, b.send(order{body: strings.Repeat("k", 1001)}), "body-too-large")
		doc := requireRefused(t, b.send(order{body: "error"}), "key-invalid")
		require.NotContains(t, doc.Detail, "error-secret")
		require.NotContains(t, doc.Detail, "key-of-a-failure")
		require.EqualValues(t, 1, b.runs.Load())
		// The same key out of another body is another request.
		requireRefused(t, b.send(order{body: `"abc"`}), "key-reused")
		require.EqualValues(t, 1, b.runs.Load())
	})
	t.Run("a function that reads the body itself", func(t *testing.T) {
		b := memory.bench(t, setup{
			options: []idempotent.HTTPOption{
				idempotent.WithKeyFunc(func(r *http.Request, _ []byte) (string, error) { return r.FormValue("key"), nil }),
				idempotent.WithFingerprint(func(r *http.Request, body []byte) (string, error) {
					_, err := io.Copy(io.Discard, r.Body)
					_ = r.Body.Close()
					return string(body), err
				}),
			},
			handler: func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) },
		})
		first, _ := b.pair(order{body: "key=k1&amount=1", fields: []string{"Content-Type", "application/x-www-form-urlencoded"}})
		require.Equal(t, "key=k1&amount=1", first.body)
		b.requireEntry("k1", idempotent.ClassSuccess)
	})
	t.Run("two header names", func(t *testing.T) {
		b := memory.bench(t, setup{options: []idempotent.HTTPOption{idempotent.WithHeader("x-operation", "X-Op")}})
		requireRefused(t, b.send(order{fields: []string{"X-Operation", "a", "X-Op", "b"}}), "key-invalid")
		requireRefused(t, b.post("k"), "key-missing") // the list replaces the default one
		b.requireUntouched()
		first := b.send(order{fields: []string{"X-Operation", "a", "X-Op", `"a"`}})
		requireFresh(t, first, 1)
		requireReplay(t, first, b.send(order{fields: []string{"X-OP", "a"}}))
		requireReplay(t, first, b.send(order{key: "ignored, even malformed", fields: []string{"X-OP", "a"}}))
	})
}

func TestB16_KeyPolicy(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		asked := []string{}
		b := w.bench(t, setup{
			options: []idempotent.HTTPOption{idempotent.WithKeyPolicy(func(key string) error {
				asked = append(asked, key)
				if len(key) != 36 {
					return errors.New("policy-secret")
				}
				return nil
			})},
			principal: func(r *http.Request) (string, error) { return "alice", nil },
		})
		for _, key := range []string{"short", `"short"`, "0", strings.Repeat("k", 37)} {
			a := b.post(key)
			requireRefused(t, a, "key-invalid")
			require.NotContains(t, a.body, "policy-secret")
			require.NotContains(t, a.body, "short")
		}
		requireRefused(t, b.post(`"malformed`), "key-invalid")
		require.Equal(t, []string{"short", "short", "0", strings.Repeat("k", 37)}, asked, "the policy sees well-formed keys only, unquoted")
		b.requireUntouched()
		b.pair(order{key: "0b6e1d2c-4b0f-4f6e-9d3c-2f1a0b9c8d7e"})
		b.requireEntry("0b6e1d2c-4b0f-4f6e-9d3c-2f1a0b9c8d7e", idempotent.ClassSuccess)
	})
	t.Run("of a key function", func(t *testing.T) {
		b := memory.bench(t, setup{options: []idempotent.HTTPOption{
			idempotent.WithKeyFunc(func(r *http.Request, _ []byte) (string, error) { return r.Header.Get("X-K"), nil }),
			idempotent.WithKeyPolicy(func(string) error { return context.Canceled }),
		}})
		requireRefused(t, b.send(order{fields: []string{"X-K", "k"}}), "key-invalid")
		b.requireUntouched()
	})
}

func TestB41_ExpectContinue(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{options: []idempotent.HTTPOption{idempotent.WithMaxBody(100)}, principal: func(r *http.Request) (string, error) {
			return r.Header.Get("X-User"), nil
		}})
		head := func(length int, lines ...string) string {
			return fmt.Sprintf("POST /orders HTTP/1.1\r\nHost: shop\r\nContent-Type: application/json\r\nContent-Length: %d\r\nExpect: 100-continue\r\n%s\r\n\r\n",
				length, strings.Join(lines, "\r\n"))
		}
		// The body is never sent: an answer that comes shows that it was not
		// waited for, and its status that no 100 came before.
		for name, test := range map[string]struct{ text, code string }{
			"malformed":       {head(12, "X-User: alice", `Idempotency-Key: "abc`), "key-invalid"},
			"empty":           {head(12, "X-User: alice", "Idempotency-Key:"), "key-invalid"},
			"twice":           {head(12, "X-User: alice", "Idempotency-Key: a", "Idempotency-Key: a"), "key-invalid"},
			"missing":         {head(12, "X-User: alice"), "key-missing"},
			"unauthenticated": {head(12, "Idempotency-Key: abc"), "unauthenticated"},
			"too large":       {head(101, "X-User: alice", "Idempotency-Key: abc"), "body-too-large"},
		} {
			t.Run(name, func(t *testing.T) { requireRefused(t, b.rawAnswer(test.text), test.code) })
		}
		b.requireUntouched()

		conn, r := b.raw(head(len(someBody), "X-User: alice", "Idempotency-Key: abc"))
		line, err := r.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "HTTP/1.1 100 Continue\r\n", line)
		_, err = r.ReadString('\n')
		require.NoError(t, err)
		_, err = io.WriteString(conn, someBody)
		require.NoError(t, err)
		res, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
		requireFresh(t, readAnswer(res), 1)
		b.requireEntry("abc", idempotent.ClassSuccess)
	})
}

// The middleware is mounted on a router and again on a route of it: there is one
// claim, and the operation runs.
func TestMountedTwice(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		var b *bench
		b = w.bench(t, setup{
			inner: func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					again := b.guard.With(idempotent.WithTakeOver()).Middleware(func(r *http.Request) (string, error) {
						return r.Header.Get("X-User"), nil
					})
					again(next).ServeHTTP(w, r)
				})
			},
			principal: func(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil },
			handler: func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusCreated)
				_, _ = io.Copy(w, r.Body)
			},
		})
		a := b.post("k", "X-User", "bob")
		require.Equal(t, http.StatusCreated, a.status)
		require.Equal(t, someBody, a.body)
		requireReplay(t, a, b.post("k", "X-User", "bob"))
		require.EqualValues(t, 1, b.runs.Load())
		require.Equal(t, 1, b.observed(idempotent.EventClaimed))
	})
}
