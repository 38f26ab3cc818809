package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/examples/internal/program"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/storeurl"
)

const secret = "whsec_test"

func TestMain(m *testing.M) { program.Main(m, main) }

// The first delivery fails before the commit, the second one books, the third
// one is a replay.
func TestDeliveries(t *testing.T) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		testDeliveries(t, "")
	})
	t.Run("Redis", func(t *testing.T) {
		t.Parallel()
		testDeliveries(t, "redis://"+redistest.Start(t).Addr)
	})
}

func testDeliveries(t *testing.T, store string) {
	disk := filepath.Join(t.TempDir(), "disk") // not there yet
	ledger := filepath.Join(disk, "ledger")
	p := start(t, store, ledger)
	const payment = `{"id":"evt_1","type":"payment.succeeded","account":"ada","cents":1250}`

	status, h := p.deliver(t, payment)
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.NotEmpty(t, h.Get("Retry-After"))
	require.NoError(t, os.Mkdir(disk, 0o700))
	status, _ = p.deliver(t, payment)
	require.Equal(t, http.StatusNoContent, status)
	require.Equal(t, "\"evt_1\" \"ada\" 1250\n", read(t, ledger))
	status, _ = p.deliver(t, payment)
	require.Equal(t, http.StatusNoContent, status)
	require.Equal(t, "\"evt_1\" \"ada\" 1250\n", read(t, ledger))
	story := regexp.MustCompile(`(?s)"not booked" event=evt_1 .*msg=booked event=evt_1.*"already booked" event=evt_1`)
	redistest.Eventually(t, "the log tells the story", func() bool { return story.MatchString(p.Log()) })

	// Deliveries at once, in any order: one of them books.
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			status, _ := p.deliver(t, strings.Replace(payment, "evt_1", "evt_2", 1))
			if status != http.StatusNoContent && status != http.StatusConflict {
				t.Errorf("status %d", status)
			}
		})
	}
	all.Wait()
	require.Equal(t, 1, strings.Count(read(t, ledger), "evt_2"))

	// What cannot be booked, cannot, and is told so each time.
	for range 2 {
		status, _ = p.deliver(t, `{"id":"evt_3","type":"payment.succeeded","account":"ada","cents":0}`)
		require.Equal(t, http.StatusUnprocessableEntity, status)
	}
	status, _ = p.deliver(t, `{"id":"evt_4","type":"customer.created"}`)
	require.Equal(t, http.StatusNoContent, status)
	for _, body := range []string{"no JSON", `{"type":"payment.succeeded"}`} {
		status, _ = p.deliver(t, body)
		require.Equal(t, http.StatusBadRequest, status)
	}
	require.Equal(t, 2, strings.Count(read(t, ledger), "\n"))

	require.Equal(t, 0, p.Stop(t), p.Log())
	if store == "" {
		return
	}
	for event, want := range map[string]idempotent.Status{"evt_1": idempotent.Success, "evt_3": idempotent.Failed} {
		s, end, err := storeurl.Open(t.Context(), store)
		require.NoError(t, err)
		e, found, err := s.Load(t.Context(), idempotent.Key("webhook", event))
		require.NoError(t, err)
		require.NoError(t, end())
		require.True(t, found)
		require.Equal(t, want, e.Status)
		require.Greater(t, e.Expires.Sub(e.Timestamp), 3*24*time.Hour, "the provider sends for three days")
	}
}

// An error after the commit has begun books nothing again, whatever comes.
func TestUnknown(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has /dev/full, a file that can be opened and not be written to")
	}
	p := start(t, "", "/dev/full")
	for range 2 {
		status, _ := p.deliver(t, `{"id":"evt_1","type":"payment.succeeded","account":"ada","cents":1}`)
		require.Equal(t, http.StatusInternalServerError, status)
	}
	redistest.Eventually(t, "both are logged", func() bool { return strings.Count(p.Log(), "may have been booked") == 2 })
	require.Equal(t, 1, strings.Count(p.Log(), "no space left"), p.Log())
}

