package redistest

import (
	"bufio"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestServer(t *testing.T) {
	Require(t)
	t.Parallel()
	var s *Server
	t.Run("runs", func(t *testing.T) {
		s = Start(t, "--maxmemory", "7mb")
		got, err := s.Do("CONFIG", "GET", "maxmemory")
		require.NoError(t, err)
		require.Equal(t, "2", got) // the length of the list
		_, err = s.Do("SET", "k", "v")
		require.NoError(t, err)
		got, err = s.Do("GET", "k")
		require.NoError(t, err)
		require.Equal(t, "v", got)
		_, err = s.Do("NONSENSE")
		require.ErrorContains(t, err, "unknown command")
		addr := s.Addr
		s.Restart(t)
		require.Equal(t, addr, s.Addr)
		got, err = s.Do("EXISTS", "k")
		require.NoError(t, err)
		require.Equal(t, "0", got, "empty")
	})
	_, err := net.Dial("tcp", s.Addr)
	require.Error(t, err, "stopped with its test")
	_, err = os.Stat(s.dir)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = start("", "0", []string{"--no-such-setting", "1"})
	require.ErrorContains(t, err, "redistest: redis-server ended")
}

// A server whose port somebody else has taken does not start, also where a
// server answers there.
func TestPortTaken(t *testing.T) {
	t.Parallel()
	_, port, err := net.SplitHostPort(Start(t).Addr)
	require.NoError(t, err)
	_, err = startOnce("", port, nil)
	require.ErrorContains(t, err, "redistest: redis-server ended")
}

// A fatal failure or a skip ends the goroutine of its test.
type verdict struct {
	testing.TB
	fatal, skip string
}

func (v *verdict) Helper()                   {}
func (v *verdict) Fatalf(f string, _ ...any) { v.fatal = f }
func (v *verdict) Skipf(f string, _ ...any)  { v.skip = f }

func TestC050_Require(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv(RequireServers, "")
	v := &verdict{TB: t}
	Require(v)
	require.Empty(t, v.fatal)
	require.NotEmpty(t, v.skip)

	t.Setenv(RequireServers, "1")
	v = &verdict{TB: t}
	Require(v)
	require.NotEmpty(t, v.fatal)
}

func TestRelay(t *testing.T) {
	t.Parallel()
	s := Start(t)
	r := NewRelay(t, s.Addr)
	dial := func() (net.Conn, *bufio.Reader) {
		c, err := net.Dial("tcp", r.Addr)
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c, bufio.NewReader(c)
	}
	send := func(c net.Conn, args ...string) {
		_, err := c.Write(Command(args...))
		require.NoError(t, err)
	}
	c, in := dial()
	send(c, "PING")
	line, err := in.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "+PONG\r\n", line)

	r.Stall()
	send(c, "SET", "k", "v")
	Eventually(t, "the request has passed", func() bool { got, _ := s.Do("EXISTS", "k"); return got == "1" })
	require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
	_, err = in.ReadString('\n')
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, c.SetReadDeadline(time.Time{}))
	r.Resume()
	line, err = in.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "+OK\r\n", line)

	r.SwallowReply(func(b []byte) bool { return strings.Contains(string(b), "DEL") })
	send(c, "DEL", "k")
	_, err = in.ReadString('\n')
	require.Error(t, err)
	require.True(t, r.Swallowed())
	got, err := s.Do("EXISTS", "k")
	require.NoError(t, err)
	require.Equal(t, "0", got, "carried out")

	c, in = dial()
	send(c, "PING")
	_, err = in.ReadString('\n')
	require.NoError(t, err)
	r.Cut()
	_, err = in.ReadString('\n')
	require.Error(t, err)
	c, in = dial()
	_ = c
	_, err = in.ReadString('\n')
	require.Error(t, err, "down")
	r.Mend()
	c, in = dial()
	send(c, "PING")
	_, err = in.ReadString('\n')
	require.NoError(t, err)

	r.Reset()
	send(c, "SET", "k", "v")
	_, err = in.ReadString('\n')
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.Equal(t, "v", s.Must(t, "GET", "k"), "carried out")
	c, in = dial()
	send(c, "PING")
	_, err = in.ReadString('\n')
	require.ErrorIs(t, err, syscall.ECONNRESET, "also of new connections")
	r.Mend()
	c, in = dial()
	send(c, "PING")
	_, err = in.ReadString('\n')
	require.NoError(t, err)
}

func TestFake(t *testing.T) {
	t.Parallel()
	f := NewFake(t, func(words []string) string { return "+" + strings.Join(words, ",") })
	c, err := net.Dial("tcp", f.Addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	_, err = c.Write(append(Command("a", "", "b\r\n"[:1]), Command("HELLO", "3")...))
	require.NoError(t, err)
	in := bufio.NewReader(c)
	line, err := in.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "+a,,b\r\n", line)
	line, err = in.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "-ERR unknown command 'HELLO'\r\n", line)
}
