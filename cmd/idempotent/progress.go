package main

import (
	"fmt"
	"io"
	"time"
)

// progressPause is how often progress is told: often enough to be seen moving.
const progressPause = 200 * time.Millisecond

// progress tells on stderr how far a long step is.
type progress struct {
	w        io.Writer // nil: nobody looks
	terminal bool      // one line that is written over
	last     time.Time
	told     bool
}

// newProgress returns one that is silent unless stderr is a terminal or always
// is set.
func (s *session) newProgress(always bool) *progress {
	p := &progress{terminal: s.shows}
	if s.shows || always {
		p.w = s.stderr
	}
	return p
}

// tell says how far it is, the first time and then at each pause.
func (p *progress) tell(format string, args ...any) {
	if p.w == nil || p.told && time.Since(p.last) < progressPause {
		return
	}
	p.last, p.told = time.Now(), true
	if p.terminal {
		fmt.Fprint(p.w, "\r\x1b[K"+fmt.Sprintf(format, args...))
		return
	}
	fmt.Fprintln(p.w, fmt.Sprintf(format, args...))
}

// end takes the line away.
func (p *progress) end() {
	if p.w != nil && p.terminal && p.told {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
