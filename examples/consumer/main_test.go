package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/examples/internal/program"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/storeurl"
)

func TestMain(m *testing.M) { program.Main(m, main) }

// The first delivery fails before the commit, the second one books, the third
// one is a replay.
func TestDeliveries(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"memory", "Redis"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			store := ""
			if name == "Redis" {
				store = w.url
			}
			p := w.start(t, store, w.url)

			w.send(t, "event", "e1", "account", "ada", "cents", "1250")
			w.eventually(t, p, "the first delivery fails", func() bool { return strings.Contains(p.Log(), "not open yet") })
			require.EqualValues(t, 1, w.pending(t))
			w.open(t, "ada")
			w.eventually(t, p, "the second one books", func() bool { return w.pending(t) == 0 })
			require.Equal(t, "1250", w.balance(t, "ada"))
			w.send(t, "event", "e1", "account", "ada", "cents", "1250")
			w.eventually(t, p, "the third one is a replay", func() bool { return strings.Contains(p.Log(), "already booked") })
			require.Equal(t, "1250", w.balance(t, "ada"))
			require.Empty(t, w.aside(t))

			require.Equal(t, 0, p.Stop(t), p.Log())
			if store == "" {
				return
			}
			s, end, err := storeurl.Open(t.Context(), store)
			require.NoError(t, err)
			e, found, err := s.Load(t.Context(), idempotent.Key("payment", "e1"))
			require.NoError(t, err)
			require.NoError(t, end())
			require.True(t, found)
			require.Equal(t, idempotent.Success, e.Status)
			require.Greater(t, e.Expires.Sub(e.Timestamp), giveUp)
		})
	}
}

// A consumer that books and cannot say so is stopped; another one gets its
// messages, and books nothing again.
func TestLostAcknowledgement(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.open(t, "ada")
	require.NoError(t, w.Do(t.Context(), "ACL", "SETUSER", "mute", "on", ">secret", "~*", "&*", "+@all", "-xack").Err())
	mute := w.start(t, w.url, strings.Replace(w.url, "redis://", "redis://mute:secret@", 1))
	w.send(t, "event", "e1", "account", "ada", "cents", "1250")
	w.eventually(t, mute, "it cannot acknowledge", func() bool { return strings.Contains(mute.Log(), "NOPERM") })
	require.Equal(t, "1250", w.balance(t, "ada"))
	mute.Kill(t)
	require.EqualValues(t, 1, w.pending(t))

	p := w.start(t, w.url, w.url)
	w.eventually(t, p, "the other one acknowledges", func() bool { return w.pending(t) == 0 })
	require.Equal(t, "1250", w.balance(t, "ada"))
	require.Equal(t, 0, p.Stop(t), p.Log())
	require.Contains(t, p.Log(), "already booked")
}

// The booking happens and its answer is lost: nobody books again, neither the
// client by itself nor a later delivery.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.open(t, "ada")
	relay := redistest.NewRelay(t, w.server.Addr)
	relay.SwallowReply(func(request []byte) bool { return bytes.Contains(bytes.ToLower(request), []byte("hincrby")) })
	p := w.start(t, "", "redis://"+relay.Addr)
	w.send(t, "event", "e1", "account", "ada", "cents", "1250")
	w.eventually(t, p, "it is set aside", func() bool { return len(w.aside(t)) == 1 })
	require.Equal(t, "idempotent: outcome unknown", w.aside(t)[0].Values["reason"])
	require.Equal(t, "1250", w.balance(t, "ada"))
	require.True(t, relay.Swallowed())
	require.EqualValues(t, 0, w.pending(t))
	require.Equal(t, 0, p.Stop(t), p.Log())
}

// Three consumers that take each other's messages at once, from a producer that
// sends everything twice, book each event once.
func TestConsumersTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.open(t, "ada")
	const events = 100
	for range 2 {
		for i := range events {
			w.send(t, "event", fmt.Sprint("e", i), "account", "ada", "cents", "1")
		}
	}
	var all []*program.Process
	for range 3 {
		all = append(all, w.start(t, w.url, w.url, "-idle", "1ms"))
	}
	w.eventually(t, all[0], "all are handled", func() bool {
		groups, err := w.XInfoGroups(t.Context(), "payments").Result()
		return err == nil && len(groups) == 1 && groups[0].EntriesRead == 2*events && groups[0].Pending == 0
	})
	for _, p := range all {
		require.Equal(t, 0, p.Stop(t), p.Log())
	}
	require.Equal(t, fmt.Sprint(events), w.balance(t, "ada"))
	require.Empty(t, w.aside(t))
}

