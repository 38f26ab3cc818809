package idempotent

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// errRecorderFinished answers whatever a goroutine of the handler does to the
// response after the handler has returned.
var errRecorderFinished = errors.New("idempotent: response used after the handler returned")

// recorder is the ResponseWriter that a protected handler writes to. It holds
// the answer back until deliver, so that it can be recorded before it is sent.
// The first flush and the byte that passes maxBody end the holding back: from
// there on the client gets everything at once, after a flush with a copy for
// the record. The client gets what it would get without the recorder.
//
// It has no Unwrap and no ReadFrom: both would lead bytes past the record. What
// the writer below cannot do is http.ErrNotSupported here too.
type recorder struct {
	w       http.ResponseWriter
	method  string
	maxBody int64

	// finished is set under mu. The deadlines read it without: they are set
	// to end a write that hangs, with mu held.
	finished atomic.Bool

	// mu guards the rest, and the order of calls to w.
	mu       sync.Mutex
	header   http.Header     // the handler's own; nil until it asks for it
	outer    []string        // the names in w when header was copied from it
	status   int             // final status; 0 until there is one
	silent   bool            // the handler returned without one
	length   int64           // declared Content-Length, or -1
	written  int64           // bytes the handler tried to write
	fields   []responseField // what the handler set, frozen with the status
	typed    bool            // Content-Type is decided
	body     []byte          // what is held for the record
	live     bool            // w has the head and the held body: writes go through
	tooLarge bool            // body was given up
	hijacked bool
	failed   bool // the handler has been told that a write did not reach the client,
	wentOn   bool // and wrote again nevertheless
	room     *responseRoom
	small    [512]byte // room of a small body
}

var (
	_ http.Flusher    = (*recorder)(nil)
	_ http.Hijacker   = (*recorder)(nil)
	_ io.StringWriter = (*recorder)(nil)
)

// capture is what a handler did, as finish found it.
type capture struct {
	response responseRecord // ready to encode but for its body; a tombstone where it cannot be replayed
	body     []byte         // of the response; not to be changed
	wrote    bool           // the handler gave a status, wrote, flushed or hijacked
	streamed bool           // the client has the head already
	hijacked bool           // the connection left HTTP, by Hijack or by a 101
	tooLarge bool           // the body passed the cap
	mismatch bool           // the body is not as long as declared: the client sees a broken answer
	cut      bool           // the handler may have stopped early because the client had gone
}

// begin makes a new recorder one for an answer to a request with that method,
// which holds up to maxBody bytes of body. Its fields stand in room as long as
// they fit.
func (rec *recorder) begin(w http.ResponseWriter, method string, maxBody int64, room *responseRoom) {
	rec.w, rec.method, rec.maxBody, rec.room, rec.length = w, method, maxBody, room, -1
	rec.body = rec.small[:0]
}

// Header returns the handler's header, which starts as a copy of what outer
// layers have set: overwriting and deleting then show as differences.
func (rec *recorder) Header() http.Header {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.finished.Load() {
		return make(http.Header)
	}
	if rec.header == nil {
		rec.copyHeader()
	}
	return rec.header
}

// WriteHeader passes an interim status on and keeps the first final one. It
// panics on an impossible status as net/http does.
func (rec *recorder) WriteHeader(status int) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.hijacked || rec.status != 0 { // finish leaves a status, too
		return
	}
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %v", status))
	}
	if status < 200 && status != http.StatusSwitchingProtocols {
		rec.interim(status)
		return
	}
	rec.freeze(status)
}

// Write holds or sends p by the rules of net/http for a body.
func (rec *recorder) Write(p []byte) (int, error) { return rec.write(len(p), p, "") }

// WriteString is Write without a copy.
func (rec *recorder) WriteString(s string) (int, error) { return rec.write(len(s), nil, s) }

// Flush sends what is held and ends the holding back.
func (rec *recorder) Flush() { _ = rec.flush(false) }

// FlushError is Flush for http.ResponseController.
func (rec *recorder) FlushError() error { return rec.flush(true) }

