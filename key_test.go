package idempotent

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var updateRequestGolden = flag.Bool("update", false, "rewrite the golden files; see requireRequestGolden before you do")

// requireRequestGolden compares got with testdata/name, line by line.
func requireRequestGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *updateRequestGolden {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got,
		"%s has changed. Records that are in stores now were written under the old text: after this change a repeat of "+
			"an operation that has already happened is not recognised, and runs again or is refused. Take the change back, or "+
			"give the new text a version of its own and keep reading the old one; only then rewrite the file with -update.", path)
}

// keyStoreCases are the inputs of the golden file. Add to the end only.
func keyStoreCases() [][4]string {
	long := strings.Repeat("long/", 110)
	return [][4]string{
		{"POST", "/v1/orders", "user-1", "0196f3a1-7c1e-7b6a-9d0e-2f4c5a6b7c8d"},
		{"PATCH", "/v1/orders/a%2Fb", "tenant:7/user@example.org", "abc"},
		{"POST", "/", "anonymous", "a b"},
		{"", "", "user-1", "abc"},
		{"POST", "/p", "{slot}", `%7B*#?[]:'"\`},
		{"POST", "/p", "Zoë", "\x00\x7f\r\n"},
		{"POST", "/p", "u", "-._~/@+=,!;$&()<>^`|"},
		{"POST", "/" + long, "u", "k"},
		{"POST", "/" + long, "u", "l"},
		{"POST", "/" + strings.Repeat("%", 200), "u", "k"},
	}
}

func TestStoreKey_Golden(t *testing.T) {
	var b strings.Builder
	for _, c := range keyStoreCases() {
		fmt.Fprintf(&b, "%q %q %q %q\n\t%s\n", c[0], c[1], c[2], c[3], StoreKey(c[0], c[1], c[2], c[3]))
	}
	requireRequestGolden(t, "storekey.golden", b.String())
}

func TestKey(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		parts []string
		want  string
	}{
		{"no parts", nil, ""},
		{"one empty part", []string{""}, ""},
		{"two empty parts", []string{"", ""}, ":"},
		{"readable", []string{"charge", "ord_1/x-2.3~4@a+b=c"}, "charge:ord_1/x-2.3~4@a+b=c"},
		{"colon in a part", []string{"a:b", "c"}, "a%3Ab:c"},
		{"looks escaped", []string{"a%3Ab", "c"}, "a%253Ab:c"},
		{"control, space and high bytes", []string{"\x00 \xff"}, "%00%20%FF"},
		{"at either end", []string{"{a}"}, "%7Ba%7D"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, Key(test.parts...))
		})
	}
}

func TestB14_KeyHoldsSafeBytesOnly(t *testing.T) {
	t.Parallel()
	safe := regexp.MustCompile(`^([A-Za-z0-9._~/@+=-]|%[0-9A-F]{2})$`)
	for c := range 256 {
		got := Key(string([]byte{byte(c)}))
		require.Regexp(t, safe, got, "byte %#x", c)
		back, err := url.PathUnescape(got)
		require.NoError(t, err)
		require.Equal(t, string([]byte{byte(c)}), back)
	}
}

func TestB14_KeyEndsInDigest(t *testing.T) {
	t.Parallel()
	shape := regexp.MustCompile(`^([A-Za-z0-9._~/@+=:-]|%[0-9A-F]{2})*#[0-9a-f]{64}$`)
	seen := map[string]int{}
	for pad := range 4 { // every place at which the cut can meet an escape
		for n := range 400 {
			part := strings.Repeat("x", pad) + strings.Repeat("{", n)
			got := Key("p", part)
			full := "p:" + strings.Repeat("x", pad) + strings.Repeat("%7B", n)
			if len(full) <= keyMaxName {
				require.Equal(t, full, got)
			} else {
				require.Regexp(t, shape, got)
				require.LessOrEqual(t, len(got), keyMaxName)
				require.Greater(t, len(got), keyMaxName-3)
				require.True(t, strings.HasPrefix(full, got[:strings.IndexByte(got, '#')]))
			}
			seen[got]++
		}
	}
	require.Equal(t, 4*400, len(seen), "two lists share a name")
}

