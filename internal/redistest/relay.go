package redistest

import (
	"bytes"
	"net"
	"sync"
	"testing"
	"time"
)

// Relay passes connections on to a server, and spoils them on demand. It knows
// nothing of the protocol: a request is what arrives in one piece from the
// client, a reply what arrives in one piece from the server. It is safe for
// concurrent use.
type Relay struct {
	Addr string // what clients connect to

	target string
	listen net.Listener
	done   sync.WaitGroup

	mu       sync.Mutex
	links    map[*link]struct{}
	swallow  func(request []byte) bool
	hold     *hold
	released chan struct{} // closed unless stalled
	delay    time.Duration
	down     bool
	resets   bool
}

// link is one connection through the relay. The fields below its ends are
// guarded by the relay's mu.
type link struct {
	client, server net.Conn

	spoil   bool          // the next reply is swallowed and the link cut
	half    bool          // the client has been told that nothing more comes
	request []byte        // the last one, while a reply is to be held
	held    chan struct{} // what the link holds waits for it; nil: it holds nothing
	gone    chan struct{} // closed with the link
	ended   bool
}

// hold is a request, or a reply, that is waited for. One of the functions is
// nil.
type hold struct {
	request func(request []byte) bool
	reply   func(request, reply []byte) bool
	caught  chan struct{}
}

// NewRelay starts a relay to target and ends it when the test ends.
func NewRelay(t testing.TB, target string) *Relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &Relay{
		Addr: l.Addr().String(), target: target, listen: l,
		links: map[*link]struct{}{}, released: make(chan struct{}),
	}
	close(r.released)
	r.done.Go(r.accept)
	t.Cleanup(r.close)
	return r
}

// SwallowReply makes the relay carry out the next request for which match says
// true, and cut its connection instead of handing the reply on.
func (r *Relay) SwallowReply(match func(request []byte) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.swallow = match
}

// Swallowed reports whether the reply has been swallowed.
func (r *Relay) Swallowed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.swallow == nil
}

// Stall holds all replies back until Resume; requests pass.
func (r *Relay) Stall() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.released = make(chan struct{})
}

// Resume hands on what was held back.
func (r *Relay) Resume() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.resume()
}

// Delay makes every reply late by d; 0 ends that.
func (r *Relay) Delay(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.delay = d
}

// HoldRequest makes the relay keep the next request for which match says true:
// it does not reach the server before [Relay.Resume], and never does where the
// connection ends first. The channel is closed when the request is there.
func (r *Relay) HoldRequest(match func(request []byte) bool) (caught <-chan struct{}) {
	return r.catch(&hold{request: match, caught: make(chan struct{})})
}

// HoldReply makes the relay keep the next reply for which match says true, until
// [Relay.Resume] or the end of the connection. The channel is closed when the
// reply is there: the server has done its work.
func (r *Relay) HoldReply(match func(request, reply []byte) bool) (caught <-chan struct{}) {
	return r.catch(&hold{reply: match, caught: make(chan struct{})})
}

// HalfClose tells the clients of all connections that nothing more will come.
// What they still send is carried out, and its replies are lost.
func (r *Relay) HalfClose() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l := range r.links {
		l.half = true
		if c, ok := l.client.(*net.TCPConn); ok {
			_ = c.CloseWrite()
		}
	}
}

// Cut ends every connection, and refuses new ones until Mend. What the relay
// holds is lost, and a hold that has caught nothing is forgotten.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down, r.hold = true, nil
	for l := range r.links {
		r.end(l)
	}
}

// Reset lets requests pass and, instead of handing a reply on, resets its
// connection, until Mend.
func (r *Relay) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.resets = true
}

// Mend ends what Cut and Reset have begun.
func (r *Relay) Mend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down, r.resets = false, false
}

func (r *Relay) catch(h *hold) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hold = h
	return h.caught
}

// resume needs mu.
func (r *Relay) resume() {
	select {
	case <-r.released:
	default:
		close(r.released)
	}
	for l := range r.links {
		l.let()
	}
}

// let hands on what the link holds. It needs the relay's mu.
func (l *link) let() {
	if l.held != nil {
		close(l.held)
		l.held = nil
	}
}

// end closes a link. It needs mu.
func (r *Relay) end(l *link) {
	if l.ended {
		return
	}
	l.ended = true
	close(l.gone)
	_, _ = l.client.Close(), l.server.Close()
	delete(r.links, l)
}

func (r *Relay) close() {
	_ = r.listen.Close()
	r.Cut()
	r.Resume()
	r.done.Wait()
}

func (r *Relay) accept() {
	for {
		client, err := r.listen.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", r.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		l := &link{client: client, server: server, gone: make(chan struct{})}
		r.mu.Lock()
		r.links[l] = struct{}{}
		if r.down {
			r.end(l)
		}
		r.mu.Unlock()
		r.done.Go(func() { r.pump(l, server, client, r.request) })
		r.done.Go(func() { r.pump(l, client, server, r.reply) })
	}
}

// pump copies from one end to the other. It shows each piece before it is sent,
// and is told whether to send it.
func (r *Relay) pump(l *link, to, from net.Conn, show func(*link, []byte) bool) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if n > 0 && show(l, b[:n]) {
			if _, err := to.Write(b[:n]); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end(l)
}

func (r *Relay) request(l *link, b []byte) bool {
	r.mu.Lock()
	if r.swallow != nil && r.swallow(b) {
		r.swallow, l.spoil = nil, true
	}
	var held chan struct{}
	l.request = nil
	switch h := r.hold; {
	case h == nil:
	case h.reply != nil:
		l.request = bytes.Clone(b)
	case h.request(b):
		held = r.caught(l)
	}
	r.mu.Unlock()
	return l.wait(held)
}

func (r *Relay) reply(l *link, b []byte) bool {
	r.mu.Lock()
	released, delay := r.released, r.delay
	var held chan struct{}
	if h := r.hold; h != nil && h.reply != nil && l.request != nil && h.reply(l.request, b) {
		held = r.caught(l)
	}
	if c, ok := l.client.(*net.TCPConn); ok && r.resets {
		_ = c.SetLinger(0) // without lingering the end is a reset, not an orderly one
	}
	if l.spoil || r.resets {
		r.end(l)
	}
	r.mu.Unlock()
	if delay > 0 {
		t := time.NewTimer(delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-l.gone:
		}
	}
	if !l.wait(released) || !l.wait(held) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return !l.half
}

// caught tells that the link holds what was waited for. It needs mu.
func (r *Relay) caught(l *link) (held chan struct{}) {
	close(r.hold.caught)
	r.hold, l.held = nil, make(chan struct{})
	return l.held
}

// wait blocks until ready or the end of the link, and reports which.
func (l *link) wait(ready <-chan struct{}) bool {
	if ready == nil {
		return true
	}
	select {
	case <-ready:
		return true
	case <-l.gone:
		return false
	}
}
