package redisstore_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/redisstore"
)

// longKey is a key that an entry does not carry as it is.
const longKey = "a key longer than what an entry carries as it is"

// golden reads testdata/record1.txt: the fields of each record by its name.
func golden(t *testing.T) map[string]map[string]string {
	t.Helper()
	b, err := os.ReadFile("testdata/record1.txt")
	require.NoError(t, err)
	records := map[string]map[string]string{}
	var fields map[string]string
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		var word, value string
		_, err := fmt.Sscanf(line, "%s %q", &word, &value)
		require.NoError(t, err, line)
		if word == "record" {
			fields = map[string]string{}
			records[value] = fields
			continue
		}
		fields[word] = value
	}
	return records
}

// What an earlier release wrote is read as it was meant.
func TestRecordIsRead(t *testing.T) {
	t.Parallel()
	at := func(micros int64) time.Time { return time.UnixMicro(micros).UTC() }
	first, forever := at(1796073242973170), at(8999999999000000)
	set := at(1796073242974735)
	want := map[string]idempotent.Entry{
		"pending": {
			Status: idempotent.Pending, Timestamp: first, Claimed: first, Expires: forever,
			Fingerprint: "j1:abc", Owner: "owner-a", Trace: "trace-1", Fence: 1796073242973170,
		},
		"take-over allowed": {
			Status: idempotent.Pending, Timestamp: first, Claimed: first, Expires: forever,
			Owner: "owner-a", Fence: 1796073242973170,
		},
		"taken over": {
			Status: idempotent.Pending, Timestamp: at(1796073243000000), Claimed: first, Expires: forever,
			Fingerprint: "j1:abc", Owner: "owner-b", Trace: "trace-2", Fence: 1796073243000000,
		},
		"success": {
			Status: idempotent.Success, Result: "\x01body\x00\xff\n", Timestamp: set, Claimed: first, Expires: set.Add(24 * time.Hour),
			Fingerprint: "j1:abc", Owner: "owner-a", Trace: "trace-1", Fence: 1796073242973170,
		},
		"failed": {
			Status: idempotent.Failed, Timestamp: set, Claimed: first, Expires: set.Add(2 * time.Hour),
			Fingerprint: "j1:abc", Owner: "owner-a", Trace: "trace-1", Fence: 1796073242973170,
		},
		"unknown": {
			Status: idempotent.Failed, Unknown: true, Result: "500", Timestamp: set, Claimed: first, Expires: set.Add(24 * time.Hour),
			Fingerprint: "j1:abc", Owner: "owner-a", Trace: "trace-1", Fence: 1796073242973170,
		},
		"claim lost": {
			Status: idempotent.Success, Result: "r", Timestamp: set, Claimed: set, Expires: set.Add(24 * time.Hour),
			Fingerprint: "j1:abc", Owner: "owner-a", Fence: 1796073242974735,
		},
	}
	want[longKey] = idempotent.Entry{
		Status: idempotent.Success, Result: "r", Timestamp: set, Claimed: first, Expires: set.Add(24 * time.Hour),
		Fingerprint: "j1:abc", Owner: "owner-a", Trace: "trace-1", Fence: 1796073242973170,
	}
	s, client, prefix := onServer(t)
	records := golden(t)
	require.Len(t, records, len(want))
	for key, fields := range records {
		require.NoError(t, client.HSet(t.Context(), prefix+key, fields).Err())
		got, found, err := s.Load(t.Context(), key)
		require.NoError(t, err, key)
		require.True(t, found, key)
		e := want[key]
		e.Key = key
		require.Equal(t, e, got, key)
	}
	// The release that reads it also goes on with it.
	require.NoError(t, s.Complete(t.Context(), "pending", "owner-a", success("r")))
	require.NoError(t, s.Release(t.Context(), "taken over", "owner-b"))
	e, _, err := s.Load(t.Context(), "taken over")
	require.NoError(t, err)
	require.Equal(t, e.Timestamp.Add(24*time.Hour), e.Expires, "keep")
	require.NoError(t, s.Release(t.Context(), "unknown", "owner-a"))
	require.ErrorIs(t, s.Complete(t.Context(), "success", "owner-a", success("another")), idempotent.ErrLost)
}

