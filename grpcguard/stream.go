package grpcguard

import (
	"errors"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

var (
	errHeadersSent = errors.New("grpcguard: the headers have been sent")
	errReturned    = errors.New("grpcguard: the handler has returned")
)

// recorder is the stream that a handler sees: it holds headers and trailers
// until the outcome is recorded. A client that has hung up makes none of them
// fail, since the answer waits for its retry.
type recorder struct {
	stream grpc.ServerTransportStream

	mu              sync.Mutex // guards the fields below
	header, trailer metadata.MD
	sent            bool // the handler wanted the headers sent at once
	done            bool // the handler has returned
}

var _ grpc.ServerTransportStream = (*recorder)(nil)

func (r *recorder) Method() string { return r.stream.Method() }

func (r *recorder) SetHeader(md metadata.MD) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.add(md)
}

// SendHeader does what the handler asks for; retry policies of clients then
// take the attempt for final.
func (r *recorder) SendHeader(md metadata.MD) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.add(md); err != nil {
		return err
	}
	r.sent = true
	_ = r.stream.SendHeader(r.header) // fails where nobody listens any more
	return nil
}

func (r *recorder) add(md metadata.MD) error {
	switch {
	case r.done:
		return errReturned
	case r.sent:
		return errHeadersSent
	}
	r.header = metadata.Join(r.header, md)
	return nil
}

func (r *recorder) SetTrailer(md metadata.MD) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done {
		return errReturned
	}
	r.trailer = metadata.Join(r.trailer, md)
	return nil
}

// finish returns what the handler has set and lets it set no more. A nil
// recorder has nothing.
func (r *recorder) finish() (header, trailer metadata.MD) {
	if r == nil {
		return nil, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done = true
	return r.header, r.trailer
}

// deliver sends what the handler has set.
func (r *recorder) deliver() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.sent {
		_ = r.stream.SetHeader(r.header) // fails where nobody listens any more
	}
	_ = r.stream.SetTrailer(r.trailer)
}
