package telemetry

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

func TestKindsAreAllOfThem(t *testing.T) {
	source, err := os.ReadFile("../../observer.go")
	require.NoError(t, err)
	var declared []idempotent.EventKind
	for _, m := range regexp.MustCompile(`EventKind += "([a-z-]+)"`).FindAllStringSubmatch(string(source), -1) {
		declared = append(declared, idempotent.EventKind(m[1]))
	}
	require.ElementsMatch(t, declared, Kinds)
}

func TestOutcome(t *testing.T) {
	for want, e := range map[idempotent.Class]idempotent.Event{
		idempotent.ClassSuccess: {Status: idempotent.Success},
		idempotent.ClassFailure: {Status: idempotent.Failed},
		idempotent.ClassUnknown: {Status: idempotent.Failed, Unknown: true},
		idempotent.ClassRelease: {},
	} {
		require.Equal(t, want, Outcome(e))
		require.Contains(t, Outcomes, want)
	}
}

func TestStep(t *testing.T) {
	for op, want := range map[string]string{
		"load": "load", "claim": "claim", "renew": "renew", "complete": "complete", "release": "release", "wait": "wait",
		"replay": "replay", "dial": "other", "": "other",
	} {
		require.Equal(t, want, Step(fmt.Errorf("as seen: %w", &idempotent.StoreError{Op: op, Err: io.EOF})))
		require.Contains(t, Steps, want)
	}
	require.Equal(t, "other", Step(io.EOF))
	require.Equal(t, "other", Step(nil))
}

// timeout is a net.Error as clients make them.
type timeout struct{ error }

func (timeout) Timeout() bool   { return true }
func (timeout) Temporary() bool { return true }

func TestError(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{idempotent.ErrFull, "full"},
		{idempotent.ErrCorrupt, "corrupt"},
		{idempotent.ErrNewerFormat, "newer-format"},
		{idempotent.ErrClosed, "closed"},
		{context.DeadlineExceeded, "timeout"},
		{os.ErrDeadlineExceeded, "timeout"},
		{timeout{errors.New("i/o timeout")}, "timeout"},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, "unreachable"},
		{&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, "timeout"},
		{&net.DNSError{Name: "redis"}, "unreachable"},
		{syscall.ECONNRESET, "unreachable"},
		{net.ErrClosed, "unreachable"},
		{io.EOF, "unreachable"},
		{driver.ErrBadConn, "unreachable"},
		{errors.New("LOADING Redis is loading the dataset in memory"), "other"},
		{nil, "other"},
	} {
		wrapped := tt.err
		if wrapped != nil {
			wrapped = &idempotent.StoreError{Op: "claim", Err: fmt.Errorf("redisstore: %w", tt.err)}
		}
		require.Equal(t, tt.want, Error(wrapped), "%v", tt.err)
		require.Contains(t, Errors, tt.want)
	}
}
