// Command proxy stands in front of any HTTP program and lets each keyed POST and
// PATCH reach it once.
//
//	go run ./examples/proxy -to http://127.0.0.1:9000 -anonymous
//	IDEMPOTENCY_STORE=redis://127.0.0.1:6379/0 \
//	go run ./examples/proxy -to http://127.0.0.1:9000 -principal X-User
//
//	curl -i 127.0.0.1:8080/orders -H 'Idempotency-Key: order-1' -d '{"item":"tea"}'
//
// Package storeurl says what IDEMPOTENCY_STORE may name. Without it keys are kept
// in memory, which is for one proxy that is never restarted; several proxies
// share a Redis.
//
// Keys of different users must not meet, or one would get the other's answer. So
// -principal names the header field that says who is asking: a stable id, set by
// what authenticates in front of this proxy, never by the client. Where there is
// one client only, -anonymous says so.
//
// A program that cannot be reached has done nothing: 503, and the key is free.
// One that was reached and did not answer may have done its work: 502 now and on
// every retry, and the request is not sent again.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/storeurl"
)

const (
	// inMemory keeps what is young: rather than forget an answer that a client
	// may still ask for, a full store refuses new requests with 503.
	inMemory = "memory:?min_age=10m"

	// grace is how long running requests may take after SIGTERM.
	grace = 20 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal kills
	os.Exit(run(ctx, os.Args[1:], os.Stderr))
}

// run is main with its surroundings passed in. It returns the exit code.
func run(ctx context.Context, args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet("proxy", flag.ContinueOnError)
	flags.SetOutput(stderr)
	addr := flags.String("addr", "127.0.0.1:8080", "`address` to listen on")
	to := flags.String("to", "", "`URL` of the program behind")
	principal := flags.String("principal", "", "header `field` that says who is asking")
	anonymous := flags.Bool("anonymous", false, "all requests come from one client")
	optional := flags.Bool("optional", false, "let a POST or PATCH without a key pass, unprotected, instead of refusing it")
	maxBody := flags.Int64("max-body", idempotent.DefaultMaxBody, "`bytes` of a keyed request at most")
	lease := flags.Duration("lease", idempotent.DefaultLease, "how long a key stays in flight after its proxy has died")
	retention := flags.Duration("retention", idempotent.DefaultSuccessRetention, "how long an answer is replayed")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	behind, err := url.Parse(*to)
	switch {
	case err != nil || behind.Host == "" || behind.Scheme != "http" && behind.Scheme != "https":
		err = errors.New("-to must be the http or https URL of a program")
	case (*principal == "") != *anonymous:
		err = errors.New("say who is asking by either -principal or -anonymous")
	case *maxBody < 1 || *lease < idempotent.MinDuration || *retention < idempotent.MinDuration:
		err = errors.New("-max-body, -lease and -retention must be positive")
	}
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "proxy:", err)
		return 2
	}

	fail := func(err error) int {
		_, _ = fmt.Fprintln(stderr, "proxy:", err)
		return 1
	}
	store, closeStore, err := storeurl.Open(ctx, cmp.Or(os.Getenv("IDEMPOTENCY_STORE"), inMemory))
	if err != nil {
		return fail(fmt.Errorf("IDEMPOTENCY_STORE: %w", err))
	}
	l, err := net.Listen("tcp", *addr)
	if err != nil {
		return fail(errors.Join(err, closeStore()))
	}

	log := slog.New(slog.NewTextHandler(stderr, nil))
	guard := idempotent.New(store, idempotent.WithLogger(log), idempotent.WithLease(*lease),
		idempotent.WithSuccessRetention(*retention), idempotent.WithFailureRetention(*retention))
	who := idempotent.Anonymous
	if *principal != "" {
		who = func(r *http.Request) (string, error) { return r.Header.Get(*principal), nil } // "" is answered with 401
	}
	options := []idempotent.HTTPOption{idempotent.WithMaxBody(*maxBody)}
	if *optional {
		options = append(options, idempotent.WithOptionalKey())
	}
	server := &http.Server{
		Handler:           guard.Middleware(who, options...)(forward(behind, log)),
		ReadHeaderTimeout: 5 * time.Second,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelError),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	log.Info("listening", "addr", l.Addr().String())
	select {
	case err := <-failed:
		return fail(errors.Join(err, closeStore()))
	case <-ctx.Done():
	}

	// In this order no outcome is lost.
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	if err := errors.Join(server.Shutdown(ctx), guard.Drain(ctx), closeStore()); err != nil {
		return fail(err)
	}
	return 0
}

// forward returns a handler that sends requests to the program behind.
func forward(behind *url.URL, log *slog.Logger) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			// As it came: what cannot be parsed has been taken out of it, but the
			// program behind may read it otherwise, and the proxy reads none of it.
			r.Out.URL.RawQuery = r.In.URL.RawQuery
			r.SetURL(behind)
			r.SetXForwarded()
			r.Out.Host = r.In.Host
		},
		// A connection of its own for each request. On one that was used before,
		// Go's transport sends a request with a key and without a body again by
		// itself, taking the key for a promise of the program behind; and a
		// program that closes an idle connection at the wrong moment leaves
		// behind an unknown outcome.
		Transport: &http.Transport{DisableKeepAlives: true},
		ErrorLog:  slog.NewLogLogger(log.Handler(), slog.LevelError),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			log.Error("no answer from the program behind", "err", err)
			if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
				w.Header().Set("Retry-After", "1") // with it, 503 says that nothing was done, and the key is freed
				http.Error(w, "the program behind cannot be reached", http.StatusServiceUnavailable)
				return
			}
			http.Error(w, "the program behind has not answered; what it has done is not known", http.StatusBadGateway)
		},
	}
}
