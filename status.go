package idempotent

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// The refusals of the status handler alone. None of them says anything of an
// operation but problemNoRecord.
var (
	problemNoRecord = problem{
		code: "no-record", status: http.StatusNotFound, title: "No record",
		detail:    "Nothing is recorded under this key: no request with it has arrived, it was refused without effect, or its record has gone. The same request may be sent with the same key.",
		retryable: true,
	}
	problemMethodNotAllowed = problem{
		code: "method-not-allowed", status: http.StatusMethodNotAllowed, title: "Method not allowed",
		detail: "What became of a key is asked for with GET.",
	}
)

// The states that a status query tells. A pending key that was freed because
// nothing happened is told as released to those who were watching it.
const (
	statePending  = "pending"
	stateSuccess  = "success"
	stateFailed   = "failed"
	stateUnknown  = "unknown"
	stateReleased = "released"
)

// statusDocument is the answer to a status query.
type statusDocument struct {
	State          string `json:"state"`
	Since          string `json:"since,omitempty"`      // when it became so
	FirstSeen      string `json:"first_seen,omitempty"` // when the key was first claimed
	Expires        string `json:"expires,omitempty"`    // end of the lease, or of the retention
	Trace          string `json:"trace,omitempty"`
	OriginalStatus int    `json:"original_status,omitempty"`
	Location       string `json:"location,omitempty"`
}

// StatusHandler returns a handler that says what became of a key, for clients
// whose answer was lost and for those that were answered 202 (see
// [WithStatusURL]). It never runs, claims or extends anything. Mount it for
// GET, behind the same authentication as the guarded routes:
//
//	mux.Handle("GET /operations", guard.StatusHandler(principal))
//	// GET /operations?key=3f1c&path=/orders
//
// The query names the operation: key, without its quotes; path, as the client
// sent it, still escaped and without its query; and method, POST where it is
// left out. Where the guarded routes have [WithPrincipalScope], key stands
// alone. The principal must be the one of the operation, so principal is
// usually the function that Middleware was given.
//
// The answer is a JSON document: state (pending, success, failed, unknown);
// since when; first_seen, the time of the first claim; expires, the end of the
// lease or of the retention; the trace of the caller whose request ran or runs;
// and, once it is known, original_status and location of its answer. The
// answer itself is had by sending the request again. Without a record, and for
// the records of other principals, it is 404 no-record.
//
// With "Prefer: wait=N" a pending key is answered when its operation ends, at
// most after N seconds and [WithMaxWait]. A client that accepts
// text/event-stream gets the state as a server-sent event named after it, and
// the next one when it changes, "released" included, for at most WithMaxWait;
// after that an EventSource reconnects by itself, and once the key is no longer
// pending it is told, by 204, to stop. Of the options WithMaxWait,
// [WithMaxWaiters] and [WithProblemBase] count. StatusHandler panics on a nil
// principal; the handler is safe for concurrent use and works while the guard
// is draining.
func (g *Guard) StatusHandler(principal PrincipalFunc, opts ...HTTPOption) http.Handler {
	return &statusHandler{handler{middleware: newMiddleware(g, "StatusHandler", principal, opts)}}
}

type statusHandler struct{ handler }

// ServeHTTP answers one status query.
func (s *statusHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		s.refuse(w, problemMethodNotAllowed, problemExtra{})
		return
	}
	method, path, key, refusal := statusQuery(r.URL.RawQuery)
	if refusal != nil {
		s.refuse(w, *refusal, problemExtra{})
		return
	}
	principal, refusal := s.principalOf(r)
	if refusal != nil {
		s.refuse(w, *refusal, problemExtra{})
		return
	}
	e, found, err := s.guard.load(r.Context(), StoreKey(method, path, principal, key))
	switch {
	case err != nil:
		s.refuseRead(w, err)
	case !found:
		s.refuse(w, problemNoRecord, problemExtra{})
	case r.Method == http.MethodGet && acceptsEvents(r.Header["Accept"]):
		s.stream(w, r, e)
	default:
		s.say(w, r, e)
	}
}

// say answers with the state, after the wait that the client prefers.
func (s *statusHandler) say(w http.ResponseWriter, r *http.Request, e Entry) {
	if wait, preferred := s.waitOf(r); preferred && e.Status == Pending {
		now, found, waited, err := s.awaitEnd(r, e, wait)
		switch {
		case err != nil:
			s.refuseRead(w, err)
			return
		case found == free:
			s.refuse(w, problemNoRecord, problemExtra{})
			return
		}
		e = now
		if waited {
			w.Header().Set("Preference-Applied", waitPreference(wait))
		}
	}
	ownHeader(w.Header(), "application/json")
	if e.Status == Pending {
		w.Header().Set("Retry-After", strconv.FormatInt(retryAfterSeconds(retryPause), 10))
	}
	writeDocument(w, http.StatusOK, encodeDocument(statusOf(e)))
}

