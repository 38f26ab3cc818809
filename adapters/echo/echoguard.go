package echoguard

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/idempotent-go/idempotent"
)

// Middleware returns echo middleware that runs the next handler at most once
// for each key of each principal, and answers repeats with the recorded answer;
// see [idempotent.Guard.Middleware] for arguments, defaults and panics. The
// principal function is given the request as echo has it; what an
// authentication has left in the echo context is put into the context of the
// request to be seen there. The result is safe for concurrent use.
func Middleware(g *idempotent.Guard, principal idempotent.PrincipalFunc, opts ...idempotent.HTTPOption) echo.MiddlewareFunc {
	protect := g.Middleware(principal, opts...)
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) (err error) {
			protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				err = run(c, w, r, next)
			})).ServeHTTP(outerWriter{c.Response()}, c.Request())
			return err
		}
	}
}

// outerWriter is echo's response for the guard.
type outerWriter struct{ *echo.Response }

// WriteHeader lets interim answers pass echo by, which would take the first of
// them for the answer.
func (w outerWriter) WriteHeader(status int) {
	if status < 200 && status != http.StatusSwitchingProtocols {
		w.Writer.WriteHeader(status)
		return
	}
	w.Response.WriteHeader(status)
}

// run runs next on w and r. Layers outside get back what was theirs, also on a
// panic: echo's Recover answers on its own response.
func run(c echo.Context, w http.ResponseWriter, r *http.Request, next echo.HandlerFunc) error {
	outer, request := c.Response(), c.Request()
	defer func() {
		c.SetResponse(outer)
		c.SetRequest(request)
	}()
	c.SetRequest(r)
	if w == http.ResponseWriter(outerWriter{outer}) { // not protected
		return next(c)
	}
	c.SetResponse(echo.NewResponse(w, c.Echo()))
	if err := next(c); err != nil {
		c.Error(err)
		if !c.Response().Committed {
			// Nobody answered, and silence would be a success.
			c.Response().WriteHeader(http.StatusInternalServerError)
		}
	}
	return nil
}
