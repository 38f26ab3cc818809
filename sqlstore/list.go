package sqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/idempotent-go/idempotent"
)

// nameLongest is how many bytes a name has at most; see rowName.
const nameLongest = shortKey + 1

// List returns the next page of the entries, in the order of the names of their
// rows; see [idempotent.Lister]. It is one statement that reads as many rows as
// the page may have along the primary key, without the results and without a
// lock. Rows that wait for a sweep count, so that a page may be empty.
func (s *Store) List(ctx context.Context, q idempotent.ListQuery) (idempotent.Page, error) {
	size, err := q.Size()
	if err != nil {
		return idempotent.Page{}, err
	}
	after, err := parseCursor(q.Cursor)
	if err != nil {
		return idempotent.Page{}, err
	}
	prefix := strings.Clone(q.Prefix) // the driver may still read it when the call has returned
	return do(ctx, s, "list", func(db querier) (idempotent.Page, error) {
		return s.text.page(ctx, db, prefix, after, size)
	})
}

// parseCursor returns the name of the last row of the page before, and "" at the
// beginning.
func parseCursor(cursor string) (after string, err error) {
	name, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || len(name) > nameLongest || formatCursor(name) != cursor { // the decoder skips line ends
		return "", fmt.Errorf("%w: ListQuery.Cursor is none of an SQL store; use Page.Next, or \"\" to begin", idempotent.ErrInvalid)
	}
	return string(name), nil
}

func formatCursor(name []byte) string { return base64.RawURLEncoding.EncodeToString(name) }

// named is a row with its name after the other columns.
type named struct {
	rows *sql.Rows
	name []byte
}

func (n *named) Scan(dest ...any) error { return n.rows.Scan(append(dest, &n.name)...) }

// page is the step of List.
func (t *statements) page(ctx context.Context, q querier, prefix, after string, size int) (page idempotent.Page, err error) {
	from, to := nameRange(prefix, after)
	rows, err := q.QueryContext(ctx, t.list, from, to, size)
	if err != nil {
		return idempotent.Page{}, err
	}
	defer func() { _ = rows.Close() }()
	n := named{rows: rows}
	read := 0
	for rows.Next() {
		r, now, err := scanRow(&n)
		if err != nil {
			return idempotent.Page{}, err
		}
		read++
		key := keyOf(n.name, r)
		if !strings.HasPrefix(key, prefix) {
			continue // one that is longer than its name
		}
		if r.check(key) != nil {
			page.Corrupt = append(page.Corrupt, key)
		} else if e, there := r.entry(now); there {
			page.Entries = append(page.Entries, e)
		}
	}
	if read == size {
		page.Next = formatCursor(n.name)
	}
	return page, rows.Err()
}

// nameRange returns the range of names, from included and to not, in which the
// rows of keys with the prefix lie that come after the name after. Names are
// compared byte by byte in every dialect.
func nameRange(prefix, after string) (from, to []byte) {
	prefix = prefix[:min(len(prefix), longNamePrefix)]
	from = []byte(prefix)
	if next := after + "\x00"; after != "" && next > prefix {
		from = []byte(next)
	}
	to = []byte(prefix)
	for len(to) > 0 && to[len(to)-1] == 0xff {
		to = to[:len(to)-1]
	}
	if len(to) == 0 {
		return from, bytes.Repeat([]byte{0xff}, nameLongest+1)
	}
	to[len(to)-1]++
	return from, to
}

// keyOf returns the key whose row is called name. A short name says it itself;
// a long one only what the row says, where the two agree.
func keyOf(name []byte, r row) string {
	if len(name) <= shortKey || !bytes.Equal(rowName(r.key), name) {
		return string(name)
	}
	return r.key
}
