package browsertest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// requireServers is the environment variable that, set to 1, makes a missing
// browser a failure instead of a skipped test.
const requireServers = "IDEMPOTENT_REQUIRE_SERVERS"

// patience bounds a test. It is reached only when something is wrong.
const patience = 2 * time.Minute

// chromium returns the path of the browser, or ends the test.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv(requireServers) == "1" {
		t.Fatalf("browsertest: no chromium, and %s=1 makes that a failure", requireServers)
	}
	t.Skip("browsertest: no chromium; install it to run this test")
	return ""
}

// browser is one tab, and what went wrong in it.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu         sync.Mutex
	complaints []string // dialogs, exceptions, and what the browser has said of the page
}

// open starts a browser, which ends with the test.
func open(t *testing.T, opts ...chromedp.ExecAllocatorOption) *browser {
	t.Helper()
	opts = append(append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(chromium(t)),
		chromedp.WindowSize(1200, 900),
		chromedp.WSURLReadTimeout(patience),
	), opts...)
	if os.Geteuid() == 0 {
		opts = append(opts, chromedp.NoSandbox) // it does not start for root otherwise
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, opts...)
	t.Cleanup(cancel)
	b := &browser{t: t}
	b.ctx, _ = chromedp.NewContext(ctx, chromedp.WithListener(b.note))
	t.Cleanup(func() { _ = chromedp.Cancel(b.ctx) })
	b.do()
	return b
}

func (b *browser) note(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *page.EventJavascriptDialogOpening:
		b.complaints = append(b.complaints, "dialog: "+e.Message)
		// Left open it would stop the page for good.
		go func() {
			_, _ = chromedp.Call(b.ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: true})
		}()
	case *log.EventEntryAdded:
		b.complaints = append(b.complaints, e.Entry.Text)
	case *runtime.EventExceptionThrown:
		b.complaints = append(b.complaints, e.ExceptionDetails.Text)
	}
}

// complained returns what went wrong, such as something that the page's policy
// forbids.
func (b *browser) complained() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.complaints)
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Do(b.ctx, steps...))
}

func (b *browser) goTo(url string) {
	b.t.Helper()
	b.do(chromedp.Navigate(url))
}

func (b *browser) fill(selector, text string) {
	b.t.Helper()
	b.do(chromedp.SendKeys(chromedp.CSS(selector), text))
}

func (b *browser) click(selector string) {
	b.t.Helper()
	b.do(chromedp.Click(chromedp.CSS(selector)))
}

// follow clicks and waits for the page that it leads to.
func (b *browser) follow(selector string) {
	b.t.Helper()
	_, err := chromedp.RunResponse(b.ctx, chromedp.Click(chromedp.CSS(selector)))
	require.NoError(b.t, err)
}

// text returns the text that is seen of the first element that selector finds.
func (b *browser) text(selector string) string {
	b.t.Helper()
	return run(b, chromedp.Text(chromedp.CSS(selector)))
}

// count returns how many elements selector finds.
func (b *browser) count(selector string) int {
	b.t.Helper()
	return run(b, chromedp.Evaluate[int](fmt.Sprintf("document.querySelectorAll(%q).length", selector)))
}

func run[T any](b *browser, a chromedp.Action[T]) T {
	b.t.Helper()
	value, err := chromedp.Run(b.ctx, a)
	require.NoError(b.t, err)
	return value
}
