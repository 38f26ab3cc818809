package idempotent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// canonicalString is a fresh parser's answer.
func canonicalString(src string) (string, bool) {
	text, ok := newCanonicalParser().parse([]byte(src))
	return string(text), ok
}

func TestB24_SameDocument(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, src, want string }{
		{"white space", " \t\r\n{ \"a\" : [ 1 , 2 ] , \"b\" : { } }\n", `{"a":[1,2],"b":{}}`},
		{"members in order", `{"a":1,"b":2}`, `{"a":1,"b":2}`},
		{"members out of order", `{"b":2,"a":1}`, `{"a":1,"b":2}`},
		{"prefix of another name", `{"ab":1,"a":2,"":3}`, `{"":3,"a":2,"ab":1}`},
		{"byte below the quote", `{"a!":1,"a":2}`, `{"a":2,"a!":1}`},
		{"by bytes, not by UTF-16 units", `{"😀":1,"豈":2}`, `{"豈":2,"😀":1}`},
		{"nested, inner out of order", `{"a":{"y":1,"x":2},"b":[{"d":1,"c":2}]}`, `{"a":{"x":2,"y":1},"b":[{"c":2,"d":1}]}`},
		{"nested, outer out of order", `{"b":{"x":1,"y":2},"a":[{}]}`, `{"a":[{}],"b":{"x":1,"y":2}}`},
		{"nested, all out of order", `[{"b":{"y":{"n":1,"m":2},"x":0},"a":{"q":1,"p":2}},{"z":1,"a":2}]`, `[{"a":{"p":2,"q":1},"b":{"x":0,"y":{"m":2,"n":1}}},{"a":2,"z":1}]`},
		{"in order around out of order", `{"a":{"b":{"d":1,"c":2},"e":{}},"f":{"h":1,"g":2}}`, `{"a":{"b":{"c":2,"d":1},"e":{}},"f":{"g":2,"h":1}}`},
		{"escaped letter", `"\u0041\u00e9\u4E2d"`, `"Aé中"`},
		{"escaped slash", `"\/"`, `"/"`},
		{"escaped quote and backslash", `"\u0022\u005c\"\\"`, `"\"\\\"\\"`},
		{"surrogate pair", `"\uD83D\uDE00"`, `"😀"`},
		{"control characters", `"\u0008\u000C\u000a\u000d\u0009\b\f\n\r\t\u0000\u001F"`, `"\b\f\n\r\t\b\f\n\r\t\u0000\u001f"`},
		{"line separators stay", "\"\u2028\\u2028\u007f\\u007F\ufffd\\ufffd\"", "\"\u2028\u2028\u007f\u007f\ufffd\ufffd\""},
		{"escaped name", `{"\u0062":1,"a":2}`, `{"a":2,"b":1}`},
		{"scalars", ` null `, `null`},
		{"true", `true`, `true`},
		{"false", `false`, `false`},
		{"empty string", `""`, `""`},
		{"numbers as written", `[0,-0,0.0,1.0,1E2,1e+02,-1.50e-7,9007199254740993,1e999]`, `[0,-0,0.0,1.0,1E2,1e+02,-1.50e-7,9007199254740993,1e999]`},
		{"greatest depth", strings.Repeat("[", 1000) + strings.Repeat("]", 1000), strings.Repeat("[", 1000) + strings.Repeat("]", 1000)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, ok := canonicalString(test.src)
			require.True(t, ok)
			require.Equal(t, test.want, got)
			again, ok := canonicalString(got)
			require.True(t, ok)
			require.Equal(t, got, again, "the form of the form")
		})
	}
}

func TestB25_OtherDocument(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, a, b string }{
		{"array order", `[1,2]`, `[2,1]`},
		{"null and absent", `{"a":null}`, `{}`},
		{"null and absent in an array", `[null]`, `[]`},
		{"number spelling", `1`, `1.0`},
		{"exponent spelling", `1e2`, `1E2`},
		{"sign of zero", `0`, `-0`},
		{"beyond 2^53", `9007199254740992`, `9007199254740993`},
		{"beyond float64", `0.1`, `0.1000000000000000055511151231257827`},
		{"number and string", `1`, `"1"`},
		{"true and string", `true`, `"true"`},
		{"composed and decomposed", `"é"`, `"e\u0301"`},
		{"case of a name", `{"a":1}`, `{"A":1}`},
		{"empty object and array", `{}`, `[]`},
		{"value moved to another name", `{"a":1,"b":2}`, `{"a":2,"b":1}`},
		{"member moved to another object", `[{"a":1},{}]`, `[{},{"a":1}]`},
		{"text that looks like members", `{"a":"1,\"b\":2"}`, `{"a":"1","b":2}`},
		{"escape and its text", `"\n"`, `"\\n"`},
		{"NUL and nothing", `"\u0000"`, `""`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			a, ok := canonicalString(test.a)
			require.True(t, ok)
			b, ok := canonicalString(test.b)
			require.True(t, ok)
			require.NotEqual(t, a, b)
		})
	}
}

