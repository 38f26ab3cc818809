package idempotent_test

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/storetest"
)

type receipt struct {
	ID    string
	Cents int64
}

type gobCodec struct{}

func (gobCodec) Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(v)
	return b.Bytes(), err
}

func (gobCodec) Decode(data []byte, v any) error {
	return gob.NewDecoder(bytes.NewReader(data)).Decode(v)
}

func TestDoReturnsTheRecordedResult(t *testing.T) {
	for name, opts := range map[string][]idempotent.CallOption{
		"json":  nil,
		"codec": {idempotent.WithCallCodec(gobCodec{})},
	} {
		bubble(t, name, func(t *testing.T) {
			b := newGuardBench(t)
			charge := func(context.Context) (receipt, error) {
				return receipt{ID: fmt.Sprint("r", b.runs.Add(1)), Cents: 9007199254740993}, nil
			}
			for range 3 {
				got, err := idempotent.Do(t.Context(), b.Guard, "k", charge, opts...)
				require.NoError(t, err)
				require.Equal(t, receipt{"r1", 9007199254740993}, got)
			}
			require.EqualValues(t, 1, b.runs.Load())
		})
	}
}

func TestDoErrors(t *testing.T) {
	type outcome struct {
		first  error
		repeat error // nil: runs again
		text   string
	}
	errKnown := errors.New("card declined")
	classify := idempotent.WithCallClassify(func(err error) idempotent.Class {
		if errors.Is(err, errKnown) {
			return idempotent.ClassFailure
		}
		return idempotent.ClassDefault
	})
	for name, tt := range map[string]struct {
		fn   func(context.Context) error
		opts []idempotent.CallOption
		want outcome
	}{
		"plain":                    {func(context.Context) error { return errBoom }, nil, outcome{errBoom, idempotent.ErrOutcomeUnknown, ""}},
		"wraps ErrFailed":          {func(context.Context) error { return fmt.Errorf("no funds: %w", idempotent.ErrFailed) }, nil, outcome{idempotent.ErrFailed, idempotent.ErrFailed, "no funds: idempotent: operation failed"}},
		"wraps ErrReleased":        {func(context.Context) error { return fmt.Errorf("busy: %w", idempotent.ErrReleased) }, nil, outcome{idempotent.ErrReleased, nil, ""}},
		"Fail":                     {func(ctx context.Context) error { idempotent.Fail(ctx); return errBoom }, nil, outcome{errBoom, idempotent.ErrFailed, "boom"}},
		"Fail without an error":    {func(ctx context.Context) error { idempotent.Fail(ctx); return nil }, nil, outcome{nil, idempotent.ErrFailed, "idempotent: operation failed"}},
		"Release":                  {func(ctx context.Context) error { idempotent.Release(ctx); return errBoom }, nil, outcome{errBoom, nil, ""}},
		"Succeed":                  {func(ctx context.Context) error { idempotent.Succeed(ctx); return errBoom }, nil, outcome{errBoom, errReplayed, ""}},
		"Unknown without an error": {func(ctx context.Context) error { idempotent.Unknown(ctx); return nil }, nil, outcome{nil, idempotent.ErrOutcomeUnknown, ""}},
		"classified":               {func(context.Context) error { return errKnown }, []idempotent.CallOption{classify}, outcome{errKnown, idempotent.ErrFailed, "card declined"}},
		"classified by default":    {func(context.Context) error { return errBoom }, []idempotent.CallOption{classify}, outcome{errBoom, idempotent.ErrOutcomeUnknown, ""}},
		"said beats classified":    {func(ctx context.Context) error { idempotent.Release(ctx); return errKnown }, []idempotent.CallOption{classify}, outcome{errKnown, nil, ""}},
	} {
		for _, typed := range []bool{false, true} {
			bubble(t, fmt.Sprintf("%s, typed %v", name, typed), func(t *testing.T) {
				b := newGuardBench(t)
				call := func() error {
					if typed {
						_, err := idempotent.Do(t.Context(), b.Guard, "k", func(ctx context.Context) (*receipt, error) {
							b.runs.Add(1)
							return nil, tt.fn(ctx)
						}, tt.opts...)
						return err
					}
					return b.Do(t.Context(), "k", func(ctx context.Context) error {
						b.runs.Add(1)
						return tt.fn(ctx)
					}, tt.opts...)
				}
				err := call()
				require.ErrorIs(t, err, tt.want.first)
				if tt.want.first == nil {
					require.NoError(t, err)
				}
				err = call()
				switch {
				case tt.want.repeat == nil:
					require.EqualValues(t, 2, b.runs.Load())
					return
				case errors.Is(tt.want.repeat, errReplayed):
					require.NoError(t, err)
				default:
					require.ErrorIs(t, err, tt.want.repeat)
				}
				require.EqualValues(t, 1, b.runs.Load())
				if tt.want.text != "" {
					var failed *idempotent.FailedError
					require.ErrorAs(t, err, &failed)
					require.Equal(t, tt.want.text, failed.Error())
				}
			})
		}
	}
}

