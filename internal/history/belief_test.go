package history

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/model"
)

// A take-over decided before the end of an abandoned claim, and seen only after
// somebody has found nothing there: a database that commits late does that, and
// no other store may.
func TestBelief_DecisionSeenLate(t *testing.T) {
	t.Parallel()
	zero := plain(time.Now())
	at := func(ms int) time.Time { return zero.Add(time.Duration(ms) * time.Millisecond) }
	claim := func(owner string) model.Event {
		return model.Event{Op: model.Claim, Key: "k", Claim: idempotent.Claim{
			Owner: owner, Lease: 40 * time.Millisecond, Keep: 40 * time.Millisecond, TakeOver: true,
		}}
	}
	for _, look := range []model.Event{
		{Op: model.Load, Key: "k"},
		{Op: model.Renew, Key: "k", Owner: "c", Lease: time.Minute},
		{Op: model.Release, Key: "k", Owner: "c"},
	} {
		steps := []struct {
			event    model.Event
			from, to int
		}{
			{claim("a"), 0, 0},
			{look, 85, 86},       // nothing: the claim is over
			{claim("b"), 75, 90}, // at 75, when it had lapsed
		}
		var real model.State
		var answers []model.Answer
		for i, moment := range []int{0, 85, 75} {
			next, answer := real.Step(at(moment), steps[i].event)
			if i != 1 { // the look has changed nothing
				real = next
			}
			answers = append(answers, answer)
		}
		require.False(t, answers[1].OK)
		require.Equal(t, at(0), plain(answers[2].Entry.Claimed), "a take-over")
		for _, lags := range []bool{true, false} {
			bs := beliefs{{}}
			for i, s := range steps {
				bs = bs.after(call{s.event, at(s.from), at(s.to)}, reply{answers[i], true}, licence{fences: 1, lags: lags})
			}
			require.Equal(t, lags, len(bs) > 0, look.Op)
		}
	}
}
