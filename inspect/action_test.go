package inspect_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/inspect"
)

const because = "the bank says so"

// decide fills in the form for an action on the page of a key, and sends it.
func (d *desk) decide(key, action string, more ...string) *httptest.ResponseRecorder {
	d.t.Helper()
	form := d.form(key, action)
	form.Set("reason", because)
	for n := 0; n < len(more); n += 2 {
		form.Set(more[n], more[n+1])
	}
	return d.post(form)
}

func TestResolve(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		action string
		more   []string
		status idempotent.Status
		result string
	}{
		{"success", "success", nil, idempotent.Success, "\x00"},
		{"failed", "failed", nil, idempotent.Failed, "\x00"},
		{"success with an answer", "success", []string{"answer", "response", "status", "201", "body", "a\r\nb"}, idempotent.Success, answer(t, 201, nil, "a\nb")},
		{"success with a JSON answer", "success", []string{"answer", "response", "status", "201", "body", `{"id":7}`}, idempotent.Success, answer(t, 201, http.Header{"Content-Type": {"application/json"}}, `{"id":7}`)},
		{"success with a value", "success", []string{"answer", "json", "body", `{"id": 7}`}, idempotent.Success, `j{"id":7}`},
		{"failed with an answer", "failed", []string{"answer", "response", "status", "402", "body", ""}, idempotent.Failed, answer(t, 402, nil, "")},
		{"failed with a text", "failed", []string{"answer", "failure", "body", "no money"}, idempotent.Failed, "eno money"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, operator())
			key := idempotent.StoreKey("POST", "/payments", "user-ada", "pay-1")
			d.unknown(key)
			w := d.decide(key, tt.action, tt.more...)
			require.Equal(t, http.StatusSeeOther, w.Code, w.Body.String())
			e, _ := d.load(key)
			require.Equal(t, tt.status, e.Status)
			require.False(t, e.Unknown)
			require.Equal(t, tt.result, e.Result)
			require.Contains(t, d.get(http.StatusOK, w.Header().Get("Location")), "The outcome is settled.")

			log := d.log.String()
			require.Contains(t, log, `level=WARN msg="idempotent: inspector action" key=`+idempotent.LogKey(key)+` owner=owner-1 who=olga action=`+tt.action+` reason="the bank says so" outcome=done`)
			require.NotContains(t, log, "ada")
			require.NotContains(t, log, "pay-1")
		})
	}
}

func TestFree(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		action string
		before func(d *desk)
	}{
		{"an unknown outcome", "free", func(d *desk) { d.unknown("key-1") }},
		{"an abandoned claim", "free", func(d *desk) {
			d.claim("key-1", "owner-1", time.Millisecond)
			require.Eventually(d.t, func() bool { e, _ := d.load("key-1"); return e.Unknown }, 5*time.Second, time.Millisecond)
		}},
		{"a success", "forget", func(d *desk) { d.succeed("key-1") }},
		{"a failure", "forget", func(d *desk) {
			d.finish("key-1", "owner-1", idempotent.Outcome{Status: idempotent.Failed, Result: "x"})
		}},
		{"a record that cannot be read", "forget", func(d *desk) {
			d.succeed("key-1")
			d.store.broken["key-1"] = idempotent.ErrCorrupt
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, operator())
			tt.before(d)
			form := formOf(t, d.get(http.StatusOK, linkTo("key-1")), tt.action)
			form.Set("reason", because)
			w := d.post(form)
			require.Equal(t, http.StatusSeeOther, w.Code, w.Body.String())
			_, found := d.load("key-1")
			require.False(t, found)
			require.Contains(t, d.get(http.StatusOK, w.Header().Get("Location")), "The key is free.")
			require.Contains(t, d.log.String(), "who=olga action="+tt.action+` reason="the bank says so" outcome=done`)

			// Sent again, as by reloading, it changes nothing.
			require.Equal(t, http.StatusSeeOther, d.post(form).Code)
			// Nor does it touch a newer execution.
			d.finish("key-1", "owner-2", idempotent.Outcome{Status: idempotent.Success, Result: "ok"})
			require.Equal(t, http.StatusConflict, d.post(form).Code)
			_, found = d.load("key-1")
			require.True(t, found)
		})
	}
}

