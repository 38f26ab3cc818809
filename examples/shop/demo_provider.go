package main

import (
	"context"
	"sync"
)

// paymentProvider agrees at once, counts, and does once what the story asks.
type paymentProvider struct {
	mu    sync.Mutex
	count int
	next  func(context.Context) error // what the next charge does; nil: as usual
	usual chargeFunc                  // nil: agree at once
}

func (p *paymentProvider) charge(ctx context.Context, what payment) error {
	p.mu.Lock()
	p.count++
	next, usual := p.next, p.usual
	p.next = nil
	p.mu.Unlock()
	switch {
	case next != nil:
		return next(ctx)
	case usual != nil:
		return usual(ctx, what)
	}
	return nil
}

// usually sets what charges do that the story asks nothing of.
func (p *paymentProvider) usually(f chargeFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.usual = f
}

func (p *paymentProvider) charges() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

func (p *paymentProvider) onNext(f func(context.Context) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = f
}

// panics makes the next charge crash the handler, after the money has moved.
func (p *paymentProvider) panics() {
	p.onNext(func(context.Context) error { panic("the story's crash") })
}

// hold makes the next charge wait until it is let go, or its context ends.
func (p *paymentProvider) hold() *held {
	h := &held{entered: make(chan struct{}), opened: make(chan struct{})}
	p.onNext(func(ctx context.Context) error {
		close(h.entered)
		select {
		case <-h.opened:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return h
}

type held struct {
	entered chan struct{} // closed when the charge has begun
	opened  chan struct{}
}

func (h *held) open() { close(h.opened) }
