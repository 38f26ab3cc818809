package faultbench_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"
)

// outageNowhere is an address of loopback at which nobody listens.
const outageNowhere = "127.0.0.1:1"

type outageMode int

const (
	linePasses  outageMode = iota
	lineRefuses            // connections are gone and new ones refused
	lineResets             // requests arrive; instead of a reply the connection is reset
	lineStalls             // requests arrive; replies are held until the mode changes
	lineIsSlow             // every reply comes late
)

// outageLine is the network between a client and its server.
type outageLine struct {
	server string
	listen net.Listener
	delay  time.Duration // of lineIsSlow
	done   sync.WaitGroup

	mu      sync.Mutex
	mode    outageMode
	changed chan struct{} // closed when mode changes
	conns   map[net.Conn]struct{}
}

// newOutageLine opens a line that ends with the test.
func newOutageLine(t *testing.T, server string, delay time.Duration) *outageLine {
	t.Helper()
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &outageLine{
		server: server, listen: listen, delay: delay,
		changed: make(chan struct{}), conns: map[net.Conn]struct{}{},
	}
	l.done.Go(l.accept)
	t.Cleanup(func() {
		_ = listen.Close()
		l.set(lineRefuses)
		l.done.Wait()
	})
	return l
}

// dial is the dialer of the client.
func (l *outageLine) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	addr := l.listen.Addr().String()
	if mode, _ := l.now(); mode == lineRefuses {
		addr = outageNowhere
	}
	return (&net.Dialer{}).DialContext(ctx, network, addr)
}

func (l *outageLine) set(mode outageMode) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mode = mode
	close(l.changed)
	l.changed = make(chan struct{})
	if mode == lineRefuses {
		for c := range l.conns {
			_ = c.Close()
		}
	}
}

func (l *outageLine) now() (outageMode, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mode, l.changed
}

func (l *outageLine) accept() {
	for {
		client, err := l.listen.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", l.server)
		if err != nil || !l.add(client, server) {
			_ = client.Close()
			if err == nil {
				_ = server.Close()
			}
			continue
		}
		gone := make(chan struct{})
		l.done.Go(func() {
			defer close(gone)
			l.pump(server, client, func() bool { return true })
		})
		l.done.Go(func() { l.pump(client, server, func() bool { return l.reply(client, gone) }) })
	}
}

func (l *outageLine) add(conns ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mode == lineRefuses {
		return false
	}
	for _, c := range conns {
		l.conns[c] = struct{}{}
	}
	return true
}

// pump copies from one end to the other until pass says no.
func (l *outageLine) pump(to, from net.Conn, pass func() bool) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if n > 0 {
			if !pass() {
				break
			}
			if _, err := to.Write(b[:n]); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	_, _ = to.Close(), from.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, to)
	delete(l.conns, from)
}

// reply decides what becomes of one reply.
func (l *outageLine) reply(client net.Conn, gone <-chan struct{}) (pass bool) {
	mode, changed := l.now()
	switch mode {
	case lineRefuses:
		return false
	case lineResets:
		// Without lingering the end is a reset, not an orderly one.
		_ = client.(*net.TCPConn).SetLinger(0)
		return false
	case lineStalls:
		select {
		case <-changed:
		case <-gone:
			return false
		}
	case lineIsSlow:
		late := time.NewTimer(l.delay)
		defer late.Stop()
		select {
		case <-late.C:
		case <-gone:
			return false
		}
	}
	return true
}
