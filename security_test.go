package idempotent_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/internal/telemetry"
	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/redisstore"
	"github.com/idempotent-go/idempotent/storetest"
)

// These tests are attacks: SECURITY.md says what each of them may not reach.

var probeSilent = slog.New(slog.DiscardHandler)

// probeStores runs f over memory and over a real Redis.
func probeStores(t *testing.T, f func(t *testing.T, s idempotent.Store)) {
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		s := memstore.New(memstore.WithLogger(probeSilent))
		defer func() { require.NoError(t, s.Close()) }()
		f(t, s)
	})
	t.Run("Redis", func(t *testing.T) {
		t.Parallel()
		s, _ := probeRedis(t)
		f(t, s)
	})
}

// probeRedis returns a store on a server of its own, and a client of that.
func probeRedis(t *testing.T, config ...string) (*redisstore.Store, *redis.Client) {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: redistest.Start(t, config...).Addr})
	t.Cleanup(func() { _ = client.Close() })
	s := redisstore.New(client)
	t.Cleanup(func() { _ = s.Close() })
	return s, client
}

// probeUser is the principal: whoever the header X-User names.
func probeUser(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil }

// probe is a shop over HTTP that counts what its handler does.
type probe struct {
	*httptest.Server
	runs atomic.Int64
}

func newProbe(t *testing.T, s idempotent.Store, opts ...idempotent.HTTPOption) *probe {
	t.Helper()
	p := &probe{}
	guard := idempotent.New(s, idempotent.WithLogger(probeSilent))
	p.Server = httptest.NewUnstartedServer(guard.Middleware(probeUser, opts...)(http.HandlerFunc(p.handle)))
	p.Config.ErrorLog = slog.NewLogLogger(probeSilent.Handler(), slog.LevelDebug) // of planned panics
	p.Start()
	t.Cleanup(p.Close)
	return p
}

// handle answers with what only its caller may see. X-Act, which is no part of
// the fingerprint, makes it do something else.
func (p *probe) handle(w http.ResponseWriter, r *http.Request) {
	p.runs.Add(1)
	body, _ := io.ReadAll(r.Body)
	act := r.Header.Get("X-Act")
	if act == "panic" {
		panic(http.ErrAbortHandler)
	}
	status := http.StatusCreated
	if n, err := strconv.Atoi(act); err == nil {
		status = n
	}
	w.Header().Set("X-Private", "of "+r.Header.Get("X-User"))
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "%s %s %s %s %d", r.Header.Get("X-User"), r.Method, r.RequestURI, r.Header.Get("Idempotency-Key"), len(body))
}

// probeRequest is what one client sends.
type probeRequest struct {
	method, target, user, key, act, body string
	header                               http.Header
}

type probeAnswer struct {
	status   int
	header   http.Header
	body     string
	replayed bool
	code     string // of a problem document
}

func (p *probe) send(t *testing.T, in probeRequest) probeAnswer {
	t.Helper()
	if in.method == "" {
		in.method = http.MethodPost
	}
	if in.target == "" {
		in.target = "/orders"
	}
	req, err := http.NewRequestWithContext(t.Context(), in.method, p.URL+in.target, strings.NewReader(in.body))
	require.NoError(t, err)
	for name, values := range in.header {
		req.Header[name] = values
	}
	if req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("X-User", in.user)
	req.Header.Set("Idempotency-Key", in.key)
	req.Header.Set("X-Act", in.act)
	transport := &http.Transport{DisableCompression: true, DisableKeepAlives: true}
	res, err := transport.RoundTrip(req)
	if in.act == "panic" && err != nil {
		return probeAnswer{}
	}
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	a := probeAnswer{status: res.StatusCode, header: res.Header, body: string(body), replayed: res.Header.Get("Idempotent-Replayed") != ""}
	if res.Header.Get("Content-Type") == "application/problem+json" {
		var problem struct{ Code string }
		require.NoError(t, json.Unmarshal(body, &problem))
		a.code = problem.Code
	}
	return a
}

// B17: whatever Ada did with a key, Bob learns nothing of it: his answers are
// those that he would get if she had never used it.
func TestSecurityB17_OtherPrincipal(t *testing.T) {
	t.Parallel()
	states := []string{"", "201", "422", "429", "500", "panic", "in flight", "other body"}
	probeStores(t, func(t *testing.T, s idempotent.Store) {
		p := newProbe(t, s)
		for _, state := range states {
			t.Run(strings.ReplaceAll("after "+state, " ", "-"), func(t *testing.T) {
				used, free := "k-"+state+"-used", "k-"+state+"-free"
				used, free = strings.ReplaceAll(used, " ", "-"), strings.ReplaceAll(free, " ", "-")
				switch state {
				case "":
				case "in flight":
					_, claimed, err := s.Claim(t.Context(), idempotent.StoreKey("POST", "/orders", "ada", used),
						idempotent.Claim{Owner: "a", Fingerprint: "f", Trace: "trace of ada", Lease: time.Minute, Keep: time.Minute})
					require.NoError(t, err)
					require.True(t, claimed)
				case "other body":
					require.Equal(t, 201, p.send(t, probeRequest{user: "ada", key: used, body: `{"secret":1}`}).status)
				default:
					p.send(t, probeRequest{user: "ada", key: used, act: state, body: `{}`})
				}
				for _, in := range []probeRequest{
					{user: "bob", body: `{}`},
					{user: "bob", body: `{}`},
					{user: "bob", body: `{"n":2}`},
					{user: "bob", body: `{}`, act: "422", target: "/pay"},
					{user: "bob", body: `{}`, target: "/pay"},
				} {
					in.key = used
					got := p.send(t, in)
					in.key = free
					want := p.send(t, in)
					require.NotContains(t, got.body, "ada")
					require.NotContains(t, fmt.Sprint(got.header), "ada")
					got.body, want.body = strings.ReplaceAll(got.body, used, "k"), strings.ReplaceAll(want.body, free, "k")
					for _, h := range []http.Header{got.header, want.header} {
						h.Del("Date")
					}
					if got.code == "key-reused" { // shows when Bob's own claim was made
						got.body, want.body = "", ""
						got.header.Del("Content-Length")
						want.header.Del("Content-Length")
					}
					require.Equal(t, want, got)
				}
			})
		}
	})
}

