package idempotent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// Codec turns the results of [Do] into bytes and back. It must be safe for
// concurrent use.
type Codec interface {
	Encode(any) ([]byte, error)
	Decode([]byte, any) error
}

// The first byte of a result recorded by Do tells its encoding.
const (
	encodingJSON  = 'j' // a value by encoding/json
	encodingCodec = 'c' // a value by the codec of the call
	encodingNone  = 'n' // no value: Guard.Do
	encodingError = 'e' // the text of a definite failure's error
)

type jsonCodec struct{}

func (jsonCodec) Encode(v any) ([]byte, error)    { return json.Marshal(v) }
func (jsonCodec) Decode(data []byte, v any) error { return json.Unmarshal(data, v) }

// Do runs fn at most once per key and returns its result; repeats inside the
// retention get the recorded one. It is [Guard.Run] for Go functions.
//
// The first caller gets exactly what fn returned. What repeats get depends on
// what became of fn:
//   - It returned nil: the same result, through the codec (encoding/json, or
//     [WithCallCodec]); [ErrResultUnavailable] where that could not encode it.
//   - It returned an error: [ErrOutcomeUnknown], since it may have happened,
//     unless fn said otherwise. With an error that wraps [ErrFailed], or after
//     [Fail], repeats get a [*FailedError]. With an error that wraps
//     [ErrReleased], or after [Release], the key is free and the next call
//     runs. [WithCallClassify] decides for errors of other packages.
//   - It panicked or ended its goroutine: ErrOutcomeUnknown.
//
// All other errors are those of Run; [ErrCorrupt] also means that the result
// was recorded in another encoding. Errors of fn whose claim was lost while it
// ran match [ErrLost] besides. Do blocks as Run does.
func Do[T any](ctx context.Context, g *Guard, key string, fn func(context.Context) (T, error), opts ...CallOption) (T, error) {
	var value T
	if fn == nil {
		return value, fmt.Errorf("%w: the function is nil", ErrInvalid)
	}
	encoding, codec := byte(encodingJSON), Codec(jsonCodec{})
	if c := newCall(opts).codec; c != nil {
		encoding, codec = encodingCodec, c
	}
	result, replayed, err := g.do(ctx, key, func(ctx context.Context) (err error) {
		value, err = fn(ctx)
		return err
	}, func() string {
		data, err := codec.Encode(value)
		if err != nil {
			return noResult
		}
		return string(rune(encoding)) + string(data)
	}, opts)
	if !replayed || err != nil {
		return value, err
	}
	if result == noResult {
		return value, ErrResultUnavailable
	}
	data, err := cutEncoding(result, encoding)
	if err == nil {
		if err = codec.Decode([]byte(data), &value); err == nil {
			return value, nil
		}
		err = fmt.Errorf("%w: the result does not decode into %T: %w", ErrCorrupt, value, err)
	}
	var zero T
	return zero, err
}

// Do runs fn at most once per key. It is the function [Do] for operations
// without a result.
func (g *Guard) Do(ctx context.Context, key string, fn func(context.Context) error, opts ...CallOption) error {
	if fn == nil {
		return fmt.Errorf("%w: the function is nil", ErrInvalid)
	}
	result, replayed, err := g.do(ctx, key, fn, func() string { return string(rune(encodingNone)) }, opts)
	if !replayed || err != nil || result == noResult {
		return err
	}
	_, err = cutEncoding(result, encodingNone)
	return err
}

// do runs fn and sorts errors: those of fn come back from a first run, those
// of the record from a repeat. Encode is asked for the result of a success. Of
// a repeat, noResult says that the result was not kept.
func (g *Guard) do(ctx context.Context, key string, fn func(context.Context) error, encode func() string, opts []CallOption) (result string, replayed bool, err error) {
	classify := newCall(opts).classify
	var fnErr error
	rec, replayed, err := g.Run(ctx, key, func(ctx context.Context) (Class, string) {
		fnErr = fn(ctx)
		class := saidClass(ctx)
		if class == ClassDefault {
			class = classifyError(fnErr, classify)
		}
		var result string
		switch class {
		case ClassSuccess:
			result = encode()
		case ClassFailure:
			result = EncodeFailure(fnErr)
		}
		if fnErr != nil && errors.Is(context.Cause(ctx), ErrLost) {
			fnErr = fmt.Errorf("%w: %w", ErrLost, fnErr)
		}
		return class, result
	}, opts...)
	switch {
	case err != nil:
		return "", replayed, err
	case !replayed:
		return rec.Result, false, fnErr
	case rec.Class == ClassFailure && rec.missing:
		return "", true, &FailedError{}
	case rec.Class == ClassFailure:
		text, err := cutEncoding(rec.Result, encodingError)
		if err != nil {
			return "", true, err
		}
		return "", true, &FailedError{Text: text}
	case rec.missing:
		return noResult, true, nil
	}
	return rec.Result, true, nil
}

// cutEncoding returns what follows the first byte of a result, which must tell
// the encoding that is wanted.
func cutEncoding(result string, want byte) (string, error) {
	if result == "" || result[0] != want {
		return "", fmt.Errorf("%w: the result begins with %.1q, not with %q; was it recorded by another kind of call or codec?", ErrCorrupt, result, want)
	}
	return result[1:], nil
}

// classifyError is the table of [Do].
func classifyError(err error, classify func(error) Class) Class {
	if err == nil {
		return ClassSuccess
	}
	if classify != nil {
		if c := classify(err); c != ClassDefault {
			return c
		}
	}
	switch {
	case errors.Is(err, ErrReleased):
		return ClassRelease
	case errors.Is(err, ErrFailed):
		return ClassFailure
	}
	return ClassUnknown
}

// EncodeValue returns v as [Do] records it with encoding/json, for
// [Guard.Resolve].
func EncodeValue(v any) (string, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("idempotent: EncodeValue: %w", err)
	}
	return string(rune(encodingJSON)) + string(data), nil
}

// EncodeFailure returns err as [Do] records a definite failure, for
// [Guard.Resolve]. A nil err is a failure without a text.
func EncodeFailure(err error) string {
	if err == nil {
		return string(rune(encodingError))
	}
	return string(rune(encodingError)) + err.Error()
}
