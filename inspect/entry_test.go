package inspect_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

func TestEntry_Life(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, operator())
		name := idempotent.StoreKey("POST", "/orders", "user ada", "key-1")
		d.claim(name, "owner-7", time.Minute)
		time.Sleep(20 * time.Second)

		body := d.get(http.StatusOK, linkTo(name))
		e, _ := d.load(name)
		for _, want := range []string{
			`class="state running"`, "20 s ago", "in 40 s, unless it is renewed", "owner-7", "trace-1", "j1:f",
			"POST:/orders:user%20ada:key-1", ">user ada<", idempotent.LogKey(name),
			"2000-01-01 00:00:00 UTC", e.Expires.UTC().Format("2006-01-02 15:04:05 UTC"),
			"While it runs nothing can be done here.", "told that the operation is in flight",
		} {
			require.Contains(t, body, want)
		}
		require.NotContains(t, body, `method="post"`)

		time.Sleep(time.Minute) // the lease lapses
		body = d.get(http.StatusOK, linkTo(name))
		for _, want := range []string{
			`class="state unknown"`, "Its lease lapsed without an outcome", "Repeats are told that the outcome is unknown.", "lease lapsed", "1 min after the claim",
			"only when the process that held the key is known to be dead", "Resolve as success", "Resolve as failed", "Free the key",
		} {
			require.Contains(t, body, want)
		}

		require.NoError(t, d.store.Complete(t.Context(), name, "owner-7", idempotent.Outcome{
			Status: idempotent.Success, Result: answer(t, 201, nil, "made"), Fingerprint: "j1:f", Retention: 24 * time.Hour,
		}))
		body = d.get(http.StatusOK, linkTo(name))
		for _, want := range []string{`class="state success"`, "1 min 20 s after the claim", "in 1 d", "201 Created", ">made<", "HTTP answer (middleware)"} {
			require.Contains(t, body, want)
		}
		require.NotContains(t, body, "Resolve as")
	})
}

func TestEntry_TakenOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		c := idempotent.Claim{Owner: "owner-1", Lease: time.Second, Keep: time.Hour, TakeOver: true}
		_, _, err := d.store.Claim(t.Context(), "key-1", c)
		require.NoError(t, err)
		time.Sleep(time.Minute)
		c.Owner = "owner-2"
		_, claimed, err := d.store.Claim(t.Context(), "key-1", c)
		require.NoError(t, err)
		require.True(t, claimed)
		body := d.get(http.StatusOK, linkTo("key-1"))
		require.Contains(t, body, "first claimed")
		require.Contains(t, body, "claimed again")
		require.Contains(t, body, "owner-2")
	})
}