func TestB26_NoCanonicalForm(t *testing.T) {
	t.Parallel()
	for name, src := range map[string]string{
		"nothing":                    "",
		"blanks":                     " \n",
		"trailing text":              `{} x`,
		"two documents":              `{}{}`,
		"trailing NUL":               "{}\x00",
		"leading NUL":                "\x00{}",
		"byte order mark":            "\ufeff{}",
		"other white space":          "\v1",
		"no-break space":             "1\u00a0",
		"repeated name":              `{"a":1,"a":1}`,
		"repeated name, escaped":     `{"a":1,"\u0061":2}`,
		"repeated name, apart":       `{"a":1,"c":2,"b":3,"a":4}`,
		"repeated name, deep":        `[{"x":{"a":1,"b":2,"a":1}}]`,
		"repeated empty name":        `{"":1,"":2}`,
		"invalid UTF-8":              "\"\xff\"",
		"invalid UTF-8, cut":         "\"\xe4\xb8\"",
		"invalid UTF-8, overlong":    "\"\xc0\x80\"",
		"invalid UTF-8, surrogate":   "\"\xed\xa0\x80\"",
		"invalid UTF-8 in a name":    "{\"\xff\":1}",
		"lone high surrogate":        `"\ud83d"`,
		"lone high surrogate, text":  `"\ud83dxxxxxx"`,
		"lone low surrogate":         `"\ude00"`,
		"surrogates reversed":        `"\ude00\ud83d"`,
		"high surrogate twice":       `"\ud83d\ud83d"`,
		"surrogate and escape":       `"\ud83d\n"`,
		"surrogate cut":              `"\ud83d\ude0"`,
		"control character":          "\"\x01\"",
		"newline in a string":        "\"\n\"",
		"unknown escape":             `"\x41"`,
		"upper-case escape":          `"\U0041"`,
		"single quote escape":        `"\'"`,
		"short escape":               `"\u004"`,
		"escape with a bad digit":    `"\u004g"`,
		"escape at the end":          `"\`,
		"no closing quote":           `"abc`,
		"single quotes":              `'a'`,
		"comma at the end of array":  `[1,]`,
		"comma at the end of object": `{"a":1,}`,
		"comma alone":                `[,]`,
		"no comma":                   `[1 2]`,
		"no comma in object":         `{"a":1 "b":2}`,
		"no colon":                   `{"a" 1}`,
		"no value":                   `{"a":}`,
		"no name":                    `{:1}`,
		"name without quotes":        `{a:1}`,
		"number as a name":           `{1:1}`,
		"open array":                 `[1`,
		"open object":                `{"a":1`,
		"open object after comma":    `{"a":1,`,
		"brackets crossed":           `[{]}`,
		"closing alone":              `]`,
		"leading zero":               `01`,
		"leading zero, negative":     `-01`,
		"plus":                       `+1`,
		"minus alone":                `-`,
		"point at the start":         `.5`,
		"point at the end":           `1.`,
		"exponent alone":             `1e`,
		"exponent sign alone":        `1e+`,
		"hexadecimal":                `0x1`,
		"NaN":                        `NaN`,
		"Infinity":                   `-Infinity`,
		"word cut":                   `tru`,
		"word too long":              `nulll`,
		"word in upper case":         `True`,
		"comment":                    `{} // x`,
		"too deep":                   strings.Repeat("[", 1001) + strings.Repeat("]", 1001),
		"too deep, objects":          strings.Repeat(`{"a":`, 1001) + "1" + strings.Repeat("}", 1001),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ok := canonicalString(src)
			require.False(t, ok, "%q", got)
		})
	}
}

// The oracle: encoding/json, which shares no code and no idea with the parser.

