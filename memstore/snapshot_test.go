package memstore

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

// reopen returns a store on the snapshot at path.
func reopen(t testing.TB, path string, opts ...Option) *Store {
	t.Helper()
	s, err := Open(append([]Option{WithLogger(quiet), WithSweepInterval(0), WithSnapshot(path)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func snapshotPath(t testing.TB) string { return filepath.Join(t.TempDir(), "keys") }

// What was finished reads the same after a restart, and keeps what is left of
// its time.
func TestSnapshot_Finished(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := snapshotPath(t)
		s := reopen(t, path)
		outcomes := map[string]idempotent.Outcome{
			"success": success("result"), "empty": success(""), "unknown": unknown("perhaps"), "large": success(string(make([]byte, 1<<20))),
			"failed": {Status: idempotent.Failed, Result: "no", Retention: time.Hour},
		}
		for key, o := range outcomes {
			mustClaim(t, s, key, claimBy("owner"))
			time.Sleep(1234567 * time.Nanosecond)
			mustComplete(t, s, key, "owner", o)
		}
		mustComplete(t, s, "late", "owner", success("the claim was gone"))
		short := success("short")
		short.Retention = time.Minute
		finish(t, s, "short", short)
		before := map[string]idempotent.Entry{}
		for _, key := range []string{"success", "empty", "unknown", "large", "failed", "late"} {
			before[key], _ = load(t, s, key)
		}
		requireOwnerOnly(t, path+".lock")
		stats := s.Stats()
		require.NoError(t, s.Close())
		requireOwnerOnly(t, path)

		for range 3 { // a restart leaves no trace, however often
			time.Sleep(20*time.Second + 1)
			s = reopen(t, path)
			for key, want := range before {
				got, ok := load(t, s, key)
				require.True(t, ok, key)
				require.Equal(t, want, got)
			}
			requireConsistent(t, s)
			require.NoError(t, s.Close())
		}
		s = reopen(t, path)
		requireAbsent(t, s, "short")
		require.Equal(t, stats.Entries-1, s.Stats().Entries)

		// The order of completion is what eviction goes by.
		mustComplete(t, s, "unknown", "owner", success("settled"))
		require.NoError(t, s.Close())
		time.Sleep(time.Hour)
		s = reopen(t, path, WithMaxEntries(2))
		requireAbsent(t, s, "failed")
		_, err := s.Sweep(t.Context())
		require.NoError(t, err)
		requireStatus(t, s, idempotent.Success, "unknown")
		requireConsistent(t, s)
		time.Sleep(24 * time.Hour)
		requireAbsent(t, s, "success", "empty", "unknown", "large", "late")
	})
}

func requireOwnerOnly(t testing.TB, path string) {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
}

// A claim that runs when the store is closed is abandoned from then on, and
// everything else that can become of one.
func TestSnapshot_Claims(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := snapshotPath(t)
		s := reopen(t, path)
		open := claimBy("owner")
		open.TakeOver = true
		mustClaim(t, s, "lapsed", claimBy("owner"))
		_, err := s.Sweep(t.Context())
		require.NoError(t, err)
		time.Sleep(2 * time.Minute)
		_, err = s.Sweep(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, s.Stats().Abandoned)
		lapsed, _ := load(t, s, "lapsed")
		first := mustClaim(t, s, "running", claimBy("owner"))
		mustClaim(t, s, "open", open)
		time.Sleep(time.Second)
		closed := time.Now()
		require.NoError(t, s.Close())

		time.Sleep(10 * time.Minute)
		s = reopen(t, path)
		got, _ := load(t, s, "lapsed")
		require.Equal(t, lapsed, got)
		got, ok := load(t, s, "running")
		require.True(t, ok)
		want := first
		want.Status, want.Unknown = idempotent.Failed, true
		want.Timestamp, want.Expires = time.Unix(0, closed.UnixNano()), time.Unix(0, closed.Add(time.Hour).UnixNano())
		require.Equal(t, want, got)
		n, err := s.Sweep(t.Context())
		require.NoError(t, err)
		require.Equal(t, idempotent.Swept{Abandoned: 2}, n, "the one reported before is not reported again")

		_, claimed, err := s.Claim(t.Context(), "running", claimBy("another"))
		require.NoError(t, err)
		require.False(t, claimed)
		mustComplete(t, s, "running", "owner", success("it had happened"))
		requireStatus(t, s, idempotent.Success, "running")
		open.Owner = "another"
		taken := mustClaim(t, s, "open", open)
		require.Greater(t, taken.Fence, first.Fence)
		require.NoError(t, s.Release(t.Context(), "open", "another"))
		require.NoError(t, s.Close())
		s = reopen(t, path)
		requireStatus(t, s, idempotent.Failed, "open") // as before: its first owner may have done it
		require.NoError(t, s.Release(t.Context(), "open", "another"))
		requireStatus(t, s, idempotent.Failed, "open")
		requireConsistent(t, s)
		time.Sleep(time.Hour)
		requireAbsent(t, s, "lapsed", "open")
	})
}

