package idempotent_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

func TestB17_PrincipalsAreApart(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "for "+r.Header.Get("X-User"))
		}})
		users := []string{"bob", "Bob", "alice:bob", "alice", "alice%3Abob", "\u00e1"}
		answers := map[string]answer{}
		for i, user := range users {
			answers[user] = b.post("k", "X-User", user)
			require.Equal(t, "for "+user, answers[user].body)
			require.Nil(t, answers[user].header["Idempotent-Replayed"])
			require.EqualValues(t, i+1, b.runs.Load())
		}
		// Another body is another operation of somebody else, not a reuse.
		other := b.send(order{key: "k", body: `{"amount":2}`, fields: []string{"X-User", "carol"}})
		require.Equal(t, "for carol", other.body)
		for _, user := range users {
			requireReplay(t, answers[user], b.post("k", "X-User", user))
			b.requireNamed(idempotent.StoreKey("POST", "/orders", user, "k"), idempotent.ClassSuccess)
		}
		require.EqualValues(t, len(users)+1, b.runs.Load())
	})
}

func TestB18_PrincipalIsRequired(t *testing.T) {
	t.Parallel()
	g := idempotent.New(memory.open(t))
	require.PanicsWithValue(t, "idempotent: Middleware: the PrincipalFunc is nil; Anonymous is the one that tells nobody apart", func() { g.Middleware(nil) })
	require.Panics(t, func() { g.Middleware(nil, idempotent.WithOptionalKey()) })
	eachStoreOf(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{principal: idempotent.Anonymous})
		first := b.post("k", "Authorization", "Bearer alice")
		requireFresh(t, first, 1)
		requireReplay(t, first, b.post("k", "Authorization", "Bearer bob"))
		b.requireNamed(idempotent.StoreKey("POST", "/orders", "anonymous", "k"), idempotent.ClassSuccess)
	})
}

func TestB19_PrincipalFails(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		for name, test := range map[string]struct {
			principal string
			err       error
			code      string
		}{
			"ErrUnauthenticated":        {"", idempotent.ErrUnauthenticated, "unauthenticated"},
			"wrapped":                   {"", fmt.Errorf("token secret-token: %w", idempotent.ErrUnauthenticated), "unauthenticated"},
			"with a principal":          {"alice", idempotent.ErrUnauthenticated, "unauthenticated"},
			"empty":                     {"", nil, "unauthenticated"},
			"another error":             {"", errors.New("directory secret-token down"), "internal"},
			"another, with a principal": {"alice", errors.New("secret-token"), "internal"},
			"net/http's abort as error": {"alice", http.ErrAbortHandler, "internal"},
		} {
			t.Run(name, func(t *testing.T) {
				reads, challenge := 0, ""
				b := w.bench(t, setup{
					principal: func(*http.Request) (string, error) { return test.principal, test.err },
					outer: func(next http.Handler) http.Handler {
						return countReads(&reads)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
							if challenge != "" {
								w.Header().Set("WWW-Authenticate", challenge)
							}
							next.ServeHTTP(w, r)
						}))
					},
				})
				a := b.post("k")
				requireRefused(t, a, test.code)
				require.NotContains(t, a.body, "secret-token")
				require.Zero(t, reads, "reads of the body")
				if test.code == "unauthenticated" {
					require.Equal(t, []string{"Bearer"}, a.header["Www-Authenticate"])
					challenge = `Basic realm="shop"`
					require.Equal(t, []string{challenge}, b.post("k").header["Www-Authenticate"])
				} else {
					require.Nil(t, a.header["Www-Authenticate"])
				}
				b.requireUntouched()
			})
		}
	})
}

