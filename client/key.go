package client

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"github.com/idempotent-go/idempotent"
)

// The fields that carry a key. Go's own transport knows these two, and sends a
// request that has one of them again where a connection breaks.
const (
	keyField  = "Idempotency-Key"
	xKeyField = "X-Idempotency-Key"
)

const maxKeyBytes = 255

// NewKey returns a new key: a UUIDv7, whose time of creation lets a server
// refuse what comes too late ([idempotent.KeyMaxAge]). It is safe for
// concurrent use, and panics where the system has no randomness.
func NewKey() string { return uuid.Must(uuid.NewV7()).String() }

type keyKey struct{}

// WithKey returns a context whose requests are sent under key: that of an
// earlier attempt, in this process or before it was restarted, or one that
// [idempotent.Derive] returned. It stands for every request that can be keyed,
// so give each operation a context of its own; the same key at another method
// or path is another operation for most servers. A request whose header has a
// key already keeps that one. A key is 1 to 255 printable ASCII characters; any
// other one, "" included, is refused before anything is sent.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, keyKey{}, key)
}

// keyed is a request's key and the header line that carries it.
type keyed struct {
	key   string // "": the request has none
	field string
	line  string
}

// keyOf finds the key of a request, or makes one. Safe methods have none, and
// PUT and DELETE only one that they were given.
func keyOf(r *http.Request) (keyed, error) {
	if k, ok, err := headerKey(r.Header); ok || err != nil {
		return k, err
	}
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodConnect:
		return keyed{}, nil
	}
	ctx := r.Context()
	if key, ok := ctx.Value(keyKey{}).(string); ok {
		return newKeyed(key)
	}
	if r.Response != nil && r.Response.Request != nil {
		// A redirect goes on with the same operation.
		if k, ok, err := headerKey(r.Response.Request.Header); ok || err != nil {
			return k, err
		}
	}
	if r.Method != http.MethodPost && r.Method != http.MethodPatch {
		return keyed{}, nil
	}
	step := idempotent.Key(r.Method, r.URL.Scheme+"://"+r.URL.Host, r.URL.RequestURI())
	if key := idempotent.Derive(ctx, step); key != "" {
		return newKeyed(key)
	}
	return newKeyed(NewKey())
}

// headerKey reads the key that a request has already.
func headerKey(h http.Header) (k keyed, ok bool, err error) {
	for _, field := range []string{keyField, xKeyField} {
		lines, present := h[field]
		if !present {
			continue
		}
		key, err := idempotent.ParseKey(lines)
		if err != nil {
			return keyed{}, false, fmt.Errorf("client: %s: %w", field, err)
		}
		return keyed{key: key, field: field, line: lines[0]}, true, nil
	}
	return keyed{}, false, nil
}

// newKeyed returns the line for a key, in quotes where it needs them: servers
// that take the field as it is see the usual keys without.
func newKeyed(key string) (keyed, error) {
	if key == "" || len(key) > maxKeyBytes {
		return keyed{}, fmt.Errorf("%w: the key has %d bytes; it must have 1 to %d", idempotent.ErrInvalid, len(key), maxKeyBytes)
	}
	bare := true
	for i := range len(key) {
		switch c := key[i]; {
		case c < ' ' || c > '~':
			return keyed{}, fmt.Errorf("%w: the key has a byte that is no printable ASCII character", idempotent.ErrInvalid)
		case c == ' ' || c == ',' || c == ';' || c == '"':
			bare = false
		}
	}
	line := key
	if !bare {
		line = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
	}
	return keyed{key: key, field: keyField, line: line}, nil
}
