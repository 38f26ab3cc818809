package inspect

import (
	"time"

	"github.com/idempotent-go/idempotent"
)

const (
	// hourBars is how many bars a picture has, one a minute.
	hourBars = 60

	// Units of the pictures, which are scaled to the width of the page.
	barStep   = 10
	barWidth  = 8
	barHeight = 48
	barLeast  = 3 // one entry among thousands is seen, too
)

// hour counts the entries that came into their state within the last hour, by
// state and minute, and all that were read.
type hour struct {
	now    time.Time
	counts map[state]*[hourBars]int
	stored map[state]int
}

func newHour(now time.Time) *hour {
	h := &hour{now: now, counts: map[state]*[hourBars]int{}, stored: map[state]int{}}
	for _, s := range states {
		h.counts[s] = new([hourBars]int)
	}
	return h
}

func (h *hour) add(e *idempotent.Entry) {
	s := stateOf(e)
	h.stored[s]++
	// The store's clock may be a little ahead.
	ago := max(0, h.now.Sub(e.Timestamp))
	if minutes := int(ago / time.Minute); minutes < hourBars {
		h.counts[s][hourBars-1-minutes]++
	}
}

// picture is the hour of one state.
type picture struct {
	State  state
	Total  int // within the hour
	Most   int // in one minute
	Stored int // whenever it was
	Bars   []bar
}

// bar is a rectangle.
type bar struct{ X, Y, Width, Height int }

// Width and Height are those of the picture.
func (picture) Width() int { return hourBars * barStep }

// Height is that of the tallest bar.
func (picture) Height() int { return barHeight }

// pictures draws each state on a scale of its own: unknown outcomes would not be
// seen beside a thousand times as many successes.
func (h *hour) pictures() []picture {
	var all []picture
	for _, s := range states {
		p := picture{State: s, Stored: h.stored[s]}
		for _, n := range h.counts[s] {
			p.Total += n
			p.Most = max(p.Most, n)
		}
		for minute, n := range h.counts[s] {
			if n > 0 {
				height := max(barLeast, barHeight*n/p.Most)
				p.Bars = append(p.Bars, bar{X: minute * barStep, Y: barHeight - height, Width: barWidth, Height: height})
			}
		}
		all = append(all, p)
	}
	return all
}

// figuresStep is how many minutes a line of the table has.
const figuresStep = 5

// figures is a line of the table that says what the pictures show.
type figures struct {
	From, To time.Time
	Counts   []int // in the order of states
}

func (h *hour) figures() []figures {
	var lines []figures
	for first := 0; first < hourBars; first += figuresStep {
		f := figures{
			From: h.now.Add(-time.Duration(hourBars-first) * time.Minute),
			To:   h.now.Add(-time.Duration(hourBars-first-figuresStep) * time.Minute),
		}
		for _, s := range states {
			n := 0
			for _, count := range h.counts[s][first : first+figuresStep] {
				n += count
			}
			f.Counts = append(f.Counts, n)
		}
		lines = append(lines, f)
	}
	return lines
}