// B14, B20, C060: requests that differ in principal, route, method or key, also
// where one borrows the separators and escapes of the other, never meet.
func TestSecurityB20_OtherRoute(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("l", 254)
	requests := []probeRequest{
		{user: "ada", key: "k"},
		{user: "ada", key: "k", method: "PATCH"},
		{user: "bob", key: "k"},
		{user: "Ada", key: "k"},
		{user: "ada", key: "K"},
		{user: "ada", key: "k", target: "/"},
		{user: "ada", key: "k", target: "//orders"},
		{user: "ada", key: "k", target: "/orders/"},
		{user: "ada", key: "k", target: "/Orders"},
		{user: "ada", key: "k", target: "/orders/../orders"},
		{user: "ada", key: "k", target: "/%6Frders"},
		{user: "ada", key: "k", target: "/orders/1"},
		{user: "ada", key: "k", target: "/orders%2F1"},
		{user: "ada", key: "k", target: "/orders%2f1"},
		{user: "ada", key: "k", target: "/orders%00"},
		{user: "ada", key: "k", target: "/orders;v=1"},
		{user: "ada", key: "k", target: "/orders:ada"},
		{user: "ada:k", key: "k"},
		{user: "ada", key: "k:k"},
		{user: "ada:k", key: "k", target: "/orders:ada"},
		{user: "ada%3Ak", key: "k"},
		{user: "ada", key: "k%3Ak"},
		{user: "ada", key: "k%253Ak"},
		{user: "{ada}", key: "k"},
		{user: "ada", key: "{k}"},
		{user: "!(ada!)", key: "k"},
		{user: "ada", key: "*"},
		{user: "ada", key: "#"},
		{user: "ada\u0301", key: "k"},
		{user: "ad\u00e1", key: "k"},
		{user: "ada", key: long + "a"},
		{user: "ada", key: long + "b"},
		{user: strings.Repeat("u", 2000) + "a", key: long + "a"},
		{user: strings.Repeat("u", 2000) + "b", key: long + "a"},
		{user: "ada", key: "k", target: "/" + strings.Repeat("p", 2000) + "a"},
		{user: "ada", key: "k", target: "/" + strings.Repeat("p", 2000) + "b"},
	}
	probeStores(t, func(t *testing.T, s idempotent.Store) {
		p := newProbe(t, s)
		first := make([]probeAnswer, len(requests))
		for i, in := range requests {
			in.body = `{}`
			first[i] = p.send(t, in)
			require.Equal(t, 201, first[i].status, "%+v: %s", in, first[i].body)
			require.False(t, first[i].replayed, "%+v is given the answer %q", in, first[i].body)
		}
		require.EqualValues(t, len(requests), p.runs.Load())
		for i, in := range requests {
			in.body = `{}`
			again := p.send(t, in)
			require.True(t, again.replayed)
			require.Equal(t, first[i].body, again.body)
		}
		require.EqualValues(t, len(requests), p.runs.Load())
	})
}

// B21: with one scope for all routes, another route is refused and shown
// nothing, whatever became of the first.
func TestSecurityB21_PrincipalScope(t *testing.T) {
	t.Parallel()
	probeStores(t, func(t *testing.T, s idempotent.Store) {
		p := newProbe(t, s, idempotent.WithPrincipalScope())
		for _, act := range []string{"201", "422", "500", "panic"} {
			p.send(t, probeRequest{user: "ada", key: act, act: act, body: `{}`})
			runs := p.runs.Load()
			for _, in := range []probeRequest{{target: "/orders/1"}, {target: "/pay"}, {method: "PATCH"}, {target: "/orders?x=1"}} {
				in.user, in.key, in.body = "ada", act, `{}`
				got := p.send(t, in)
				require.Equal(t, "key-reused", got.code)
				require.Empty(t, got.header.Get("X-Private"))
			}
			require.Equal(t, runs, p.runs.Load())
			require.Equal(t, 201, p.send(t, probeRequest{user: "bob", key: act, body: `{}`}).status)
		}
	})
}

// Rule 8: an entry copied under another name is refused, and says nothing.
func TestSecurityCopiedEntry(t *testing.T) {
	t.Parallel()
	s, client := probeRedis(t)
	p := newProbe(t, s)
	name := func(user, key string) string {
		return redisstore.DefaultPrefix + idempotent.StoreKey("POST", "/orders", user, key)
	}
	for _, state := range []string{"201", "422", "500", "panic", "pending", "lapsed"} {
		t.Run(state, func(t *testing.T) {
			lease := time.Minute
			switch state {
			case "lapsed":
				lease = idempotent.MinDuration
				fallthrough
			case "pending":
				_, _, err := s.Claim(t.Context(), idempotent.StoreKey("POST", "/orders", "ada", state),
					idempotent.Claim{Owner: "a", Lease: lease, Keep: time.Minute, TakeOver: true})
				require.NoError(t, err)
			default:
				p.send(t, probeRequest{user: "ada", key: state, act: state, body: `{}`})
			}
			copied, err := client.Copy(t.Context(), name("ada", state), name("bob", state), 0, false).Result()
			require.NoError(t, err)
			require.EqualValues(t, 1, copied)
			before := client.HGetAll(t.Context(), name("bob", state)).Val()
			runs := p.runs.Load()
			for _, prefer := range []string{"", "wait=1"} {
				got := p.send(t, probeRequest{user: "bob", key: state, body: `{}`, header: http.Header{"Prefer": {prefer}}})
				require.Equal(t, 500, got.status)
				require.Equal(t, "record-corrupt", got.code)
				require.NotContains(t, got.body+fmt.Sprint(got.header), "ada")
			}
			require.Equal(t, runs, p.runs.Load())
			require.Equal(t, before, client.HGetAll(t.Context(), name("bob", state)).Val(), "it is left for an operator")
		})
	}
}

// probeField is one field of a forged record.
type probeField struct {
	kind   int
	name   string
	values []string
}

// probeNumber and probeText write what a record consists of.
func probeNumber(n int) string {
	var b []byte
	for ; n >= 0x80; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return string(append(b, byte(n)))
}

func probeText(s string) string { return probeNumber(len(s)) + s }

