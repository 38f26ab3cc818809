package idempotent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
)

func Example() {
	store := memstore.New()
	defer store.Close()
	guard := idempotent.New(store)

	charge := func(context.Context) (string, error) {
		fmt.Println("charging the card")
		return "receipt 17", nil
	}
	for range 2 {
		receipt, err := idempotent.Do(context.Background(), guard, idempotent.Key("charge", "order-1"), charge)
		fmt.Println(receipt, err)
	}
	// Output:
	// charging the card
	// receipt 17 <nil>
	// receipt 17 <nil>
}

// post sends one keyed request to a handler, as a test of one's own handler
// does.
func post(h http.Handler, key, body string) *http.Response {
	r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func ExampleGuard_Middleware() {
	store := memstore.New()
	defer store.Close()
	guard := idempotent.New(store)

	orders := 0
	createOrder := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		orders++
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "order %d", orders)
	})
	principal := func(r *http.Request) (string, error) {
		return "user-1", nil // a stable id that authentication has found, not the token
	}
	h := guard.Middleware(principal)(createOrder)

	for _, body := range []string{`{"item":"tea"}`, `{ "item": "tea" }`, `{"item":"milk"}`} {
		res := post(h, "3f1c", body)
		text, _ := io.ReadAll(res.Body)
		if res.StatusCode >= 400 {
			var problem struct{ Code string }
			_ = json.Unmarshal(text, &problem)
			text = []byte(problem.Code)
		}
		fmt.Printf("%d %s, replayed %q\n", res.StatusCode, text, res.Header.Get("Idempotent-Replayed"))
	}
	// Output:
	// 201 order 1, replayed ""
	// 201 order 1, replayed "true"
	// 422 key-reused, replayed ""
}

func ExampleGuard_Run() {
	store := memstore.New()
	defer store.Close()
	guard := idempotent.New(store)

	op := func(context.Context) (idempotent.Class, string) {
		return idempotent.ClassSuccess, "sent"
	}
	for range 2 {
		rec, replayed, err := guard.Run(context.Background(), "mail-7", op, idempotent.WithCallFingerprint("to=ann"))
		fmt.Println(rec.Class, rec.Result, replayed, err)
	}
	_, _, err := guard.Run(context.Background(), "mail-7", op, idempotent.WithCallFingerprint("to=bob"))
	fmt.Println(err)
	// Output:
	// success sent false <nil>
	// success sent true <nil>
	// idempotent: key reused for another request
}

func ExampleDo() {
	store := memstore.New()
	defer store.Close()
	guard := idempotent.New(store)

	// An error says that the outcome is unknown, unless the function knows
	// better.
	pay := func(context.Context) (int, error) {
		return 0, fmt.Errorf("card declined: %w", idempotent.ErrFailed)
	}
	for range 2 {
		_, err := idempotent.Do(context.Background(), guard, "pay-1", pay)
		fmt.Println(err, errors.Is(err, idempotent.ErrFailed))
	}
	// Output:
	// card declined: idempotent: operation failed true
	// card declined: idempotent: operation failed true
}

type (
	Order   struct{ ID string }
	Receipt struct{ Number int }
	bank    struct{ charges int }
)

func (b *bank) Charge(_ context.Context, o Order) (Receipt, error) {
	b.charges++
	fmt.Println("charging for order", o.ID)
	return Receipt{b.charges}, nil
}

// The result of the first call is the result of every other.
func ExampleDo_result() {
	store := memstore.New()
	defer store.Close()
	guard := idempotent.New(store)

	ctx, bank, order := context.Background(), new(bank), Order{ID: "17"}
	for range 2 {
		receipt, err := idempotent.Do(ctx, guard, idempotent.Key("charge", order.ID),
			func(ctx context.Context) (Receipt, error) { return bank.Charge(ctx, order) })
		fmt.Println(receipt.Number, err)
	}
	// Output:
	// charging for order 17
	// 1 <nil>
	// 1 <nil>
}

func ExampleGuard_Do() {
	store := memstore.New()
	defer store.Close()
	guard := idempotent.New(store)

	handle := func(context.Context) error {
		fmt.Println("handling message 42")
		return nil
	}
	for range 3 {
		if err := guard.Do(context.Background(), idempotent.Key("message", "42"), handle); err != nil {
			fmt.Println(err)
		}
	}
	// Output: handling message 42
}