// Nothing gets more time because the wall clock was set back while the store
// was closed, and fences go on growing.
func TestSnapshot_WallClockSetBack(t *testing.T) {
	t.Parallel()
	path := snapshotPath(t)
	s := reopen(t, path)
	finish(t, s, "k", success("r"))
	before, _ := load(t, s, "k")
	require.NoError(t, s.Close())
	entries := s.settled()
	s.clock.unix += 3600 // as if all of it had happened an hour later
	s.fence.Add(7200e6)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	require.NoError(t, err)
	require.NoError(t, s.write(f, entries))
	require.NoError(t, f.Close())

	s = reopen(t, path)
	after, ok := load(t, s, "k")
	require.True(t, ok)
	require.Equal(t, before.Expires.Add(time.Hour), after.Expires)
	mustClaim(t, s, "new", claimBy("owner"))
	e, _ := load(t, s, "new")
	require.Greater(t, e.Fence, before.Fence+7199e6)
	require.False(t, e.Timestamp.Before(after.Timestamp), "the clock went back")
	require.Less(t, e.Timestamp.Sub(after.Timestamp), time.Minute)
}

// WithMaxAge caps what an earlier store has kept for longer.
func TestSnapshot_MaxAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := snapshotPath(t)
		s := reopen(t, path)
		finish(t, s, "k", success("r"))
		require.NoError(t, s.Close())
		s = reopen(t, path, WithMaxAge(time.Minute))
		time.Sleep(time.Minute - time.Second)
		requireStatus(t, s, idempotent.Success, "k")
		time.Sleep(time.Second)
		requireAbsent(t, s, "k")
	})
}

// A file that cannot be read whole is refused whole, never written over, and
// never taken for a first start.
func TestSnapshot_Refusals(t *testing.T) {
	t.Parallel()
	path := snapshotPath(t)
	s := reopen(t, path)
	for i := range 20 {
		finish(t, s, "k"+strconv.Itoa(i), success("r"))
	}
	require.NoError(t, s.Close())
	good, err := os.ReadFile(path)
	require.NoError(t, err)

	refused := func(data []byte, want error, text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(path, data, 0o600))
		_, err := Open(WithSnapshot(path))
		require.ErrorIs(t, err, want)
		require.ErrorContains(t, err, "memstore: snapshot "+path+": ")
		require.ErrorContains(t, err, text)

		log, out := logged()
		s := New(WithSnapshot(path), WithLogger(log))
		require.Contains(t, out.String(), "level=ERROR")
		for name, err := range everyMethod(t.Context(), s) {
			require.ErrorIs(t, err, want, name)
		}
		require.ErrorIs(t, s.Close(), want)
		require.Zero(t, s.Len())
		left, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, left), "the file was touched")
	}
	newer := slices.Clone(good)
	newer[8] = 2
	refused(newer, idempotent.ErrNewerFormat, "format 2")
	refused(nil, idempotent.ErrCorrupt, "too short")
	refused([]byte("PK\x03\x04 and much more of another kind of file"), idempotent.ErrCorrupt, "no snapshot")
	refused(append(slices.Clone(good), 0), idempotent.ErrCorrupt, "")
	for cut := range good {
		require.Error(t, readAll(good[:cut]))
	}
	for i := range good {
		flipped := slices.Clone(good)
		flipped[i] ^= 1 << (i % 8)
		require.Error(t, readAll(flipped), "bit %d of byte %d", i%8, i)
	}
	refused(sealed(append(slices.Clone(good[:len(good)-sha256.Size]), 0)), idempotent.ErrCorrupt, "after its last entry")
	refused(sealed(twice(t)), idempotent.ErrCorrupt, "a key twice")

	require.NoError(t, os.WriteFile(path, good, 0o600))
	require.Equal(t, 20, reopen(t, path).Len(), "put back, it is read")
}

// readAll reads a snapshot.
func readAll(data []byte) error {
	r, err := newReader(bytes.NewReader(data), int64(len(data)))
	if err == nil {
		_, err = r.entries(forever)
	}
	return err
}

// sealed returns body with its checksum.
func sealed(body []byte) []byte {
	sum := sha256.Sum256(body)
	return append(slices.Clip(body), sum[:]...)
}