// probeRecord forges the record of a response.
func probeRecord(status int, body string, fields ...probeField) string {
	b := "h\x01\x00" + probeNumber(status) + probeNumber(len(fields))
	for _, f := range fields {
		b += probeNumber(len(f.values)<<3|f.kind) + probeText(f.name)
		for _, v := range f.values {
			b += probeText(v)
		}
	}
	return b + probeText(strconv.Itoa(len(body))) + body
}

// Whoever writes the store cannot write header lines or break the framing of
// an answer: a record that would is no answer.
func TestSecurityForgedRecord(t *testing.T) {
	t.Parallel()
	s, client := probeRedis(t)
	p := newProbe(t, s)
	set := func(name string, values ...string) probeField { return probeField{0, name, values} }
	good := probeRecord(200, "forged", set("X-Forged", "yes"))
	for name, c := range map[string]struct {
		record string
		code   string // "": record-corrupt
		status int
	}{
		"one in order":              {record: good, status: 200},
		"CR LF in a name":           {record: probeRecord(200, "forged", set("X-Forged\r\nInjected", "v"))},
		"LF in a name":              {record: probeRecord(200, "forged", set("X-Forged\nInjected", "v"))},
		"a colon in a name":         {record: probeRecord(200, "forged", set("Injected: x", "v"))},
		"a space in a name":         {record: probeRecord(200, "forged", set("Injected x", "v"))},
		"no name":                   {record: probeRecord(200, "forged", set("", "v"))},
		"no ASCII in a name":        {record: probeRecord(200, "forged", set("X-Forged\u010aInjected", "v"))},
		"CR LF in a value":          {record: probeRecord(200, "forged", set("X-Forged", "v\r\nInjected: v"))},
		"CR LF twice in a value":    {record: probeRecord(200, "forged", set("X-Forged", "v\r\n\r\nInjected"))},
		"LF in a value":             {record: probeRecord(200, "forged", set("X-Forged", "v\nInjected: v"))},
		"CR in a value":             {record: probeRecord(200, "forged", set("X-Forged", "v\rInjected: v"))},
		"NUL in a value":            {record: probeRecord(200, "forged", set("X-Forged", "v\x00Injected"))},
		"in the second value":       {record: probeRecord(200, "forged", set("X-Forged", "v", "v\r\nInjected: v"))},
		"in a value that is added":  {record: probeRecord(200, "forged", probeField{1, "X-Forged", []string{"v\r\nInjected: v"}})},
		"in a name that is removed": {record: probeRecord(200, "forged", probeField{2, "X\r\nInjected: v", nil})},
		"in a trailer":              {record: probeRecord(200, "forged", probeField{3, "X-Forged", []string{"v\r\nInjected: v"}})},
		"in a trailer's name":       {record: probeRecord(200, "forged", probeField{4, "X\r\nInjected", []string{"v"}})},
		"status 0":                  {record: probeRecord(0, "forged")},
		"status 99":                 {record: probeRecord(99, "forged")},
		"status 100":                {record: probeRecord(100, "forged")},
		"status 101":                {record: probeRecord(101, "")},
		"status 199":                {record: probeRecord(199, "forged")},
		"status 1000":               {record: probeRecord(1000, "forged")},
		"status 2^31":               {record: probeRecord(1<<31, "forged")},
		"204 with a body":           {record: probeRecord(204, "forged")},
		"Transfer-Encoding":         {record: probeRecord(200, "forged", set("Transfer-Encoding", "gzip"))},
		"transfer-encoding":         {record: probeRecord(200, "forged", set("transfer-encoding", "chunked"))},
		"Content-Length added":      {record: probeRecord(200, "forged", probeField{1, "Content-Length", []string{"1"}})},
		"content-length":            {record: probeRecord(200, "forged", set("content-length", "1"))},
		"Connection":                {record: probeRecord(200, "forged", set("Connection", "X-Forged"))},
		"keep-alive":                {record: probeRecord(200, "forged", set("keep-alive", "v"))},
		"Upgrade":                   {record: probeRecord(200, "forged", set("Upgrade", "h2c"))},
		"TE":                        {record: probeRecord(200, "forged", set("TE", "trailers"))},
		"Trailer":                   {record: probeRecord(200, "forged", set("Trailer", "Content-Length"))},
		"Content-Length a trailer":  {record: probeRecord(200, "forged", probeField{4, "Content-Length", []string{"1"}})},
		"another kind of field":     {record: probeRecord(200, "forged", probeField{7, "X-Forged", []string{"v"}})},
		"flags":                     {record: "h\x01\xfe" + good[3:]},
		"a tombstone with a body":   {record: "h\x01\x01" + good[3:]},
		"cut":                       {record: good[:len(good)-1]},
		"longer":                    {record: good + "x"},
		"a billion fields":          {record: "h\x01\x00" + probeNumber(200) + probeNumber(1<<30)},
		"a billion values":          {record: "h\x01\x00" + probeNumber(200) + probeNumber(1) + probeNumber(1<<30)},
		"of a function":             {record: `j{"forged":1}`},
		"nothing":                   {record: ""},
		"of a later release":        {record: "h\x02" + good[2:], code: "store-unavailable", status: 503},
	} {
		t.Run(name, func(t *testing.T) {
			key := strings.NewReplacer(" ", "-", "^", "").Replace(name)
			require.Equal(t, 201, p.send(t, probeRequest{user: "ada", key: key, body: `{}`}).status)
			hash := redisstore.DefaultPrefix + idempotent.StoreKey("POST", "/orders", "ada", key)
			require.NoError(t, client.HSet(t.Context(), hash, "result", c.record).Err())
			runs := p.runs.Load()
			want := c.status
			if want == 0 {
				want, c.code = 500, "record-corrupt"
			}
			raw := p.raw(t, "POST /orders HTTP/1.1\r\nHost: x\r\nX-User: ada\r\nIdempotency-Key: "+key+
				"\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
			require.True(t, strings.HasPrefix(raw, fmt.Sprintf("HTTP/1.1 %d ", want)), raw)
			require.Contains(t, raw, c.code)
			require.NotContains(t, raw, "Injected")
			require.Equal(t, c.status == 200, strings.Contains(raw, "orged"), raw)
			require.Equal(t, runs, p.runs.Load())
		})
	}
}

// raw sends bytes and returns the bytes of the answer.
func (p *probe) raw(t *testing.T, request string) string {
	t.Helper()
	conn, err := net.Dial("tcp", p.Listener.Addr().String())
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	_, err = io.WriteString(conn, request)
	require.NoError(t, err)
	answer, err := io.ReadAll(bufio.NewReader(conn))
	require.NoError(t, err)
	return string(answer)
}

// The same for what a handler is brought to copy out of a request: neither its
// first answer nor a replay has the line.
func TestSecurityHandlerHeader(t *testing.T) {
	t.Parallel()
	s := memstore.New(memstore.WithLogger(probeSilent))
	defer func() { require.NoError(t, s.Close()) }()
	p := &probe{}
	guard := idempotent.New(s, idempotent.WithLogger(probeSilent))
	p.Server = httptest.NewServer(guard.Middleware(probeUser)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Location", "/"+string(body))
		w.Header().Set("X-Bad\r\nInjected", "v")
		w.Header()["Injected: v\r\nX"] = []string{"v"}
		w.WriteHeader(http.StatusSeeOther)
	})))
	t.Cleanup(p.Close)
	for _, body := range []string{"a\r\nInjected: v", "a\nInjected: v", "a\r\n\r\nInjected: v"} {
		request := fmt.Sprintf("POST /orders HTTP/1.1\r\nHost: x\r\nX-User: ada\r\nIdempotency-Key: k%d\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), len(body), body)
		for range 2 {
			raw := p.raw(t, request)
			require.True(t, strings.HasPrefix(raw, "HTTP/1.1 303 "), raw)
			for line := range strings.Lines(raw) {
				require.False(t, strings.HasPrefix(line, "Injected"), raw)
			}
		}
	}
}

