package idempotent

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// responseTestGolden are records whose encoded form never changes: stores hold
// them.
var responseTestGolden = []struct {
	name   string
	record responseRecord
}{
	{"empty", responseRecord{status: 200}},
	{"created", responseRecord{status: 201, body: `{"id":7}`, fields: []responseField{
		{name: "Content-Type", values: []string{"application/json"}},
		{name: "Link", values: []string{"<a>", "<b>"}},
		{name: "Location", values: []string{"/orders/7"}},
	}}},
	{"every kind", responseRecord{status: 200, body: "x\x00\xff\n", fields: []responseField{
		{name: "Date"},
		{name: "Vary", values: []string{"Accept"}, kind: responseAdd},
		{name: "X-Gone", kind: responseRemove},
		{name: "x-lower", values: []string{""}},
		{name: "X-More", values: []string{"2"}, kind: responseTrailerUn},
		{name: "X-Sum", values: []string{"1", "caf\xe9"}, kind: responseTrailer},
	}}},
	{"long", responseRecord{status: 999, body: strings.Repeat("0123456789", 13), fields: []responseField{
		{name: "X-Long", values: []string{strings.Repeat("v", 200)}},
	}}},
	{"tombstone", responseRecord{status: 202, unreplayable: true, fields: []responseField{
		{name: "Location", values: []string{"/orders/7"}},
	}}},
	{"tombstone of a hijacked connection", responseRecord{status: 101, unreplayable: true}},
}

func TestResponse_Golden(t *testing.T) {
	t.Parallel()
	file, err := os.Open("testdata/response.golden")
	require.NoError(t, err)
	defer file.Close()
	want := map[string]string{}
	for in := bufio.NewScanner(file); in.Scan(); {
		name, quoted, ok := strings.Cut(in.Text(), ": ")
		if strings.HasPrefix(name, "#") || !ok {
			continue
		}
		want[name], err = strconv.Unquote(quoted)
		require.NoError(t, err)
	}
	require.Len(t, want, len(responseTestGolden))
	for _, g := range responseTestGolden {
		got := g.record.encode([]byte(g.record.body))
		require.Equal(t, want[g.name], got, "%s: %s", g.name, strconv.QuoteToASCII(got))
		decoded, err := decodeResponse(want[g.name], new(responseRoom))
		require.NoError(t, err)
		responseTestEqual(t, g.record, decoded)
	}
}

// responseTestEqual compares what records say.
func responseTestEqual(t testing.TB, want, got responseRecord) {
	t.Helper()
	require.Equal(t, want.status, got.status)
	require.Equal(t, want.unreplayable, got.unreplayable)
	require.Equal(t, want.body, got.body)
	require.Equal(t, strconv.Itoa(len(want.body)), got.length)
	require.Len(t, got.fields, len(want.fields))
	for i, w := range want.fields {
		g := got.fields[i]
		require.Equal(t, w.name, g.name)
		require.Equal(t, w.kind, g.kind)
		require.Equal(t, append([]string{}, w.values...), append([]string{}, g.values...))
	}
}

func TestResponse_RoundTrip(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	text := func(alphabet string, most int) string {
		b := make([]byte, r.IntN(most+1))
		for i := range b {
			if alphabet == "" {
				b[i] = byte(r.IntN(256))
			} else {
				b[i] = alphabet[r.IntN(len(alphabet))]
			}
		}
		return string(b)
	}
	for range 500 {
		want := responseRecord{status: 200 + r.IntN(800), unreplayable: r.IntN(4) == 0}
		if !want.unreplayable && responseHasContent(want.status) {
			want.body = text("", 1<<r.IntN(12))
		}
		for range r.IntN(20) {
			f := responseField{name: "X" + text("abcXYZ09-_.!#~", 200), kind: responseKind(r.IntN(5))}
			if f.kind != responseRemove {
				for range 1 + r.IntN(4) {
					f.values = append(f.values, responseBreaks.Replace(text("", 300)))
				}
			}
			want.fields = append(want.fields, f)
		}
		got, err := decodeResponse(want.encode([]byte(want.body)), new(responseRoom))
		require.NoError(t, err)
		responseTestEqual(t, want, got)
	}
}