// twice returns the body of a snapshot that has a key twice.
func twice(t *testing.T) []byte {
	s := newStore(t)
	finish(t, s, "k", success("r"))
	var out bytes.Buffer
	require.NoError(t, s.write(&out, append(s.settled(), s.settled()...)))
	return out.Bytes()[:out.Len()-sha256.Size]
}

func TestSnapshot_OneStoreAtATime(t *testing.T) {
	t.Parallel()
	path := snapshotPath(t)
	s := reopen(t, path)
	_, err := Open(WithSnapshot(path))
	require.ErrorContains(t, err, "another store uses it")
	require.NoError(t, s.Close())
	reopen(t, path)
}

// A link leads to the file, which may be on another disk, before it exists and
// after: it is not replaced by the next snapshot.
func TestSnapshot_Link(t *testing.T) {
	t.Parallel()
	path, link := snapshotPath(t), snapshotPath(t)
	chain := filepath.Join(filepath.Dir(link), "chain")
	require.NoError(t, os.Symlink(path, link))
	require.NoError(t, os.Symlink("keys", chain))
	for i, name := range []string{"first", "second"} {
		s := reopen(t, chain)
		_, err := Open(WithSnapshot(path))
		require.ErrorContains(t, err, "another store uses it")
		finish(t, s, name, success("r"))
		require.NoError(t, s.Close())
		s = reopen(t, path)
		require.Equal(t, i+1, s.Len())
		require.NoError(t, s.Close())
	}
	require.NoError(t, os.Remove(link))
	require.NoError(t, os.Symlink(chain, link))
	_, err := Open(WithSnapshot(link))
	require.ErrorContains(t, err, "circle")
}

// A program that changes its directory finds the file where it was.
func TestSnapshot_DirectoryChanged(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	s := reopen(t, "keys")
	finish(t, s, "k", success("r"))
	t.Chdir(t.TempDir())
	require.NoError(t, s.Close())
	requireStatus(t, reopen(t, filepath.Join(dir, "keys")), idempotent.Success, "k")
}

// A process that died is told of: nothing else could tell.
func TestSnapshot_Crash(t *testing.T) {
	t.Parallel()
	path := snapshotPath(t)
	log, out := logged()
	s := reopen(t, path, WithLogger(log))
	finish(t, s, "k", success("r"))
	require.NoError(t, s.Close())
	s = reopen(t, path, WithLogger(log))
	finish(t, s, "forgotten", success("r"))
	require.Empty(t, out.String())
	require.NoError(t, s.snapshot.lock.Close()) // as the death of the process does

	s = reopen(t, path, WithLogger(log))
	require.Contains(t, out.String(), "level=WARN")
	require.Contains(t, out.String(), "ended without Close")
	requireStatus(t, s, idempotent.Success, "k")
	requireAbsent(t, s, "forgotten")
	out.Reset()
	require.NoError(t, s.Close())
	reopen(t, path, WithLogger(log))
	require.Empty(t, out.String())
}

// Where the file cannot be written, Close says so, each time, and the one before
// is still there.
func TestSnapshot_CloseFails(t *testing.T) {
	t.Parallel()
	path := snapshotPath(t)
	s := reopen(t, path)
	finish(t, s, "k", success("r"))
	require.NoError(t, s.Close())
	s = reopen(t, path)
	finish(t, s, "lost", success("r"))
	require.NoError(t, os.MkdirAll(filepath.Join(path+".tmp", "in the way"), 0o700))
	err := s.Close()
	require.ErrorContains(t, err, "memstore: snapshot "+path+": ")
	require.Equal(t, err, s.Close())
	require.NoError(t, os.RemoveAll(path+".tmp"))

	log, out := logged()
	s = reopen(t, path, WithLogger(log))
	require.Contains(t, out.String(), "ended without Close")
	requireStatus(t, s, idempotent.Success, "k")
	requireAbsent(t, s, "lost")
	require.NoError(t, s.Close())

	_, err = Open(WithSnapshot(filepath.Join(path, "no directory", "keys")))
	require.Error(t, err)
}

