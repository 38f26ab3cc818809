package idempotent

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const recorderTestCap = 1 << 16

// recorderTestLayer protects h with nothing but a recorder and hands what was
// captured to see before it is delivered.
func newRecorder(w http.ResponseWriter, method string, maxBody int64) *recorder {
	rec := new(recorder)
	rec.begin(w, method, maxBody, new(responseRoom))
	return rec
}

func recorderTestLayer(h http.Handler, see func(capture)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := newRecorder(w, r.Method, recorderTestCap)
		h.ServeHTTP(rec, r)
		see(rec.finish(false))
		rec.deliver()
	})
}

// recorderTestReplay answers with a stored record.
func recorderTestReplay(t *testing.T, stored *string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		record, err := decodeResponse(*stored, new(responseRoom))
		if err == nil {
			err = record.replay(w, r)
		}
		if err != nil {
			t.Errorf("replay: %v", err)
		}
	})
}

// recorderTestAnswer is all that a client sees of an answer.
type recorderTestAnswer struct {
	Status   int
	Header   http.Header // without Date
	Dated    bool
	Length   int64
	Encoding []string // of the transfer
	Body     string
	Trailer  http.Header
	Broken   bool // the body ended before its time
}

func recorderTestFetch(t *testing.T, srv *httptest.Server, method, path string) recorderTestAnswer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, srv.URL+path, nil)
	require.NoError(t, err)
	req.Header.Set("Accept-Encoding", "gzip") // no decoding behind our back
	client := *srv.Client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := client.Do(req)
	if err != nil {
		return recorderTestAnswer{Broken: true}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	a := recorderTestAnswer{
		Status: resp.StatusCode, Header: resp.Header, Dated: resp.Header.Get("Date") != "", Length: resp.ContentLength,
		Encoding: resp.TransferEncoding, Body: string(body), Trailer: resp.Trailer, Broken: err != nil,
	}
	a.Header.Del("Date")
	return a
}

type recorderTestCase struct {
	name     string
	method   string // POST where empty
	handler  http.HandlerFunc
	silent   bool              // the handler writes nothing
	broken   bool              // the client sees a broken answer
	tomb     bool              // there is no replay
	http1    bool              // over HTTP/2 net/http does otherwise: only the first answers are compared
	lost     []string          // fields that a replay leaves out
	bodyless bool              // a replay leaves out the body
	gains    map[string]string // trailers that HTTP/1 sends in the replay only
}

