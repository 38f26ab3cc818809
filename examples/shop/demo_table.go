package main

import (
	"fmt"
	"io"
	"strings"
)

// table collects what was expected and what was seen.
type table struct {
	title string
	rows  []row
}

type row struct{ chapter, sent, expected, seen string }

// chapter names the rows that follow.
func (t *table) chapter(title string) { t.title = title }

func (t *table) row(sent, expected, seen string) {
	t.rows = append(t.rows, row{t.title, sent, expected, seen})
}

// print writes the table, marks the rows that are wrong, and returns the exit
// code.
func (t *table) print(out io.Writer) int {
	const line = "%-15s %-31s %-23s %-23s %s\n"
	_, _ = fmt.Fprintf(out, line, "chapter", "what was sent or looked at", "expected", "seen", "ok")
	_, _ = fmt.Fprintln(out, strings.Repeat("-", 98))
	wrong, last := 0, ""
	for _, r := range t.rows {
		title, ok := r.chapter, "yes"
		if title == last {
			title = ""
		}
		last = r.chapter
		if r.seen != r.expected {
			wrong++
			ok = "NO"
		}
		_, _ = fmt.Fprintf(out, line, title, r.sent, r.expected, r.seen, ok)
	}
	if wrong > 0 {
		_, _ = fmt.Fprintf(out, "\n%d of %d rows are wrong\n", wrong, len(t.rows))
		return 1
	}
	_, _ = fmt.Fprintf(out, "\nall %d rows are as expected\n", len(t.rows))
	return 0
}
