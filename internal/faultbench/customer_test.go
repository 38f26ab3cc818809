//go:build unix

package faultbench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// customers send payments and retry, each payment under one key and with one
// body, until they know what became of it or that nobody does.
type customers struct {
	t        *testing.T
	http     *http.Client
	patience time.Duration // with one payment; more than a lease
	done     sync.WaitGroup

	mu       sync.Mutex // guards all below
	url      string
	order    string // what new payments are for
	stop     chan struct{}
	entered  int
	bodies   map[string]string
	answers  map[string][]answer
	attempts map[string]*attempt // under way
	sent     int
	answered int
}

// attempt is one request.
type attempt struct {
	first bool  // of its payment
	lost  bool  // it has ended without the answer of its own execution
	kill  *kill // came while the request was under way and its outcome recorded
}

// newCustomers returns customers of url, none at first. They end with the test
// at the latest.
func newCustomers(t *testing.T, url string) *customers {
	t.Helper()
	c := &customers{
		t: t, url: url, patience: 30 * time.Second,
		http:     &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 100}},
		bodies:   map[string]string{},
		answers:  map[string][]answer{},
		attempts: map[string]*attempt{},
	}
	t.Cleanup(func() { // the test's context has ended
		c.done.Wait()
		c.http.CloseIdleConnections()
	})
	return c
}

// enter lets n more customers begin.
func (c *customers) enter(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop == nil {
		c.stop = make(chan struct{})
	}
	stop := c.stop
	for range n {
		c.entered++
		name := c.entered
		c.done.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-c.t.Context().Done():
					return
				case <-time.After(rand.N(20 * time.Millisecond)):
				}
				c.pay(fmt.Sprintf("c%d-%d", name, i))
			}
		})
	}
}

// leave makes those who are there begin nothing new. They end what they have
// begun.
func (c *customers) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.stop)
	c.stop = nil
}

// visit tells the customers where the shop is now, and what to pay for.
func (c *customers) visit(url, order string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.url, c.order = url, order
}

// pay sends one payment until the answer is final.
func (c *customers) pay(key string) {
	ctx, cancel := context.WithTimeout(c.t.Context(), c.patience)
	defer cancel()
	for ctx.Err() == nil {
		pause := 10 * time.Millisecond
		a, after, err := c.send(ctx, key)
		if err == nil {
			if a.final() {
				return
			}
			pause = after
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause + rand.N(pause)):
		}
	}
}

// send makes one attempt.
func (c *customers) send(ctx context.Context, key string) (a answer, after time.Duration, err error) {
	c.mu.Lock()
	try := &attempt{first: c.answers[key] == nil}
	c.sent++
	c.attempts[key] = try
	if try.first {
		c.answers[key] = []answer{}
		_, n, _ := strings.Cut(key, "-")
		c.bodies[key] = fmt.Sprintf(`{"order":%q,"amount_cents":1%s}`, c.order, n)
	}
	url, body := c.url, c.bodies[key]
	c.mu.Unlock()
	a, after, err = c.exchange(ctx, url, key, body)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.attempts, key)
	if err == nil {
		c.answered++
		c.answers[key] = append(c.answers[key], a)
	}
	// net/http may have sent the request again by itself.
	try.lost = err != nil || a.replayed
	if try.lost && try.kill != nil {
		try.kill.completionAnswer = true
	}
	return a, after, err
}

func (c *customers) exchange(ctx context.Context, url, key, body string) (a answer, after time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+route, strings.NewReader(body))
	if err != nil {
		return a, 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	req.Header.Set("Authorization", "Bearer ada-token-1") // the shop wants one
	resp, err := c.http.Do(req)
	if err != nil {
		return a, 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return a, 0, err
	}
	var in struct{ ID, Code string }
	if err := json.Unmarshal(text, &in); err != nil {
		return a, 0, err
	}
	seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
	after = max(10*time.Millisecond, time.Duration(seconds)*time.Second)
	replayed := resp.Header.Get("Idempotent-Replayed") == "true"
	return answer{status: resp.StatusCode, code: in.Code, id: in.ID, replayed: replayed}, after, nil
}

// close lets the customers finish what they have begun. Then each asks for each
// of its payments once more, as one does whose answer was lost.
func (c *customers) close() {
	c.leave()
	c.done.Wait()
	queue := make(chan string)
	for range 16 {
		c.done.Go(func() {
			for key := range queue {
				c.pay(key)
			}
		})
	}
	for _, key := range c.keys() {
		queue <- key
	}
	close(queue)
	c.done.Wait()
}

// keys returns the keys of all payments.
func (c *customers) keys() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.answers))
}

// count returns how many answers there are.
func (c *customers) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answered
}

// paid returns how many payments are known to be made.
func (c *customers) paid() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, answers := range c.answers {
		if len(answers) > 0 && last(answers).status == http.StatusCreated {
			n++
		}
	}
	return n
}

// underWay returns the attempts that have no answer yet.
func (c *customers) underWay() map[string]*attempt {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.attempts)
}

// kill is one death, and between which steps of some operation it came.
type kill struct {
	claimLedger, ledgerCompletion, completionAnswer bool
}
