package inspect_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"html"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/inspect"
	"github.com/idempotent-go/idempotent/memstore"
)

// desk is the page over a store in memory, and somebody who sits before it.
type desk struct {
	t     *testing.T
	store *faulty
	guard *idempotent.Guard
	page  http.Handler
	log   *bytes.Buffer
}

func newDesk(t *testing.T, opts ...inspect.Option) *desk {
	t.Helper()
	d := &desk{t: t, log: &bytes.Buffer{}}
	mem := memstore.New(memstore.WithSweepInterval(0))
	t.Cleanup(func() { require.NoError(t, mem.Close()) })
	d.store = &faulty{Store: mem, broken: map[string]error{}}
	d.guard = idempotent.New(d.store, idempotent.WithLogger(slog.New(slog.DiscardHandler)))
	d.page = inspect.New(d.guard, d.store, append([]inspect.Option{d.logged()}, opts...)...)
	return d
}

// logged keeps the page's log for the test.
func (d *desk) logged() inspect.Option {
	return inspect.WithLogger(slog.New(slog.NewTextHandler(d.log, nil)))
}

// operator lets everybody act as Olga.
func operator() inspect.Option {
	return inspect.WithAuthorize(func(*http.Request) (string, error) { return "olga", nil })
}

// get returns a page, which must have that status.
func (d *desk) get(status int, query string) string {
	d.t.Helper()
	w := d.do(httptest.NewRequest(http.MethodGet, "/inspect"+query, nil))
	require.Equal(d.t, status, w.Code, w.Body.String())
	return w.Body.String()
}

func (d *desk) do(r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	d.page.ServeHTTP(w, r)
	return w
}

// post sends a form as the page's own form would be sent.
func (d *desk) post(form url.Values) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/inspect?page=entry", strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	return d.do(r)
}

// link returns where the page of a key is, by asking the page.
func (d *desk) link(key string) string {
	d.t.Helper()
	body := d.get(http.StatusOK, "?page=search&by=prefix&q="+url.QueryEscape(key))
	found := regexp.MustCompile(`href="(\?id=[^"]*page=entry)"`).FindStringSubmatch(body)
	require.NotNil(d.t, found, body)
	return html.UnescapeString(found[1])
}

// form returns the fields of the form for an action on the page of a key.
func (d *desk) form(key, action string) url.Values {
	d.t.Helper()
	return formOf(d.t, d.get(http.StatusOK, d.link(key)), action)
}

func formOf(t *testing.T, body, action string) url.Values {
	t.Helper()
	for form := range strings.SplitSeq(body, "<form ") {
		form, _, _ = strings.Cut(form, "</form>")
		if !strings.Contains(form, `name="action" value="`+action+`"`) {
			continue
		}
		fields := url.Values{}
		for _, m := range regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`).FindAllStringSubmatch(form, -1) {
			fields.Set(m[1], html.UnescapeString(m[2]))
		}
		return fields
	}
	require.Fail(t, "no form for "+action, body)
	return nil
}

// claim leaves key pending under an owner.
func (d *desk) claim(key, owner string, lease time.Duration) {
	d.t.Helper()
	_, claimed, err := d.store.Claim(d.t.Context(), key, idempotent.Claim{Owner: owner, Fingerprint: "j1:f", Trace: "trace-1", Lease: lease, Keep: time.Hour})
	require.NoError(d.t, err)
	require.True(d.t, claimed)
}

// finish leaves key with an outcome.
func (d *desk) finish(key, owner string, o idempotent.Outcome) {
	d.t.Helper()
	d.claim(key, owner, time.Minute)
	o.Fingerprint, o.Retention = "j1:f", 24*time.Hour
	require.NoError(d.t, d.store.Complete(d.t.Context(), key, owner, o))
}

func (d *desk) succeed(key string) {
	d.t.Helper()
	d.finish(key, "owner-1", idempotent.Outcome{Status: idempotent.Success, Result: "ok"})
}

// unknown leaves key with an unknown outcome.
func (d *desk) unknown(key string) {
	d.t.Helper()
	d.finish(key, "owner-1", idempotent.Outcome{Status: idempotent.Failed, Unknown: true, Result: "\x00"})
}

func (d *desk) load(key string) (idempotent.Entry, bool) {
	d.t.Helper()
	e, found, err := d.store.Store.Load(d.t.Context(), key)
	require.NoError(d.t, err)
	return e, found
}

// answer is a recorded HTTP answer.
func answer(t *testing.T, status int, h http.Header, body string) string {
	t.Helper()
	result, err := idempotent.EncodeResponse(status, h, []byte(body))
	require.NoError(t, err)
	return result
}

// faulty is a store with records that cannot be read, and other accidents.
type faulty struct {
	idempotent.Store
	broken map[string]error // what Load of a key fails with
	list   error            // what List fails with
}

func (f *faulty) Load(ctx context.Context, key string) (idempotent.Entry, bool, error) {
	if err := f.broken[key]; err != nil {
		return idempotent.Entry{}, false, err
	}
	return f.Store.Load(ctx, key)
}

func (f *faulty) Delete(ctx context.Context, key string) error {
	delete(f.broken, key)
	return idempotent.Delete(ctx, f.Store, key)
}

func (f *faulty) List(ctx context.Context, q idempotent.ListQuery) (idempotent.Page, error) {
	if f.list != nil {
		return idempotent.Page{}, f.list
	}
	page, err := idempotent.List(ctx, f.Store, q)
	if q.Cursor == "" {
		for key, err := range f.broken {
			if errors.Is(err, idempotent.ErrCorrupt) && strings.HasPrefix(key, q.Prefix) {
				page.Corrupt = append(page.Corrupt, key)
			}
		}
	}
	return page, err
}

// plain hides every ability but those of a Store.
type plain struct{ idempotent.Store }

// linkTo is the address of the page of a key; operators get it from the page.
func linkTo(key string) string {
	return "?id=" + base64.RawURLEncoding.EncodeToString([]byte(key)) + "&page=entry"
}