// What has changed since the page was drawn is not overwritten.
func TestActions_Stale(t *testing.T) {
	t.Parallel()
	complete := func(d *desk, owner string) {
		require.NoError(d.t, d.store.Complete(d.t.Context(), "key-1", owner, idempotent.Outcome{Status: idempotent.Success, Result: "paid", Retention: time.Hour}))
	}
	runAgain := func(d *desk) {
		require.NoError(d.t, d.store.Delete(d.t.Context(), "key-1"))
		d.claim("key-1", "owner-2", time.Minute)
	}
	tests := []struct {
		name    string
		action  string
		before  func(d *desk)
		between func(d *desk)
		code    string
		text    string
	}{
		{"become known, success", "failed", (*desk).unknown1, func(d *desk) { complete(d, "owner-1") }, "lost", "The key has moved on"},
		{"become known, freed", "free", (*desk).unknown1, func(d *desk) { complete(d, "owner-1") }, "lost", "The key has moved on"},
		{"another runs", "success", (*desk).unknown1, runAgain, "lost", "The key has moved on"},
		{"another runs, forgotten", "forget", (*desk).succeed1, runAgain, "lost", "The key has moved on"},
		{"another has finished, forgotten", "forget", (*desk).succeed1, func(d *desk) { runAgain(d); complete(d, "owner-2") }, "lost", "The key has moved on"},
		{"gone", "success", (*desk).unknown1, func(d *desk) { require.NoError(d.t, d.store.Delete(d.t.Context(), "key-1")) }, "lost", "The key has moved on"},
		{"the owner is back", "success", func(d *desk) {
			d.claim("key-1", "owner-1", time.Millisecond)
			require.Eventually(d.t, func() bool { e, _ := d.load("key-1"); return e.Unknown }, 5*time.Second, time.Millisecond)
		}, func(d *desk) { require.NoError(d.t, d.store.Renew(d.t.Context(), "key-1", "owner-1", time.Minute)) }, "in-flight", "The operation is running"},
		{"cannot be read", "success", (*desk).unknown1, func(d *desk) { d.store.broken["key-1"] = idempotent.ErrCorrupt }, "corrupt", "The record cannot be read"},
		{"cannot be read, forgotten", "forget", (*desk).succeed1, func(d *desk) { d.store.broken["key-1"] = idempotent.ErrCorrupt }, "corrupt", "The record cannot be read"},
		{"a newer release", "forget", (*desk).succeed1, func(d *desk) { d.store.broken["key-1"] = idempotent.ErrNewerFormat }, "newer-format", "A newer release"},
		{"the store is away", "success", (*desk).unknown1, func(d *desk) { d.store.broken["key-1"] = errors.New("disk on fire") }, "store-error", "The store did not answer"},
		{"the store is away, forgotten", "forget", (*desk).succeed1, func(d *desk) { d.store.broken["key-1"] = errors.New("disk on fire") }, "store-error", "The store did not answer"},
		{"readable again", "forget", func(d *desk) { d.store.broken["key-1"] = idempotent.ErrCorrupt; d.unknown1() }, func(d *desk) { delete(d.store.broken, "key-1") }, "lost", "The key has moved on"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, operator())
			tt.before(d)
			form := formOf(t, d.get(http.StatusOK, linkTo("key-1")), tt.action)
			form.Set("reason", because)
			tt.between(d)
			was, found := d.load("key-1")

			w := d.post(form)
			require.Contains(t, []int{http.StatusConflict, http.StatusServiceUnavailable}, w.Code)
			require.Contains(t, w.Body.String(), tt.text)
			require.Contains(t, w.Body.String(), "Look at the key again")
			require.NotContains(t, w.Body.String(), "fire")
			now, still := d.load("key-1")
			require.Equal(t, found, still)
			require.Equal(t, was, now)
			require.Contains(t, d.log.String(), "who=olga action="+tt.action+` reason="the bank says so" outcome=`+tt.code)
		})
	}
}