// A forged delivery is refused, and does not use up the key of the real one.
func TestForged(t *testing.T) {
	t.Parallel()
	ledger := filepath.Join(t.TempDir(), "ledger")
	p := start(t, "", ledger)
	const payment = `{"id":"evt_1","type":"payment.succeeded","account":"ada","cents":1250}`
	forged := strings.Replace(payment, "ada", "eve", 1)
	now := time.Now()
	for name, signature := range map[string]string{
		"none":                "",
		"of another body":     sign(secret, payment, now),
		"by another secret":   sign("guessed", forged, now),
		"too old":             sign(secret, forged, now.Add(-tolerance-time.Minute)),
		"from the future":     sign(secret, forged, now.Add(tolerance+time.Minute)),
		"with another time":   strings.Replace(sign(secret, forged, now.Add(-time.Hour)), fmt.Sprint(now.Add(-time.Hour).Unix()), fmt.Sprint(now.Unix()), 1),
		"cut":                 sign(secret, forged, now)[:40],
		"one digit short":     strings.TrimSuffix(sign(secret, forged, now), sign(secret, forged, now)[len(sign(secret, forged, now))-1:]),
		"without a sum":       fmt.Sprintf("t=%d", now.Unix()),
		"with an empty sum":   fmt.Sprintf("t=%d,v1=", now.Unix()),
		"a time out of range": "t=99999999999999999999,v1=00",
	} {
		status, _ := p.post(t, forged, signature)
		require.Equal(t, http.StatusUnauthorized, status, name)
	}
	status, _ := p.deliver(t, payment)
	require.Equal(t, http.StatusNoContent, status)
	require.Equal(t, "\"evt_1\" \"ada\" 1250\n", read(t, ledger))
	status, _ = p.deliver(t, `"`+strings.Repeat("x", maxBody)+`"`)
	require.Equal(t, http.StatusBadRequest, status)
}

// What the doc comment shows: openssl makes the same signature.
func TestSignature(t *testing.T) {
	t.Parallel()
	const body, made = `{"id":"evt_1"}`, 1700000000
	// printf %s '1700000000.{"id":"evt_1"}' | openssl dgst -sha256 -hmac whsec_test -r
	const signature = "t=1700000000,v1=c89214b5b5da833daed6f0b8c5bb6bd58cea9022bd80ccc78230f3942d632925"
	require.True(t, verify([]byte(secret), signature, []byte(body), time.Unix(made, 0)))
	require.True(t, verify([]byte(secret), signature, []byte(body), time.Unix(made, 0).Add(tolerance)))
	require.False(t, verify([]byte(secret), signature, []byte(body), time.Unix(made, 0).Add(tolerance+1)))
	require.False(t, verify([]byte(secret), signature, []byte(body), time.Unix(made, 0).Add(-tolerance-1)))
}

func TestRefusals(t *testing.T) {
	for _, tt := range []struct {
		secret, store string
		args          []string
		code          int
		text          string
	}{
		{secret, "", []string{"-h"}, 0, "-ledger"},
		{secret, "", []string{"-nonsense"}, 2, "nonsense"},
		{"", "", nil, 1, "WEBHOOK_SECRET"},
		{secret, "mysql:", nil, 1, "IDEMPOTENCY_STORE"},
		{secret, "", []string{"-addr", "127.0.0.1:port"}, 1, "port"},
	} {
		t.Setenv("WEBHOOK_SECRET", tt.secret)
		t.Setenv("IDEMPOTENCY_STORE", tt.store)
		var stderr bytes.Buffer
		require.Equal(t, tt.code, run(t.Context(), tt.args, &stderr), tt.args)
		require.Contains(t, stderr.String(), tt.text)
	}
}

// receiver is a running webhook.
type receiver struct {
	*program.Process
	url string
}

func start(t *testing.T, store, ledger string) receiver {
	t.Helper()
	p := program.Start(t, []string{"WEBHOOK_SECRET=" + secret, "IDEMPOTENCY_STORE=" + store}, "-addr", "127.0.0.1:0", "-ledger", ledger)
	return receiver{p, "http://" + p.Addr(t) + "/webhooks"}
}

// deliver sends body as the provider does.
func (p receiver) deliver(t *testing.T, body string) (int, http.Header) {
	return p.post(t, body, sign(secret, body, time.Now()))
}

func (p receiver) post(t *testing.T, body, signature string) (int, http.Header) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0, nil
	}
	req.Header.Set("Webhook-Signature", signature)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return 0, nil
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode, resp.Header
}

func sign(secret, body string, at time.Time) string {
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = fmt.Fprintf(mac, "%d.%s", at.Unix(), body)
	return fmt.Sprintf("t=%d,v1=%s", at.Unix(), hex.EncodeToString(mac.Sum(nil)))
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}