// Bodies made to exhaust who reads them: each is answered, runs once, and is
// told from one that is almost the same.
func TestSecurityHostileBodies(t *testing.T) {
	t.Parallel()
	const most = 256 << 10
	nested := func(open, end string, n int) string { return strings.Repeat(open, n) + strings.Repeat(end, n) }
	fill := func(open, piece, end string) string {
		return open + strings.Repeat(piece, (most-len(open)-len(end))/len(piece)) + end
	}
	bodies := map[string]string{
		"deep arrays":         nested("[", "]", most/2),
		"deep objects":        nested(`{"a":`, "}", most/7),
		"never closed":        strings.Repeat("[", most),
		"never opened":        strings.Repeat("]", most),
		"a long number":       fill("[1", "9", "]"),
		"a huge exponent":     "1e999999999999999999",
		"a long text":         fill(`"`, "a", `"`),
		"a text of escapes":   fill(`"`, `\u0061`, `"`),
		"one name many times": fill("{", `"a":1,`, `"a":1}`),
		"many members": `{"a":0` + func() string {
			var b strings.Builder
			for i := range 20_000 {
				fmt.Fprintf(&b, `,"m%d":0`, i)
			}
			return b.String()
		}() + "}",
		"many small values":    fill("[", "0,", "0]"),
		"no UTF-8":             fill(`"`, "\xff\xfe", `"`),
		"lone surrogates":      fill(`"`, `\ud800`, `"`),
		"NULs":                 strings.Repeat("\x00", most),
		"blanks":               strings.Repeat(" ", most),
		"a mark of byte order": "\ufeff{}",
	}
	s := memstore.New(memstore.WithLogger(probeSilent))
	defer func() { require.NoError(t, s.Close()) }()
	p := newProbe(t, s, idempotent.WithMaxBody(most))
	for name, body := range bodies {
		t.Run(name, func(t *testing.T) {
			require.LessOrEqual(t, len(body), most)
			runs := p.runs.Load()
			in := probeRequest{user: "ada", key: strings.ReplaceAll(name, " ", "-"), body: body}
			first := p.send(t, in)
			require.Equal(t, 201, first.status)
			again := p.send(t, in)
			require.True(t, again.replayed)
			require.Equal(t, first.body, again.body)
			in.body = body[:len(body)-1] + "x"
			require.Equal(t, "key-reused", p.send(t, in).code)
			require.Equal(t, runs+1, p.runs.Load())
		})
	}
	for name, reader := range map[string]func(io.Reader) io.Reader{
		"one byte too many": func(r io.Reader) io.Reader { return r },
		"and no length":     func(r io.Reader) io.Reader { return struct{ io.Reader }{r} },
	} {
		t.Run(name, func(t *testing.T) {
			req := httptest.NewRequest(http.MethodPost, "/orders", reader(strings.NewReader(strings.Repeat("[", most+1))))
			req.Header.Set("X-User", "ada")
			req.Header.Set("Idempotency-Key", "large")
			answer := httptest.NewRecorder()
			runs := p.runs.Load()
			p.Config.Handler.ServeHTTP(answer, req)
			require.Equal(t, http.StatusRequestEntityTooLarge, answer.Code)
			_, found, err := s.Load(t.Context(), idempotent.StoreKey("POST", "/orders", "ada", "large"))
			require.NoError(t, err)
			require.False(t, found)
			require.Equal(t, runs, p.runs.Load())
		})
	}
}

// probeBomb returns a body that inflates to size bytes of zeros, a multiple of
// a mebibyte.
func probeBomb(t *testing.T, coding string, size int) string {
	t.Helper()
	if coding == "gzip" {
		// Members may stand one after another.
		return strings.Repeat(probeGzip(t, strings.Repeat("\x00", 1<<20)), size>>20)
	}
	var b bytes.Buffer
	w, err := zlib.NewWriterLevel(&b, zlib.BestSpeed)
	require.NoError(t, err)
	_, err = io.CopyN(w, probeZeros{}, int64(size))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.String()
}

func probeGzip(t *testing.T, plain string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := io.WriteString(w, plain)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.String()
}

type probeZeros struct{}

