// Command webhook books what a payment provider reports, each event once,
// however often the provider delivers it.
//
//	export WEBHOOK_SECRET=whsec_test
//	go run ./examples/webhook -ledger payments.txt
//
// and, as the provider, with bash, openssl and curl, as often as you like:
//
//	body='{"id":"evt_1","type":"payment.succeeded","account":"ada","cents":1250}'
//	t=$(date +%s)
//	v1=$(printf %s "$t.$body" | openssl dgst -sha256 -hmac "$WEBHOOK_SECRET" -r | cut -d' ' -f1)
//	curl -i 127.0.0.1:8080/webhooks -H "Webhook-Signature: t=$t,v1=$v1" -d "$body"
//
// The key is the id of the event, from a body whose signature has been
// verified: nobody else can use up the key of an event that is still to come.
// IDEMPOTENCY_STORE names the store, as package storeurl says; without it keys
// are kept in memory, which is for one instance that is never restarted.
//
// The provider takes 2xx for delivered and sends again for three days
// otherwise. Before the ledger is written to, an error frees the key, and the
// next delivery books. Once it may have been written to, an error leaves the
// outcome unknown, and no delivery books again: a person looks, and settles the
// key with Guard.Resolve.
package main

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
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
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/storeurl"
)

const (
	// senderRetries is how long the provider sends an event again. Records are
	// kept for longer, or the last retry would book a second time.
	senderRetries = 72 * time.Hour
	retention     = senderRetries + 24*time.Hour

	// tolerance is how old a signature may be, so that a delivery somebody has
	// recorded cannot be sent again next year, when its key is forgotten.
	tolerance = 5 * time.Minute

	// inMemory keeps what is young: rather than forget an event that may come
	// again, a full store refuses, and the provider tries later.
	inMemory = "memory:?min_age=96h"

	maxBody = 1 << 20
	grace   = 20 * time.Second // for what is running at the end
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal kills
	os.Exit(run(ctx, os.Args[1:], os.Stderr))
}

// run is main with its surroundings passed in. It returns the exit code.
func run(ctx context.Context, args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet("webhook", flag.ContinueOnError)
	flags.SetOutput(stderr)
	addr := flags.String("addr", "127.0.0.1:8080", "`address` to listen on")
	ledger := flags.String("ledger", "payments.txt", "`file` to which payments are added")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	fail := func(err error) int {
		_, _ = fmt.Fprintln(stderr, "webhook:", err)
		return 1
	}
	secret := os.Getenv("WEBHOOK_SECRET")
	if secret == "" {
		return fail(errors.New("WEBHOOK_SECRET is empty: anybody could sign"))
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
	h := &hook{
		guard: idempotent.New(store, idempotent.WithLogger(log),
			idempotent.WithSuccessRetention(retention), idempotent.WithFailureRetention(retention)),
		secret: []byte(secret), ledger: *ledger, log: log,
	}
	mux := http.NewServeMux()
	mux.Handle("POST /webhooks", h)
	server := &http.Server{Handler: mux, ReadTimeout: 10 * time.Second}
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
	if err := errors.Join(server.Shutdown(ctx), h.guard.Drain(ctx), closeStore()); err != nil {
		return fail(err)
	}
	return 0
}

type hook struct {
	guard  *idempotent.Guard
	secret []byte
	ledger string
	log    *slog.Logger
}

// event is what this program needs of a delivery.
type event struct {
	ID      string `json:"id"`
	Type    string `json:"type"`
	Account string `json:"account"`
	Cents   int64  `json:"cents"`
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, "the body cannot be read", http.StatusBadRequest)
		return
	}
	// First of all, and over the bytes as they came.
	if !verify(h.secret, r.Header.Get("Webhook-Signature"), body, time.Now()) {
		http.Error(w, "the signature is wrong or too old", http.StatusUnauthorized)
		return
	}
	var e event
	if err := json.Unmarshal(body, &e); err != nil || e.ID == "" {
		http.Error(w, "the body is no event with an id", http.StatusBadRequest)
		return
	}
	if e.Type != "payment.succeeded" {
		w.WriteHeader(http.StatusNoContent) // of no interest, and not to be sent again
		return
	}

	booked := false
	err = h.guard.Do(r.Context(), idempotent.Key("webhook", e.ID), func(context.Context) error {
		booked = true
		return h.book(e)
	}, idempotent.WithCallDetached()) // a provider that hangs up changes nothing

	log := h.log.With("event", e.ID)
	inFlight, running := errors.AsType[*idempotent.InFlightError](err)
	switch {
	case err == nil && booked:
		log.Info("booked")
		w.WriteHeader(http.StatusNoContent)
	case err == nil:
		log.Info("already booked")
		w.WriteHeader(http.StatusNoContent)
	case running:
		w.Header().Set("Retry-After", strconv.Itoa(1+int(inFlight.RetryAfter/time.Second)))
		http.Error(w, "an earlier delivery is still being booked", http.StatusConflict)
	case errors.Is(err, idempotent.ErrFailed):
		log.Error("cannot be booked", "err", err)
		http.Error(w, "the event cannot be booked", http.StatusUnprocessableEntity)
	case booked && !errors.Is(err, idempotent.ErrReleased), errors.Is(err, idempotent.ErrOutcomeUnknown):
		log.Error("may have been booked, look into the ledger", "err", err)
		http.Error(w, "the event may have been booked", http.StatusInternalServerError)
	default: // the ledger or the store is away, or this process is about to end
		log.Warn("not booked", "err", err)
		w.Header().Set("Retry-After", "60")
		http.Error(w, "the event cannot be booked now", http.StatusServiceUnavailable)
	}
}

// book adds a payment to the ledger. Its errors say what a repeat may do.
func (h *hook) book(e event) error {
	if e.Account == "" || e.Cents <= 0 {
		return fmt.Errorf("%w: %d cents to account %q", idempotent.ErrFailed, e.Cents, e.Account) // and always will
	}
	f, err := os.OpenFile(h.ledger, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("%w: %w", idempotent.ErrReleased, err) // nothing is written yet
	}
	// The commit. A plain error from here on means that it may have happened.
	_, err = fmt.Fprintf(f, "%q %q %d\n", e.ID, e.Account, e.Cents)
	return errors.Join(err, f.Sync(), f.Close())
}

// verify reports whether signature, "t=<Unix seconds>,v1=<hex>", was made with
// secret over that time and body, and recently.
func verify(secret []byte, signature string, body []byte, now time.Time) bool {
	seconds, sum, ok := strings.Cut(strings.TrimPrefix(signature, "t="), ",v1=")
	at, err := strconv.ParseInt(seconds, 10, 64)
	if !ok || err != nil || now.Sub(time.Unix(at, 0)).Abs() > tolerance {
		return false
	}
	got, err := hex.DecodeString(sum)
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(seconds + "."))
	mac.Write(body)
	return hmac.Equal(got, mac.Sum(nil)) && err == nil // in constant time: == would tell an attacker how far it is right
}
