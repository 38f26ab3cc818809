package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/model"
)

func mutants() []mutant {
	return slices.Concat(claimMutants(), ownerMutants(), ruleMutants(), abilityMutants(), listMutants())
}

func claimMutants() []mutant {
	sameOwner := func(s model.State, e model.Event) bool { return pending(s) && s.Entry.Owner == e.Claim.Owner }
	return []mutant{
		{
			name: "a claim loses its trace and fingerprint",
			plant: edit(model.Claim, func(_, after *model.State, _ time.Time, _ model.Event) {
				after.Entry.Trace, after.Entry.Fingerprint = "", ""
			}),
			kills: []string{"ClaimOfAbsentKey", "OddOwnersFingerprintsAndTraces", "TableRandomly"},
		},
		{
			name: "a claim without end",
			plant: edit(model.Claim, func(_, after *model.State, _ time.Time, _ model.Event) {
				after.Entry.Expires = after.Entry.Expires.Add(24 * time.Hour)
			}),
			kills: []string{"C002_C003_ClaimStandsForItsLease", "C019_DurationsAreNotMixedUp", "TimesOfAnEntry"},
		},
		{
			name:  "a claim overwrites a running one",
			plant: free(model.Claim, func(s model.State, _ time.Time, e model.Event) bool { return pending(s) && !sameOwner(s, e) }),
			kills: []string{
				"C002_C003_ClaimStandsForItsLease", "C023_ClaimOfRunningKey", "TakeOverNeedsTheLapse", "C011_C012_C022_ClaimsAtOnce",
				"C013_ClaimAgainstComplete", "ClaimAgainstRelease", "C025_TwoHandles", "TableRandomly", "TableExhaustively",
			},
		},
		{
			name: "look and store are two steps",
			plant: func(r *reference, _ *Harness) {
				r.split = func(bool) error { return nil }
			},
			kills: []string{
				"C011_C012_C022_ClaimsAtOnce", "TakeOversAtOnce", "RenewAgainstTakeOver", "CompleteAgainstTakeOver", "ReleaseAgainstTakeOver",
				"C039_CompletionsOfLostClaim", "DifferentOutcomesAtOnce", "CompleteAgainstRelease", "C007_RenewAgainstComplete",
				"ClaimAgainstRelease", "C013_ClaimAgainstComplete",
			},
		},
		{
			name:  "a finished key is run again",
			plant: free(model.Claim, finished),
			kills: []string{"C049_ClaimOfFinishedKey", "EmptyResultIsAResult", "C131_EntriesAreValues", "TableRandomly"},
		},
		{
			name:  "a known failure is run again",
			plant: free(model.Claim, func(s model.State, _ time.Time, _ model.Event) bool { return s.Entry.Status == idempotent.Failed }),
			kills: []string{"C049_ClaimOfFinishedKey"},
		},
		{
			name:  "a lapsed claim is free",
			plant: free(model.Claim, lapsedNow),
			kills: []string{"C001_ClaimOfLapsedKey", "AbandonedClaimIsKeptForKeep", "TakeOverNeedsTheFirstClaimsConsent", "TakeOver", "TakeOverTwice"},
		},
		{
			name: "a lapse is not read",
			plant: func(r *reference, h *Harness) {
				on(model.Load, func(s model.State, _ time.Time, _ model.Event) (model.State, model.Answer) {
					return s, model.Answer{Entry: s.Entry, OK: s.Entry.Status != ""}
				})(r, h)
			},
			kills: []string{
				"C001_ClaimOfLapsedKey", "LapseIsDecidedWhenRead", "AbandonedClaimIsKeptForKeep", "WaitWakesAtLapse", "C017_ReleaseAfterTakeOver",
				"RenewMayShortenTheLease", "SweepCountsAbandonedOnce", "TableRandomly", "ReleaseAfterTakeOverAndRenewal",
			},
		},
		{
			name: "a refused claim does not read the lapse",
			plant: on(model.Claim, func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
				after, a := s.Step(now, e)
				if !a.OK {
					a.Entry = s.Entry
				}
				return after, a
			}),
			kills: []string{"C001_ClaimOfLapsedKey", "TableExhaustively"},
		},
		{
			name: "a repeated claim is refused",
			plant: on(model.Claim, func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
				if sameOwner(s, e) {
					return s, model.Answer{Entry: s.Read(now)}
				}
				return s.Step(now, e)
			}),
			kills: []string{"ClaimAgainBySameOwner", "ClaimAgainBySameOwnerAfterLapse", "ClaimTwiceAnswersTheSame", "LongestDurations", "FenceStandsStill"},
		},
		{
			name:  "a repeated claim is a new one",
			plant: free(model.Claim, func(s model.State, _ time.Time, e model.Event) bool { return sameOwner(s, e) }),
			kills: []string{
				"ClaimAgainBySameOwner", "ClaimAgainBySameOwnerAfterLapse", "ClaimAgainKeepsTakeOverOff", "ClaimTwiceAnswersTheSame",
				"EveryCallTwice", "FenceStandsStill", "ReleaseAfterTakeOverAndRenewal",
			},
		},
		{
			name: "a lapsed claim is forgotten at once",
			plant: edit(model.Claim, func(_, after *model.State, _ time.Time, _ model.Event) {
				after.Keep = 0
			}),
			kills: []string{
				"C001_ClaimOfLapsedKey", "AbandonedClaimIsKeptForKeep", "ClaimAgainBySameOwnerAfterLapse", "TakeOver", "RenewOfLapsedKey",
				"C024_PendingIsNotRemembered", "LongestKeep", "WaitReturnsAtOnce",
			},
		},
		{
			name: "a lapsed claim is never forgotten",
			plant: edit(model.Claim, func(_, after *model.State, _ time.Time, _ model.Event) {
				after.Keep = time.Hour
			}),
			kills: []string{
				"C001_AbandonedClaimIsForgottenAfterKeep", "OwnKeyPastKeepIsClaimedAnew", "TakeOverEndsWithKeep", "ShortestDurations",
				"RenewOfAbsentKey", "C021_CompleteOfAbsentKey", "SweepForgetsPastKeep", "ReleaseOfAbsentKey", "C017_ReleaseAfterTakeOver",
			},
		},
		{
			name: "an outcome is never forgotten",
			plant: edit(model.Complete, func(_, after *model.State, _ time.Time, e model.Event) {
				if after.Entry.Status != "" {
					after.Entry.Expires = after.Entry.Timestamp.Add(max(e.Outcome.Retention, time.Hour))
				}
			}),
			kills: []string{"C124_ClaimOfExpiredKey", "C047_RetentionCountsFromCompletion", "CompleteOfRunningKey", "C123_SweepRemovesWhatIsPastItsTime"},
		},
		{
			name: "a look extends the lease and the retention",
			plant: edit(model.Load, func(_, after *model.State, now time.Time, _ model.Event) {
				if after.Entry.Status != "" && after.Entry.Expires.After(now) {
					after.Entry.Expires = now.Add(long)
				}
			}),
			kills: []string{"LoadChangesNothing", "C047_RetentionCountsFromCompletion"},
		},
		{
			name: "a look settles the lapse",
			plant: edit(model.Load, func(_, after *model.State, now time.Time, _ model.Event) {
				after.Entry = after.Read(now)
			}),
			kills: []string{"LoadChangesNothing", "C049_TakeOverNeedsTheSameFingerprint"},
		},
		{
			name: "an entry does not know its key",
			plant: edit(model.Claim, func(_, after *model.State, _ time.Time, _ model.Event) {
				after.Entry.Key = ""
			}),
			kills: []string{"ClaimOfAbsentKey"},
		},

		{
			name: "a running claim is taken over",
			plant: allow(func(s *model.State, e *model.Event) {
				s.Entry.Expires = s.Entry.Expires.Add(-2 * long)
				s.Keep += 2 * long
			}),
			kills: []string{"TakeOverNeedsTheLapse", "C016_RenewedLeaseDecides", "RenewOfLapsedKey", "C013_ClaimAgainstComplete"},
		},
		{
			name:  "take-over without the first claim's consent",
			plant: allow(func(s *model.State, _ *model.Event) { s.TakeOver = true }),
			kills: []string{"TakeOverNeedsTheFirstClaimsConsent", "ClaimAgainKeepsTakeOverOff", "C001_ClaimOfLapsedKey"},
		},
		{
			name:  "take-over without the new claim's wish",
			plant: allow(func(_ *model.State, e *model.Event) { e.Claim.TakeOver = true }),
			kills: []string{"TakeOverNeedsTheNewClaimsWish"},
		},
		{
			name:  "take-over without the fingerprint check",
			plant: allow(func(s *model.State, e *model.Event) { e.Claim.Fingerprint = s.Entry.Fingerprint }),
			kills: []string{"C049_TakeOverNeedsTheSameFingerprint", "OddFingerprintsAtTakeOver"},
		},
		{
			name: "no take-over",
			plant: on(model.Claim, func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
				e.Claim.TakeOver = false
				return s.Step(now, e)
			}),
			kills: []string{
				"TakeOver", "TakeOverTwice", "C005_LateOwnerCannotTouchWhatWasTakenOver", "TakeOversAtOnce", "FenceGrows",
				"C017_ReleaseAfterTakeOverAndLapse", "WaitThroughTakeOver", "DeleteForgetsTakeOver", "TimesOfAnEntry",
			},
		},
		{
			name: "take-over keeps the fence",
			plant: edit(model.Claim, func(before, after *model.State, _ time.Time, _ model.Event) {
				if pending(*before) {
					after.Entry.Fence = before.Entry.Fence
				}
			}),
			kills: []string{"TakeOver", "FenceGrows"},
		},
		{
			name: "take-over forgets the first claim's time",
			plant: edit(model.Claim, func(_, after *model.State, _ time.Time, _ model.Event) {
				after.Entry.Claimed = after.Entry.Timestamp
			}),
			kills: []string{"TakeOver", "TakeOverTwice", "TimesOfAnEntry"},
		},
		{
			name: "take-over keeps the first claim's Keep",
			plant: edit(model.Claim, func(before, after *model.State, _ time.Time, _ model.Event) {
				if pending(*before) {
					after.Keep = before.Keep
				}
			}),
			kills: []string{"TakeOverTwice"},
		},
		{
			name: "take-over keeps the first claim's trace and time",
			plant: edit(model.Claim, func(before, after *model.State, _ time.Time, _ model.Event) {
				if pending(*before) {
					after.Entry.Trace, after.Entry.Timestamp = before.Entry.Trace, before.Entry.Timestamp
				}
			}),
			kills: []string{"TakeOver"},
		},
		{
			name: "take-over keeps the first owner",
			plant: edit(model.Claim, func(before, after *model.State, _ time.Time, _ model.Event) {
				if pending(*before) {
					after.Entry.Owner = before.Entry.Owner
				}
			}),
			kills: []string{"C005_LateOwnerCannotTouchWhatWasTakenOver", "TakeOver"},
		},
		{
			name: "it is forgotten that a claim was taken over",
			plant: edit(model.Claim, func(_, after *model.State, _ time.Time, _ model.Event) {
				after.Gained = false
			}),
			kills: []string{"C017_ReleaseAfterTakeOver", "C017_ReleaseAfterTakeOverAndLapse", "ReleaseAfterTakeOverAndRenewal"},
		},
		{
			name: "every claim counts as taken over",
			plant: edit(model.Claim, func(_, after *model.State, _ time.Time, _ model.Event) {
				after.Gained = true
			}),
			kills: []string{"ReleaseOfRunningKey", "ReleaseOfLapsedKey", "TakeOverEndsWithKeep", "DeleteForgetsTakeOver", "FullCycleOfOddKeys", "C013_CyclesAgainstSweeps"},
		},
	}
}