func (d *desk) unknown1() { d.unknown("key-1") }
func (d *desk) succeed1() { d.succeed("key-1") }

// The page offers to forget known outcomes only, and a made-up form does no more.
func TestForget_KnownOutcomesOnly(t *testing.T) {
	t.Parallel()
	d := newDesk(t, operator())
	d.unknown1()
	form := d.form("key-1", "free")
	form.Set("action", "forget")
	form.Set("reason", because)
	w := d.post(form)
	require.Equal(t, http.StatusConflict, w.Code)
	require.Contains(t, w.Body.String(), "The key has moved on")

	require.NoError(t, d.store.Delete(t.Context(), "key-1"))
	d.claim("key-1", "owner-1", time.Minute)
	w = d.post(form)
	require.Equal(t, http.StatusConflict, w.Code)
	require.Contains(t, w.Body.String(), "The operation is running")
	_, found := d.load("key-1")
	require.True(t, found)
}

func TestForget_StoreCannotDelete(t *testing.T) {
	t.Parallel()
	d := newDesk(t, operator())
	d.succeed1()
	form := d.form("key-1", "forget")
	form.Set("reason", because)
	d.page = inspect.New(d.guard, plain{d.store}, d.logged(), operator())
	w := d.post(form)
	require.Equal(t, http.StatusConflict, w.Code)
	require.Contains(t, w.Body.String(), "This store cannot delete a key")
	_, found := d.load("key-1")
	require.True(t, found)
}

// A form that lacks something changes nothing.
func TestActions_BadForms(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(form url.Values)
		text   string
	}{
		{"no reason", func(f url.Values) { f.Del("reason") }, "A reason is missing"},
		{"a blank reason", func(f url.Values) { f.Set("reason", " \t\n") }, "A reason is missing"},
		{"a long reason", func(f url.Values) { f.Set("reason", strings.Repeat("r", 1001)) }, "The reason is too long"},
		{"no action", func(f url.Values) { f.Del("action") }, "The form cannot be read"},
		{"another action", func(f url.Values) { f.Set("action", "run") }, "The form cannot be read"},
		{"no key", func(f url.Values) { f.Del("id") }, "The form cannot be read"},
		{"no base64", func(f url.Values) { f.Set("id", "%") }, "The form cannot be read"},
		{"no owner", func(f url.Values) { f.Del("owner") }, "The form cannot be read"},
		{"an owner that is no base64", func(f url.Values) { f.Set("owner", "%") }, "The form cannot be read"},
		{"too large", func(f url.Values) { f.Set("body", strings.Repeat("b", 2<<20)) }, "The form cannot be read"},
		{"no status", func(f url.Values) { f.Set("answer", "response") }, "The answer for repeats does not fit"},
		{"an impossible status", func(f url.Values) { f.Set("answer", "response"); f.Set("status", "99") }, "The answer for repeats does not fit"},
		{"a body where none may be", func(f url.Values) { f.Set("answer", "response"); f.Set("status", "204"); f.Set("body", "b") }, "The answer for repeats does not fit"},
		{"a value that is no JSON", func(f url.Values) { f.Set("answer", "json"); f.Set("body", "{") }, "The answer for repeats does not fit"},
		{"an error's text for a success", func(f url.Values) { f.Set("answer", "failure") }, "The answer for repeats does not fit"},
		{"an unknown answer", func(f url.Values) { f.Set("answer", "xml") }, "The answer for repeats does not fit"},
		{"an answer for a freed key", func(f url.Values) {
			f.Set("action", "free")
			f.Set("answer", "response")
			f.Set("status", "200")
		}, "The answer for repeats does not fit"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, operator())
			d.unknown1()
			form := d.form("key-1", "success")
			form.Set("reason", because)
			tt.change(form)
			w := d.post(form)
			require.Equal(t, http.StatusBadRequest, w.Code)
			require.Contains(t, w.Body.String(), tt.text)
			e, _ := d.load("key-1")
			require.True(t, e.Unknown)
			require.Empty(t, d.log.String())
		})
	}
	t.Run("no form at all", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t, operator())
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(`{"action":"free"}`))
		r.Header.Set("Content-Type", "application/json")
		require.Equal(t, http.StatusBadRequest, d.do(r).Code)
	})
	t.Run("an address is no form", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t, operator())
		d.unknown1()
		form := d.form("key-1", "free")
		form.Set("reason", because)
		require.Equal(t, http.StatusBadRequest, d.do(httptest.NewRequest(http.MethodPost, "/?"+form.Encode(), nil)).Code)
		require.NotEqual(t, http.StatusSeeOther, d.do(httptest.NewRequest(http.MethodGet, "/?"+form.Encode(), nil)).Code)
		e, _ := d.load("key-1")
		require.True(t, e.Unknown)
	})
}

