package idempotent

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fingerprintInput is what of a request can matter.
type fingerprintInput struct {
	query     string
	types     []string // lines of Content-Type
	encodings []string // lines of Content-Encoding
	header    http.Header
	body      string
	method    string // with principal scope
	path      string
}

func requestFingerprint(r *http.Request, body []byte, fn FingerprintFunc, method, path string) (string, error) {
	b, err := appendFingerprint(make([]byte, 0, 64), r, body, fn, method, path)
	return string(b), err
}

func (in fingerprintInput) request() *http.Request {
	r := httptest.NewRequest("POST", "/orders", nil)
	r.URL.RawQuery = in.query
	for name, lines := range in.header {
		r.Header[name] = lines
	}
	if in.types != nil {
		r.Header["Content-Type"] = in.types
	}
	if in.encodings != nil {
		r.Header["Content-Encoding"] = in.encodings
	}
	return r
}

func (in fingerprintInput) fingerprint(t *testing.T, fn FingerprintFunc) string {
	t.Helper()
	got, err := requestFingerprint(in.request(), []byte(in.body), fn, in.method, in.path)
	require.NoError(t, err)
	require.Regexp(t, `^[a-z0-9]{1,8}:[A-Za-z0-9_-]{32}$`, got)
	return got
}

func jsonInput(body string) fingerprintInput {
	return fingerprintInput{types: []string{"application/json"}, body: body}
}

func queryInput(query string) fingerprintInput { return fingerprintInput{query: query} }

func typeInput(lines ...string) fingerprintInput { return fingerprintInput{types: lines, body: "{}"} }

func encodingInput(lines ...string) fingerprintInput { return fingerprintInput{encodings: lines} }

func TestRequestFingerprint_Same(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		a, b fingerprintInput
	}{
		{"B23 names reordered", queryInput("a=1&b=2"), queryInput("b=2&a=1")},
		{"B23 names reordered, values in order", queryInput("a=1&b=2&a=3"), queryInput("a=1&a=3&b=2")},
		{"B23 escapes", queryInput("a=%41+b"), queryInput("%61=A%20b")},
		{"B24 members reordered", jsonInput(`{"a":1,"b":2}`), jsonInput(`{"b":2,"a":1}`)},
		{"B24 white space", jsonInput(`{"a":1}`), jsonInput("{ \"a\":\n1 }")},
		{"B24 escapes", jsonInput(`{"a":"/A"}`), jsonInput(`{"\u0061":"\/\u0041"}`)},
		{
			"C064 +json",
			fingerprintInput{types: []string{"application/vnd.api+json"}, body: `{"a":1,"b":2}`},
			fingerprintInput{types: []string{"application/vnd.api+json"}, body: `{"b":2,"a":1}`},
		},
		{"B82 type in another case", typeInput("application/json"), typeInput("Application/JSON")},
		{"B82 parameters of the type", typeInput("application/json"), typeInput("application/json ; charset=utf-8")},
		{"B82 malformed parameters", typeInput("application/json"), typeInput("application/json; charset")},
		{"B82 coding in another case", encodingInput("gzip"), encodingInput("GZIP")},
		{
			"B33 Authorization, cookies, trace",
			fingerprintInput{header: http.Header{"Authorization": {"Bearer a"}, "Cookie": {"s=1"}, "Traceparent": {"00-a"}, "X-Request-Id": {"1"}}, body: "x"},
			fingerprintInput{header: http.Header{"Authorization": {"Bearer b"}, "Cookie": {"s=2"}, "Tracestate": {"v=1"}, "User-Agent": {"u"}, "Idempotency-Key": {"k"}}, body: "x"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.a.fingerprint(t, CanonicalJSON), test.b.fingerprint(t, CanonicalJSON))
		})
	}
}

