package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/internal/redistest"
)

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// program runs the program until the test ends, and returns its URL and log.
func program(t *testing.T, redisAddr string) (url string, log *lockedBuffer) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	log = &lockedBuffer{}
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, []string{"-addr", "127.0.0.1:0", "-redis", redisAddr}, log) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	redistest.Eventually(t, "it listens", func() bool {
		_, after, _ := strings.Cut(log.String(), "msg=listening url=")
		var whole bool
		url, _, whole = strings.Cut(after, "\n")
		return whole
	})
	return url, log
}

// send returns the status, with a mark for a replay, and the orders shown.
func send(t *testing.T, method, url, user, key string) (status int, replayed bool, orders []string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	require.NoError(t, err)
	r.Header.Set("X-User", user)
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	var body struct {
		Orders []string `json:"orders"`
	}
	_ = json.NewDecoder(resp.Body).Decode(&body)
	return resp.StatusCode, resp.Header.Get("Idempotent-Replayed") == "true", body.Orders
}

// Orders are taken with Redis, without it and with an empty one, each once, and
// are listed in the order in which they came.
func TestRun(t *testing.T) {
	t.Setenv("ORDEREDID_KEY", testKey)
	t.Setenv("IDEMPOTENCY_STORE", "")
	server := redistest.Start(t)
	url, log := program(t, server.Addr)
	var placed []string
	place := func(key string) {
		status, replayed, orders := send(t, http.MethodPost, url+"/orders", "ada", key)
		require.Equal(t, http.StatusCreated, status)
		require.False(t, replayed)
		require.Len(t, orders, 1)
		placed = append(placed, orders[0])

		status, replayed, again := send(t, http.MethodPost, url+"/orders", "ada", key)
		require.Equal(t, http.StatusCreated, status)
		require.True(t, replayed)
		require.Equal(t, orders, again, "a replay shows the same id")
	}
	place("1")
	place("2")
	server.Kill()
	place("3")
	require.Contains(t, log.String(), "an id without Redis")
	server.Restart(t)
	place("4")

	_, _, listed := send(t, http.MethodGet, url+"/orders", "ada", "")
	require.Equal(t, placed, listed)
	for user, want := range map[string]int{"ada": http.StatusOK, "bob": http.StatusNotFound} {
		status, _, _ := send(t, http.MethodGet, url+"/orders/"+placed[0], user, "")
		require.Equal(t, want, status, user)
	}
	status, _, _ := send(t, http.MethodGet, url+"/orders/1", "ada", "")
	require.Equal(t, http.StatusNotFound, status)
	require.NotContains(t, log.String(), testKey)
}

func TestRun_Refusals(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	t.Setenv("IDEMPOTENCY_STORE", "")
	for _, tt := range []struct {
		name, key string
		args      []string
		want      string
	}{
		{"unknown flag", testKey, []string{"-nonsense"}, "-nonsense"},
		{"no key", "", nil, "ORDEREDID_KEY: the key must be 64 hex digits"},
		{"no store", testKey, []string{"-store", ""}, "-store:"},
		{"a port in use", testKey, []string{"-addr", taken.Addr().String()}, "in use"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("ORDEREDID_KEY", tt.key)
			require.ErrorContains(t, run(t.Context(), tt.args, &lockedBuffer{}), tt.want)
		})
	}
}
