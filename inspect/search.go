package inspect

import (
	"cmp"
	"errors"
	"net/http"

	"github.com/idempotent-go/idempotent"
)

type searchPage struct {
	tablePage
	Asked bool
}

// search finds entries by a part of their name, or the one of a request whose
// parts are all given, for which nothing is listed.
func (i *inspector) search(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if q.Get("key") != "" {
		redirect(w, entryLink(idempotent.StoreKey(q.Get("method"), q.Get("path"), q.Get("principal"), q.Get("key"))))
		return
	}
	p := searchPage{tablePage: tablePage{head: newHead("Search")}}
	p.Query, p.By = q.Get("q"), cmp.Or(q.Get("by"), byAny)
	if p.Asked = p.Query != ""; p.Asked {
		i.find(r, &p, q.Get("cursor"))
	}
	i.write(w, r, http.StatusOK, "search", p)
}

func (i *inspector) find(r *http.Request, p *searchPage, cursor string) {
	matches := matcher(p.By, p.Query)
	q := idempotent.ListQuery{Cursor: cursor}
	if p.By == byPrefix {
		q.Prefix = p.Query
	}
	p.Listing = i.list(r.Context(), q, rowsWanted, func(name string, _ *idempotent.Entry) bool { return matches(name) })
	p.fill()
	if p.Listing.Cut() {
		p.Next = link("search", "by", p.By, "q", p.Query, "cursor", p.Listing.Cursor)
	}
	if !p.Listing.Unsupported {
		return
	}
	// The whole name is found in any store.
	e, found, err := i.load(r.Context(), p.Query)
	switch {
	case errors.Is(err, idempotent.ErrCorrupt), errors.Is(err, idempotent.ErrNewerFormat):
		p.Rows = append(p.Rows, corruptRow(p.Query))
	case err != nil:
		p.Listing.Failed = true
	case found:
		p.Rows = append(p.Rows, newRow(&e))
	}
}
