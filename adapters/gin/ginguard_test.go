package ginguard_test

import (
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/idempotent-go/idempotent"
	ginguard "github.com/idempotent-go/idempotent/adapters/gin"
	"github.com/idempotent-go/idempotent/httptestsuite"
	"github.com/idempotent-go/idempotent/memstore"
)

func init() { gin.SetMode(gin.ReleaseMode) }

// operate is the operation of the suite as a handler of gin.
func operate(app httptestsuite.App) gin.HandlerFunc {
	return func(c *gin.Context) {
		body, err := c.GetRawData()
		if err != nil {
			_ = c.AbortWithError(http.StatusBadRequest, err)
			return
		}
		reply := app.Operate(c.Request.Context(), body)
		if reply.Panic != nil {
			panic(reply.Panic)
		}
		if len(reply.Hints) > 0 {
			// Gin's own writer would take it for the final status.
			w := c.Writer.(interface{ Unwrap() http.ResponseWriter }).Unwrap()
			w.Header()["Link"] = reply.Hints
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Del("Link")
		}
		maps.Copy(c.Writer.Header(), reply.Header)
		defer maps.Copy(c.Writer.Header(), reply.Trailer)
		if reply.Returned {
			c.AbortWithStatus(reply.Status)
			return
		}
		if reply.Trailer != nil { // Data would announce a length
			c.Status(reply.Status)
			_, _ = c.Writer.WriteString(reply.Body)
			return
		}
		if reply.Rest == nil {
			c.Data(reply.Status, reply.Header.Get("Content-Type"), []byte(reply.Body))
			return
		}
		c.Status(reply.Status)
		rest := []func() string{func() string { return reply.Body }, reply.Rest}
		c.Stream(func(w io.Writer) bool {
			_, _ = io.WriteString(w, rest[0]())
			rest = rest[1:]
			return len(rest) > 0
		})
	}
}

func outside(app httptestsuite.App) gin.HandlerFunc {
	return func(c *gin.Context) { app.Outside(c.Header) }
}

// As middleware of the engine.
func TestEngine(t *testing.T) {
	httptestsuite.Run(t, httptestsuite.Adapter{Serve: func(t testing.TB, app httptestsuite.App) string {
		r := gin.New()
		r.Use(gin.RecoveryWithWriter(io.Discard), outside(app), ginguard.Middleware(app.Guard, app.Principal, app.Options...))
		r.Any("/*path", operate(app))
		return httptestsuite.Serve(t, r)
	}})
}

// As middleware of a route.
func TestRoute(t *testing.T) {
	httptestsuite.Run(t, httptestsuite.Adapter{Serve: func(t testing.TB, app httptestsuite.App) string {
		r := gin.New()
		r.UseRawPath = true
		r.Use(gin.RecoveryWithWriter(io.Discard), outside(app))
		guard := ginguard.Middleware(app.Guard, app.Principal, app.Options...)
		r.Any("/:first", guard, operate(app))
		r.Any("/:first/*rest", guard, operate(app))
		return httptestsuite.Serve(t, r)
	}})
}

// Engine.HandleContext runs another chain on gin's own writer. Its answer is
// lost, but it is not taken for a success.
func TestHandleContext(t *testing.T) {
	store := memstore.New()
	defer store.Close()
	r, runs := gin.New(), 0
	guard := idempotent.New(store, idempotent.WithLogger(slog.New(slog.DiscardHandler)))
	r.POST("/orders", ginguard.Middleware(guard, idempotent.Anonymous), func(c *gin.Context) {
		runs++
		c.Request.URL.Path = "/internal"
		r.HandleContext(c)
	})
	r.POST("/internal", func(c *gin.Context) { c.String(http.StatusPaymentRequired, "no money") })
	for _, want := range []int{http.StatusPaymentRequired, http.StatusInternalServerError} {
		w := httptest.NewRecorder()
		request := httptest.NewRequest(http.MethodPost, "/orders", http.NoBody)
		request.Header.Set("Idempotency-Key", "k")
		r.ServeHTTP(w, request)
		if w.Code != want {
			t.Errorf("status %d, want %d", w.Code, want)
		}
	}
	if runs != 1 {
		t.Errorf("%d runs", runs)
	}
	e, found, err := store.Load(t.Context(), idempotent.StoreKey(http.MethodPost, "/orders", "anonymous", "k"))
	if err != nil || !found || !e.Unknown {
		t.Errorf("the entry is %+v, %v, %v, want an unknown outcome", e, found, err)
	}
}
