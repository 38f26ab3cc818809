package inspect_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/inspect"
)

func TestOverview(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		body := d.get(http.StatusOK, "")
		require.Contains(t, body, "Nothing is running.")
		require.Contains(t, body, "No unknown outcome.")
		require.NotContains(t, body, "<rect")

		d.succeed("long-ago")
		time.Sleep(2 * time.Hour)
		for n := range 3 {
			d.succeed(fmt.Sprint("done-", n))
		}
		time.Sleep(10 * time.Minute)
		d.finish("refused", "owner-1", idempotent.Outcome{Status: idempotent.Failed, Result: "eno"})
		d.unknown(idempotent.StoreKey("POST", "/payments", "user ada", "pay-7"))
		time.Sleep(5 * time.Minute)
		d.claim(idempotent.StoreKey("POST", "/orders", "user-bob", "order-1"), "owner-1", time.Minute)
		d.store.broken["torn"] = idempotent.ErrCorrupt
		time.Sleep(20 * time.Second)

		body = d.get(http.StatusOK, "")
		for _, want := range []string{
			`aria-label="Success: 3 entries came into this state within the last hour, at most 3 in one minute"`,
			`aria-label="Failed: 1 entries`, `aria-label="Unknown: 1 entries`, `aria-label="Running: 1 entries`,
			`<span class="quiet">4 stored</span>`,         // with the one of two hours ago
			`<rect x="440" y="0" width="8" height="48"/>`, // 15 minutes ago
			`<rect x="540" y="0"`,                         // 5 minutes ago
			`<rect x="590" y="0"`,                         // now
			"order-1", "user-bob", ">20 s</time>", "lease 40 s</time>",
			"pay-7", "user ada", ">5 min 20 s</time>",
			"torn", "unreadable",
		} {
			require.Contains(t, body, want)
		}
		require.Equal(t, 4, strings.Count(body, "<rect"))
		require.NotContains(t, body, ">done-0<", "the overview lists what needs attention")
		// The text alternative: the line of 15 to 20 minutes ago.
		figures := regexp.MustCompile(`(?s)<tbody>(.*?)</tbody>`).FindStringSubmatch(body)[1]
		require.Contains(t, figures, `<td class="number">0</td><td class="number">0</td><td class="number">0</td><td class="number">3</td>`)
		require.Equal(t, 12, strings.Count(figures, "<tr>"))
	})
}

func TestOverview_FewRowsAndALinkToTheRest(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for n := range 25 {
		d.unknown(fmt.Sprintf("key-%02d", n))
	}
	body := d.get(http.StatusOK, "")
	require.Equal(t, 10, strings.Count(body, `class="state unknown"`))
	require.Contains(t, body, `<a href="?page=unknown">All 25</a>`)
	require.Equal(t, 25, strings.Count(d.get(http.StatusOK, "?page=unknown"), `class="state unknown"`))
	require.Zero(t, strings.Count(d.get(http.StatusOK, "?page=running"), `class="state unknown"`))
}

// counted is a store with as many entries as one likes, and counts what is
// asked of it.
type counted struct {
	plain
	entries int
	status  func(n int) idempotent.Status
	served  int
	slow    time.Duration // of each page; longer than any patience means for ever
	repeats bool          // lists the last entry of a page again on the next
	empty   int           // so many pages without entries come first
}

func (c *counted) List(ctx context.Context, q idempotent.ListQuery) (idempotent.Page, error) {
	select {
	case <-ctx.Done():
		return idempotent.Page{}, ctx.Err()
	case <-time.After(c.slow):
	}
	size, err := q.Size()
	if err != nil {
		return idempotent.Page{}, err
	}
	if c.empty > 0 {
		c.empty--
		return idempotent.Page{Next: "0"}, nil
	}
	from := 0
	if q.Cursor != "" {
		if _, err := fmt.Sscan(q.Cursor, &from); err != nil {
			return idempotent.Page{}, err
		}
	}
	var p idempotent.Page
	to := min(from+size, c.entries)
	if c.repeats && from > 0 {
		from--
	}
	for n := from; n < to; n++ {
		c.served++
		status := idempotent.Pending
		if c.status != nil {
			status = c.status(n)
		}
		p.Entries = append(p.Entries, idempotent.Entry{Key: fmt.Sprintf("key-%06d", n), Status: status, Timestamp: time.Now(), Claimed: time.Now(), Expires: time.Now()})
	}
	if to < c.entries {
		p.Next = fmt.Sprint(to)
	}
	return p, nil
}

func (d *desk) over(s idempotent.Store) {
	d.page = inspect.New(d.guard, s, d.logged())
}