func TestB80_UnreadableRecords(t *testing.T) {
	t.Parallel()
	field := func(head int, name string, values ...string) string {
		var out responseWriter
		out.WriteString("h\x01\x00\xc8\x01\x01")
		out.number(head)
		out.text(name)
		for _, v := range values {
			out.text(v)
		}
		return out.String() + "\x010"
	}
	_, err := decodeResponse(field(1<<3, "X-A", "b"), new(responseRoom))
	require.NoError(t, err)

	for name, s := range map[string]string{
		"empty":                    "",
		"another encoding":         "j\x01\x00\xc8\x01\x00\x010",
		"format 0":                 "h\x00\x00\xc8\x01\x00\x010",
		"unknown flag":             "h\x01\x02\xc8\x01\x00\x010",
		"status 0":                 "h\x01\x00\x00\x00\x010",
		"status 199":               "h\x01\x00\xc7\x01\x00\x010",
		"status 1000":              "h\x01\x00\xe8\x07\x00\x010",
		"status 101 with a replay": "h\x01\x00\x65\x00\x010",
		"long form of a number":    "h\x01\x00\xc8\x81\x00\x00\x010",
		"endless number":           "h\x01\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
		"body too short":           "h\x01\x00\xc8\x01\x00\x012a",
		"body too long":            "h\x01\x00\xc8\x01\x00\x011ab",
		"length with a sign":       "h\x01\x00\xc8\x01\x00\x02+1a",
		"length with a zero":       "h\x01\x00\xc8\x01\x00\x0201a",
		"no length":                "h\x01\x00\xc8\x01\x00\x00",
		"204 with a body":          "h\x01\x00\xcc\x01\x00\x011a",
		"205 with a body":          "h\x01\x00\xcd\x01\x00\x011a",
		"tombstone with a body":    "h\x01\x01\xc8\x01\x00\x011a",
		"more fields than bytes":   "h\x01\x00\xc8\x01\x7f\x08\x01a\x01b\x010",
		"name longer than input":   "h\x01\x00\xc8\x01\x01\x08\x7fa",
		"more values than bytes":   field(1<<20, "X-A"),
		"empty name":               field(0, ""),
		"name with a space":        field(0, "X A"),
		"name with a colon":        field(0, "Trailer:X"),
		"name beyond ASCII":        field(0, "X\xc1"),
		"value with CR":            field(1<<3, "X-A", "a\rb"),
		"value with LF":            field(1<<3, "X-A", "a\nb"),
		"value with NUL":           field(1<<3, "X-A", "a\x00b"),
		"added without value":      field(int(responseAdd), "X-A"),
		"removed with value":       field(1<<3|int(responseRemove), "X-A", "b"),
		"trailer without value":    field(int(responseTrailer), "X-A"),
		"unannounced without":      field(int(responseTrailerUn), "X-A"),
		"unknown kind":             field(5, "X-A"),
	} {
		_, err := decodeResponse(s, new(responseRoom))
		require.ErrorIs(t, err, ErrCorrupt, name)
		require.True(t, strings.HasPrefix(err.Error(), "idempotent: "), name)
	}

	for _, g := range responseTestGolden {
		whole := g.record.encode([]byte(g.record.body))
		for n := range whole {
			_, err := decodeResponse(whole[:n], new(responseRoom))
			require.ErrorIs(t, err, ErrCorrupt, "%s cut to %d bytes", g.name, n)
		}
		_, err := decodeResponse(whole+"x", new(responseRoom))
		require.ErrorIs(t, err, ErrCorrupt)
	}

	for _, s := range []string{"h\x02", "h\x02\x00\xc8\x01\x00\x010", "h\xffanything"} {
		_, err := decodeResponse(s, new(responseRoom))
		require.ErrorIs(t, err, ErrNewerFormat)
		require.NotErrorIs(t, err, ErrCorrupt)
	}
}

