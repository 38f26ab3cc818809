package memstore

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idempotent-go/idempotent"
)

const benchKeys = 10_000

var (
	benchClaim   = idempotent.Claim{Owner: "0123456789abcdef01234567", Fingerprint: "j1:0123456789abcdef0123456789abcdef", Lease: time.Minute, Keep: time.Hour}
	benchOutcome = idempotent.Outcome{Status: idempotent.Success, Result: "result", Retention: 24 * time.Hour}
)

func benchNames(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = prefix + strconv.Itoa(i)
	}
	return names
}

func benchFill(b *testing.B, s *Store, names []string) {
	b.Helper()
	for _, name := range names {
		if _, _, err := s.Claim(b.Context(), name, benchClaim); err != nil {
			b.Fatal(err)
		}
		if err := s.Complete(b.Context(), name, benchClaim.Owner, benchOutcome); err != nil {
			b.Fatal(err)
		}
	}
}

// P1: a replay, next to the map alone. In both, as in life, the key asked for is
// not the very string that was stored.
func BenchmarkReplay(b *testing.B) {
	names := benchNames("key:", benchKeys)
	b.Run("bare", func(b *testing.B) {
		var m sync.Map
		for _, name := range names {
			m.Store(strings.Clone(name), new(slot))
		}
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for i := 0; pb.Next(); i++ {
				if v, ok := m.Load(names[i%benchKeys]); !ok || v == nil {
					b.Error("not found")
				}
			}
		})
	})
	for _, background := range []time.Duration{0, time.Minute} {
		b.Run("background="+background.String(), func(b *testing.B) {
			s := New(WithSweepInterval(background))
			defer s.Close()
			benchFill(b, s, names)
			ctx := context.Background()
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					if _, ok, err := s.Load(ctx, names[i%benchKeys]); !ok || err != nil {
						b.Error("not found", err)
					}
				}
			})
		})
	}
}

// P2: a fresh claim and its completion, next to storing the same value.
func BenchmarkFresh(b *testing.B) {
	fresh := func(b *testing.B, run func(name string)) {
		var next atomic.Int64
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			buf := make([]byte, 0, 64)
			for pb.Next() {
				buf = strconv.AppendInt(append(buf[:0], "key:"...), next.Add(1), 10)
				run(string(buf))
			}
		})
	}
	b.Run("bare", func(b *testing.B) {
		var m sync.Map
		fresh(b, func(name string) {
			m.LoadOrStore(name, newSlot(name, benchClaim.Owner, benchClaim.Fingerprint, "", 0))
		})
	})
	b.Run("unbounded", func(b *testing.B) {
		s := New(WithMaxEntries(1<<31), WithMaxBytes(1<<40))
		defer s.Close()
		fresh(b, benchCycle(s))
	})
}

// P5: a busy server that holds 10,000 entries, next to one that scans all and
// sorts when it is a tenth above its bound. Each reports how far above it got.
func BenchmarkBounded(b *testing.B) {
	busy := func(b *testing.B, cycle func(name string), entries func() int) {
		var next, most atomic.Int64
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			buf := make([]byte, 0, 64)
			for pb.Next() {
				buf = strconv.AppendInt(append(buf[:0], "key:"...), next.Add(1), 10)
				cycle(string(buf))
				if n := int64(entries()); n > most.Load() {
					most.Store(n) // by and large
				}
			}
		})
		b.ReportMetric(float64(most.Load())/benchKeys, "bounds")
	}
	b.Run("scan and sort", func(b *testing.B) {
		s := &scanning{bound: benchKeys, clock: newClock(false)}
		busy(b, s.cycle, func() int { return int(s.entries.Load()) })
	})
	b.Run("store", func(b *testing.B) {
		s := New(WithLogger(quiet))
		defer s.Close()
		busy(b, benchCycle(s), s.Len)
	})
}

func benchCycle(s *Store) func(name string) {
	ctx := context.Background()
	return func(name string) {
		_, _, _ = s.Claim(ctx, name, benchClaim)
		_ = s.Complete(ctx, name, benchClaim.Owner, benchOutcome)
	}
}

// scanning is the usual bounded store, as far as P4 and P5 need it: a map, and
// a tenth of it gone after a look at everything.
type scanning struct {
	slots    sync.Map
	clock    *clock
	bound    int
	entries  atomic.Int64
	evicting sync.Mutex
}