// oracleCanonical brings src into a form by decoding it to a tree of maps and
// marshalling that. False where decoders may read src differently.
func oracleCanonical(src []byte) (string, bool) {
	if !json.Valid(src) || !utf8.Valid(src) || oracleLoneSurrogate(src) {
		return "", false
	}
	d := json.NewDecoder(bytes.NewReader(src))
	d.UseNumber()
	tree, ok := oracleValue(d, 0)
	if !ok {
		return "", false
	}
	if _, err := d.Token(); err != io.EOF {
		return "", false
	}
	text, err := json.Marshal(tree)
	return string(text), err == nil
}

func oracleValue(d *json.Decoder, depth int) (any, bool) {
	token, err := d.Token()
	if err != nil || depth > 1000 {
		return nil, false
	}
	switch token {
	case json.Delim('['):
		list := []any{}
		for d.More() {
			v, ok := oracleValue(d, depth+1)
			if !ok {
				return nil, false
			}
			list = append(list, v)
		}
		_, err = d.Token()
		return list, err == nil && depth < 1000
	case json.Delim('{'):
		members := map[string]any{}
		for d.More() {
			name, err := d.Token()
			if err != nil {
				return nil, false
			}
			if _, twice := members[name.(string)]; twice {
				return nil, false
			}
			v, ok := oracleValue(d, depth+1)
			if !ok {
				return nil, false
			}
			members[name.(string)] = v
		}
		_, err = d.Token()
		return members, err == nil && depth < 1000
	}
	return token, true
}

// oracleLoneSurrogate looks for what encoding/json replaces without a word.
// src is valid JSON, so that a backslash begins an escape or ends one.
func oracleLoneSurrogate(src []byte) bool {
	unit := func(i int) uint64 {
		if i+6 > len(src) || src[i] != '\\' || src[i+1] != 'u' {
			return 0
		}
		n, err := strconv.ParseUint(string(src[i+2:i+6]), 16, 16)
		if err != nil {
			return 0
		}
		return n
	}
	for i := 0; i < len(src); i++ {
		if src[i] != '\\' {
			continue
		}
		switch u := unit(i); {
		case u >= 0xd800 && u < 0xdc00:
			if low := unit(i + 6); low < 0xdc00 || low > 0xdfff {
				return true
			}
			i += 11
		case u >= 0xdc00 && u <= 0xdfff:
			return true
		default:
			i++ // an escaped backslash is not the start of the next escape
		}
	}
	return false
}

// requireAsOracle fails unless parser and oracle agree on which of the
// documents have a form, and on which of those are the same.
func requireAsOracle(t *testing.T, docs ...[]byte) {
	t.Helper()
	type forms struct{ ours, oracle string }
	var all []forms
	for _, doc := range docs {
		oracle, want := oracleCanonical(doc)
		ours, got := canonicalString(string(doc))
		if got != want {
			t.Fatalf("%q has a form: got %v (%q), want %v (%q)", doc, got, ours, want, oracle)
		}
		if got {
			if len(ours) > len(doc) {
				t.Fatalf("%q grew to %q", doc, ours)
			}
			all = append(all, forms{ours, oracle})
		}
	}
	for i, a := range all {
		for _, b := range all[i+1:] {
			if (a.ours == b.ours) != (a.oracle == b.oracle) {
				t.Fatalf("%q and %q: same %v, by the oracle %v", a.ours, b.ours, a.ours == b.ours, a.oracle == b.oracle)
			}
		}
	}
}

func FuzzCanonicalJSON(f *testing.F) {
	for _, seed := range []string{
		`{"b":{"y":1,"x":[2,{"d":null,"c":-1.5e+7}]},"a":"\u0041\n\/\ud83d\ude00"}`, `[1,1.0,"1",true,null]`, `{"a":1,"\u0061":2}`,
		`"\ud83d"`, "\"\xff\"", `{"":{"":{}}}`, "[1 2]", `{"a"}`, ` 0 `, "\"\\\\ud800\"",
	} {
		f.Add([]byte(seed), uint64(1))
	}
	f.Fuzz(func(t *testing.T, doc []byte, seed uint64) {
		docs := [][]byte{doc}
		if oracle, ok := oracleCanonical(doc); ok {
			// The oracle's own spelling, another spelling of the same
			// document, and one that may be another document.
			docs = append(docs, []byte(oracle))
			d := json.NewDecoder(bytes.NewReader(doc))
			d.UseNumber()
			var tree any
			if err := d.Decode(&tree); err != nil {
				t.Fatal(err)
			}
			g := canonicalGenerator{rand.New(rand.NewPCG(seed, 1))}
			docs = append(docs, g.spell(nil, tree), g.spell(nil, g.change(tree)))
		}
		requireAsOracle(t, docs...)
	})
}