// What must not or cannot be booked is set aside with the reason.
func TestSetAside(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.open(t, "ada")
	old := time.Now().Add(-giveUp - time.Minute).UnixMilli()
	require.NoError(t, w.XAdd(t.Context(), &redis.XAddArgs{
		Stream: "payments", ID: fmt.Sprint(old, "-0"), Values: []string{"event", "old", "account", "ada", "cents", "1"},
	}).Err())
	w.send(t, "account", "ada", "cents", "1")
	w.send(t, "event", "nothing", "account", "ada", "cents", "0")
	w.send(t, "event", "nobody", "cents", "1")
	w.send(t, "event", "e1", "account", "ada", "cents", "1")
	w.send(t, "event", "e1", "account", "ada", "cents", "2")
	// Its booking is answered with an error: the consumer cannot tell what has
	// become of it. The next delivery finds that in the store.
	require.NoError(t, w.HSet(t.Context(), "balances", "bob", "no number").Err())
	w.send(t, "event", "unknown", "account", "bob", "cents", "1")

	p := w.start(t, w.url, w.url)
	w.eventually(t, p, "six are set aside", func() bool { return len(w.aside(t)) == 6 && w.pending(t) == 0 })
	require.Equal(t, 0, p.Stop(t), p.Log())
	reasons := map[any]any{}
	for _, m := range w.aside(t) {
		require.NotEmpty(t, m.Values["message"])
		reasons[m.Values["event"]] = m.Values["reason"]
	}
	require.Equal(t, map[any]any{
		"old":     "it is so old that it may have been booked and forgotten",
		nil:       "it has no event",
		"nothing": `idempotent: operation failed: "0" cents to account "ada"`,
		"nobody":  `idempotent: operation failed: "1" cents to account ""`,
		"e1":      "idempotent: key reused for another request",
		"unknown": "idempotent: outcome unknown",
	}, reasons)
	require.Equal(t, "1", w.balance(t, "ada"))
}

// A queue that is away is waited for.
func TestQueueAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.start(t, "", w.url)
	w.eventually(t, p, "the group is made", func() bool { return w.XInfoGroups(t.Context(), "payments").Err() == nil })
	w.server.Restart(t)
	w.open(t, "ada")
	w.send(t, "event", "e1", "account", "ada", "cents", "1")
	w.eventually(t, p, "it is booked", func() bool { return w.balance(t, "ada") == "1" })
	require.Equal(t, 0, p.Stop(t), p.Log())
	require.Contains(t, p.Log(), "the queue is away")
}

func TestRefusals(t *testing.T) {
	for _, tt := range []struct {
		store string
		args  []string
		code  int
		text  string
	}{
		{"", []string{"-h"}, 0, "-stream"},
		{"", []string{"-nonsense"}, 2, "nonsense"},
		{"", []string{"-idle", "0"}, 2, "-idle 0s"},
		{"", []string{"-queue", "http://ada:pa55word@127.0.0.1"}, 1, "-queue"},
		{"mysql:", nil, 1, "IDEMPOTENCY_STORE"},
	} {
		t.Setenv("IDEMPOTENCY_STORE", tt.store)
		var stderr bytes.Buffer
		require.Equal(t, tt.code, run(t.Context(), tt.args, &stderr), tt.args)
		require.Contains(t, stderr.String(), tt.text)
		require.NotContains(t, stderr.String(), "pa55word")
	}
}

// world is the Redis that has the stream and the balances.
type world struct {
	*redis.Client
	server *redistest.Server
	url    string
}

func newWorld(t *testing.T) world {
	t.Helper()
	s := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: s.Addr})
	t.Cleanup(func() { _ = client.Close() })
	return world{client, s, "redis://" + s.Addr}
}

func (w world) open(t *testing.T, account string) {
	t.Helper()
	require.NoError(t, w.HSet(t.Context(), "balances", account, 0).Err())
}

func (w world) send(t *testing.T, values ...string) {
	t.Helper()
	require.NoError(t, w.XAdd(t.Context(), &redis.XAddArgs{Stream: "payments", Values: values}).Err())
}

func (w world) balance(t *testing.T, account string) string {
	t.Helper()
	s, err := w.HGet(t.Context(), "balances", account).Result()
	require.NoError(t, err)
	return s
}

func (w world) pending(t *testing.T) int64 {
	t.Helper()
	p, err := w.XPending(t.Context(), "payments", group).Result()
	require.NoError(t, err)
	return p.Count
}

func (w world) aside(t *testing.T) []redis.XMessage {
	t.Helper()
	m, err := w.XRange(t.Context(), "payments:aside", "-", "+").Result()
	require.NoError(t, err)
	return m
}

// eventually shows what p has printed if it does not come to that.
func (w world) eventually(t *testing.T, p *program.Process, what string, holds func() bool) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Log(p.Log())
		}
	}()
	redistest.Eventually(t, what, holds)
}

func (w world) start(t *testing.T, store, queue string, args ...string) *program.Process {
	t.Helper()
	return program.Start(t, []string{"IDEMPOTENCY_STORE=" + store}, append([]string{"-idle", "20ms", "-queue", queue}, args...)...)
}