// fingerprintDifferent holds requests none of which is a repeat of another one.
func fingerprintDifferent() map[string]fingerprintInput {
	return map[string]fingerprintInput{
		"nothing": {},

		"B22 body":       {body: "x"},
		"B22 other body": {body: "y"},

		"C061 query":                        queryInput("amount=1"),
		"C061 other query":                  queryInput("amount=2"),
		"C061 name in another case":         queryInput("Amount=1"),
		"B23 two values":                    queryInput("a=1&a=2"),
		"B23 two values, reordered":         queryInput("a=2&a=1"),
		"B23 one name in two spellings":     queryInput("a=3&%61=4"),
		"B23 one name in two spellings, r.": queryInput("%61=4&a=3"),
		"C061 one value":                    queryInput("a=1"),
		"C061 the same value twice":         queryInput("a=1&a=1"),
		"C061 separator in the value":       queryInput("a=1%26b%3D2"),
		"C061 two names":                    queryInput("a=1&b=2"),
		"C061 value elsewhere":              queryInput("a=2&b=1"),
		"C061 no value":                     queryInput("a"),
		"C061 empty value":                  queryInput("a="),
		"C061 empty pair":                   queryInput("a=&"),
		"C061 empty name":                   queryInput("=a"),
		"C061 bad escape":                   queryInput("amount=1&x=%zz"),
		"C061 bad escape, other value":      queryInput("amount=2&x=%zz"),
		"C061 bad escape, other":            queryInput("amount=1&x=%zy"),
		"C061 bad escape in a name":         queryInput("amount=1&%=1"),
		"C061 semicolon":                    queryInput("amount=1;x"),
		"C061 semicolon, other value":       queryInput("amount=2;x"),
		"C061 semicolon between":            queryInput("a=1;b=2"),
		"C061 escaped semicolon":            queryInput("amount=1%3Bx"),
		"C061 only separators":              queryInput("&"),
		"C061 only a semicolon":             queryInput(";"),

		"C062 JSON":                 typeInput("application/json"),
		"C062 text":                 typeInput("text/plain"),
		"C062 no type":              {body: "{}"},
		"C062 empty type":           typeInput(""),
		"C062 +json":                typeInput("application/x+json"),
		"C062 unparsable":           typeInput("json"),
		"C062 unparsable, other":    typeInput("json; x"),
		"C062 unparsable, case":     typeInput("JSON"),
		"C062 two lines":            typeInput("application/json", "application/json"),
		"C062 two lines, other":     typeInput("application/json", "text/plain"),
		"C062 two lines, reordered": typeInput("text/plain", "application/json"),

		"B82 coding":              encodingInput("gzip"),
		"B82 other coding":        encodingInput("br"),
		"B82 empty coding":        encodingInput(""),
		"B82 two codings":         encodingInput("gzip", "br"),
		"B82 two codings, r.":     encodingInput("br", "gzip"),
		"B82 two codings, a line": encodingInput("gzip, br"),
		"B82 type of that name":   {types: []string{"gzip"}},

		"B21 method and path":       {method: "POST", path: "/orders"},
		"B21 other method":          {method: "PATCH", path: "/orders"},
		"B21 other path":            {method: "POST", path: "/orders/1"},
		"B21 moved from one to the": {method: "POST/", path: "orders"},

		"B25 array":                jsonInput(`[1,2]`),
		"B25 array reordered":      jsonInput(`[2,1]`),
		"B25 null":                 jsonInput(`{"a":null}`),
		"B25 1":                    jsonInput(`{"a":1}`),
		"B25 1.0":                  jsonInput(`{"a":1.0}`),
		"B25 beyond 2^53":          jsonInput(`{"a":9007199254740992}`),
		"B25 beyond 2^53, other":   jsonInput(`{"a":9007199254740993}`),
		"B26 repeated name":        jsonInput(`{"a":1,"a":2}`),
		"B26 repeated name, other": jsonInput(`{"a":2,"a":1}`),
		"B26 repeated name, blank": jsonInput(`{"a":1, "a":2}`),
		"B26 invalid":              jsonInput(`{"a":1`),
		"B26 empty":                jsonInput(``),
		"B26 blank":                jsonInput(` `),
		"C064 text, not JSON":      {types: []string{"text/plain"}, body: `{"a":1,"b":2}`},
		"C064 text, not JSON, r.":  {types: []string{"text/plain"}, body: `{"b":2,"a":1}`},
	}
}

func TestRequestFingerprint_Different(t *testing.T) {
	t.Parallel()
	for name, fn := range map[string]FingerprintFunc{"CanonicalJSON": CanonicalJSON, "RawBody": RawBody, "Multipart": Multipart} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seen := map[string]string{}
			for name, in := range fingerprintDifferent() {
				got := in.fingerprint(t, fn)
				require.Emptyf(t, seen[got], "%q has the same fingerprint", name)
				seen[got] = name
			}
		})
	}
}

