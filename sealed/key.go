package sealed

import (
	"crypto/hkdf"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The bounds of a [Key].
const (
	MinSecretBytes = 32
	MaxIDBytes     = 255
)

// Key is one secret and the name by which results refer to it.
type Key struct {
	// ID is kept in the clear with every result: 1 to 255 bytes that never
	// stand for another secret, such as a month.
	ID string

	// Secret is 32 bytes or more from a source of randomness, the same on
	// every instance. A password is none: it can be guessed.
	Secret []byte `json:"-"`
}

// String returns the ID, so that printing a Key does not print its secret.
func (k Key) String() string { return k.ID }

// GoString returns what String does, for %#v.
func (k Key) GoString() string { return k.ID }

// Keys is an ordered set of keys, made by [NewKeys]. It is a value that does
// not change and prints no secret.
type Keys struct {
	ring *ring
}

// ring is behind a pointer, so that fmt does not reach it.
type ring struct {
	first  string
	master map[string][]byte // by ID: the pseudorandom key that HKDF extracted from the secret
}

// NewKeys returns the set of keys whose first one seals, and all of which open.
// The secrets are copied. It is an error if there is no key, two have one ID,
// or one is not as [Key] says.
func NewKeys(keys ...Key) (Keys, error) {
	if len(keys) == 0 {
		return Keys{}, fmt.Errorf("sealed: no key; give the one that seals first, then older ones")
	}
	r := &ring{first: keys[0].ID, master: make(map[string][]byte, len(keys))}
	for _, k := range keys {
		switch {
		case k.ID == "" || len(k.ID) > MaxIDBytes:
			return Keys{}, fmt.Errorf("sealed: the ID of a key has %d bytes; use 1 to %d", len(k.ID), MaxIDBytes)
		case r.master[k.ID] != nil:
			return Keys{}, fmt.Errorf("sealed: two keys are called %q; an ID stands for one secret", k.ID)
		case len(k.Secret) < MinSecretBytes:
			return Keys{}, fmt.Errorf("sealed: the secret of key %q has %d bytes; use %d or more from crypto/rand", k.ID, len(k.Secret), MinSecretBytes)
		}
		master, err := hkdf.Extract(sha256.New, k.Secret, []byte(domain))
		if err != nil {
			return Keys{}, fmt.Errorf("sealed: key %q: %w", k.ID, err)
		}
		r.master[k.ID] = master
	}
	return Keys{r}, nil
}

// ids lists the keys for the text of an error.
func (r *ring) ids() string {
	return fmt.Sprintf("%q", strings.Join(slices.Sorted(maps.Keys(r.master)), ", "))
}
