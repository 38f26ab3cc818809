package discreet_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/internal/discreet"
)

func TestField(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, value, shown string
		hidden             bool
	}{
		{"Content-Type", "text/plain", "text/plain", false},
		{"Set-Cookie", "a=b", "hidden, 3 bytes", true},
		{"authorization", "Bearer x", "hidden, 8 bytes", true},
		{"X-Api-Key", "s3cret", "hidden, 6 bytes", true},
		{"x-session-id", "7", "hidden, 1 bytes", true},
		{"X-CSRF", "7", "hidden, 1 bytes", true},
		{"Location", "/orders/7", "/orders/7", false},
		{"location", "/reset?token=1", "/reset?… (query hidden, 7 bytes)", false},
		{"Location", "https://app/back#access_token=1&state=2", "https://app/back#… (fragment hidden, 22 bytes)", false},
		{"Location", "/back#?a=1", "/back#… (fragment hidden, 4 bytes)", false},
		{"X-Download", "https://files/1?sig=2", "https://files/1?… (query hidden, 5 bytes)", false},
		{"Hx-Redirect", "/reset?code=1", "/reset?… (query hidden, 6 bytes)", false},
		{"X-Jwt-Assertion", "eyJh", "hidden, 4 bytes", true},
		{"X-Bearer", "eyJh", "hidden, 4 bytes", true},
		{"X-Passphrase", "open", "hidden, 4 bytes", true},
		{"X-Note", "what?", "what?", false},
		{"X-Note", "#1", "#1", false},
	} {
		shown, hidden := discreet.Field(c.name, c.value)
		require.Equal(t, c.shown, shown, c.name)
		require.Equal(t, c.hidden, hidden, c.name)
	}
}
