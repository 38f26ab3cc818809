package httptestsuite

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"

	"github.com/idempotent-go/idempotent"
)

// brokenAdapter is an adapter with a fault, and the cases that must find it.
type brokenAdapter struct {
	name     string
	serve    func(app App) http.Handler
	caughtBy []string
}

// guarded is the middleware of the app with more options.
func (a App) guarded(next http.Handler, more ...idempotent.HTTPOption) http.Handler {
	return a.Guard.Middleware(a.Principal, append(a.Options[:len(a.Options):len(a.Options)], more...)...)(next)
}

// on changes a request on its way to next.
func on(next http.Handler, change func(r *http.Request)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = r.Clone(r.Context())
		change(r)
		next.ServeHTTP(w, r)
	})
}

// changedRequest is a good adapter whose guard sees a changed request.
func changedRequest(change func(r *http.Request)) func(App) http.Handler {
	return func(app App) http.Handler { return app.Layer(on(app.guarded(app.Handler()), change)) }
}

// withOptions is a good adapter with options that nobody asked for.
func withOptions(more ...idempotent.HTTPOption) func(App) http.Handler {
	return func(app App) http.Handler { return app.Layer(app.guarded(app.Handler(), more...)) }
}

// reusing is an adapter of a framework whose contexts are used again when a
// request has been served, and which does not say so.
func reusing(app App) http.Handler {
	var mu sync.Mutex
	var free []*reused
	operate := app.guarded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := r.Context().Value(reusedKey{}).(*reused)
		c.use(w)
		app.Handler().ServeHTTP(c, r)
	}))
	return app.Layer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		c := &reused{}
		if n := len(free); n > 0 {
			c, free = free[n-1], free[:n-1]
		}
		mu.Unlock()
		operate.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), reusedKey{}, c)))
		mu.Lock()
		free = append(free, c)
		mu.Unlock()
	}))
}

type reusedKey struct{}

// reused is the context of such a framework: it writes to whoever has it now.
type reused struct {
	mu sync.Mutex
	w  http.ResponseWriter
}

func (c *reused) use(w http.ResponseWriter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.w = w
}

func (c *reused) now() http.ResponseWriter {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.w
}

func (c *reused) Header() http.Header         { return c.now().Header() }
func (c *reused) WriteHeader(status int)      { c.now().WriteHeader(status) }
func (c *reused) Write(b []byte) (int, error) { return c.now().Write(b) }
func (c *reused) Unwrap() http.ResponseWriter { return c.now() }

// changedAnswer is a good adapter whose answers are changed on their way out.
func changedAnswer(change func(status int, h http.Header) int) func(App) http.Handler {
	return func(app App) http.Handler { return app.Layer(changing(app.guarded(app.Handler()), change)) }
}

func changing(next http.Handler, change func(status int, h http.Header) int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(&changingWriter{ResponseWriter: w, change: change}, r)
	})
}

type changingWriter struct {
	http.ResponseWriter
	change func(status int, h http.Header) int
}

func (w *changingWriter) WriteHeader(status int) {
	w.ResponseWriter.WriteHeader(w.change(status, w.Header()))
}

func (w *changingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// withoutFlush hides what a writer can do besides writing.
func withoutFlush(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(struct{ http.ResponseWriter }{w}, r)
	})
}

// finalWriter knows final answers only.
type finalWriter struct{ http.ResponseWriter }

func (w finalWriter) WriteHeader(status int) {
	if status >= 200 {
		w.ResponseWriter.WriteHeader(status)
	}
}

// late keeps a body back.
type late struct {
	http.ResponseWriter
	body bytes.Buffer
}

func (w *late) Write(p []byte) (int, error) { return w.body.Write(p) }

// cutBody ends where a body broke off.
type cutBody struct{ io.ReadCloser }

func (b cutBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		err = io.EOF
	}
	return n, err
}