func (probeZeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// probeAllocated returns how many bytes f allocates. Nothing else may run.
func probeAllocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// C065, B27: a compressed body is compared and handed on as it is, and nothing
// of ours inflates it.
func TestSecurityC065_CompressedRequest(t *testing.T) {
	// Not parallel: it measures allocations.
	const size = 40 << 20
	s := memstore.New(memstore.WithLogger(probeSilent))
	defer func() { require.NoError(t, s.Close()) }()
	p := newProbe(t, s)
	for _, coding := range []string{"gzip", "deflate"} {
		bomb := probeBomb(t, coding, size)
		require.Less(t, len(bomb), idempotent.DefaultMaxBody)
		in := probeRequest{user: "ada", key: coding, body: bomb, header: http.Header{"Content-Encoding": {coding}}}
		var first, again probeAnswer
		allocated := probeAllocated(func() { first, again = p.send(t, in), p.send(t, in) })
		require.Equal(t, 201, first.status)
		require.Contains(t, first.body, strconv.Itoa(len(bomb)), "the handler reads what was sent")
		require.True(t, again.replayed)
		require.Less(t, allocated, uint64(size/10))
		in.header = nil
		require.Equal(t, "key-reused", p.send(t, in).code)
		in.header = http.Header{"Content-Encoding": {coding}}
		in.body = bomb[:len(bomb)-1]
		require.Equal(t, "key-reused", p.send(t, in).code)
	}
	require.EqualValues(t, 2, p.runs.Load())
}

// B52: a recorded answer that inflates without end is inflated up to a bound,
// and then its client is told that it cannot have it.
func TestSecurityB52_CompressedAnswer(t *testing.T) {
	// Not parallel: it measures allocations.
	const bound = 32 << 20
	bodies := map[string]string{
		"gzip":     probeBomb(t, "gzip", bound+1<<20),
		"deflate":  probeBomb(t, "deflate", bound+1<<20),
		"gzip, br": "no br",
	}
	bodies["gzip, gzip"] = probeGzip(t, bodies["gzip"])

	s := memstore.New(memstore.WithLogger(probeSilent))
	defer func() { require.NoError(t, s.Close()) }()
	p := &probe{}
	guard := idempotent.New(s, idempotent.WithLogger(probeSilent))
	p.Server = httptest.NewServer(guard.Middleware(probeUser)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		coding := r.Header.Get("X-Coding")
		w.Header().Set("Content-Encoding", coding)
		_, _ = io.WriteString(w, bodies[coding])
	})))
	t.Cleanup(p.Close)
	for coding, body := range bodies {
		t.Run(coding, func(t *testing.T) {
			in := probeRequest{user: "ada", key: strings.ReplaceAll(coding, ", ", "-"), header: http.Header{"X-Coding": {coding}, "Accept-Encoding": {coding}}}
			require.Equal(t, body, p.send(t, in).body)
			again := p.send(t, in)
			require.True(t, again.replayed)
			require.Equal(t, body, again.body)

			in.header.Set("Accept-Encoding", "identity")
			var plain probeAnswer
			allocated := probeAllocated(func() { plain = p.send(t, in) })
			require.Equal(t, "result-unavailable", plain.code)
			require.Empty(t, plain.header.Get("Content-Encoding"))
			require.Less(t, allocated, uint64(6*bound), "a buffer that doubles, up to the bound")
		})
	}
}

// probeTally is a store that notes the shape of each call: its step, and how
// many bytes went in and out.
type probeTally struct {
	idempotent.Store
	mu    sync.Mutex
	calls []string
}

func (s *probeTally) note(op string, sizes ...int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, fmt.Sprint(op, sizes))
}

func (s *probeTally) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = nil
	return calls
}

func (s *probeTally) Load(ctx context.Context, key string) (idempotent.Entry, bool, error) {
	e, found, err := s.Store.Load(ctx, key)
	s.note("load", len(key), probeSize(e))
	return e, found, err
}

func (s *probeTally) Claim(ctx context.Context, key string, c idempotent.Claim) (idempotent.Entry, bool, error) {
	e, claimed, err := s.Store.Claim(ctx, key, c)
	s.note("claim", len(key), len(c.Owner)+len(c.Fingerprint)+len(c.Trace), probeSize(e))
	return e, claimed, err
}

func (s *probeTally) Renew(ctx context.Context, key, owner string, lease time.Duration) error {
	s.note("renew", len(key), len(owner))
	return s.Store.Renew(ctx, key, owner, lease)
}

func (s *probeTally) Complete(ctx context.Context, key, owner string, o idempotent.Outcome) error {
	s.note("complete", len(key), len(owner), len(o.Result)+len(o.Fingerprint))
	return s.Store.Complete(ctx, key, owner, o)
}

func (s *probeTally) Release(ctx context.Context, key, owner string) error {
	s.note("release", len(key), len(owner))
	return s.Store.Release(ctx, key, owner)
}

func probeSize(e idempotent.Entry) int {
	return len(e.Key) + len(e.Status) + len(e.Result) + len(e.Fingerprint) + len(e.Owner) + len(e.Trace)
}

// probeConn counts what passes a connection.
type probeConn struct {
	net.Conn
	in, out *atomic.Int64
}

func (c probeConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.in.Add(int64(n))
	return n, err
}

func (c probeConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.out.Add(int64(n))
	return n, err
}

// B17: whether somebody else has used a key cannot be told by the work that it
// makes, which is all that a clock could measure: the store is asked the same
// steps, with the same number of bytes each way.
func TestSecurityB17_SameWork(t *testing.T) {
	t.Parallel()
	measure := func(t *testing.T, s idempotent.Store, take func() any) {
		tally := &probeTally{Store: s}
		p := newProbe(t, tally)
		bob := func(t *testing.T, key string) (work []any) {
			t.Helper()
			for _, in := range []probeRequest{
				{body: `{}`},
				{body: `{}`},
				{body: `{"n":2}`},
				{body: `{}`, act: "429", target: "/pay"},
				{body: `{}`, target: "/pay"},
			} {
				in.user, in.key = "bob", key
				tally.take()
				take()
				p.send(t, in)
				work = append(work, tally.take(), take())
			}
			return work
		}
		bob(t, "k-warm-0000") // scripts are loaded, connections made
		for i, state := range []string{"201", "422", "500", "panic", "pending"} {
			used, free := fmt.Sprintf("k-used-%04d", i), fmt.Sprintf("k-free-%04d", i)
			if state == "pending" {
				_, _, err := s.Claim(t.Context(), idempotent.StoreKey("POST", "/orders", "ada", used),
					idempotent.Claim{Owner: "a", Fingerprint: "f", Trace: "t", Lease: time.Minute, Keep: time.Minute})
				require.NoError(t, err)
			} else {
				p.send(t, probeRequest{user: "ada", key: used, act: state, body: `{}`})
			}
			want := bob(t, free)
			require.NotEmpty(t, want[0])
			require.Equal(t, want, bob(t, used), "after %s", state)
		}
	}
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		s := memstore.New(memstore.WithLogger(probeSilent))
		defer func() { require.NoError(t, s.Close()) }()
		measure(t, s, func() any { return nil })
	})
	t.Run("Redis", func(t *testing.T) {
		t.Parallel()
		var in, out atomic.Int64
		client := redis.NewClient(&redis.Options{
			Addr: redistest.Start(t).Addr, PoolSize: 1,
			Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
				return probeConn{c, &in, &out}, err
			},
		})
		t.Cleanup(func() { _ = client.Close() })
		s := redisstore.New(client)
		t.Cleanup(func() { _ = s.Close() })
		measure(t, s, func() any { return [2]int64{in.Swap(0), out.Swap(0)} })
	})
}

