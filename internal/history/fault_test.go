package history

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/model"
)

// The search finds a fault in the table, one a rule.
func TestTable_PlantedFaults(t *testing.T) {
	always := model.State.Step
	// as has the table decide as if the owner of the entry had sent the call.
	as := func(op model.Op) step {
		return func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
			if e.Op == op && s.Entry.Owner != "" {
				e.Owner = s.Entry.Owner
			}
			return always(s, now, e)
		}
	}
	// free has it decide as if the key were absent.
	free := func(op model.Op, when func(model.State, idempotent.Entry, model.Event) bool) step {
		return func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
			if e.Op == op && when(s, s.Read(now), e) {
				s = model.State{Fence: s.Fence}
			}
			return always(s, now, e)
		}
	}
	for _, fault := range []struct {
		name  string
		in    string // the configuration
		table step
		rule  string // what the search says
	}{
		{"anybody renews", "two executions", as(model.Renew), "a superseded owner wrote"},
		{"anybody completes", "take-over", as(model.Complete), "a superseded owner wrote"},
		{"anybody releases", "two executions", as(model.Release), "a superseded owner wrote"},
		{"a running claim is free", "two executions", free(model.Claim, func(s model.State, _ idempotent.Entry, e model.Event) bool {
			return s.Entry.Status == idempotent.Pending && s.Entry.Owner != e.Claim.Owner
		}), "without permission"},
		{"a lapsed claim is free", "two executions", free(model.Claim, func(_ model.State, read idempotent.Entry, e model.Event) bool {
			return read.Unknown && read.Owner != e.Claim.Owner
		}), "without permission"},
		{"another request takes over", "take-over, another request among them", func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
			if e.Op == model.Claim && s.Read(now).Unknown {
				s.Entry.Fingerprint = e.Claim.Fingerprint
			}
			return always(s, now, e)
		}, "another request took"},
		{"a finished key is free", "two executions", free(model.Claim, func(_ model.State, read idempotent.Entry, _ model.Event) bool {
			return read.Status == idempotent.Success
		}), "a record changed"},
		{"a release removes a finished key", "two executions", func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
			if e.Op == model.Release && s.Entry.Owner == e.Owner {
				return model.State{Fence: s.Fence}, model.Answer{}
			}
			return always(s, now, e)
		}, "a record changed"},
		{"a release after a take-over removes the key", "take-over", func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
			s.Gained = false
			return always(s, now, e)
		}, "nothing is left of"},
		{"a lapse is not read", "two executions", func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
			after, a := always(s, now, e)
			if e.Op == model.Load && s.Entry.Status == idempotent.Pending && a.OK {
				a.Entry = s.Entry
			}
			return after, a
		}, "in flight after its lease"},
		{"a claim has no end", "two executions", func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
			e.Claim.Lease *= 1000
			return always(s, now, e)
		}, "in flight after its lease"},
		{"Keep has no end", "two executions", func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
			e.Claim.Keep *= 1000
			return always(s, now, e)
		}, "for ever"},
		{"a completion is lost", "two executions", func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
			after, a := always(s, now, e)
			if e.Op == model.Complete {
				after = s
			}
			return after, a
		}, "an accepted completion left"},
		{"a completion replaces another one", "two executions", func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
			if e.Op == model.Complete && s.Entry.Owner == e.Owner && s.Entry.Status != idempotent.Pending {
				s.Entry.Unknown = true
			}
			return always(s, now, e)
		}, "a record changed"},
		{"a result is altered", "two executions", func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
			after, a := always(s, now, e)
			if e.Op == model.Claim && !a.OK {
				a.Entry.Result = strings.ToUpper(a.Entry.Result)
			}
			return after, a
		}, "a replay that nobody recorded"},
		{"a repeated claim is refused", "two executions", func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
			if e.Op == model.Claim && s.Entry.Owner == e.Claim.Owner {
				return s, model.Answer{Entry: s.Read(now)}
			}
			return always(s, now, e)
		}, "sent twice"},
		{"a completion loses the first claim", "two executions", func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
			after, a := always(s, now, e)
			if e.Op == model.Complete && a.Err == nil {
				after.Entry.Claimed = after.Entry.Timestamp
			}
			return after, a
		}, "changed what the claim said"},
		{"a completion loses the fingerprint", "another request among them", func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
			after, a := always(s, now, e)
			if e.Op == model.Complete && a.Err == nil {
				after.Entry.Fingerprint = ""
			}
			return after, a
		}, "changed what the claim said"},
		{"an answer carries the caller's fingerprint", "another request among them", func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
			after, a := always(s, now, e)
			if e.Op == model.Claim && !a.OK {
				a.Entry.Fingerprint = e.Claim.Fingerprint
			}
			return after, a
		}, "a refused claim saw"},
		{"a fence stands still", "two executions", func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
			after, a := always(s, now, e)
			after.Fence, after.Entry.Fence, a.Entry.Fence = 1, 1, 1
			return after, a
		}, "the fence is"},
		{"a repeated claim has a new fence", "two executions", func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
			after, a := always(s, now, e)
			if e.Op == model.Claim && a.OK {
				after.Entry.Fence = max(s.Fence+1, now.UnixMicro())
				after.Fence, a.Entry.Fence = after.Entry.Fence, after.Entry.Fence
			}
			return after, a
		}, "sent twice"},
	} {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			for _, c := range configurations {
				if c.name != fault.in {
					continue
				}
				f := c.explore(fault.table)
				require.ErrorContains(t, f.broken, fault.rule)
				t.Logf("%v, after %d states: %s", f.broken, f.states, strings.Join(c.words(fault.table, f.way), "; "))
				return
			}
			t.Fatalf("no configuration %q", fault.in)
		})
	}
}