// recorderTestCases are handlers whose answers must be the same with a recorder
// and without one, and the same again as a replay.
var recorderTestCases = []recorderTestCase{
	{name: "200", handler: func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }},
	{name: "C083 nothing written", silent: true, handler: func(http.ResponseWriter, *http.Request) {}},
	{name: "C083 header only", silent: true, handler: func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-A", "1") }},
	{name: "C083 empty write", handler: func(w http.ResponseWriter, _ *http.Request) { w.Write(nil) }},
	{name: "header without body", handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201) }},
	{name: "C104 second WriteHeader", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(201)
		w.WriteHeader(500)
		w.WriteHeader(0) // superfluous, so it does not panic either
		w.Header().Set("X-Late", "1")
		io.WriteString(w, "created")
	}},
	{name: "C077 header fields", handler: func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Location", "/orders/7")
		h.Set("ETag", `"v1"`)
		h.Set("Content-Type", "text/plain; charset=utf-8; x=\"y\"")
		h.Add("Link", "<a>; rel=next")
		h.Add("Link", "<b>; rel=prev")
		h.Set("X-Empty", "")
		h["x-lower"] = []string{"kept", "twice"}
		h["X-None"] = []string{}
		h.Set("X-Bytes", "caf\xe9\xff")
		h["Not A Name"] = []string{"dropped by net/http"}
		w.WriteHeader(202)
	}},
	{name: "C077 line breaks", silent: true, http1: true, handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Lines", "a\r\nInjected: b")
	}},
	{name: "C078 one message only", lost: []string{"Set-Cookie", "Age", "Keep-Alive", "Server-Timing", "Traceparent", "Tracestate", "X-Hop", "Connection", "Upgrade", "Proxy-Connection", "Te"}, handler: func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Set-Cookie", "a=b")
		h.Set("Date", "Thu, 01 Jan 1970 00:00:00 GMT")
		h.Set("Age", "7")
		h.Set("Keep-Alive", "timeout=5")
		h.Set("Connection", "x-hop, keep-alive")
		h.Set("X-Hop", "1")
		h.Set("Upgrade", "h2c")
		h.Set("Proxy-Connection", "keep-alive")
		h.Set("TE", "trailers")
		h.Set("Server-Timing", "db;dur=5")
		h.Set("Traceparent", "00-1")
		h.Set("Tracestate", "a=1")
		h.Set("X-Stays", "1")
		h.Set("Content-Length", "2")
		io.WriteString(w, "ok")
	}},
	{name: "C082 all bytes", handler: func(w http.ResponseWriter, _ *http.Request) {
		all := make([]byte, 256)
		for i := range all {
			all[i] = byte(i)
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Write(all)
	}},
	{name: "io.Copy", handler: func(w http.ResponseWriter, _ *http.Request) {
		io.Copy(w, io.LimitReader(strings.NewReader(strings.Repeat("<p>x</p>", 4000)), 30000))
	}},
	{name: "exactly net/http's buffer", handler: func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, strings.Repeat("a", 2048))
	}},
	{name: "one byte more", handler: func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, strings.Repeat("a", 1000))
		io.WriteString(w, strings.Repeat("b", 1049))
	}},
	{name: "C109 first write of one byte", handler: func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "<")
		io.WriteString(w, "html><body>hi</body></html>")
	}},
	{name: "C109 flush after one byte", handler: func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "<")
		w.(http.Flusher).Flush()
		io.WriteString(w, "html><body>hi</body></html>")
	}},
	{name: "C109 type suppressed", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = nil
		io.WriteString(w, "<html>")
	}},
	{name: "C109 type empty", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "")
		io.WriteString(w, "<html>")
	}},
	{name: "C109 coded bodies are not guessed", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		io.WriteString(w, "<html>")
	}},
	{name: "B46 Date suppressed", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Date"] = nil
		io.WriteString(w, "undated")
	}},
	{name: "C103 flush first", handler: func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush() }},
	{name: "C103 flush first then write", handler: func(w http.ResponseWriter, _ *http.Request) {
		http.NewResponseController(w).Flush()
		w.WriteHeader(500)
		w.Header().Set("X-Late", "1")
		io.WriteString(w, "<html>")
	}},
	{name: "flush between", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
		}
		io.WriteString(w, "data: end\n\n")
	}},
	{name: "http.Error", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "99")
		http.Error(w, "no", http.StatusConflict)
	}},
	{name: "http.Redirect", method: "GET", handler: func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	}},
	{name: "http.ServeContent with a range", handler: func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Range", "bytes=2-5")
		http.ServeContent(w, r, "a.txt", time.Unix(1e9, 0), strings.NewReader("0123456789"))
	}},
	{name: "C107 204", http1: true, handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "3")
		w.WriteHeader(204)
		if _, err := w.Write([]byte("abc")); !errors.Is(err, http.ErrBodyNotAllowed) {
			panic(err)
		}
	}},
	{name: "C107 304", http1: true, handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("ETag", `"x"`)
		w.Header().Set("Content-Length", "300")
		w.WriteHeader(304)
	}},
	{name: "B47 205 with a body", bodyless: true, handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(205)
		io.WriteString(w, "reset")
	}},
	{name: "B47 205", handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(205) }},
	{name: "declared length", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5")
		io.WriteString(w, "12345")
	}},
	{name: "invalid length", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "-5")
		io.WriteString(w, strings.Repeat("12345", 1000))
	}},
	{name: "B79 too short", broken: true, tomb: true, handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "10")
		io.WriteString(w, "12345")
	}},
	{name: "B79 declared and silent", silent: true, broken: true, tomb: true, handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "10")
	}},
	{name: "C090 announced trailer", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum, X-Other")
		w.Header().Add("Trailer", "X-Never")
		io.WriteString(w, "body")
		w.Header().Set("X-Sum", "1")
		w.Header()["X-Other"] = []string{"2", "3"}
	}},
	{name: "C090 both kinds", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		io.WriteString(w, "body")
		w.Header().Set("X-Sum", "1")
		w.Header().Set(http.TrailerPrefix+"X-More", "2")
	}},
	{name: "C090 prefix before the head", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(http.TrailerPrefix+"X-More", "1")
		io.WriteString(w, "body")
		w.Header().Set(http.TrailerPrefix+"X-More", "2")
	}},
	{name: "C090 prefix after a flush", handler: func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "body")
		w.(http.Flusher).Flush()
		w.Header().Set(http.TrailerPrefix+"X-More", "2")
	}},
	{name: "C090 prefix too late for HTTP/1", gains: map[string]string{"X-More": "2"}, handler: func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "body")
		w.Header().Set(http.TrailerPrefix+"X-More", "2")
	}},
	{name: "C090 none with a length", http1: true, lost: []string{"Trailer"}, handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set("Content-Length", "4")
		io.WriteString(w, "body")
		w.Header().Set("X-Sum", "1")
	}},
	{name: "C090 forbidden trailer", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "Content-Type, X-Sum")
		io.WriteString(w, "body")
		w.Header().Set("Content-Type", "text/late")
		w.Header().Set("X-Sum", "1")
	}},
	{name: "C105 103 then 201", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</a.css>; rel=preload")
		w.WriteHeader(103)
		w.Header().Del("Link")
		w.Header().Set("X-Final", "1")
		w.WriteHeader(201)
		io.WriteString(w, "made")
	}},
	{name: "C105 interim only", silent: true, handler: func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(100)
		w.WriteHeader(102)
		w.WriteHeader(103)
	}},
	{name: "C089 above the cap in one write", tomb: true, handler: func(w http.ResponseWriter, _ *http.Request) {
		n, err := w.Write(bytes.Repeat([]byte("<b>"), recorderTestCap))
		if n != 3*recorderTestCap || err != nil {
			panic(err)
		}
		io.WriteString(w, "tail")
	}},
	{name: "C089 above the cap in small writes", tomb: true, handler: func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(201)
		for range recorderTestCap/1000 + 10 {
			io.WriteString(w, strings.Repeat("x", 1000))
		}
	}},
	{name: "exactly the cap", handler: func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, strings.Repeat("x", recorderTestCap))
	}},
	{name: "HEAD with a length", method: "HEAD", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "12345")
		w.WriteHeader(200)
	}},
	{name: "HEAD with a body", method: "HEAD", handler: func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "<html>")
	}},
	{name: "C110 TimeoutHandler in time", handler: http.TimeoutHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-A", "1")
		w.WriteHeader(201)
		io.WriteString(w, "in time")
	}), time.Minute, "late").ServeHTTP},
}