func TestB20_MethodAndPathAreInTheName(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{})
		orders := []order{
			{path: "/orders"},
			{path: "/orders", method: "PATCH"},
			{path: "/orders/"},
			{path: "/orders/1/cancel"},
			{path: "/Orders"},
			{path: "/orders/a%2Fb"},
			{path: "/orders/a/b"},
			{path: "/orders//a"},
			{path: "/orders/%61"},
			{path: "/orders/a"},
			{path: "/"},
			{path: "/orders/%25"},
			{path: "/orders:1"},
		}
		answers := make([]answer, len(orders))
		for i := range orders {
			orders[i].key = "k"
			answers[i] = b.send(orders[i])
			requireFresh(t, answers[i], i+1)
		}
		for i, o := range orders {
			requireReplay(t, answers[i], b.send(o))
			method := "POST"
			if o.method != "" {
				method = o.method
			}
			b.requireNamed(idempotent.StoreKey(method, o.path, "alice", "k"), idempotent.ClassSuccess)
		}
		// The host is no part of it, nor is the form of the request line.
		requireReplay(t, answers[0], b.post("k", "Host", "other.example"))
		text := strings.Replace(rawOrder("Idempotency-Key: k"), "POST /orders", "POST http://shop/orders", 1)
		require.True(t, b.rawAnswer(text).replayed())
	})
	t.Run("a stripped prefix", func(t *testing.T) {
		b := memory.bench(t, setup{outer: func(next http.Handler) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("/v1/", http.StripPrefix("/v1", next))
			mux.Handle("/v2/", http.StripPrefix("/v2", next))
			return mux
		}})
		requireFresh(t, b.send(order{key: "k", path: "/v1/orders"}), 1)
		requireFresh(t, b.send(order{key: "k", path: "/v2/orders"}), 2)
		b.requireNamed(idempotent.StoreKey("POST", "/v1/orders", "alice", "k"), idempotent.ClassSuccess)
	})
}

func TestB21_PrincipalScope(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		g := newGate(t)
		b := w.bench(t, setup{options: []idempotent.HTTPOption{idempotent.WithPrincipalScope()}})
		first, _ := b.pair(order{key: "k"})
		e := b.requireNamed(idempotent.StoreKey("", "", "alice", "k"), idempotent.ClassSuccess)
		for _, o := range []order{
			{path: "/orders/1/cancel"}, {method: "PATCH"}, {path: "/orders/"}, {path: "/refunds", method: "PATCH"}, {path: "/order", body: "none"},
		} {
			o.key = "k"
			requireRefused(t, b.send(o), "key-reused")
		}
		require.EqualValues(t, 1, b.runs.Load())
		again := b.requireNamed(e.Key, idempotent.ClassSuccess)
		require.Equal(t, e, again, "a refusal changes nothing")
		requireReplay(t, first, b.post("k"))
		requireFresh(t, b.send(order{key: "k", path: "/refunds", fields: []string{"X-User", "bob"}}), 2)
		b.requireAbsent("k")

		pending := w.bench(t, setup{
			options: []idempotent.HTTPOption{idempotent.WithPrincipalScope()},
			handler: func(http.ResponseWriter, *http.Request) { g.pass() },
		})
		a := pending.begin(order{key: "p"})
		pending.receive("the handler", g.entered)
		requireRefused(t, pending.send(order{key: "p", path: "/refunds"}), "key-reused")
		g.release()
		require.Equal(t, 200, a.wait().status)
	})
}

func TestB22_OtherBody(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		g := newGate(t)
		b := w.bench(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
			g.pass()
			w.WriteHeader(http.StatusCreated)
		}})
		other := []order{
			{key: "k", body: `{"amount":2}`},
			{key: "k", body: `{"amount":1,"note":""}`},
			{key: "k", body: "none"},
			{key: "k", body: "{}"},
			{key: "k", body: `{"amount":2}`, fields: []string{"Prefer", "wait=5"}},
			{key: `"k"`, body: `[{"amount":1}]`},
		}
		a := b.begin(order{key: "k"})
		b.receive("the handler", g.entered)
		for _, o := range other {
			reused := b.send(o)
			requireRefused(t, reused, "key-reused")
			require.Nil(t, reused.header["Preference-Applied"], "another request does not wait")
		}
		require.Equal(t, idempotent.Pending, b.requireEntry("k", idempotent.ClassDefault).Status)
		g.release()
		require.Equal(t, http.StatusCreated, a.wait().status)
		e := b.requireEntry("k", idempotent.ClassSuccess)
		for _, o := range other {
			doc := requireRefused(t, b.send(o), "key-reused")
			require.NotNil(t, doc.FirstSeen)
		}
		require.Equal(t, e, b.requireEntry("k", idempotent.ClassSuccess))
		require.True(t, b.post("k").replayed())
		require.EqualValues(t, 1, b.runs.Load())
		require.Equal(t, 2*len(other), b.observed(idempotent.EventKeyReused))
	})
	t.Run("whatever the outcome", func(t *testing.T) {
		eachStoreOf(t, func(t *testing.T, w world) {
			b := w.bench(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
				var status int
				_, _ = fmt.Sscan(r.Header.Get("X-Status"), &status)
				w.WriteHeader(status)
			}})
			for _, status := range []string{"404", "500", "302"} {
				require.NotEqual(t, 422, b.post(status, "X-Status", status).status)
				requireRefused(t, b.send(order{key: status, body: "{}"}), "key-reused")
			}
			b.die("dead", true, false)
			requireRefused(t, b.send(order{key: "dead", body: "{}"}), "key-reused")
			b.die("dead2", true, true)
			requireRefused(t, b.send(order{key: "dead2", body: "{}"}), "key-reused")
			require.EqualValues(t, 3, b.runs.Load())
		})
	})
}

