package idempotent

import (
	"context"
	"sync/atomic"
)

// Class is what became of an operation.
type Class int

// The classes of outcome. The zero value says "as the table says": the
// middleware then looks at the status, [Do] at the error, and [Guard.Run]
// takes an operation that returned for a success.
const (
	ClassDefault Class = iota
	ClassSuccess       // it happened; repeats get the result, for the success retention
	ClassFailure       // it definitely did not happen; repeats are told so, for the failure retention
	ClassUnknown       // it may have happened; it is never run again, for the success retention
	ClassRelease       // nothing happened; the key is free at once
)

// String returns "default", "success", "failure", "unknown" or "release".
func (c Class) String() string {
	switch c {
	case ClassDefault:
		return "default"
	case ClassSuccess:
		return "success"
	case ClassFailure:
		return "failure"
	case ClassRelease:
		return "release"
	default:
		// A class nobody knows is treated as unknown everywhere.
		return "unknown"
	}
}

// Execution identifies the running execution of an operation.
type Execution struct {
	Key   string // store name
	Owner string // random, one per execution
	Trace string // as given by WithCallTrace
	Fence int64  // grows with every claim of the key; pass it to systems that can compare it
}

// execution is what the guard and the operation share while it runs.
type execution struct {
	Execution
	said atomic.Int32 // a Class, or concluded

	ctx      lateContext // of the operation
	after    lateContext // the same without its end, for the bookkeeping
	settling lateContext // of the first attempt to settle
	lease    lease
}

// begin prepares the contexts of an operation that was called with ctx.
func (x *execution) begin(ctx context.Context, detached bool) {
	x.ctx.parent, x.ctx.detached, x.ctx.execution = ctx, detached, x
	if detached {
		x.ctx.deadline, _ = ctx.Deadline()
	}
	x.after.parent, x.after.detached = &x.ctx, true
}

// concluded in the place of what an operation says: it is too late.
const concluded = -1

// conclude returns what the operation has said of itself, or ClassDefault, and
// lets it say no more. Asked again it returns ClassDefault: what the operation
// answers then is built on the first answer.
func (x *execution) conclude() Class {
	return max(Class(x.said.Swap(concluded)), ClassDefault)
}

type executionKey struct{}

func executionOf(ctx context.Context) *execution {
	x, _ := ctx.Value(executionKey{}).(*execution)
	return x
}

// FromContext returns the execution whose operation was given ctx, and false
// outside an operation. Of nested operations it is the innermost one.
func FromContext(ctx context.Context) (Execution, bool) {
	if x := executionOf(ctx); x != nil {
		return x.Execution, true
	}
	return Execution{}, false
}

// Succeed, called inside an operation, says that it happened, whatever it
// returns or answers. Of Succeed, [Fail], [Unknown] and [Release] the last
// call wins; a panic beats it. Outside an operation, or after it has returned,
// they do nothing. They are safe for concurrent use.
func Succeed(ctx context.Context) { say(ctx, ClassSuccess) }

// Fail, called inside an operation, says that it definitely did not happen.
// See [Succeed].
func Fail(ctx context.Context) { say(ctx, ClassFailure) }

// Unknown, called inside an operation, says that it may have happened and must
// not be run again by itself. See [Succeed].
func Unknown(ctx context.Context) { say(ctx, ClassUnknown) }

// Release, called inside an operation, says that nothing happened: the key is
// freed, and the next call runs. See [Succeed].
func Release(ctx context.Context) { say(ctx, ClassRelease) }

func say(ctx context.Context, c Class) {
	x := executionOf(ctx)
	if x == nil {
		return
	}
	for {
		said := x.said.Load()
		if said == concluded || x.said.CompareAndSwap(said, int32(c)) {
			return
		}
	}
}

// saidClass concludes the operation of ctx; see [execution.conclude].
func saidClass(ctx context.Context) Class {
	if x := executionOf(ctx); x != nil {
		return x.conclude()
	}
	return ClassDefault
}
