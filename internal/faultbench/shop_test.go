//go:build unix

package faultbench

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
)

// bank is the payment provider of the shop, and its ledger.
type bank struct {
	mu   sync.Mutex
	paid map[string][]execution // by the key that the shop sends
}

func (b *bank) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in struct {
		ID          string
		AmountCents int `json:"amount_cents"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	x := execution{id: in.ID, status: http.StatusCreated}
	if in.AmountCents%declined == 0 {
		x = execution{status: http.StatusPaymentRequired} // the shop's refusal has no id
	}
	b.mu.Lock()
	key := r.Header.Get("Idempotency-Key")
	b.paid[key] = append(b.paid[key], x)
	b.mu.Unlock()
	busy()
	if x.status == http.StatusPaymentRequired {
		w.WriteHeader(x.status)
	}
}

// of returns the executions of keys, which the shop sends as digests.
func (b *bank) of(keys []string, storeKey func(string) string) map[string][]execution {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := map[string][]execution{}
	found := 0
	for _, key := range keys {
		for _, x := range b.paid[fmt.Sprintf("%x", sha256.Sum256([]byte(storeKey(key))))] {
			x.key = key
			all[key] = append(all[key], x)
		}
		if all[key] != nil {
			found++
		}
	}
	if found != len(b.paid) {
		all["somebody's key"] = []execution{{}}
	}
	return all
}

// The shop itself dies, with this test as its bank. It loses its orders, so
// that a payment that was not claimed before the crash is refused after it: "no
// such order".
func TestC001_CrashOfTheShop(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "shop")
	out, err := exec.Command("go", "build", "-o", binary, "../../examples/shop").CombinedOutput()
	require.NoError(t, err, string(out))
	b := &bank{paid: map[string][]execution{}}
	provider := httptest.NewServer(b)
	t.Cleanup(provider.Close)

	c := newCrash(t)
	c.lease = lease
	c.storeKey = func(key string) string { return idempotent.StoreKey(http.MethodPost, route, "user-ada", key) }
	c.customers = newCustomers(t, "")
	c.ledger = func() map[string][]execution { return b.of(c.customers.keys(), c.storeKey) }
	shop := &shopProcess{binary: binary, args: []string{"-store", "redis://" + c.relay.Addr + "/0", "-provider", provider.URL, "-lease", lease.String()}}
	t.Cleanup(shop.kill)
	for range times(10, 200) {
		c.since = time.Now()
		url := shop.start(t)
		c.customers.visit(url, order(t, url))
		c.customers.enter(12)
		c.reach()
		underWay := c.customers.underWay()
		shop.kill()
		c.relay.Cut()
		c.look(underWay, false)
		c.customers.leave() // who waits for a lease to end must not be all there are
		c.relay.Mend()
	}
	url := shop.start(t)
	c.customers.visit(url, order(t, url))
	c.customers.enter(12)
	// Payments of orders that died with a shop are refused; these are not.
	redistest.Eventually(t, "payments are made after the last crash", func() bool { return c.customers.paid() >= 3 })
	c.end(true).require(t)
}

// shopProcess runs shops, one at a time.
type shopProcess struct {
	binary string
	args   []string
	cmd    *exec.Cmd
	log    sync.WaitGroup
}

// start starts a shop and returns where it is.
func (p *shopProcess) start(t *testing.T) (url string) {
	t.Helper()
	p.cmd = exec.Command(p.binary, append([]string{"-addr", "127.0.0.1:0"}, p.args...)...)
	redistest.EndWithParent(p.cmd)
	stderr, err := p.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	at := make(chan string, 1)
	p.log.Go(func() {
		defer close(at)
		for in := bufio.NewScanner(stderr); in.Scan(); {
			if _, url, ok := strings.Cut(in.Text(), "msg=listening url="); ok {
				at <- url
			}
		}
	})
	url = <-at
	require.NotEmpty(t, url, "the shop has ended")
	return url
}

// kill ends the shop as kill -9 does, and returns when it has ended.
func (p *shopProcess) kill() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	p.log.Wait()
	_ = p.cmd.Wait()
}

// order places an order and returns its id.
func order(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/orders", strings.NewReader(`{"item":"tea","quantity":1}`))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer ada-token-1")
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", fmt.Sprint("order-", time.Now().UnixNano()))
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, resp.StatusCode, string(body))
	var placed struct{ ID string }
	require.NoError(t, json.Unmarshal(body, &placed))
	return placed.ID
}