func TestKey_Allocations(t *testing.T) {
	allocs := testing.AllocsPerRun(100, func() {
		_ = StoreKey("POST", "/v1/orders", "tenant-7/user-12345", "0196f3a1-7c1e-7b6a-9d0e-2f4c5a6b7c8d")
	})
	require.LessOrEqual(t, allocs, 1.0)
	allocs = testing.AllocsPerRun(100, func() { _ = Key("a:b", "{c}") })
	require.LessOrEqual(t, allocs, 1.0)
}

func FuzzKey(f *testing.F) {
	f.Add("a", "b", "a:b", "")
	f.Add("a%3A", "b", "a", "%3Ab")
	f.Add("", "", "", ":")
	f.Add(strings.Repeat("{", 200), "k", strings.Repeat("{", 200), "l")
	f.Add(strings.Repeat("a", 447), "#", strings.Repeat("a", 600), "")
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		lists := [][]string{{a}, {a, b}, {c, d}, {a, b, c}, {a, b, c, d}, {d, c, b, a}}
		for i, x := range lists {
			name := Key(x...)
			if len(name) > keyMaxName {
				t.Fatalf("name of %d bytes", len(name))
			}
			if strings.ContainsAny(name, "{}*?[] \"'\\\r\n\x00") {
				t.Fatalf("unsafe byte in %q", name)
			}
			if !strings.Contains(name, "#") {
				// The name can be taken apart again, so it is injective.
				parts := strings.Split(name, ":")
				for j := range parts {
					part, err := url.PathUnescape(parts[j])
					if err != nil || part != x[j] {
						t.Fatalf("part %d of %q reads as %q, %v", j, name, part, err)
					}
				}
			}
			for _, y := range lists[i+1:] {
				if same := fmt.Sprintf("%q", x) == fmt.Sprintf("%q", y); same != (name == Key(y...)) {
					t.Fatalf("%q and %q: same list %v, names %q and %q", x, y, same, name, Key(y...))
				}
			}
		}
	})
}

func TestRequestPath(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, uri, url, want string
	}{
		{"origin-form", "/orders", "/orders", "/orders"},
		{"query", "/orders?a=/b", "/orders?a=/b", "/orders"},
		{"escaped as sent", "/a%2Fb%20c", "/a%2Fb%20c", "/a%2Fb%20c"},
		{"behind StripPrefix", "/api/orders", "/orders", "/api/orders"},
		{"two slashes", "//host/orders", "/orders", "//host/orders"},
		{"absolute-form", "http://host/orders?x", "/ignored", "/orders"},
		{"absolute-form without a path", "http://host", "/ignored", "/"},
		{"absolute-form, query with slashes", "http://host?x=/y", "/ignored", "/"},
		{"URL in the path", "/proxy/http://host/p", "/ignored", "/proxy/http://host/p"},
		{"no RequestURI", "", "/a%2Fb", "/a%2Fb"},
		{"no RequestURI, no path", "", "http://host", "/"},
		{"asterisk-form", "*", "*", "*"},
		{"only a query", "?x", "", "/"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			u, err := url.Parse(test.url)
			require.NoError(t, err)
			require.Equal(t, test.want, requestPath(&http.Request{RequestURI: test.uri, URL: u}))
		})
	}
}

func TestRequestPath_Server(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	server := httptest.NewServer(http.StripPrefix("/api", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got <- requestPath(r)
	})))
	defer server.Close()
	resp, err := http.Post(server.URL+"/api/a%2Fb?x=1", "text/plain", nil)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, "/api/a%2Fb", <-got)
}

