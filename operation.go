package idempotent

import (
	"context"
	"net/http"
)

// handlerRun is one run of the next handler.
type handlerRun struct {
	*handler
	w        http.ResponseWriter
	outer    *http.Request // as layers outside know it
	r        *http.Request // with the body held
	recorder *recorder
	instead  *problem // answered in place of what the handler did not write
}

// operation runs the handler and reads its outcome from its answer.
func (h *handlerRun) operation(ctx context.Context) (Class, string) {
	h.recorder = newRecorder(h.w, h.r.Method, h.maxResponse)
	// Also after a panic: a goroutine that the handler left behind must not
	// write to a connection that is not this request's any more.
	defer h.recorder.finish(false)
	r := h.r.WithContext(ctx)
	h.next.ServeHTTP(h.recorder, r)
	h.outer.Pattern, h.outer.MultipartForm = r.Pattern, r.MultipartForm

	c := h.recorder.finish(h.replayCookies)
	class := h.class(ctx, c)
	switch {
	case class == ClassRelease:
		return class, ""
	case class == ClassUnknown && !c.wrote && ctx.Err() != nil:
		// An empty 200 would be a lie.
		h.instead = &problemOutcomeUnknown
		return class, h.encodeProblem(problemOutcomeUnknown)
	case class == ClassUnknown && c.mismatch:
		return class, h.encodeProblem(problemOutcomeUnknown)
	}
	return class, c.response.encode()
}

// class is the table of outcomes. What the handler said goes first; Run sees
// to that.
func (h *handlerRun) class(ctx context.Context, c capture) Class {
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
	if h.classify != nil || status == http.StatusServiceUnavailable {
		header = h.recorder.sentHeader()
	}
	if h.classify != nil {
		if class := h.classify(status, header); class != ClassDefault {
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

func (h *handlerRun) deliver() {
	if h.instead != nil {
		h.refuse(h.w, *h.instead, problemExtra{})
		return
	}
	h.recorder.deliver()
}
