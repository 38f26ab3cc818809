package idempotent

import (
	"context"
	"net/http"
)

// exchange is one keyed request on its way through the middleware. It has the
// room that repeats need, too; handlerRun has the rest.
type exchange struct {
	*handler
	w http.ResponseWriter
	r *http.Request // as layers outside know it

	key     string // the client's
	name    string // in the store
	unkeyed bool
	body    heldBody // what the handler reads; nothing where the request has none
	call    call
	room    responseRoom // of the answer
	run     *handlerRun  // nil: the handler did not run
}

// handlerRun is one run of the next handler.
type handlerRun struct {
	execution execution
	request   http.Request
	recorder  recorder
	instead   *problem // answered in place of what the handler did not write
}

// execution makes the room for a run of the handler.
func (x *exchange) execution() *execution {
	x.run = new(handlerRun)
	return &x.run.execution
}

// do runs the handler and reads its outcome from its answer.
func (x *exchange) do(ctx context.Context) (Class, string) {
	run := x.run
	run.recorder.begin(x.w, x.r.Method, x.maxResponse, &x.room)
	// Also after a panic: a goroutine that the handler left behind must not
	// write to a connection that is not this request's any more.
	defer run.recorder.finish(false)
	run.request = *x.r.WithContext(ctx)
	if x.body.held {
		run.request.Body = &x.body
	}
	x.next.ServeHTTP(&run.recorder, &run.request)
	x.r.Pattern, x.r.MultipartForm = run.request.Pattern, run.request.MultipartForm

	c := run.recorder.finish(x.replayCookies)
	class := x.class(ctx, c)
	switch {
	case class == ClassRelease:
		return class, ""
	case class == ClassUnknown && !c.wrote && ctx.Err() != nil:
		// An empty 200 would be a lie.
		run.instead = &problemOutcomeUnknown
		return class, x.encodeProblem(problemOutcomeUnknown)
	case class == ClassUnknown && c.mismatch:
		return class, x.encodeProblem(problemOutcomeUnknown)
	}
	return class, c.response.encode(c.body)
}

// class is the table of outcomes. What the handler said goes first; Run sees
// to that.
func (x *exchange) class(ctx context.Context, c capture) Class {
	if said := saidClass(ctx); said != ClassDefault {
		return said
	}
	done := ctx.Err() != nil
	switch {
	case c.hijacked:
		return ClassSuccess
	case c.mismatch, done && !c.wrote:
		return ClassUnknown
	}
	status := c.response.status
	var header http.Header
	if x.classify != nil || status == http.StatusServiceUnavailable {
		header = x.run.recorder.sentHeader()
	}
	if x.classify != nil {
		if class := x.classify(status, header); class != ClassDefault {
			return class
		}
	}
	class := Classify(status, header)
	if class == ClassRelease && done {
		// The refusal may be that of a step that was cut off half-way.
		return ClassUnknown
	}
	return class
}

// Classify says what an answer says of the operation: 2xx and 3xx success;
// 401, 407, 421, 425, 429, and 503 with Retry-After released; 408 and other
// 5xx unknown; other 4xx failure. The middleware takes a release for unknown
// where the context of the operation is done.
func Classify(status int, h http.Header) Class {
	switch {
	case status == http.StatusUnauthorized, status == http.StatusProxyAuthRequired,
		status == http.StatusMisdirectedRequest, status == http.StatusTooEarly, status == http.StatusTooManyRequests:
		return ClassRelease
	case status == http.StatusServiceUnavailable && h.Get("Retry-After") != "":
		return ClassRelease
	case status == http.StatusRequestTimeout, status >= 500:
		return ClassUnknown
	case status >= 400:
		return ClassFailure
	}
	return ClassSuccess
}

func (x *exchange) deliver() {
	if x.run.instead != nil {
		x.refuse(x.w, *x.run.instead, problemExtra{})
		return
	}
	x.run.recorder.deliver()
}
