package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

func TestGet(t *testing.T) {
	t.Parallel()
	store := newMemory(t)
	fill(t, store, "k-")
	term := newTerminal(store)
	for state, says := range map[string]string{
		"pending":   "pending",
		"success":   "success",
		"failed":    "failed",
		"unknown":   "unknown: the operation may have happened",
		"abandoned": "unknown: abandoned, its lease ended without an outcome",
	} {
		code, out, err := term.says("get", "k-"+state)
		require.Equal(t, exitOK, code, err)
		for _, line := range []string{
			"key          k-" + state + "\n", "state        " + says + "\n", "owner        owner-" + state + "\n",
			"log key      " + idempotent.LogKey("k-"+state) + "\n", "trace        trace-" + state + "\n", "fingerprint  f1:x\n", " ago\n",
		} {
			require.Contains(t, out, line)
		}
		require.Equal(t, state == "pending", strings.Contains(out, "lease left   5"), out)
		require.Equal(t, state != "pending", strings.Contains(out, "expires"), out)
		require.Equal(t, strings.HasPrefix(says, "unknown"), strings.Contains(out, "idempotent resolve"), out)
	}
	code, out, err := term.says("get", "nobody")
	require.Equal(t, exitNotFound, code)
	require.Empty(t, out)
	require.Contains(t, err, "no entry under nobody")
}

func TestGet_JSON(t *testing.T) {
	t.Parallel()
	store := newMemory(t)
	fill(t, store, "k-")
	term := newTerminal(store)
	code, out, err := term.says("get", "k-abandoned", "-json")
	require.Equal(t, exitOK, code, err)
	require.Equal(t, 1, strings.Count(out, "\n"))
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.Equal(t, "k-abandoned", got["key"])
	require.Equal(t, "unknown", got["state"])
	require.Equal(t, true, got["abandoned"])
	require.Equal(t, "owner-abandoned", got["owner"])
	require.NotContains(t, got, "result")
	_, timed := time.Parse(time.RFC3339, got["expires"].(string))
	require.NoError(t, timed)

	_, out, _ = term.says("get", "k-success", "-json", "-result")
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.Equal(t, map[string]any{
		"kind": "response", "status": 201.0, "bytes": 15.0, "body": "hello \x1b[2Jworld",
		"header": map[string]any{
			"Content-Type": []any{"text/plain"}, "Location": []any{"/orders/7"}, "X-Api-Token": []any{"hidden, 6 bytes"}, "Authorization": []any{"hidden, 6 bytes"},
		},
	}, got["result"])
}

// A request's parts name the same key as the middleware does.
func TestGet_Parts(t *testing.T) {
	t.Parallel()
	store := newMemory(t)
	fill(t, store, idempotent.StoreKey("POST", "/orders", "ada", "7-"))
	fill(t, store, idempotent.StoreKey("", "", "ada", "7-"))
	term := newTerminal(store)
	code, out, err := term.says("get", "-method", "POST", "-path", "/orders", "-principal", "ada", "-key", "7-success")
	require.Equal(t, exitOK, code, err)
	require.Contains(t, out, idempotent.StoreKey("POST", "/orders", "ada", "7-success")+"\n")
	code, out, err = term.says("get", "-principal", "ada", "-key", "7-success")
	require.Equal(t, exitOK, code, err)
	require.Contains(t, out, idempotent.StoreKey("", "", "ada", "7-success")+"\n")
}

// A key may look like a flag.
func TestGet_Hyphen(t *testing.T) {
	t.Parallel()
	store := newMemory(t)
	fill(t, store, "-json-")
	term := newTerminal(store)
	code, out, err := term.says("get", "-json", "--", "-json-success")
	require.Equal(t, exitOK, code, err)
	require.Contains(t, out, `"key":"-json-success"`)
}

func TestGet_Result(t *testing.T) {
	t.Parallel()
	store := newMemory(t)
	fill(t, store, "k-")
	term := newTerminal(store)
	_, out, _ := term.says("get", "k-success")
	require.NotContains(t, out, "hello")
	require.NotContains(t, out, "s3cret")

	_, out, _ = term.says("get", "k-success", "-result")
	require.Contains(t, out, "201 Created\n")
	require.Contains(t, out, "Content-Type:   text/plain\n")
	require.NotContains(t, out, "s3cret")
	require.NotContains(t, out, "\x1b", "nothing that others have stored moves the cursor")
	require.Contains(t, out, `hello \x1b[2Jworld`)

	_, out, _ = term.says("get", "k-success", "-result", "-secrets", "-bytes", "5")
	require.Contains(t, out, "X-Api-Token:    s3cret\n")
	require.Contains(t, out, "\nhello\n… 15 bytes in all")

	_, out, _ = term.says("get", "k-unknown", "-result")
	require.Contains(t, out, "no result was recorded")
	_, out, _ = term.says("get", "k-abandoned", "-result")
	require.Contains(t, out, "no result was recorded")

	value, err := idempotent.EncodeValue(map[string]int{"order": 7})
	require.NoError(t, err)
	require.NoError(t, store.Complete(t.Context(), "value", "o", idempotent.Outcome{Status: idempotent.Success, Result: value, Retention: time.Hour}))
	_, out, _ = term.says("get", "value", "-result")
	require.Contains(t, out, `{"order":7}`)
}

func TestCapped(t *testing.T) {
	t.Parallel()
	require.Equal(t, "aé", capped([]byte("aéb"), 3))
	require.Equal(t, "a", capped([]byte("aéb"), 2), "half a character is none")
	require.Equal(t, "", capped([]byte("日本"), 2))
	require.Equal(t, `\xff\x00`, capped([]byte("\xff\x00\xfe"), 2))
	require.Equal(t, "", capped([]byte("a"), 0))
}

func TestPrintable(t *testing.T) {
	t.Parallel()
	require.Equal(t, `a\x1b[1m\x09\x0a日\u{202e}\xff`+"\uFFFD", printable("a\x1b[1m\t\n日\u202e\xff\uFFFD"))
	require.Equal(t, "a\n", printable("a\n", '\n'))
}

func TestDuration(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		1500 * time.Microsecond: "2ms", 59900 * time.Millisecond: "59s", 61 * time.Second: "1m1s",
		90 * time.Minute: "1h30m", 49 * time.Hour: "2d1h", -61 * time.Second: "-1m1s",
	} {
		require.Equal(t, want, duration(d))
	}
}