// same sends a first order, then others that must be its replay, then others
// that must be refused as key-reused.
func (b *bench) same(first order, same, other []order) {
	b.t.Helper()
	runs := b.runs.Load()
	key := fmt.Sprintf("key-%d", runs)
	first.key = key
	a, _ := b.pair(first)
	e := b.requireNamed(name(key), idempotent.ClassSuccess)
	for _, o := range same {
		o.key = key
		requireReplay(b.t, a, b.send(o))
	}
	for _, o := range other {
		o.key = key
		requireRefused(b.t, b.send(o), "key-reused")
	}
	require.Equal(b.t, runs+1, b.runs.Load(), "runs of the handler")
	require.Equal(b.t, e, b.requireNamed(name(key), idempotent.ClassSuccess), "repeats change nothing")
}

func paths(list ...string) (orders []order) {
	for _, p := range list {
		orders = append(orders, order{path: "/orders" + p})
	}
	return orders
}

func bodies(media string, list ...string) (orders []order) {
	for _, body := range list {
		orders = append(orders, order{body: body, fields: []string{"Content-Type", media}})
	}
	return orders
}

func TestB23_Query(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{})
		b.same(order{path: "/orders?a=1&b=2"}, paths("?b=2&a=1", "?%61=1&b=%32", "?b=2&a=1#x"),
			paths("?a=1&b=3", "?a=1", "?a=1&b=2&c", "?a=2&b=1", "?a=1&b=2&a=1", "", "?a=1;b=2", "?a=1%26b=2", "?A=1&b=2"))
		b.same(order{path: "/orders?a=1&a=2&b=3"}, paths("?b=3&a=1&a=2", "?a=1&b=3&a=2"), paths("?a=2&a=1&b=3", "?a=1,2&b=3", "?a=2&b=3", "?a[]=1&a[]=2&b=3"))
		b.same(order{path: "/orders?amount=1"}, nil, paths("?amount=2", "?amount=01", "?amount=1.0", "?amount=+1", "?amount=%201"))
		b.same(order{path: "/orders?a"}, nil, paths("?a=", "", "?a&a", "?b"))
		b.same(order{path: "/orders"}, nil, paths("?a", "?&", "?="))
		b.same(order{path: "/orders?a=b+c"}, paths("?a=b%20c"), paths("?a=b%2Bc", "?a=bc"))
		b.same(order{path: "/orders?a=%zz"}, nil, paths("?a=%ZZ", "", "?a=%25zz"))
	})
}

func TestB24_JSONSpelling(t *testing.T) {
	first := `{"amount": 10, "to": {"name": "\u00e9/", "tags": [1, {"x":1,"y":2}]}}`
	same := []string{
		`{"to":{"tags":[1,{"y":2,"x":1}],"name":"é/"},"amount":10}`,
		"{\n\t\"amount\" : 10 ,\r\n \"to\" : { \"name\" : \"\\u00E9\\/\", \"tags\" : [ 1 , { \"y\" : 2, \"x\" : 1 } ] } }\n",
		`{"\u0061mount":10,"to":{"name":"é\u002f","tags":[1,{"x":1,"y":2}]}}`,
	}
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{})
		for _, media := range []string{"application/json", "application/json; charset=utf-8", "Application/JSON", "application/merge-patch+json", "application/vnd.shop.v1+json"} {
			b.same(order{body: first, fields: []string{"Content-Type", media}}, bodies(media, same...), nil)
		}
		b.same(order{body: `"a"`}, bodies("application/json", ` "\u0061" `), bodies("application/json", `"A"`))
	})
	t.Run("raw", func(t *testing.T) {
		eachStoreOf(t, func(t *testing.T, w world) {
			raw := w.bench(t, setup{options: []idempotent.HTTPOption{idempotent.WithFingerprint(idempotent.RawBody)}})
			raw.same(order{body: first}, bodies("application/json", first), bodies("application/json", same...))
			plain := w.bench(t, setup{}) // another media type is compared byte for byte
			plain.same(order{body: first, fields: []string{"Content-Type", "text/plain"}}, nil, bodies("text/plain", same...))
		})
	})
}