func init() {
	for _, status := range []int{200, 201, 202, 204, 205, 302, 304, 400, 409, 418, 422, 500, 599, 999} {
		recorderTestCases = append(recorderTestCases, recorderTestCase{
			name:     fmt.Sprint("C076 status ", status),
			bodyless: status == 205,
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", "/somewhere")
				w.WriteHeader(status)
				io.WriteString(w, "{}")
			},
		})
	}
}

func TestB42_FirstAnswerAndReplay(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{false, true} {
		for _, c := range recorderTestCases {
			t.Run(fmt.Sprintf("%s, HTTP/2 %t", c.name, http2), func(t *testing.T) {
				t.Parallel()
				var got capture
				var stored string
				mux := http.NewServeMux()
				mux.Handle("/bare", c.handler)
				mux.Handle("/recorded", recorderTestLayer(c.handler, func(c capture) { got, stored = c, c.response.encode(c.body) }))
				mux.Handle("/replay", recorderTestReplay(t, &stored))
				srv := recorderTestServer(t, mux, http2)
				method := cmp.Or(c.method, http.MethodPost)

				bare := recorderTestFetch(t, srv, method, "/bare")
				first := recorderTestFetch(t, srv, method, "/recorded")
				require.Equal(t, bare, first, "the first answer is that of the bare handler")
				if http2 && c.http1 {
					return
				}
				require.Equal(t, c.broken, bare.Broken)
				require.Equal(t, c.broken, got.mismatch)
				require.Equal(t, c.silent, !got.wrote)
				require.Equal(t, c.tomb, got.response.unreplayable)
				if c.tomb {
					record, err := decodeResponse(stored, new(responseRoom))
					require.NoError(t, err)
					require.True(t, record.unreplayable)
					if bare.Status != 0 {
						require.Equal(t, bare.Status, record.status)
					}
					require.Empty(t, record.body)
					return
				}
				c.compare(t, http2, first, recorderTestFetch(t, srv, method, "/replay"))
			})
		}
	}
}

// compare compares a replay with the first answer by the rules for replays.
func (c recorderTestCase) compare(t *testing.T, http2 bool, first, got recorderTestAnswer) {
	t.Helper()
	require.Equal(t, []string{"true"}, got.Header[replayedHeader])
	require.Equal(t, first.Status, got.Status)
	require.Equal(t, first.Dated, got.Dated)
	require.False(t, got.Broken)

	body := first.Body
	if c.bodyless {
		body = ""
	}
	require.Equal(t, body, got.Body)

	trailer := http.Header{}
	for name, values := range first.Trailer {
		if values != nil { // announced and never sent: not announced again
			trailer[name] = values
		}
	}
	for name, value := range c.gains {
		trailer.Set(name, value)
	}
	if len(trailer) > 0 || len(got.Trailer) > 0 {
		require.Equal(t, trailer, got.Trailer)
	}

	switch length := got.Header["Content-Length"]; {
	case len(trailer) > 0 && http2: // has a length beside trailers, for small bodies
	case got.Status == 204 || got.Status == 304 || len(trailer) > 0:
		require.Empty(t, length)
	case c.method == http.MethodHead:
		require.Equal(t, first.Header["Content-Length"], length)
	default:
		require.Equal(t, []string{strconv.Itoa(len(body))}, length)
	}

	header := maps.Clone(first.Header)
	for _, name := range append(c.lost, "Content-Length") {
		delete(header, name)
	}
	delete(got.Header, "Content-Length")
	delete(got.Header, replayedHeader)
	require.Equal(t, header, got.Header)
}

func recorderTestServer(t *testing.T, h http.Handler, http2 bool) *httptest.Server {
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	if http2 {
		srv.EnableHTTP2 = true
		srv.StartTLS()
	} else {
		srv.Start()
	}
	t.Cleanup(srv.Close)
	return srv
}

func TestB79_MoreThanDeclared(t *testing.T) {
	t.Parallel()
	handler := func(errs *[]error) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10")
			for _, body := range []string{"12345", "6789012345", "67890"} {
				_, err := io.WriteString(w, body)
				*errs = append(*errs, err)
			}
		})
	}
	var bare, recorded []error
	var got capture
	mux := http.NewServeMux()
	mux.Handle("/bare", handler(&bare))
	mux.Handle("/recorded", recorderTestLayer(handler(&recorded), func(c capture) { got = c }))
	srv := recorderTestServer(t, mux, false)
	want := recorderTestFetch(t, srv, "POST", "/bare")
	require.Equal(t, want, recorderTestFetch(t, srv, "POST", "/recorded"))
	require.True(t, want.Broken)
	require.Equal(t, []error{nil, http.ErrContentLength, http.ErrContentLength}, recorded)
	require.Equal(t, bare, recorded)
	require.True(t, got.mismatch)
	require.True(t, got.response.unreplayable)
}