func TestReadOnly(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		opts []inspect.Option
	}{
		{"by default", nil},
		{"an error", []inspect.Option{inspect.WithAuthorize(func(*http.Request) (string, error) { return "olga", errors.New("s3cret reason") })}},
		{"nobody", []inspect.Option{inspect.WithAuthorize(func(*http.Request) (string, error) { return "", nil })}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			allowed := newDesk(t, operator())
			allowed.unknown1()
			form := allowed.form("key-1", "free")
			form.Set("reason", because)

			d := newDesk(t, tt.opts...)
			d.unknown1()
			body := d.get(http.StatusOK, linkTo("key-1"))
			require.NotContains(t, body, `method="post"`)
			require.NotContains(t, body, "Free the key")
			require.Contains(t, body, "You may only read.")
			w := d.post(form)
			require.Equal(t, http.StatusForbidden, w.Code)
			require.Contains(t, w.Body.String(), "You may only read")
			require.NotContains(t, w.Body.String(), "s3cret")
			e, _ := d.load("key-1")
			require.True(t, e.Unknown)
		})
	}
}

func TestCrossOrigin(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		header http.Header
		want   int
	}{
		{"same origin", http.Header{"Sec-Fetch-Site": {"same-origin"}}, http.StatusSeeOther},
		{"another site", http.Header{"Sec-Fetch-Site": {"cross-site"}}, http.StatusForbidden},
		{"a sibling", http.Header{"Sec-Fetch-Site": {"same-site"}}, http.StatusForbidden},
		{"an old browser, same origin", http.Header{"Origin": {"https://example.com"}}, http.StatusSeeOther},
		{"an old browser, another site", http.Header{"Origin": {"https://evil.example"}}, http.StatusForbidden},
		{"no origin to tell", http.Header{"Origin": {"null"}}, http.StatusForbidden},
		{"no browser", nil, http.StatusSeeOther},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, operator())
			d.unknown1()
			form := d.form("key-1", "free")
			form.Set("reason", because)
			r := httptest.NewRequest(http.MethodPost, "https://example.com/?page=entry", strings.NewReader(form.Encode()))
			r.Header = tt.header.Clone()
			if r.Header == nil {
				r.Header = http.Header{}
			}
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			w := d.do(r)
			require.Equal(t, tt.want, w.Code)
			_, found := d.load("key-1")
			require.Equal(t, tt.want == http.StatusForbidden, found)
			if found {
				require.Contains(t, w.Body.String(), "sent from another site")
				require.Contains(t, w.Header().Get("Content-Security-Policy"), "default-src 'none'")
			}
		})
	}
}

// Who acts is asked of each request, and is text from outside as a reason is.
func TestWho(t *testing.T) {
	t.Parallel()
	type key struct{}
	d := newDesk(t, inspect.WithAuthorize(func(r *http.Request) (string, error) {
		who, _ := r.Context().Value(key{}).(string)
		return who, nil
	}))
	page := d.page
	d.page = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), key{}, `<b>"kim"`)))
	})
	d.unknown1()
	require.Contains(t, d.get(http.StatusOK, linkTo("key-1")), "&lt;b&gt;&#34;kim&#34;")
	require.Equal(t, http.StatusSeeOther, d.decide("key-1", "free", "reason", "line one\nmsg=forged").Code)
	require.Contains(t, d.log.String(), `who="<b>\"kim\"" action=free reason="line one\nmsg=forged"`)
}
