package idempotent

import (
	"bytes"
	"crypto/sha256"
	"slices"
	"sync"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// canonicalMaxDepth is how deep arrays and objects may nest. It bounds the
// recursion; no decoder in use needs more.
const canonicalMaxDepth = 1000

// canonicalMaxKept bounds the text buffers that wait for the next request, and
// with them the others: those of a large document are left to the collector.
const canonicalMaxKept = 256 << 10

// canonicalPool saves the buffers' allocation. A parser begins with empty
// buffers and reads only what it has written itself, so nothing of one request
// reaches another.
var canonicalPool = sync.Pool{New: func() any { return newCanonicalParser() }}

// canonicalPlain marks the bytes of a string that stand for themselves and
// need no look at their neighbours.
var canonicalPlain = func() (plain [256]bool) {
	for c := ' '; c < utf8.RuneSelf; c++ {
		plain[c] = c != '"' && c != '\\'
	}
	return plain
}()

// canonicalSum returns the SHA-256 of the canonical form of the JSON document
// src, and false where it has none; see canonicalParser.
func canonicalSum(src []byte) (sum [sha256.Size]byte, ok bool) {
	p := canonicalPool.Get().(*canonicalParser)
	text, ok := p.parse(src)
	if ok {
		sum = sha256.Sum256(text)
	}
	p.src = nil
	if cap(p.out) <= canonicalMaxKept {
		canonicalPool.Put(p)
	}
	return sum, ok
}

// canonicalParser brings a JSON document into a form that is the same for all
// spellings of the same document: no white space, members ordered by name,
// strings in their shortest spelling. It loses nothing: number literals are
// kept byte for byte, because 9007199254740993 and ...992 are two amounts
// though most decoders make one float of them.
//
// What different decoders read differently has no canonical form: text that is
// not strictly RFC 8259, repeated names, invalid UTF-8, lone surrogates,
// nesting beyond canonicalMaxDepth.
//
// It reads once, from left to right, into out, and notes the objects whose
// members are not in order; only where there are any is the text put together
// a second time. Moving the members at the end of each object instead would
// move the innermost text once per level.
type canonicalParser struct {
	src     []byte
	pos     int               // of the next byte of src
	out     []byte            // what was read, in the order of src
	open    []canonicalMember // of the objects being read, the innermost last
	objects []canonicalObject // in order of their start
	members []canonicalMember // of the objects out of order, in canonical order
	ordered []byte            // out with all members in order
}

// newCanonicalParser makes a parser whose notes suffice for a document of one
// or two kilobytes, in one allocation.
func newCanonicalParser() *canonicalParser {
	p := &struct {
		canonicalParser
		open    [32]canonicalMember
		objects [16]canonicalObject
		members [64]canonicalMember
	}{}
	p.canonicalParser.open, p.canonicalParser.objects, p.canonicalParser.members = p.open[:0], p.objects[:0], p.members[:0]
	return &p.canonicalParser
}

// canonicalMember is a place in out.
type canonicalMember struct {
	start, colon, end int // of the name, of the colon, and behind the value
	object            int // index of the first object inside the value, if there is one
}

// canonicalObject is an object that is not in order, or that was begun before
// one such inside it.
type canonicalObject struct {
	start, end  int // in out
	next        int // index of the first object behind it
	first, last int // its members; none where they are in order already
}

// parse returns the canonical form of src, valid until the next call.
func (p *canonicalParser) parse(src []byte) ([]byte, bool) {
	p.src, p.pos = src, 0
	p.out = slices.Grow(p.out[:0], len(src)) // the form is never longer
	p.open, p.objects, p.members = p.open[:0], p.objects[:0], p.members[:0]
	if !p.value(0) || p.next() != 0 || p.pos < len(src) {
		return nil, false
	}
	if len(p.objects) == 0 {
		return p.out, true
	}
	p.ordered = p.order(slices.Grow(p.ordered[:0], len(p.out)), 0, len(p.out), 0)
	return p.ordered, true
}

// order appends out[from:to] to dst, members in order. object is the index of
// the first object that starts at from or behind it. Every object is looked at
// once.
func (p *canonicalParser) order(dst []byte, from, to, object int) []byte {
	for object < len(p.objects) && p.objects[object].start < to {
		o := p.objects[object]
		if o.first == o.last {
			object++
			continue
		}
		dst = append(dst, p.out[from:o.start]...)
		mark := byte('{')
		for _, m := range p.members[o.first:o.last] {
			dst = append(dst, mark)
			dst = p.order(dst, m.start, m.end, m.object)
			mark = ','
		}
		dst = append(dst, '}')
		from, object = o.end, o.next
	}
	return append(dst, p.out[from:to]...)
}

// next skips white space and returns the byte behind it, 0 at the end. A zero
// byte in src fits nowhere outside a string, so the two need no telling apart
// before the end.
func (p *canonicalParser) next() byte {
	for p.pos < len(p.src) {
		c := p.src[p.pos]
		if c > ' ' || c != ' ' && c != '\t' && c != '\n' && c != '\r' {
			return c
		}
		p.pos++
	}
	return 0
}

// take copies the byte that next has shown.
func (p *canonicalParser) take(c byte) {
	p.out = append(p.out, c)
	p.pos++
}

func (p *canonicalParser) value(depth int) bool {
	switch p.next() {
	case '{':
		return depth < canonicalMaxDepth && p.object(depth+1)
	case '[':
		return depth < canonicalMaxDepth && p.array(depth+1)
	case '"':
		return p.string()
	case 't':
		return p.literal("true")
	case 'f':
		return p.literal("false")
	case 'n':
		return p.literal("null")
	}
	return p.number()
}

func (p *canonicalParser) array(depth int) bool {
	p.take('[')
	if p.next() == ']' {
		p.take(']')
		return true
	}
	for p.value(depth) {
		switch p.next() {
		case ',':
			p.take(',')
		case ']':
			p.take(']')
			return true
		default:
			return false
		}
	}
	return false
}

func (p *canonicalParser) object(depth int) bool {
	self, first, inOrder := len(p.objects), len(p.open), true
	p.objects = append(p.objects, canonicalObject{start: len(p.out)})
	p.take('{')
	if p.next() == '}' {
		p.take('}')
		return p.close(self, first, inOrder)
	}
	for p.next() == '"' {
		m := canonicalMember{start: len(p.out), object: len(p.objects)}
		if !p.string() || p.next() != ':' {
			return false
		}
		m.colon = len(p.out)
		p.take(':')
		if !p.value(depth) {
			return false
		}
		m.end = len(p.out)
		if n := len(p.open); inOrder && n > first {
			inOrder = p.compare(p.open[n-1], m) < 0
		}
		p.open = append(p.open, m)
		switch p.next() {
		case ',':
			p.take(',')
		case '}':
			p.take('}')
			return p.close(self, first, inOrder)
		default:
			return false
		}
	}
	return false
}

// close ends the object objects[self], whose members are open[first:]. It
// returns false where a name is repeated.
func (p *canonicalParser) close(self, first int, inOrder bool) bool {
	members := p.open[first:]
	p.open = p.open[:first]
	if inOrder {
		// Without an object out of order inside, there is nothing to note.
		if len(p.objects) == self+1 {
			p.objects = p.objects[:self]
		}
		return true
	}
	slices.SortFunc(members, p.compare)
	for i := 1; i < len(members); i++ {
		if p.compare(members[i-1], members[i]) == 0 {
			return false
		}
	}
	o := &p.objects[self]
	o.end, o.next, o.first = len(p.out), len(p.objects), len(p.members)
	p.members = append(p.members, members...)
	o.last = len(p.members)
	return true
}

// compare orders members by the spelling of their names in out. It is the
// shortest one and each name has one only, so equal spellings are equal names.
func (p *canonicalParser) compare(a, b canonicalMember) int {
	// The byte behind the quote tells most names apart, without a call.
	if x, y := p.out[a.start+1], p.out[b.start+1]; x != y && x != '"' && y != '"' {
		return int(x) - int(y)
	}
	return bytes.Compare(p.out[a.start+1:a.colon-1], p.out[b.start+1:b.colon-1])
}

func (p *canonicalParser) literal(word string) bool {
	if end := p.pos + len(word); end > len(p.src) || string(p.src[p.pos:end]) != word {
		return false
	}
	p.out = append(p.out, word...)
	p.pos += len(word)
	return true
}

func (p *canonicalParser) number() bool {
	from := p.pos
	p.skip('-', '-')
	if !p.skip('0', '0') && !p.digits() {
		return false
	}
	if p.skip('.', '.') && !p.digits() {
		return false
	}
	if p.skip('e', 'E') {
		p.skip('+', '-')
		if !p.digits() {
			return false
		}
	}
	p.out = append(p.out, p.src[from:p.pos]...)
	return true
}

// skip passes over one byte if it is a or b.
func (p *canonicalParser) skip(a, b byte) bool {
	if p.pos == len(p.src) || p.src[p.pos] != a && p.src[p.pos] != b {
		return false
	}
	p.pos++
	return true
}

// digits passes over digits, of which there must be one at least.
func (p *canonicalParser) digits() bool {
	from := p.pos
	for p.pos < len(p.src) && p.src[p.pos]-'0' <= 9 {
		p.pos++
	}
	return p.pos > from
}

func (p *canonicalParser) string() bool {
	src, from, i := p.src, p.pos, p.pos+1
	for {
		for i < len(src) && canonicalPlain[src[i]] {
			i++
		}
		if i == len(src) {
			return false
		}
		switch c := src[i]; {
		case c == '"':
			p.out = append(p.out, src[from:i+1]...)
			p.pos = i + 1
			return true
		case c == '\\':
			p.out = append(p.out, src[from:i]...)
			n := p.escape(src[i:])
			if n == 0 {
				return false
			}
			i += n
			from = i
		case c < ' ':
			return false
		default:
			r, n := utf8.DecodeRune(src[i:])
			if r == utf8.RuneError && n == 1 {
				return false
			}
			i += n
		}
	}
}

// escape appends what the escape at the start of src stands for, and returns
// its length, 0 where it is invalid. The escapes of a surrogate pair are one.
func (p *canonicalParser) escape(src []byte) int {
	if len(src) < 2 {
		return 0
	}
	switch c := src[1]; c {
	case '"', '\\', 'b', 'f', 'n', 'r', 't':
		p.out = append(p.out, '\\', c)
		return 2
	case '/':
		p.out = append(p.out, '/')
		return 2
	}
	r, n := canonicalHex(src), 6
	if utf16.IsSurrogate(r) {
		r, n = utf16.DecodeRune(r, canonicalHex(src[6:])), 12
		if r == unicode.ReplacementChar { // no pair stands for this one
			return 0
		}
	}
	if r < 0 {
		return 0
	}
	p.rune(r)
	return n
}

// rune appends r in the shortest spelling that a string may have.
func (p *canonicalParser) rune(r rune) {
	const digits = "0123456789abcdef"
	switch {
	case r == '"' || r == '\\':
		p.out = append(p.out, '\\', byte(r))
	case r >= ' ':
		p.out = utf8.AppendRune(p.out, r)
	case r == '\b':
		p.out = append(p.out, `\b`...)
	case r == '\f':
		p.out = append(p.out, `\f`...)
	case r == '\n':
		p.out = append(p.out, `\n`...)
	case r == '\r':
		p.out = append(p.out, `\r`...)
	case r == '\t':
		p.out = append(p.out, `\t`...)
	default:
		p.out = append(p.out, `\u00`...)
		p.out = append(p.out, digits[r>>4], digits[r&15])
	}
}

// canonicalHex reads \u and four hex digits at the start of src; -1 where
// there is something else.
func canonicalHex(src []byte) rune {
	if len(src) < 6 || src[0] != '\\' || src[1] != 'u' {
		return -1
	}
	r := rune(0)
	for _, c := range src[2:6] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}