func FuzzDecodeResponse(f *testing.F) {
	for _, g := range responseTestGolden {
		f.Add(g.record.encode([]byte(g.record.body)))
	}
	f.Add("h\x02")
	f.Fuzz(func(t *testing.T, s string) {
		record, err := decodeResponse(s, new(responseRoom))
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewerFormat) {
				t.Fatalf("error %v", err)
			}
			return
		}
		again := record.encode([]byte(record.body))
		if again != s {
			t.Fatalf("decoded %q, encoded %q", s, again)
		}
		if record.unreplayable {
			return
		}
		body := record.body
		w := httptest.NewRecorder()
		req := httptest.NewRequest("POST", "/", nil)
		req.Header.Set("Accept-Encoding", "*")
		if err := record.replay(w, req); err != nil {
			t.Fatalf("replay of %q: %v", s, err)
		}
		if w.Code != record.status || w.Body.String() != body {
			t.Fatalf("replay of %q: status %d, body %q", s, w.Code, w.Body)
		}
	})
}

func TestEncodeResponse(t *testing.T) {
	t.Parallel()
	h := http.Header{
		"Location":       {"/orders/7"},
		"Set-Cookie":     {"a=b"},
		"Content-Length": {"99"},
		"Connection":     {"X-Hop"},
		"X-Hop":          {"1"},
		"Link":           {"<a>", "<b>"},
		"Date":           {"now"},
	}
	s, err := EncodeResponse(201, h, []byte(`<html>`))
	require.NoError(t, err)
	h["Link"][0] = "changed"

	w := httptest.NewRecorder()
	record, err := decodeResponse(s, new(responseRoom))
	require.NoError(t, err)
	require.NoError(t, record.replay(w, httptest.NewRequest("POST", "/", nil)))
	require.Equal(t, 201, w.Code)
	require.Equal(t, "<html>", w.Body.String())
	require.Equal(t, http.Header{
		"Content-Type":        {"text/html; charset=utf-8"},
		"Content-Length":      {"6"},
		"Location":            {"/orders/7"},
		"Link":                {"<a>", "<b>"},
		"Idempotent-Replayed": {"true"},
	}, w.Result().Header)

	again, err := EncodeResponse(201, http.Header{"Location": {"/orders/7"}, "Link": {"<a>", "<b>"}}, []byte("<html>"))
	require.NoError(t, err)
	require.Equal(t, again, s, "equal responses have one form")

	_, err = EncodeResponse(204, nil, nil)
	require.NoError(t, err)

	for name, call := range map[string]func() (string, error){
		"status 0":          func() (string, error) { return EncodeResponse(0, nil, nil) },
		"status 101":        func() (string, error) { return EncodeResponse(101, nil, nil) },
		"status 1000":       func() (string, error) { return EncodeResponse(1000, nil, nil) },
		"204 with a body":   func() (string, error) { return EncodeResponse(204, nil, []byte("x")) },
		"205 with a body":   func() (string, error) { return EncodeResponse(205, nil, []byte("x")) },
		"304 with a body":   func() (string, error) { return EncodeResponse(304, nil, []byte("x")) },
		"name":              func() (string, error) { return EncodeResponse(200, http.Header{"X A": {"1"}}, nil) },
		"name of a trailer": func() (string, error) { return EncodeResponse(200, http.Header{"Trailer:X": {"1"}}, nil) },
		"value":             func() (string, error) { return EncodeResponse(200, http.Header{"X-A": {"1\n2"}}, nil) },
	} {
		s, err := call()
		require.ErrorIs(t, err, ErrInvalid, name)
		require.Empty(t, s, name)
	}
}

func responseTestGzip(s string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	io.WriteString(w, s)
	w.Close()
	return b.String()
}