// stream answers with the state and, if it is pending, with the next one. It
// ends then, or after the longest wait, so that it holds up no shutdown; the
// client comes back.
func (s *statusHandler) stream(w http.ResponseWriter, r *http.Request, e Entry) {
	seen := r.Header.Get("Last-Event-ID") == eventID(e)
	if seen && e.Status != Pending {
		w.WriteHeader(http.StatusNoContent) // an EventSource reconnects until it is told this
		return
	}
	ownHeader(w.Header(), "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	fmt.Fprintf(w, "retry: %d\n\n", retryPause.Milliseconds())
	if !seen {
		writeEvent(w, eventID(e), statusOf(e))
	}
	if e.Status != Pending {
		return
	}
	if err := http.NewResponseController(w).Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return
	}
	now, found, _, err := s.awaitEnd(r, e, s.maxWait)
	switch {
	case err != nil:
		// Nothing can be said in the middle of a stream but its end.
	case found == free:
		writeEvent(w, "", statusDocument{State: stateReleased})
	case now.Status != Pending:
		writeEvent(w, eventID(now), statusOf(now))
	}
}

// awaitEnd waits until the operation of e has ended.
func (s *statusHandler) awaitEnd(r *http.Request, e Entry, wait time.Duration) (now Entry, found finding, waited bool, err error) {
	// Whoever asks here need not know the request: the record's own
	// fingerprint stands for it.
	c := call{fingerprint: e.Fingerprint, trace: cleanTrace(s.trace(r)), wait: wait, waiters: s.waiters}
	now, found, err = s.guard.await(r.Context(), e, &c, new(waiting))
	return now, found, c.waited, err
}

// refuseRead answers that a record cannot be read, which says nothing of the
// operation.
func (s *statusHandler) refuseRead(w http.ResponseWriter, err error) {
	if errors.Is(err, ErrCorrupt) {
		p := problemRecordCorrupt
		p.detail = "What is recorded under this key cannot be read."
		s.refuse(w, p, problemExtra{})
		return
	}
	p := problemStoreUnavailable
	p.detail = "What is recorded under this key cannot be read now. Ask again after the pause in Retry-After."
	s.refuse(w, p, problemExtra{retryAfter: retryPause})
}

// statusQuery reads which operation is asked for. A path or a method that is
// given twice is as wrong as a key: one of them would be ignored.
func statusQuery(raw string) (method, path, key string, refusal *problem) {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return "", "", "", statusInvalid("The query is malformed.")
	}
	for _, name := range []string{"key", "path", "method"} {
		if len(query[name]) > 1 {
			return "", "", "", statusInvalid("The query names " + name + " more than once.")
		}
	}
	key, path, method = query.Get("key"), query.Get("path"), query.Get("method")
	switch {
	case key == "":
		p := problemKeyMissing
		p.detail = "The query names no key."
		return "", "", "", &p
	case len(key) > maxKeyBytes:
		return "", "", "", statusInvalid(keyErrLong.Error())
	case path == "" && method != "":
		return "", "", "", statusInvalid("The query names a method without a path.")
	case path != "" && method == "":
		method = http.MethodPost
	}
	return method, path, key, nil
}

func statusInvalid(detail string) *problem {
	p := problemKeyInvalid
	p.detail = detail
	return &p
}

// statusLocation is where base tells of an operation; see statusQuery. Path is
// "" where the key is unique per principal.
func statusLocation(base, method, path, key string) string {
	query := url.Values{"key": {key}}
	if path != "" {
		query.Set("path", path)
		if method != http.MethodPost {
			query.Set("method", method)
		}
	}
	return base + "?" + query.Encode()
}

// statusOf is what may be said of an entry.
func statusOf(e Entry) statusDocument {
	doc := statusDocument{
		State: stateOf(e), Since: documentTime(e.Timestamp), FirstSeen: documentTime(e.Claimed), Expires: documentTime(e.Expires), Trace: e.Trace,
	}
	if e.Result == noResult && e.Unknown {
		doc.OriginalStatus = problemOperationAborted.status // what repeats get
		return doc
	}
	var room responseRoom
	// A key that is pending or abandoned has no result, what Do or another
	// adapter has recorded has no status, and what cannot be read has none that
	// is known: the state stands.
	if response, err := decodeResponse(e.Result, &room); err == nil {
		doc.OriginalStatus, doc.Location = response.status, response.location()
	}
	return doc
}

func stateOf(e Entry) string {
	switch classOf(e) {
	case ClassSuccess:
		return stateSuccess
	case ClassFailure:
		return stateFailed
	case ClassUnknown:
		return stateUnknown
	}
	return statePending
}

// eventID tells the states of one key apart.
func eventID(e Entry) string {
	return stateOf(e) + "-" + strconv.FormatInt(e.Timestamp.UnixMicro(), 36)
}

func writeEvent(w http.ResponseWriter, id string, doc statusDocument) {
	if id != "" {
		id = "id: " + id + "\n"
	}
	fmt.Fprintf(w, "%sevent: %s\ndata: %s\n", id, doc.State, encodeDocument(doc))
}

// acceptsEvents reports whether a client names text/event-stream: one that
// accepts everything cannot be expected to read it.
func acceptsEvents(lines []string) bool {
	for _, line := range lines {
		for item := range strings.SplitSeq(line, ",") {
			name, params, _ := strings.Cut(item, ";")
			if strings.EqualFold(strings.TrimSpace(name), "text/event-stream") {
				return responseWeight(params)
			}
		}
	}
	return false
}
