// Command limited sends one-time codes and password resets: each once per
// Idempotency-Key, however often a client repeats it, and no more than three a
// minute to one user, however many keys a client makes up.
//
//	export IDEMPOTENCY_STORE=redis://127.0.0.1:6379/0
//	go run ./examples/redis/limited -redis 127.0.0.1:6379
//	curl -i -X POST -H 'X-User: ada' -H 'Idempotency-Key: 1' http://127.0.0.1:8080/codes
//
// The limiter stands inside the guarded operation. A replay never reaches it,
// and so does not count as an attempt. A refused attempt did nothing: the guard
// frees its key, and the client sends the same key again when Retry-After has
// passed. Outside of the guard, a client that repeats a lost answer would use up
// the attempts of its user.
//
// IDEMPOTENCY_STORE names where keys are kept, as package storeurl says; without
// it they are kept in memory, which is for one instance that is never restarted.
//
// Counting and expiring is one script of redis_rate over one key. What it cannot
// promise: a Redis that comes back empty, or fails over, has forgotten attempts;
// one whose reply was lost counts, although nothing was sent. Without Redis
// nothing is sent at all.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/storeurl"
)

// perUser is how often one user may attempt each operation: three times at once,
// and then once more for each minute that has passed, so that no minute sees
// more than three. redis_rate.PerMinute(3) is looser: it gives an attempt back
// every 20 seconds, and so allows five in the first minute.
var perUser = redis_rate.Limit{Burst: 3, Rate: 1, Period: time.Minute}

// patience is how long an attempt waits for the limiter.
const patience = 2 * time.Second

// inMemory keeps what is young: rather than forget what a client may repeat, a
// full store refuses.
const inMemory = "memory:?min_age=10m"

// grace is how long running requests may take after SIGTERM.
const grace = 20 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "limited:", err)
		os.Exit(1)
	}
}

// run is main with its surroundings passed in. It serves until ctx ends.
func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("limited", flag.ContinueOnError)
	flags.SetOutput(stdout)
	addr := flags.String("addr", "127.0.0.1:8080", "`address` to listen on")
	servers := flags.String("redis", "127.0.0.1:6379", "`addresses` of Redis, with commas: one is a server, several are a Cluster")
	if err := flags.Parse(args); err != nil {
		return err
	}
	store, closeStore, err := storeurl.Open(ctx, cmp.Or(os.Getenv("IDEMPOTENCY_STORE"), inMemory))
	if err != nil {
		return fmt.Errorf("IDEMPOTENCY_STORE: %w", err)
	}
	client := dial(*servers)
	guard := idempotent.New(store)
	send := func(_ context.Context, user, what string) error {
		_, err := fmt.Fprintf(stdout, "to %s: a %s\n", user, what) // stands for the provider of SMS and mail
		return err
	}
	server := &http.Server{
		Handler:           handler(guard, redis_rate.NewLimiter(client), send),
		ReadHeaderTimeout: 5 * time.Second,
	}
	l, err := net.Listen("tcp", *addr)
	if err != nil {
		return errors.Join(err, closeStore(), client.Close())
	}
	_, _ = fmt.Fprintf(stdout, "listening on http://%s\n", l.Addr())

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

// dial connects to Redis when it is first asked.
func dial(servers string) redis.UniversalClient {
	return redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs:                 strings.Split(servers, ","),
		Password:              os.Getenv("REDIS_PASSWORD"),
		ContextTimeoutEnabled: true,
		MaxRetries:            -1, // none: an attempt sent twice would count twice
		DialerRetries:         1,  // a refused connection is told at once
	})
}

type sendFunc func(ctx context.Context, user, what string) error

// handler composes the two: the guard outside, the limiter inside.
func handler(guard *idempotent.Guard, limiter *redis_rate.Limiter, send sendFunc) http.Handler {
	once := guard.Middleware(userOf)
	mux := http.NewServeMux()
	mux.Handle("POST /codes", once(limited(limiter, "codes", sending("code", send))))
	mux.Handle("POST /resets", once(limited(limiter, "resets", sending("password reset", send))))
	return mux
}

// userOf says who asks: a stable id that authentication, which is not the
// subject here, has found.
func userOf(r *http.Request) (string, error) {
	user := r.Header.Get("X-User")
	if user == "" {
		return "", idempotent.ErrUnauthenticated
	}
	return user, nil
}

// limited counts an attempt and refuses one too many. Both refusals are answers
// that release the key (429, and 503 with Retry-After): nothing has happened.
func limited(limiter *redis_rate.Limiter, operation string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, _ := userOf(r) // the guard has asked before
		ctx, cancel := context.WithTimeout(r.Context(), patience)
		defer cancel()
		switch res, err := limiter.Allow(ctx, limitKey(user, operation), perUser); {
		case err != nil: // nobody knows how often it was: refuse
			refuse(w, http.StatusServiceUnavailable, time.Second)
		case res.Allowed == 0:
			refuse(w, http.StatusTooManyRequests, res.RetryAfter)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// limitKey names the counter of one operation of one user. A Redis Cluster takes
// the slot from the text in braces: all counters of a user are in one slot, and
// whoever frees a user deletes them in one command. Key escapes braces, so that
// no user's name can choose another slot.
func limitKey(user, operation string) string {
	return "{" + idempotent.Key(user) + "}:" + operation
}

// refuse answers status and when to come back, in whole seconds, never too soon.
func refuse(w http.ResponseWriter, status int, after time.Duration) {
	seconds := max(1, (after+time.Second-1)/time.Second)
	w.Header().Set("Retry-After", strconv.Itoa(int(seconds)))
	http.Error(w, http.StatusText(status), status)
}

// sending is the operation itself and knows nothing of keys and limits. An error
// of the provider is an unknown outcome, and is not sent again under this key.
func sending(what string, send sendFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, _ := userOf(r)
		if err := send(r.Context(), user, what); err != nil {
			http.Error(w, "nobody knows whether it was sent", http.StatusBadGateway)
			return
		}
		w.WriteHeader(http.StatusAccepted)
		_, _ = fmt.Fprintf(w, "a %s is on its way\n", what)
	})
}