// Hijack hands the connection over; the recorder does not touch it any more.
func (rec *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	switch {
	case rec.finished.Load():
		return nil, nil, errRecorderFinished
	case rec.hijacked:
		return nil, nil, http.ErrHijacked
	}
	// net/http sends a head that was written before, but not a body.
	early := rec.status != 0 && !rec.live
	if early {
		rec.live = true
		rec.sendHead()
	}
	conn, buf, err := http.NewResponseController(rec.w).Hijack()
	if err == nil {
		rec.hijacked = true
	} else if early {
		_ = rec.sendBody()
	}
	return conn, buf, err
}

// SetReadDeadline is that of http.ResponseController.
func (rec *recorder) SetReadDeadline(t time.Time) error {
	if rec.finished.Load() {
		return errRecorderFinished
	}
	return http.NewResponseController(rec.w).SetReadDeadline(t)
}

// SetWriteDeadline is that of http.ResponseController.
func (rec *recorder) SetWriteDeadline(t time.Time) error {
	if rec.finished.Load() {
		return errRecorderFinished
	}
	return http.NewResponseController(rec.w).SetWriteDeadline(t)
}

// EnableFullDuplex is that of http.ResponseController.
func (rec *recorder) EnableFullDuplex() error {
	if rec.finished.Load() {
		return errRecorderFinished
	}
	return http.NewResponseController(rec.w).EnableFullDuplex()
}

// finish ends the recording, once, when the handler has returned or panicked.
// Whatever the handler still does to the response after that fails and changes
// nothing. A write that hangs is waited for. Called again it does nothing and
// returns the zero value.
func (rec *recorder) finish(keepCookies bool) capture {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.finished.Swap(true) {
		return capture{}
	}

	c := capture{
		wrote:    rec.status != 0 || rec.hijacked,
		streamed: rec.live,
		hijacked: rec.hijacked || rec.status == http.StatusSwitchingProtocols,
		tooLarge: rec.tooLarge,
	}
	switch {
	case rec.status != 0:
	case rec.hijacked:
		// The handler wrote the answer itself. Nobody knows which; leaving
		// HTTP is what 101 means.
		rec.status = http.StatusSwitchingProtocols
	default:
		rec.silent = true
		rec.freeze(http.StatusOK)
	}
	c.mismatch = !rec.hijacked && rec.length >= 0 && rec.written != rec.length &&
		rec.method != http.MethodHead && responseBodyAllowed(rec.status)
	if !rec.typed && !rec.tooLarge && !rec.hijacked {
		rec.resolveType(false)
	}
	// A handler that stops at the first failed write may have left the rest
	// of the body out; one that goes on has not noticed. A length that is met
	// settles it.
	c.cut = rec.failed && !rec.wentOn && !(rec.length >= 0 && rec.written == rec.length)

	c.response = responseRecord{
		status:       rec.status,
		unreplayable: c.hijacked || c.tooLarge || c.mismatch || c.cut,
	}
	if !c.response.unreplayable && responseHasContent(rec.status) {
		c.body = rec.body
	}
	rec.addTrailers()
	c.response.fields = rec.recordedFields(c.response.unreplayable, keepCookies)
	return c
}

// deliver sends the answer to the client as net/http would have sent it
// without a recorder, or what is left of it: trailers after a flush, nothing
// after a hijack. It is called after finish.
func (rec *recorder) deliver() {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	switch {
	case rec.hijacked:
		return
	case rec.silent:
		// An outer layer may still answer.
		rec.applyFields(rec.w.Header())
	case !rec.live:
		rec.live = true
		rec.sendHead()
		_ = rec.sendBody()
	}
	h := rec.w.Header()
	for i := range rec.fields {
		if f := &rec.fields[i]; f.kind >= responseTrailer && len(f.values) > 0 {
			f.apply(h)
		}
	}
}

// sentHeader returns the header of the final answer as a map of its own, for
// classification. It is called after finish.
func (rec *recorder) sentHeader() http.Header {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	h := rec.w.Header().Clone()
	if !rec.live {
		rec.applyFields(h)
	}
	return h
}