// What this release writes is what the file says, but for the clock.
func TestRecordIsWritten(t *testing.T) {
	t.Parallel()
	s, client, prefix := onServer(t)
	ctx := t.Context()
	make := func(key, trace string, c idempotent.Claim) {
		c.Owner, c.Lease = "owner-a", time.Minute
		c.Trace = trace
		if c.Keep == 0 {
			c.Keep = 24 * time.Hour
		}
		_, ok, err := s.Claim(ctx, key, c)
		require.NoError(t, err)
		require.True(t, ok)
	}
	of := idempotent.Claim{Fingerprint: "j1:abc"}
	done := func(key string, o idempotent.Outcome) {
		o.Fingerprint = "j1:abc"
		require.NoError(t, s.Complete(ctx, key, "owner-a", o))
	}
	make("pending", "trace-1", of)
	make("take-over allowed", "", idempotent.Claim{TakeOver: true})
	lapsing := idempotent.Claim{Owner: "owner-a", Fingerprint: "j1:abc", Lease: time.Millisecond, Keep: time.Hour, TakeOver: true}
	_, _, err := s.Claim(ctx, "taken over", lapsing)
	require.NoError(t, err)
	lapsing.Owner, lapsing.Trace, lapsing.Lease, lapsing.Keep = "owner-b", "trace-2", time.Minute, 24*time.Hour
	redistest.Eventually(t, "taken over", func() bool {
		_, ok, err := s.Claim(ctx, "taken over", lapsing)
		return err == nil && ok
	})
	make("success", "trace-1", of)
	done("success", idempotent.Outcome{Status: idempotent.Success, Result: "\x01body\x00\xff\n", Retention: 24 * time.Hour})
	make("failed", "trace-1", of)
	done("failed", idempotent.Outcome{Status: idempotent.Failed, Retention: 2 * time.Hour})
	make("unknown", "trace-1", of)
	done("unknown", idempotent.Outcome{Status: idempotent.Failed, Unknown: true, Result: "500", Retention: 24 * time.Hour})
	make(longKey, "trace-1", of)
	done(longKey, idempotent.Outcome{Status: idempotent.Success, Result: "r", Retention: 24 * time.Hour})
	done("claim lost", idempotent.Outcome{Status: idempotent.Success, Result: "r", Retention: 24 * time.Hour})

	clock := regexp.MustCompile(`\b\d{16}\b`)
	later := regexp.MustCompile(`T [1-9]\d* 1$`)
	timeless := func(fields map[string]string) map[string]string {
		for name, value := range fields {
			fields[name] = later.ReplaceAllString(clock.ReplaceAllString(value, "T"), "T L 1")
		}
		return fields
	}
	for key, want := range golden(t) {
		require.Equal(t, timeless(want), timeless(client.HGetAll(ctx, prefix+key).Val()), key)
	}
}

// P17: what a record with an answer of 512 bytes costs at the server.
func TestRecordMemory(t *testing.T) {
	t.Parallel()
	client := newClient(t, redistest.Shared(t).Addr)
	s := newStore(t, client)
	ctx := t.Context()
	_, _, err := s.Claim(ctx, benchKey, benchClaim)
	require.NoError(t, err)
	require.NoError(t, s.Complete(ctx, benchKey, benchClaim.Owner, benchOutcome))
	used, given := client.MemoryUsage(ctx, redisstore.DefaultPrefix+benchKey).Val(), len(benchKey)+len(benchResult)
	t.Logf("%d bytes for %d: %.2f times", used, given, float64(used)/float64(given))
	require.LessOrEqual(t, float64(used), 1.9*float64(given))
}
