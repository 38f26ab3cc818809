package idempotent_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
)

// What each kind of call records is read back as that kind.
func TestDecodeResult(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	t.Cleanup(func() { require.NoError(t, store.Close()) }) // a defer would run before the subtests do
	guard := idempotent.New(store)

	run := func(class idempotent.Class, result string) func(context.Context, string) error {
		return func(ctx context.Context, key string) error {
			_, _, err := guard.Run(ctx, key, func(context.Context) (idempotent.Class, string) { return class, result })
			return err
		}
	}
	answer := func(h http.HandlerFunc, opts ...idempotent.HTTPOption) func(context.Context, string) error {
		return func(_ context.Context, key string) error {
			r := httptest.NewRequest(http.MethodPost, "/", nil)
			r.Header.Set("Idempotency-Key", key)
			guard.Middleware(idempotent.Anonymous, opts...)(h).ServeHTTP(httptest.NewRecorder(), r)
			return nil
		}
	}
	tests := []struct {
		name string
		do   func(ctx context.Context, key string) error
		want idempotent.Result
	}{
		{"value", func(ctx context.Context, key string) error {
			_, err := idempotent.Do(ctx, guard, key, func(context.Context) ([]int, error) { return []int{1, 2}, nil })
			return err
		}, idempotent.Result{Encoding: idempotent.ResultJSON, Text: "[1,2]"}},
		{"codec", func(ctx context.Context, key string) error {
			_, err := idempotent.Do(ctx, guard, key, func(context.Context) (string, error) { return "ab", nil }, idempotent.WithCallCodec(upper{}))
			return err
		}, idempotent.Result{Encoding: idempotent.ResultCodec, Text: "AB"}},
		{"no-value", func(ctx context.Context, key string) error {
			return guard.Do(ctx, key, func(context.Context) error { return nil })
		}, idempotent.Result{Encoding: idempotent.ResultNoValue}},
		{"failure", func(ctx context.Context, key string) error {
			err := guard.Do(ctx, key, func(context.Context) error { return fmt.Errorf("%w: no money", idempotent.ErrFailed) })
			if !errors.Is(err, idempotent.ErrFailed) {
				return err
			}
			return nil
		}, idempotent.Result{Encoding: idempotent.ResultFailure, Text: "idempotent: operation failed: no money"}},
		{"text", run(idempotent.ClassSuccess, "ord-1"), idempotent.Result{Encoding: idempotent.ResultText, Text: "ord-1"}},
		{"text-like-a-response", run(idempotent.ClassSuccess, "hello"), idempotent.Result{Encoding: idempotent.ResultText, Text: "hello"}},
		{"text-like-a-value", run(idempotent.ClassSuccess, "job 7"), idempotent.Result{Encoding: idempotent.ResultText, Text: "job 7"}},
		{"text-like-a-failure", run(idempotent.ClassSuccess, "exit 0"), idempotent.Result{Encoding: idempotent.ResultText, Text: "exit 0"}},
		{"failure-like-no-value", run(idempotent.ClassFailure, "n"), idempotent.Result{Encoding: idempotent.ResultText, Text: "n"}},
		{"empty-text", run(idempotent.ClassSuccess, ""), idempotent.Result{Encoding: idempotent.ResultText}},
		{"unknown", run(idempotent.ClassUnknown, "\x00"), idempotent.Result{Encoding: idempotent.ResultNone}},
		{"response", answer(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.Header()["Date"] = nil
			w.Header().Set("Trailer", "X-Sum")
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write([]byte("made"))
			w.Header().Set("X-Sum", "4")
		}), idempotent.Result{
			Encoding: idempotent.ResultResponse, Text: "made", Status: 201,
			Header: http.Header{"Content-Type": {"text/plain"}}, Trailer: http.Header{"X-Sum": {"4"}},
		}},
		{"tombstone", answer(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/7")
			_, _ = w.Write([]byte("too long"))
		}, idempotent.WithMaxResponse(2)), idempotent.Result{
			Encoding: idempotent.ResultResponse, Status: 200, Unavailable: true,
			Header: http.Header{"Location": {"/7"}}, Trailer: http.Header{},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			key := tt.name
			err := tt.do(t.Context(), key)
			if tt.name != "unknown" {
				require.NoError(t, err)
			}
			if tt.want.Encoding == idempotent.ResultResponse {
				key = idempotent.StoreKey(http.MethodPost, "/", "anonymous", key)
			}
			e, found, err := store.Load(t.Context(), key)
			require.NoError(t, err)
			require.True(t, found)
			got, err := idempotent.DecodeResult(e)
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}

func TestDecodeResult_Errors(t *testing.T) {
	t.Parallel()
	cut, err := idempotent.EncodeResponse(200, nil, []byte("body"))
	require.NoError(t, err)
	_, err = idempotent.DecodeResult(idempotent.Entry{Status: idempotent.Success, Result: cut[:len(cut)-1]})
	require.ErrorIs(t, err, idempotent.ErrCorrupt)
	_, err = idempotent.DecodeResult(idempotent.Entry{Status: idempotent.Success, Result: "h"})
	require.ErrorIs(t, err, idempotent.ErrCorrupt)
	_, err = idempotent.DecodeResult(idempotent.Entry{Status: idempotent.Success, Result: "h\x02" + cut[2:]})
	require.ErrorIs(t, err, idempotent.ErrNewerFormat)
}

// upper is a codec whose encoding shows.
type upper struct{}

func (upper) Encode(v any) ([]byte, error) { return []byte(strings.ToUpper(v.(string))), nil }
func (upper) Decode(data []byte, v any) error {
	*v.(*string) = strings.ToLower(string(data))
	return nil
}
