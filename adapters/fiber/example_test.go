package fiberguard_test

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/recover"

	"github.com/idempotent-go/idempotent"
	fiberguard "github.com/idempotent-go/idempotent/adapters/fiber"
	"github.com/idempotent-go/idempotent/memstore"
)

func Example() {
	store := memstore.New()
	defer func() { _ = store.Close() }()
	guard := idempotent.New(store)
	principal := func(r *http.Request) (string, error) { return cmp.Or(r.Header.Get("X-User"), "alice"), nil }

	n := 0
	app := fiber.New()
	app.Use(recover.New())
	app.Post("/orders/:id", fiberguard.Middleware(guard, principal), func(c fiber.Ctx) error {
		n++
		return c.Status(http.StatusCreated).SendString(fmt.Sprintf("order %s, run %d", c.Params("id"), n))
	})

	for range 2 {
		status, body, replayed := post(app)
		fmt.Printf("%d %s %q\n", status, body, replayed)
	}
	// Output:
	// 201 order 7, run 1 ""
	// 201 order 7, run 1 "true"
}

func post(app *fiber.App) (status int, body, replayed string) {
	r := httptest.NewRequest(http.MethodPost, "/orders/7", strings.NewReader(`{"amount":1}`))
	r.Header.Set("Idempotency-Key", "one-per-order")
	res, err := app.Test(r)
	if err != nil {
		return 0, err.Error(), ""
	}
	defer func() { _ = res.Body.Close() }()
	content, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(content), res.Header.Get("Idempotent-Replayed")
}

func newGuard(t *testing.T) *idempotent.Guard {
	quiet := slog.New(slog.DiscardHandler)
	store := memstore.New(memstore.WithLogger(quiet))
	t.Cleanup(func() { _ = store.Close() })
	return idempotent.New(store, idempotent.WithLogger(quiet))
}

// twice sends the same request twice to handle, and expects one run and the
// same answers.
func twice(t *testing.T, config fiber.Config, wantStatus int, wantBody string, handle fiber.Handler) {
	t.Helper()
	runs := 0
	app := fiber.New(config)
	app.Post("/orders/:id", fiberguard.Middleware(newGuard(t), idempotent.Anonymous), func(c fiber.Ctx) error {
		runs++
		return handle(c)
	})
	for _, want := range []string{"", "true"} {
		if status, body, replayed := post(app); status != wantStatus || body != wantBody || replayed != want {
			t.Errorf("got %d %q, replayed %q; want %d %q, %q", status, body, replayed, wantStatus, wantBody, want)
		}
	}
	if runs != 1 {
		t.Errorf("ran %d times", runs)
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("half-way") }

// A stream that breaks is answered as an error, not with a part.
func TestStreamThatBreaks(t *testing.T) {
	twice(t, fiber.Config{}, http.StatusInternalServerError, "half-way", func(c fiber.Ctx) error {
		return c.SendStream(io.MultiReader(strings.NewReader("part"), brokenReader{}))
	})
}

// An error handler that fails is answered for.
func TestErrorHandlerFails(t *testing.T) {
	config := fiber.Config{ErrorHandler: func(_ fiber.Ctx, err error) error { return err }}
	twice(t, config, http.StatusInternalServerError, "Internal Server Error", func(fiber.Ctx) error { return errors.New("no") })
}

// A body that fiber keeps without a copy is recorded.
func TestRawBody(t *testing.T) {
	twice(t, fiber.Config{}, http.StatusOK, "raw", func(c fiber.Ctx) error { return c.Send([]byte("raw")) })
}

// A connection that was taken over cannot be repeated, and is not run again.
func TestHijack(t *testing.T) {
	var runs atomic.Int64
	app := fiber.New()
	app.Post("/orders/:id", fiberguard.Middleware(newGuard(t), idempotent.Anonymous), func(c fiber.Ctx) error {
		runs.Add(1)
		c.RequestCtx().Hijack(func(conn net.Conn) { _, _ = io.WriteString(conn, "beyond HTTP") })
		return c.SendStatus(http.StatusOK)
	})
	url := start(t, app)
	send := func() string {
		r, err := http.NewRequest(http.MethodPost, url+"/orders/7", strings.NewReader(`{}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Idempotency-Key", "k")
		transport := &http.Transport{} // a connection each
		defer transport.CloseIdleConnections()
		res, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		body, _ := io.ReadAll(res.Body)
		return fmt.Sprint(res.StatusCode, " ", string(body))
	}
	if got := send(); got != "200 OK" {
		t.Errorf("the first client got %s; want what fasthttp sends before it hands the connection over", got)
	}
	if got := send(); !strings.HasPrefix(got, "409") || !strings.Contains(got, `"result-unavailable"`) || runs.Load() != 1 {
		t.Errorf("got %s after %d runs; want 409 result-unavailable after one", got, runs.Load())
	}
}
