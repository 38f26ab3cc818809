package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/memstore"
)

// listed returns the keys of a listing in JSON.
func listed(t *testing.T, term *terminal, args ...string) []string {
	t.Helper()
	code, out, err := term.says(append([]string{"list", "-json"}, args...)...)
	require.Equal(t, exitOK, code, err)
	keys := []string{}
	for line := range strings.Lines(out) {
		var e entryView
		require.NoError(t, json.Unmarshal([]byte(line), &e))
		keys = append(keys, e.Key)
	}
	return keys
}

func TestList(t *testing.T) {
	t.Parallel()
	store := newMemory(t)
	fill(t, store, "a-")
	fill(t, store, "b-")
	term := newTerminal(store)
	for args, want := range map[string][]string{
		"-prefix a-":                                {"a-pending", "a-success", "a-failed", "a-unknown", "a-abandoned"},
		"-state pending":                            {"a-pending", "b-pending"},
		"-state success":                            {"a-success", "b-success"},
		"-state failed":                             {"a-failed", "b-failed"},
		"-state unknown -prefix b":                  {"b-unknown", "b-abandoned"},
		"-state corrupt":                            {},
		"-older 1h":                                 {},
		"-older 1ns -state failed":                  {"a-failed", "b-failed"},
		"-log " + idempotent.LogKey("b-success"):    {"b-success"},
		"-log " + idempotent.LogKey("b-success-no"): {},
	} {
		require.ElementsMatch(t, want, listed(t, term, strings.Fields(args)...), args)
	}
	require.Len(t, listed(t, term, "-limit", "3"), 3)
	require.Len(t, listed(t, term), 10)

	code, out, err := term.says("list", "-state", "unknown", "-prefix", "a-u")
	require.Equal(t, exitOK, code, err)
	lines := strings.Split(out, "\n")
	require.Len(t, lines, 3)
	require.Equal(t, []string{"STATE", "AGE", "LEFT", "TRACE", "KEY"}, strings.Fields(lines[0]))
	require.Equal(t, "unknown", strings.Fields(lines[1])[0])
	require.Equal(t, []string{"trace-unknown", "a-unknown"}, strings.Fields(lines[1])[3:])
	require.Empty(t, err, "no progress where nobody looks")

	code, out, err = term.says("list", "-state", "corrupt")
	require.Equal(t, exitOK, code)
	require.Empty(t, out)
	require.Contains(t, err, "no such entry among 10")
}

// A listing of many pages has one header, every key, and tells how far it is.
func TestList_Pages(t *testing.T) {
	t.Parallel()
	store := newMemory(t)
	const n = 2*idempotent.MaxListLimit + 1
	for i := range n {
		require.NoError(t, store.Complete(t.Context(), fmt.Sprintf("key-%d", i), "o", idempotent.Outcome{Status: idempotent.Success, Retention: time.Hour}))
	}
	term := newTerminal(store)
	keys := listed(t, term)
	require.Len(t, keys, n)
	unique := map[string]bool{}
	for _, key := range keys {
		unique[key] = true
	}
	require.Len(t, unique, n)
	_, out, err := term.says("list", "-progress")
	require.Equal(t, 1, strings.Count(out, "STATE"))
	require.Equal(t, n+1, strings.Count(out, "\n"))
	require.Contains(t, err, "1000 entries seen, 1000 shown\n")
	require.NotContains(t, err, "\r", "a file is no terminal")
	term.shows = true
	_, _, err = term.says("list")
	require.Contains(t, err, "\r\x1b[K1000 entries seen, 1000 shown")
	require.True(t, strings.HasSuffix(err, "\r\x1b[K"), "the line is taken away")
}

// Every kind of store can be listed and watched.
func TestList_Stores(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"redis://" + redistest.Shared(t).Addr + "?prefix=listed:", newSQLite(t, true)} {
		store, end, err := openStore(t.Context(), url)
		require.NoError(t, err)
		fill(t, store, "a-")
		fill(t, store, "b-")
		require.NoError(t, end())
		term := newRealTerminal(url)
		require.ElementsMatch(t, []string{"a-unknown", "a-abandoned"}, listed(t, term, "-prefix", "a-", "-state", "unknown"), url)
		require.Len(t, listed(t, term), 10, url)
	}
}

// A store without the ability says so.
func TestList_Unsupported(t *testing.T) {
	t.Parallel()
	code, _, err := newTerminal(struct{ idempotent.Store }{newMemory(t)}).says("list")
	require.Equal(t, exitError, code)
	require.Contains(t, err, "cannot list its entries")
	for _, command := range []string{"list", "watch"} {
		code, _, err = newTerminal(idempotent.Moving(newMemory(t), newMemory(t))).says(command)
		require.Equal(t, exitUsage, code, command)
		require.Contains(t, err, "each of which lists its own entries: name one of them by -store")
	}
}

// A record that cannot be read is listed, told of, and can be removed.
func TestList_Corrupt(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	server.Must(t, "HSET", "torn:k", "nonsense", "1")
	term := newRealTerminal("redis://" + server.Addr + "?prefix=torn:")
	require.Equal(t, []string{"k"}, listed(t, term, "-state", "corrupt"))
	code, _, err := term.says("get", "k")
	require.Equal(t, exitError, code)
	require.Contains(t, err, "free -force removes it")
	code, _, err = term.says("free", "k", "-yes", "-reason", "torn")
	require.Equal(t, exitError, code, err)
	code, _, err = term.says("free", "k", "-yes", "-reason", "torn", "-force")
	require.Equal(t, exitOK, code, err)
	require.Contains(t, err, "the entry is corrupt")
	require.Contains(t, err, "key="+idempotent.LogKey("k")+" was=corrupt")
	require.Empty(t, listed(t, term))
}

// Other people's keys do not write on the terminal.
func TestList_Printable(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	defer func() { require.NoError(t, store.Close()) }()
	require.NoError(t, store.Complete(context.Background(), "a\x1b[2J\tb", "o", idempotent.Outcome{Status: idempotent.Success, Retention: time.Hour}))
	_, out, _ := newTerminal(store).says("list")
	require.Contains(t, out, `a\x1b[2J\x09b`)
}

// A script can tell the keys apart, and ask for them again, whatever bytes they
// are of.
func TestList_KeysOfAnyBytes(t *testing.T) {
	t.Parallel()
	store := newMemory(t)
	keys := []string{"a\xff", "a\xfe", "a\ufffd", "é"}
	for _, key := range keys {
		require.NoError(t, store.Complete(t.Context(), key, "o", idempotent.Outcome{Status: idempotent.Success, Retention: time.Hour}))
	}
	code, out, err := newTerminal(store).says("list", "-json")
	require.Equal(t, exitOK, code, err)
	var got []string
	for line := range strings.Lines(out) {
		var e struct {
			Key   string
			Bytes []byte `json:"key_base64"`
		}
		require.NoError(t, json.Unmarshal([]byte(line), &e))
		if e.Bytes != nil {
			e.Key = string(e.Bytes)
		}
		got = append(got, e.Key)
	}
	require.ElementsMatch(t, keys, got)
}
