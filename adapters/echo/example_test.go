package echoguard_test

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"

	"github.com/idempotent-go/idempotent"
	echoguard "github.com/idempotent-go/idempotent/adapters/echo"
	"github.com/idempotent-go/idempotent/memstore"
)

func Example() {
	store := memstore.New()
	defer func() { _ = store.Close() }()
	guard := idempotent.New(store)
	principal := func(r *http.Request) (string, error) { return cmp.Or(r.Header.Get("X-User"), "alice"), nil }

	n := 0
	e := echo.New()
	e.Use(middleware.Recover())
	e.POST("/orders/:id", func(c *echo.Context) error {
		n++
		return c.String(http.StatusCreated, fmt.Sprintf("order %s, run %d", c.Param("id"), n))
	}, echoguard.Middleware(guard, principal))

	for range 2 {
		w := post(e)
		fmt.Printf("%d %s %q\n", w.Code, w.Body, w.Header().Get("Idempotent-Replayed"))
	}
	// Output:
	// 201 order 7, run 1 ""
	// 201 order 7, run 1 "true"
}

func post(h http.Handler) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/orders/7", strings.NewReader(`{"amount":1}`))
	r.Header.Set("Idempotency-Key", "one-per-order")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func newGuard(t *testing.T) *idempotent.Guard {
	quiet := slog.New(slog.DiscardHandler)
	store := memstore.New(memstore.WithLogger(quiet))
	t.Cleanup(func() { _ = store.Close() })
	return idempotent.New(store, idempotent.WithLogger(quiet))
}

// An error that even the error handler leaves alone is no success.
func TestErrorWithoutAnAnswer(t *testing.T) {
	e := newEcho()
	e.HTTPErrorHandler = func(*echo.Context, error) {}
	runs := 0
	e.POST("/orders/:id", func(*echo.Context) error {
		runs++
		return errors.New("half-way")
	}, echoguard.Middleware(newGuard(t), idempotent.Anonymous))
	for _, replayed := range []string{"", "true"} {
		if w := post(e); w.Code != http.StatusInternalServerError || w.Header().Get("Idempotent-Replayed") != replayed {
			t.Errorf("got %d, %v; want 500, replayed %q", w.Code, w.Header(), replayed)
		}
	}
	if runs != 1 {
		t.Errorf("ran %d times", runs)
	}
}

// Layers outside see what was answered, on the response that was theirs.
func TestLayersOutside(t *testing.T) {
	var seen []string
	e := newEcho()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			request, hooks := c.Request(), 0
			response, err := echo.UnwrapResponse(c.Response())
			if err != nil {
				t.Fatal(err)
			}
			response.Before(func() { hooks++ })
			err = next(c)
			if c.Response() != http.ResponseWriter(response) || c.Request() != request {
				t.Error("a layer outside does not get back its response and request")
			}
			seen = append(seen, fmt.Sprint(response.Status, " ", response.Size, " ", hooks, " ", err))
			return err
		}
	})
	e.POST("/orders/:id", func(c *echo.Context) error {
		return echo.NewHTTPError(http.StatusPaymentRequired, "no")
	}, echoguard.Middleware(newGuard(t), idempotent.Anonymous))
	for range 2 {
		post(e)
	}
	if got, want := strings.Join(seen, ", "), "402 17 1 <nil>, 402 17 1 <nil>"; got != want {
		t.Errorf("layers outside saw %s; want %s", got, want)
	}
}

// On a panic, too: Recover, and the HTTPErrorHandler after it, find their own.
func TestLayersOutsideOnPanic(t *testing.T) {
	e := newEcho()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			response, request := c.Response(), c.Request()
			defer func() {
				if c.Response() != response || c.Request() != request {
					t.Error("a layer outside does not get back its response and request")
				}
			}()
			return next(c)
		}
	})
	e.POST("/orders/:id", func(*echo.Context) error { panic("half-way") }, echoguard.Middleware(newGuard(t), idempotent.Anonymous))
	if w := post(e); w.Code != http.StatusInternalServerError {
		t.Errorf("got %d; want 500", w.Code)
	}
}

// statusWriter notes every status, interim ones included.
type statusWriter struct {
	http.ResponseWriter
	statuses []int
}

func (w *statusWriter) WriteHeader(status int) { w.statuses = append(w.statuses, status) }

// transparentWriter can be looked behind; opaqueWriter cannot, nor be compared.
type (
	transparentWriter struct{ http.ResponseWriter }
	opaqueWriter      struct {
		http.ResponseWriter
		_ []byte
	}
)

func (w transparentWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// A layer outside may have put a response of its own in the place of echo's:
// interim answers pass it by, and no other answer.
func TestResponseOfALayerOutside(t *testing.T) {
	for name, test := range map[string]struct {
		wrap     func(w http.ResponseWriter) http.ResponseWriter
		statuses []int
	}{
		"transparent": {func(w http.ResponseWriter) http.ResponseWriter { return transparentWriter{w} }, []int{http.StatusEarlyHints, http.StatusAccepted}},
		"opaque":      {func(w http.ResponseWriter) http.ResponseWriter { return opaqueWriter{ResponseWriter: w} }, []int{http.StatusAccepted}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEcho()
			e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
				return func(c *echo.Context) error {
					c.SetResponse(test.wrap(c.Response()))
					return next(c)
				}
			})
			e.POST("/orders/:id", func(c *echo.Context) error {
				response, err := echo.UnwrapResponse(c.Response())
				if err != nil {
					return err
				}
				response.ResponseWriter.WriteHeader(http.StatusEarlyHints)
				return c.NoContent(http.StatusAccepted)
			}, echoguard.Middleware(newGuard(t), idempotent.Anonymous))
			w := &statusWriter{ResponseWriter: httptest.NewRecorder()}
			r := httptest.NewRequest(http.MethodPost, "/orders/7", nil)
			r.Header.Set("Idempotency-Key", "one-per-order")
			e.ServeHTTP(w, r)
			if !slices.Equal(w.statuses, test.statuses) {
				t.Errorf("sent %v; want %v", w.statuses, test.statuses)
			}
		})
	}
}

// An error of a request that is not protected is returned.
func TestNotProtected(t *testing.T) {
	var got error
	e := newEcho()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			got = next(c)
			return got
		}
	})
	want := echo.NewHTTPError(http.StatusTeapot, "")
	e.GET("/orders", func(*echo.Context) error { return want }, echoguard.Middleware(newGuard(t), idempotent.Anonymous))
	e.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/orders", nil))
	if got != error(want) {
		t.Errorf("got %v; want the handler's error", got)
	}
}