// canonicalGenerator makes documents, spellings of them, and small changes.
type canonicalGenerator struct{ *rand.Rand }

func (g canonicalGenerator) value(depth int) any {
	n := g.IntN(9)
	if depth == 0 {
		n %= 6
	}
	switch n {
	case 0:
		return nil
	case 1:
		return g.IntN(2) == 0
	case 2, 3:
		return json.Number([]string{"0", "-0", "1", "1.0", "10", "1e1", "1E1", "1e+1", "-0.5", "9007199254740992", "9007199254740993"}[g.IntN(11)])
	case 4, 5:
		return g.text()
	case 6:
		list := make([]any, g.IntN(4))
		for i := range list {
			list[i] = g.value(depth - 1)
		}
		return list
	}
	members := map[string]any{}
	for range g.IntN(6) {
		members[g.text()] = g.value(depth - 1)
	}
	return members
}

func (g canonicalGenerator) text() string {
	var b strings.Builder
	for range g.IntN(4) {
		b.WriteRune([]rune("aAb!\"\\/\b\f\n\r\t\x00\x1f\x7fé\u2028\ufffd中😀")[g.IntN(20)])
	}
	return b.String()
}

// spell appends one of the spellings of v.
func (g canonicalGenerator) spell(b []byte, v any) []byte {
	b = append(b, []string{"", "", " ", "\n\t", "\r"}[g.IntN(5)]...)
	switch v := v.(type) {
	case string:
		b = g.spellText(b, v)
	case []any:
		b = append(b, '[')
		for i, e := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = g.spell(b, e)
		}
		b = append(b, ']')
	case map[string]any:
		names := make([]string, 0, len(v))
		for name := range v {
			names = append(names, name)
		}
		slices.Sort(names) // so that a seed means the same in every run
		g.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		b = append(b, '{')
		for i, name := range names {
			if i > 0 {
				b = append(b, ',')
			}
			b = g.spellText(b, name)
			b = append(b, []string{":", " :"}[g.IntN(2)]...)
			b = g.spell(b, v[name])
		}
		b = append(b, '}')
	default:
		b = fmt.Append(b, map[any]string{nil: "null", true: "true", false: "false"}[v])
		if n, ok := v.(json.Number); ok {
			b = append(b, n...)
		}
	}
	return append(b, []string{"", "", " "}[g.IntN(3)]...)
}

