package ginguard_test

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/idempotent-go/idempotent"
	ginguard "github.com/idempotent-go/idempotent/adapters/gin"
	"github.com/idempotent-go/idempotent/memstore"
)

func Example() {
	store := memstore.New()
	defer func() { _ = store.Close() }()
	guard := idempotent.New(store)
	principal := func(r *http.Request) (string, error) { return cmp.Or(r.Header.Get("X-User"), "alice"), nil }

	n := 0
	router := gin.New()
	router.Use(gin.Recovery())
	router.POST("/orders/:id", ginguard.Middleware(guard, principal), func(c *gin.Context) {
		n++
		c.JSON(http.StatusCreated, gin.H{"order": c.Param("id"), "run": n})
	})

	for range 2 {
		w := post(router, "/orders/7")
		fmt.Printf("%d %s %q\n", w.Code, w.Body, w.Header().Get("Idempotent-Replayed"))
	}
	// Output:
	// 201 {"order":"7","run":1} ""
	// 201 {"order":"7","run":1} "true"
}

func post(h http.Handler, path string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(`{"amount":1}`))
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

// Layers outside see what was answered; those inside do not run at a replay,
// nor what comes after them in the chain.
func TestChain(t *testing.T) {
	var outside, inside []string
	router := gin.New()
	router.Use(func(c *gin.Context) {
		before, request := c.Writer, c.Request
		c.Next()
		if c.Writer != before || c.Request != request {
			t.Error("a layer outside does not get back its writer and request")
		}
		outside = append(outside, fmt.Sprint(c.Writer.Status(), " ", c.Writer.Size(), " ", c.IsAborted()))
	})
	router.Use(ginguard.Middleware(newGuard(t), idempotent.Anonymous))
	router.POST("/orders", func(c *gin.Context) {
		if c.Writer.Written() || c.Writer.Size() != -1 || c.Writer.Status() != http.StatusOK {
			t.Error("the writer is not fresh")
		}
		c.Next()
		inside = append(inside, fmt.Sprint(c.Writer.Status(), " ", c.Writer.Size()))
	}, func(c *gin.Context) { c.String(http.StatusAccepted, "yes") })
	for range 2 {
		post(router, "/orders")
	}
	if got := strings.Join(outside, ", "); got != "202 3 false, 202 3 true" {
		t.Errorf("outside: %s", got)
	}
	if got := strings.Join(inside, ", "); got != "202 3" {
		t.Errorf("inside: %s", got)
	}
}

// A status without a body, which gin keeps back until the chain is over, is
// recorded, and so is the one that gin has set for a path without a route.
func TestStatusWithoutABody(t *testing.T) {
	runs := 0
	router := gin.New()
	router.Use(ginguard.Middleware(newGuard(t), idempotent.Anonymous))
	router.Use(func(*gin.Context) { runs++ })
	router.POST("/orders", func(c *gin.Context) { c.Status(http.StatusPaymentRequired) })
	for path, want := range map[string]int{"/orders": http.StatusPaymentRequired, "/nowhere": http.StatusNotFound} {
		runs = 0
		for _, replayed := range []string{"", "true"} {
			w := post(router, path)
			if w.Code != want || w.Header().Get("Idempotent-Replayed") != replayed {
				t.Errorf("%s: got %d, replayed %q; want %d, %q", path, w.Code, w.Header().Get("Idempotent-Replayed"), want, replayed)
			}
		}
		if runs != 1 {
			t.Errorf("%s ran %d times", path, runs)
		}
	}
}

// Requests that are not protected keep gin's own writer.
func TestNotProtected(t *testing.T) {
	var before gin.ResponseWriter
	router := gin.New()
	router.Use(func(c *gin.Context) { before = c.Writer })
	router.Use(ginguard.Middleware(newGuard(t), idempotent.Anonymous, idempotent.WithOptionalKey()))
	same := 0
	handle := func(c *gin.Context) {
		if c.Writer == before {
			same++
		}
	}
	router.GET("/orders", handle)
	router.POST("/orders", handle)
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		router.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(method, "/orders", nil))
	}
	if same != 2 {
		t.Errorf("%d of 2 requests kept gin's writer", same)
	}
}