func responseTestZlib(s string) string {
	var b bytes.Buffer
	w := zlib.NewWriter(&b)
	io.WriteString(w, s)
	w.Close()
	return b.String()
}

func TestB52_CodingTheRequestDoesNotAccept(t *testing.T) {
	t.Parallel()
	const plain = "<html>plain</html>"
	zipped, deflated := responseTestGzip(plain), responseTestZlib(plain)
	const absent = "-"
	for _, c := range []struct {
		coding, body, accept string
		want                 string // body; "" is errNotAcceptable
		wantCoding           string
	}{
		{"gzip", zipped, "gzip", zipped, "gzip"},
		{"gzip", zipped, "deflate, GZIP;q=0.1", zipped, "gzip"},
		{"gzip", zipped, "x-gzip", zipped, "gzip"},
		{"x-gzip", zipped, "gzip", zipped, "x-gzip"},
		{"gzip", zipped, "*", zipped, "gzip"},
		{"gzip", zipped, "br, *;q=0.5", zipped, "gzip"},
		{"gzip", zipped, absent, plain, ""},
		{"gzip", zipped, "", plain, ""},
		{"gzip", zipped, "br", plain, ""},
		{"gzip", zipped, "identity", plain, ""},
		{"gzip", zipped, "gzip;q=0", plain, ""},
		{"gzip", zipped, "gzip; Q=0.000, *", plain, ""},
		{"gzip", zipped, "*, gzip;q=0", plain, ""},
		{"gzip", zipped, "*;q=0, gzip", zipped, "gzip"},
		{"gzip", zipped, "gzip;q=x", plain, ""},
		{"gzip", zipped, "br, *;q=0", "", ""},
		{"gzip", zipped, "identity;q=0", "", ""},
		{"deflate", deflated, "gzip", plain, ""},
		{"deflate", deflated, "deflate", deflated, "deflate"},
		{"GZIP", zipped, absent, plain, ""},
		{"identity", plain, absent, plain, "identity"},
		{"identity", plain, "gzip", plain, "identity"},
		{"identity", plain, "identity;q=0", "", ""},
		{"identity, gzip", zipped, "br", plain, "identity"},
		{"br", "brotli", "gzip", "", ""},
		{"br", "brotli", "", "", ""},
		{"br", "brotli", absent, "brotli", "br"},
		{"br", "brotli", "br", "brotli", "br"},
		{"gzip", "broken", "br", "", ""},
		{"gzip", zipped[:len(zipped)-4], "br", "", ""},
		{"gzip", zipped + "tail", "br", "", ""},
		{"gzip", "broken", absent, "broken", "gzip"},
		{"deflate, gzip", responseTestGzip(deflated), absent, plain, ""},
		{"deflate, gzip", responseTestGzip(deflated), "deflate", deflated, "deflate"},
		{"br, gzip", responseTestGzip("brotli"), "br", "brotli", "br"},
		{"br, gzip", responseTestGzip("brotli"), "gzip", "", ""},
		{"br, gzip", responseTestGzip("brotli"), absent, responseTestGzip("brotli"), "br, gzip"},
	} {
		t.Run(fmt.Sprintf("%s as %q, accepted %q", c.coding, c.body[:min(9, len(c.body))], c.accept), func(t *testing.T) {
			t.Parallel()
			s, err := EncodeResponse(200, http.Header{
				"Content-Encoding": {c.coding},
				"Content-Type":     {"text/html"},
				"Etag":             {`"strong"`},
				"Content-Md5":      {"md5"},
				"Content-Digest":   {"cd"},
				"Repr-Digest":      {"rd"},
				"Digest":           {"d"},
				"X-Other":          {"1"},
			}, []byte(c.body))
			require.NoError(t, err)
			record, err := decodeResponse(s, new(responseRoom))
			require.NoError(t, err)
			req := httptest.NewRequest("POST", "/", nil)
			if c.accept != absent {
				req.Header.Set("Accept-Encoding", c.accept)
			}
			w := httptest.NewRecorder()
			err = record.replay(w, req)
			if c.want == "" {
				require.ErrorIs(t, err, errNotAcceptable)
				require.Empty(t, w.Header())
				require.Zero(t, w.Body.Len())
				return
			}
			require.NoError(t, err)
			got := w.Result().Header
			require.Equal(t, c.want, w.Body.String())
			require.Equal(t, c.wantCoding, got.Get("Content-Encoding"))
			require.Equal(t, strconv.Itoa(len(c.want)), got.Get("Content-Length"))
			require.Equal(t, "1", got.Get("X-Other"))
			for _, name := range []string{"Etag", "Content-Md5", "Content-Digest", "Repr-Digest", "Digest"} {
				require.Equal(t, c.want == c.body, got.Get(name) != "", name)
			}
			if c.want != c.body {
				require.Equal(t, []string{"Accept-Encoding"}, got["Vary"])
			} else {
				require.Empty(t, got["Vary"])
			}
		})
	}
}