func TestFingerprintTags(t *testing.T) {
	t.Parallel()
	text := func(s string) FingerprintFunc {
		return func(*http.Request, []byte) (string, error) { return s, nil }
	}
	for _, test := range []struct {
		name, tag string
		in        fingerprintInput
		fn        FingerprintFunc
	}{
		{"JSON", "j1:", jsonInput("{}"), CanonicalJSON},
		{"JSON with parameters", "j1:", fingerprintInput{types: []string{"application/json;charset=utf-8"}, body: "{}"}, CanonicalJSON},
		{"+json", "j1:", fingerprintInput{types: []string{"application/problem+JSON"}, body: "{}"}, CanonicalJSON},
		{"invalid JSON", "r1:", jsonInput("{"), CanonicalJSON},
		{"JSON of two types", "r1:", fingerprintInput{types: []string{"application/json", "application/json"}, body: "{}"}, CanonicalJSON},
		{"no JSON", "r1:", fingerprintInput{types: []string{"application/jsonx"}, body: "{}"}, CanonicalJSON},
		{"suffix alone", "r1:", fingerprintInput{types: []string{"+json"}, body: "{}"}, CanonicalJSON},
		{"no type", "r1:", fingerprintInput{body: "{}"}, CanonicalJSON},
		{"raw", "r1:", jsonInput("{}"), RawBody},
		{"multipart of another type", "r1:", jsonInput("{}"), Multipart},
		{"own tag", "order1:", fingerprintInput{}, text("order1:x")},
		{"own tag alone", "order1:", fingerprintInput{}, text("order1:")},
		{"longest own tag", "abcdefgh:", fingerprintInput{}, text("abcdefgh:x")},
		{"own tag too long", "x1:", fingerprintInput{}, text("abcdefghi:x")},
		{"own tag in upper case", "x1:", fingerprintInput{}, text("J1:x")},
		{"empty own tag", "x1:", fingerprintInput{}, text(":x")},
		{"no own tag", "x1:", fingerprintInput{}, text("x")},
		{"nothing", "x1:", fingerprintInput{}, text("")},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := test.in.fingerprint(t, test.fn)
			require.Equal(t, test.tag, got[:len(got)-32])
		})
	}
}

func TestB34_OwnFunction(t *testing.T) {
	t.Parallel()
	withIfMatch := func(r *http.Request, body []byte) (string, error) {
		text, err := CanonicalJSON(r, body)
		return text + r.Header.Get("If-Match"), err
	}
	a, b := jsonInput(`{"a":1,"b":2}`), jsonInput(`{"b":2,"a":1}`)
	a.header = http.Header{"If-Match": {`"1"`}}
	b.header = http.Header{"If-Match": {`"1"`}}
	require.Equal(t, a.fingerprint(t, withIfMatch), b.fingerprint(t, withIfMatch))
	b.header = http.Header{"If-Match": {`"2"`}}
	require.NotEqual(t, a.fingerprint(t, withIfMatch), b.fingerprint(t, withIfMatch))
	require.Equal(t, "j1:", a.fingerprint(t, withIfMatch)[:3])

	broken := errors.New("cannot tell")
	got, err := requestFingerprint(a.request(), nil, func(*http.Request, []byte) (string, error) { return "x", broken }, "", "")
	require.Equal(t, broken, err)
	require.Empty(t, got)
}

func TestC065_GzipIsNotDecoded(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write([]byte(`{"a":1}`))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	plain := jsonInput(`{"a":1}`)
	zipped := jsonInput(b.String())
	zipped.encodings = []string{"gzip"}
	require.NotEqual(t, plain.fingerprint(t, CanonicalJSON), zipped.fingerprint(t, CanonicalJSON))
	require.Equal(t, "r1:", zipped.fingerprint(t, CanonicalJSON)[:3])
	cut := zipped
	cut.body = cut.body[:10]
	require.NotEqual(t, zipped.fingerprint(t, CanonicalJSON), cut.fingerprint(t, CanonicalJSON))
}

