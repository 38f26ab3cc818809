// Package fiberguard protects the routes of a fiber app (version 3) with a guard
// of package idempotent: the operation behind a key runs at most once, and
// repeats get its recorded answer.
//
//	guard := idempotent.New(store)
//	app := fiber.New()
//	app.Use(recover.New(), authenticate)
//	app.Post("/orders", fiberguard.Middleware(guard, principal), createOrder)
//
// It is the middleware of the root package in the form of fiber; keys, answers
// and options are those that stand there. Fiber is built on fasthttp and not on
// net/http, so that a request is translated for the guard and an answer back.
// Fiber's own adaptor.HTTPMiddleware cannot be used for it: that runs the
// handler after the middleware has returned, when an empty answer has been
// recorded already, keeps one line of a header field that came twice, and lends
// texts whose memory the next request overwrites.
//
// In the handlers behind it fiber.Ctx works as always, and c.Context() is the
// context of the operation, which [idempotent.FromContext],
// [idempotent.Release] and the like are given; the Ctx itself is another one.
//
// # Errors and panics
//
// An error that a handler returns is answered inside of the guard, by the
// ErrorHandler of the app, and the answer recorded: a 4xx is a failure that
// comes back, a 5xx may have happened and comes back, and 401, 429 and the like
// free the key. Layers outside see nil and the answer. Errors of requests that
// are not protected are returned as always.
//
// A panic is recorded and goes on. Mount fiber's recover outside: without it
// a panic ends the process, as always with fasthttp. One inside is no danger:
// the 500 of its error is recorded as unknown all the same.
//
// # Costs and limits
//
//   - For the guard the header fields, the body and the answer of each protected
//     request are copied once; a request of another method pays for its header
//     fields alone.
//   - Fiber reads the body before any handler runs, up to its BodyLimit (4 MiB),
//     above which it answers 413 itself; idempotent.WithMaxBody (1 MiB) comes
//     after that. With StreamRequestBody the guard stops reading at its own.
//     "Expect: 100-continue" is fasthttp's business, too: the body is asked for
//     before the key is looked at.
//   - The answer is sent when the handler has returned. A body stream
//     (SendStreamWriter, SSE) is read to its end first and kept in memory whole,
//     so that an endless one must not be protected; one that fails is answered
//     through the ErrorHandler. Trailers and interim answers are not sent.
//   - The handler does not learn that its client hung up, with or without
//     idempotent.WithCancelOnDisconnect: fasthttp does not tell.
//   - A connection that is taken over (Hijack, websockets) is recorded as a
//     success that cannot be repeated.
//   - Fiber puts forms with files together anew, in any order, so that an honest
//     retry may look like another request. Set DisablePreParseMultipartForm where
//     such forms are protected.
package fiberguard
