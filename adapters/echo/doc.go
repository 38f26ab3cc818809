// Package echoguard protects the routes of an echo instance (version 5) with a
// guard of package idempotent: the operation behind a key runs at most once,
// and repeats get its recorded answer. Version 4 has known vulnerabilities that
// are fixed in version 5 only.
//
//	guard := idempotent.New(store)
//	e := echo.New()
//	e.Use(middleware.RequestLogger(), middleware.Recover(), authenticate)
//	e.POST("/orders", createOrder, echoguard.Middleware(guard, principal))
//
// It is the middleware of the root package in the form of echo; keys, answers
// and options are those that stand there. Do not use echo.WrapMiddleware for
// it: an error that a handler returns would then become an answer outside of the
// guard, which has recorded an empty success by that time.
//
// In the handlers behind it c.Request().Context() is that of the operation,
// which [idempotent.FromContext], [idempotent.Release] and the like are given,
// and c.Response() is an [echo.Response] of its own over the recorder: hooks
// that a handler registers with Before and After run once, when it writes, and
// those of layers outside with every answer. Echo itself can send no interim
// answers.
//
// # Errors
//
// An error that a handler returns is answered inside of the guard, by the
// HTTPErrorHandler of the echo instance, and the answer recorded: a 4xx is a
// failure that comes back, a 5xx may have happened and comes back, and 401, 429
// and the like free the key. Layers outside see nil and a response that is
// written. A handler that has answered and then returns an error has answered:
// the HTTPErrorHandler leaves it at that, as echo's own does, and what was
// answered counts; idempotent.Unknown says otherwise. Where the HTTPErrorHandler
// does not answer either, the answer is an empty 500. Errors of requests that
// are not protected are returned as always.
//
// # Order
//
// Recover stands outside: a panic is recorded and goes on to it. The 500 of one
// inside is recorded as unknown all the same, but a panic after the answer has
// begun is one of the errors that come too late. Logging, authentication,
// compression and rate limits stand outside, too. A retry must come to the path of
// the first attempt, byte for byte: middleware that rewrites the path does not
// matter, redirects do.
package echoguard