func TestB25_JSONContent(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{})
		for _, test := range [][]string{
			{`{"a":[1,2]}`, `{"a":[2,1]}`, `{"a":[1,2,2]}`, `{"a":[[1,2]]}`, `{"a":[1]}`},
			{`{"a":null}`, `{}`, `{"a":""}`, `{"a":0}`, `{"a":false}`, `{"a":"null"}`, `{"a":[]}`, `{"a":{}}`, `null`},
			{`{"a":1}`, `{"a":1.0}`, `{"a":1e0}`, `{"a":"1"}`, `{"a":true}`, `{"a":-1}`, `{"a":10e-1}`, `{"a":1.00}`, `{"A":1}`},
			{`{"a":9007199254740993}`, `{"a":9007199254740992}`, `{"a":9007199254740994}`, `{"a":9007199254740993.0}`},
			{`{"a":100000000000000000000000000001}`, `{"a":100000000000000000000000000002}`, `{"a":1e29}`},
			{`{"a":0.1}`, `{"a":0.10}`, `{"a":0.1000000000000000055511151231257827}`, `{"a":1e-1}`},
			{`{"a":0}`, `{"a":-0}`, `{"a":0.0}`},
			{`{"a":1E400}`, `{"a":1E401}`, `{"a":1e400}`},
			{`{"a":"e\u0301"}`, `{"a":"\u00e9"}`, `{"a":"e"}`},
			{`{"a":{"b":1},"c":2}`, `{"a":{"b":1,"c":2}}`, `{"a":{},"b":1,"c":2}`},
			{`{"a":"x","b":"y"}`, `{"a":"y","b":"x"}`, `{"a":"x\",\"b\":\"y"}`, `{"a":"x\u0000","b":"y"}`},
		} {
			b.same(order{body: test[0]}, nil, bodies("application/json", test[1:]...))
		}
	})
}

func TestB26_JSONThatIsNotCanonical(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	eachStore(t, func(t *testing.T, w world) {
		for name, test := range map[string][]string{
			"repeated name":          {`{"a":1,"a":2}`, `{"a":2,"a":1}`, `{"a":1, "a":2}`, `{"a":2}`, `{"a":1}`},
			"repeated by escape":     {`{"a":1,"\u0061":2}`, `{"a":1,"a":2}`, `{"\u0061":2,"a":1}`},
			"repeated deep":          {`[{"x":{"a":1,"a":2}}]`, `[{"x":{"a":2}}]`, `[{"x":{"a":1,"a":2}} ]`},
			"invalid":                {`{"a":1`, `{"a":1 `, `{"a":1}`},
			"not quite JSON":         {`{'a':1}`, `{'a': 1}`, `{"a":1}`},
			"trailing":               {`{"a":1} x`, `{"a":1}  x`, `{"a":1}`},
			"two documents":          {`{"a":1}{"b":2}`, `{"a":1} {"b":2}`},
			"number":                 {`{"a":01}`, `{"a":1}`, `{"a": 01}`},
			"bytes that are no text": {"{\"a\":\"\xff\"}", "{\"a\":\"\xfe\"}", "{\"a\":\"\ufffd\"}", "{\"a\": \"\xff\"}"},
			"lone surrogate":         {`{"a":"\ud800"}`, `{"a":"\ud801"}`, `{"a":"\ufffd"}`, `{"a": "\ud800"}`},
			"too deep":               {deep(1001), " " + deep(1001), deep(1002)},
			"much too deep":          {deep(200_000), deep(200_001)},
			"no text at all":         {"\x00\x01", "\x00\x02"},
			"byte order mark":        {"\ufeff{\"a\":1}", `{"a":1}`, "\ufeff{\"a\": 1}"},
		} {
			t.Run(name, func(t *testing.T) {
				b := w.bench(t, setup{})
				b.same(order{body: test[0]}, bodies("application/json", test[0]), bodies("application/json", test[1:]...))
			})
		}
	})
}

