package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/idempotent-go/idempotent"
)

const (
	ada        = "ada-token-1"
	adaRenewed = "ada-token-2"
	bob        = "bob-token-1"

	tea = `{"item":"tea","quantity":2}`

	// patience bounds every wait of the story. It is reached only when
	// something is wrong, and then a row says so.
	patience = 10 * time.Second
)

// demo runs v on a free port, plays the story against it over HTTP, prints the
// table to out, and returns the exit code: 0 if every row is as expected.
func demo(out io.Writer, v *service) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		_, _ = fmt.Fprintln(out, "demo:", err, v.closeStore())
		return 1
	}
	s := newStory(v, l)
	go func() { s.ended <- v.serve(untilSignal(), l) }()
	s.requests()
	s.inspector()
	s.sigterm()
	return s.table.print(out)
}

// show runs v on l until ctx ends. It begins with the story as far as it is the
// clients', and says where the keys of that can be seen: the rest is for whoever
// looks after them. level is that of the log. It returns 1 where a row was wrong.
func show(ctx context.Context, out io.Writer, v *service, l net.Listener, level *slog.LevelVar) (int, error) {
	charge := v.shop.charge
	s := newStory(v, l)
	close(s.goOn)
	level.Set(silent)
	go func() { s.ended <- v.serve(ctx, l) }()
	s.requests()
	code := s.table.print(out)
	level.Set(slog.LevelInfo)
	s.provider.usually(charge)
	_, _ = fmt.Fprintf(out, "\nThe shop is open at %s until you press Ctrl-C. All these keys are in its inspector, where the\n"+
		"crashed payment waits for a decision: %s\n", s.base, inspectorURL(l))
	return code, <-s.ended
}

// story is the client of the shop, and holds the strings that make its
// accidents happen at the right moment.
type story struct {
	*service
	client
	table
	run string // makes keys new, since Redis remembers earlier runs

	hungUpOn, crashed request // what the operator looks for later

	provider paymentProvider
	hungUp   chan struct{} // the server has noticed that a client is gone
	stopping chan struct{} // closed when the server shuts down
	drained  chan struct{} // closed when only the store is left to be closed
	goOn     chan struct{} // close it to let the store be closed
	ended    chan error    // what became of the shop
}

// newStory returns the story of v, which is not yet served on l.
func newStory(v *service, l net.Listener) *story {
	s := &story{
		service:  v,
		client:   newClient("http://" + l.Addr().String()),
		run:      rand.Text()[:8],
		hungUp:   make(chan struct{}, 1),
		stopping: make(chan struct{}),
		drained:  make(chan struct{}),
		goOn:     make(chan struct{}),
		ended:    make(chan error, 1),
	}
	s.intervene()
	return s
}

// intervene puts the story's strings into the shop, before it runs. What the
// shop does stays the same.
func (s *story) intervene() {
	s.shop.charge = s.provider.charge

	handler := s.server.Handler
	s.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stop := context.AfterFunc(r.Context(), func() {
			select {
			case s.hungUp <- struct{}{}:
			default:
			}
		})
		defer stop()
		handler.ServeHTTP(w, r)
	})

	s.server.RegisterOnShutdown(func() { close(s.stopping) })

	closeStore := s.closeStore
	s.closeStore = func() error {
		close(s.drained)
		<-s.goOn
		return closeStore()
	}
}

// requests plays what clients do.
func (s *story) requests() {
	s.duplicates()
	s.hangUp()
	s.crash()
	s.twoUsers()
	s.noKey()
}

func (s *story) duplicates() {
	s.chapter("1 duplicates")
	order := request{path: "/orders", token: ada, key: s.key("order"), body: tea}
	orders := s.orders(ada)

	answers := make([]answer, 100)
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() {
			<-start
			answers[i] = s.send(context.Background(), order)
		})
	}
	close(start)
	all.Wait()

	var first, repeats int
	for _, a := range answers {
		switch a.String() {
		case "201 first":
			first++
		case "replay of 201", "409 in-flight":
			repeats++
		}
	}
	s.row("100 equal POST /orders at once", "1 first, 99 replay/409", fmt.Sprintf("%d first, %d replay/409", first, repeats))
	s.row("once more, later", "replay of 201", s.send(context.Background(), order).String())
	s.row("GET /orders: new ones", "1", fmt.Sprint(s.orders(ada)-orders))
}

func (s *story) hangUp() {
	s.chapter("2 hang-up")
	pay := request{path: "/payments", token: ada, key: s.key("hang-up"), body: s.bill(ada)}
	charges := s.provider.charges()

	held := s.provider.hold()
	ctx, leave := context.WithCancel(context.Background())
	go func() {
		reached(held.entered)
		leave()
	}()
	s.row("POST /payments, then hang up", "no answer", s.send(ctx, pay).String())
	s.row("the server notices", "yes", yes(reached(s.hungUp)))
	s.row("retry while it still runs", "409 in-flight", s.send(context.Background(), pay).String())
	held.open()
	s.hungUpOn = pay
	patient := pay
	patient.prefer = "wait=10"
	s.row("retry with Prefer: wait=10", "replay of 201", s.send(context.Background(), patient).String())
	s.row("charges at the provider", "1", fmt.Sprint(s.provider.charges()-charges))

	s.chapter("3 changed body")
	changed := pay
	changed.body = s.bill(ada) // for another order
	s.row("the same key, another payment", "422 key-reused", s.send(context.Background(), changed).String())
	s.row("charges at the provider", "1", fmt.Sprint(s.provider.charges()-charges))
}