// probeLog collects every line that guard and stores log, at all levels.
type probeLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *probeLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *probeLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *probeLog) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// planted is in every principal, key, path, query, cookie, token, body, answer
// and error text of the scenarios below. No log line may have it.
const planted = "pl4nted"

func probePrincipal(*http.Request) (string, error) { return planted + "-user", nil }

// probeSecret returns a request full of secrets.
func probeSecret(key string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/"+planted+"-path?"+planted+"=query", strings.NewReader(`{"card":"`+planted+`-body"}`))
	r.Header.Set("Idempotency-Key", planted+"-"+key)
	r.Header.Set("Authorization", "Bearer "+planted+"-token")
	r.Header.Set("Cookie", "session="+planted+"-cookie")
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Request-Id", "trace-"+key)
	return r
}

func probeSecretName(key string) string {
	return idempotent.StoreKey(http.MethodPost, "/"+planted+"-path", planted+"-user", planted+"-"+key)
}

// probeSecretAnswer is what handlers answer.
func probeSecretAnswer(w http.ResponseWriter, status int) {
	w.Header().Set("Set-Cookie", "session="+planted+"-new-cookie")
	w.Header().Set("Location", "/"+planted+"-location")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, planted+"-answer")
}

func probeStatus(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { probeSecretAnswer(w, status) }
}

// probeReader is a body that cannot be read to its end.
type probeReader struct{ err error }

func (r probeReader) Read([]byte) (int, error) { return 0, r.err }

// requireNothingPlanted fails where log has a secret, or too few lines to show
// anything.
func requireNothingPlanted(t *testing.T, log *probeLog, want ...string) {
	t.Helper()
	text := log.String()
	for line := range strings.Lines(text) {
		require.NotContains(t, strings.ToLower(line), planted)
	}
	for _, w := range want {
		require.Contains(t, text, w)
	}
}

