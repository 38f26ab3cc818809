package echoguard_test

import (
	"io"
	"log/slog"
	"maps"
	"net/http"
	"testing"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"

	echoguard "github.com/idempotent-go/idempotent/adapters/echo"
	"github.com/idempotent-go/idempotent/httptestsuite"
)

// operate is the operation of the suite as a handler of echo.
func operate(app httptestsuite.App) echo.HandlerFunc {
	return func(c *echo.Context) error {
		body, err := io.ReadAll(c.Request().Body)
		if err != nil {
			return echo.ErrBadRequest
		}
		reply := app.Operate(c.Request().Context(), body)
		if reply.Panic != nil {
			panic(reply.Panic)
		}
		if len(reply.Hints) > 0 {
			// Echo's own writer would take it for the final status.
			response, err := echo.UnwrapResponse(c.Response())
			if err != nil {
				return err
			}
			w := response.ResponseWriter
			w.Header()["Link"] = reply.Hints
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Del("Link")
		}
		maps.Copy(c.Response().Header(), reply.Header)
		defer maps.Copy(c.Response().Header(), reply.Trailer)
		switch {
		case reply.Returned:
			return echo.NewHTTPError(reply.Status, "")
		case reply.Rest != nil:
			c.Response().WriteHeader(reply.Status)
			_, _ = io.WriteString(c.Response(), reply.Body)
			if err := http.NewResponseController(c.Response()).Flush(); err != nil {
				return err
			}
			_, err = io.WriteString(c.Response(), reply.Rest())
			return err
		case reply.Body == "":
			return c.NoContent(reply.Status)
		}
		return c.Blob(reply.Status, reply.Header.Get("Content-Type"), []byte(reply.Body))
	}
}

func outside(app httptestsuite.App) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			app.Outside(c.Response().Header().Set)
			return next(c)
		}
	}
}

func newEcho() *echo.Echo {
	e := echo.New()
	e.Logger = slog.New(slog.DiscardHandler)
	e.Use(middleware.Recover())
	return e
}

// As middleware of the instance.
func TestEcho(t *testing.T) {
	httptestsuite.Run(t, httptestsuite.Adapter{Serve: func(t testing.TB, app httptestsuite.App) string {
		e := newEcho()
		e.Use(outside(app), echoguard.Middleware(app.Guard, app.Principal, app.Options...))
		e.Any("/*", operate(app))
		return httptestsuite.Serve(t, e)
	}})
}

// As middleware of a route.
func TestRoute(t *testing.T) {
	httptestsuite.Run(t, httptestsuite.Adapter{Serve: func(t testing.TB, app httptestsuite.App) string {
		e := newEcho()
		e.Use(outside(app))
		e.Any("/*", operate(app), echoguard.Middleware(app.Guard, app.Principal, app.Options...))
		return httptestsuite.Serve(t, e)
	}})
}
