package main

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"encoding/hex"
	"errors"

	"github.com/google/uuid"
)

// public turns ids into what clients are shown, and back. An ordered id tells
// when it was made, and the next one begins much like it; who sees two of them
// learns the time between, and where the counter runs ahead of the clock, how
// many there were.
//
// An id is one block of AES, and AES with a secret key is a permutation of all
// blocks: no two ids are shown alike, nothing has to be stored, and without the
// key what is shown says nothing of order, time, or any other id. A text that
// was made up is some random block: one in 64 is a UUIDv7 at all, and that one
// still has to name an order among 2^122.
//
// That hides ids, it does not protect them: whose order it is must still be
// checked. The key is for ever, and the same in every instance: with another
// one all links that clients keep lead nowhere.
type public struct{ block cipher.Block }

var errNoID = errors.New("no id of ours")

// strict refuses the other spellings of a text that most decoders accept.
var strict = base64.RawURLEncoding.Strict()

// newPublic takes a key of 32 bytes in hex.
func newPublic(key string) (public, error) {
	b, err := hex.DecodeString(key)
	if err != nil || len(b) != 32 {
		return public{}, errors.New("the key must be 64 hex digits, as openssl rand -hex 32 prints them") // never the key itself
	}
	block, err := aes.NewCipher(b)
	return public{block}, err
}

// show returns 22 characters that may stand in a URL.
func (p public) show(id uuid.UUID) string {
	p.block.Encrypt(id[:], id[:]) // id is a copy
	return strict.EncodeToString(id[:])
}

// read is the reverse of show. Every text that show cannot have returned for one
// of our ids is errNoID.
func (p public) read(text string) (uuid.UUID, error) {
	b, err := strict.DecodeString(text)
	if err != nil || len(b) != aes.BlockSize || len(text) != 22 { // decoders skip line ends
		return uuid.Nil, errNoID
	}
	id := uuid.UUID(b)
	p.block.Decrypt(id[:], id[:])
	if id.Version() != 7 || id.Variant() != uuid.RFC4122 {
		return uuid.Nil, errNoID
	}
	return id, nil
}
