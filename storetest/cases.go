package storetest

import (
	"context"
	"slices"
)

// testCase is one rule of the contract.
type testCase struct {
	name string // with the number of the known fault that it shows, if any
	why  string // printed when the case fails
	run  func(c *trial)
}

// allCases returns the whole suite.
func allCases() []testCase {
	return slices.Concat(
		modelCases, // first, since they take longest
		claimCases,
		takeOverCases,
		renewCases,
		completeCases,
		releaseCases,
		timeCases,
		fenceCases,
		argumentCases,
		contentCases,
		contextCases,
		resendCases,
		handleCases,
		raceCases,
		roomCases,
		abilityCases,
		listCases,
		corruptionCases,
	)
}

// tb is the part of [testing.TB] that cases use. It is an interface so that
// the tests of this package can watch a case fail.
type tb interface {
	Helper()
	Context() context.Context
	Failed() bool
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// check runs the case on the store of h.
func (tc testCase) check(t tb, h Harness) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("the rule: %s", tc.why)
		}
	}()
	if h.Store == nil {
		t.Fatalf("storetest: the Harness has no Store")
	}
	tc.run(newTrial(t, h))
}