func TestB52_WhatStaysWhenDecoded(t *testing.T) {
	t.Parallel()
	record := responseRecord{status: 200, body: responseTestGzip("plain"), fields: []responseField{
		{name: "content-encoding", values: []string{"gzip"}},
		{name: "Etag", values: []string{`W/"weak"`}},
		{name: "Vary", values: []string{"Origin, accept-encoding"}},
		{name: "Repr-Digest", values: []string{"rd"}, kind: responseTrailer},
	}}
	w := httptest.NewRecorder()
	require.NoError(t, record.replay(w, httptest.NewRequest("POST", "/", nil)))
	require.Equal(t, "plain", w.Body.String())
	require.Equal(t, http.Header{
		"Content-Length":      {"5"},
		"Etag":                {`W/"weak"`},
		"Vary":                {"Origin, accept-encoding"},
		"Idempotent-Replayed": {"true"},
	}, w.Header())
}

func TestB51_LocationOfATombstone(t *testing.T) {
	t.Parallel()
	record := responseRecord{status: 202, unreplayable: true}
	require.Empty(t, record.location())
	record.fields = []responseField{{name: "location", values: []string{"/a"}}}
	require.Equal(t, "/a", record.location())
}

func TestB52_Bomb(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	zw, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	require.NoError(t, err)
	_, err = io.CopyN(zw, responseTestZeros{}, responseDecodedMax+1)
	require.NoError(t, err)
	require.NoError(t, zw.Close())
	record := responseRecord{status: 200, body: b.String(), fields: []responseField{{name: "Content-Encoding", values: []string{"gzip"}}}}
	req := httptest.NewRequest("POST", "/", nil)
	req.Header.Set("Accept-Encoding", "identity")
	require.ErrorIs(t, record.replay(httptest.NewRecorder(), req), errNotAcceptable)
}

type responseTestZeros struct{}