// What a call was told to have happened before or during Close is in the
// snapshot; what is there without that was told to be in doubt.
func TestSnapshot_CloseUnderLoad(t *testing.T) {
	t.Parallel()
	for range 20 {
		path := snapshotPath(t)
		s := reopen(t, path)
		var mu sync.Mutex
		claims, done, freed := map[string]bool{}, map[string]bool{}, map[string]bool{}
		var all sync.WaitGroup
		for g := range 4 {
			all.Go(func() {
				for i := 0; ; i++ {
					key := fmt.Sprint(g, "-", i)
					_, claimed, err := s.Claim(t.Context(), key, claimBy("owner"))
					if err != nil {
						return
					}
					require.True(t, claimed)
					mu.Lock()
					claims[key] = true
					mu.Unlock()
					if i%3 == 0 {
						if s.Release(t.Context(), key, "owner") == nil {
							mu.Lock()
							freed[key] = true
							mu.Unlock()
						}
						continue
					}
					if s.Complete(t.Context(), key, "owner", success("r")) == nil {
						mu.Lock()
						done[key] = true
						mu.Unlock()
					}
				}
			})
		}
		for end := time.Now().Add(time.Minute); s.Len() < 100; runtime.Gosched() {
			require.True(t, time.Now().Before(end), "nobody claims")
		}
		require.NoError(t, s.Close())
		all.Wait()
		s = reopen(t, path)
		for key := range claims {
			e, ok := load(t, s, key)
			switch {
			case freed[key]:
				require.False(t, ok, "%s was freed", key)
			case done[key]:
				require.Equal(t, idempotent.Success, e.Status, "%s was recorded", key)
			case !ok:
				_, n, _ := strings.Cut(key, "-")
				i, err := strconv.Atoi(n)
				require.NoError(t, err)
				require.Zero(t, i%3, "%s was claimed, never released, and is gone", key)
			}
		}
		requireConsistent(t, s)
		require.NoError(t, s.Close())
	}
}

func FuzzSnapshot(f *testing.F) {
	body := func(entries ...string) []byte {
		b := append([]byte(snapshotMagic), snapshotFormat)
		for _, n := range []uint64{2e18, 1e18, 5, uint64(len(entries))} {
			b = binary.AppendUvarint(b, n)
		}
		for _, e := range entries {
			b = append(b, e...)
		}
		return b
	}
	f.Add(body())
	f.Add(body("\x03\x01\x02\x03\x04\x05\x01\x01\x00\x00\x02koab"))
	f.Add(body("\x08\x01\x02\x03\x04\x05\x01\x01\x00\x00\x00ko", "\x05\x01\x02\x03\x04\x05\x01\x01\x00\x00\x02poab"))
	f.Add(body("\x01\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x01\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, body []byte) {
		if err := readAll(body); err != nil {
			require.True(t, errors.Is(err, idempotent.ErrCorrupt) || errors.Is(err, idempotent.ErrNewerFormat), "%v", err)
		} else {
			t.Skip("a lucky checksum")
		}
		path := snapshotPath(t)
		require.NoError(t, os.WriteFile(path, sealed(body), 0o600))
		s, err := Open(WithSnapshot(path), WithLogger(slog.New(slog.DiscardHandler)), WithSweepInterval(0))
		if err != nil {
			require.True(t, errors.Is(err, idempotent.ErrCorrupt) || errors.Is(err, idempotent.ErrNewerFormat), "%v", err)
			return
		}
		_, err = s.Sweep(t.Context())
		require.NoError(t, err)
		requireConsistent(t, s)
		var keys []string
		s.slots.Range(func(k, _ any) bool { keys = append(keys, k.(string)); return true })
		before := map[string]idempotent.Entry{}
		for _, k := range keys {
			before[k], _ = load(t, s, k)
		}
		require.NoError(t, s.Close())
		s, err = Open(WithSnapshot(path), WithLogger(quiet), WithSweepInterval(0))
		require.NoError(t, err, "what is written can be read")
		for k, want := range before {
			got, _ := load(t, s, k)
			require.Equal(t, want, got)
		}
		require.NoError(t, s.Close())
	})
}

// A million entries with results of 200 bytes.
func BenchmarkSnapshot(b *testing.B) {
	const entries = 1_000_000
	path := snapshotPath(b)
	open := func() *Store {
		s, err := Open(WithSnapshot(path), WithMaxEntries(2*entries), WithMaxBytes(1<<40), WithSweepInterval(0), WithLogger(quiet))
		if err != nil {
			b.Fatal(err)
		}
		return s
	}
	s := open()
	o := benchOutcome
	o.Result = strings.Repeat("r", 200)
	for _, key := range benchNames("orders:user-", entries) {
		mustClaim(b, s, key, benchClaim)
		mustComplete(b, s, key, benchClaim.Owner, o)
	}
	var wrote, read time.Duration
	for b.Loop() {
		began := time.Now()
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		wrote += time.Since(began)
		began = time.Now()
		s = open()
		read += time.Since(began)
	}
	info, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(wrote.Seconds()/float64(b.N), "s/write")
	b.ReportMetric(read.Seconds()/float64(b.N), "s/read")
	b.ReportMetric(float64(info.Size())/entries, "bytes/entry")
	_ = s.Close()
}