func ownerMutants() []mutant {
	return []mutant{
		{
			name:  "anybody renews",
			plant: owned(model.Renew),
			kills: []string{"RenewOfAnothersKey", "C005_LateOwnerCannotTouchWhatWasTakenOver", "C025_TwoHandles", "TakeOverThroughAnotherHandle"},
		},
		{
			name:  "a late renewal is refused",
			plant: lost(model.Renew, lapsedNow),
			kills: []string{"RenewOfLapsedKey"},
		},
		{
			name:  "a renewal of a finished key is refused",
			plant: lost(model.Renew, finished),
			kills: []string{"RenewOfFinishedKey", "C007_RenewAgainstComplete"},
		},
		{
			name:  "a renewal of an absent key is nil",
			plant: ignore(model.Renew, absent),
			kills: []string{"RenewOfAbsentKey", "DeleteOfRunningKey"},
		},
		{
			name: "a renewal makes a claim",
			plant: edit(model.Renew, func(before, after *model.State, now time.Time, e model.Event) {
				if before.Entry.Status == "" {
					*after, _ = before.Step(now, model.Event{Op: model.Claim, Key: e.Key, Claim: hold(e.Owner)})
				}
			}),
			kills: []string{"RenewOfAbsentKey"},
		},
		{
			name:  "a renewal does nothing",
			plant: ignore(model.Renew, func(s model.State, now time.Time, e model.Event) bool { return s.Entry.Owner == e.Owner }),
			kills: []string{"RenewOfRunningKey", "RenewMayShortenTheLease", "C016_RenewedLeaseDecides", "RenewOfLapsedKey", "WaitOutlastsRenewal", "C019_DurationsAreNotMixedUp"},
		},
		{
			name: "a renewal extends the retention",
			plant: edit(model.Renew, func(_, after *model.State, now time.Time, e model.Event) {
				if after.Entry.Owner == e.Owner {
					after.Entry.Expires = now.Add(e.Lease)
				}
			}),
			kills: []string{"RenewOfFinishedKey", "C007_RenewAgainstComplete"},
		},
		{
			name: "a renewal counts from the lapse",
			plant: edit(model.Renew, func(before, after *model.State, _ time.Time, e model.Event) {
				if pending(*after) && before.Entry.Owner == e.Owner {
					after.Entry.Expires = before.Entry.Expires.Add(e.Lease)
				}
			}),
			kills: []string{"RenewMayShortenTheLease"},
		},
		{
			name: "a renewal is a new claim",
			plant: edit(model.Renew, func(before, after *model.State, now time.Time, e model.Event) {
				if pending(*before) && before.Entry.Owner == e.Owner {
					after.Entry.Timestamp = now
					after.Entry.Fence++
					after.Gained = false
				}
			}),
			kills: []string{"RenewOfRunningKey", "ReleaseAfterTakeOverAndRenewal", "FenceStandsStill", "EveryCallTwice"},
		},

		{
			name:  "anybody completes",
			plant: owned(model.Complete),
			kills: []string{"CompleteOfAnothersKey", "C005_LateOwnerCannotTouchWhatWasTakenOver", "CompleteAgainstTakeOver"},
		},
		{
			name:  "anybody completes what has lapsed",
			plant: free(model.Complete, lapsedNow),
			kills: []string{"CompleteOfAnothersKey"},
		},
		{
			name:  "anybody repeats a completion",
			plant: ignore(model.Complete, finished),
			kills: []string{"CompleteOfAnothersKey", "CompleteOtherwise", "DifferentOutcomesAtOnce", "CompleteSettlesUnknown", "CompleteUnknownOfAbsentKey"},
		},
		{
			name:  "a late outcome is refused",
			plant: lost(model.Complete, lapsedNow),
			kills: []string{"CompleteOfLapsedKey", "C024_PendingIsNotRemembered"},
		},
		{
			name:  "the outcome of a lost claim is refused",
			plant: lost(model.Complete, absent),
			kills: []string{"C021_CompleteOfAbsentKey", "CompleteUnknownOfAbsentKey", "DeleteOfRunningKey", "CompleteAgainstRelease", "C130_KeyWhoseBytesChange"},
		},
		{
			name: "the outcome of a lost claim has no fingerprint",
			plant: edit(model.Complete, func(before, after *model.State, _ time.Time, _ model.Event) {
				after.Entry.Fingerprint = before.Entry.Fingerprint
			}),
			kills: []string{"C021_CompleteOfAbsentKey", "OddOwnersFingerprintsAndTraces"},
		},
		{
			name: "the outcome of a lost claim has no owner",
			plant: edit(model.Complete, func(before, after *model.State, _ time.Time, _ model.Event) {
				after.Entry.Owner = before.Entry.Owner
			}),
			kills: []string{"C021_CompleteOfAbsentKey", "C039_CompletionsOfLostClaim"},
		},
		{
			name: "retention counts from the claim",
			plant: edit(model.Complete, func(_, after *model.State, _ time.Time, e model.Event) {
				after.Entry.Timestamp = after.Entry.Claimed
				after.Entry.Expires = after.Entry.Claimed.Add(e.Outcome.Retention)
			}),
			kills: []string{"CompleteOfRunningKey", "CompleteOfLapsedKey", "CompleteSettlesUnknown"},
		},
		{
			name: "the lease goes on after completion",
			plant: edit(model.Complete, func(before, after *model.State, _ time.Time, _ model.Event) {
				if pending(*before) {
					after.Entry.Expires = before.Entry.Expires
				}
			}),
			kills: []string{"C047_RetentionCountsFromCompletion", "CompleteOfRunningKey", "TimesOfAnEntry"},
		},
		{
			name: "completion loses the fingerprint",
			plant: edit(model.Complete, func(_, after *model.State, _ time.Time, _ model.Event) {
				after.Entry.Fingerprint = ""
			}),
			kills: []string{"C048_CompletionKeepsWhatTheClaimSaid", "CompleteSettlesUnknown"},
		},
		{
			name: "completion takes the outcome's fingerprint",
			plant: edit(model.Complete, func(_, after *model.State, _ time.Time, e model.Event) {
				after.Entry.Fingerprint = e.Outcome.Fingerprint
			}),
			kills: []string{"C048_CompletionKeepsWhatTheClaimSaid", "CompleteAgain"},
		},
		{
			name: "completion loses trace, fence and the time of the claim",
			plant: edit(model.Complete, func(_, after *model.State, now time.Time, _ model.Event) {
				after.Entry.Trace, after.Entry.Fence, after.Entry.Claimed = "", 0, now
			}),
			kills: []string{"C048_CompletionKeepsWhatTheClaimSaid", "FenceStandsStill", "TimesOfAnEntry"},
		},
		{
			name: "completion drops the result",
			plant: edit(model.Complete, func(_, after *model.State, _ time.Time, _ model.Event) {
				after.Entry.Result = ""
			}),
			kills: []string{"CompleteOfRunningKey", "C044_C082_OddResults", "WaitEndsWithItsContext", "EndOfContextAfterTheCall", "C037_C070_OddKeys"},
		},
		{
			name: "a known outcome is recorded as an unknown one",
			plant: edit(model.Complete, func(_, after *model.State, _ time.Time, _ model.Event) {
				after.Entry.Unknown = after.Entry.Status == idempotent.Failed
			}),
			kills: []string{"CompleteOfRunningKey", "ReleaseOfFinishedKey"},
		},
		{
			name:  "an unknown outcome stays",
			plant: ignore(model.Complete, doubtful),
			kills: []string{"CompleteSettlesUnknown", "CompleteUnknownOfAbsentKey", "C024_PendingIsNotRemembered"},
		},
		{
			name: "settling counts no new retention",
			plant: edit(model.Complete, func(before, after *model.State, _ time.Time, _ model.Event) {
				if before.Entry.Unknown {
					after.Entry.Timestamp, after.Entry.Expires = before.Entry.Timestamp, before.Entry.Expires
				}
			}),
			kills: []string{"CompleteSettlesUnknown"},
		},
		{
			name: "the last unknown outcome wins",
			plant: edit(model.Complete, func(before, after *model.State, now time.Time, e model.Event) {
				if before.Entry.Unknown && e.Outcome.Unknown && before.Entry.Owner == e.Owner {
					after.Entry.Result, after.Entry.Timestamp = e.Outcome.Result, now
				}
			}),
			kills: []string{"CompleteUnknownOverUnknown", "EveryCallTwice", "CompleteAgain"},
		},
		{
			name: "a second unknown outcome is ErrLost",
			plant: lost(model.Complete, func(s model.State, _ time.Time, e model.Event) bool {
				return s.Entry.Unknown && e.Outcome.Unknown && s.Entry.Result != e.Outcome.Result
			}),
			kills: []string{"CompleteUnknownOverUnknown"},
		},
		{
			name: "a known outcome becomes unknown",
			plant: edit(model.Complete, func(_, after *model.State, _ time.Time, e model.Event) {
				if e.Outcome.Unknown && after.Entry.Owner == e.Owner {
					after.Entry.Status, after.Entry.Unknown = idempotent.Failed, true
				}
			}),
			kills: []string{"CompleteUnknownOverKnown"},
		},
		{
			name: "an unknown outcome after a known one is ErrLost",
			plant: lost(model.Complete, func(s model.State, now time.Time, e model.Event) bool {
				return known(s, now, e) && e.Outcome.Unknown
			}),
			kills: []string{"CompleteUnknownOverKnown"},
		},
		{
			name:  "a second completion is ErrLost",
			plant: lost(model.Complete, known),
			kills: []string{"CompleteAgain", "C025_TwoHandles", "EmptyResultIsAResult", "C044_C082_OddResults"},
		},
		{
			name: "a second completion counts the retention anew",
			plant: edit(model.Complete, func(before, after *model.State, now time.Time, e model.Event) {
				if known(*before, now, e) && before.Entry.Owner == e.Owner {
					after.Entry.Timestamp, after.Entry.Expires = now, now.Add(e.Outcome.Retention)
				}
			}),
			kills: []string{"CompleteAgain", "EveryCallTwice", "C021_CompleteOfAbsentKey"},
		},
		{
			name: "the last known outcome wins",
			plant: edit(model.Complete, func(before, after *model.State, now time.Time, e model.Event) {
				if known(*before, now, e) && before.Entry.Owner == e.Owner {
					after.Entry.Status, after.Entry.Result = e.Outcome.Status, e.Outcome.Result
				}
			}),
			kills: []string{"CompleteOtherwise", "EmptyResultIsAResult"},
		},
		{
			name: "success and failure with one result are the same",
			plant: ignore(model.Complete, func(s model.State, now time.Time, e model.Event) bool {
				return known(s, now, e) && s.Entry.Owner == e.Owner && s.Entry.Result == e.Outcome.Result
			}),
			kills: []string{"CompleteOtherwise"},
		},
		{
			name: "an empty result is none",
			plant: ignore(model.Complete, func(s model.State, now time.Time, e model.Event) bool {
				return known(s, now, e) && s.Entry.Owner == e.Owner && s.Entry.Result == ""
			}),
			kills: []string{"EmptyResultIsAResult", "CompleteOtherwise"},
		},

		{
			name:  "anybody releases",
			plant: owned(model.Release),
			kills: []string{"ReleaseOfAnothersKey", "C005_LateOwnerCannotTouchWhatWasTakenOver", "ReleaseAgainstTakeOver"},
		},
		{
			name:  "a stranger's release is nil",
			plant: ignore(model.Release, func(s model.State, _ time.Time, e model.Event) bool { return s.Entry.Owner != e.Owner }),
			kills: []string{"ReleaseOfAnothersKey", "C025_TwoHandles"},
		},
		{
			name:  "a release does nothing",
			plant: ignore(model.Release, always),
			kills: []string{"ReleaseOfRunningKey", "ReleaseOfLapsedKey", "ReleaseOfUnknown", "WaitWakesAtRelease", "FullCycleOfOddKeys"},
		},
		{
			name:  "a late release is refused",
			plant: lost(model.Release, lapsedNow),
			kills: []string{"ReleaseOfLapsedKey", "C017_ReleaseAfterTakeOver", "C017_ReleaseAfterTakeOverAndLapse"},
		},
		{
			name:  "a release of an absent key is ErrLost",
			plant: lost(model.Release, absent),
			kills: []string{"ReleaseOfAbsentKey", "EveryCallTwice"},
		},
		{
			name: "a release makes an entry",
			plant: edit(model.Release, func(before, after *model.State, now time.Time, e model.Event) {
				if before.Entry.Status == "" {
					*after, _ = before.Step(now, model.Event{Op: model.Claim, Key: e.Key, Claim: hold(e.Owner)})
				}
			}),
			kills: []string{"ReleaseOfAbsentKey"},
		},
		{
			name:  "a release frees what was taken over",
			plant: free(model.Release, func(s model.State, _ time.Time, e model.Event) bool { return s.Gained && s.Entry.Owner == e.Owner }),
			kills: []string{"C017_ReleaseAfterTakeOver", "C017_ReleaseAfterTakeOverAndLapse", "ReleaseAfterTakeOverAndRenewal"},
		},
		{
			name: "a release moves the lapse",
			plant: edit(model.Release, func(_, after *model.State, now time.Time, _ model.Event) {
				if pending(*after) && after.Gained {
					after.Entry.Expires = now
				}
			}),
			kills: []string{"C017_ReleaseAfterTakeOverAndLapse", "C017_ReleaseAfterTakeOver"},
		},
		{
			name: "a release forgets Keep",
			plant: edit(model.Release, func(before, after *model.State, _ time.Time, _ model.Event) {
				if pending(*after) {
					after.Keep = time.Millisecond
				}
			}),
			kills: []string{"C017_ReleaseAfterTakeOver"},
		},
		{
			name:  "a release leaves an unknown outcome",
			plant: ignore(model.Release, doubtful),
			kills: []string{"ReleaseOfUnknown"},
		},
		{
			name: "a release frees a finished key",
			plant: free(model.Release, func(s model.State, now time.Time, e model.Event) bool {
				return known(s, now, e) && s.Entry.Owner == e.Owner
			}),
			kills: []string{"ReleaseOfFinishedKey", "CompleteAgainstRelease", "C025_TwoHandles"},
		},
		{
			name:  "a release of a finished key is ErrLost",
			plant: lost(model.Release, known),
			kills: []string{"ReleaseOfFinishedKey"},
		},
	}
}