func compress(t *testing.T, text string, level int) string {
	t.Helper()
	var buffer bytes.Buffer
	z, err := gzip.NewWriterLevel(&buffer, level)
	require.NoError(t, err)
	_, err = io.WriteString(z, text)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return buffer.String()
}

func TestB27_GzipRequest(t *testing.T) {
	text := `{"amount":1,"note":"` + strings.Repeat("ab", 200) + `"}`
	coded := []string{"Content-Encoding", "gzip"}
	eachStore(t, func(t *testing.T, w world) {
		fast, best := compress(t, text, gzip.BestSpeed), compress(t, text, gzip.BestCompression)
		require.NotEqual(t, fast, best)
		b := w.bench(t, setup{handler: func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }})
		b.same(order{body: fast, fields: coded}, []order{{body: fast, fields: []string{"Content-Encoding", "GZIP"}}},
			[]order{{body: best, fields: coded}, {body: text}, {body: fast}, {body: "not gzip at all", fields: coded}})
		require.Equal(t, fast, b.send(order{key: "x", body: fast, fields: coded}).body, "the handler sees the bytes as sent")
		b.same(order{body: "not gzip at all", fields: coded}, nil, nil)

		const limit = 10_000
		decoding := w.bench(t, setup{options: []idempotent.HTTPOption{
			idempotent.WithFingerprint(func(r *http.Request, body []byte) (string, error) {
				z, err := gzip.NewReader(bytes.NewReader(body))
				if err != nil {
					return "", err
				}
				plain, err := io.ReadAll(io.LimitReader(z, limit+1))
				if err != nil || len(plain) > limit {
					return "", errors.Join(err, errors.New("too much"))
				}
				return idempotent.CanonicalJSON(r, plain)
			}),
		}})
		decoding.same(order{body: fast, fields: coded},
			[]order{{body: best, fields: coded}, {body: compress(t, " "+text, 5), fields: coded}},
			[]order{{body: compress(t, `{"amount":2}`, 5), fields: coded}})
		runs := decoding.runs.Load()
		requireRefused(t, decoding.send(order{key: "bomb", body: compress(t, strings.Repeat("0", 10*limit), 9), fields: coded}), "body-unreadable")
		requireRefused(t, decoding.send(order{key: "bomb", body: "not gzip", fields: coded}), "body-unreadable")
		decoding.requireAbsent("bomb")
		require.Equal(t, runs, decoding.runs.Load())
	})
}

func form(t *testing.T, boundary string, parts ...string) order {
	t.Helper()
	var buffer bytes.Buffer
	m := multipart.NewWriter(&buffer)
	require.NoError(t, m.SetBoundary(boundary))
	for i := 0; i < len(parts); i += 2 {
		require.NoError(t, m.WriteField(parts[i], parts[i+1]))
	}
	file, err := m.CreateFormFile("file", "a.bin")
	require.NoError(t, err)
	_, err = file.Write([]byte{0, 1, 2, 255, '\r', '\n', '-', '-'})
	require.NoError(t, err)
	require.NoError(t, m.Close())
	return order{body: buffer.String(), fields: []string{"Content-Type", m.FormDataContentType()}}
}

func TestB28_Multipart(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		first := form(t, "one", "amount", "1", "to", "bob")
		b := w.bench(t, setup{
			options: []idempotent.HTTPOption{idempotent.WithFingerprint(idempotent.Multipart)},
			handler: func(w http.ResponseWriter, r *http.Request) {
				if r.FormValue("bad") == "" {
					_, _ = io.WriteString(w, r.FormValue("amount")+" for "+r.FormValue("to"))
				}
			},
		})
		extra := form(t, "two", "amount", "1", "to", "bob")
		extra.body += "text behind the last part"
		b.same(first,
			[]order{form(t, "two", "amount", "1", "to", "bob"), form(t, "0123456789", "amount", "1", "to", "bob")},
			[]order{
				form(t, "two", "amount", "2", "to", "bob"), form(t, "two", "to", "bob", "amount", "1"), form(t, "one", "amount", "1"),
				form(t, "two", "amount", "1", "to", "bob", "cc", ""), form(t, "two", "amount", "", "to", "1bob"), extra,
				{body: first.body},
				{body: first.body, fields: []string{"Content-Type", "multipart/form-data; boundary=other"}},
			})
		require.Equal(t, "1 for bob", b.send(order{key: "x", body: first.body, fields: first.fields}).body)

		plain := w.bench(t, setup{})
		plain.same(first, nil, []order{form(t, "two", "amount", "1", "to", "bob")})
	})
}

