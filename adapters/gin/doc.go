// Package ginguard protects the routes of a gin engine with a guard of package
// idempotent: the operation behind a key runs at most once, and repeats get its
// recorded answer.
//
//	guard := idempotent.New(store)
//	router := gin.New()
//	router.Use(gin.Logger(), gin.Recovery(), authenticate)
//	router.POST("/orders", ginguard.Middleware(guard, principal), createOrder)
//
// It is the middleware of the root package in the form of gin; keys, answers
// and options are those that stand there. In the handlers behind it
//
//   - gin.Context works as always: parameters, Abort, errors, binding, Stream;
//   - c.Request.Context() is that of the operation, which
//     [idempotent.FromContext], [idempotent.Release] and the like are given. Gin
//     hands out another one as the context itself unless the engine has
//     ContextWithFallback;
//   - c.Writer is the recorder. It cannot send interim answers (gin's own cannot
//     either), and CloseNotify never fires, since a handler goes on without its
//     client; where idempotent.WithCancelOnDisconnect wants that otherwise, the
//     context ends;
//   - an error given to c.Error alone is no answer: the status counts, 200 where
//     none is set. AbortWithError has one.
//
// # Order
//
// Recovery stands outside, so that it is registered first, as gin.Default does:
// a panic is recorded and goes on to it. The 500 of a Recovery inside is recorded
// as unknown all the same, but a panic after the answer has begun leaves it
// nothing to say, and what was begun counts. Logging, authentication, compression
// and rate limits stand outside, too; when a repeat is answered from the record,
// what stands inside does not run, and the chain is aborted.
//
// A retry must come to the path of the first attempt, byte for byte. Redirects
// of gin (RedirectTrailingSlash) are answered before any middleware.
package ginguard