func ExampleGuard_With() {
	store := memstore.New()
	defer store.Close()
	guard := idempotent.New(store)

	// Payments are remembered for longer than everything else.
	payments := guard.With(idempotent.WithSuccessRetention(7 * 24 * time.Hour))
	err := payments.Do(context.Background(), "pay-1", func(context.Context) error { return nil })
	e, _, _ := store.Load(context.Background(), "pay-1")
	fmt.Println(err, e.Expires.Sub(e.Timestamp))
	// Output: <nil> 168h0m0s
}

func ExampleRelease() {
	store := memstore.New()
	defer store.Close()
	guard := idempotent.New(store)

	attempt := 0
	send := func(ctx context.Context) error {
		if attempt++; attempt == 1 {
			idempotent.Release(ctx) // nothing was sent yet: the next call may run
			return errors.New("queue is full")
		}
		return nil
	}
	for range 3 {
		err := guard.Do(context.Background(), "mail-1", send)
		fmt.Println(attempt, err)
	}
	// Output:
	// 1 queue is full
	// 2 <nil>
	// 2 <nil>
}

func ExampleFail() {
	store := memstore.New()
	defer store.Close()
	guard := idempotent.New(store)

	for range 2 {
		err := guard.Do(context.Background(), "pay-1", func(ctx context.Context) error {
			idempotent.Fail(ctx) // the bank said no, so the money did not move
			return errors.New("insufficient funds")
		})
		var failed *idempotent.FailedError
		fmt.Println(err, errors.As(err, &failed))
	}
	// Output:
	// insufficient funds false
	// insufficient funds true
}

func ExampleUnknown() {
	store := memstore.New()
	defer store.Close()
	guard := idempotent.New(store)

	for range 2 {
		err := guard.Do(context.Background(), "pay-1", func(ctx context.Context) error {
			idempotent.Unknown(ctx) // the bank did not answer: it may have happened
			return nil
		})
		fmt.Println(err)
	}
	// Output:
	// <nil>
	// idempotent: outcome unknown
}

func ExampleSucceed() {
	store := memstore.New()
	defer store.Close()
	guard := idempotent.New(store)

	for range 2 {
		err := guard.Do(context.Background(), "order-1", func(ctx context.Context) error {
			idempotent.Succeed(ctx) // the order stands, only the mail failed
			return errors.New("mail not sent")
		})
		fmt.Println(err)
	}
	// Output:
	// mail not sent
	// <nil>
}

func ExampleGuard_Resolve() {
	ctx := context.Background()
	store := memstore.New()
	defer store.Close()
	guard := idempotent.New(store)

	pay := func(context.Context) (string, error) { return "", errors.New("connection reset") }
	_, _ = idempotent.Do(ctx, guard, "pay-1", pay)
	_, err := idempotent.Do(ctx, guard, "pay-1", pay)
	fmt.Println(err)

	// Somebody asks the bank what became of it, and settles the key.
	entry, _, _ := store.Load(ctx, "pay-1")
	result, _ := idempotent.EncodeValue("receipt 17")
	fmt.Println(guard.Resolve(ctx, "pay-1", entry.Owner, idempotent.ClassSuccess, result))

	receipt, err := idempotent.Do(ctx, guard, "pay-1", pay)
	fmt.Println(receipt, err)
	// Output:
	// idempotent: outcome unknown
	// <nil>
	// receipt 17 <nil>
}

func ExampleGuard_Drain() {
	store := memstore.New()
	guard := idempotent.New(store)
	_ = guard.Do(context.Background(), "done", func(context.Context) error { return nil })

	// After http.Server.Shutdown, and before the store is closed:
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	fmt.Println(guard.Drain(ctx))

	nothing := func(context.Context) error { return nil }
	fmt.Println(guard.Do(ctx, "done", nothing)) // replays are still served
	fmt.Println(errors.Is(guard.Do(ctx, "new", nothing), idempotent.ErrClosed))
	fmt.Println(store.Close())
	// Output:
	// <nil>
	// <nil>
	// true
	// <nil>
}

func ExampleFromContext() {
	store := memstore.New()
	defer store.Close()
	guard := idempotent.New(store)

	_ = guard.Do(context.Background(), "ship-1", func(ctx context.Context) error {
		x, ok := idempotent.FromContext(ctx)
		// Send the fence along, so that the warehouse can refuse an older one.
		fmt.Println(x.Key, x.Trace, x.Fence > 0, ok)
		return nil
	}, idempotent.WithCallTrace("req-9"))
	// Output: ship-1 req-9 true true
}

func ExampleKey() {
	fmt.Println(idempotent.Key("charge", "order-1"))
	fmt.Println(idempotent.Key("charge", "a:b"), idempotent.Key("charge", "a", "b"))
	// Output:
	// charge:order-1
	// charge:a%3Ab charge:a:b
}