var brokenAdapters = []brokenAdapter{
	{
		name:  "ignores the key",
		serve: func(app App) http.Handler { return app.Layer(app.Handler()) },
		caughtBy: []string{
			"B01_KeyMissing", "B04_QuotedAndBareAreOneKey", "B06_B08_B09_KeyMalformed", "B10_MoreThanOneKey", "B14_StoreName",
			"B35_SimultaneousRequests", "B42_B43_RetryAfterSuccess", "B55_Success",
			"B56_DefiniteFailure", "B58_ServerErrors", "B60_Panic", "B64_StoreDownAtClaim", "B71_StoreFull", "B80_RecordUnreadable",
		},
	},
	{
		name: "records before the handler's body",
		serve: func(app App) http.Handler {
			return app.Layer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var body late
				app.guarded(http.HandlerFunc(func(rec http.ResponseWriter, r *http.Request) {
					body.ResponseWriter = rec
					app.Handler().ServeHTTP(&body, r)
				})).ServeHTTP(w, r)
				_, _ = w.Write(body.body.Bytes())
			}))
		},
		caughtBy: []string{"B42_B43_RetryAfterSuccess", "B42_LargeAnswer", "B50_Flush", "B51_NotReplayable", "B56_DefiniteFailure", "B32_HandlerReadsTheBody"},
	},
	{
		name: "reads the body before the guard",
		serve: changedRequest(func(r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
		}),
		caughtBy: []string{"B41_ExpectContinue"},
	},
	{
		name: "sends what is there at the end",
		serve: func(app App) http.Handler {
			return app.Layer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				rec := httptest.NewRecorder()
				app.guarded(app.Handler()).ServeHTTP(rec, r)
				maps.Copy(w.Header(), rec.Header())
				w.WriteHeader(rec.Code)
				_, _ = w.Write(rec.Body.Bytes())
			}))
		},
		caughtBy: []string{"B48_Trailers", "B49_InterimAnswers"},
	},
	{
		name: "swallows interim answers",
		serve: func(app App) http.Handler {
			return app.Layer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				app.guarded(app.Handler()).ServeHTTP(finalWriter{w}, r)
			}))
		},
		caughtBy: []string{"B49_InterimAnswers"},
	},
	{
		name: "does not replay fields",
		serve: changedAnswer(func(status int, h http.Header) int {
			if h.Get("Idempotent-Replayed") != "" {
				maps.DeleteFunc(h, func(name string, _ []string) bool {
					return name != "Idempotent-Replayed" && name != "Content-Type"
				})
			}
			return status
		}),
		caughtBy: []string{"B42_B43_RetryAfterSuccess", "B46_FieldsAsFirstSent", "B45_ReplayCookies", "B44_FieldsOfOneMessage", "B47_NoContent"},
	},
	{
		name: "shares answers between principals",
		serve: func(app App) http.Handler {
			app.Principal = idempotent.Anonymous
			return app.Layer(app.guarded(app.Handler()))
		},
		caughtBy: []string{"B17_PrincipalsAreApart", "B19_PrincipalFails", "B14_StoreName", "Rule7_TraceSurvives"},
	},
	{
		name: "releases on panic",
		serve: func(app App) http.Handler {
			return app.Layer(app.guarded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer func() {
					if recover() != nil {
						idempotent.Release(r.Context())
						w.WriteHeader(http.StatusInternalServerError)
					}
				}()
				app.Handler().ServeHTTP(w, r)
			})))
		},
		caughtBy: []string{"B60_Panic"},
	},
	{
		name: "hides the context",
		serve: func(app App) http.Handler {
			return app.Layer(app.guarded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				app.Handler().ServeHTTP(w, r.WithContext(context.Background()))
			})))
		},
		caughtBy: []string{"B61_SaidByTheHandler"},
	},
	{
		name: "leaves no body to the handler",
		serve: func(app App) http.Handler {
			return app.Layer(app.guarded(on(app.Handler(), func(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })))
		},
		caughtBy: []string{"B32_HandlerReadsTheBody", "B15_KeyFunc"},
	},
	{
		name: "runs the handler after the middleware",
		serve: func(app App) http.Handler {
			return app.Layer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				run := false
				app.guarded(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { run = true })).ServeHTTP(w, r)
				if run {
					app.Handler().ServeHTTP(w, r)
				}
			}))
		},
		caughtBy: []string{"B42_B43_RetryAfterSuccess", "B57_Released", "B58_RecordedAsUnknown", "B60_Panic", "B61_SaidByTheHandler"},
	},
	{
		name:     "swallows a flush",
		serve:    func(app App) http.Handler { return app.Layer(app.guarded(withoutFlush(app.Handler()))) },
		caughtBy: []string{"B50_Flush"},
	},
	{
		name: "drops the options",
		serve: func(app App) http.Handler {
			app.Options = nil
			return app.Layer(app.guarded(app.Handler()))
		},
		caughtBy: []string{
			"B02_OptionalKey", "B12_MethodsExtended", "B15_KeyFunc", "B16_B70_KeyPolicy", "B21_PrincipalScope", "B29_BodyTooLarge",
			"B38_WithWait", "B39_WaiterOfAReleasedKey", "B45_ReplayCookies", "B51_NotReplayable", "B54_ReplayHook", "B59_Classify",
		},
	},
	{
		name:     "loses the query",
		serve:    changedRequest(func(r *http.Request) { r.URL.RawQuery = "" }),
		caughtBy: []string{"B23_Query"},
	},
	{
		name: "decodes the path",
		serve: changedRequest(func(r *http.Request) {
			r.RequestURI, r.URL.RawPath = "", ""
		}),
		caughtBy: []string{"B14_StoreName", "B20_MethodAndPathAreApart"},
	},
	{
		name: "keeps one line of a field",
		serve: changedRequest(func(r *http.Request) {
			for name, values := range r.Header {
				r.Header[name] = values[len(values)-1:]
			}
		}),
		caughtBy: []string{"B10_MoreThanOneKey"},
	},
	{
		name: "drops empty fields",
		serve: changedRequest(func(r *http.Request) {
			maps.DeleteFunc(r.Header, func(_ string, values []string) bool { return values[0] == "" })
		}),
		caughtBy: []string{"B03_KeyEmpty"},
	},
	{
		name: "escapes values",
		serve: changedRequest(func(r *http.Request) {
			for i, key := range r.Header["Idempotency-Key"] {
				r.Header["Idempotency-Key"][i] = url.QueryEscape(key)
			}
		}),
		caughtBy: []string{"B04_QuotedAndBareAreOneKey", "B06_B08_B09_KeyMalformed"},
	},
	{
		name:     "protects every method",
		serve:    withOptions(idempotent.WithMethods("GET", "POST", "PUT", "PATCH", "DELETE")),
		caughtBy: []string{"B11_OtherMethodsPass"},
	},
	{
		name: "answers returned errors outside of the guard",
		serve: func(app App) http.Handler {
			return app.Layer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				returned := 0
				inner := app
				inner.Operate = nil
				app.guarded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					body, _ := io.ReadAll(r.Body)
					reply := app.Operate(r.Context(), body)
					if reply.Returned {
						returned = reply.Status
						return
					}
					inner.Operate = func(context.Context, []byte) Reply { return reply }
					inner.Handler().ServeHTTP(w, r)
				})).ServeHTTP(w, r)
				if returned != 0 {
					w.WriteHeader(returned)
				}
			}))
		},
		caughtBy: []string{"B56_FailureReturned", "B57_ReleaseReturned", "B58_ServerErrorReturned"},
	},
	{
		name: "runs where the guard is in trouble",
		serve: func(app App) http.Handler {
			return app.Layer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				r.Body = io.NopCloser(bytes.NewReader(body))
				rec := httptest.NewRecorder()
				app.guarded(app.Handler()).ServeHTTP(rec, r)
				if rec.Code >= 500 && rec.Header().Get("Content-Type") == "application/problem+json" {
					r.Body = io.NopCloser(bytes.NewReader(body))
					app.Handler().ServeHTTP(w, r)
					return
				}
				maps.Copy(w.Header(), rec.Header())
				w.WriteHeader(rec.Code)
				_, _ = w.Write(rec.Body.Bytes())
			}))
		},
		caughtBy: []string{"B19_PrincipalFails", "B60_Panic", "B64_StoreDownAtClaim", "B71_StoreFull", "B80_RecordUnreadable", "B83_Drain"},
	},
	{
		name:     "cancels the handler with its client",
		serve:    withOptions(idempotent.WithCancelOnDisconnect()),
		caughtBy: []string{"B62_ClientLeaves"},
	},
	{
		name: "sends one line of a field",
		serve: changedAnswer(func(status int, h http.Header) int {
			for name, values := range h {
				h[name] = values[:1]
			}
			return status
		}),
		caughtBy: []string{"B45_Cookies", "B45_ReplayCookies", "B46_FieldsAsFirstSent"},
	},
	{
		name: "marks every answer",
		serve: changedAnswer(func(status int, h http.Header) int {
			h.Set("Idempotent-Replayed", "true")
			return status
		}),
		caughtBy: []string{"B02_OptionalKey", "B42_B43_RetryAfterSuccess", "B43_MarkerOfTheHandler"},
	},
	{
		name: "rewrites problem documents",
		serve: changedAnswer(func(status int, h http.Header) int {
			if h.Get("Content-Type") == "application/problem+json" {
				h.Set("Content-Type", "application/json")
			}
			return status
		}),
		caughtBy: []string{"B01_KeyMissing", "B19_PrincipalFails", "B21_PrincipalScope", "B22_OtherBody", "B29_BodyTooLarge", "B36_DuplicateInFlight", "B51_NotReplayable"},
	},
	{
		name: "hides the pause",
		serve: changedAnswer(func(status int, h http.Header) int {
			h.Del("Retry-After")
			return status
		}),
		caughtBy: []string{"B36_DuplicateInFlight", "B64_StoreDownAtClaim", "B66_StoreDownAtCompletion", "B71_StoreFull", "B83_Drain"},
	},
	{
		name: "answers 409 as 202",
		serve: changedAnswer(func(status int, h http.Header) int {
			if status == http.StatusConflict {
				return http.StatusAccepted
			}
			return status
		}),
		caughtBy: []string{"B36_DuplicateInFlight", "B66_StoreDownAtCompletion"},
	},
	{
		name:     "has the layers outside inside",
		serve:    func(app App) http.Handler { return app.guarded(app.Layer(app.Handler())) },
		caughtBy: []string{"B53_FieldsOfOuterLayers"},
	},
	{
		name: "gives layers outside the last word",
		serve: func(app App) http.Handler {
			return changing(app.guarded(app.Handler()), func(status int, h http.Header) int {
				app.Outside(h.Set)
				return status
			})
		},
		caughtBy: []string{"B53_FieldsSetAgain"},
	},
	{
		name: "dates a replay twice",
		serve: changedAnswer(func(status int, h http.Header) int {
			h["Date"] = []string{"Tue, 01 Dec 2026 00:00:00 GMT", "Tue, 01 Dec 2026 00:00:01 GMT"}
			return status
		}),
		caughtBy: []string{"B44_FieldsOfOneMessage"},
	},
	{
		name: "replays cookies unasked",
		serve: func(app App) http.Handler {
			return app.Layer(app.guarded(app.Handler(), idempotent.WithReplayCookies()))
		},
		caughtBy: []string{"B45_Cookies"},
	},
	{
		name:     "loses the media type",
		serve:    changedRequest(func(r *http.Request) { r.Header.Del("Content-Type") }),
		caughtBy: []string{"B24_JSONSpelling", "B82_OtherMediaTypeOrCoding"},
	},
	{
		name:     "loses the coding",
		serve:    changedRequest(func(r *http.Request) { r.Header.Del("Content-Encoding") }),
		caughtBy: []string{"B82_OtherMediaTypeOrCoding"},
	},
	{
		name: "takes the token for a part of the request",
		serve: withOptions(idempotent.WithFingerprint(func(r *http.Request, body []byte) (string, error) {
			text, err := idempotent.CanonicalJSON(r, body)
			return text + r.Header.Get("Authorization"), err
		})),
		caughtBy: []string{"B33_WhatChangesBetweenAttempts"},
	},
	{
		name: "answers 204 as 200",
		serve: changedAnswer(func(status int, _ http.Header) int {
			if status == http.StatusNoContent {
				return http.StatusOK
			}
			return status
		}),
		caughtBy: []string{"B47_NoContent"},
	},
	{
		name:     "does not know what a client prefers",
		serve:    changedRequest(func(r *http.Request) { r.Header.Del("Prefer") }),
		caughtBy: []string{"B37_PreferWait"},
	},
	{
		name: "takes a broken upload for a whole one",
		serve: changedRequest(func(r *http.Request) {
			// The server ends the context with the connection.
			*r = *r.WithContext(context.WithoutCancel(r.Context()))
			r.Body, r.ContentLength = cutBody{r.Body}, -1
		}),
		caughtBy: []string{"B31_BodyCutShort"},
	},
	{
		name: "takes every answer for a success",
		serve: withOptions(idempotent.WithClassify(func(int, http.Header) idempotent.Class {
			return idempotent.ClassSuccess
		})),
		caughtBy: []string{"B57_Released", "B58_RecordedAsUnknown", "B59_Classify"},
	},
	{
		name: "releases every answer",
		serve: withOptions(idempotent.WithClassify(func(int, http.Header) idempotent.Class {
			return idempotent.ClassRelease
		})),
		caughtBy: []string{"B55_Success", "B56_DefiniteFailure", "B58_ServerErrors", "B35_SimultaneousRequests"},
	},
	{
		name:     "goes on with what others use by now",
		serve:    reusing,
		caughtBy: []string{"B40_RespondAsync"},
	},
	{
		name: "gives one trace to all",
		serve: changedRequest(func(r *http.Request) {
			r.Header.Set("X-Request-Id", "another")
		}),
		caughtBy: []string{"Rule7_TraceSurvives", "B36_DuplicateInFlight"},
	},
}
