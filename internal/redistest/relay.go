package redistest

import (
	"net"
	"sync"
	"testing"
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
	conns    map[net.Conn]struct{} // both ends of every connection
	swallow  func(request []byte) bool
	released chan struct{} // closed unless stalled
	down     bool
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
		conns: map[net.Conn]struct{}{}, released: make(chan struct{}),
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

// Cut ends every connection, and refuses new ones until Mend.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = true
	for c := range r.conns {
		_ = c.Close()
	}
}

// Mend accepts connections again.
func (r *Relay) Mend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = false
}

// resume needs mu.
func (r *Relay) resume() {
	select {
	case <-r.released:
	default:
		close(r.released)
	}
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
		if err != nil || !r.add(client, server) {
			_ = client.Close()
			if server != nil {
				_ = server.Close()
			}
			continue
		}
		var spoil bool // the next reply of this connection; guarded by mu
		r.done.Go(func() { r.pump(server, client, func(b []byte) { r.request(b, &spoil) }) })
		r.done.Go(func() { r.pump(client, server, func([]byte) { r.reply(client, &spoil) }) })
	}
}

func (r *Relay) add(conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		return false
	}
	for _, c := range conns {
		r.conns[c] = struct{}{}
	}
	return true
}

// pump copies from one end to the other and shows each piece before it is sent.
func (r *Relay) pump(to, from net.Conn, show func([]byte)) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if n > 0 {
			show(b[:n])
			if _, err := to.Write(b[:n]); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	_, _ = to.Close(), from.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, to)
	delete(r.conns, from)
}

func (r *Relay) request(b []byte, spoil *bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.swallow != nil && r.swallow(b) {
		r.swallow, *spoil = nil, true
	}
}

func (r *Relay) reply(client net.Conn, spoil *bool) {
	r.mu.Lock()
	released, cut := r.released, *spoil
	r.mu.Unlock()
	if cut {
		_ = client.Close()
	}
	<-released
}