func TestEntry_Result(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	value, err := idempotent.EncodeValue(map[string]int{"id": 7})
	require.NoError(t, err)
	sixteen := strings.Repeat("a", 16<<10-1)
	tests := []struct {
		name    string
		outcome idempotent.Outcome
		want    []string
		without []string
	}{
		{
			name:    "a script stays text",
			outcome: idempotent.Outcome{Status: idempotent.Success, Result: answer(t, 200, http.Header{"Content-Type": {"text/html"}, "X-Note": {"<img src=x>"}}, `<script>alert("1")</script></pre>`)},
			want:    []string{"&lt;script&gt;alert(&#34;1&#34;)&lt;/script&gt;&lt;/pre&gt;", "&lt;img src=x&gt;"},
			without: []string{"<script", "<img"},
		},
		{
			name: "secrets are hidden",
			outcome: idempotent.Outcome{Status: idempotent.Success, Result: answer(t, 200, http.Header{
				"Authorization": {"s3cret-a"}, "X-Auth-Thing": {"s3cret-b"}, "X-Access-Token": {"s3cret-c"}, "Api-Key": {"s3cret-d"}, "Cookie": {"s3cret-e"},
				"Set-Cookie2": {"s3cret-f"}, "x-SESSION-id": {"s3cret-g"}, "Signature": {"s3cret-h"}, "Location": {"/reset?t=s3cret-i"}, "Link": {"<https://x/?t=s3cret-j>"}, "X-Plain": {"shown"},
			}, "")},
			want:    []string{"hidden, 8 bytes", "/reset?… (query hidden, 10 bytes)", ">shown<"},
			without: []string{"s3cret"},
		},
		{
			name:    "cookies that were kept are hidden",
			outcome: idempotent.Outcome{Status: idempotent.Success, Result: "h\x01\x00\xc8\x01\x01\x08\x0aSet-Cookie\x08s3cret-a\x010"},
			want:    []string{"Set-Cookie", "hidden, 8 bytes"},
			without: []string{"s3cret"},
		},
		{
			name:    "a long field",
			outcome: idempotent.Outcome{Status: idempotent.Success, Result: answer(t, 200, http.Header{"X-Long": {strings.Repeat("v", 5000)}}, "")},
			want:    []string{"3976 bytes more"},
			without: []string{strings.Repeat("v", 1025)},
		},
		{
			name:    "a long body is cut between characters",
			outcome: idempotent.Outcome{Status: idempotent.Success, Result: answer(t, 200, nil, sixteen+"é"+strings.Repeat("z", 99))},
			want:    []string{sixteen + "</pre>", "101 bytes more are not shown", "16484 bytes"},
			without: []string{"zzz", "not text"},
		},
		{
			name:    "16 KiB are shown",
			outcome: idempotent.Outcome{Status: idempotent.Success, Result: answer(t, 200, nil, sixteen+"b")},
			want:    []string{"ab</pre>"},
			without: []string{"not shown"},
		},
		{
			name:    "what is no text is shown in hex",
			outcome: idempotent.Outcome{Status: idempotent.Success, Result: answer(t, 200, nil, "\x89PNG\x00"+strings.Repeat("\xff", 2000))},
			want:    []string{"not text, shown in hex", "89 50 4e 47 00 ff", "981 bytes more"},
		},
		{
			name:    "text that would turn the order around",
			outcome: idempotent.Outcome{Status: idempotent.Success, Result: answer(t, 200, nil, "a\u202eb")},
			want:    []string{"a\ufffdb"},
			without: []string{"\u202e"},
		},
		{
			name:    "blanks and ends of lines of any kind",
			outcome: idempotent.Outcome{Status: idempotent.Success, Result: answer(t, 200, nil, "10\u00a0000\u202f€\r\nend")},
			want:    []string{"10\u00a0000\u202f€\r\nend</pre>"},
			without: []string{"\ufffd"},
		},
		{
			name:    "an answer that was too large",
			outcome: idempotent.Outcome{Status: idempotent.Success, Result: "h\x01\x01\xc9\x01\x00\x010"},
			want:    []string{"201 Created", "repeats get 409 result-unavailable"},
			without: []string{"<pre"},
		},
		{
			name:    "an answer that is cut",
			outcome: idempotent.Outcome{Status: idempotent.Success, Result: "h\x01\x00\xc9\x01\x00\x015"},
			want:    []string{"HTTP answer that cannot be read"},
		},
		{
			name:    "an answer of a newer release",
			outcome: idempotent.Outcome{Status: idempotent.Success, Result: "h\x02new"},
			want:    []string{"a newer release recorded"},
		},
		{name: "a value", outcome: idempotent.Outcome{Status: idempotent.Success, Result: value}, want: []string{"JSON value (Do)", "{&#34;id&#34;:7}"}},
		{name: "a codec's value", outcome: idempotent.Outcome{Status: idempotent.Success, Result: "c\x00\x01"}, want: []string{"in the codec of the call", "00 01"}},
		{name: "no value", outcome: idempotent.Outcome{Status: idempotent.Success, Result: "n"}, want: []string{"success without a value"}, without: []string{"<pre"}},
		{name: "a failure", outcome: idempotent.Outcome{Status: idempotent.Failed, Result: idempotent.EncodeFailure(errors.New("no <money>"))}, want: []string{"text of a definite failure", "no &lt;money&gt;"}},
		{name: "a text", outcome: idempotent.Outcome{Status: idempotent.Success, Result: "ord-1"}, want: []string{"text of Guard.Run", ">ord-1<"}},
		{name: "an empty text", outcome: idempotent.Outcome{Status: idempotent.Success}, want: []string{"text of Guard.Run", "0 bytes"}, without: []string{"<pre"}},
		{name: "a success without its result", outcome: idempotent.Outcome{Status: idempotent.Success, Result: "\x00"}, want: []string{"<dd>none</dd>", "the result is not available"}},
		{name: "no result", outcome: idempotent.Outcome{Status: idempotent.Failed, Unknown: true, Result: "\x00"}, want: []string{"<dd>none</dd>", "aborted and its outcome is unknown"}, without: []string{"<pre"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			key := strings.ReplaceAll(tt.name, " ", "-")
			d.finish(key, "owner-1", tt.outcome)
			body := d.get(http.StatusOK, linkTo(key))
			for _, want := range tt.want {
				require.Contains(t, body, want)
			}
			for _, without := range tt.without {
				require.NotContains(t, body, without)
			}
		})
	}
}

// A key is text from outside wherever it stands, and may be any bytes.
func TestEntry_OddKeys(t *testing.T) {
	t.Parallel()
	d := newDesk(t, operator())
	for _, key := range []string{
		idempotent.StoreKey("POST", "/<script>", "<script>", `"><script>alert(1)</script>`),
		"<script>alert(1)</script>", "a\r\nb", "\xff\xfe", "\x00", "a&b=c#d?e", "%", "é", strings.Repeat("k", 5000), "::#", ":::", "a:/b:%zz:d",
	} {
		d.unknown(key)
		body := d.get(http.StatusOK, d.link(key))
		require.NotContains(t, body, "<script")
		require.NotContains(t, d.get(http.StatusOK, ""), "<script")

		form := formOf(t, body, "free")
		form.Set("reason", "it never arrived")
		require.Equal(t, http.StatusSeeOther, d.post(form).Code, "%q", key)
		_, found := d.load(key)
		require.False(t, found, "%q", key)
	}
}

func TestEntry_Trouble(t *testing.T) {
	t.Parallel()
	d := newDesk(t, operator())
	d.store.broken["corrupt-key"] = idempotent.ErrCorrupt
	d.store.broken["newer-key"] = idempotent.ErrNewerFormat
	d.store.broken["away-key-1"] = errors.New("away-key-1: disk on fire")

	require.Contains(t, d.get(http.StatusOK, linkTo("corrupt-key")), "cannot be read")
	require.Contains(t, d.get(http.StatusOK, linkTo("corrupt-key")), "Free the key")
	newer := d.get(http.StatusOK, linkTo("newer-key"))
	require.Contains(t, newer, "A newer release")
	require.NotContains(t, newer, "Free the key")
	away := d.get(http.StatusServiceUnavailable, linkTo("away-key-1"))
	require.Contains(t, away, "The store did not answer")
	require.NotContains(t, away, "fire")
	require.NotContains(t, away, `method="post"`)
	absent := d.get(http.StatusNotFound, linkTo("absent"))
	require.Contains(t, absent, "Nothing is recorded under this key")
	require.NotContains(t, absent, `method="post"`)

	require.Contains(t, d.log.String(), "disk on fire")
	require.NotContains(t, d.log.String(), "away-key-1")
	require.Contains(t, d.log.String(), "key="+idempotent.LogKey("away-key-1"))
}