// C088: everything that can happen over memory, each with secrets in all its
// parts, and no line of any log shows one.
func TestSecurityC088_Logs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log probeLog
		var events eventLog
		mem := memstore.New(memstore.WithLogger(log.logger()), memstore.WithObserver(&events), memstore.WithMaxEntries(40))
		s := storetest.NewFaulty(mem)
		guard := idempotent.New(s, idempotent.WithLogger(log.logger()), idempotent.WithObserver(&events), idempotent.WithLease(time.Minute))
		serve := func(g *idempotent.Guard, key string, h http.HandlerFunc, opts ...idempotent.HTTPOption) int {
			w := httptest.NewRecorder()
			g.Middleware(probePrincipal, opts...)(h).ServeHTTP(w, probeSecret(key))
			return w.Code
		}
		// A store that writes down all it knows when it fails.
		failure := func(_ context.Context, key string) error {
			return fmt.Errorf("cannot reach %s: key %q of %s", key, key, strings.ToUpper("host")+key)
		}

		// Ends of every kind, each with a repeat.
		for key, status := range map[string]int{"201": 201, "422": 422, "500": 500, "429": 429, "408": 408} {
			require.Equal(t, status, serve(guard, key, probeStatus(status)))
			serve(guard, key, probeStatus(status))
		}
		for range 2 {
			func() {
				defer func() { _ = recover() }()
				serve(guard, "panic", func(http.ResponseWriter, *http.Request) { panic(planted + "-panic") })
			}()
		}
		other := probeSecret("201")
		other.Body, other.ContentLength = io.NopCloser(strings.NewReader(planted+"-other-body")), -1
		guard.Middleware(probePrincipal)(probeStatus(201)).ServeHTTP(httptest.NewRecorder(), other)

		// Requests that are refused before anything is claimed.
		wrong := map[string]func(r *http.Request){
			"no key":      func(r *http.Request) { r.Header.Del("Idempotency-Key") },
			"two keys":    func(r *http.Request) { r.Header.Add("Idempotency-Key", planted+"-two") },
			"a bad key":   func(r *http.Request) { r.Header.Set("Idempotency-Key", `"`+planted) },
			"a long key":  func(r *http.Request) { r.Header.Set("Idempotency-Key", strings.Repeat(planted, 100)) },
			"cut":         func(r *http.Request) { r.ContentLength = 1000 },
			"unreadable":  func(r *http.Request) { r.Body = io.NopCloser(probeReader{errors.New("bad byte in " + planted)}) },
			"interrupted": func(r *http.Request) { r.Body = io.NopCloser(probeReader{io.ErrUnexpectedEOF}) },
			"wrapped": func(r *http.Request) {
				r.Body = io.NopCloser(probeReader{fmt.Errorf("%s: %w", planted, &net.OpError{Op: "read", Err: errors.New(planted)})})
			},
			"too large": func(r *http.Request) { r.ContentLength = 1 << 40 },
		}
		for _, spoil := range wrong {
			r := probeSecret("wrong")
			spoil(r)
			guard.Middleware(probePrincipal)(probeStatus(201)).ServeHTTP(httptest.NewRecorder(), r)
		}
		bad := fmt.Errorf("user %s: %w", planted, errors.New("token "+planted))
		for _, p := range []idempotent.PrincipalFunc{
			func(*http.Request) (string, error) { return "", bad },
			func(*http.Request) (string, error) {
				return planted, fmt.Errorf("%w: %w", idempotent.ErrUnauthenticated, bad)
			},
			func(*http.Request) (string, error) { return "", errors.Join(bad, bad) },
		} {
			guard.Middleware(p)(probeStatus(201)).ServeHTTP(httptest.NewRecorder(), probeSecret("principal"))
		}
		for _, o := range []idempotent.HTTPOption{
			idempotent.WithKeyFunc(func(_ *http.Request, body []byte) (string, error) { return "", fmt.Errorf("in %s", body) }),
			idempotent.WithKeyFunc(func(_ *http.Request, body []byte) (string, error) { return "", json.Unmarshal(body, new(int)) }),
			idempotent.WithKeyPolicy(func(key string) error { return errors.New(key) }),
			idempotent.WithFingerprint(func(_ *http.Request, body []byte) (string, error) { return "", fmt.Errorf("in %s", body) }),
		} {
			require.Equal(t, 400, serve(guard, "function", probeStatus(201), o))
		}
		unkeyed := probeSecret("unkeyed")
		unkeyed.Header.Del("Idempotency-Key")
		guard.Middleware(probePrincipal, idempotent.WithOptionalKey())(probeStatus(201)).ServeHTTP(httptest.NewRecorder(), unkeyed)

		// A recorded answer that does not suit, and one that cannot be read.
		gz := func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "br")
			probeSecretAnswer(w, 200)
		}
		serve(guard, "coding", gz)
		coding := probeSecret("coding")
		coding.Header.Set("Accept-Encoding", "identity")
		guard.Middleware(probePrincipal)(probeStatus(201)).ServeHTTP(httptest.NewRecorder(), coding)
		serve(guard, "record", probeStatus(500))
		e, _, err := s.Load(t.Context(), probeSecretName("record"))
		require.NoError(t, err)
		require.NoError(t, guard.Resolve(t.Context(), e.Key, e.Owner, idempotent.ClassSuccess, planted+"-result"))
		require.Equal(t, 500, serve(guard, "record", probeStatus(500)))

		// Duplicates while an operation runs: refused, waiting, and left alone
		// by the store.
		var running sync.WaitGroup
		goOn := make(chan struct{})
		running.Go(func() {
			serve(guard, "slow", func(w http.ResponseWriter, _ *http.Request) { <-goOn; probeSecretAnswer(w, 201) })
		})
		synctest.Wait()
		require.Equal(t, 409, serve(guard, "slow", probeStatus(201)))
		s.Before(storetest.OpWait, failure)
		serve(guard, "slow", probeStatus(201), idempotent.WithWait(time.Second))
		s.Before(storetest.OpWait, nil)
		require.Equal(t, 409, serve(guard, "slow", probeStatus(201), idempotent.WithWait(time.Second)))
		close(goOn)
		running.Wait()

		// Leases: one that runs long, one that is lost, one whose renewals
		// fail, one abandoned, one taken over.
		serve(guard, "long", func(w http.ResponseWriter, _ *http.Request) { time.Sleep(11 * time.Minute); probeSecretAnswer(w, 201) })
		serve(guard, "lost", func(w http.ResponseWriter, r *http.Request) {
			require.NoError(t, idempotent.Delete(t.Context(), s, probeSecretName("lost")))
			<-r.Context().Done()
			probeSecretAnswer(w, 201)
		})
		s.Before(storetest.OpRenew, failure)
		serve(guard, "unrenewed", func(w http.ResponseWriter, _ *http.Request) { time.Sleep(time.Minute); probeSecretAnswer(w, 201) })
		s.Before(storetest.OpRenew, nil)
		takeOver := guard.With(idempotent.WithTakeOver())
		for _, g := range []*idempotent.Guard{guard, takeOver} {
			s.Before(storetest.OpComplete, failure)
			serve(g, "abandoned", probeStatus(201)) // not recorded
			time.Sleep(5 * time.Minute)
			s.Before(storetest.OpComplete, nil)
			serve(g, "abandoned", probeStatus(201))
			require.NoError(t, idempotent.Delete(t.Context(), s, probeSecretName("abandoned")))
		}

		// The store refuses, in its own words.
		for _, sentinel := range []error{
			idempotent.ErrFull, idempotent.ErrCorrupt, idempotent.ErrNewerFormat, idempotent.ErrClosed, idempotent.ErrInvalid, idempotent.ErrLost,
		} {
			refusal := func(_ context.Context, key string) error { return fmt.Errorf("%w: %s", sentinel, key) }
			s.Before(storetest.OpClaim, refusal)
			serve(guard, "refused", probeStatus(201))
			s.Before(storetest.OpClaim, nil)
			s.Before(storetest.OpComplete, refusal)
			serve(guard, "unrecorded", probeStatus(201))
			s.Before(storetest.OpComplete, nil)
			time.Sleep(5 * time.Minute)
		}

		// The store is away: an outage is summed up, and ends.
		for _, op := range []storetest.Op{storetest.OpClaim, storetest.OpRelease, storetest.OpComplete, storetest.OpLoad} {
			s.Before(op, failure)
		}
		for range 3 {
			require.Equal(t, 503, serve(guard, "away", probeStatus(201)))
			time.Sleep(2 * time.Minute)
		}
		require.Error(t, guard.Do(t.Context(), planted+"\n\"in quotes\"", func(context.Context) error { return nil }))
		require.Error(t, guard.Resolve(t.Context(), probeSecretName("away"), "o", idempotent.ClassRelease, ""))
		for _, op := range []storetest.Op{storetest.OpClaim, storetest.OpRelease, storetest.OpComplete, storetest.OpLoad} {
			s.Before(op, nil)
		}
		require.Equal(t, 201, serve(guard, "back", probeStatus(201)))

		// Functions: errors and results with secrets.
		for _, fail := range []error{nil, bad, fmt.Errorf("%w: %w", idempotent.ErrFailed, bad), fmt.Errorf("%w: %w", idempotent.ErrReleased, bad)} {
			for range 2 {
				_, _ = idempotent.Do(t.Context(), guard, idempotent.Key(planted, fmt.Sprint(fail)), func(context.Context) (string, error) { return planted, fail })
			}
		}
		_ = guard.Do(t.Context(), idempotent.Key(planted, "<nil>"), func(context.Context) error { return nil })

		// Many keys: finished ones go before their time.
		for i := range 200 {
			serve(guard, fmt.Sprint("many", i), probeStatus(201))
		}
		_, err = mem.Sweep(t.Context())
		require.NoError(t, err)
		time.Sleep(48 * time.Hour)
		_, err = mem.Sweep(t.Context())
		require.NoError(t, err)

		require.NoError(t, guard.Drain(t.Context()))
		require.Equal(t, 503, serve(guard, "drained", probeStatus(201)))
		require.NoError(t, mem.Close())
		serve(guard, "closed", probeStatus(201))

		requireNothingPlanted(t, &log,
			"the principal function failed", "the key function failed", "the body has no fingerprint", "the body could not be read",
			`err="unexpected EOF"`, "store does not answer", "store answers again", "does not suit this client",
			"cannot reach "+idempotent.LogKey(probeSecretName("away")), `err="*fmt.wrapError: *net.OpError: *errors.errorString"`)
		kinds := events.kinds()
		for _, kind := range telemetry.Kinds {
			require.Contains(t, kinds, kind)
		}
		seen := append(probeLogKeys(log.String()), "snapshot") // that one is logged at the start of a store alone
		require.ElementsMatch(t, manualLogKeys(t), seen, "the keys of attributes are part of the contract: they stand in doc.go")
	})
}

