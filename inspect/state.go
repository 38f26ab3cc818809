package inspect

import "github.com/idempotent-go/idempotent"

// state is what an entry says, in the words of the page.
type state string

const (
	running state = "running"
	success state = "success"
	failed  state = "failed"
	unknown state = "unknown"
)

// states is the order in which they are shown: what needs attention first.
var states = [...]state{running, unknown, failed, success}

func stateOf(e *idempotent.Entry) state {
	switch {
	case e.Status == idempotent.Pending:
		return running
	case e.Status == idempotent.Success:
		return success
	case e.Unknown:
		return unknown
	}
	return failed
}

// Title is the state at the head of a picture or column.
func (s state) Title() string {
	switch s {
	case running:
		return "Running"
	case unknown:
		return "Unknown"
	case failed:
		return "Failed"
	}
	return "Success"
}

// Says is what the state means.
func (s state) Says() string {
	switch s {
	case running:
		return "An execution holds the key."
	case unknown:
		return "It may have happened. It is not run again."
	case failed:
		return "It definitely did not happen."
	}
	return "It happened."
}