func TestB29_BodyTooLarge(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{})
		limit := 1 << 20
		// Whatever becomes of the rest of the body, nothing ran, and the
		// connection is closed, as net/http does.
		head := "POST /orders HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: k\r\n"
		for name, text := range map[string]string{
			"declared":            head + fmt.Sprintf("Content-Length: %d\r\n\r\n", limit+1),
			"declared, far above": head + "Content-Length: 9223372036854775807\r\n\r\n",
			"chunked":             head + fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", limit+1, strings.Repeat("x", limit+1)),
			"chunked, in many":    head + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("10000\r\n"+strings.Repeat("x", 0x10000)+"\r\n", 17) + "0\r\n\r\n",
		} {
			t.Run(name, func(t *testing.T) {
				_, r := b.raw(text)
				res, err := http.ReadResponse(r, nil)
				require.NoError(t, err)
				require.True(t, res.Close, "Connection: close")
				requireRefused(t, readAnswer(res), "body-too-large")
				_, err = r.ReadByte()
				require.Error(t, err, "the connection is closed")
				require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the connection is closed")
			})
		}
		b.requireUntouched()

		b.pair(order{key: "exact", body: strings.Repeat("x", limit)})
		b.requireEntry("exact", idempotent.ClassSuccess)
	})
	t.Run("other limit", func(t *testing.T) {
		b := memory.bench(t, setup{options: []idempotent.HTTPOption{idempotent.WithMaxBody(12)}})
		requireRefused(t, b.send(order{key: "k", body: strings.Repeat("x", 13)}), "body-too-large")
		b.requireUntouched()
		b.pair(order{key: "k", body: strings.Repeat("x", 12)})
	})
	t.Run("limit of a layer outside", func(t *testing.T) {
		b := memory.bench(t, setup{outer: func(next http.Handler) http.Handler { return http.MaxBytesHandler(next, 12) }})
		requireRefused(t, b.send(order{key: "k", body: strings.Repeat("x", 13)}), "body-too-large")
		b.requireUntouched()
		b.pair(order{key: "k", body: strings.Repeat("x", 12)})
	})
}

func TestB31_BodyCutShort(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{})
		head := "POST /orders HTTP/1.1\r\nHost: shop\r\nContent-Type: application/json\r\nIdempotency-Key: k\r\n"
		for name, text := range map[string]string{
			"short":            head + "Content-Length: 100\r\n\r\n" + someBody,
			"nothing of it":    head + "Content-Length: 100\r\n\r\n",
			"chunk cut":        head + "Transfer-Encoding: chunked\r\n\r\n20\r\n" + someBody,
			"last chunk lost":  head + "Transfer-Encoding: chunked\r\n\r\nc\r\n" + someBody + "\r\n",
			"chunk size wrong": head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n" + someBody + "\r\n0\r\n\r\n",
		} {
			t.Run(name, func(t *testing.T) {
				conn, r := b.raw(text)
				require.NoError(t, conn.(*net.TCPConn).CloseWrite()) // gone, but still listening
				res, err := http.ReadResponse(r, nil)
				require.NoError(t, err)
				requireRefused(t, readAnswer(res), "body-unreadable")
			})
		}
		b.requireUntouched()
		b.requireAbsent("k")
		// The whole request runs.
		first := b.post("k")
		requireFresh(t, first, 1)
		requireReplay(t, first, b.post("k"))
	})
	t.Run("too slow", func(t *testing.T) {
		b := memory.bench(t, setup{outer: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				require.NoError(t, http.NewResponseController(w).SetReadDeadline(time.Now().Add(-time.Second)))
				next.ServeHTTP(w, r)
			})
		}})
		a := b.rawAnswer("POST /orders HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: k\r\nContent-Length: 5\r\n\r\n")
		requireRefused(t, a, "body-unreadable")
		b.requireUntouched()
	})
	t.Run("fails after a part", func(t *testing.T) {
		b := memory.bench(t, setup{outer: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.Body = io.NopCloser(io.MultiReader(strings.NewReader(`{"amount":`), failingReader{}))
				r.ContentLength = -1
				next.ServeHTTP(w, r)
			})
		}})
		a := b.post("k")
		requireRefused(t, a, "body-unreadable")
		require.NotContains(t, a.body, "secret")
		b.requireUntouched()
	})
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, errors.New("secret cause") }

