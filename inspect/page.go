package inspect

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/idempotent-go/idempotent"
)

var (
	//go:embed page/*.html
	pageFiles embed.FS

	//go:embed page/style.css
	style []byte

	pages = template.Must(template.New("").Funcs(template.FuncMap{
		"show":   show,
		"span":   span,
		"utc":    utc,
		"stamp":  stamp,
		"states": func() []state { return states[:] },
		"search": func(by, text string) template.URL { return link("search", "by", by, "q", text) },
	}).ParseFS(pageFiles, "page/*.html"))
)

// head is what every page has.
type head struct {
	Title string
	Query string // what stands in the search field
	By    string
	Now   time.Time
}

func newHead(title string) head { return head{Title: title, By: byAny, Now: time.Now()} }

// ownHeader sets the fields that every answer has. Nothing is kept, framed,
// guessed or run. The referrer policy is not no-referrer: with that, browsers
// send "Origin: null" with a form, which reads like another site's.
func ownHeader(h http.Header, contentType string) {
	h.Set("Content-Type", contentType)
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("X-Content-Type-Options", "nosniff")
}

// write answers with a page, or not at all with half of one.
func (i *inspector) write(w http.ResponseWriter, r *http.Request, status int, name string, data any) {
	var page bytes.Buffer
	if err := pages.ExecuteTemplate(&page, name, data); err != nil {
		i.log().ErrorContext(r.Context(), "idempotent: inspector cannot write a page", "page", name, "err", err.Error())
		ownHeader(w.Header(), "text/plain; charset=utf-8")
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write([]byte("The page cannot be written; the log says why.\n"))
		return
	}
	ownHeader(w.Header(), "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(page.Bytes())
}

// redirect leads to another page. The address is a query alone, which
// http.Redirect would resolve against a path that a prefix may be missing from.
func redirect(w http.ResponseWriter, to template.URL) {
	ownHeader(w.Header(), "text/plain; charset=utf-8")
	w.Header().Set("Location", string(to))
	w.WriteHeader(http.StatusSeeOther)
}

// link is the address of a page, relative to every other one. Pairs without a
// value are left out.
func link(page string, pairs ...string) template.URL {
	query := url.Values{"page": {page}}
	for n := 0; n < len(pairs); n += 2 {
		if pairs[n+1] != "" {
			query.Set(pairs[n], pairs[n+1])
		}
	}
	return template.URL("?" + query.Encode()) //nolint:gosec // encoded
}

// row is an entry in a table.
type row struct {
	Name    storeName
	Link    template.URL
	State   state // "" where the record cannot be read
	Claimed time.Time
	Since   time.Time
	Expires time.Time
	Trace   string
}

func newRow(e *idempotent.Entry) row {
	return row{
		Name: parseName(e.Key), Link: entryLink(e.Key), State: stateOf(e),
		Claimed: e.Claimed, Since: e.Timestamp, Expires: e.Expires, Trace: e.Trace,
	}
}

func corruptRow(name string) row { return row{Name: parseName(name), Link: entryLink(name)} }

func entryLink(name string, pairs ...string) template.URL {
	return link("entry", append([]string{"id", encodeText(name)}, pairs...)...)
}

// show makes a text from outside legible: what does not print, and what could
// turn the order of the text around it, becomes a replacement character. Blanks
// of every width are text, as in amounts, and so are the ends of lines.
func show(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsGraphic(r) || r == '\n' || r == '\r' || r == '\t' {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

// span is the time from one moment to another in the two largest units.
func span(from, to time.Time) string {
	d := max(0, to.Sub(from))
	if d < time.Minute {
		return fmt.Sprintf("%d s", int(d/time.Second))
	}
	units := []struct {
		size time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}}
	for n, unit := range units {
		if d < unit.size {
			continue
		}
		text := fmt.Sprintf("%d %s", d/unit.size, unit.name)
		if n+1 < len(units) {
			if rest := d % unit.size / units[n+1].size; rest > 0 {
				text += fmt.Sprintf(" %d %s", rest, units[n+1].name)
			}
		}
		return text
	}
	return ""
}

func utc(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