func (responseTestZeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// C080: an outer layer that encodes announces it before the handler runs.
func TestC080_OuterCodingKeepsTheLengthToItself(t *testing.T) {
	t.Parallel()
	s, err := EncodeResponse(200, nil, []byte("plain"))
	require.NoError(t, err)
	record, err := decodeResponse(s, new(responseRoom))
	require.NoError(t, err)
	w := httptest.NewRecorder()
	w.Header().Set("Content-Encoding", "gzip")
	w.Header().Set("Content-Length", "1")
	require.NoError(t, record.replay(w, httptest.NewRequest("POST", "/", nil)))
	require.Equal(t, "plain", w.Body.String())
	require.Equal(t, "gzip", w.Header().Get("Content-Encoding"))
	require.Empty(t, w.Header()["Content-Length"])
}

func TestB47_NoBodyForHead(t *testing.T) {
	t.Parallel()
	s, err := EncodeResponse(200, nil, []byte("plain"))
	require.NoError(t, err)
	record, err := decodeResponse(s, new(responseRoom))
	require.NoError(t, err)
	w := httptest.NewRecorder()
	require.NoError(t, record.replay(w, httptest.NewRequest("HEAD", "/", nil)))
	require.Zero(t, w.Body.Len())
	require.Equal(t, "5", w.Header().Get("Content-Length"))
}

func TestB53_ReplayOnTopOfOuterFields(t *testing.T) {
	t.Parallel()
	record := responseRecord{status: 200, fields: []responseField{
		{name: "Vary", values: []string{"Accept"}, kind: responseAdd},
		{name: "X-More", values: []string{"1"}, kind: responseTrailer},
		{name: "X-Sum", values: []string{"2"}, kind: responseTrailer},
	}}
	outer := []string{"Origin", "not yet there"}
	w := httptest.NewRecorder()
	w.Header()["Vary"] = outer[:1]
	w.Header().Set("Content-Length", "7")
	w.Header().Set("Trailer", "x-sum")
	require.NoError(t, record.replay(w, httptest.NewRequest("POST", "/", nil)))
	got := w.Result()
	require.Equal(t, []string{"Origin", "not yet there"}, outer)
	require.Equal(t, http.Header{
		"Vary":                {"Origin", "Accept"},
		"Trailer":             {"x-sum", "X-More"},
		"Idempotent-Replayed": {"true"},
	}, got.Header)
	require.Equal(t, http.Header{"X-More": {"1"}, "X-Sum": {"2"}}, got.Trailer)
}

// What a replay puts into a header leads nowhere else.
func TestResponse_ReplaysShareNothing(t *testing.T) {
	t.Parallel()
	s, err := EncodeResponse(200, http.Header{"Link": {"<a>", "<b>"}, "X-A": {"1"}}, []byte("x"))
	require.NoError(t, err)
	replay := func() http.Header {
		record, err := decodeResponse(s, new(responseRoom))
		require.NoError(t, err)
		w := httptest.NewRecorder()
		require.NoError(t, record.replay(w, httptest.NewRequest("POST", "/", nil)))
		return w.Header()
	}
	first := replay()
	want := first.Clone()
	for name := range first {
		first.Add(name, "added")
	}
	for name := range want {
		require.Equal(t, append(want[name], "added"), first[name])
	}
	for name := range first {
		first[name][0] = "changed"
	}
	require.Equal(t, want, replay())
}

func TestResponse_Allocations(t *testing.T) {
	h := http.Header{"Content-Type": {"application/json"}, "Location": {"/orders/7"}, "Etag": {`"1"`}, "Cache-Control": {"no-store"}}
	s, err := EncodeResponse(201, h, bytes.Repeat([]byte("x"), 512))
	require.NoError(t, err)
	record, err := decodeResponse(s, new(responseRoom))
	require.NoError(t, err)
	req := httptest.NewRequest("POST", "/", nil)
	w := recorderTestNull{}

	body := []byte(record.body)
	encode := testing.AllocsPerRun(100, func() { _ = record.encode(body) })
	replay := testing.AllocsPerRun(100, func() {
		r, err := decodeResponse(s, new(responseRoom))
		if err != nil || r.replay(w, req) != nil {
			t.Fatal("replay failed")
		}
	})
	require.LessOrEqual(t, encode, 1.0)
	require.LessOrEqual(t, replay, 1.0, "decoding makes the room for the fields, the rest is shared")
}

func BenchmarkResponse_Replay(b *testing.B) {
	s, err := EncodeResponse(201, http.Header{"Content-Type": {"application/json"}, "Location": {"/orders/7"}}, make([]byte, 512))
	require.NoError(b, err)
	req := httptest.NewRequest("POST", "/", nil)
	w := recorderTestNull{}
	b.ReportAllocs()
	for b.Loop() {
		r, _ := decodeResponse(s, new(responseRoom))
		_ = r.replay(w, req)
	}
}