func TestC105_InterimAnswersGoThrough(t *testing.T) {
	t.Parallel()
	var got capture
	inner := recorderTestLayer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</a.css>; rel=preload")
		w.Header().Set(replayedHeader, "true")
		w.Header().Del("X-Outer")
		w.WriteHeader(103)
		w.Header().Del("Link")
		w.WriteHeader(201)
		w.WriteHeader(103) // too late
	}), func(c capture) { got = c })
	srv := recorderTestServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Outer", "1")
		w.Header().Set("X-Kept", "1")
		inner.ServeHTTP(w, r)
	}), false)

	var interim []http.Header
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
			require.Equal(t, 103, code)
			interim = append(interim, http.Header(header))
			return nil
		},
	})
	req, err := http.NewRequestWithContext(ctx, "POST", srv.URL, nil)
	require.NoError(t, err)
	resp, err := srv.Client().Do(req)
	require.NoError(t, err)
	resp.Body.Close()
	require.Equal(t, []http.Header{{"Link": {"</a.css>; rel=preload"}, "X-Kept": {"1"}}}, interim)
	require.Equal(t, 201, resp.StatusCode)
	require.Empty(t, resp.Header["Link"])
	require.Empty(t, resp.Header["X-Outer"])
	require.Equal(t, []string{"1"}, resp.Header["X-Kept"])
	require.Equal(t, 201, got.response.status)
	require.Equal(t, []responseField{{name: "X-Outer", kind: responseRemove}}, got.response.fields)
}

func TestC106_ImpossibleStatusPanicsAsBare(t *testing.T) {
	t.Parallel()
	for _, status := range []int{-1, 0, 99, 1000} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()
			var bare, recorded any
			catch := func(v *any) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					defer func() { *v = recover() }()
					w.WriteHeader(status)
				})
			}
			var got capture
			mux := http.NewServeMux()
			mux.Handle("/bare", catch(&bare))
			mux.Handle("/recorded", recorderTestLayer(catch(&recorded), func(c capture) { got = c }))
			srv := recorderTestServer(t, mux, false)
			recorderTestFetch(t, srv, "POST", "/bare")
			recorderTestFetch(t, srv, "POST", "/recorded")
			require.NotNil(t, bare)
			require.Equal(t, bare, recorded)
			require.False(t, got.wrote)
		})
	}
}

func TestC079_HandlerCannotMarkItsAnswerAsReplay(t *testing.T) {
	t.Parallel()
	for _, flush := range []bool{false, true} {
		t.Run(fmt.Sprint("flush ", flush), func(t *testing.T) {
			t.Parallel()
			var got capture
			srv := recorderTestServer(t, recorderTestLayer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set(replayedHeader, "true")
				w.Header()["idempotent-replayed"] = []string{"true"}
				w.Header().Set("Trailer", replayedHeader)
				io.WriteString(w, "fresh")
				if flush {
					w.(http.Flusher).Flush()
				}
				w.Header().Set(http.TrailerPrefix+replayedHeader, "true")
			}), func(c capture) { got = c }), false)
			a := recorderTestFetch(t, srv, "POST", "/")
			require.Empty(t, a.Header[replayedHeader])
			require.Empty(t, a.Trailer[replayedHeader])
			require.Equal(t, []string{"Content-Type"}, recorderTestNames(got.response.fields))
		})
	}
}

func TestB45_CookiesAreKeptOnRequestOnly(t *testing.T) {
	t.Parallel()
	for _, keep := range []bool{false, true} {
		w := httptest.NewRecorder()
		rec := newRecorder(w, "POST", 10)
		rec.Header().Add("Set-Cookie", "a=1")
		rec.Header().Add("Set-Cookie", "b=2")
		rec.WriteHeader(200)
		got := rec.finish(keep)
		rec.deliver()
		require.Equal(t, []string{"a=1", "b=2"}, w.Result().Header["Set-Cookie"])
		require.Equal(t, keep, slices.Contains(recorderTestNames(got.response.fields), "Set-Cookie"))
	}
}