func (s *story) crash() {
	s.chapter("4 crash")
	pay := request{path: "/payments", token: ada, key: s.key("crash"), body: s.bill(ada)}
	charges := s.provider.charges()

	s.crashed = pay
	s.provider.panics()
	s.row("POST /payments: handler panics", "no answer", s.send(context.Background(), pay).String())
	retry := s.send(context.Background(), pay)
	s.row("retry", "replay of 500", retry.String())
	s.row("its code", "operation-aborted", retry.code)
	s.row("retry once more", "replay of 500", s.send(context.Background(), pay).String())
	s.row("charges at the provider", "1", fmt.Sprint(s.provider.charges()-charges))
}

func (s *story) twoUsers() {
	s.chapter("5 two users")
	ofAda := request{path: "/orders", token: ada, key: s.key("shared"), body: tea}
	renewed, ofBob := ofAda, ofAda
	renewed.token, ofBob.token = adaRenewed, bob
	adas, bobs := s.orders(ada), s.orders(bob)

	s.row("POST /orders by Ada", "201 first", s.send(context.Background(), ofAda).String())
	s.row("the same, same key, by Bob", "201 first", s.send(context.Background(), ofBob).String())
	s.row("Ada again, with a new token", "replay of 201", s.send(context.Background(), renewed).String())
	s.row("new orders of Ada, of Bob", "1, 1", fmt.Sprintf("%d, %d", s.orders(ada)-adas, s.orders(bob)-bobs))
}

func (s *story) noKey() {
	s.chapter("6 no key")
	orders := s.orders(ada)
	s.row("POST /orders without a key", "400 key-missing", s.send(context.Background(), request{path: "/orders", token: ada, body: tea}).String())
	s.row("GET /orders: new ones", "0", fmt.Sprint(s.orders(ada)-orders))
}

// sigterm sends this process the signal while a payment runs. It ends the shop.
func (s *story) sigterm() {
	s.chapter("8 SIGTERM")
	pay := request{path: "/payments", token: ada, key: s.key("sigterm"), body: s.bill(ada)}
	other := pay
	other.key = s.key("too-late")
	charges := s.provider.charges()

	held := s.provider.hold()
	paid := make(chan answer, 1)
	go func() { paid <- s.send(context.Background(), pay) }()
	reached(held.entered)
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Signal(syscall.SIGTERM)
	}
	s.row("SIGTERM while a payment runs", "sent", orError("sent", err))
	s.row("the shop begins to stop", "yes", yes(reached(s.stopping)))
	held.open()
	s.row("the answer to that payment", "201 first", (<-paid).String())

	// The server has stopped and the guard is drained; the store is still
	// open. A second server with the same handler shows what is answered now,
	// as to a client whose request was under way.
	s.row("drained, its store still open", "yes", yes(reached(s.drained)))
	key := idempotent.StoreKey(http.MethodPost, pay.path, tokens[pay.token], pay.key)
	entry, _, err := s.store.Load(context.Background(), key)
	s.row("its record in the store", "success", orError(string(entry.Status), err))
	if l, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
		second := &http.Server{Handler: s.server.Handler, ReadHeaderTimeout: patience}
		go func() { _ = second.Serve(l) }()
		defer func() { _ = second.Close() }()
		s.client = newClient("http://" + l.Addr().String())
	}
	s.row("retry", "replay of 201", s.send(context.Background(), pay).String())
	s.row("a new payment", "503 store-unavailable", s.send(context.Background(), other).String())
	s.row("charges at the provider", "1", fmt.Sprint(s.provider.charges()-charges))

	close(s.goOn)
	select {
	case err := <-s.ended:
		s.row("the shop has closed its store", "no error", orError("no error", err))
	case <-time.After(patience):
		s.row("the shop has closed its store", "no error", "it still runs")
	}
}

// key returns a key that no earlier run has used.
func (s *story) key(name string) string { return name + "-" + s.run }

// orders counts a user's orders, as GET /orders shows them.
func (s *story) orders(token string) int {
	var list []order
	a := s.send(context.Background(), request{method: http.MethodGet, path: "/orders", token: token})
	_ = json.Unmarshal([]byte(a.body), &list)
	return len(list)
}

// bill places an order of a user and returns the body of a payment for it.
func (s *story) bill(token string) string {
	var o order
	a := s.send(context.Background(), request{path: "/orders", token: token, key: rand.Text(), body: tea})
	_ = json.Unmarshal([]byte(a.body), &o)
	return fmt.Sprintf(`{"order":%q,"amount_cents":1250}`, o.ID)
}

// reached waits for c to be closed or sent to, and reports whether it was.
func reached(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	case <-time.After(patience):
		return false
	}
}

func yes(ok bool) string {
	if ok {
		return "yes"
	}
	return "no"
}

func orError(text string, err error) string {
	if err != nil {
		return err.Error()
	}
	return text
}