var errReplayed = errors.New("replayed without an error")

func TestDoResultThatCannotBeEncoded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuardBench(t)
		fn := func(context.Context) (chan int, error) {
			b.runs.Add(1)
			return make(chan int), nil
		}
		got, err := idempotent.Do(t.Context(), b.Guard, "k", fn)
		require.NoError(t, err)
		require.NotNil(t, got, "the caller keeps it")
		got, err = idempotent.Do(t.Context(), b.Guard, "k", fn)
		require.ErrorIs(t, err, idempotent.ErrResultUnavailable)
		require.Nil(t, got)
		require.EqualValues(t, 1, b.runs.Load())
	})
}

// sayingCodec says something when it encodes.
type sayingCodec struct {
	gobCodec
	say func()
}

func (c sayingCodec) Encode(v any) ([]byte, error) {
	c.say()
	return c.gobCodec.Encode(v)
}

// What somebody says after the function has returned is too late, also while
// its result is being encoded: class and result would not fit together.
func TestDoIsNotTalkedOverAfterItsReturn(t *testing.T) {
	for name, say := range map[string]func(context.Context){"fail": idempotent.Fail, "release": idempotent.Release} {
		bubble(t, name, func(t *testing.T) {
			b := newGuardBench(t)
			var kept context.Context
			codec := idempotent.WithCallCodec(sayingCodec{say: func() { say(kept) }})
			for range 2 {
				got, err := idempotent.Do(t.Context(), b.Guard, "k", func(ctx context.Context) (int, error) {
					kept = ctx
					b.runs.Add(1)
					return 42, nil
				}, codec)
				require.NoError(t, err)
				require.Equal(t, 42, got)
			}
			require.EqualValues(t, 1, b.runs.Load())
		})
	}
}

// A value is encoded only where repeats need it: a codec may not expect what
// comes with an error.
func TestDoDoesNotEncodeFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuardBench(t)
		_, err := idempotent.Do(t.Context(), b.Guard, "k", func(context.Context) (*panicking, error) { return nil, errBoom })
		require.ErrorIs(t, err, errBoom)
	})
}

type panicking struct{ n int }

func (p *panicking) MarshalText() ([]byte, error) { return fmt.Append(nil, p.n), nil }

// otherJSON is a codec whose results look like those without one.
type otherJSON struct{}

func (otherJSON) Encode(v any) ([]byte, error)    { return json.Marshal(v) }
func (otherJSON) Decode(data []byte, v any) error { return json.Unmarshal(data, v) }