func TestParseKey(t *testing.T) {
	t.Parallel()
	k255, k256 := strings.Repeat("k", 255), strings.Repeat("k", 256)
	for _, test := range []struct {
		name  string
		lines []string
		want  string
		err   error
	}{
		{"B03 no line", nil, "", keyErrEmpty},
		{"B03 empty", []string{""}, "", keyErrEmpty},
		{"B03 blanks", []string{" \t "}, "", keyErrEmpty},
		{"B03 empty string", []string{`""`}, "", keyErrEmpty},
		{"B03 empty string with parameter", []string{`"";a`}, "", keyErrEmpty},

		{"B04 quoted", []string{`"abc"`}, "abc", nil},
		{"B04 bare", []string{"abc"}, "abc", nil},
		{"B04 blanks around", []string{"\t abc \t"}, "abc", nil},
		{"B04 blanks around quoted", []string{` "abc" `}, "abc", nil},
		{"B04 blanks within", []string{`" a b "`}, " a b ", nil},
		{"B04 escapes", []string{`"a\"b\\c"`}, `a"b\c`, nil},
		{"B04 escape first", []string{`"\\"`}, `\`, nil},
		{"B04 bare backslash", []string{`a\b`}, `a\b`, nil},
		{"B04 all visible bytes, bare", []string{"!#$%&'()*+-./09:<=>?@AZ[\\]^_`az{|}~"}, "!#$%&'()*+-./09:<=>?@AZ[\\]^_`az{|}~", nil},

		{"B06 bad escape", []string{`"a\n"`}, "", keyErrString},
		{"B06 escape at the end", []string{`"a\`}, "", keyErrString},
		{"B06 escaped closing quote", []string{`"a\"`}, "", keyErrString},
		{"B06 no closing quote", []string{`"abc`}, "", keyErrString},
		{"B06 lone quote", []string{`"`}, "", keyErrString},
		{"B06 trailing text", []string{`"abc"x`}, "", keyErrTrailing},
		{"B06 trailing string", []string{`"abc" "d"`}, "", keyErrTrailing},
		{"B06 blank before the semicolon", []string{`"abc" ;a=1`}, "", keyErrTrailing},

		{"B08 255 bytes", []string{k255}, k255, nil},
		{"B08 256 bytes", []string{k256}, "", keyErrLong},
		{"B08 255 bytes, quoted", []string{`"` + k255 + `";a=1`}, k255, nil},
		{"B08 256 bytes, quoted", []string{`"` + k256 + `"`}, "", keyErrLong},
		{"B08 255 bytes, escaped", []string{`"` + strings.Repeat(`\\`, 255) + `"`}, strings.Repeat(`\`, 255), nil},

		{"B09 control byte", []string{"a\x01b"}, "", keyErrByte},
		{"B09 NUL", []string{"\x00"}, "", keyErrByte},
		{"B09 DEL", []string{"a\x7f"}, "", keyErrByte},
		{"B09 non-ASCII", []string{"é"}, "", keyErrByte},
		{"B09 space", []string{"a b"}, "", keyErrByte},
		{"B09 tab", []string{"a\tb"}, "", keyErrByte},
		{"B09 quote", []string{`a"b`}, "", keyErrByte},
		{"B09 comma", []string{"a,b"}, "", keyErrList},
		{"B09 control byte, quoted", []string{"\"a\x01\""}, "", keyErrString},
		{"B09 tab, quoted", []string{"\"a\tb\""}, "", keyErrString},
		{"B09 non-ASCII, quoted", []string{`"é"`}, "", keyErrString},

		{"B10 two lines", []string{"a", "b"}, "", keyErrLines},
		{"B10 two equal lines", []string{"a", "a"}, "", keyErrLines},
		{"B10 one of two empty", []string{"a", ""}, "", keyErrLines},
		{"B10 list", []string{`"a", "a"`}, "", keyErrList},
		{"B10 list without blanks", []string{`"a","b"`}, "", keyErrList},
		{"B10 list with parameters", []string{`"a";x=1 , "b"`}, "", keyErrList},
		{"B10 comma inside a string", []string{`"a,b"`}, "a,b", nil},

		{"B13 upper case", []string{"Key-A"}, "Key-A", nil},
		{"B13 lower case", []string{"key-a"}, "key-a", nil},

		{"C069 parameter on a bare key", []string{"abc;a=1"}, "", keyErrParams},
		{"C069 semicolon in a string", []string{`"abc;a=1"`}, "abc;a=1", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := ParseKey(test.lines)
			if test.err != nil {
				require.Equal(t, test.err, err)
				require.Empty(t, got)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.want, got)
		})
	}
}

func TestB07_Parameters(t *testing.T) {
	t.Parallel()
	for _, good := range []string{
		"", ";a", ";a=1", "; a=1;b", ";  *x_-.9*=tok", ";a=-1", ";a=123456789012345", ";a=123456789012.125", ";a=0.5",
		`;a="x;\"y\\"`, ";a=?0", ";a=?1", ";a=:aGk=:", ";a=:aGk:", ";a=::", ";a=@1700000000", ";a=@-1", ";a=*tok/x:y", ";a=Tok!#$%&'*+-.^_`|~",
		`;a=%"f%c3%bc"`, `;a=%""`, ";a;a=2", ";a ",
	} {
		key, err := ParseKey([]string{`"abc"` + good})
		require.NoError(t, err, good)
		require.Equal(t, "abc", key, good)
	}
	for _, bad := range []string{
		";", "; ", ";A", ";1", ";_a", ";a=", ";a= 1", ";a =1", ";a=-", ";a=1.", ";a=1.2345", ";a=1234567890123456", ";a=1234567890123.1",
		";a=.5", `;a="x`, ";a=?2", ";a=?", ";a=:a-:", ";a=:aGk=", ";a=:a=a:", ";a=@", ";a=@1.5", ";a=(1)", ";a=é", ";a/b",
		`;a=%"f%C3%BC"`, `;a=%"%ff"`, `;a=%"%f"`, `;a=%"x`, ";a=%x", ";a=\x01", ";\ta", ";a;", "=1",
	} {
		_, err := ParseKey([]string{`"abc"` + bad})
		require.Equal(t, keyErrTrailing, err, bad)
	}
}

func TestC070_NothingIsNormalised(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"%41", "A", "a", "a.", "a/", "00a", "0xA", "{A}", "+a"} {
		got, err := ParseKey([]string{key})
		require.NoError(t, err)
		require.Equal(t, key, got)
	}
}

func TestParseKey_Allocations(t *testing.T) {
	for _, line := range []string{"0196f3a1-7c1e-7b6a", `"0196f3a1-7c1e-7b6a"`, `"abc";a=1`} {
		lines := []string{line}
		require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = ParseKey(lines) }), line)
	}
}

