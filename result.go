package idempotent

import (
	"encoding/json"
	"net/http"
)

// ResultEncoding says in which form a result was recorded.
type ResultEncoding string

// The encodings of a recorded result. The zero value is none of them.
const (
	ResultNone     ResultEncoding = "none"     // the outcome is known, or not yet, and there is no result
	ResultResponse ResultEncoding = "response" // an HTTP answer: the middleware, or EncodeResponse
	ResultJSON     ResultEncoding = "json"     // a value by encoding/json: Do, or EncodeValue
	ResultCodec    ResultEncoding = "codec"    // a value by the codec that WithCallCodec gave Do
	ResultNoValue  ResultEncoding = "no-value" // a success without a value: Guard.Do
	ResultFailure  ResultEncoding = "failure"  // the text of a definite failure's error: Do, or EncodeFailure
	ResultText     ResultEncoding = "text"     // whatever Guard.Run or an adapter of another package recorded
)

// Result is a recorded result in parts, for people who look after a store.
type Result struct {
	Encoding ResultEncoding
	Text     string // the body, the encoded value, or the text, byte for byte

	// What follows is of ResultResponse only.
	Status      int
	Header      http.Header // what the handler set, without what is left out of replays; never nil
	Trailer     http.Header // never nil
	Unavailable bool        // too large, hijacked or broken: repeats get 409 result-unavailable
}

// DecodeResult reads the result of e, as [Store.Load] returned it. [Guard.Run]
// records texts as they are, so that one which happens to look like another
// encoding is read as that. The error wraps [ErrCorrupt] or [ErrNewerFormat].
func DecodeResult(e Entry) (Result, error) {
	switch {
	case e.Status == Pending, e.Abandoned(), e.Result == noResult:
		return Result{Encoding: ResultNone}, nil
	case e.Result == "":
		return Result{Encoding: ResultText}, nil
	}
	first, rest := e.Result[0], e.Result[1:]
	known := e.Status == Success
	switch {
	case first == responseMagic && (rest == "" || rest[0] < ' '): // a text goes on with a letter
		return decodeResponseResult(e.Result)
	case first == encodingJSON && known && json.Valid([]byte(rest)):
		return Result{Encoding: ResultJSON, Text: rest}, nil
	case first == encodingCodec && known:
		return Result{Encoding: ResultCodec, Text: rest}, nil
	case first == encodingNone && known && rest == "":
		return Result{Encoding: ResultNoValue}, nil
	case first == encodingError && e.Status == Failed && !e.Unknown:
		return Result{Encoding: ResultFailure, Text: rest}, nil
	}
	return Result{Encoding: ResultText, Text: e.Result}, nil
}

func decodeResponseResult(result string) (Result, error) {
	var room responseRoom
	response, err := decodeResponse(result, &room)
	if err != nil {
		return Result{}, err
	}
	r := Result{
		Encoding: ResultResponse, Text: response.body, Status: response.status,
		Header: http.Header{}, Trailer: http.Header{}, Unavailable: response.unreplayable,
	}
	for i := range response.fields {
		f := &response.fields[i]
		switch {
		case len(f.values) == 0: // kept from being sent
		case f.kind < responseTrailer:
			r.Header[f.name] = append(r.Header[f.name], f.values...)
		default:
			r.Trailer[f.name] = append(r.Trailer[f.name], f.values...)
		}
	}
	return r, nil
}
