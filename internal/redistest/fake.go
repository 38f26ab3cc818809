package redistest

import (
	"bufio"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Fake is a server that answers as a test tells it, for answers that an
// installed server cannot be brought to give. It speaks the old protocol only.
type Fake struct {
	Addr string

	listen net.Listener
	done   sync.WaitGroup
	mu     sync.Mutex
	conns  map[net.Conn]struct{}
}

// NewFake starts a fake that answers each command with what answer returns for
// its words, without the line end, such as "-LOADING ...". It knows nothing of
// the commands by which a client introduces itself, as old servers do not. It
// ends with the test.
func NewFake(t testing.TB, answer func(words []string) string) *Fake {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &Fake{Addr: l.Addr().String(), listen: l, conns: map[net.Conn]struct{}{}}
	f.done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f.mu.Lock()
			f.conns[c] = struct{}{}
			f.mu.Unlock()
			f.done.Go(func() { serve(c, answer) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		f.mu.Lock()
		for c := range f.conns {
			_ = c.Close()
		}
		f.mu.Unlock()
		f.done.Wait()
	})
	return f
}

func serve(c net.Conn, answer func([]string) string) {
	defer func() { _ = c.Close() }()
	r := bufio.NewReader(c)
	for {
		words, err := readCommand(r)
		if err != nil {
			return
		}
		reply := "-ERR unknown command '" + words[0] + "'"
		if name := strings.ToUpper(words[0]); name != "HELLO" && name != "CLIENT" {
			reply = answer(words)
		}
		if _, err := io.WriteString(c, reply+"\r\n"); err != nil {
			return
		}
	}
}

func readCommand(r *bufio.Reader) ([]string, error) {
	n, err := readLength(r)
	if err != nil {
		return nil, err
	}
	words := make([]string, n)
	for i := range words {
		size, err := readLength(r)
		if err != nil {
			return nil, err
		}
		b := make([]byte, size+2)
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, err
		}
		words[i] = string(b[:size])
	}
	return words, nil
}

// readLength reads a line such as "*3" or "$5".
func readLength(r *bufio.Reader) (int, error) {
	line, err := r.ReadString('\n')
	if err != nil || len(line) < 3 {
		return 0, io.ErrUnexpectedEOF
	}
	return strconv.Atoi(strings.TrimRight(line[1:], "\r\n"))
}
