package idempotent_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/storetest"
)

// logBook collects log lines.
type logBook struct{ bytes.Buffer }

func (b *logBook) logger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewJSONHandler(&b.Buffer, &slog.HandlerOptions{Level: level}))
}

func (b *logBook) lines(t *testing.T) []map[string]any {
	t.Helper()
	var lines []map[string]any
	for line := range strings.Lines(b.String()) {
		var m map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &m))
		lines = append(lines, m)
	}
	return lines
}

// C088: a log names a key by a digest.
func TestC088_LogShowsNoKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var book logBook
		mem := memstore.New(memstore.WithLogger(book.logger(slog.LevelDebug)))
		defer mem.Close()
		g := idempotent.New(mem, idempotent.WithLogger(book.logger(slog.LevelDebug)))
		const key = "POST:/orders:alice:secret-key"
		for range 2 {
			_, _, err := g.Run(t.Context(), key, func(context.Context) (idempotent.Class, string) {
				return idempotent.ClassSuccess, "secret-body"
			}, idempotent.WithCallTrace("trace-1"))
			require.NoError(t, err)
		}
		sum := sha256.Sum256([]byte(key))
		lines := book.lines(t)
		require.NotEmpty(t, lines)
		for _, line := range lines {
			require.Equal(t, "DEBUG", line["level"])
			require.Equal(t, hex.EncodeToString(sum[:8]), line["key"])
			require.Equal(t, "trace-1", line["trace"])
		}
		require.NotContains(t, book.String(), "secret")
		require.NotContains(t, book.String(), "alice")
	})
}

