package memstore

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/idempotent-go/idempotent"
)

// afterKey is what a cursor begins with; the last key of the page before follows.
const afterKey = "after:"

// List returns the next page of the entries, in the order of their keys; see
// [idempotent.Lister].
//
// A page looks at every key of the store, so that nothing has to be kept for
// listings while requests are served: a page of a hundred thousand entries takes
// some milliseconds, holds no lock, and has an entry that stands all the time
// exactly once.
func (s *Store) List(ctx context.Context, q idempotent.ListQuery) (idempotent.Page, error) {
	size, err := q.Size()
	if err != nil {
		return idempotent.Page{}, err
	}
	last, ok := strings.CutPrefix(q.Cursor, afterKey)
	if q.Cursor != "" && !ok {
		return idempotent.Page{}, fmt.Errorf("%w: ListQuery.Cursor is none of a memory store; use Page.Next, or \"\" to begin", idempotent.ErrInvalid)
	}
	if err := s.ready(ctx); err != nil {
		return idempotent.Page{}, err
	}
	keys := s.keysAfter(last, q.Prefix, size)
	page := idempotent.Page{Entries: make([]idempotent.Entry, 0, len(keys))}
	for _, key := range keys {
		e, found, err := s.Load(ctx, key)
		if err != nil {
			return idempotent.Page{}, err
		}
		if found {
			e.Result = ""
			page.Entries = append(page.Entries, e)
		}
	}
	if len(keys) == size {
		page.Next = afterKey + keys[size-1]
	}
	return page, nil
}

// keysAfter returns the first n keys that come after last and begin with prefix,
// in order.
func (s *Store) keysAfter(last, prefix string, n int) []string {
	keys := make([]string, 0, 2*n)
	full := false // keys[n-1] is the largest that is still wanted
	s.slots.Range(func(_, v any) bool {
		key := v.(*slot).key()
		if key <= last || !strings.HasPrefix(key, prefix) || full && key >= keys[n-1] {
			return true
		}
		if keys = append(keys, key); len(keys) == cap(keys) {
			slices.Sort(keys)
			keys, full = keys[:n], true
		}
		return true
	})
	slices.Sort(keys)
	return keys[:min(len(keys), n)]
}
