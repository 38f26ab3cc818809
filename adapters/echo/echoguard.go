package echoguard

import (
	"net/http"

	"github.com/labstack/echo/v5"

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
		return func(c *echo.Context) (err error) {
			outer := &outerWriter{c.Response()}
			protect(idempotent.Synchronous(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if w == http.ResponseWriter(outer) { // not protected
					w = nil
				}
				err = run(c, w, r, next)
			}))).ServeHTTP(outer, c.Request())
			return err
		}
	}
}

// outerWriter is echo's response for the guard: a pointer, which can be compared
// whatever a layer outside has put in its place.
type outerWriter struct{ http.ResponseWriter }

// WriteHeader lets interim answers pass echo by, which would take the first of
// them for the answer. A response that cannot be looked behind has none.
func (w *outerWriter) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.ResponseWriter.WriteHeader(status)
		return
	}
	if response, err := echo.UnwrapResponse(w.ResponseWriter); err == nil {
		response.ResponseWriter.WriteHeader(status)
	}
}

// Unwrap is for [http.ResponseController].
func (w *outerWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// run runs next on r and, where it is protected, on w. Layers outside get back
// what was theirs, also on a panic: the HTTPErrorHandler answers what echo's
// Recover makes of it on their response.
func run(c *echo.Context, w http.ResponseWriter, r *http.Request, next echo.HandlerFunc) error {
	outer, request := c.Response(), c.Request()
	defer func() {
		c.SetResponse(outer)
		c.SetRequest(request)
	}()
	c.SetRequest(r)
	if w == nil {
		return next(c)
	}
	inner := echo.NewResponse(w, c.Logger())
	c.SetResponse(inner)
	if err := next(c); err != nil {
		c.Echo().HTTPErrorHandler(c, err)
		if !inner.Committed {
			// Nobody answered, and silence would be a success.
			inner.WriteHeader(http.StatusInternalServerError)
		}
	}
	return nil
}
