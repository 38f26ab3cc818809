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
		{"X-Note", "what?", "what?", false},
	} {
		shown, hidden := discreet.Field(c.name, c.value)
		require.Equal(t, c.shown, shown, c.name)
		require.Equal(t, c.hidden, hidden, c.name)
	}
}