func TestB53_OuterFieldsAreOfEachAttempt(t *testing.T) {
	t.Parallel()
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "private")
		h.Add("Vary", "Accept")
		h.Add("X-Chain", "handler")
		h.Del("Content-Type")
		h.Del("X-Powered-By")
		h.Set("X-Own", "handler")
		io.WriteString(w, "<html>")
	})
	var stored string
	mux := http.NewServeMux()
	mux.Handle("/bare", handler)
	mux.Handle("/recorded", recorderTestLayer(handler, func(c capture) { stored = c.response.encode(c.body) }))
	mux.Handle("/replay", recorderTestReplay(t, &stored))
	attempt := 0
	srv := recorderTestServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		attempt++
		h := w.Header()
		h.Set("X-Request-Id", strconv.Itoa(attempt))
		h.Set("X-Chain", strconv.Itoa(attempt))
		h.Set("Content-Type", "application/json")
		h.Set("Vary", "Origin")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Powered-By", "test")
		h.Set("X-Frame-Options", "DENY")
		h["X-Null"] = nil
		mux.ServeHTTP(w, r)
	}), false)
	bare := recorderTestFetch(t, srv, "POST", "/bare")
	first := recorderTestFetch(t, srv, "POST", "/recorded")
	replay := recorderTestFetch(t, srv, "POST", "/replay")
	require.Equal(t, []string{"Origin", "Accept"}, bare.Header["Vary"])
	require.Equal(t, []string{"text/html; charset=utf-8"}, bare.Header["Content-Type"])
	bare.Header.Set("X-Request-Id", "2")
	bare.Header["X-Chain"] = []string{"2", "handler"}
	require.Equal(t, bare, first)
	bare.Header.Set("X-Request-Id", "3")
	bare.Header["X-Chain"] = []string{"3", "handler"}
	bare.Header.Set(replayedHeader, "true")
	require.Equal(t, bare, replay)
	require.Contains(t, stored, "text/html", "guessed once, not by each server anew")
}

// Fields that an outer layer adds after the handler has asked for its header
// are none that the handler deleted.
func TestRecorder_OuterFieldAddedMeanwhile(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	w.Header().Set("X-Early", "1")
	rec := newRecorder(w, "POST", 10)
	rec.Header().Set("X-Own", "1")
	w.Header().Set("Connection", "close") // as http.MaxBytesReader does
	rec.WriteHeader(200)
	got := rec.finish(false)
	rec.deliver()
	require.Equal(t, http.Header{"X-Early": {"1"}, "X-Own": {"1"}, "Connection": {"close"}}, w.Result().Header)
	require.Equal(t, []string{"X-Own"}, recorderTestNames(got.response.fields))
}

func TestRecorder_HeaderIsTheHandlersOwn(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	w.Header()["X-Outer"] = []string{"a", "b"}
	rec := newRecorder(w, "POST", 10)
	h := rec.Header()
	h["X-Outer"][0] = "changed"
	h.Add("X-Other", "1")
	require.Equal(t, http.Header{"X-Outer": {"a", "b"}}, w.Header())
	rec.WriteHeader(201)
	h["X-Outer"][1] = "late"
	h["X-Other"][0] = "late"
	h.Set("X-Late", "1")
	got := rec.finish(false)
	want := http.Header{"X-Outer": {"changed", "b"}, "X-Other": {"1"}}
	require.Equal(t, want, rec.sentHeader())
	rec.deliver()
	require.Equal(t, want, w.Result().Header)
	require.Equal(t, want, rec.sentHeader())
	require.Equal(t, []string{"X-Other", "X-Outer"}, recorderTestNames(got.response.fields))
}

// The middleware finishes once more on its way out, in case of a panic.
func TestRecorder_FinishedOnce(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	rec := newRecorder(w, "POST", 10)
	rec.Header().Set(http.TrailerPrefix+"X-Sum", "1")
	rec.Header().Set("Set-Cookie", "a=1")
	_, _ = io.WriteString(rec, "ok")
	got := rec.finish(true)
	require.Contains(t, recorderTestNames(got.response.fields), "Set-Cookie")
	want := slices.Clone(rec.fields)

	require.Zero(t, rec.finish(false))
	require.Equal(t, want, rec.fields, "nor is a cookie taken back, or a trailer added twice")
}

func TestB50_FlushReachesTheClientAtOnce(t *testing.T) {
	t.Parallel()
	seen := make(chan struct{})
	var got capture
	srv := recorderTestServer(t, recorderTestLayer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: 1\n\n")
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
		select {
		case <-seen:
		case <-r.Context().Done():
		}
		io.WriteString(w, "data: 2\n\n")
	}), func(c capture) { got = c }), false)
	resp, err := srv.Client().Post(srv.URL, "", nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	in := bufio.NewReader(resp.Body)
	line, err := in.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "data: 1\n", line)
	close(seen)
	rest, err := io.ReadAll(in)
	require.NoError(t, err)
	require.Equal(t, "\ndata: 2\n\n", string(rest))
	require.True(t, got.streamed)
	require.False(t, got.response.unreplayable)
	require.Equal(t, "data: 1\n\ndata: 2\n\n", string(got.body))
}

func TestB51_AboveTheCapNothingIsHeld(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	rec := newRecorder(w, "POST", 8)
	rec.Header().Set("Location", "/orders/7")
	rec.Header().Set("X-Other", "1")
	rec.WriteHeader(202)
	io.WriteString(rec, "12345")
	require.False(t, rec.live)
	io.WriteString(rec, "6789")
	require.Equal(t, "123456789", w.Body.String())
	require.Empty(t, rec.body)
	rec.Write([]byte("tail"))
	require.Empty(t, rec.body)
	rec.Header().Set(http.TrailerPrefix+"Location", "trailer")
	got := rec.finish(false)
	rec.deliver()
	require.Equal(t, "123456789tail", w.Body.String())
	require.Equal(t, "trailer", w.Result().Trailer.Get("Location"))
	require.Equal(t, 202, w.Code)
	require.True(t, got.tooLarge)
	record, err := decodeResponse(got.response.encode(got.body), new(responseRoom))
	require.NoError(t, err)
	require.True(t, record.unreplayable)
	require.Equal(t, 202, record.status)
	require.Equal(t, "/orders/7", record.location())
	require.Equal(t, []string{"Location"}, recorderTestNames(record.fields))
}