func ruleMutants() []mutant {
	return []mutant{
		{
			name: "a lapse comes a moment late",
			plant: on(model.Load, func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
				return s.Step(now.Add(-time.Nanosecond), e)
			}),
			kills: []string{"LapseIsDecidedWhenRead"},
		},
		{
			name: "a lapse comes early",
			plant: edit(model.Claim, func(_, after *model.State, _ time.Time, _ model.Event) {
				after.Entry.Expires = after.Entry.Expires.Add(-time.Nanosecond)
			}),
			kills: []string{"LapseIsDecidedWhenRead"},
		},
		{
			name:  "milliseconds are taken for seconds",
			plant: rounded(func(d time.Duration) time.Duration { return max(d/1000, min(d, time.Millisecond)) }),
			kills: []string{"C019_DurationsAreNotMixedUp", "C045_FractionsOfAMillisecond"},
		},
		{
			name:  "durations are whole seconds",
			plant: rounded(func(d time.Duration) time.Duration { return max(d.Round(time.Second), min(d, time.Millisecond)) }),
			kills: []string{"C019_DurationsAreNotMixedUp", "C045_FractionsOfAMillisecond"},
		},
		{
			name: "a fraction of a millisecond is too much",
			plant: rounded(func(d time.Duration) time.Duration {
				if d%time.Millisecond != 0 {
					return 0
				}
				return d
			}),
			kills: []string{"C045_FractionsOfAMillisecond", "ShortestDurations"},
		},
		{
			name: "a millisecond lasts",
			plant: rounded(func(d time.Duration) time.Duration {
				if d >= time.Millisecond && d < time.Second {
					return time.Second
				}
				return d
			}),
			kills: []string{"ShortestDurations", "C001_AbandonedClaimIsForgottenAfterKeep"},
		},
		{
			name: "long durations overflow",
			plant: edit(model.Claim, func(_, after *model.State, now time.Time, e model.Event) {
				after.Entry.Expires = time.Unix(0, now.UnixNano()+int64(e.Claim.Lease))
			}),
			kills: []string{"LongestDurations"},
		},
		{
			name: "lease and Keep overflow together",
			plant: edit(model.Claim, func(_, after *model.State, _ time.Time, _ model.Event) {
				if after.Keep > 1<<61 {
					after.Keep = -long
				}
			}),
			kills: []string{"LongestKeep"},
		},
		{
			name: "clients' clocks are compared",
			plant: func(r *reference, h *Harness) {
				other := *newReference()
				other.states, other.damaged, other.counted = r.states, r.damaged, r.counted
				other.clock = func() time.Time { return time.Now().Add(-time.Hour) }
				h.Second = func() idempotent.Store { return &other }
			},
			kills: []string{"C046_C129_OneClock"},
		},
		{
			name: "a fence is a count",
			plant: edit(model.Claim, func(before, after *model.State, _ time.Time, _ model.Event) {
				if after.Entry.Fence != before.Entry.Fence {
					after.Entry.Fence = before.Entry.Fence + 1
				}
			}),
			kills: []string{"FenceIsTheClock", "FenceGrows"},
		},
		{
			name: "every call has a fence",
			plant: edit(model.Complete, func(_, after *model.State, _ time.Time, _ model.Event) {
				after.Entry.Fence++
			}),
			kills: []string{"FenceStandsStill", "C048_CompletionKeepsWhatTheClaimSaid"},
		},
		{
			name: "a first fence is the clock in milliseconds",
			plant: edit(model.Claim, func(_, after *model.State, now time.Time, _ model.Event) {
				after.Entry.Fence = now.UnixMilli()
			}),
			kills: []string{"FenceIsTheClock"},
		},
		{
			name:  "too short durations are accepted",
			plant: rounded(func(d time.Duration) time.Duration { return max(d, time.Millisecond) }),
			kills: []string{"InvalidArguments"},
		},
		{
			name: "no duration is for ever",
			plant: rounded(func(d time.Duration) time.Duration {
				if d == 0 {
					return long
				}
				return d
			}),
			kills: []string{"InvalidArguments"},
		},
		{
			name: "an empty key is a key",
			plant: func(r *reference, _ *Harness) {
				r.step = func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
					e.Key += "."
					return s.Step(now, e)
				}
			},
			kills: []string{"InvalidKey", "WaitInvalidKey"},
		},
		{
			name: "an empty owner is an owner",
			plant: func(r *reference, _ *Harness) {
				r.step = func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
					e.Owner += "."
					e.Claim.Owner += "."
					return s.Step(now, e)
				}
			},
			kills: []string{"InvalidArguments"},
		},
		{
			name:  "the context is not looked at",
			plant: func(r *reference, _ *Harness) { r.context = func(context.Context) error { return nil } },
			kills: []string{"C002_EndedContext", "DeleteWithEndedContext", "Ping"},
		},
		{
			name: "a claim ends with its context",
			plant: func(r *reference, h *Harness) {
				h.Store = leaving{r}
			},
			kills: []string{"EndOfContextAfterTheCall"},
		},

		{
			name:  "keys are folded to lower case",
			plant: renamed(strings.ToLower),
			kills: []string{"C037_C070_OddKeys"},
		},
		{
			name:  "keys are trimmed",
			plant: renamed(strings.TrimSpace),
			kills: []string{"C037_C070_OddKeys"},
		},
		{
			name:  "keys end at a NUL",
			plant: renamed(func(key string) string { name, _, _ := strings.Cut(key, "\x00"); return name }),
			kills: []string{"C037_C070_OddKeys"},
		},
		{
			name:  "keys are cut",
			plant: renamed(func(key string) string { return key[:min(len(key), 255)] }),
			kills: []string{"C037_C070_OddKeys"},
		},
		{
			name:  "keys are made valid UTF-8",
			plant: renamed(func(key string) string { return strings.ToValidUTF8(key, "\ufffd") }),
			kills: []string{"C037_C070_OddKeys"},
		},
		{
			name:  "keys are not copied",
			plant: renamed(func(key string) string { return key }),
			kills: []string{"C130_KeyWhoseBytesChange"},
		},
		{
			name:  "owners, fingerprints and traces are not copied",
			plant: func(r *reference, _ *Harness) { r.keep = func(text string) string { return text } },
			kills: []string{"C130_TextsWhoseBytesChange"},
		},
		{
			name:  "a flood washes running claims away",
			plant: func(r *reference, h *Harness) { h.Store = &bounded{reference: r, claims: true} },
			kills: []string{"FloodEvictsNoClaim"},
		},
		{
			name:  "an outcome makes room for itself",
			plant: func(r *reference, h *Harness) { h.Store = &bounded{reference: r} },
			kills: []string{"FloodEvictsNoClaim"},
		},
		{
			name: "results are made valid UTF-8",
			plant: edit(model.Complete, func(_, after *model.State, _ time.Time, _ model.Event) {
				after.Entry.Result = strings.ToValidUTF8(after.Entry.Result, "\ufffd")
			}),
			kills: []string{"C044_C082_OddResults"},
		},
		{
			name: "results are numbers where they look like one",
			plant: edit(model.Complete, func(_, after *model.State, _ time.Time, _ model.Event) {
				if after.Entry.Result == "15947634569000323" {
					after.Entry.Result = "1.5947634569e+16"
				}
			}),
			kills: []string{"C044_C082_OddResults"},
		},
		{
			name: "owners end at a colon",
			plant: edit(model.Claim, func(_, after *model.State, _ time.Time, _ model.Event) {
				after.Entry.Owner, _, _ = strings.Cut(after.Entry.Owner, ":")
			}),
			kills: []string{"OddOwnersFingerprintsAndTraces"},
		},
		{
			name: "an empty fingerprint is any",
			plant: allow(func(s *model.State, e *model.Event) {
				if e.Claim.Fingerprint == "" {
					e.Claim.Fingerprint = s.Entry.Fingerprint
				}
			}),
			kills: []string{"OddFingerprintsAtTakeOver", "C049_TakeOverNeedsTheSameFingerprint"},
		},
		{
			name: "Load answers what somebody else may change",
			plant: func(r *reference, _ *Harness) {
				edit(model.Claim, func(before, after *model.State, _ time.Time, _ model.Event) {
					if known(*before, time.Time{}, model.Event{}) {
						after.Entry.Result = "changed"
					}
				})(r, nil)
			},
			kills: []string{"C131_EntriesAreValues"},
		},
		{
			name: "two handles on two stores",
			plant: func(_ *reference, h *Harness) {
				other := newReference()
				h.Second = func() idempotent.Store { return other }
			},
			kills: []string{"C025_TwoHandles", "C024_PendingIsNotRemembered", "TakeOverThroughAnotherHandle", "C011_C012_C022_ClaimsAtOnce"},
		},
		{
			name: "a handle remembers what it saw",
			plant: func(r *reference, h *Harness) {
				other := &caching{reference: r, seen: make(map[string]idempotent.Entry)}
				h.Second = func() idempotent.Store { return other }
			},
			kills: []string{"C024_PendingIsNotRemembered", "C025_TwoHandles"},
		},
		{
			name:  "a busy key is an error",
			plant: func(r *reference, h *Harness) { h.Store = impatient{r} },
			kills: []string{"C011_C012_C022_ClaimsAtOnce", "C023_ClaimOfRunningKey"},
		},
		{
			name: "a lost compare-and-swap is an error",
			plant: func(r *reference, _ *Harness) {
				r.split = func(changed bool) error {
					if changed {
						return errors.New("conflict")
					}
					return nil
				}
			},
			kills: []string{"C014_BusyKeyHoldsNobodyUp", "C011_C012_C022_ClaimsAtOnce", "C007_RenewAgainstComplete"},
		},
	}
}