// An event without a key has no digest of nothing.
func TestLogOfAnUnkeyedRequest(t *testing.T) {
	var book logBook
	mem := memstore.New()
	defer mem.Close()
	g := idempotent.New(mem, idempotent.WithLogger(book.logger(slog.LevelDebug)))
	h := g.Middleware(idempotent.Anonymous, idempotent.WithOptionalKey())(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", nil))
	lines := book.lines(t)
	require.Len(t, lines, 1)
	require.Equal(t, "idempotent: unkeyed", lines[0]["msg"])
	require.NotContains(t, lines[0], "key")
}

// The default logger is looked up at each line: many programs set it late.
func TestLogGoesToTheDefaultLogger(t *testing.T) {
	mem := memstore.New()
	defer mem.Close()
	g := idempotent.New(mem)
	var book logBook
	before, out, flags := slog.Default(), log.Writer(), log.Flags()
	defer func() {
		slog.SetDefault(before)
		log.SetOutput(out)
		log.SetFlags(flags)
	}()
	slog.SetDefault(book.logger(slog.LevelDebug))
	_, _, err := g.Run(t.Context(), "default logger", nothing)
	require.NoError(t, err)
	slog.SetDefault(before)
	sum := sha256.Sum256([]byte("default logger"))
	require.Contains(t, book.String(), hex.EncodeToString(sum[:8]))
}

func TestLogLevels(t *testing.T) {
	level := func(t *testing.T, cause func(t *testing.T, g *idempotent.Guard, s *storetest.Faulty)) map[string]string {
		t.Helper()
		var book logBook
		mem := memstore.New(memstore.WithLogger(slog.New(slog.DiscardHandler)))
		defer mem.Close()
		s := storetest.NewFaulty(mem)
		g := idempotent.New(s, idempotent.WithLogger(book.logger(slog.LevelInfo)), idempotent.WithLease(time.Second))
		cause(t, g, s)
		s.Up()
		require.NoError(t, g.Drain(t.Context()))
		levels := map[string]string{}
		for _, line := range book.lines(t) {
			levels[line["msg"].(string)] = line["level"].(string)
			if line["level"] == "ERROR" {
				require.Contains(t, line["err"], "idempotent: ")
			}
		}
		return levels
	}
	for name, tt := range map[string]struct {
		want  string
		cause func(t *testing.T, g *idempotent.Guard, s *storetest.Faulty)
	}{
		"idempotent: abandoned": {"WARN", func(t *testing.T, g *idempotent.Guard, s *storetest.Faulty) {
			_, _, err := s.Claim(t.Context(), "k", idempotent.Claim{Owner: "dead", Lease: time.Second, Keep: time.Hour})
			require.NoError(t, err)
			time.Sleep(time.Second)
			_, _, _ = g.Run(t.Context(), "k", nothing)
		}},
		"idempotent: lost": {"WARN", func(t *testing.T, g *idempotent.Guard, s *storetest.Faulty) {
			s.Before(storetest.OpComplete, func(context.Context, string) error { return idempotent.ErrLost })
			_, _, _ = g.Run(t.Context(), "k", nothing)
		}},
		"idempotent: long-running": {"WARN", func(t *testing.T, g *idempotent.Guard, _ *storetest.Faulty) {
			var cause error
			_, _, _ = g.Run(t.Context(), "k", sleepOp(11*time.Second, &cause))
		}},
		"idempotent: not-recorded": {"ERROR", func(t *testing.T, g *idempotent.Guard, s *storetest.Faulty) {
			s.Before(storetest.OpComplete, func(context.Context, string) error { return idempotent.ErrCorrupt })
			_, _, _ = g.Run(t.Context(), "k", nothing)
		}},
		"idempotent: store-error": {"ERROR", func(t *testing.T, g *idempotent.Guard, s *storetest.Faulty) {
			s.Before(storetest.OpClaim, func(context.Context, string) error { return idempotent.ErrCorrupt })
			_, _, _ = g.Run(t.Context(), "k", nothing)
		}},
	} {
		bubble(t, name, func(t *testing.T) {
			require.Equal(t, tt.want, level(t, tt.cause)[name])
		})
	}
	bubble(t, "the usual is quiet", func(t *testing.T) {
		require.Empty(t, level(t, func(t *testing.T, g *idempotent.Guard, _ *storetest.Faulty) {
			for range 2 {
				_, _, err := g.Run(t.Context(), "k", nothing)
				require.NoError(t, err)
			}
			_, _, err := g.Run(t.Context(), "k", nothing, idempotent.WithCallFingerprint("other"))
			require.ErrorIs(t, err, idempotent.ErrKeyReused)
		}))
	})
}

// An outage is one line at its start, one a minute, and one at its end.
func TestOutageIsSummedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var book logBook
		mem := memstore.New(memstore.WithLogger(slog.New(slog.DiscardHandler)))
		defer mem.Close()
		s := storetest.NewFaulty(mem)
		g := idempotent.New(s, idempotent.WithLogger(book.logger(slog.LevelInfo)))
		s.Before(storetest.OpClaim, func(context.Context, string) error { return errBoom })
		s.Before(storetest.OpRelease, func(context.Context, string) error { return errBoom })
		for range 150 {
			_, _, err := g.Run(t.Context(), "k", nothing)
			require.ErrorIs(t, err, errBoom)
			time.Sleep(time.Second)
		}
		s.Before(storetest.OpClaim, nil)
		s.Before(storetest.OpRelease, nil)
		for range 3 {
			_, _, err := g.Run(t.Context(), "k", nothing)
			require.NoError(t, err)
		}
		synctest.Wait() // a claim that is freed in the background may be the one that tells the end
		var levels []string
		for _, line := range book.lines(t) {
			levels = append(levels, line["level"].(string))
		}
		require.Equal(t, []string{"ERROR", "ERROR", "ERROR", "INFO"}, levels)
		require.Contains(t, book.String(), `"failures":1,`)
		require.NoError(t, g.Drain(t.Context()))

		// The next one is counted anew.
		time.Sleep(time.Hour)
		book.Reset()
		s.Before(storetest.OpLoad, func(context.Context, string) error { return errBoom })
		for range 3 {
			require.ErrorIs(t, g.Resolve(t.Context(), "k", "o", idempotent.ClassSuccess, ""), errBoom)
			time.Sleep(time.Second)
		}
		s.Before(storetest.OpLoad, nil)
		require.ErrorIs(t, g.Resolve(t.Context(), "k", "o", idempotent.ClassSuccess, ""), idempotent.ErrLost)
		lines := book.lines(t)
		require.Len(t, lines, 2)
		require.EqualValues(t, 3, lines[1]["failures"])
		require.EqualValues(t, 3*time.Second, lines[1]["after"])
	})
}