func TestDoOtherEncodingIsCorrupt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuardBench(t)
		fail := func(context.Context) (int, error) { b.runs.Add(1); return 0, nil }
		for key, result := range map[string]string{"text": "plain", "empty": "", "none": "n", "json of another type": `j"x"`, "cut": "j{", "failure": "eboom"} {
			_, _, err := b.Run(t.Context(), key, b.succeed(result))
			require.NoError(t, err)
			b.runs.Store(0)
			got, err := idempotent.Do(t.Context(), b.Guard, key, fail)
			require.ErrorIs(t, err, idempotent.ErrCorrupt, key)
			require.Zero(t, got)
			got, err = idempotent.Do(t.Context(), b.Guard, key, fail, idempotent.WithCallCodec(gobCodec{}))
			require.ErrorIs(t, err, idempotent.ErrCorrupt, key)
			require.Zero(t, got)
			require.Zero(t, b.runs.Load())
		}
		other := idempotent.WithCallCodec(otherJSON{})
		_, err := idempotent.Do(t.Context(), b.Guard, "codec", func(context.Context) (int, error) { return 7, nil }, other)
		require.NoError(t, err)
		_, err = idempotent.Do(t.Context(), b.Guard, "codec", fail)
		require.ErrorIs(t, err, idempotent.ErrCorrupt, "although it would decode")
		_, _, err = b.Run(t.Context(), "half", b.succeed(`j{"ID":"r1","Cents":"many"}`))
		require.NoError(t, err)
		half, err := idempotent.Do(t.Context(), b.Guard, "half", func(context.Context) (receipt, error) { return receipt{}, nil })
		require.ErrorIs(t, err, idempotent.ErrCorrupt)
		require.Zero(t, half, "no half of a value")
		_, _, err = b.Run(t.Context(), "failed", func(context.Context) (idempotent.Class, string) { return idempotent.ClassFailure, "plain" })
		require.NoError(t, err)
		require.ErrorIs(t, b.Do(t.Context(), "failed", func(context.Context) error { return nil }), idempotent.ErrCorrupt)
		_, err = idempotent.Do(t.Context(), b.Guard, "value", func(context.Context) (int, error) { return 7, nil })
		require.NoError(t, err)
		require.ErrorIs(t, b.Do(t.Context(), "value", func(context.Context) error { return nil }), idempotent.ErrCorrupt)
	})
}

func TestDoPassesRefusalsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuardBench(t)
		b.store.Before(storetest.OpClaim, func(context.Context, string) error { return idempotent.ErrFull })
		_, err := idempotent.Do(t.Context(), b.Guard, "k", func(context.Context) (int, error) { return 0, nil })
		require.ErrorIs(t, err, idempotent.ErrFull)
	})
}

// Whatever the error says of the operation, and without a trace in what is
// recorded.
func TestDoErrorOfALostClaim(t *testing.T) {
	for name, said := range map[string]error{"plain": errBoom, "failed": idempotent.ErrFailed, "released": idempotent.ErrReleased} {
		bubble(t, name, func(t *testing.T) {
			b := newGuardBench(t, idempotent.WithLease(time.Second))
			go func() {
				time.Sleep(100 * time.Millisecond)
				_ = idempotent.Delete(context.Background(), b.store, "k")
			}()
			err := b.Do(t.Context(), "k", func(ctx context.Context) error {
				<-ctx.Done()
				return fmt.Errorf("%w: %w", ctx.Err(), said)
			})
			require.ErrorIs(t, err, idempotent.ErrLost)
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, said)
			e, _ := b.load(t, "k")
			require.NotContains(t, e.Result, "lost")
		})
	}
}

// C092: sentinels keep their identity through wrapping.
func TestC092_ErrorsKeepTheirIdentity(t *testing.T) {
	for _, err := range []error{
		idempotent.ErrLost, idempotent.ErrFull, idempotent.ErrCorrupt, idempotent.ErrNewerFormat, idempotent.ErrInvalid, idempotent.ErrClosed,
		idempotent.ErrKeyReused, idempotent.ErrOutcomeUnknown, idempotent.ErrResultUnavailable, idempotent.ErrFailed, idempotent.ErrReleased,
		idempotent.ErrUnauthenticated, idempotent.ErrKeyExpired,
	} {
		require.ErrorIs(t, fmt.Errorf("a: %w", fmt.Errorf("b: %w", err)), err)
		require.Contains(t, err.Error(), "idempotent: ")
	}
}
