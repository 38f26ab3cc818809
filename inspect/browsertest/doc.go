// Package browsertest holds tests of package inspect in a real browser, headless
// Chromium. It is a module of its own so that what drives the browser is no
// dependency of the library.
//
// Where no Chromium is installed the tests are skipped with the reason; with
// IDEMPOTENT_REQUIRE_SERVERS=1 they fail. IDEMPOTENT_SCREENSHOTS=DIR makes
// TestScreenshots write the pictures of the README into DIR:
//
//	IDEMPOTENT_SCREENSHOTS=$PWD/docs/screenshots go test -run TestScreenshots ./inspect/browsertest
package browsertest
