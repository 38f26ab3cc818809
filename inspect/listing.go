package inspect

import (
	"context"
	"errors"
	"time"

	"github.com/idempotent-go/idempotent"
)

const (
	// maxListed is how many entries one request reads at most; a few more where
	// a page of the store ends later.
	maxListed = 10_000

	// rowsWanted is how many rows make a table; a few more where a page of the
	// store holds them.
	rowsWanted = 100

	// pageSize is how many entries are asked for at once.
	pageSize = 200
)

// listing is what one request has read of the store's entries.
type listing struct {
	Unsupported bool // the store cannot list
	Failed      bool // it did not answer to the end
	Entries     []idempotent.Entry
	Corrupt     []string
	Read        int    // entries looked at
	Cursor      string // where to go on; "" where everything has been read
}

// Cut reports whether the end was not reached.
func (l listing) Cut() bool { return l.Cursor != "" }

// list reads entries from q on until enough of them match, all have been read,
// or one request has read as many or for as long as it may. It always reads pages to their end,
// so that Cursor leaves none out. Nothing is listed twice.
func (i *inspector) list(ctx context.Context, q idempotent.ListQuery, enough int, match func(name string, e *idempotent.Entry) bool) listing {
	start := time.Now()
	q.Limit = pageSize
	l := listing{Cursor: q.Cursor}
	seen := map[string]bool{}
	for {
		page, err := i.listPage(ctx, q)
		switch {
		case errors.Is(err, errors.ErrUnsupported):
			return listing{Unsupported: true}
		case err != nil:
			i.logFailed(ctx, "list", "", err)
			l.Failed = true
			return l
		}
		l.Read += len(page.Entries) + len(page.Corrupt)
		for n := range page.Entries {
			e := &page.Entries[n]
			if !seen[e.Key] && match(e.Key, e) {
				seen[e.Key] = true
				l.Entries = append(l.Entries, *e)
			}
		}
		for _, name := range page.Corrupt {
			if !seen[name] && match(name, nil) {
				seen[name] = true
				l.Corrupt = append(l.Corrupt, name)
			}
		}
		l.Cursor, q.Cursor = page.Next, page.Next
		switch {
		case page.Next == "", l.Read >= maxListed, len(l.Entries)+len(l.Corrupt) >= enough, time.Since(start) >= listEnough:
			return l
		}
	}
}

func (i *inspector) listPage(ctx context.Context, q idempotent.ListQuery) (idempotent.Page, error) {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	return idempotent.List(ctx, i.store, q)
}