// leaving is a store whose claims are released when their context ends.
type leaving struct{ *reference }

func (l leaving) Claim(ctx context.Context, key string, c idempotent.Claim) (idempotent.Entry, bool, error) {
	e, claimed, err := l.reference.Claim(ctx, key, c)
	if claimed {
		ended := make(chan struct{})
		context.AfterFunc(ctx, func() {
			_ = l.Release(context.WithoutCancel(ctx), key, c.Owner)
			close(ended)
		})
	}
	return e, claimed, err
}

func (l leaving) Load(ctx context.Context, key string) (idempotent.Entry, bool, error) {
	time.Sleep(time.Millisecond) // the release above has happened
	return l.reference.Load(ctx, key)
}

// bounded is a store that holds 10,000 entries, and then evicts the oldest
// claim or the newest outcome.
type bounded struct {
	*reference
	claims bool
	first  string // key that was claimed first
	n      int
}

func (b *bounded) Claim(ctx context.Context, key string, c idempotent.Claim) (idempotent.Entry, bool, error) {
	if b.first == "" {
		b.first = key
	}
	return b.reference.Claim(ctx, key, c)
}

func (b *bounded) Complete(ctx context.Context, key, owner string, o idempotent.Outcome) error {
	err := b.reference.Complete(ctx, key, owner, o)
	if b.n++; b.n == 10_000 && b.claims {
		key = b.first
	}
	if b.n < 10_000 {
		return err
	}
	return b.Delete(ctx, key)
}

