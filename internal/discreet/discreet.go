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
	secretWords = []string{"auth", "bearer", "cookie", "credential", "csrf", "jwt", "key", "nonce", "otp", "pass", "secret", "session", "signature", "token", "xsrf"}

	// addressFields hold addresses, in whose queries and fragments signed links
	// and tokens stand.
	addressFields = []string{"Location", "Content-Location", "Link", "Refresh"}
)

// Field returns what may be shown of the value of a header field. It is hidden,
// and then its length is told, where the name of the field says that it may be a
// secret; of an address, in whatever field, query and fragment are left out.
func Field(name, value string) (shown string, hidden bool) {
	lower := strings.ToLower(name)
	if slices.ContainsFunc(secretWords, func(word string) bool { return strings.Contains(lower, word) }) {
		return fmt.Sprintf("hidden, %d bytes", len(value)), true
	}
	if i := strings.IndexAny(value, "?#"); i >= 0 && isAddress(name, value) {
		part := "query"
		if value[i] == '#' {
			part = "fragment"
		}
		return fmt.Sprintf("%s… (%s hidden, %d bytes)", value[:i+1], part, len(value)-i-1), false
	}
	return value, false
}

func isAddress(name, value string) bool {
	return slices.Contains(addressFields, http.CanonicalHeaderKey(name)) || strings.HasPrefix(value, "/") || strings.Contains(value, "://")
}
