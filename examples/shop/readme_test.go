package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/memstore"
)

var (
	transcript = regexp.MustCompile("(?ms)^```console\n(.*?)^```$")
	curl       = regexp.MustCompile(`^curl -i http://127\.0\.0\.1:8080(\S+) -H '([^']+)' -H '([^']+)' -d '([^']+)'( &)?$`)
	ids        = regexp.MustCompile(`(ord|pay)-[a-z0-9]+`)
)

// The transcript of the README is what a client of the shop sees: every line of
// it, in order, though not every line of the answers.
func TestREADME_Transcript(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	block := transcript.FindSubmatch(readme)
	require.NotNil(t, block)

	charging, agree := make(chan struct{}), make(chan struct{})
	charge := func(context.Context, payment) error {
		charging <- struct{}{}
		<-agree
		return nil
	}
	store := memstore.New()
	v := newService(store, store.Close, charge, slog.New(slog.DiscardHandler))
	server := httptest.NewServer(v.server.Handler)
	defer server.Close()
	defer func() { require.NoError(t, store.Close()) }()

	// Ids differ from those of the README, always in the same way.
	seen := map[string]string{}
	translate := func(s string) string {
		return ids.ReplaceAllStringFunc(s, func(id string) string {
			if real, ok := seen[id]; ok {
				return real
			}
			return id
		})
	}
	background := make(chan string, 1)
	commands := strings.Split(string(block[1]), "$ ")[1:]
	require.Len(t, commands, 6)
	for _, command := range commands {
		line, want, _ := strings.Cut(command, "\n")
		want = strings.TrimSpace(want)
		var got string
		if line == "wait" {
			close(agree)
			got = <-background
		} else {
			parts := curl.FindStringSubmatch(line)
			require.NotNil(t, parts, "the test does not understand: %s", line)
			send := func() string { return post(t, server.URL+parts[1], translate(parts[4]), parts[2], parts[3]) }
			if parts[5] != "" {
				require.Empty(t, want)
				go func() { background <- send() }()
				<-charging
				continue
			}
			got = send()
		}
		if shown, real := ids.FindAllString(want, -1), ids.FindAllString(got, -1); len(shown) > 0 {
			for i := range shown {
				seen[shown[i]] = real[i]
			}
		}
		rest := got
		for w := range strings.SplitSeq(translate(want), "\n") {
			w, cut := strings.CutSuffix(w, "…")
			if !cut {
				w += "\n"
			}
			_, after, found := strings.Cut(rest, w)
			require.True(t, found, "%s\nshows %q, and the shop answers\n%s", line, w, got)
			rest = after
		}
	}
}

// post sends what curl -d would and returns the answer as curl -i prints it.
func post(t *testing.T, url, body string, headers ...string) string {
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return err.Error()
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	head, err := httputil.DumpResponse(res, false)
	if err != nil {
		return err.Error()
	}
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return err.Error()
	}
	return strings.ReplaceAll(string(head)+string(text), "\r\n", "\n") + "\n"
}
