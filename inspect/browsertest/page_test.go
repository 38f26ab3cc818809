package browsertest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

// find goes to the page of a key, as somebody does who has it from a customer.
func (s *scene) find(b *browser, text string) {
	s.t.Helper()
	b.goTo(s.url)
	b.fill("#top-q", text)
	b.follow("header button")
	b.follow("tbody td:nth-child(4) a")
	require.Equal(s.t, text, b.text("h1"))
}

func TestLoadSearchOpen(t *testing.T) {
	b, s := open(t), newScene(t)
	b.goTo(s.url)
	require.Equal(t, "The last hour", b.text("h1"))
	require.Equal(t, 4, b.count("svg"))
	require.Greater(t, b.count("figure.success rect"), 30)
	require.Equal(t, 3, b.count("figure.unknown rect"))
	require.Contains(t, b.text("main"), "lease ")
	require.Equal(t, 3, b.count(".state.running"))
	require.Equal(t, 3, b.count(".state.unknown"))
	require.NotEqual(t, "rgb(0, 0, 0)", run(b, chromedp.Evaluate[string](`getComputedStyle(document.querySelector("figure.unknown rect")).fill`)), "the style sheet is there")

	s.find(b, "pay-0192f4c7")
	require.Equal(t, "unknown", b.text(".lead .state"))
	text := b.text("main")
	require.Contains(t, text, "user-ada")
	require.Contains(t, text, "502 Bad Gateway")
	require.Contains(t, text, `{"error":"the payment provider gave no clear answer"}`)
	require.NotContains(t, text, "5ec4e7", "secrets are hidden")

	// By principal: from the link on the page.
	b.follow("dd a.code")
	require.Greater(t, b.count("tbody tr"), 50)
	require.Equal(t, "user-ada", b.text("tbody td:nth-child(3)"))
	require.Empty(t, b.complained(), "nothing breaks the page's policy")
}

func TestStoredScriptStaysText(t *testing.T) {
	b, s := open(t), newScene(t)
	s.find(b, "attack")
	require.Equal(t, attack, b.text("pre.body"))
	require.Zero(t, b.count("script"))
	require.Zero(t, b.count("img"))
	require.Equal(t, "Key · Idempotency inspector", run(b, chromedp.Title()))
	require.Empty(t, b.complained(), "no dialog, nothing refused")
}

func TestResolveAndFree(t *testing.T) {
	b, s := open(t), newScene(t)
	paid := name("POST", "/payments", "user-ada", "pay-0192f4c7")
	lost := name("POST", "/payments", "user-bob", "pay-0192f3a1")

	// Without a reason the browser does not send the form.
	s.find(b, "pay-0192f4c7")
	b.click("form:has(#reason-success) button")
	require.True(t, run(b, chromedp.Evaluate[bool](`document.querySelector("#reason-success").validity.valueMissing`)))
	e, _ := s.load(paid)
	require.True(t, e.Unknown)

	b.fill("#reason-success", "the provider's statement shows it")
	b.follow(`form:has(#reason-success) button`)
	require.Equal(t, "success", b.text(".lead .state"))
	require.Contains(t, b.text("[role=status]"), "The outcome is settled.")
	e, _ = s.load(paid)
	require.Equal(t, idempotent.Success, e.Status)

	s.find(b, "pay-0192f3a1")
	b.fill("#reason-free", "the provider never saw it")
	b.follow(`form:has(#reason-free) button`)
	require.Contains(t, b.text("[role=status]"), "The key is free.")
	_, found := s.load(lost)
	require.False(t, found)

	log := s.log.String()
	require.Contains(t, log, "key="+idempotent.LogKey(paid)+` owner=5OVEXAMPLEOWNER7 who=olga@example.com action=success reason="the provider's statement shows it" outcome=done`)
	require.Contains(t, log, "key="+idempotent.LogKey(lost)+` owner=5OVEXAMPLEOWNER7 who=olga@example.com action=free reason="the provider never saw it" outcome=done`)
	require.NotContains(t, log, "pay-0192")
	require.Empty(t, b.complained())
}

