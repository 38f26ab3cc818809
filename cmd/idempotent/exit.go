package main

import (
	"errors"
	"fmt"

	"github.com/idempotent-go/idempotent"
)

// The exit codes, as the help and the package documentation list them.
const (
	exitOK       = 0
	exitError    = 1
	exitUsage    = 2
	exitNotFound = 3
	exitInFlight = 4
	exitConflict = 5
	exitFindings = 6
	exitDeclined = 7
)

const exitCodes = `Exit codes:
  0  done
  1  error: the store cannot be reached, has failed, or a record cannot be read
  2  usage: a flag, an argument or a store URL is wrong; nothing was sent
  3  not found: the store has no entry under this key
  4  in flight: an operation is running under this key
  5  conflict: the key is another owner's by now, or has a known outcome
  6  findings: check has found something, or bench has seen calls fail
  7  declined: the question was not answered with yes; nothing was changed
`

// exit is an error with an exit code of its own. Its text is for people.
type exit struct {
	code int
	text string
}

func (e *exit) Error() string { return e.text }

func fail(code int, format string, args ...any) error {
	return &exit{code, fmt.Sprintf(format, args...)}
}

func usage(format string, args ...any) error { return fail(exitUsage, format, args...) }

// exitCode is what the program ends with because of err.
func exitCode(err error) int {
	var e *exit
	var running *idempotent.InFlightError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &e):
		return e.code
	case errors.As(err, &running):
		return exitInFlight
	case errors.Is(err, idempotent.ErrLost):
		return exitConflict
	}
	return exitError
}
