package memstore

import (
	"math"
	"sync/atomic"
	"time"
)

// tick is how late the coarse clock may be, give or take the scheduler.
const tick = 10 * time.Millisecond

// forever is the latest instant, 146 years after the store was made: later ones
// are cut to it. Two of them and a second can be added, and it leaves a word
// its phase bits.
const forever = int64(1)<<62 - int64(time.Second)

// off is what the coarse clock shows while it stands still.
const off = math.MinInt64

// clock counts nanoseconds since the store was made, on the monotonic clock: a
// jump of the wall clock neither cuts nor extends anything.
type clock struct {
	start  time.Time
	unix   int64        // seconds of start since 1970
	nanos  int64        // and what is beyond them
	coarse atomic.Int64 // the last tick, its complement until somebody asks, or off
	timer  *time.Timer  // advances coarse; nil where there is no background
}

func newClock(background bool) *clock {
	now := time.Now()
	return clockFrom(background, now, now.UnixNano())
}

// newClockAt returns the clock of a store that has entries of an earlier one:
// the first was made at first, and the last look at that one's clock was at
// written, both in nanoseconds since 1970. No instant is before the clock's
// start, and where the wall clock was set back meanwhile this one was not:
// nothing gets more time than it had left.
func newClockAt(background bool, first, written int64) *clock {
	now := time.Now()
	return clockFrom(background, now.Add(-time.Duration(max(now.UnixNano(), written)-first)), first)
}

// clockFrom returns a clock that started at start, which it calls unix, in
// nanoseconds since 1970.
func clockFrom(background bool, start time.Time, unix int64) *clock {
	c := &clock{start: start, unix: unix / int64(time.Second), nanos: unix % int64(time.Second)}
	c.coarse.Store(off)
	if background {
		c.timer = time.AfterFunc(tick, c.advance)
	}
	return c
}

// now reads the clock. Leases are decided by it.
func (c *clock) now() int64 { return int64(time.Since(c.start)) }

// roughly returns an instant that has passed at most a few milliseconds ago.
// It is good enough for the retention of finished entries and saves reading
// the clock, which costs as much as the look into the map.
func (c *clock) roughly() int64 {
	if t := c.coarse.Load(); t >= 0 {
		return t
	}
	return c.ask()
}

// ask is the rare part of roughly: the first question since the last tick, and
// every one where there is no background.
func (c *clock) ask() int64 {
	if c.timer == nil {
		return c.now()
	}
	shown := c.coarse.Load()
	if shown != off {
		t := max(shown, ^shown)
		c.coarse.CompareAndSwap(shown, t) // fails where the next tick or somebody else was faster
		return t
	}
	t := c.now()
	if c.coarse.CompareAndSwap(off, t) {
		c.timer.Reset(tick)
	}
	return t
}

// advance is one tick. The clock stands still once nobody asks, so that an
// idle process is not woken a hundred times a second, nor a test that lets a
// day of fake time pass eight million times.
func (c *clock) advance() {
	if shown := c.coarse.Load(); shown < 0 && c.coarse.CompareAndSwap(shown, off) {
		return
	}
	c.coarse.Store(^c.now())
	c.timer.Reset(tick)
}

// stop ends the ticking: now, or with the tick that is under way, since nobody
// asks a closed store.
func (c *clock) stop() {
	if c.timer != nil {
		c.timer.Stop()
	}
}

// after returns the instant d after t, or forever.
func (c *clock) after(t int64, d time.Duration) int64 {
	if int64(d) >= forever-t {
		return forever
	}
	return t + int64(d)
}

// time returns instant t for people and other programs. It is start.Add at half
// the price, and an entry has three of them.
func (c *clock) time(t int64) time.Time {
	t += c.nanos
	return time.Unix(c.unix+t/int64(time.Second), t%int64(time.Second))
}

// micros returns instant t as microseconds since 1970.
func (c *clock) micros(t int64) int64 { return c.time(t).UnixMicro() }