func TestC101_Hijack(t *testing.T) {
	t.Parallel()
	hijackers := map[string]func(http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error){
		"assertion": func(w http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error) { return w.(http.Hijacker).Hijack() },
		"controller": func(w http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error) {
			return http.NewResponseController(w).Hijack()
		},
	}
	before := map[string]struct {
		do     func(http.ResponseWriter)
		status int
	}{
		"at once":         {func(http.ResponseWriter) {}, 101},
		"after a 101":     {func(w http.ResponseWriter) { w.Header().Set("Upgrade", "echo"); w.WriteHeader(101) }, 101},
		"after a body":    {func(w http.ResponseWriter) { w.Header().Set("Connection", "close"); io.WriteString(w, "lost") }, 200},
		"after a length":  {func(w http.ResponseWriter) { w.Header().Set("Content-Length", "9"); w.WriteHeader(200) }, 200},
		"after a flush":   {func(w http.ResponseWriter) { io.WriteString(w, "kept"); w.(http.Flusher).Flush() }, 200},
		"after the trial": {func(w http.ResponseWriter) { w.Header().Set("X-Unused", "1") }, 101},
	}
	for how, hijack := range hijackers {
		for when, b := range before {
			t.Run(how+" "+when, func(t *testing.T) {
				t.Parallel()
				handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					b.do(w)
					conn, buf, err := hijack(w)
					if err != nil {
						t.Error(err)
						return
					}
					defer conn.Close()
					buf.WriteString("HTTP/1.1 101 Switching Protocols\r\n\r\nraw")
					buf.Flush()
					w.WriteHeader(500)
					if _, err := w.Write([]byte("x")); !errors.Is(err, http.ErrHijacked) {
						t.Errorf("Write after Hijack: %v", err)
					}
					if _, _, err := hijack(w); !errors.Is(err, http.ErrHijacked) {
						t.Errorf("second Hijack: %v", err)
					}
				})
				captured := make(chan capture, 1)
				mux := http.NewServeMux()
				mux.Handle("/bare", handler)
				mux.Handle("/recorded", recorderTestLayer(handler, func(c capture) { captured <- c }))
				srv := recorderTestServer(t, mux, false)
				want := recorderTestRaw(t, srv, "/bare")
				require.Contains(t, want, "raw")
				require.Equal(t, want, recorderTestRaw(t, srv, "/recorded"))
				got := <-captured
				require.True(t, got.hijacked)
				require.True(t, got.wrote)
				require.False(t, got.mismatch)
				require.True(t, got.response.unreplayable)
				require.Equal(t, b.status, got.response.status)
				_, err := decodeResponse(got.response.encode(got.body), new(responseRoom))
				require.NoError(t, err)
			})
		}
	}
}

func TestC101_SwitchingProtocolsWithoutHijack(t *testing.T) {
	t.Parallel()
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Upgrade", "nothing")
		w.WriteHeader(101)
	})
	captured := make(chan capture, 1)
	mux := http.NewServeMux()
	mux.Handle("/bare", handler)
	mux.Handle("/recorded", recorderTestLayer(handler, func(c capture) { captured <- c }))
	srv := recorderTestServer(t, mux, false)
	require.Equal(t, recorderTestRaw(t, srv, "/bare"), recorderTestRaw(t, srv, "/recorded"))
	got := <-captured
	require.True(t, got.hijacked)
	require.True(t, got.response.unreplayable)
}

// recorderTestHijackable can be hijacked, to no avail.
type recorderTestHijackable struct{ *httptest.ResponseRecorder }

func (recorderTestHijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, nil }

func TestC101_NothingIsSentAfterHijack(t *testing.T) {
	t.Parallel()
	w := recorderTestHijackable{httptest.NewRecorder()}
	rec := newRecorder(w, "POST", 10)
	rec.Header().Set("X-A", "1")
	_, _, err := rec.Hijack()
	require.NoError(t, err)
	require.ErrorIs(t, rec.FlushError(), http.ErrHijacked)
	rec.WriteHeader(200)
	rec.finish(false)
	rec.deliver()
	require.False(t, w.Flushed)
	require.Empty(t, w.Header())
	require.Zero(t, w.Body.Len())
}

// With a transfer coding of the handler HTTP/1 guesses no type and HTTP/2 does:
// the choice is left to them, in the replay too.
func TestC109_TransferCoding(t *testing.T) {
	t.Parallel()
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Transfer-Encoding", "chunked")
		io.WriteString(w, "<html>")
	})
	for _, http2 := range []bool{false, true} {
		var names []string
		mux := http.NewServeMux()
		mux.Handle("/bare", handler)
		mux.Handle("/recorded", recorderTestLayer(handler, func(c capture) { names = recorderTestNames(c.response.fields) }))
		srv := recorderTestServer(t, mux, http2)
		require.Equal(t, recorderTestFetch(t, srv, "POST", "/bare"), recorderTestFetch(t, srv, "POST", "/recorded"))
		require.Empty(t, names)
	}
}