var (
	probeQuoted = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	probeKey    = regexp.MustCompile(`(?:^| )([^ =]+)=`)
)

// probeLogKeys returns the keys of all attributes in lines of slog's text, in
// order.
func probeLogKeys(text string) []string {
	keys := map[string]bool{}
	for line := range strings.Lines(probeQuoted.ReplaceAllString(text, "")) {
		for _, m := range probeKey.FindAllStringSubmatch(line, -1) {
			keys[m[1]] = true
		}
	}
	return slices.Sorted(maps.Keys(keys))
}

// manualLogKeys returns the keys that the manual lists, in order, and those of
// slog itself.
func manualLogKeys(t *testing.T) []string {
	t.Helper()
	manual, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(manual), "\n// # Log lines\n")
	require.True(t, found)
	section, _, found = strings.Cut(section, "\n// # ")
	require.True(t, found)
	keys := []string{slog.TimeKey, slog.LevelKey, slog.MessageKey}
	for _, m := range regexp.MustCompile(`(?m)^//\t([a-z_]+) `).FindAllStringSubmatch(section, -1) {
		keys = append(keys, m[1])
	}
	slices.Sort(keys)
	return keys
}

// The same over Redis, whose errors are made by a server and by a client that
// know nothing of secrets.
func TestSecurityC088_RedisLogs(t *testing.T) {
	t.Parallel()
	var log probeLog
	visit := func(t *testing.T, s idempotent.Store, keys ...string) {
		guard := idempotent.New(s, idempotent.WithLogger(log.logger()), idempotent.WithLease(time.Second), idempotent.WithStoreTimeout(100*time.Millisecond))
		for _, key := range keys {
			for _, status := range []int{201, 500, 429} {
				r := probeSecret(key)
				r.Header.Set("Prefer", "wait=1")
				guard.Middleware(probePrincipal)(probeStatus(status)).ServeHTTP(httptest.NewRecorder(), r)
			}
		}
		// Releases in the background go on until the store is closed.
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			require.NoError(t, s.(io.Closer).Close())
			require.NoError(t, guard.Drain(ctx))
		})
	}
	open := func(t *testing.T, addr string) *redisstore.Store {
		client := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1, Protocol: 2})
		t.Cleanup(func() { _ = client.Close() })
		s := redisstore.New(client)
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	t.Run("scenarios", func(t *testing.T) {
		t.Run("records that cannot be read", func(t *testing.T) {
			t.Parallel()
			s, client := probeRedis(t)
			visit(t, s, "foreign", "newer", "garbage", "type", "forged")
			name := func(key string) string { return redisstore.DefaultPrefix + probeSecretName(key) }
			ctx := t.Context()
			require.NoError(t, client.Copy(ctx, name("newer"), name("foreign"), 0, true).Err())
			claim := client.HGet(ctx, name("newer"), "claim").Val()
			require.NoError(t, client.HSet(ctx, name("newer"), "claim", "2"+claim[1:]).Err())
			require.NoError(t, client.HSet(ctx, name("garbage"), "time", planted, "claim", "1 "+planted).Err())
			require.NoError(t, client.Set(ctx, name("type"), planted, time.Hour).Err())
			require.NoError(t, client.HSet(ctx, name("forged"), "result", planted).Err())
			visit(t, s, "foreign", "newer", "garbage", "type", "forged")
		})
		for name, config := range map[string][]string{
			"a server that repeats what it does not know": {"--rename-command", "EVALSHA", "", "--rename-command", "EVAL", ""},
			"a server without HSET":                       {"--rename-command", "HSET", ""},
			"a full server":                               {"--maxmemory", "1"},
			"too few replicas":                            {"--min-replicas-to-write", "3"},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s, _ := probeRedis(t, config...)
				visit(t, s, "k")
				_, _ = s.Check(t.Context())
			})
		}
		t.Run("a user who may do nothing", func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			_, err := server.Do("ACL", "SETUSER", "default", "resetkeys", "~"+planted, "-hset")
			require.NoError(t, err)
			visit(t, open(t, server.Addr), "k")
		})
		t.Run("away", func(t *testing.T) {
			t.Parallel()
			relay := redistest.NewRelay(t, redistest.Start(t).Addr)
			s := open(t, relay.Addr)
			visit(t, s, "before")
			relay.Cut()
			visit(t, s, "away")
			relay.Mend()
			relay.Stall()
			visit(t, s, "stalled")
		})
		for name, answer := range map[string]string{
			"a proxy that names the hash":  "-ERR no shard has %s",
			"the middle of a record":       "1 4 5 6 7 " + planted + "-body",
			"a record where no one was":    "$5\r\n%s",
			"an answer that is no text":    "*1\r\n+%s",
			"an answer that is none of us": "+%s",
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f := redistest.NewFake(t, func([]string) string {
					return strings.Replace(answer, "%s", redisstore.DefaultPrefix+probeSecretName("k"), 1)
				})
				visit(t, open(t, f.Addr), "k")
			})
		}
	})
	want := []string{"store does not answer"}
	if redistest.Installed() { // or those scenarios have been skipped
		want = append(want, "unknown command 'evalsha'", "lacks a permission", "entry corrupt", "newer release")
	}
	requireNothingPlanted(t, &log, want...)
}