func ExampleParseKey() {
	fmt.Println(idempotent.ParseKey([]string{`"order 17"`}))
	_, err := idempotent.ParseKey([]string{"order 17"})
	fmt.Println(errors.Is(err, idempotent.ErrInvalid), err)
	// Output:
	// order 17 <nil>
	// true The key contains a byte that is not allowed; use visible ASCII characters, and put a key with blanks or quotes in double quotes.
}

func ExampleStoreKey() {
	// The name under which an operator finds what a client asks about.
	fmt.Println(idempotent.StoreKey(http.MethodPost, "/orders", "user-1", "3f1c"))
	// Output: POST:/orders:user-1:3f1c
}

func ExampleWithCallClassify() {
	store := memstore.New()
	defer store.Close()
	guard := idempotent.New(store)

	errDeclined := errors.New("declined") // of another package
	for range 2 {
		err := guard.Do(context.Background(), "pay-1", func(context.Context) error { return errDeclined },
			idempotent.WithCallClassify(func(err error) idempotent.Class {
				if errors.Is(err, errDeclined) {
					return idempotent.ClassFailure
				}
				return idempotent.ClassDefault
			}))
		fmt.Println(err)
	}
	// Output:
	// declined
	// declined
}

func ExampleKeyMaxAge() {
	store := memstore.New()
	defer store.Close()
	h := idempotent.New(store).Middleware(idempotent.Anonymous,
		idempotent.WithKeyPolicy(idempotent.KeyMaxAge(24*time.Hour)),
	)(http.NotFoundHandler())
	// The first 48 bits of a UUIDv7 are its time; this one is of 2022.
	fmt.Println(post(h, "017f22e2-79b0-7cc3-98c4-dc0c0c07398f", "").StatusCode)
	// Output: 412
}

func ExampleClassify() {
	fmt.Println(idempotent.Classify(http.StatusCreated, nil))
	fmt.Println(idempotent.Classify(http.StatusNotFound, nil))
	fmt.Println(idempotent.Classify(http.StatusTooManyRequests, nil))
	fmt.Println(idempotent.Classify(http.StatusInternalServerError, nil))
	// Output:
	// success
	// failure
	// release
	// unknown
}

func ExampleEncodeResponse() {
	ctx := context.Background()
	store := memstore.New()
	defer store.Close()
	guard := idempotent.New(store)
	h := guard.Middleware(idempotent.Anonymous)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "bank timed out", http.StatusGatewayTimeout)
	}))
	fmt.Println(post(h, "3f1c", "{}").StatusCode)

	// The payment turns out to have been made.
	key := idempotent.StoreKey(http.MethodPost, "/orders", "anonymous", "3f1c")
	entry, _, _ := store.Load(ctx, key)
	answer, _ := idempotent.EncodeResponse(http.StatusCreated, http.Header{"Location": {"/payments/17"}}, nil)
	fmt.Println(guard.Resolve(ctx, key, entry.Owner, idempotent.ClassSuccess, answer))

	res := post(h, "3f1c", "{}")
	fmt.Println(res.StatusCode, res.Header.Get("Location"))
	// Output:
	// 504
	// <nil>
	// 201 /payments/17
}

func ExampleObserverFunc() {
	store := memstore.New()
	defer store.Close()
	guard := idempotent.New(store, idempotent.WithObserver(idempotent.ObserverFunc(
		func(_ context.Context, e idempotent.Event) { fmt.Println(e.Kind, e.Key) },
	)))
	for range 2 {
		_ = guard.Do(context.Background(), "k", func(context.Context) error { return nil })
	}
	// Output:
	// claimed k
	// completed k
	// replayed k
}

func ExampleNewJanitor() {
	// A memory store without a background of its own, swept by the program.
	store := memstore.New(memstore.WithSweepInterval(0))
	defer store.Close()
	janitor := idempotent.NewJanitor(store, time.Minute)
	fmt.Println(janitor.Close())
	// Output: <nil>
}

// Claims go to the far store, repeats are answered from copies in the near one.
func ExampleTiered() {
	near, far := memstore.New(), memstore.New() // far is a redisstore.Store elsewhere
	defer near.Close()
	defer far.Close()
	guard := idempotent.New(idempotent.Tiered(near, far))

	charge := func(context.Context) (string, error) {
		fmt.Println("charging the card")
		return "receipt 17", nil
	}
	for range 3 {
		receipt, _ := idempotent.Do(context.Background(), guard, "order-1", charge)
		fmt.Println(receipt, near.Len())
	}
	// Output:
	// charging the card
	// receipt 17 0
	// receipt 17 1
	// receipt 17 1
}

