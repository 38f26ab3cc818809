package idempotent

import "crypto/rand"

// ownerBytes is the length of an owner: 26 characters of base 32, 130 random
// bits. Two are equal by accident never.
const ownerBytes = 26

// appendOwner appends a new owner.
func appendOwner(b []byte) []byte {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
	start := len(b)
	b = append(b, make([]byte, ownerBytes)...)
	owner := b[start:]
	_, _ = rand.Read(owner) // never fails
	for i, random := range owner {
		owner[i] = alphabet[random%byte(len(alphabet))]
	}
	return b
}

// newOwner returns the owner of a claim: the one that the caller has made, to
// the first, and to each other claim one of its own.
func (c *call) newOwner() string {
	owner := c.owner
	if c.owner = ""; owner == "" {
		owner = string(appendOwner(make([]byte, 0, ownerBytes)))
	}
	return owner
}
