package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"

	"github.com/idempotent-go/idempotent"
)

const (
	tea      = `{"item":"tea","quantity":2}`
	coffee   = `{"item":"coffee","quantity":1}`
	replayed = "Idempotent-Replayed"
)

// demo plays the story and returns the exit code: 0 if every row is as expected.
func demo(ctx context.Context, out io.Writer, v *service) int {
	run := rand.Text()[:8] // makes customers new, since the table remembers earlier runs
	s := &story{
		service: v, ctx: ctx, customer: "customer-" + run, coupon: "SPRING-" + run,
		handler: v.shop.handler(v.guard.Middleware(principal)),
	}
	s.play()
	return s.print(out)
}

// story is the client of the shop, and what it has seen.
type story struct {
	*service
	ctx              context.Context
	customer, coupon string
	handler          http.Handler
	rows             [][3]string // what was done, expected, seen
}

func (s *story) row(done, expected, seen string) {
	s.rows = append(s.rows, [3]string{done, expected, seen})
}

func (s *story) play() {
	first := s.post("key-1", tea)
	s.row("an order", "201 first", first.said())
	again := s.post("key-1", tea)
	s.row("the same again, Redis knows it", "201 replay, same answer", again.like(first))

	s.row("Redis forgets everything", "yes", s.forget())
	again = s.post("key-1", tea)
	s.row("the same again, only the index knows it", "201 first, same answer", again.like(first))
	again = s.post("key-1", tea)
	s.row("once more, Redis knows it again", "201 replay, same answer", again.like(first))
	s.row("orders of this key", "1", s.count("key-1"))

	s.row("Redis forgets everything", "yes", s.forget())
	s.row("another order under this key", "422 first", s.post("key-1", coffee).said())
	s.row("the same key of another customer", "201 first", s.postAs(s.customer+"-2", "key-1", tea).said())

	s.row("twenty at once, Redis forgets all the time", "one answer", s.storm("key-2"))
	s.row("orders of this key", "1", s.count("key-2"))

	s.row("an order with a coupon", "201 first", s.post("key-3", s.withCoupon()).said())
	s.row("another one with the same coupon", "409 first", s.post("key-4", s.withCoupon()).said())
	s.row("orders of this key", "0", s.count("key-4"))

	s.row("the first order is cancelled", "204 first", s.send(http.MethodDelete, first.header.Get("Location"), s.customer, "", "").said())
	s.row("Redis forgets everything", "yes", s.forget())
	s.row("the same again, the row is deleted softly", "410 first", s.post("key-1", tea).said())
}

func (s *story) withCoupon() string { return `{"item":"tea","quantity":1,"coupon":"` + s.coupon + `"}` }

// answer is what a client got.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) said() string {
	if a.header.Get(replayed) != "" {
		return fmt.Sprint(a.status, " replay")
	}
	return fmt.Sprint(a.status, " first")
}

// like says too whether it is the answer that somebody else got.
func (a answer) like(other answer) string {
	if a.status != other.status || a.body != other.body || a.header.Get("Location") != other.header.Get("Location") {
		return a.said() + ", another answer"
	}
	return a.said() + ", same answer"
}

func (s *story) post(key, body string) answer { return s.postAs(s.customer, key, body) }

func (s *story) postAs(customer, key, body string) answer {
	return s.send(http.MethodPost, "/orders", customer, key, body)
}

func (s *story) send(method, path, customer, key, body string) answer {
	r := httptest.NewRequestWithContext(s.ctx, method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Customer", customer)
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return answer{w.Code, w.Header(), w.Body.String()}
}

// forget removes this story's keys from Redis, as a flush or a failover to an
// empty one would.
func (s *story) forget() string {
	found := s.keys.Scan(s.ctx, 0, s.prefix+"*", 1000).Iterator()
	for found.Next(s.ctx) {
		if err := s.keys.Unlink(s.ctx, found.Val()).Err(); err != nil {
			return err.Error()
		}
	}
	if err := found.Err(); err != nil {
		return err.Error()
	}
	return "yes"
}

// storm sends one order many times at once while the keys vanish from under it.
// Some find it running, and ask again.
func (s *story) storm(key string) string {
	var all sync.WaitGroup
	var mu sync.Mutex
	answers := map[string]bool{}
	for range 20 {
		all.Go(func() {
			for {
				_ = s.forget()
				a := s.post(key, tea)
				if a.status == http.StatusConflict && s.ctx.Err() == nil {
					continue
				}
				mu.Lock()
				defer mu.Unlock()
				answers[fmt.Sprint(a.status, a.body)] = true
				return
			}
		})
	}
	all.Wait()
	if len(answers) != 1 {
		return fmt.Sprint(len(answers), " answers")
	}
	return "one answer"
}

// count returns how many rows there are of a key.
func (s *story) count(key string) string {
	var n int
	name := idempotent.StoreKey(http.MethodPost, "/orders", s.customer, key)
	err := s.shop.db.QueryRowContext(s.ctx, s.shop.dialect.text("SELECT COUNT(*) FROM shop_sql_orders WHERE principal = ? AND idempotency_key = ?"),
		s.customer, name).Scan(&n)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(n)
}

// print writes the table, marks the rows that are wrong, and returns the exit
// code.
func (s *story) print(out io.Writer) int {
	const line = "%-43s %-24s %-24s %s\n"
	_, _ = fmt.Fprintf(out, line, "what was done or looked at", "expected", "seen", "ok")
	_, _ = fmt.Fprintln(out, strings.Repeat("-", 96))
	wrong := 0
	for _, r := range s.rows {
		ok := "yes"
		if r[1] != r[2] {
			wrong++
			ok = "NO"
		}
		_, _ = fmt.Fprintf(out, line, r[0], r[1], r[2], ok)
	}
	if wrong > 0 {
		_, _ = fmt.Fprintf(out, "\n%d of %d rows are wrong\n", wrong, len(s.rows))
		return 1
	}
	_, _ = fmt.Fprintf(out, "\nall %d rows are as expected\n", len(s.rows))
	return 0
}
