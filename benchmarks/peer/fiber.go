package peer

import (
	"github.com/gofiber/fiber/v2"
	"github.com/gofiber/fiber/v2/middleware/idempotency"
	"github.com/valyala/fasthttp"
)

// FiberBare is the same app in fiber, without its idempotency middleware.
func FiberBare(op func() string) *App { return fiberApp(op) }

// Fiber is the app behind fiber's idempotency middleware as it comes, with
// its store in memory.
func Fiber(op func() string) *App { return fiberApp(op, idempotency.New()) }

func fiberApp(op func() string, protect ...fiber.Handler) *App {
	app := fiber.New(fiber.Config{DisableStartupMessage: true})
	app.Post(Path, append(protect, func(c *fiber.Ctx) error {
		_ = c.Body()
		c.Set("Content-Type", "application/json")
		c.Set("Location", "/orders/1")
		return c.Status(fiber.StatusCreated).SendString(op())
	})...)
	h := app.Handler()
	return &App{
		client: func() Client { return newFastClient(h) },
		Close:  func() { _ = app.Shutdown() },
	}
}

// newFastClient drives h with one context that is used again and again, as
// the server of fasthttp does for a connection.
func newFastClient(h fasthttp.RequestHandler) Client {
	ctx := new(fasthttp.RequestCtx)
	ctx.Init(new(fasthttp.Request), nil, nil)
	return func(key string, body []byte) (int, []byte) {
		ctx.Request.Reset()
		ctx.Response.Reset()
		ctx.ResetUserValues()
		ctx.Request.Header.SetMethod(fasthttp.MethodPost)
		ctx.Request.SetRequestURI(Path)
		ctx.Request.Header.SetHost("localhost")
		ctx.Request.Header.SetContentType("application/json")
		ctx.Request.Header.Set("X-Idempotency-Key", key)
		ctx.Request.SetBody(body)
		h(ctx)
		return ctx.Response.StatusCode(), ctx.Response.Body()
	}
}