// formInput is what mime/multipart writes for fields of two kinds.
func formInput(t *testing.T, boundary string, fields ...[2]string) fingerprintInput {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	if boundary != "" {
		require.NoError(t, w.SetBoundary(boundary))
	}
	for _, f := range fields {
		if name, ok := strings.CutPrefix(f[0], "file:"); ok {
			part, err := w.CreateFormFile(name, name+".bin")
			require.NoError(t, err)
			_, err = part.Write([]byte(f[1]))
			require.NoError(t, err)
		} else {
			require.NoError(t, w.WriteField(f[0], f[1]))
		}
	}
	require.NoError(t, w.Close())
	return fingerprintInput{types: []string{w.FormDataContentType()}, body: b.String()}
}

func TestB28_Multipart(t *testing.T) {
	t.Parallel()
	fields := [][2]string{{"amount", "1"}, {"note", ""}, {"file:receipt", "\x00\r\n\r\n--x\r\n"}}
	first, second := formInput(t, "", fields...), formInput(t, "", fields...)
	require.NotEqual(t, first.body, second.body)
	require.Equal(t, first.fingerprint(t, Multipart), second.fingerprint(t, Multipart))
	require.Equal(t, "m1:", first.fingerprint(t, Multipart)[:3])
	require.NotEqual(t, first.fingerprint(t, CanonicalJSON), second.fingerprint(t, CanonicalJSON), "the default compares bytes")

	seen := map[string]bool{}
	for _, other := range [][][2]string{
		fields,
		{{"amount", "1"}, {"file:receipt", fields[2][1]}, {"note", ""}},
		{{"amount", "2"}, {"note", ""}, {"file:receipt", fields[2][1]}},
		{{"amount", "1"}, {"Note", ""}, {"file:receipt", fields[2][1]}},
		{{"amount", "1"}, {"note", ""}, {"file:receipt", fields[2][1] + "\r\n"}},
		{{"amount", "1"}, {"note", ""}},
		{{"amount", "1"}, {"amount", "1"}, {"note", ""}},
		{{"a", "xb"}, {"c", ""}},
		{{"ax", "b"}, {"c", ""}},
		{{"file:a", "xb"}, {"c", ""}},
	} {
		got := formInput(t, "", other...).fingerprint(t, Multipart)
		require.False(t, seen[got], "%q", other)
		seen[got] = true
	}
}

func TestB28_MultipartFields(t *testing.T) {
	t.Parallel()
	part := func(head, content string) string {
		in := fingerprintInput{types: []string{"multipart/mixed; boundary=B"}, body: "--B\r\n" + head + "\r\n" + content + "\r\n--B--\r\n"}
		return in.fingerprint(t, Multipart)
	}
	one := part("A: 1\r\nB: 2\r\n", "x")
	require.Equal(t, one, part("b:2\r\na:  1\t\r\n", "x"), "order, case and blanks of fields")
	require.Equal(t, "m1:", one[:3])
	require.Equal(t, "m1:", part("", "x\r\n\r\ny")[:3], "a part without fields")
	seen := map[string]bool{one: true}
	for _, other := range []string{
		part("A: 2\r\nB: 1\r\n", "x"), part("A: 1\r\n", "x"), part("A: 1\r\nB: 2\r\nB: 3\r\n", "x"), part("A: 1\r\nB: 3\r\nB: 2\r\n", "x"),
		part("A: 1\r\nB: 2\r\n", "y"), part("A: 1\r\nB: 2\r\n", ""), part("A: 1\r\nB: 2\r\n", "x\r\n"), part("A: 1\r\nB: 2\r\n", "\r\nx"),
		part("A: 1,2\r\n", "x"), part("", "A: 1\r\nB: 2\r\n\r\nx"), part("", "x"), part("", ""),
	} {
		require.False(t, seen[other])
		seen[other] = true
	}
}