func TestListing_IsBounded(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	c := &counted{plain: plain{d.store}, entries: 50_000}
	d.over(c)
	body := d.get(http.StatusOK, "")
	require.Contains(t, body, "Only the first 10000 entries were read")
	require.Equal(t, 10_000, c.served)

	// A search that finds nothing reads no more, and goes on where it stopped.
	c.served = 0
	body = d.get(http.StatusOK, "?page=search&q=key-049999")
	require.Equal(t, 10_000, c.served)
	require.Contains(t, body, "None among the 10000 entries that were read.")
	pages := 1
	for !strings.Contains(body, ">key-049999<") {
		body = d.get(http.StatusOK, nextOf(t, body))
		pages++
	}
	require.Equal(t, 5, pages)
	require.NotContains(t, body, `rel="next"`)
}

func nextOf(t *testing.T, body string) string {
	t.Helper()
	found := regexp.MustCompile(`rel="next" href="([^"]*)"`).FindStringSubmatch(body)
	require.NotNil(t, found, body)
	return strings.ReplaceAll(found[1], "&amp;", "&")
}

// The pages of a table hold every entry once.
func TestListing_NextLosesNothing(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.over(&counted{plain: plain{d.store}, entries: 1234, empty: 3, repeats: true, status: func(n int) idempotent.Status {
		if n%2 == 0 {
			return idempotent.Success
		}
		return idempotent.Pending
	}})
	seen := map[string]int{}
	pages := 0
	for query := "?page=running"; query != ""; pages++ {
		body := d.get(http.StatusOK, query)
		for _, m := range regexp.MustCompile(`>(key-\d+)<`).FindAllStringSubmatch(body, -1) {
			seen[m[1]]++
		}
		query = ""
		if strings.Contains(body, `rel="next"`) {
			query = nextOf(t, body)
		}
	}
	require.Len(t, seen, 617)
	require.Greater(t, pages, 3)
}

// A slow store is read for a while, one that hangs is given up.
func TestListing_SlowStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		c := &counted{plain: plain{d.store}, entries: 50_000, slow: time.Second}
		d.over(c)
		start := time.Now()
		body := d.get(http.StatusOK, "?page=search&q=nothing")
		require.Equal(t, 3*time.Second, time.Since(start))
		require.Contains(t, body, "None among the 600 entries that were read.")
		require.NotContains(t, body, "did not answer")
		c.slow = 0
		require.Contains(t, d.get(http.StatusOK, nextOf(t, body)), "None among the 10000 entries")

		c.slow = time.Hour
		start = time.Now()
		require.Contains(t, d.get(http.StatusOK, ""), "The store did not answer to the end")
		require.Equal(t, 5*time.Second, time.Since(start))
	})
}

func TestListing_NothingTwiceOnAPage(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.over(&counted{plain: plain{d.store}, entries: 500, repeats: true})
	require.Contains(t, d.get(http.StatusOK, ""), `aria-label="Running: 500 entries`)
}

func TestListing_StoreFails(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.succeed("key-1")
	d.store.list = errors.New("disk on fire")
	for _, page := range []string{"", "?page=running", "?page=search&q=key"} {
		body := d.get(http.StatusOK, page)
		require.Contains(t, body, "The store did not answer to the end", page)
		require.NotContains(t, body, "fire")
	}
	require.Contains(t, d.log.String(), `step=list key="" err="disk on fire"`)
}

func TestStoreThatCannotList(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	name := idempotent.StoreKey("POST", "/orders", "ada", "key-1")
	d.succeed(name)
	d.over(plain{d.store})
	for _, page := range []string{"", "?page=running", "?page=unknown", "?page=search&q=key-1"} {
		require.Contains(t, d.get(http.StatusOK, page), "This store cannot list its entries", page)
	}
	require.Contains(t, d.get(http.StatusOK, "?page=search&q=key-1"), "No entry has this whole name.")
	require.Contains(t, d.get(http.StatusOK, "?page=search&q="+url.QueryEscape(name)), `class="state success"`)

	// That there is none is said only where the store has said so.
	d.store.broken["away"] = errors.New("disk on fire")
	d.store.broken["torn"] = idempotent.ErrCorrupt
	away, torn := d.get(http.StatusOK, "?page=search&q=away"), d.get(http.StatusOK, "?page=search&q=torn")
	require.Contains(t, away, "The store did not answer")
	require.Contains(t, torn, strings.ReplaceAll(linkTo("torn"), "&", "&amp;"))
	require.Contains(t, torn, "unreadable")
	for _, body := range []string{away, torn} {
		require.NotContains(t, body, "No entry has this whole name.")
	}

	w := d.do(httptest.NewRequest(http.MethodGet, "/?page=search&method=POST&path=/orders&principal=ada&key=key-1", nil))
	require.Equal(t, http.StatusSeeOther, w.Code)
	require.Contains(t, d.get(http.StatusOK, w.Header().Get("Location")), `class="state success"`)
}