// cycle claims name and completes it, with as few steps as that can have.
func (s *scanning) cycle(name string) {
	sl := newSlot(name, benchClaim.Owner, benchClaim.Fingerprint, "", s.clock.now())
	sl.store(newWord(pending, s.clock.after(sl.claimed, benchClaim.Lease)))
	if _, taken := s.slots.LoadOrStore(sl.key(), sl); taken {
		return
	}
	s.entries.Add(1)
	v, _ := s.slots.Load(name)
	sl = v.(*slot)
	now := s.clock.now()
	sl.completed, sl.success, sl.result = now, true, benchOutcome.Result
	sl.store(newWord(done, s.clock.after(now, benchOutcome.Retention)))
	if !s.over() {
		return
	}
	s.evicting.Lock() // where others went on meanwhile, they would outrun the one who evicts
	defer s.evicting.Unlock()
	if s.over() {
		s.evict(int(s.entries.Load()) - s.bound)
	}
}

func (s *scanning) over() bool { return int(s.entries.Load()) > s.bound+s.bound/10 }

// evict removes the n entries that were completed first.
func (s *scanning) evict(n int) (evicted int) {
	var all []*slot
	s.slots.Range(func(_, v any) bool {
		if sl := v.(*slot); sl.load().phase() == done {
			all = append(all, sl)
		}
		return true
	})
	slices.SortFunc(all, func(x, y *slot) int { return cmp.Compare(x.completed, y.completed) })
	for _, sl := range all[:min(n, len(all))] {
		if s.slots.CompareAndDelete(sl.key(), sl) {
			s.entries.Add(-1)
			evicted++
		}
	}
	return evicted
}

// P3: 64 goroutines want one key.
func BenchmarkConflict(b *testing.B) {
	b.Run("bare", func(b *testing.B) {
		var m sync.Map
		b.SetParallelism(64 / runtime.GOMAXPROCS(0))
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				m.LoadOrStore("key", new(slot))
			}
		})
	})
	b.Run("store", func(b *testing.B) {
		s := New()
		defer s.Close()
		var owners atomic.Int64
		b.SetParallelism(64 / runtime.GOMAXPROCS(0))
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			ctx := context.Background()
			c := benchClaim
			c.Owner = strconv.FormatInt(owners.Add(1), 10)
			for pb.Next() {
				_, _, _ = s.Claim(ctx, "key", c)
			}
		})
	})
}

// P4: the oldest tenth goes, next to scanning and sorting everything. The
// reported ns/entry is what counts.
func BenchmarkEvict(b *testing.B) {
	for _, size := range []int{10_000, 100_000, 1_000_000} {
		names := benchNames("key:", size)
		b.Run(fmt.Sprintf("scan and sort/%d", size), func(b *testing.B) {
			s := &scanning{bound: 2 * size, clock: newClock(false)}
			evicted := 0
			for range b.N {
				b.StopTimer()
				for _, name := range names {
					s.cycle(name)
				}
				b.StartTimer()
				evicted += s.evict(size / 10)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(evicted), "ns/entry")
		})
		b.Run(fmt.Sprintf("store/%d", size), func(b *testing.B) {
			s := New(WithMaxEntries(2*size), WithMaxBytes(1<<40), WithSweepInterval(0), WithLogger(quiet))
			evicted := 0
			for range b.N {
				b.StopTimer()
				s.maxEntries = 2 * size
				benchFill(b, s, names)
				s.maxEntries = s.Len() - size/10
				b.StartTimer()
				for s.over(s.maxEntries) {
					_, n, _ := s.makeRoom(b.Context(), s.maxEntries, nil, true)
					evicted += n
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(evicted), "ns/entry")
		})
	}
}

// P6: what an entry costs beyond its texts.
func BenchmarkMemory(b *testing.B) {
	const entries = 1_000_000
	names := benchNames("key:", entries)
	for range b.N {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		s := New(WithMaxEntries(entries), WithMaxBytes(1<<40), WithSweepInterval(0))
		benchFill(b, s, names)
		runtime.GC()
		runtime.ReadMemStats(&after)
		texts := s.Stats().Bytes - entries*len(benchOutcome.Result) // which is one constant
		b.ReportMetric(float64(int(after.HeapAlloc-before.HeapAlloc)-texts)/entries, "B/entry")
		runtime.KeepAlive(s)
	}
}

// P14: from a completion until the last of a hundred waiters has it.
func BenchmarkWake(b *testing.B) {
	const waiters = 100
	s := New(WithSweepInterval(0))
	defer s.Close()
	ctx := b.Context()
	for range b.N {
		b.StopTimer()
		if _, _, err := s.Claim(ctx, "key", benchClaim); err != nil {
			b.Fatal(err)
		}
		var all sync.WaitGroup
		for range waiters {
			all.Go(func() { _, _, _ = s.Wait(ctx, "key") })
		}
		v, _ := s.slots.Load("key")
		for v.(*slot).waiters.Load() == nil {
			runtime.Gosched()
		}
		b.StartTimer()
		_ = s.Complete(ctx, "key", benchClaim.Owner, benchOutcome)
		all.Wait()
		b.StopTimer()
		_ = s.Delete(ctx, "key")
		b.StartTimer()
	}
}
