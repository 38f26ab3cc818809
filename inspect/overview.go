package inspect

import (
	"cmp"
	"html/template"
	"net/http"
	"slices"
	"time"

	"github.com/idempotent-go/idempotent"
)

// overviewRows is how many rows the tables of the overview have; the rest is
// a link away.
const overviewRows = 10

type overviewPage struct {
	head
	Listing  listing
	Pictures []picture
	Figures  []figures
	Running  part
	Unknown  part
	Corrupt  part
}

// part is the head of a table that has a page of its own, or all of it.
type part struct {
	Rows []row
	All  int
	More template.URL // "" where Rows is all
	Now  time.Time
}

func newPart(now time.Time, rows []row, more template.URL) part {
	p := part{Rows: rows, All: len(rows), Now: now}
	if len(rows) > overviewRows {
		p.Rows, p.More = rows[:overviewRows], more
	}
	return p
}

func (i *inspector) overview(w http.ResponseWriter, r *http.Request) {
	p := overviewPage{head: newHead("Overview")}
	p.Listing = i.list(r.Context(), idempotent.ListQuery{}, maxListed, func(string, *idempotent.Entry) bool { return true })

	h := newHour(p.Now)
	rows := map[state][]row{}
	for n := range p.Listing.Entries {
		e := &p.Listing.Entries[n]
		h.add(e)
		if s := stateOf(e); s == running || s == unknown {
			rows[s] = append(rows[s], newRow(e))
		}
	}
	p.Pictures, p.Figures = h.pictures(), h.figures()
	sortRows(rows[running])
	sortRows(rows[unknown])
	p.Running = newPart(p.Now, rows[running], link("running"))
	p.Unknown = newPart(p.Now, rows[unknown], link("unknown"))
	var corrupt []row
	for _, name := range p.Listing.Corrupt {
		corrupt = append(corrupt, corruptRow(name))
	}
	p.Corrupt = part{Rows: corrupt, All: len(corrupt), Now: p.Now}
	i.write(w, r, http.StatusOK, "overview", p)
}

// sortRows puts what has waited longest first.
func sortRows(rows []row) {
	slices.SortStableFunc(rows, func(a, b row) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Name.Whole, b.Name.Whole))
	})
}

// tablePage lists entries, as many as one request reads.
type tablePage struct {
	head
	State   state // "" where entries of any state are listed
	Listing listing
	Rows    []row
	Next    template.URL // "" where the end has been reached
}

// table lists the entries in one state.
func (i *inspector) table(w http.ResponseWriter, r *http.Request, title string, s state) {
	p := tablePage{head: newHead(title), State: s}
	q := idempotent.ListQuery{Cursor: r.URL.Query().Get("cursor")}
	p.Listing = i.list(r.Context(), q, rowsWanted, func(_ string, e *idempotent.Entry) bool { return e != nil && stateOf(e) == s })
	p.fill()
	if p.Listing.Cut() {
		p.Next = link(string(s), "cursor", p.Listing.Cursor)
	}
	i.write(w, r, http.StatusOK, "table", p)
}

// fill makes the rows of what was listed.
func (p *tablePage) fill() {
	for n := range p.Listing.Entries {
		p.Rows = append(p.Rows, newRow(&p.Listing.Entries[n]))
	}
	sortRows(p.Rows)
	for _, name := range p.Listing.Corrupt {
		p.Rows = append(p.Rows, corruptRow(name))
	}
}