func TestSearch(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	long := strings.Repeat("l", 200)
	names := map[string]string{
		"ada":      idempotent.StoreKey("POST", "/orders", "user:ada", "key-1"),
		"ada2":     idempotent.StoreKey("PATCH", "/orders/7", "user:ada", "key 2"),
		"adam":     idempotent.StoreKey("POST", "/orders", "user:adam", "key-1"),
		"scoped":   idempotent.StoreKey("", "", "user:ada", "key-3"),
		"long":     idempotent.StoreKey("POST", "/"+long, "user:ada", "k"+strings.Repeat("x", 254)+strings.Repeat("y", 255)),
		"longer":   idempotent.StoreKey("POST", "/"+strings.Repeat("p", 600), "user:ada", "key-1"),
		"function": "user%3Aada",
		"job":      idempotent.Key("charge", "ord-7"),
	}
	for _, name := range names {
		d.succeed(name)
	}
	tests := []struct {
		name, by, text string
		want           []string
	}{
		{"a principal", "principal", "user:ada", []string{"ada", "ada2", "scoped", "long"}},
		{"a principal is no beginning", "principal", "user", nil},
		{"a key", "key", "key-1", []string{"ada", "adam"}},
		{"a key with a blank", "key", "key 2", []string{"ada2"}},
		{"a key is no principal", "key", "user:ada", nil},
		{"a key that is cut", "key", "k" + strings.Repeat("x", 254) + strings.Repeat("y", 255), []string{"long"}},
		{"another key that is cut", "key", "k" + strings.Repeat("z", 500), nil},
		{"a key of Do", "key", "charge:ord-7", []string{"job"}},
		{"any part", "any", "ada", []string{"ada", "ada2", "adam", "scoped", "long", "function"}},
		{"any part, escaped", "any", "r:ada", []string{"ada", "ada2", "adam", "scoped", "long", "function"}},
		{"as in a log", "any", idempotent.LogKey(names["adam"]), []string{"adam"}},
		{"a whole name", "any", names["ada2"], []string{"ada2"}},
		{"a beginning", "prefix", "PATCH:", []string{"ada2"}},
		{"the beginning of scoped ones", "prefix", "::", []string{"scoped"}},
		{"by nothing known is any part", "colour", "ord-7", []string{"job"}},
		{"nothing", "any", "nobody", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			body := d.get(http.StatusOK, "?page=search&by="+tt.by+"&q="+url.QueryEscape(tt.text))
			var got []string
			for short, name := range names {
				if strings.Contains(body, strings.ReplaceAll(linkTo(name), "&", "&amp;")) {
					got = append(got, short)
				}
			}
			require.ElementsMatch(t, tt.want, got, body)
		})
	}
	t.Run("without a question", func(t *testing.T) {
		body := d.get(http.StatusOK, "?page=search")
		require.NotContains(t, body, "Results")
	})
	t.Run("the question stays in the form", func(t *testing.T) {
		body := d.get(http.StatusOK, "?page=search&by=principal&q="+url.QueryEscape(`"><script>`))
		require.Contains(t, body, `value="&#34;&gt;&lt;script&gt;"`)
		require.Contains(t, body, `<option value="principal" selected>`)
	})
}

// Only a name that was too long is shown as cut: a # in what Do was given is
// part of the key.
func TestRow_CutNames(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]bool{
		"order#5":                                false,
		"order#":                                 false,
		"a:/b:c:d#5e":                            false,
		idempotent.Key(strings.Repeat("l", 600)): true,
		idempotent.StoreKey("POST", "/orders", "ada", strings.Repeat("k", 600)): true,
		idempotent.StoreKey("POST", "/orders", "ada", "order#5"):                false,
	} {
		d := newDesk(t)
		d.succeed(name)
		require.Equal(t, cut, strings.Contains(d.get(http.StatusOK, "?page=search&by=prefix&q="+url.QueryEscape(name)), "…</a>"), name)
	}
}

