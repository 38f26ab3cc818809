package peer

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/gofiber/fiber/v2/middleware/idempotency"
	"github.com/gofiber/fiber/v2/utils"
	"github.com/valyala/fasthttp"
)

// FiberBare is the same app in fiber, without its idempotency middleware.
func FiberBare(op func() string) *App { return fiberApp(op) }

// Fiber is the app behind fiber's idempotency middleware as it comes, with
// its store in memory; see fiberStorage.
func Fiber(op func() string) *App {
	return fiberApp(op, idempotency.New(idempotency.Config{Storage: &fiberStorage{entries: map[string]fiberEntry{}}}))
}

func fiberApp(op func() string, protect ...fiber.Handler) *App {
	utils.StartTimeStampUpdater()
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

// fiberStorage does what the storage in memory of fiber's middleware does on its
// way, by the same map under the same lock. That one has a goroutine that the
// middleware never ends: the answers of an app that is closed would stay, and the
// collector would go through them on the time of whoever is measured afterwards.
type fiberStorage struct {
	mu      sync.RWMutex
	entries map[string]fiberEntry
}

type fiberEntry struct {
	data    []byte
	expires uint32 // by fiber's clock; 0: never
}

func (s *fiberStorage) Get(key string) ([]byte, error) {
	s.mu.RLock()
	e, ok := s.entries[key]
	s.mu.RUnlock()
	if !ok || e.expires != 0 && e.expires <= atomic.LoadUint32(&utils.Timestamp) {
		return nil, nil
	}
	return utils.CopyBytes(e.data), nil
}

func (s *fiberStorage) Set(key string, data []byte, keep time.Duration) error {
	e := fiberEntry{data: utils.CopyBytes(data)}
	if keep != 0 {
		e.expires = uint32(keep.Seconds()) + atomic.LoadUint32(&utils.Timestamp)
	}
	key = utils.CopyString(key)
	s.mu.Lock()
	s.entries[key] = e
	s.mu.Unlock()
	return nil
}

func (s *fiberStorage) Delete(key string) error {
	s.mu.Lock()
	delete(s.entries, key)
	s.mu.Unlock()
	return nil
}

func (s *fiberStorage) Reset() error {
	s.mu.Lock()
	clear(s.entries)
	s.mu.Unlock()
	return nil
}

func (s *fiberStorage) Close() error { return nil }