func FuzzParseKey(f *testing.F) {
	for _, line := range []string{"abc", `"abc"`, `"a\"b";x=1`, `"a", "b"`, "a;b", ` "" `, `"x";a=:aGk=:;b=?1;c=%"%c3%bc"`, "\x00", `"\`} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		key, err := ParseKey([]string{line})
		if err != nil {
			var fixed keyError
			if key != "" || !errors.As(err, &fixed) {
				t.Fatalf("key %q with error %v", key, err)
			}
			return
		}
		if key == "" || len(key) > maxKeyBytes {
			t.Fatalf("key of %d bytes", len(key))
		}
		for i := range len(key) {
			if key[i] < ' ' || key[i] > '~' {
				t.Fatalf("byte %#x in a key", key[i])
			}
		}
		// Whatever was accepted has one quoted spelling, which means the same,
		// and the key stood in the field in one piece.
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
		if !strings.Contains(line, key) && !strings.Contains(line, quoted) {
			t.Fatalf("%q was read as %q", line, key)
		}
		again, err := ParseKey([]string{quoted})
		if err != nil || again != key {
			t.Fatalf("%q quoted is %q, %v", key, again, err)
		}
	})
}

func TestHeaderKey(t *testing.T) {
	t.Parallel()
	names := []string{"Idempotency-Key", "X-Idempotency-Key"}
	for _, test := range []struct {
		name    string
		header  http.Header
		key     string
		present bool
		err     error
	}{
		{"B01 none", http.Header{"Other": {"x"}}, "", false, nil},
		{"B01 no lines", http.Header{"Idempotency-Key": {}}, "", false, nil},
		{"first name", http.Header{"Idempotency-Key": {"a"}}, "a", true, nil},
		{"second name", http.Header{"X-Idempotency-Key": {"a"}}, "a", true, nil},
		{"B03 empty", http.Header{"Idempotency-Key": {""}}, "", true, keyErrEmpty},
		{"B03 empty beside a key", http.Header{"Idempotency-Key": {"a"}, "X-Idempotency-Key": {""}}, "", true, keyErrEmpty},
		{"B15 both, equal", http.Header{"Idempotency-Key": {"a"}, "X-Idempotency-Key": {`"a"`}}, "a", true, nil},
		{"B15 both, different", http.Header{"Idempotency-Key": {"a"}, "X-Idempotency-Key": {"b"}}, "", true, keyErrConflict},
		{"B15 both, case differs", http.Header{"Idempotency-Key": {"a"}, "X-Idempotency-Key": {"A"}}, "", true, keyErrConflict},
		{"B10 two lines", http.Header{"Idempotency-Key": {"a", "a"}}, "", true, keyErrLines},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			key, present, err := headerKey(test.header, names)
			require.Equal(t, test.key, key)
			require.Equal(t, test.present, present)
			require.Equal(t, test.err, err)
		})
	}
}

func TestB14_KeyErrorsCarryNoKey(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t"
	for _, line := range []string{secret + " x", secret + ",x", secret + ";x", `"` + secret, `"` + secret + `"x`, `"` + secret + `", "y"`, strings.Repeat(secret, 50)} {
		_, err := ParseKey([]string{line})
		require.Error(t, err, line)
		require.NotContains(t, err.Error(), secret)
	}
}

