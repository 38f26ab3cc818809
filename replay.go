package idempotent

import (
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// responseDecodedMax bounds what a replay inflates for a client that does not
// accept the recorded content coding, so that a small record cannot fill the
// memory.
const responseDecodedMax = 32 << 20

// errNotAcceptable: the request does not accept the content coding of the
// recorded response, and it cannot be undone. Nothing was written.
var errNotAcceptable = errors.New("idempotent: recorded content coding not acceptable to the request")

// replay answers req with the recorded response on top of what outer layers
// have set in w. It hands its slices to w: a record is decoded anew for every
// replay. The only error is errNotAcceptable, and then w is untouched; a client
// that does not take the answer is none. A tombstone must not be replayed.
func (r *responseRecord) replay(w http.ResponseWriter, req *http.Request) error {
	content, err := r.content(req)
	if err != nil {
		return err
	}
	h := w.Header()
	fields := r.fields
	if content.recoded {
		fields = slices.DeleteFunc(slices.Clone(fields), responseDescribesCoding)
	}
	trailers := false
	for i := range fields {
		if f := &fields[i]; f.kind < responseTrailer {
			f.apply(h)
		} else {
			trailers = true
		}
	}
	if content.recoded {
		if content.coding != "" {
			h.Set("Content-Encoding", content.coding)
		}
		if !responseHasToken(h["Vary"], "Accept-Encoding") {
			h.Add("Vary", "Accept-Encoding")
		}
	}

	added := append(r.spare[:0], "true", content.length)
	h[replayedHeader] = added[0:1:1]
	switch {
	case r.status == http.StatusNoContent || r.status == http.StatusNotModified || trailers:
		// Trailers need chunks, which have no length; net/http would drop
		// them.
		delete(h, "Content-Length")
	case req.Method == http.MethodHead && (content.body == "" || r.field("Content-Length") != nil):
		// The recorded field, or none, describes the body that is not sent.
	case firstLine(h, "Content-Encoding") != "" && content.coding == "":
		// An outer layer encodes what we write; the length is its business.
		delete(h, "Content-Length")
	default:
		h["Content-Length"] = added[1:2:2]
	}
	if trailers {
		responseAnnounce(h, fields)
	}

	w.WriteHeader(r.status)
	if content.body != "" && req.Method != http.MethodHead {
		_, _ = io.WriteString(w, content.body)
	}
	for i := range fields {
		if f := &fields[i]; f.kind == responseTrailer {
			f.apply(h)
		}
	}
	return nil
}

// responseAnnounce prepares h for trailers before the head is sent. Those that
// the handler had not announced must be there already: net/http looks for them
// when it decides between a length and chunks.
func responseAnnounce(h http.Header, fields []responseField) {
	for i := range fields {
		switch f := &fields[i]; f.kind {
		case responseTrailer:
			if !responseHasToken(h["Trailer"], f.name) {
				h["Trailer"] = append(slices.Clip(h["Trailer"]), f.name)
			}
		case responseTrailerUn:
			f.apply(h)
		}
	}
}

// responseContent is the body as one replay sends it.
type responseContent struct {
	body    string
	length  string // len(body) in decimal digits
	coding  string // what Content-Encoding says of it; "" for nothing
	recoded bool   // codings were undone
}

// content returns the recorded body in a coding that req accepts. Recorded
// codings are undone from the last to the first until the rest is acceptable.
// A request that says nothing accepts everything by RFC 9110, but what it can
// read is not known: it gets no coding where that is possible.
func (r *responseRecord) content(req *http.Request) (responseContent, error) {
	as := responseContent{body: r.body, length: r.length, coding: strings.Join(r.field("Content-Encoding"), ", ")}
	if as.length == "" {
		as.length = strconv.Itoa(len(r.body))
	}
	if as.coding == "" || as.body == "" {
		return as, nil
	}
	accept, said := req.Header["Accept-Encoding"]
	codings := responseTokens(as.coding)
	got := as
	for len(codings) > 0 && !responseAcceptsAll(accept, codings) {
		last := len(codings) - 1
		body, err := responseUncode(got.body, codings[last])
		if err != nil {
			if !said {
				return as, nil
			}
			return responseContent{}, errNotAcceptable
		}
		codings = codings[:last]
		got.body, got.recoded = body, true
	}
	if !got.recoded {
		return as, nil
	}
	if len(codings) == 0 && said && !responseAccepts(accept, "identity") {
		return responseContent{}, errNotAcceptable
	}
	got.length = strconv.Itoa(len(got.body))
	got.coding = strings.Join(codings, ", ")
	return got, nil
}

// responseUncode undoes one content coding.
func responseUncode(body, coding string) (string, error) {
	var zr io.ReadCloser
	var err error
	switch strings.ToLower(coding) {
	case "identity":
		return body, nil
	case "gzip", "x-gzip":
		zr, err = gzip.NewReader(strings.NewReader(body))
	case "deflate":
		zr, err = zlib.NewReader(strings.NewReader(body))
	default:
		return "", errNotAcceptable
	}
	if err != nil {
		return "", err
	}
	defer zr.Close()
	var plain strings.Builder
	n, err := io.Copy(&plain, io.LimitReader(zr, responseDecodedMax+1))
	if err != nil {
		return "", err
	}
	if n > responseDecodedMax {
		return "", errNotAcceptable
	}
	return plain.String(), nil
}

// responseAcceptsAll reports whether a client that sent the Accept-Encoding
// lines can read a body with these codings.
func responseAcceptsAll(lines, codings []string) bool {
	for _, c := range codings {
		if !responseAccepts(lines, c) {
			return false
		}
	}
	return true
}

// responseAccepts reports whether the Accept-Encoding lines allow coding. A
// coding that is not named is as good as "*"; without that, only identity is
// allowed. A weight that cannot be read refuses.
func responseAccepts(lines []string, coding string) bool {
	allowed := strings.EqualFold(coding, "identity")
	named := false
	for _, line := range lines {
		for item := range strings.SplitSeq(line, ",") {
			name, params, _ := strings.Cut(item, ";")
			name = strings.TrimSpace(name)
			switch {
			case responseSameCoding(name, coding):
				allowed, named = responseWeight(params), true
			case name == "*" && !named:
				allowed = responseWeight(params)
			}
		}
	}
	return allowed
}

func responseSameCoding(a, b string) bool {
	return strings.EqualFold(strings.TrimPrefix(strings.ToLower(a), "x-"), strings.TrimPrefix(strings.ToLower(b), "x-"))
}

// responseWeight reports whether the parameters of an Accept-Encoding item
// give it a weight above zero, which they do without a weight.
func responseWeight(params string) bool {
	for p := range strings.SplitSeq(params, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(p), "=")
		if strings.EqualFold(strings.TrimSpace(name), "q") {
			q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return err == nil && q > 0
		}
	}
	return true
}

// responseDescribesCoding reports whether the field holds only for the body in
// its recorded coding. A weak ETag does not promise equal bytes.
func responseDescribesCoding(f responseField) bool {
	switch http.CanonicalHeaderKey(f.name) {
	case "Content-Encoding", "Content-Digest", "Repr-Digest", "Content-Md5", "Digest":
		return true
	case "Etag":
		return len(f.values) > 0 && !strings.HasPrefix(f.values[0], "W/")
	}
	return false
}