// What mime/multipart reads leniently is compared byte for byte: it would skip
// what another parser reads.
func TestB28_MultipartFallsBack(t *testing.T) {
	t.Parallel()
	const good = "--B\r\nA: 1\r\n\r\nx\r\n--B--\r\n"
	for name, in := range map[string]fingerprintInput{
		"preamble":              {body: "hello\r\n" + good},
		"blank line before":     {body: "\r\n" + good},
		"epilogue":              {body: good + "bye"},
		"parts after the end":   {body: good + good},
		"no end":                {body: strings.TrimSuffix(good, "--\r\n") + "\r\n"},
		"cut":                   {body: good[:12]},
		"empty":                 {body: ""},
		"bare line feeds":       {body: strings.ReplaceAll(good, "\r", "")},
		"blank behind boundary": {body: strings.Replace(good, "--B\r", "--B \r", 1)},
		"longer boundary":       {body: strings.Replace(good, "x", "x\r\n--BB\r\n", 1)},
		"no empty line":         {body: "--B\r\nA: 1\r\n--B--\r\n"},
		"field without colon":   {body: strings.Replace(good, "A: 1", "A", 1)},
		"folded field":          {body: strings.Replace(good, "A: 1", "A: 1\r\n 2", 1)},
		"blank in a field name": {body: strings.Replace(good, "A: 1", "A : 1", 1)},
		"line feed in a field":  {body: strings.Replace(good, "A: 1", "A: 1\nB: 2", 1)},
		"no boundary":           {body: good, types: []string{"multipart/mixed"}},
		"empty boundary":        {body: good, types: []string{`multipart/mixed; boundary=""`}},
		"other boundary":        {body: good, types: []string{"multipart/mixed; boundary=C"}},
		"malformed type":        {body: good, types: []string{"multipart/mixed; boundary"}},
		"two types":             {body: good, types: []string{"multipart/mixed; boundary=B", "text/plain"}},
		"no multipart":          {body: good, types: []string{"text/plain; boundary=B"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if in.types == nil {
				in.types = []string{"multipart/mixed; boundary=B"}
			}
			require.Equal(t, "r1:", in.fingerprint(t, Multipart)[:3])
			require.Equal(t, in.fingerprint(t, RawBody), in.fingerprint(t, Multipart))
		})
	}
	control := fingerprintInput{types: []string{"multipart/mixed; boundary=B"}, body: good}
	require.Equal(t, "m1:", control.fingerprint(t, Multipart)[:3], "the body that the others are changes of")
}

func FuzzMultipart(f *testing.F) {
	f.Add("--B\r\nA: 1\r\n\r\nx\r\n--B--\r\n", "B")
	f.Add("--B\r\n\r\n\r\n--B\r\nA:b\r\nC:d\r\n\r\n\r\n--B--", "B")
	f.Add("--\r\n--", "-")
	f.Fuzz(func(t *testing.T, body, boundary string) {
		if !regexp.MustCompile(`^[A-Za-z0-9-]{1,70}$`).MatchString(boundary) {
			t.Skip()
		}
		in := fingerprintInput{types: []string{"multipart/mixed; boundary=" + boundary}, body: body}
		got := in.fingerprint(t, Multipart)
		if got[:3] == "r1:" {
			return
		}
		// Strict: what was accepted is in the body in full, so that writing
		// the parts under another boundary gives the body back.
		if !strings.HasPrefix(body, "--"+boundary) || !strings.HasSuffix(strings.TrimSuffix(body, "\r\n"), "--"+boundary+"--") {
			t.Fatalf("accepted %q", body)
		}
		const other = "another-boundary-that-is-in-no-seed"
		if strings.Contains(body, other) {
			t.Skip()
		}
		lines := strings.Split("\r\n"+body, "\r\n--"+boundary)
		again := fingerprintInput{
			types: []string{"multipart/mixed; boundary=" + other},
			body:  strings.Join(lines, "\r\n--"+other)[2:],
		}
		if again.fingerprint(t, Multipart) != got {
			t.Fatalf("%q under another boundary is another request", body)
		}
		// mime/multipart sees the same number of parts, if it sees any at all.
		m := multipart.NewReader(strings.NewReader(body), boundary)
		n := 0
		for {
			if _, err := m.NextRawPart(); err != nil {
				break
			}
			n++
		}
		if want := len(lines) - 2; n > want {
			t.Fatalf("%q has %d parts for mime/multipart, %d here", body, n, want)
		}
	})
}

func TestFingerprint_BodyIsNotChanged(t *testing.T) {
	t.Parallel()
	in := formInput(t, "", [2]string{"a", "1"})
	for _, in := range []fingerprintInput{in, jsonInput(`{"b":"\u0041","a":[ 1 ]}`)} {
		for _, fn := range []FingerprintFunc{CanonicalJSON, RawBody, Multipart} {
			body := []byte(in.body)
			_, err := requestFingerprint(in.request(), body, fn, "", "")
			require.NoError(t, err)
			require.Equal(t, in.body, string(body))
		}
	}
}