func TestB70_KeyMaxAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v7 := func(age time.Duration) string {
			hex := fmt.Sprintf("%012x", time.Now().Add(-age).UnixMilli())
			return hex[:8] + "-" + hex[8:] + "-7b6a-9d0e-2f4c5a6b7c8d"
		}
		policy := KeyMaxAge(time.Hour)
		made := v7(0)
		require.NoError(t, policy(made))
		require.NoError(t, policy(v7(time.Hour)), "exactly as old as allowed")
		require.NoError(t, policy(v7(-100*365*24*time.Hour)), "from the future")
		require.NoError(t, policy("ffffffff-ffff-7fff-bfff-ffffffffffff"), "from the far future")
		old := v7(time.Hour + time.Millisecond)
		require.ErrorIs(t, policy(old), ErrKeyExpired)
		require.ErrorIs(t, policy(strings.ToUpper(old)), ErrKeyExpired)
		require.ErrorIs(t, policy("00000000-0000-7000-8000-000000000000"), ErrKeyExpired)

		for _, other := range []string{
			"", "abc", old + "0", old[:35], "{" + old[:34] + "}", strings.ReplaceAll(old, "-", ""),
			old[:14] + "4" + old[15:], old[:19] + "c" + old[20:], old[:35] + "g", "g" + old[1:], old[:8] + "0" + old[9:],
			"\x10" + old[1:], old[:35] + "@", // bytes that a careless case fold makes digits of
		} {
			require.NoError(t, policy(other), other)
		}

		time.Sleep(time.Hour + time.Millisecond)
		require.ErrorIs(t, policy(made), ErrKeyExpired)
	})
}

func TestKeyMaxAge_Panics(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{0, -time.Hour, MinDuration - 1} {
		require.PanicsWithValue(t, fmt.Sprintf("idempotent: KeyMaxAge: the age is %v; it must be at least 1ms", d), func() { KeyMaxAge(d) })
	}
	require.NotPanics(t, func() { KeyMaxAge(MinDuration) })
}

// A real server, since net/http changes what reaches the header map.
func TestB10_LinesOfARealRequest(t *testing.T) {
	t.Parallel()
	raw := "POST / HTTP/1.1\r\nHost: h\r\nIdempotency-Key: a\r\nidempotency-key: a\r\n\r\n"
	r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader([]byte(raw))))
	require.NoError(t, err)
	_, present, err := headerKey(r.Header, []string{"Idempotency-Key"})
	require.True(t, present)
	require.Equal(t, keyErrLines, err)
}