// Two people have the same key before them: the second one is told.
func TestDecidedMeanwhile(t *testing.T) {
	b, s := open(t), newScene(t)
	key := name("POST", "/payments", "user-ada", "pay-0192f4c7")
	s.find(b, "pay-0192f4c7")
	require.NoError(t, s.store.Complete(t.Context(), key, "5OVEXAMPLEOWNER7", idempotent.Outcome{Status: idempotent.Success, Result: "paid", Retention: patience}))
	b.fill("#reason-free", "the provider never saw it")
	b.follow(`form:has(#reason-free) button`)
	require.Equal(t, "The key has moved on", b.text("h1"))
	b.follow("main p a")
	require.Equal(t, "success", b.text(".lead .state"))
}

// A page of another site has the operator's browser send a complete form.
func TestPostFromAnotherSiteIsRefused(t *testing.T) {
	b, s := open(t), newScene(t)
	key := name("POST", "/payments", "user-ada", "pay-0192f4c7")
	s.find(b, "pay-0192f4c7")
	id := run(b, chromedp.Value(chromedp.CSS("form:has(#reason-free) [name=id]"), chromedp.NodeReady))
	owner := run(b, chromedp.Value(chromedp.CSS("form:has(#reason-free) [name=owner]"), chromedp.NodeReady))
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprintf(w, `<form method="post" action="%s"><input name="id" value="%s"><input name="owner" value="%s">
<input name="action" value="free"><input name="reason" value="a prize"><button>Win</button></form>`, s.url, id, owner)
	}))
	defer evil.Close()
	// localhost is another site than 127.0.0.1.
	b.goTo(strings.Replace(evil.URL, "127.0.0.1", "localhost", 1))
	b.follow("button")
	require.Equal(t, "Refused: sent from another site", b.text("h1"))
	e, found := s.load(key)
	require.True(t, found)
	require.True(t, e.Unknown)
	require.Empty(t, s.log.String())

	// The same form, sent by the page, is carried out.
	s.find(b, "pay-0192f4c7")
	b.fill("#reason-free", "no prize")
	b.follow(`form:has(#reason-free) button`)
	_, found = s.load(key)
	require.False(t, found)
}

func TestWithoutJavaScript(t *testing.T) {
	b, s := open(t), newScene(t)
	_, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	require.NoError(t, err)
	// What shows that it is off.
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprint(w, `<p>off</p><script>document.querySelector("p").textContent = "on"</script>`)
	}))
	defer plain.Close()
	b.goTo(plain.URL)
	require.Equal(t, "off", b.text("p"))

	s.find(b, "pay-0192f4c7")
	require.Contains(t, b.text("main"), "502 Bad Gateway")
	b.follow(`nav a[href="?page=unknown"]`)
	require.Equal(t, 3, b.count(".state.unknown"))
	b.follow("nav .brand")
	b.click("summary")
	require.Contains(t, b.text("details"), "Unknown")
	require.Equal(t, 12, b.count("details tbody tr"))
}

// TestScreenshots takes the pictures of the README, and writes them where it is
// asked to; see the documentation of the package.
func TestScreenshots(t *testing.T) {
	b, s := open(t, chromedp.Flag("hide-scrollbars", true)), newScene(t)
	take := func(file string, height int64) {
		b.do(chromedp.EmulateViewport(1200, height))
		png := run(b, chromedp.CaptureScreenshot())
		require.Less(t, len(png), 150_000, file)
		if dir := os.Getenv("IDEMPOTENT_SCREENSHOTS"); dir != "" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, file), png, 0o644))
		}
	}
	b.goTo(s.url)
	take("inspector.png", 1080)
	s.find(b, "pay-0192f4c7")
	take("inspector-entry.png", 1320)
}
