// Package discreet says what of a recorded header may be shown to an operator.
// The inspector and the command line ask it.
package discreet

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

var (
	// secretWords are looked for in the names of fields.
	secretWords = []string{"auth", "cookie", "credential", "csrf", "key", "nonce", "otp", "passw", "secret", "session", "signature", "token", "xsrf"}

	// addressFields hold addresses, in whose queries signed links and one-time
	// tokens stand.
	addressFields = []string{"Location", "Content-Location", "Link", "Refresh"}
)

// Field returns what may be shown of the value of a header field. It is hidden,
// and then its length is told, where the name of the field says that it may be a
// secret; of an address the query is left out.
func Field(name, value string) (shown string, hidden bool) {
	lower := strings.ToLower(name)
	if slices.ContainsFunc(secretWords, func(word string) bool { return strings.Contains(lower, word) }) {
		return fmt.Sprintf("hidden, %d bytes", len(value)), true
	}
	if before, query, found := strings.Cut(value, "?"); found && slices.Contains(addressFields, http.CanonicalHeaderKey(name)) {
		return fmt.Sprintf("%s?… (query hidden, %d bytes)", before, len(query)), false
	}
	return value, false
}