func (g canonicalGenerator) spellText(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s {
		short := strings.IndexRune("\"\\/\b\f\n\r\t", r)
		switch {
		case short >= 0 && g.IntN(2) == 0:
			b = append(b, '\\', `"\/bfnrt`[short])
		case r < ' ' || r == '"' || r == '\\' || g.IntN(3) == 0:
			if r > 0xffff {
				b = fmt.Appendf(b, `\u%04x\u%04X`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
			} else {
				b = fmt.Appendf(b, []string{`\u%04x`, `\u%04X`}[g.IntN(2)], r)
			}
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}

// change returns v with one small change, which can be none at all.
func (g canonicalGenerator) change(v any) any {
	switch v := v.(type) {
	case []any:
		if len(v) == 0 {
			return []any{nil}
		}
		list := slices.Clone(v)
		if i := g.IntN(len(list)); g.IntN(2) == 0 {
			list[i] = g.change(list[i])
		} else {
			j := g.IntN(len(list))
			list[i], list[j] = list[j], list[i]
		}
		return list
	case map[string]any:
		members := map[string]any{}
		names := make([]string, 0, len(v))
		for name, e := range v {
			members[name] = e
			names = append(names, name)
		}
		if len(names) == 0 {
			return map[string]any{"": nil}
		}
		slices.Sort(names)
		name := names[g.IntN(len(names))]
		if g.IntN(3) == 0 {
			delete(members, name)
		} else {
			members[name] = g.change(members[name])
		}
		return members
	}
	return g.value(1)
}

func TestB24_GeneratedDocuments(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3000) {
		g := canonicalGenerator{rand.New(rand.NewPCG(seed, 0))}
		v := g.value(4)
		a, b := g.spell(nil, v), g.spell(nil, v)
		requireAsOracle(t, a, b, g.spell(nil, g.change(v)), g.spell(nil, g.value(2)))

		ours, ok := canonicalString(string(a))
		require.True(t, ok, "%q", a)
		other, ok := canonicalString(string(b))
		require.True(t, ok, "%q", b)
		require.Equal(t, ours, other)

		// Any single byte changed or cut.
		i := g.IntN(len(a))
		broken := slices.Clone(a)
		broken[i] = byte(g.IntN(256))
		requireAsOracle(t, a, broken, a[:i], a[i:], slices.Delete(slices.Clone(a), i, i+1))
	}
}

// A parser is used again and again, also after documents it gave up on.
func TestCanonical_ParserIsReused(t *testing.T) {
	t.Parallel()
	p := newCanonicalParser()
	for seed := range uint64(2000) {
		g := canonicalGenerator{rand.New(rand.NewPCG(seed, 2))}
		doc := g.spell(nil, g.value(4))
		if g.IntN(3) == 0 {
			doc = doc[:g.IntN(len(doc))]
		}
		want, wantOK := canonicalString(string(doc))
		got, ok := p.parse(doc)
		require.Equal(t, wantOK, ok)
		require.Equal(t, want, string(got))
	}
}

// canonicalAdversaries are documents of about size bytes on which a careless
// parser takes quadratic time.
func canonicalAdversaries(size int) map[string]string {
	repeat := func(s string) string { return strings.Repeat(s, size/len(s)+1) }
	members := func(name func(i int) string) string {
		var b strings.Builder
		b.WriteByte('{')
		for i := 0; b.Len() < size; i++ {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, `"%s":0`, name(i))
		}
		return b.String() + "}"
	}
	// Out of order at every level, the bulk at the bottom: moving members at
	// the end of each object would move the bulk a thousand times.
	levels := strings.Repeat(`{"b":`, 999) + `"` + repeat("x") + `"` + strings.Repeat(`,"a":0}`, 999)
	return map[string]string{
		"open arrays":        repeat("["),
		"open objects":       repeat(`{"a":`),
		"levels":             levels,
		"falling names":      members(func(i int) string { return fmt.Sprintf("%07d", 9999999-i) }),
		"long equal names":   members(func(i int) string { return strings.Repeat("p", 1000) + fmt.Sprintf("%07d", i*7919%9999991) }),
		"shuffled names":     members(func(i int) string { return fmt.Sprintf("%07d", i*7919%9999991) }),
		"repeated names":     members(func(i int) string { return fmt.Sprint(i % 100) }),
		"empty objects":      "[" + repeat("{},") + "{}]",
		"unordered objects":  "[" + repeat(`{"b":0,"a":0},`) + "0]",
		"ordered around one": "[" + repeat(`{"a":{"c":0,"b":0}},`) + "0]",
		"escapes":            `"` + repeat(`\u0041`) + `"`,
		"pairs":              `"` + repeat(`\ud83d\ude00`) + `"`,
		"backslashes":        `"` + repeat(`\\`) + `"`,
		"digits":             repeat("1"),
		"blanks":             "[" + repeat(" ") + "]",
	}
}

// Not a timing assertion: the ceiling is there for what would take minutes.
func TestCanonical_Adversaries(t *testing.T) {
	t.Parallel()
	start := time.Now()
	for name, doc := range canonicalAdversaries(1 << 18) {
		got, ok := canonicalString(doc)
		_, want := oracleCanonical([]byte(doc))
		require.Equal(t, want, ok, name)
		require.LessOrEqual(t, len(got), len(doc), name)
	}
	require.Less(t, time.Since(start), 2*time.Minute)
}

// The work that a document costs grows with its size and no faster. It is
// counted in what the parser notes and writes, since times are not repeatable.
func TestCanonical_NotesAreLinear(t *testing.T) {
	t.Parallel()
	for name, doc := range canonicalAdversaries(1 << 18) {
		p := newCanonicalParser()
		p.parse([]byte(doc))
		require.LessOrEqual(t, len(p.out), len(doc), name)
		require.LessOrEqual(t, len(p.ordered), len(doc), name)
		require.LessOrEqual(t, 5*cap(p.members), 2*len(doc)+512, name)
		require.LessOrEqual(t, 5*cap(p.objects), 2*len(doc)+512, name)
	}
}

func BenchmarkCanonicalAdversaries(b *testing.B) {
	for _, size := range []int{1 << 16, 1 << 20} {
		for name, doc := range canonicalAdversaries(size) {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				p, src := newCanonicalParser(), []byte(doc)
				b.SetBytes(int64(len(doc)))
				for b.Loop() {
					p.parse(src)
				}
			})
		}
	}
}