func (rec *recorder) write(n int, b []byte, s string) (int, error) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	switch {
	case rec.finished.Load():
		return 0, errRecorderFinished
	case rec.hijacked:
		return 0, http.ErrHijacked
	case rec.status == 0:
		rec.freeze(http.StatusOK)
	}
	if n == 0 {
		return 0, nil
	}
	if !responseBodyAllowed(rec.status) {
		return 0, http.ErrBodyNotAllowed
	}
	// Counted even if refused, as net/http does: the answer is then broken.
	rec.written += int64(n)
	if rec.length >= 0 && rec.written > rec.length {
		return 0, http.ErrContentLength
	}
	rec.wentOn = rec.wentOn || rec.failed

	var err error
	if !rec.tooLarge && int64(len(rec.body)) > rec.maxBody-int64(n) {
		if !rec.live {
			rec.live = true
			rec.sendHead()
			err = rec.sendBody()
		}
		rec.tooLarge = true
		rec.body = nil
	}
	if !rec.tooLarge {
		rec.body = append(append(rec.body, b...), s...) // one of them is empty
	}
	if !rec.live {
		return n, nil
	}
	sent := 0
	if err == nil && b != nil {
		sent, err = rec.w.Write(b)
	} else if err == nil {
		sent, err = io.WriteString(rec.w, s)
	}
	rec.failed = rec.failed || err != nil
	return sent, err
}

// flush starts to send, or goes on. told says whether the handler sees the
// error.
func (rec *recorder) flush(told bool) error {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	switch {
	case rec.finished.Load():
		return errRecorderFinished
	case rec.hijacked:
		return http.ErrHijacked
	case rec.status == 0:
		rec.freeze(http.StatusOK)
	}
	var err error
	if !rec.live {
		rec.live = true
		rec.resolveType(true)
		rec.sendHead()
		err = rec.sendBody()
	}
	if ferr := http.NewResponseController(rec.w).Flush(); err == nil {
		err = ferr
	}
	if told && err != nil && !errors.Is(err, http.ErrNotSupported) {
		rec.failed = true
	}
	return err
}

// interim sends a status below 200 with the handler's header as it is now. The
// outer header is put back: the final one is a difference to it.
func (rec *recorder) interim(status int) {
	h := rec.w.Header()
	if rec.header == nil {
		rec.w.WriteHeader(status)
		return
	}
	outer := maps.Clone(h)
	clear(h)
	for name, values := range rec.header {
		if !responseSaysReplayed(name) {
			h[name] = values
		}
	}
	rec.w.WriteHeader(status)
	clear(h)
	maps.Copy(h, outer)
}

// copyHeader makes the handler's header. Values and the outer names share one
// slice; the handler can reach its own values only.
func (rec *recorder) copyHeader() {
	from := rec.w.Header()
	rec.header = make(http.Header, len(from))
	if len(from) == 0 {
		return
	}
	n := len(from)
	for _, values := range from {
		n += len(values)
	}
	texts := make([]string, 0, n)
	for name, values := range from {
		if values == nil {
			rec.header[name] = nil
			continue
		}
		first := len(texts)
		texts = append(texts, values...)
		rec.header[name] = texts[first:len(texts):len(texts)]
	}
	first := len(texts)
	for name := range from {
		texts = append(texts, name)
	}
	rec.outer = texts[first:]
}

// freeze fixes the final status and the header fields that go with it.
func (rec *recorder) freeze(status int) {
	rec.status = status
	if rec.header == nil {
		return
	}
	outer := rec.w.Header()
	rec.fields = rec.room.fields[:0]
	values := rec.room.values[:0]
	for name, set := range rec.header {
		f := responseField{name: name, kind: responseSet}
		if was, ok := outer[name]; ok {
			switch n := len(was); {
			case slices.Equal(was, set):
				continue
			case n > 0 && len(set) > n && slices.Equal(was, set[:n]):
				set, f.kind = set[n:], responseAdd
			}
		}
		if responseSaysReplayed(name) {
			continue // only a replay may say so
		}
		first := len(values)
		values = append(values, set...)
		f.values = values[first:len(values):len(values)]
		rec.fields = append(rec.fields, f)
	}
	// Only names that the handler has seen: outer layers may have added some
	// since, as http.MaxBytesReader does.
	for _, name := range rec.outer {
		if _, kept := rec.header[name]; !kept {
			rec.fields = append(rec.fields, responseField{name: name, kind: responseRemove})
		}
	}
	if lines := rec.header["Content-Length"]; len(lines) > 0 {
		if declared, err := strconv.ParseInt(lines[0], 10, 64); err == nil && declared >= 0 {
			rec.length = declared
		}
	}
}