func TestB32_HandlerReadsTheBody(t *testing.T) {
	type seen struct {
		Body, Form, Trailer, Again, Closed string
		Length                             int64
		NoBody                             bool
		Encoding                           []string
	}
	show := func(w http.ResponseWriter, r *http.Request) {
		s := seen{Length: r.ContentLength, NoBody: r.Body == http.NoBody, Encoding: r.TransferEncoding}
		body, err := io.ReadAll(r.Body)
		s.Body = fmt.Sprintf("%x %v", body, err)
		s.Trailer = r.Trailer.Get("X-Sum")
		_, err = r.Body.Read(make([]byte, 1))
		s.Again = fmt.Sprint(err)
		_ = r.Body.Close()
		_, err = r.Body.Read(make([]byte, 1))
		s.Closed = fmt.Sprint(err, r.Body.Close())
		_ = json.NewEncoder(w).Encode(s)
	}
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{handler: show, options: []idempotent.HTTPOption{idempotent.WithOptionalKey()}})
		head := "POST /orders HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n"
		for name, text := range map[string]string{
			"length":        "Content-Length: 256\r\n\r\n" + string(all),
			"one byte":      "Content-Length: 1\r\n\r\nx",
			"none":          "\r\n",
			"length 0":      "Content-Length: 0\r\n\r\n",
			"chunked":       "Transfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n3\r\nefg\r\n0\r\n\r\n",
			"chunked empty": "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
			"trailer":       "Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n4\r\nabcd\r\n0\r\nX-Sum: 42\r\n\r\n",
		} {
			t.Run(name, func(t *testing.T) {
				bare := b.rawAnswer(head + text) // without a key the layer is not in the way
				keyed := b.rawAnswer(head + "Idempotency-Key: " + strings.ReplaceAll(name, " ", "-") + "\r\n" + text)
				require.Nil(t, keyed.header["Idempotent-Replayed"])
				require.Equal(t, bare.body, keyed.body)
				if name == "trailer" {
					require.Contains(t, keyed.body, `"Trailer":"42"`)
				}
			})
		}
	})
	t.Run("readers of net/http", func(t *testing.T) {
		b := memory.bench(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
			switch r.Header.Get("X-As") {
			case "json":
				var v struct{ Amount int }
				err := json.NewDecoder(r.Body).Decode(&v)
				fmt.Fprint(w, v.Amount, err)
			case "form":
				err := r.ParseForm()
				fmt.Fprint(w, r.PostForm.Get("amount"), err)
			case "multipart":
				m, err := r.MultipartReader()
				if err == nil {
					var p *multipart.Part
					if p, err = m.NextPart(); err == nil {
						_, _ = io.Copy(w, p)
					}
				}
				fmt.Fprint(w, err)
			}
		}})
		require.Equal(t, "1 <nil>", b.post("json", "X-As", "json").body)
		require.Equal(t, "1<nil>", b.send(order{key: "form", body: "amount=1", fields: []string{"X-As", "form", "Content-Type", "application/x-www-form-urlencoded"}}).body)
		o := form(t, "b", "amount", "1")
		o.key, o.fields = "multipart", append(o.fields, "X-As", "multipart")
		require.Equal(t, "1<nil>", b.send(o).body)
	})
	t.Run("the original is closed once", func(t *testing.T) {
		closed := 0
		b := memory.bench(t, setup{
			handler: func(_ http.ResponseWriter, r *http.Request) { _, _ = r.Body.Close(), r.Body.Close() },
			outer: func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					r.Body = &closeCounter{r.Body, &closed}
					next.ServeHTTP(w, r)
				})
			},
		})
		b.post("k")
		require.Equal(t, 1, closed)
	})
}

type closeCounter struct {
	io.ReadCloser
	closed *int
}

func (c *closeCounter) Close() error {
	*c.closed++
	return c.ReadCloser.Close()
}

