package sealed

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/idempotent-go/idempotent"
)

// A sealed result, format 1:
//
//	0xff 'S' 'L'  format  encoding  length of the key's ID, a byte  ID
//	nonce, 12 bytes
//	the body, encrypted, and its tag, 16 bytes
//
// No plain result of this library begins like that. Format is 1, encoding says
// what the body is: 0, the result; 1, the result as one frame of zstd. The
// associated data, bound, are everything before the nonce and
//
//	's', 'f' or 'u', the status: success, failed, or failed and unknown
//	length of the store key, 8 bytes, big endian, and the store key
//	owner
//
// HKDF-SHA256 expands the master key of ID and bound to 64 bytes: the AES-256
// key, and the key by which HMAC-SHA256 of the body makes the nonce.
const (
	domain = "idempotent sealed result 1" // HKDF's salt: other uses of one secret get other keys
	magic  = "\xffSL"
	format = 1

	headBytes  = len(magic) + 3 // without the ID
	nonceBytes = 12
	tagBytes   = 16
)

// seal returns the sealed form of o's result. Equal calls return equal texts.
func (s *store) seal(key, owner string, o idempotent.Outcome) (string, error) {
	encoding, body := s.zstd.pack(o.Result)
	return s.keys.encrypt(encoding, body, key, owner, o.Status, o.Unknown)
}

func (r *ring) encrypt(encoding byte, body []byte, key, owner string, status idempotent.Status, unknown bool) (string, error) {
	head := magic + string([]byte{format, encoding, byte(len(r.first))}) + r.first
	bound := bind(head, key, owner, status, unknown)
	aead, mac, err := derive(r.master[r.first], bound)
	if err != nil {
		return "", err
	}
	// Of the body as it is encrypted, not of the result: another release of the
	// compressor may make another body of one result, and two bodies must not
	// share a nonce.
	h := hmac.New(sha256.New, mac)
	h.Write(body)
	nonce := h.Sum(nil)[:nonceBytes]

	out := make([]byte, 0, len(head)+nonceBytes+len(body)+tagBytes)
	out = append(append(out, head...), nonce...)
	return string(aead.Seal(out, nonce, body, bound)), nil
}

// open returns the result of e, whose Result is sealed.
func (s *store) open(e idempotent.Entry) (string, error) {
	if e.Status != idempotent.Success && e.Status != idempotent.Failed || e.Unknown && e.Result == "" {
		return e.Result, nil // nothing was recorded: no entry, a claim, or an abandoned one
	}
	rest, sealed := strings.CutPrefix(e.Result, magic)
	switch {
	case !sealed && s.plain:
		return e.Result, nil
	case !sealed:
		return "", fmt.Errorf("%w: the result is not sealed; sealed.WithPlain answers with results recorded before sealing came into use", idempotent.ErrCorrupt)
	case rest != "" && rest[0] > format:
		return "", fmt.Errorf("%w: sealed result, format %d", idempotent.ErrNewerFormat, rest[0])
	case len(e.Result) < headBytes || rest[0] != format || len(e.Result) < headBytes+int(rest[2])+nonceBytes+tagBytes:
		return "", fmt.Errorf("%w: the sealed result is cut or damaged", idempotent.ErrCorrupt)
	}
	encoding := rest[1]
	head := e.Result[:headBytes+int(rest[2])]
	id, text := head[headBytes:], e.Result[len(head):]
	master, ok := s.keys.master[id]
	if !ok {
		return "", fmt.Errorf("%w: the result was sealed with key %q, which is missing; this instance has %s. Give sealed.NewKeys that key, too", idempotent.ErrCorrupt, id, s.keys.ids())
	}
	bound := bind(head, e.Key, e.Owner, e.Status, e.Unknown)
	aead, _, err := derive(master, bound)
	if err != nil {
		return "", err
	}
	body, err := aead.Open(nil, []byte(text[:nonceBytes]), []byte(text[nonceBytes:]), bound)
	if err != nil {
		return "", fmt.Errorf("%w: the sealed result does not open: it was changed, was recorded under another key, or key %q has another secret here", idempotent.ErrCorrupt, id)
	}
	result, err := s.zstd.unpack(encoding, body)
	if err != nil {
		return "", fmt.Errorf("%w: the sealed result does not unpack: %w", idempotent.ErrCorrupt, err)
	}
	return result, nil
}

// bind returns the associated data of a result.
func bind(head, key, owner string, status idempotent.Status, unknown bool) []byte {
	word := byte('f')
	switch {
	case unknown:
		word = 'u'
	case status == idempotent.Success:
		word = 's'
	}
	b := make([]byte, 0, len(head)+9+len(key)+len(owner))
	b = append(append(b, head...), word)
	b = binary.BigEndian.AppendUint64(b, uint64(len(key)))
	return append(append(b, key...), owner...)
}

// derive returns what encrypts the results that bound describes, and the key
// that makes their nonces.
func derive(master, bound []byte) (aead cipher.AEAD, mac []byte, err error) {
	const keyBytes = 32
	material, err := hkdf.Expand(sha256.New, master, string(bound), 2*keyBytes)
	if err != nil {
		return nil, nil, fmt.Errorf("sealed: %w", err)
	}
	block, err := aes.NewCipher(material[:keyBytes])
	if err != nil {
		return nil, nil, fmt.Errorf("sealed: %w", err)
	}
	aead, err = cipher.NewGCM(block)
	if err != nil {
		return nil, nil, fmt.Errorf("sealed: %w", err)
	}
	return aead, material[keyBytes:], nil
}
