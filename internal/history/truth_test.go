package history

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/idempotent-go/idempotent/internal/model"
)

// Whatever a right store does between call and answer is believed: the model
// itself, which decides at a moment that the checker is not told, some of its
// answers lost, is never accused.
func TestBelief_NeverAccusesTheTruth(t *testing.T) {
	all := moves(40*time.Millisecond, 60)
	width := rapid.SampledFrom([]time.Duration{0, 0, 5 * time.Millisecond, 60 * time.Millisecond})
	rapid.Check(t, func(t *rapid.T) {
		var truth model.State
		believed, now := beliefs{{}}, epoch
		for _, m := range all.Draw(t, "moves") {
			now = now.Add(m.pause)
			c := call{event: m.event}
			c.event.Key = "key"
			c.from, c.to = now.Add(-width.Draw(t, "before")), now.Add(width.Draw(t, "after"))
			r := reply{known: rapid.IntRange(0, 4).Draw(t, "known") > 0}
			truth, r.Answer = truth.Step(now, c.event)
			if !r.known {
				c.to = c.to.Add(time.Hour)
			}
			believed = believed.after(c, r, licence{})
			if len(believed) == 0 {
				t.Fatalf("%v at %v is accused of the answer %v", c.event, now, r.Answer)
			}
			if !believed.contain(truth, now) {
				t.Fatalf("after %v at %v the truth is not believed any more", c.event, now)
			}
		}
	})
}

// contain reports whether one of the beliefs has room for s.
func (bs beliefs) contain(s model.State, now time.Time) bool {
	for _, b := range bs {
		if s.Gone(now) && b.early.Gone(now) {
			return true
		}
		got := model.Answer{Entry: s.Entry}
		if between(got, model.Answer{Entry: b.early.Entry}, model.Answer{Entry: b.late.Entry}) &&
			b.early.Keep == s.Keep && b.early.TakeOver == s.TakeOver && b.early.Gained == s.Gained {
			return true
		}
	}
	return false
}