// impatient is a store that reports a lost race as an outage.
type impatient struct{ *reference }

func (s impatient) Claim(ctx context.Context, key string, c idempotent.Claim) (idempotent.Entry, bool, error) {
	e, claimed, err := s.reference.Claim(ctx, key, c)
	if err == nil && !claimed {
		return idempotent.Entry{}, false, errors.New("busy")
	}
	return e, claimed, err
}

func abilityMutants() []mutant {
	type entry = idempotent.Entry
	return []mutant{
		{
			name: "a wait for nothing lasts",
			plant: waits(func(ctx context.Context, r *reference, key string) (entry, bool, error) {
				time.Sleep(ceiling)
				return r.Load(ctx, key)
			}),
			kills: []string{"WaitReturnsAtOnce"},
		},
		{
			name:  "a wait does not wait",
			plant: waits(func(ctx context.Context, r *reference, key string) (entry, bool, error) { return r.Load(ctx, key) }),
			kills: []string{"WaitWakesAtCompletion", "WaitWakesAtRelease", "WaitWakesAtLapse", "WaitWakesAtDelete", "WaitOutlastsRenewal", "WaitEndsWithItsContext", "WaitThroughTakeOver"},
		},
		{
			name: "a wait sleeps through everything",
			plant: waits(func(ctx context.Context, r *reference, key string) (entry, bool, error) {
				<-ctx.Done()
				return entry{}, false, ctx.Err()
			}),
			kills: []string{"WaitReturnsAtOnce", "WaitWakesAtCompletion", "WaitWakesAtRelease", "WaitWakesAtLapse", "WaitWakesAtDelete", "WaitOutlastsRenewal"},
		},
		{
			name: "a wait outlives its context",
			plant: waits(func(_ context.Context, r *reference, key string) (entry, bool, error) {
				return idempotent.Wait(context.Background(), store{r}, key)
			}),
			kills: []string{"WaitEndsWithItsContext"},
		},
		{
			name: "a wait ends with the first lease",
			plant: waits(func(ctx context.Context, r *reference, key string) (entry, bool, error) {
				e, found, err := r.Load(ctx, key)
				if err == nil && e.Status == idempotent.Pending {
					time.Sleep(2 * past)
					return r.Load(ctx, key)
				}
				return e, found, err
			}),
			kills: []string{"WaitOutlastsRenewal"},
		},
		{
			name: "a wait takes any key",
			plant: waits(func(ctx context.Context, r *reference, key string) (entry, bool, error) {
				return idempotent.Wait(ctx, store{r}, key+".")
			}),
			kills: []string{"WaitInvalidKey"},
		},
		{
			name:  "a ping fails",
			plant: func(r *reference, h *Harness) { h.Store = pinger{r} },
			kills: []string{"Ping"},
		},
		{
			name:  "Delete does nothing",
			plant: ignore(model.Delete, always),
			kills: []string{"C134_Delete", "DeleteOfRunningKey", "WaitWakesAtDelete", "DeleteForgetsTakeOver"},
		},
		{
			name:  "Delete leaves a running claim",
			plant: ignore(model.Delete, func(s model.State, _ time.Time, _ model.Event) bool { return pending(s) }),
			kills: []string{"C134_Delete", "DeleteOfRunningKey"},
		},
		{
			name:  "Delete of an absent key is an error",
			plant: lost(model.Delete, absent),
			kills: []string{"C134_Delete"},
		},
		{
			name: "Delete remembers the take-over",
			plant: func(r *reference, h *Harness) {
				gained := false // of any key: there is one in the case
				edit(model.Delete, func(before, _ *model.State, _ time.Time, _ model.Event) { gained = before.Gained })(r, h)
				right := r.step
				r.step = func(s model.State, now time.Time, e model.Event) (model.State, model.Answer) {
					after, a := right(s, now, e)
					after.Gained = after.Gained || gained && pending(after)
					return after, a
				}
			},
			kills: []string{"DeleteForgetsTakeOver"},
		},
		{
			name: "a sweep removes nothing",
			plant: swept(func(s model.State, _ time.Time, _ bool) (model.State, idempotent.Swept) {
				return s, idempotent.Swept{}
			}),
			kills: []string{"C123_SweepRemovesWhatIsPastItsTime", "SweepCountsAbandonedOnce"},
		},
		{
			name: "a sweep counts the abandoned each time",
			plant: swept(func(s model.State, now time.Time, _ bool) (model.State, idempotent.Swept) {
				return sweepOne(s, now, false)
			}),
			kills: []string{"SweepCountsAbandonedOnce"},
		},
		{
			name: "a sweep removes the abandoned",
			plant: swept(func(s model.State, now time.Time, counted bool) (model.State, idempotent.Swept) {
				if s.Read(now).Unknown && pending(s) {
					return model.State{Fence: s.Fence}, idempotent.Swept{Abandoned: 1}
				}
				return sweepOne(s, now, counted)
			}),
			kills: []string{"SweepCountsAbandonedOnce", "SweepTouchesNothingElse"},
		},
		{
			name: "a sweep removes the running",
			plant: swept(func(s model.State, now time.Time, counted bool) (model.State, idempotent.Swept) {
				if pending(s) {
					return model.State{Fence: s.Fence}, idempotent.Swept{Abandoned: 1}
				}
				return sweepOne(s, now, counted)
			}),
			kills: []string{"SweepTouchesNothingElse", "SweepCountsAbandonedOnce", "C013_CyclesAgainstSweeps"},
		},
		{
			name: "a sweep keeps what is past Keep",
			plant: swept(func(s model.State, now time.Time, counted bool) (model.State, idempotent.Swept) {
				if pending(s) && s.Gone(now) {
					s.Keep += long
				}
				return sweepOne(s, now, counted)
			}),
			kills: []string{"SweepForgetsPastKeep", "SweepTouchesNothingElse"},
		},

		{
			name:  "damage is not seen",
			plant: damaged(func(model.Op, error) error { return nil }),
			kills: []string{"ForeignEntry", "GarbageEntry", "C020_FinishedWithoutResult", "NewerEntry"},
		},
		{
			name: "a damaged entry is answered",
			plant: damaged(func(op model.Op, damage error) error {
				if op == model.Load {
					return nil
				}
				return damage
			}),
			kills: []string{"ForeignEntry", "GarbageEntry", "C020_FinishedWithoutResult", "NewerEntry"},
		},
		{
			name: "a damaged entry is completed",
			plant: damaged(func(op model.Op, damage error) error {
				if op == model.Complete {
					return nil
				}
				return damage
			}),
			kills: []string{"ForeignEntry", "GarbageEntry", "C020_FinishedWithoutResult", "NewerEntry"},
		},
		{
			name: "a damaged entry is released",
			plant: damaged(func(op model.Op, damage error) error {
				if op == model.Release {
					return nil
				}
				return damage
			}),
			kills: []string{"ForeignEntry", "GarbageEntry", "C020_FinishedWithoutResult", "NewerEntry"},
		},
		{
			name:  "a newer entry is a corrupt one",
			plant: damaged(func(model.Op, error) error { return idempotent.ErrCorrupt }),
			kills: []string{"NewerEntry"},
		},
		{
			name:  "a corrupt entry is a newer one",
			plant: damaged(func(model.Op, error) error { return idempotent.ErrNewerFormat }),
			kills: []string{"ForeignEntry", "GarbageEntry", "C020_FinishedWithoutResult"},
		},
	}
}