// Whatever happens, an answer may not load, run, frame or keep anything.
func TestHeaders(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.succeed("key-1")
	for _, query := range []string{"", "?page=running", "?page=search", "?page=style", "?page=nonsense", d.link("key-1"), "?page=search&key=k"} {
		h := d.do(httptest.NewRequest(http.MethodGet, "/"+query, nil)).Header()
		require.Equal(t, "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'", h.Get("Content-Security-Policy"), query)
		require.Equal(t, "no-store", h.Get("Cache-Control"), query)
		require.Equal(t, "nosniff", h.Get("X-Content-Type-Options"), query)
		require.Equal(t, "same-origin", h.Get("Referrer-Policy"), query)
	}
	require.Equal(t, "text/css; charset=utf-8", d.do(httptest.NewRequest(http.MethodGet, "/?page=style", nil)).Header().Get("Content-Type"))

	w := d.do(httptest.NewRequest(http.MethodPut, "/", nil))
	require.Equal(t, http.StatusMethodNotAllowed, w.Code)
	require.Equal(t, "GET, HEAD, POST", w.Header().Get("Allow"))
	d.get(http.StatusNotFound, "?page=nonsense")
	d.get(http.StatusNotFound, "?page=entry")
	d.get(http.StatusNotFound, "?page=entry&id=%25")
}

// No page has a script, a style of its own, or a link that depends on where it
// is mounted.
func TestPagesAreRelative(t *testing.T) {
	t.Parallel()
	d := newDesk(t, operator())
	d.unknown(idempotent.StoreKey("POST", "/orders", "ada", "key-1"))
	links := regexp.MustCompile(`(?:href|action|src)="([^"]*)"`)
	for _, query := range []string{"", "?page=unknown", "?page=search&q=ada", d.link("POST:"), "?page=nonsense"} {
		w := d.do(httptest.NewRequest(http.MethodGet, "/"+query, nil))
		body := w.Body.String()
		found := links.FindAllStringSubmatch(body, -1)
		require.NotEmpty(t, found)
		for _, m := range found {
			require.True(t, strings.HasPrefix(m[1], "?"), "%s on %q", m[1], query)
		}
		require.NotRegexp(t, `<script|\son\w+=|\sstyle=|<style|<base`, body)
	}
}

// The page works wherever it is mounted: it is followed by its links as a
// browser does it.
func TestMounts(t *testing.T) {
	t.Parallel()
	d := newDesk(t, operator())
	d.unknown(idempotent.StoreKey("POST", "/orders", "ada", "key-1"))
	mux := http.NewServeMux()
	mux.Handle("/", d.page)
	mux.Handle("/exact", d.page)
	mux.Handle("/tree/", d.page)
	mux.Handle("/stripped/", http.StripPrefix("/stripped", d.page))
	mux.Handle("/gone/", http.StripPrefix("/gone/", d.page))
	server := httptest.NewServer(mux)
	defer server.Close()

	read := func(at string) (final *url.URL, body string) {
		resp, err := http.Get(at)
		require.NoError(t, err)
		defer func() { _ = resp.Body.Close() }()
		require.Equal(t, http.StatusOK, resp.StatusCode, at)
		data, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.Request.URL, string(data)
	}
	for _, mount := range []string{"", "/", "/exact", "/tree", "/tree/", "/stripped", "/stripped/", "/gone/"} {
		at, body := read(server.URL + mount)
		style := regexp.MustCompile(`rel="stylesheet" href="([^"]*)"`).FindStringSubmatch(body)[1]
		_, css := read(resolve(t, at, style))
		require.Contains(t, css, "prefers-color-scheme", mount)

		at, body = read(resolve(t, at, linkTo(idempotent.StoreKey("POST", "/orders", "ada", "key-1"))))
		require.Contains(t, body, "key-1")
		// A redirect, too.
		resp, err := http.Get(resolve(t, at, "?page=search&method=POST&path=/orders&principal=ada&key=key-1"))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusOK, resp.StatusCode)
		require.Equal(t, at.Path, resp.Request.URL.Path)
	}
}

func resolve(t *testing.T, base *url.URL, ref string) string {
	t.Helper()
	u, err := base.Parse(strings.ReplaceAll(ref, "&amp;", "&"))
	require.NoError(t, err)
	return u.String()
}

func TestNew_Panics(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	require.PanicsWithValue(t, "inspect: New: the guard is nil; idempotent.New makes one", func() { inspect.New(nil, d.store) })
	require.PanicsWithValue(t, "inspect: New: the store is nil; give the one that the guard was made with", func() { inspect.New(d.guard, nil) })
	require.PanicsWithValue(t, "inspect: New: the store is nil; give the one that the guard was made with", func() { inspect.New(d.guard, (*faulty)(nil)) })
	require.PanicsWithValue(t, "inspect: WithAuthorize: the function is nil; leave the option out for a page that only reads", func() { inspect.WithAuthorize(nil) })
	require.NotPanics(t, func() { inspect.New(d.guard, d.store, nil, inspect.WithLogger(nil)) })
}
