package main

import (
	"bufio"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/idempotent-go/idempotent/internal/redistest"
)

// introductions are what a client sends once a connection.
var introductions = []string{"hello", "client", "auth", "select"}

// commands returns how many commands clients sent to the server while do ran,
// as the server itself reports them. What scripts call is not counted, nor how
// a new connection introduces itself.
func commands(b *bench, do func() error) (int, error) {
	conn, err := net.DialTimeout("tcp", b.server.Addr, 10*time.Second)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write(redistest.Command("MONITOR")); err != nil {
		return 0, err
	}
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, 1<<20)
	if !lines.Scan() || lines.Text() != "+OK" {
		return 0, fmt.Errorf("MONITOR: %q, %w", lines.Text(), lines.Err())
	}
	b.made++
	end := fmt.Sprintf("end-of-measurement-%d", b.made)
	counted := make(chan int, 1)
	go func() {
		n := 0
		for lines.Scan() {
			name, fromScript := monitored(lines.Text())
			if name == "echo" && strings.Contains(lines.Text(), end) {
				counted <- n
				return
			}
			if !fromScript && name != "" && !slices.Contains(introductions, name) {
				n++
			}
		}
		close(counted)
	}()
	if err := do(); err != nil {
		return 0, err
	}
	if _, err := b.server.Do("ECHO", end); err != nil {
		return 0, err
	}
	n, ok := <-counted
	if !ok {
		return 0, fmt.Errorf("MONITOR ended: %w", lines.Err())
	}
	return n, nil
}

// monitored reads a line such as
//
//	+1339518083.107412 [0 127.0.0.1:60866] "get" "x"
//
// in which "lua" stands in the place of the address where a script called the
// command.
func monitored(line string) (command string, fromScript bool) {
	_, rest, ok := strings.Cut(line, " [")
	if !ok {
		return "", false
	}
	source, rest, ok := strings.Cut(rest, "] \"")
	if !ok {
		return "", false
	}
	command, _, _ = strings.Cut(rest, "\"")
	return strings.ToLower(command), strings.HasSuffix(source, " lua")
}