// Buffers are shared between requests; results must not be.
func TestFingerprint_Concurrent(t *testing.T) {
	t.Parallel()
	inputs := make([]fingerprintInput, 20)
	want := make([]string, len(inputs))
	for i := range inputs {
		inputs[i] = jsonInput(fmt.Sprintf(`{"b":"%s","a":{"y":%d,"x":2}}`, strings.Repeat("x", i*50), i))
		want[i] = inputs[i].fingerprint(t, CanonicalJSON)
	}
	for g := range 4 {
		t.Run(fmt.Sprint(g), func(t *testing.T) {
			t.Parallel()
			for n := range 500 {
				i := (n*7 + g) % len(inputs)
				require.Equal(t, want[i], inputs[i].fingerprint(t, CanonicalJSON))
			}
		})
	}
}

func TestFingerprint_Allocations(t *testing.T) {
	body := fingerprintBenchJSON(t, 1<<10)
	in := fingerprintInput{types: []string{"Application/JSON; charset=utf-8"}, encodings: []string{"identity"}}
	r := in.request()
	raw := testing.AllocsPerRun(100, func() { _, _ = requestFingerprint(r, body, RawBody, "POST", "/orders") })
	require.LessOrEqual(t, raw, 3.0)
	canonical := testing.AllocsPerRun(100, func() { _, _ = requestFingerprint(r, body, CanonicalJSON, "POST", "/orders") })
	require.LessOrEqual(t, canonical, 6.0)
}

func TestRequestFingerprint_Golden(t *testing.T) {
	multi := "--B\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--B--\r\n"
	own := func(_ *http.Request, body []byte) (string, error) { return string(body), nil }
	// Add to the end only.
	cases := []struct {
		name string
		fn   FingerprintFunc
		in   fingerprintInput
	}{
		{"RawBody", RawBody, fingerprintInput{}},
		{"RawBody", RawBody, fingerprintInput{body: "hello", types: []string{"text/plain"}}},
		{"CanonicalJSON", CanonicalJSON, jsonInput(`{"b":[1,1.0,"\u0041\/\n"],"a":{"d":null,"c":9007199254740993}}`)},
		{"CanonicalJSON", CanonicalJSON, jsonInput(`{"\u0000":1,"\"":2,"!":3,"é":4,"😀":5,"\\":6}`)},
		{"CanonicalJSON", CanonicalJSON, jsonInput(`{"a":1,"a":2}`)},
		{"CanonicalJSON", CanonicalJSON, fingerprintInput{body: "{}", types: []string{"Application/Problem+JSON; charset=utf-8"}, encodings: []string{"GZIP", "br"}}},
		{"CanonicalJSON", CanonicalJSON, fingerprintInput{body: "{}", types: []string{"a/b", "c/d"}}},
		{"CanonicalJSON", CanonicalJSON, fingerprintInput{query: "b=2&a=%41&b=1&c&d="}},
		{"CanonicalJSON", CanonicalJSON, fingerprintInput{query: "a=%zz;b"}},
		{"CanonicalJSON", CanonicalJSON, fingerprintInput{body: "{}", types: []string{"application/json"}, method: "POST", path: "/orders/a%2Fb"}},
		{"Multipart", Multipart, fingerprintInput{body: multi, types: []string{"multipart/form-data; boundary=B"}}},
		{"Multipart", Multipart, fingerprintInput{body: "x" + multi, types: []string{"multipart/form-data; boundary=B"}}},
		{"own", own, fingerprintInput{body: "order1:42"}},
		{"own", own, fingerprintInput{body: "no tag"}},
	}
	var b strings.Builder
	for _, c := range cases {
		fmt.Fprintf(&b, "%s method=%q path=%q query=%q type=%q encoding=%q body=%q\n\t%s\n",
			c.name, c.in.method, c.in.path, c.in.query, c.in.types, c.in.encodings, c.in.body, c.in.fingerprint(t, c.fn))
	}
	requireRequestGolden(t, "fingerprint.golden", b.String())
}
