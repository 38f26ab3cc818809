// Package sealed encrypts and compresses recorded results, whatever store
// keeps them: who reads the store's memory, disk, traffic or backups learns
// none of the answers.
//
//	keys, err := sealed.NewKeys(sealed.Key{ID: "2026-11", Secret: secret}) // 32 random bytes or more
//	store := sealed.New(redisstore.New(client), keys)
//	guard := idempotent.New(store)
//
// # What is sealed
//
// The result of every outcome, with AES-256-GCM, bound to its store key, owner
// and status: a record that was changed, copied under another key or given
// another status is [idempotent.ErrCorrupt] and never an answer. Not sealed are
// the key's name, status, fingerprint, owner, trace, fence and times, and how
// long the sealed result is. Names of keys carry principals; fingerprints are
// digests of requests, so that who guesses a request can confirm the guess; the
// whole record of an earlier outcome can be put back in the place of a later one
// of the same owner. [idempotent.Tiered] over a sealed store keeps copies in the
// clear, in the memory of this process only, and opens most results once. What
// sqlstore.InTx records does not pass through a store around it and stays in
// the clear.
//
// # Keys
//
// Each [Key] has an id, which stands in the clear with every result it sealed.
// The first key seals and all open. To rotate, add the new key in second place
// on every instance, then put it first, and take the old one out when the
// longest retention after that has passed. A result whose key is missing is
// ErrCorrupt with its id in the text: nothing runs, and with the key back in
// place it is answered again.
//
// # Why sealing is repeatable
//
// A completion may be sent twice, and the store recognises the second by its
// bytes. So equal outcomes must seal to equal bytes, and the nonce cannot be
// random. HKDF-SHA256 makes two keys from the secret for each pair of store key
// and owner: one encrypts, the other makes the nonce, as HMAC-SHA256 of exactly
// the bytes to be encrypted, cut to 96 bits (the construction of SIV). Different
// bytes under one encrypting key meet in a nonce with probability 2⁻⁹⁶ a pair,
// and an owner, who is one execution, records a handful of outcomes at most; so
// one secret has no practical limit of results, unlike the 2³² of random nonces
// under one key. What it gives away is that two results of one owner under one
// key are equal.
//
// Repeatable means: by the same keys, options and release of the compressor. A
// completion repeated across a rotation or an upgrade, as only an operator's
// [idempotent.Guard.Resolve] can be, is ErrLost, and the first one stands.
//
// # Compression
//
// A result is compressed with zstd before it is encrypted where that makes it
// shorter. The length of a compressed answer depends on its content: who can put
// text of their own next to a secret into one answer, repeat that often with new
// keys, and see the lengths, can guess the secret bit by bit (the attack called
// BREACH). Where answers are like that, use [WithoutCompression].
//
// # Introducing it
//
// Results recorded before are not sealed, and refused as ErrCorrupt with a text
// that says so; [WithPlain] answers them for one retention. During the roll-out
// instances without the package meet sealed results: the middleware,
// idempotent.Do and grpcguard refuse them as ErrCorrupt, and run nothing, but
// idempotent.Guard.Run, to which a result is any text, answers with the sealed
// one. [idempotent.Moving], from the bare store to a sealed one with another
// prefix, has neither.
package sealed
