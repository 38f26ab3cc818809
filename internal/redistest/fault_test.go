//go:build unix

package redistest

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestServer_Faults(t *testing.T) {
	t.Parallel()
	s := Start(t, "--appendonly", "yes", "--appendfsync", "always")
	s.Must(t, "SET", "k", "v")
	t.Run("kill and revive", func(t *testing.T) {
		s.Kill()
		_, err := s.Do("PING")
		require.Error(t, err)
		s.Revive(t)
		require.Equal(t, "v", s.Must(t, "GET", "k"), "from the append-only file")
	})
	t.Run("full", func(t *testing.T) {
		s.Fill(t)
		_, err := s.Do("SET", "other", "v")
		require.ErrorContains(t, err, "OOM")
		s.Drain(t)
		s.Must(t, "SET", "other", "v")
	})
	t.Run("scripts", func(t *testing.T) {
		sha := s.Must(t, "SCRIPT", "LOAD", "return 'x'")
		require.Equal(t, "x", s.Must(t, "EVALSHA", sha, "0"))
		s.FlushScripts(t)
		_, err := s.Do("EVALSHA", sha, "0")
		require.ErrorContains(t, err, "NOSCRIPT")
	})
	t.Run("permissions", func(t *testing.T) {
		s.Revoke(t, "-get", "resetkeys", "~other")
		_, err := s.Do("GET", "other")
		require.ErrorContains(t, err, "NOPERM")
		_, err = s.Do("EXISTS", "k")
		require.ErrorContains(t, err, "NOPERM")
		s.Grant(t)
		require.Equal(t, "v", s.Must(t, "GET", "k"))
	})
	t.Run("pause", func(t *testing.T) {
		s.Pause(t)
		c, err := net.Dial("tcp", s.Addr) // the kernel accepts
		require.NoError(t, err)
		defer func() { _ = c.Close() }()
		_, err = c.Write(Command("PING"))
		require.NoError(t, err)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
		in := bufio.NewReader(c)
		_, err = in.ReadString('\n')
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
		s.Resume(t)
		line, err := in.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "+PONG\r\n", line)
		s.Pause(t) // a paused server can be stopped
	})
}

// A server ends with the process that started it, whatever ended that.
func TestServer_NoOrphans(t *testing.T) {
	Require(t)
	const env = "REDISTEST_ORPHAN"
	if os.Getenv(env) == "1" {
		s, err := start("", "0", nil)
		if err != nil {
			panic(err)
		}
		panic("addr=" + s.Addr + " ")
	}
	if runtime.GOOS != "linux" {
		t.Skip("redistest: only Linux ends children with their parent")
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^TestServer_NoOrphans$")
	cmd.Env = append(os.Environ(), env+"=1", "TMPDIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	require.Error(t, err, "it panicked")
	_, addr, ok := strings.Cut(string(out), "addr=")
	require.True(t, ok, string(out))
	addr, _, _ = strings.Cut(addr, " ")
	Eventually(t, "the server is gone", func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
}

func TestStartSentinel(t *testing.T) {
	t.Parallel()
	primary := Start(t)
	s := StartSentinel(t, "main", primary.Addr, 1, "sentinel down-after-milliseconds main 500")
	require.Contains(t, s.Must(t, "INFO", "sentinel"), "master0:name=main,status=ok,address="+primary.Addr)
	s.Revive(t)
	require.Contains(t, s.Must(t, "INFO", "sentinel"), "master0:name=main,")
}

func TestRelay_HoldDelayHalfClose(t *testing.T) {
	t.Parallel()
	s := Start(t)
	r := NewRelay(t, s.Addr)
	dial := func(t *testing.T) (net.Conn, *bufio.Reader) {
		c, err := net.Dial("tcp", r.Addr)
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
		return c, bufio.NewReader(c)
	}
	send := func(t *testing.T, c net.Conn, args ...string) {
		_, err := c.Write(Command(args...))
		require.NoError(t, err)
	}
	set := func(b []byte) bool { return strings.Contains(string(b), "SET") }
	setDone := func(request, reply []byte) bool { return set(request) && string(reply) == "+OK\r\n" }
	exists := func(t *testing.T, key, want string) { require.Equal(t, want, s.Must(t, "EXISTS", key)) }
	answers := func(t *testing.T, in *bufio.Reader, want string) {
		line, err := in.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, want, line)
	}

	t.Run("a held request arrives after Resume", func(t *testing.T) {
		caught := r.HoldRequest(set)
		c, in := dial(t)
		send(t, c, "PING")
		answers(t, in, "+PONG\r\n")
		send(t, c, "SET", "a", "v")
		<-caught
		exists(t, "a", "0")
		r.Resume()
		answers(t, in, "+OK\r\n")
		exists(t, "a", "1")
	})
	t.Run("a held request is lost with its connection", func(t *testing.T) {
		caught := r.HoldRequest(set)
		c, in := dial(t)
		send(t, c, "SET", "b", "v")
		<-caught
		r.Cut()
		_, err := in.ReadString('\n')
		require.Error(t, err)
		r.Mend()
		r.Resume()
		exists(t, "b", "0")
	})
	t.Run("a held reply is of a request that was carried out", func(t *testing.T) {
		caught := r.HoldReply(setDone)
		c, in := dial(t)
		send(t, c, "SET")
		line, err := in.ReadString('\n')
		require.NoError(t, err)
		require.Contains(t, line, "-ERR", "another reply passes")
		send(t, c, "SET", "c", "v")
		<-caught
		exists(t, "c", "1")
		other, otherIn := dial(t)
		send(t, other, "SET", "c", "w")
		answers(t, otherIn, "+OK\r\n") // one is held, not all
		r.Resume()
		answers(t, in, "+OK\r\n")
	})
	t.Run("delay", func(t *testing.T) {
		const late = 50 * time.Millisecond
		r.Delay(late)
		c, in := dial(t)
		start := time.Now()
		send(t, c, "PING")
		answers(t, in, "+PONG\r\n")
		require.GreaterOrEqual(t, time.Since(start), late)
		r.Delay(0)
	})
	t.Run("half-close", func(t *testing.T) {
		c, in := dial(t)
		send(t, c, "PING")
		answers(t, in, "+PONG\r\n")
		r.HalfClose()
		_, err := in.ReadString('\n')
		require.Error(t, err)
		send(t, c, "SET", "d", "v")
		Eventually(t, "it is carried out", func() bool { return s.Must(t, "EXISTS", "d") == "1" })
	})
}