// store hides the optional abilities of a store.
type store struct{ idempotent.Store }

func damaged(refuse func(op model.Op, damage error) error) func(*reference, *Harness) {
	return func(r *reference, _ *Harness) { r.refuse = refuse }
}

func listMutants() []mutant {
	type (
		query = idempotent.ListQuery
		page  = idempotent.Page
	)
	return []mutant{
		{
			name: "a listing shows results",
			plant: listed(func(r *reference, _ query, p *page) {
				for i, e := range p.Entries {
					p.Entries[i] = r.states[e.Key].Read(r.clock())
				}
			}),
			kills: []string{"ListShowsEveryState"},
		},
		{
			name: "a listing shows lapsed claims as pending",
			plant: listed(func(r *reference, _ query, p *page) {
				for i, e := range p.Entries {
					if held := r.states[e.Key].Entry; pending(r.states[e.Key]) {
						p.Entries[i] = held
					}
				}
			}),
			kills: []string{"ListShowsEveryState"},
		},
		{
			name: "a listing shows what is gone",
			plant: listed(func(r *reference, q query, p *page) {
				if s, ok := r.states[q.Prefix]; ok && len(p.Entries) == 0 {
					p.Entries = append(p.Entries, s.Entry)
				}
			}),
			kills: []string{"ListShowsEveryState", "ListForgetsAtOnce"},
		},
		{
			name: "a page drops its last entry",
			plant: listed(func(_ *reference, _ query, p *page) {
				if p.Next != "" && len(p.Entries) > 0 {
					p.Entries = p.Entries[:len(p.Entries)-1]
				}
			}),
			kills: []string{"ListInPages", "ListPrefixIsLiteral", "ListWhileOthersComeAndGo"},
		},
		{
			name: "a page has one entry more than was asked for",
			plant: lists(func(ctx context.Context, r *reference, q query) (page, error) {
				size, err := q.Size()
				if err != nil {
					return page{}, err
				}
				q.Limit = size + 1
				return r.List(ctx, q)
			}),
			kills: []string{"ListInPages"},
		},
		{
			name: "a listing has no end",
			plant: listed(func(_ *reference, q query, p *page) {
				if p.Next == "" {
					p.Next = "after "
				}
			}),
			kills: []string{"ListInPages"},
		},
		{
			name: "a prefix takes either case",
			plant: lists(func(ctx context.Context, r *reference, q query) (page, error) {
				prefix := q.Prefix
				q.Prefix, q.Limit = "", idempotent.MaxListLimit
				p, err := r.List(ctx, q)
				p.Entries = slices.DeleteFunc(p.Entries, func(e idempotent.Entry) bool {
					return !strings.HasPrefix(strings.ToLower(e.Key), strings.ToLower(prefix))
				})
				return p, err
			}),
			kills: []string{"ListPrefixIsLiteral"},
		},
		{
			name: "a prefix is a pattern",
			plant: lists(func(ctx context.Context, r *reference, q query) (page, error) {
				prefix, _, pattern := strings.Cut(q.Prefix, "*")
				q.Prefix = prefix
				if pattern {
					q.Limit = idempotent.MaxListLimit
				}
				return r.List(ctx, q)
			}),
			kills: []string{"ListPrefixIsLiteral"},
		},
		{
			name: "a cursor counts entries",
			plant: lists(func(ctx context.Context, r *reference, q query) (page, error) {
				size, err := q.Size()
				if err != nil {
					return page{}, err
				}
				skip := 0
				if q.Cursor != "" {
					if skip, err = strconv.Atoi(q.Cursor); err != nil {
						return page{}, idempotent.ErrInvalid
					}
				}
				p, err := r.List(ctx, query{Prefix: q.Prefix, Limit: idempotent.MaxListLimit})
				p.Entries = p.Entries[min(skip, len(p.Entries)):]
				if len(p.Entries) > size {
					p.Entries, p.Next = p.Entries[:size], fmt.Sprint(skip+size)
				}
				return p, err
			}),
			kills: []string{"ListWhileOthersComeAndGo"},
		},
		{
			name:  "a listing hides what it cannot read",
			plant: listed(func(_ *reference, _ query, p *page) { p.Corrupt = nil }),
			kills: []string{"ListNamesWhatItCannotRead"},
		},
		{
			name: "a listing ends at what it cannot read",
			plant: listed(func(_ *reference, _ query, p *page) {
				if len(p.Corrupt) > 0 {
					p.Next = ""
				}
			}),
			kills: []string{"ListNamesWhatItCannotRead"},
		},
		{
			name: "a listing takes any limit and cursor",
			plant: lists(func(ctx context.Context, r *reference, q query) (page, error) {
				p, err := r.List(ctx, q)
				if errors.Is(err, idempotent.ErrInvalid) {
					return r.List(ctx, query{Prefix: q.Prefix})
				}
				return p, err
			}),
			kills: []string{"ListInvalid"},
		},
		{
			name: "a listing outlives its context",
			plant: lists(func(_ context.Context, r *reference, q query) (page, error) {
				return r.List(context.Background(), q)
			}),
			kills: []string{"ListWithEndedContext"},
		},
	}
}