func ExampleWait() {
	ctx := context.Background()
	store := memstore.New()
	defer store.Close()
	guard := idempotent.New(store)

	started := make(chan struct{})
	go func() {
		_ = guard.Do(ctx, "job", func(context.Context) error {
			close(started)
			return nil
		})
	}()
	<-started
	entry, found, err := idempotent.Wait(ctx, store, "job")
	fmt.Println(entry.Status, found, err)
	// Output: success true <nil>
}

func ExampleDelete() {
	ctx := context.Background()
	store := memstore.New()
	defer store.Close()
	guard := idempotent.New(store)

	run := func(context.Context) error {
		fmt.Println("running")
		return nil
	}
	_ = guard.Do(ctx, "job", run)
	fmt.Println(idempotent.Delete(ctx, store, "job")) // a take-over by hand
	_ = guard.Do(ctx, "job", run)
	// Output:
	// running
	// <nil>
	// running
}

func ExamplePing() {
	store := memstore.New()
	fmt.Println(idempotent.Ping(context.Background(), store))
	_ = store.Close()
	fmt.Println(errors.Is(idempotent.Ping(context.Background(), store), idempotent.ErrClosed))
	// Output:
	// <nil>
	// true
}

func ExampleSweep() {
	store := memstore.New(memstore.WithSweepInterval(0))
	defer store.Close()
	swept, err := idempotent.Sweep(context.Background(), store)
	fmt.Printf("%+v %v\n", swept, err)
	// Output: {Expired:0 Evicted:0 Abandoned:0} <nil>
}

func ExampleWithKeyFunc() {
	store := memstore.New()
	defer store.Close()
	handle := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { fmt.Println("handling the event") })
	// A webhook whose events carry an id. Verify the signature outside.
	h := idempotent.New(store).Middleware(idempotent.Anonymous,
		idempotent.WithKeyFunc(func(_ *http.Request, body []byte) (string, error) {
			var event struct{ ID string }
			err := json.Unmarshal(body, &event)
			return event.ID, err
		}),
	)(handle)
	for range 2 {
		res := post(h, "", `{"id":"evt_1","type":"paid"}`)
		fmt.Println(res.StatusCode, res.Header.Get("Idempotent-Replayed") == "true")
	}
	// Output:
	// handling the event
	// 200 false
	// 200 true
}

func ExampleWithFingerprint() {
	store := memstore.New()
	defer store.Close()
	// The same body for another version of the API is another request.
	fingerprint := func(r *http.Request, body []byte) (string, error) {
		f, err := idempotent.CanonicalJSON(r, body)
		return f + " " + r.Header.Get("Api-Version"), err
	}
	h := idempotent.New(store).Middleware(idempotent.Anonymous, idempotent.WithFingerprint(fingerprint))(http.NotFoundHandler())
	for _, version := range []string{"1", "2"} {
		r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader("{}"))
		r.Header.Set("Idempotency-Key", "3f1c")
		r.Header.Set("Api-Version", version)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		fmt.Println(w.Code)
	}
	// Output:
	// 404
	// 422
}

func ExampleWithReplayHook() {
	store := memstore.New()
	defer store.Close()
	closed := false // the account, meanwhile
	h := idempotent.New(store).Middleware(idempotent.Anonymous,
		idempotent.WithReplayHook(func(w http.ResponseWriter, _ *http.Request, _ int) bool {
			if closed {
				http.Error(w, "account closed", http.StatusForbidden)
			}
			return closed
		}),
	)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }))
	fmt.Println(post(h, "3f1c", "{}").StatusCode)
	closed = true
	fmt.Println(post(h, "3f1c", "{}").StatusCode)
	// Output:
	// 201
	// 403
}

func ExampleWithClassify() {
	store := memstore.New()
	defer store.Close()
	attempt := 0
	// Everything this handler does is rolled back when it fails, so a 500 of
	// its own may be tried again.
	h := idempotent.New(store).Middleware(idempotent.Anonymous,
		idempotent.WithClassify(func(status int, _ http.Header) idempotent.Class {
			if status == http.StatusInternalServerError {
				return idempotent.ClassRelease
			}
			return idempotent.ClassDefault
		}),
	)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if attempt++; attempt == 1 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	fmt.Println(post(h, "3f1c", "{}").StatusCode, post(h, "3f1c", "{}").StatusCode)
	// Output: 500 200
}