func TestB33_WhatChangesBetweenAttempts(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{})
		fields := func(n string) []string {
			return []string{
				"Authorization", "Bearer token-" + n, "Cookie", "session=" + n, "Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333" + n + "-01",
				"Tracestate", "v=" + n, "X-Request-Id", "request-" + n, "X-Correlation-Id", n, "User-Agent", "client/" + n, "Accept", "text/" + n,
				"Accept-Language", "de;q=0." + n, "Date", "Mon, 30 Nov 2026 12:00:0" + n + " GMT", "X-Forwarded-For", "10.0.0." + n, "Referer", "/" + n, "Signature", n,
			}
		}
		b.same(order{fields: fields("1")}, []order{{fields: fields("2")}, {}, {fields: fields("3")}}, nil)
	})
}

func TestB34_FieldsOfOnesOwn(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{options: []idempotent.HTTPOption{
			idempotent.WithFingerprint(func(r *http.Request, body []byte) (string, error) {
				text, err := idempotent.CanonicalJSON(r, body)
				if digest := r.Header.Get("Content-Digest"); digest == "wrong" {
					return text, errors.New("digest-secret")
				}
				return "order1:" + text + "\x00" + r.Header.Get("If-Match") + "\x00" + r.Header.Get("X-Version"), err
			}),
		}})
		with := func(match, version string) order {
			return order{body: `{ "amount": 1 }`, fields: []string{"If-Match", match, "X-Version", version}}
		}
		b.same(with(`"v1"`, "2"), []order{{fields: []string{"If-Match", `"v1"`, "X-Version", "2"}}},
			[]order{with(`"v2"`, "2"), with(`"v1"`, "3"), {}, with(`"v1"`, ""), {body: `{"amount":2}`, fields: []string{"If-Match", `"v1"`, "X-Version", "2"}}})
		b.post("tag")
		require.Regexp(t, "^order1:", b.requireEntry("tag", idempotent.ClassSuccess).Fingerprint)
		runs := b.runs.Load()
		a := b.post("digest", "Content-Digest", "wrong")
		requireRefused(t, a, "body-unreadable")
		require.NotContains(t, a.body, "digest-secret")
		b.requireAbsent("digest")
		require.Equal(t, runs, b.runs.Load())
	})
	t.Run("a retry is answered before preconditions are looked at", func(t *testing.T) {
		version := "1"
		b := memory.bench(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("If-Match") != version {
				w.WriteHeader(http.StatusPreconditionFailed)
				return
			}
			version += "1"
		}})
		first, _ := b.pair(order{method: "PATCH", key: "k", fields: []string{"If-Match", "1"}})
		require.Equal(t, 200, first.status)
	})
}

func TestB82_OtherMediaTypeOrCoding(t *testing.T) {
	eachStore(t, func(t *testing.T, w world) {
		b := w.bench(t, setup{})
		typed := func(media ...string) (orders []order) {
			for _, m := range media {
				orders = append(orders, order{fields: []string{"Content-Type", m}})
			}
			return orders
		}
		b.same(order{}, typed("application/json; charset=utf-8", "Application/JSON", "application/json;charset=latin1", " application/json ;x=y"),
			append(typed("text/plain", "application/problem+json", "application/jsonx", "text/json", "absent", "application/json, text/plain", "json"),
				order{fields: []string{"Content-Encoding", "gzip"}}, order{fields: []string{"Content-Encoding", "identity"}}))
		b.same(order{fields: []string{"Content-Type", "text/plain"}}, typed("TEXT/PLAIN; charset=utf-8"), typed("application/json", "text/html", "text/plain2"))
		b.same(order{fields: []string{"Content-Type", "absent"}}, typed("absent"), typed("application/octet-stream", "application/json"))
		coded := func(c string) order { return order{fields: []string{"Content-Encoding", c}} }
		b.same(coded("gzip"), []order{coded("GZip")}, []order{{}, coded("br"), coded("gzip, gzip"), {fields: []string{"Content-Encoding", "gzip", "Content-Encoding", "gzip"}}})
		// Also while the first one is running.
		g := newGate(t)
		p := w.bench(t, setup{handler: func(http.ResponseWriter, *http.Request) { g.pass() }})
		a := p.begin(order{key: "k"})
		p.receive("the handler", g.entered)
		requireRefused(t, p.post("k", "Content-Type", "text/plain"), "key-reused")
		requireRefused(t, p.post("k", "Content-Encoding", "gzip"), "key-reused")
		g.release()
		a.wait()
		require.EqualValues(t, 1, p.runs.Load())
	})
}