// recorderTestRaw sends a request for path and returns every byte that comes
// back, without the date.
func recorderTestRaw(t *testing.T, srv *httptest.Server, path string) string {
	t.Helper()
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", path)
	all, err := io.ReadAll(conn)
	require.NoError(t, err)
	lines := strings.SplitAfter(string(all), "\r\n")
	return strings.Join(slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "Date:") }), "")
}

// recorderTestPlain is a writer without any optional method.
type recorderTestPlain struct{ under http.ResponseWriter }

func (p recorderTestPlain) Header() http.Header         { return p.under.Header() }
func (p recorderTestPlain) WriteHeader(status int)      { p.under.WriteHeader(status) }
func (p recorderTestPlain) Write(b []byte) (int, error) { return p.under.Write(b) }

// recorderTestUnwraps offers nothing but Unwrap beyond that.
type recorderTestUnwraps struct{ recorderTestPlain }

func (u recorderTestUnwraps) Unwrap() http.ResponseWriter { return u.under }

func TestC102_WhatTheWriterBelowCannotDo(t *testing.T) {
	t.Parallel()
	var errs []error
	var got capture
	handler := recorderTestLayer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		rc := http.NewResponseController(w)
		io.WriteString(w, "<html>")
		_, _, err := rc.Hijack()
		errs = append(errs, rc.Flush(), rc.SetReadDeadline(time.Time{}), rc.SetWriteDeadline(time.Time{}), rc.EnableFullDuplex(), err)
		w.(http.Flusher).Flush()
		io.WriteString(w, "body")
	}), func(c capture) { got = c })
	srv := recorderTestServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(recorderTestPlain{w}, r)
	}), false)
	a := recorderTestFetch(t, srv, "POST", "/")
	require.Equal(t, "<html>body", a.Body)
	require.Equal(t, "text/html; charset=utf-8", a.Header.Get("Content-Type"))
	for _, err := range errs {
		require.ErrorIs(t, err, http.ErrNotSupported)
	}
	require.Equal(t, "<html>body", string(got.body))
	require.False(t, got.response.unreplayable)
}

// A flush that cannot be is no sign of a client that has gone.
func TestC102_FlushLast(t *testing.T) {
	t.Parallel()
	rec := newRecorder(recorderTestPlain{httptest.NewRecorder()}, "POST", 10)
	io.WriteString(rec, "body")
	require.ErrorIs(t, rec.FlushError(), http.ErrNotSupported)
	got := rec.finish(false)
	require.False(t, got.cut)
	require.Equal(t, "body", string(got.body))
}

func TestC084_OuterLayerAnswersForASilentHandler(t *testing.T) {
	t.Parallel()
	var got capture
	silent := recorderTestLayer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Error", "in the context")
	}), func(c capture) { got = c })
	srv := recorderTestServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		silent.ServeHTTP(w, r)
		w.WriteHeader(422)
	}), false)
	a := recorderTestFetch(t, srv, "POST", "/")
	require.Equal(t, 422, a.Status)
	require.Equal(t, "in the context", a.Header.Get("X-Error"))
	require.False(t, got.wrote)
}

func TestC102_WriterBelowThatOnlyUnwraps(t *testing.T) {
	t.Parallel()
	answers := make(chan []error, 1)
	handler := recorderTestLayer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		rc := http.NewResponseController(w)
		errs := []error{rc.Flush(), rc.SetReadDeadline(time.Time{}), rc.SetWriteDeadline(time.Time{}), rc.EnableFullDuplex()}
		conn, _, err := rc.Hijack()
		answers <- append(errs, err)
		if err == nil {
			conn.Close()
		}
	}), func(capture) {})
	srv := recorderTestServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(recorderTestUnwraps{recorderTestPlain{w}}, r)
	}), false)
	recorderTestRaw(t, srv, "/")
	require.Equal(t, []error{nil, nil, nil, nil, nil}, <-answers)
}

func TestRecorder_OffersNoWayAround(t *testing.T) {
	t.Parallel()
	var w any = newRecorder(httptest.NewRecorder(), "POST", 10)
	_, unwraps := w.(interface{ Unwrap() http.ResponseWriter })
	require.False(t, unwraps)
	_, readsFrom := w.(io.ReaderFrom)
	require.False(t, readsFrom)
}

func TestC110_TimeoutHandlerInside(t *testing.T) {
	t.Parallel()
	late := make(chan error, 1)
	inner := http.TimeoutHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		_, err := io.WriteString(w, "late")
		for err == nil { // until the time-out has been answered
			_, err = io.WriteString(w, "late")
		}
		late <- err
	}), time.Millisecond, "timed out")
	var got capture
	srv := recorderTestServer(t, recorderTestLayer(inner, func(c capture) { got = c }), false)
	a := recorderTestFetch(t, srv, "POST", "/")
	require.Equal(t, 503, a.Status)
	require.Equal(t, "timed out", a.Body)
	require.ErrorIs(t, <-late, http.ErrHandlerTimeout)
	require.Equal(t, 503, got.response.status)
	require.Equal(t, "timed out", string(got.body))
}

