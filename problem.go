package idempotent

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// DefaultProblemBase is what the type of a problem document begins with unless
// [WithProblemBase] says otherwise; the code follows.
const DefaultProblemBase = "https://pkg.go.dev/github.com/idempotent-go/idempotent#"

// problem is one kind of refusal. The handler did not run, except where the
// detail says so.
type problem struct {
	code       string
	status     int
	title      string
	detail     string
	retryable  bool // the same key may be sent again
	newKeySafe bool // a new key cannot make the operation happen twice
	state      string
}

// The refusals of the middleware. Texts are fixed: nothing of a request, a
// record or an error reaches another client through them.
var (
	problemKeyMissing = problem{
		code: "key-missing", status: http.StatusBadRequest, title: "Idempotency key missing",
		detail:     "This operation needs an Idempotency-Key header. Send a new random key, such as a UUID, and the same one with every retry of this operation.",
		newKeySafe: true,
	}
	problemKeyInvalid = problem{
		code: "key-invalid", status: http.StatusBadRequest, title: "Idempotency key invalid",
		newKeySafe: true,
	}
	problemBodyUnreadable = problem{
		code: "body-unreadable", status: http.StatusBadRequest, title: "Request body unreadable",
		detail:    "The request body did not arrive whole or could not be read. Nothing was done; send it again with the same key.",
		retryable: true,
	}
	problemUnauthenticated = problem{
		code: "unauthenticated", status: http.StatusUnauthorized, title: "Authentication required",
		detail:    "Nobody is logged in. Nothing was done; log in and send the request again with the same key.",
		retryable: true,
	}
	problemInFlight = problem{
		code: "in-flight", status: http.StatusConflict, title: "Operation in flight",
		detail:    "An earlier request with this key is still running. Send the request again with the same key after the pause in Retry-After.",
		retryable: true, state: "pending",
	}
	problemOutcomeUnknown = problem{
		code: "outcome-unknown", status: http.StatusConflict, title: "Outcome unknown",
		detail: "An earlier request with this key ended without a known outcome: it may have happened. It is not run again. Find out what became of it before sending a new key.",
		state:  "unknown",
	}
	problemResultUnavailable = problem{
		code: "result-unavailable", status: http.StatusConflict, title: "Result unavailable",
		detail: "An earlier request with this key has been carried out, but its answer cannot be repeated. It is not run again.",
	}
	problemKeyExpired = problem{
		code: "key-expired", status: http.StatusPreconditionFailed, title: "Idempotency key expired",
		detail: "The key is too old to tell whether its operation has been carried out. Find out what became of it before sending a new key.",
	}
	problemBodyTooLarge = problem{
		code: "body-too-large", status: http.StatusRequestEntityTooLarge, title: "Request body too large",
		detail: "The request body is larger than this operation accepts. Nothing was done.",
	}
	problemKeyReused = problem{
		code: "key-reused", status: http.StatusUnprocessableEntity, title: "Idempotency key reused",
		detail: "This key was used before with another request, which may have succeeded. Nothing was done. Send the first request again to learn what became of it; use a new key only for a new operation.",
	}
	problemOperationAborted = problem{
		code: "operation-aborted", status: http.StatusInternalServerError, title: "Operation aborted",
		detail: "The operation with this key ended abruptly: it may have happened. It is not run again.",
		state:  "unknown",
	}
	problemRecordCorrupt = problem{
		code: "record-corrupt", status: http.StatusInternalServerError, title: "Record corrupt",
		detail: "What is recorded under this key cannot be read. Nothing was done, and nothing will be under this key.",
	}
	problemInternal = problem{
		code: "internal", status: http.StatusInternalServerError, title: "Internal error",
		detail:    "The request could not be prepared. Nothing was done; it may be sent again with the same key.",
		retryable: true,
	}
	problemStoreUnavailable = problem{
		code: "store-unavailable", status: http.StatusServiceUnavailable, title: "Idempotency store unavailable",
		detail:    "This key cannot be claimed now, so nothing was done. Send the request again with the same key after the pause in Retry-After.",
		retryable: true,
	}
	problemStoreFull = problem{
		code: "store-full", status: http.StatusServiceUnavailable, title: "Idempotency store full",
		detail:    "There is no room for a new key now, so nothing was done. Send the request again with the same key after the pause in Retry-After.",
		retryable: true,
	}
)

// problemExtra is what a refusal says of one request.
type problemExtra struct {
	retryAfter time.Duration // zero: no Retry-After
	firstSeen  time.Time
	trace      string
	state      string // in place of the problem's own
	status     int    // of the answer that cannot be repeated
	location   string
	replayed   bool // it is what the record says
}

// problemDocument is the body of a refusal (RFC 9457).
type problemDocument struct {
	Type           string `json:"type"`
	Title          string `json:"title"`
	Status         int    `json:"status"`
	Detail         string `json:"detail,omitempty"`
	Code           string `json:"code"`
	Retryable      bool   `json:"retryable"`
	NewKeySafe     bool   `json:"new_key_safe"`
	State          string `json:"state,omitempty"`
	FirstSeen      string `json:"first_seen,omitempty"`
	Trace          string `json:"trace,omitempty"`
	OriginalStatus int    `json:"original_status,omitempty"`
	Location       string `json:"location,omitempty"`
}

// header sets the fields of a refusal, and takes out what outer layers have
// set for an answer of the handler.
func (p problem) header(h http.Header, base string, extra problemExtra) {
	ownHeader(h, "application/problem+json")
	h.Add("Link", "<"+base+p.code+`>; rel="help"`)
	if extra.replayed {
		h.Set(replayedHeader, "true")
	}
	if extra.retryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(retryAfterSeconds(extra.retryAfter), 10))
	}
}

// ownHeader prepares h for an answer of this package in place of the
// handler's.
func ownHeader(h http.Header, contentType string) {
	for _, name := range []string{
		"Content-Length", "Content-Encoding", "Content-Range", "Content-Location", "Content-Digest", "Repr-Digest",
		"Etag", "Last-Modified", "Expires", "Accept-Ranges", "Trailer", "Retry-After", replayedHeader,
	} {
		h.Del(name)
	}
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
}

// body returns the problem document.
func (p problem) body(base string, extra problemExtra) []byte {
	doc := problemDocument{
		Type: base + p.code, Title: p.title, Status: p.status, Detail: p.detail, Code: p.code,
		Retryable: p.retryable, NewKeySafe: p.newKeySafe, State: p.state,
		FirstSeen: documentTime(extra.firstSeen), Trace: extra.trace, OriginalStatus: extra.status, Location: extra.location,
	}
	if extra.state != "" {
		doc.State = extra.state
	}
	return encodeDocument(doc)
}

// documentTime is how an answer of this package tells a time; "" where there is
// none.
func documentTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// encodeDocument returns an answer of this package in one line, with its end.
func encodeDocument(doc any) []byte {
	data, err := json.Marshal(doc)
	if err != nil {
		panic("idempotent: a document does not encode: " + err.Error()) // strings, numbers and bools do
	}
	return append(data, '\n')
}

// writeDocument sends an answer of this package, whose other fields are set.
func writeDocument(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// retryAfterSeconds rounds up, because the field has whole seconds and a
// client that comes early is refused again.
func retryAfterSeconds(d time.Duration) int64 {
	return max(1, int64((d+time.Second-1)/time.Second))
}