// resolveType settles Content-Type where the handler left it to net/http,
// which looks at the first bytes it has when the head leaves: none, if that is
// at a flush before the first write, and then it sends no Content-Type.
func (rec *recorder) resolveType(flushed bool) {
	rec.typed = true
	if !responseBodyAllowed(rec.status) {
		return
	}
	if _, ok := rec.head("Content-Type"); ok {
		return
	}
	if coding, _ := rec.head("Content-Encoding"); len(coding) > 0 && coding[0] != "" {
		return
	}
	if te, _ := rec.head("Transfer-Encoding"); len(te) > 0 {
		return // HTTP/1 guesses nothing then, HTTP/2 does
	}
	f := responseField{name: "Content-Type", kind: responseSet}
	switch {
	case len(rec.body) == 0 && flushed:
		// Suppressed: a replay has the whole body at hand and would guess.
	case len(rec.body) == 0:
		return
	default:
		f.values = []string{http.DetectContentType(rec.body)}
	}
	if i := slices.IndexFunc(rec.fields, func(f responseField) bool { return f.name == "Content-Type" }); i >= 0 {
		rec.fields[i] = f // the handler deleted what was set outside
	} else {
		rec.fields = append(rec.fields, f)
	}
}

// head returns a field of the final header, before it is sent.
func (rec *recorder) head(name string) ([]string, bool) {
	if rec.header == nil {
		values, ok := rec.w.Header()[name]
		return values, ok
	}
	for i := range rec.fields {
		if f := &rec.fields[i]; f.name == name {
			return f.values, f.kind != responseRemove
		}
	}
	values, ok := rec.w.Header()[name]
	return values, ok
}

// sendHead sends the frozen header and status.
func (rec *recorder) sendHead() {
	rec.applyFields(rec.w.Header())
	rec.w.WriteHeader(rec.status)
}

// sendBody sends what is held.
func (rec *recorder) sendBody() error {
	if len(rec.body) == 0 {
		return nil
	}
	_, err := rec.w.Write(rec.body)
	return err
}

// applyFields does to h what the handler did to its header.
func (rec *recorder) applyFields(h http.Header) {
	for i := range rec.fields {
		if f := &rec.fields[i]; f.kind < responseTrailer {
			f.apply(h)
		}
	}
}

// addTrailers adds the trailers to the fields. Announced ones are those that
// the handler, not a layer outside, put into the Trailer field.
func (rec *recorder) addTrailers() {
	if rec.header == nil || rec.hijacked {
		return
	}
	var announced []string
	for i := range rec.fields {
		if f := &rec.fields[i]; f.name == "Trailer" {
			announced = f.values
		}
	}
	for _, list := range announced {
		for _, name := range responseTokens(list) {
			rec.addTrailer(responseTrailer, http.CanonicalHeaderKey(name), rec.header[http.CanonicalHeaderKey(name)])
		}
	}
	for key, values := range rec.header {
		if name, ok := strings.CutPrefix(key, http.TrailerPrefix); ok {
			rec.addTrailer(responseTrailerUn, name, values)
		}
	}
}

func (rec *recorder) addTrailer(kind responseKind, name string, values []string) {
	if responseSaysReplayed(name) {
		return
	}
	rec.fields = append(rec.fields, responseField{name: name, kind: kind, values: slices.Clone(values)})
}

// recordedFields returns the fields that come back in a replay: the first of
// rec.fields, after sorting.
func (rec *recorder) recordedFields(tombstone, keepCookies bool) []responseField {
	// net/http sends no trailers where a length is declared.
	trailers := rec.length < 0 && responseBodyAllowed(rec.status)
	connection, _ := rec.head("Connection")
	recorded := 0
	for i := range rec.fields {
		f := &rec.fields[i]
		keep := responseRecorded(f, connection, keepCookies)
		switch {
		case tombstone:
			keep = f.name == "Location" && f.kind <= responseAdd
		case f.kind >= responseTrailer:
			keep = keep && trailers
		case f.name == "Content-Length":
			// An answer to HEAD has no body that could be measured instead.
			keep = rec.method == http.MethodHead && rec.length >= 0
		}
		f.skip = !keep
		if keep {
			recorded++
		}
	}
	responseSort(rec.fields)
	return rec.fields[:recorded:recorded]
}