// A store that fails now and then does not flood the log.
func TestStoreThatComesAndGoesIsSummedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var book logBook
		mem := memstore.New(memstore.WithLogger(slog.New(slog.DiscardHandler)))
		defer mem.Close()
		s := storetest.NewFaulty(mem)
		g := idempotent.New(s, idempotent.WithLogger(book.logger(slog.LevelInfo)))
		fail := true
		s.Before(storetest.OpClaim, func(context.Context, string) error {
			if fail = !fail; fail {
				return nil
			}
			return errBoom
		})
		for range 150 {
			_, _, _ = g.Run(t.Context(), "k", nothing)
			time.Sleep(time.Second)
		}
		require.NoError(t, g.Drain(t.Context()))
		levels := map[any]int{}
		for _, line := range book.lines(t) {
			levels[line["level"]]++
		}
		require.Equal(t, 3, levels["ERROR"])
		require.Positive(t, levels["INFO"])
		require.LessOrEqual(t, levels["INFO"], 3)
	})
}

// What events say, field by field.
func TestEventsSayWhatHappened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuardBench(t, idempotent.WithTakeOver(), idempotent.WithLease(10*time.Second))
		op := func(context.Context) (idempotent.Class, string) {
			time.Sleep(2 * time.Second)
			return idempotent.ClassUnknown, "result"
		}
		began := time.Now()
		rec, _, err := b.Run(t.Context(), "k", op, idempotent.WithCallTrace("first"))
		require.NoError(t, err)
		require.True(t, rec.Claimed.Equal(began))
		require.True(t, rec.Completed.Equal(began.Add(2*time.Second)))
		e, _ := b.load(t, "k")
		require.Equal(t, idempotent.Event{
			Kind: idempotent.EventClaimed, Key: "k", Owner: e.Owner, Trace: "first", Status: idempotent.Pending,
		}, b.events.last(t, idempotent.EventClaimed))
		require.Equal(t, idempotent.Event{
			Kind: idempotent.EventCompleted, Key: "k", Owner: e.Owner, Trace: "first", Status: idempotent.Failed, Unknown: true, Took: 2 * time.Second,
		}, b.events.last(t, idempotent.EventCompleted))

		time.Sleep(3 * time.Second)
		_, _, err = b.Run(t.Context(), "k", op, idempotent.WithCallTrace("second"))
		require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
		require.Equal(t, idempotent.Event{
			Kind: idempotent.EventReplayed, Key: "k", Owner: e.Owner, Trace: "second", OwnerTrace: "first", Status: idempotent.Failed, Unknown: true, Age: 5 * time.Second,
		}, b.events.last(t, idempotent.EventReplayed))

		_, ok, err := b.store.Claim(t.Context(), "dead", idempotent.Claim{Owner: "dead", Lease: time.Second, Keep: time.Hour, TakeOver: true})
		require.NoError(t, err)
		require.True(t, ok)
		time.Sleep(7 * time.Second)
		_, _, err = b.Run(t.Context(), "dead", func(context.Context) (idempotent.Class, string) { return idempotent.ClassRelease, "" })
		require.NoError(t, err)
		taken := b.events.last(t, idempotent.EventTakenOver)
		require.Equal(t, idempotent.Event{
			Kind: idempotent.EventTakenOver, Key: "dead", Owner: taken.Owner, Status: idempotent.Pending, Age: 7 * time.Second,
		}, taken)
		require.Equal(t, idempotent.Event{
			Kind: idempotent.EventReleased, Key: "dead", Owner: taken.Owner,
		}, b.events.last(t, idempotent.EventReleased))
	})
}

func TestObserverFuncIsAnObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New()
		defer mem.Close()
		var kinds []idempotent.EventKind
		g := idempotent.New(mem, idempotent.WithObserver(idempotent.ObserverFunc(func(_ context.Context, e idempotent.Event) {
			kinds = append(kinds, e.Kind)
			require.Equal(t, "k", e.Key)
		})))
		_, _, err := g.Run(t.Context(), "k", nothing)
		require.NoError(t, err)
		require.Equal(t, []idempotent.EventKind{idempotent.EventClaimed, idempotent.EventCompleted}, kinds)
	})
}
