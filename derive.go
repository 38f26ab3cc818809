package idempotent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
)

// deriveVersion keeps derived keys apart from other digests of the same texts,
// and from those of a later release that derives them otherwise.
const deriveVersion = "idempotent-derive-1"

// Derive returns the key for a call that an operation itself makes, so that
// the next service can tell a repeat from a new call: Derive(ctx, "charge").
// It is the same on every attempt of the same operation, since it depends on
// the store name of its key and on step alone, and another one for every other
// key or step. Calls of one operation that are meant to happen both need two
// steps, such as Key("mail", address).
//
// The key is 64 hex digits, a SHA-256: it tells nothing of principal or client
// key, and whoever does not know the store name cannot guess it. Services that
// share an account at the next one and could see equal keys at equal paths put
// their own name into step.
//
// Outside an operation, and for an empty step, it is "", which every store and
// every middleware of this package refuses: a forgotten context is an error
// and not a key that all share. Of nested operations the innermost one counts,
// as for [FromContext].
func Derive(ctx context.Context, step string) string {
	x := executionOf(ctx)
	if x == nil || step == "" {
		return ""
	}
	// Key joins without ambiguity. An over-long name ends in a digest of the
	// whole, so that nothing is lost.
	sum := sha256.Sum256([]byte(Key(deriveVersion, x.Key, step)))
	return hex.EncodeToString(sum[:])
}
