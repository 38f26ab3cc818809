// Command orderedid gives orders ids that rise in the order in which the orders
// came, whichever instance took them, and shows clients none of that.
//
//	export ORDEREDID_KEY=$(openssl rand -hex 32)   the same for every instance
//	go run ./examples/redis/orderedid -redis 127.0.0.1:6379
//	curl -i -X POST -H 'X-User: ada' -H 'Idempotency-Key: 1' http://127.0.0.1:8080/orders
//
// source.go makes the ids, with Redis and without, and says what is promised
// then; public.go is how clients see them. This file puts both behind a guard:
// the id is made inside the operation, so that a replay shows the same one.
//
// Keys are kept in another store than the numbers, by default in memory
// (-store, or $IDEMPOTENCY_STORE: see package storeurl). In the same Redis, an
// outage would end at the guard, which refuses without its store, and no order
// would ever ask for an id: ids out of order can be borne, an order that runs
// twice cannot.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/storeurl"
)

// grace is how long running requests may take after SIGTERM.
const grace = 20 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "orderedid:", err)
		os.Exit(1)
	}
}

// run is main with its surroundings passed in. It serves until ctx ends.
func run(ctx context.Context, args []string, stderr io.Writer) error {
	flags := flag.NewFlagSet("orderedid", flag.ContinueOnError)
	flags.SetOutput(stderr)
	addr := flags.String("addr", "127.0.0.1:8080", "`address` to listen on")
	servers := flags.String("redis", "127.0.0.1:6379", "`addresses` of the Redis that counts, with commas: one is a server, several are a Cluster")
	storeURL := flags.String("store", "memory:", "`URL` of where keys are kept, instead of $IDEMPOTENCY_STORE")
	if where := os.Getenv("IDEMPOTENCY_STORE"); where != "" {
		*storeURL = where
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))
	seen, err := newPublic(os.Getenv("ORDEREDID_KEY"))
	if err != nil {
		return fmt.Errorf("ORDEREDID_KEY: %w", err)
	}
	store, closeStore, err := storeurl.Open(ctx, *storeURL)
	if err != nil {
		return fmt.Errorf("-store: %w", err)
	}
	client := dial(*servers)
	ids := newSource(client, "orderedid:orders", func(err error) { log.Warn("an id without Redis", "err", err) })
	guard := idempotent.New(store, idempotent.WithLogger(log))
	book := &book{ids: ids, seen: seen}
	server := &http.Server{Handler: book.handler(guard), ReadHeaderTimeout: 5 * time.Second}
	l, err := net.Listen("tcp", *addr)
	if err != nil {
		return errors.Join(err, closeStore(), client.Close())
	}
	log.Info("listening", "url", "http://"+l.Addr().String())

	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	select {
	case err := <-failed:
		return errors.Join(err, closeStore(), client.Close())
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	shutdownErr := server.Shutdown(ctx)
	drainErr := guard.Drain(ctx)
	return errors.Join(shutdownErr, drainErr, closeStore(), client.Close())
}

// dial connects to Redis when it is first asked for a number.
func dial(servers string) redis.UniversalClient {
	return redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs:                 strings.Split(servers, ","),
		Password:              os.Getenv("REDIS_PASSWORD"),
		ContextTimeoutEnabled: true,
		MaxRetries:            -1, // none: an id is made here instead
		DialerRetries:         1,  // a refused connection is told at once
	})
}

// book keeps orders in memory; a real one has a table whose primary key is the
// id. The index then grows at its end, and its uniqueness is the last word.
type book struct {
	ids  *source
	seen public

	mu     sync.Mutex
	orders []order // guarded by mu
}

type order struct {
	id   uuid.UUID
	user string
}

func (b *book) handler(guard *idempotent.Guard) http.Handler {
	once := guard.Middleware(userOf)
	mux := http.NewServeMux()
	mux.Handle("POST /orders", once(http.HandlerFunc(b.place)))
	mux.HandleFunc("GET /orders", b.list)
	mux.HandleFunc("GET /orders/{id}", b.show)
	return mux
}

// userOf says who asks: a stable id that authentication, which is not the
// subject here, has found.
func userOf(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil }

func (b *book) place(w http.ResponseWriter, r *http.Request) {
	id, err := b.ids.next(r.Context())
	if err != nil {
		w.Header().Set("Retry-After", "1") // nothing has happened: the key is freed
		http.Error(w, "no id to be had", http.StatusServiceUnavailable)
		return
	}
	user, _ := userOf(r)
	b.mu.Lock()
	b.orders = append(b.orders, order{id, user})
	b.mu.Unlock()
	w.Header().Set("Location", "/orders/"+b.seen.show(id))
	write(w, http.StatusCreated, b.seen.show(id))
}

// list shows a user's orders in the order in which they came, which only the
// ids inside tell.
func (b *book) list(w http.ResponseWriter, r *http.Request) {
	user, _ := userOf(r)
	b.mu.Lock()
	slices.SortFunc(b.orders, func(x, y order) int { return bytes.Compare(x.id[:], y.id[:]) })
	shown := []string{}
	for _, o := range b.orders {
		if o.user == user {
			shown = append(shown, b.seen.show(o.id))
		}
	}
	b.mu.Unlock()
	write(w, http.StatusOK, shown...)
}

func (b *book) show(w http.ResponseWriter, r *http.Request) {
	user, _ := userOf(r)
	id, err := b.seen.read(r.PathValue("id"))
	b.mu.Lock()
	found := err == nil && slices.Contains(b.orders, order{id, user})
	b.mu.Unlock()
	if !found {
		http.Error(w, "no such order", http.StatusNotFound)
		return
	}
	write(w, http.StatusOK, r.PathValue("id"))
}

func write(w http.ResponseWriter, status int, ids ...string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string][]string{"orders": ids})
}
