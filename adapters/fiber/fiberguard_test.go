package fiberguard_test

import (
	"bufio"
	"net"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/recover"

	fiberguard "github.com/idempotent-go/idempotent/adapters/fiber"
	"github.com/idempotent-go/idempotent/httptestsuite"
)

// operate is the operation of the suite as a handler of fiber.
func operate(app httptestsuite.App) fiber.Handler {
	return func(c fiber.Ctx) error {
		reply := app.Operate(c.Context(), c.BodyRaw())
		if reply.Panic != nil {
			panic(reply.Panic)
		}
		for name, values := range reply.Header {
			c.Response().Header.Del(name)
			for _, value := range values {
				c.Response().Header.Add(name, value)
			}
		}
		switch {
		case reply.Returned:
			return fiber.NewError(reply.Status)
		case reply.Rest != nil:
			return c.Status(reply.Status).SendStreamWriter(func(w *bufio.Writer) {
				_, _ = w.WriteString(reply.Body)
				_ = w.Flush()
				_, _ = w.WriteString(reply.Rest())
			})
		}
		return c.Status(reply.Status).SendString(reply.Body)
	}
}

// serve starts an app whose layers outside are there.
func serve(t testing.TB, config fiber.Config, app httptestsuite.App, mount func(*fiber.App)) string {
	t.Helper()
	f := fiber.New(config)
	f.Use(recover.New(), func(c fiber.Ctx) error {
		app.Outside(c.Set)
		return c.Next()
	})
	mount(f)
	return start(t, f)
}

// start serves an app over a real socket.
func start(t testing.TB, f *fiber.App) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- f.Listener(listener, fiber.ListenConfig{DisableStartupMessage: true}) }()
	t.Cleanup(func() {
		_ = f.ShutdownWithTimeout(time.Second)
		if err := <-done; err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	return "http://" + listener.Addr().String()
}

// As middleware of the app.
func TestApp(t *testing.T) {
	httptestsuite.Run(t, httptestsuite.Adapter{Buffered: true, Serve: func(t testing.TB, app httptestsuite.App) string {
		return serve(t, fiber.Config{}, app, func(f *fiber.App) {
			f.Use(fiberguard.Middleware(app.Guard, app.Principal, app.Options...))
			f.All("/*", operate(app))
		})
	}})
}

// As middleware of a route, in an app whose bodies are streams.
func TestRoute(t *testing.T) {
	httptestsuite.Run(t, httptestsuite.Adapter{Buffered: true, Serve: func(t testing.TB, app httptestsuite.App) string {
		return serve(t, fiber.Config{StreamRequestBody: true}, app, func(f *fiber.App) {
			f.All("/*", fiberguard.Middleware(app.Guard, app.Principal, app.Options...), operate(app))
		})
	}})
}