func TestC111_WritesAfterReturn(t *testing.T) {
	t.Parallel()
	for _, flush := range []bool{false, true} {
		t.Run(fmt.Sprint("flush ", flush), func(t *testing.T) {
			t.Parallel()
			var late sync.WaitGroup
			var got capture
			var lateErr error
			handler := func(w http.ResponseWriter) {
				io.WriteString(w, "start")
				if flush {
					w.(http.Flusher).Flush()
				}
				started := make(chan struct{})
				late.Go(func() {
					io.WriteString(w, "first")
					close(started)
					for lateErr == nil {
						_, lateErr = io.WriteString(w, "x")
					}
				})
				<-started
			}
			srv := recorderTestServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				rec := newRecorder(w, r.Method, 1<<40)
				handler(rec)
				got = rec.finish(false)
				rec.deliver()
			}), false)
			a := recorderTestFetch(t, srv, "POST", "/")
			late.Wait()
			require.ErrorIs(t, lateErr, errRecorderFinished)
			require.Equal(t, a.Body, string(got.body))
			require.Regexp(t, "^startfirstx*$", a.Body)
		})
	}
}

func TestC111_EverythingElseAfterReturn(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	rec := newRecorder(w, "POST", 10)
	rec.Header().Set("X-A", "1")
	io.WriteString(rec, "body")
	got := rec.finish(false)
	rec.deliver()

	require.Empty(t, rec.Header())
	rec.WriteHeader(0) // no panic either
	rec.Header().Set("X-Late", "1")
	rec.Flush()
	_, _, hijackErr := rec.Hijack()
	_, writeErr := rec.Write([]byte("late"))
	for _, err := range []error{
		hijackErr, writeErr, rec.FlushError(), rec.EnableFullDuplex(), rec.SetReadDeadline(time.Time{}), rec.SetWriteDeadline(time.Time{}),
	} {
		require.ErrorIs(t, err, errRecorderFinished)
	}
	require.False(t, w.Flushed)
	require.Equal(t, "body", w.Body.String())
	require.Equal(t, "body", string(got.body))
	require.Empty(t, w.Header()["X-Late"])
}

// recorderTestGone is the writer of a client that has gone.
type recorderTestGone struct{ *httptest.ResponseRecorder }

func (recorderTestGone) Write([]byte) (int, error)       { return 0, io.ErrClosedPipe }
func (recorderTestGone) WriteString(string) (int, error) { return 0, io.ErrClosedPipe }
func (recorderTestGone) FlushError() error               { return io.ErrClosedPipe }

func TestRecorder_ClientGoneWhileStreaming(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		do   func(w http.ResponseWriter) error
		cut  bool
		body string
	}{
		{"stops at the failed write", func(w http.ResponseWriter) error {
			w.(http.Flusher).Flush()
			_, err := io.WriteString(w, "part")
			return err
		}, true, ""},
		{"stops at the failed flush", func(w http.ResponseWriter) error {
			io.WriteString(w, "part")
			return http.NewResponseController(w).Flush()
		}, true, ""},
		{"goes on", func(w http.ResponseWriter) error {
			w.(http.Flusher).Flush()
			io.WriteString(w, "part")
			_, err := io.WriteString(w, " and the rest")
			return err
		}, false, "part and the rest"},
		{"had written everything declared", func(w http.ResponseWriter) error {
			w.Header().Set("Content-Length", "4")
			w.(http.Flusher).Flush()
			_, err := io.WriteString(w, "part")
			return err
		}, false, "part"},
		{"is not told", func(w http.ResponseWriter) error {
			io.WriteString(w, "whole")
			w.(http.Flusher).Flush()
			return io.ErrClosedPipe
		}, false, "whole"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			rec := newRecorder(recorderTestGone{httptest.NewRecorder()}, "POST", 100)
			require.ErrorIs(t, c.do(rec), io.ErrClosedPipe)
			got := rec.finish(false)
			require.Equal(t, c.cut, got.cut)
			require.Equal(t, c.cut, got.response.unreplayable)
			require.Equal(t, c.body, string(got.body))
		})
	}
}

func BenchmarkRecorder(b *testing.B) {
	body := bytes.Repeat([]byte("x"), 512)
	w := recorderTestNull{}
	b.ReportAllocs()
	for b.Loop() {
		clear(w)
		rec := newRecorder(w, "POST", 1<<20)
		h := rec.Header()
		h["Content-Type"] = recorderTestJSON
		h["Location"] = recorderTestJSON
		rec.WriteHeader(201)
		rec.Write(body)
		got := rec.finish(false)
		_ = got.response.encode(got.body)
		rec.deliver()
	}
}

var recorderTestJSON = []string{"application/json"}

// recorderTestNull throws an answer away.
type recorderTestNull http.Header

func (n recorderTestNull) Header() http.Header             { return http.Header(n) }
func (recorderTestNull) WriteHeader(int)                   {}
func (recorderTestNull) Write(p []byte) (int, error)       { return len(p), nil }
func (recorderTestNull) WriteString(s string) (int, error) { return len(s), nil }

func recorderTestNames(fields []responseField) []string {
	var names []string
	for _, f := range fields {
		names = append(names, f.name)
	}
	return names
}
