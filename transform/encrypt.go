package transform

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/waybill-go/waybill"
)

// The numbers of RFC 8188, section 2.
const (
	saltBytes   = 16
	headerBytes = saltBytes + 4 + 1
	tagBytes    = 16
	minRecord   = tagBytes + 2
	minSecret   = 16
	maxKeyID    = 255
	lastRecord  = 2
	otherRecord = 1
)

// KeySource returns the secret with an id, of at least 16 random bytes. It is called for each message and must be safe
// for concurrent use; cache what a key service answers. Any error is an outage, until the key can be had: return
// [ErrNoKey] if there is no such key.
type KeySource func(ctx context.Context, id string) ([]byte, error)

// ErrNoKey reports that there is no key with an id.
var ErrNoKey = errors.New("no such key")

// StaticKeys returns the secrets of a map. To change keys, give the new one to all consumers, then to the relays as
// Encrypt.KeyID, and keep the old one as long as messages with it can arrive, be parked, or be replayed.
func StaticKeys(secrets map[string][]byte) KeySource {
	return func(_ context.Context, id string) ([]byte, error) {
		if secret, ok := secrets[id]; ok {
			return secret, nil
		}
		return nil, ErrNoKey
	}
}

// Encrypt encrypts bodies; its coding is aes128gcm, as RFC 8188 defines it: AES-128 in Galois/Counter Mode, with a key
// and a nonce that are derived by HKDF with SHA-256 from the secret and a new random salt for each message. A consumer
// in any language that knows the RFC can read it. It finds the id of the key in the body.
//
// A body that was changed is noticed. Which message a body belongs to is not part of it: who may publish to the broker
// can give an encrypted body to another message.
type Encrypt struct {
	// KeyID is the id of the key to encrypt with, 1 to 255 bytes. A consumer needs none.
	KeyID string
	// Keys finds secrets by their ids.
	Keys KeySource
}

// Coding returns aes128gcm.
func (Encrypt) Coding() string { return "aes128gcm" }

// Validate reports bad fields.
func (c Encrypt) Validate() error {
	var p []string
	if c.Keys == nil {
		p = append(p, "Keys: is nil; give a KeySource, such as StaticKeys")
	}
	if len(c.KeyID) > maxKeyID {
		p = append(p, fmt.Sprintf("KeyID: has %d bytes; at most %d fit", len(c.KeyID), maxKeyID))
	}
	return waybill.Invalid("encrypt", p...)
}

// Do encrypts the body, as one record.
func (c Encrypt) Do(ctx context.Context, e *waybill.Envelope) ([]byte, bool, error) {
	if c.KeyID == "" {
		return nil, false, errors.New("KeyID is empty; set it where messages are published")
	}
	out := make([]byte, headerBytes, headerBytes+len(c.KeyID)+len(e.Body)+1+tagBytes)
	_, _ = rand.Read(out[:saltBytes]) // it never fails
	aead, nonce, err := c.cipher(ctx, out[:saltBytes], c.KeyID)
	if err != nil {
		return nil, false, err
	}
	binary.BigEndian.PutUint32(out[saltBytes:], uint32(max(len(e.Body)+1+tagBytes, minRecord)))
	out[headerBytes-1] = byte(len(c.KeyID))
	out = append(out, c.KeyID...)
	plain := append(append(make([]byte, 0, len(e.Body)+1), e.Body...), lastRecord)
	return aead.Seal(out, nonce, plain, nil), true, nil
}

// Undo decrypts the body.
func (c Encrypt) Undo(ctx context.Context, e *waybill.Envelope) ([]byte, error) {
	damaged := Unreadable("the body was changed on its way, or is not encrypted as RFC 8188 says")
	if len(e.Body) < headerBytes {
		return nil, damaged
	}
	salt, size, idLen := e.Body[:saltBytes], binary.BigEndian.Uint32(e.Body[saltBytes:]), int(e.Body[headerBytes-1])
	if len(e.Body) < headerBytes+idLen || size < minRecord {
		return nil, damaged
	}
	id, rest := string(e.Body[headerBytes:headerBytes+idLen]), e.Body[headerBytes+idLen:]
	aead, nonce, err := c.cipher(ctx, salt, id)
	if err != nil {
		return nil, err
	}
	body := make([]byte, 0, len(rest))
	for n := uint64(0); ; n++ {
		record := rest[:min(uint64(size), uint64(len(rest)))]
		rest = rest[len(record):]
		plain, err := aead.Open(nil, nonceOf(nonce, n), record, nil)
		if err != nil {
			return nil, damaged
		}
		part, mark := unpad(plain)
		isLast := len(rest) == 0
		if isLast && mark != lastRecord || !isLast && mark != otherRecord {
			return nil, damaged
		}
		if body = append(body, part...); isLast {
			return body, nil
		}
	}
}

// unpad returns what stands before the mark of a record, and the mark. Zeros may follow it.
func unpad(plain []byte) ([]byte, byte) {
	for i, b := range slices.Backward(plain) {
		if b != 0 {
			return plain[:i], b
		}
	}
	return nil, 0
}

// cipher derives the cipher of a message and its first nonce.
func (c Encrypt) cipher(ctx context.Context, salt []byte, id string) (cipher.AEAD, []byte, error) {
	secret, err := c.Keys(ctx, id)
	if err != nil {
		return nil, nil, fmt.Errorf("key %.80q: %w", id, err)
	}
	if len(secret) < minSecret {
		return nil, nil, fmt.Errorf("key %.80q: the secret has %d bytes; it needs at least %d", id, len(secret), minSecret)
	}
	prk, err := hkdf.Extract(sha256.New, secret, salt)
	if err != nil {
		return nil, nil, err
	}
	key, err := hkdf.Expand(sha256.New, prk, "Content-Encoding: aes128gcm\x00", 16)
	if err != nil {
		return nil, nil, err
	}
	nonce, err := hkdf.Expand(sha256.New, prk, "Content-Encoding: nonce\x00", 12)
	if err != nil {
		return nil, nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, nil, err
	}
	aead, err := cipher.NewGCM(block)
	return aead, nonce, err
}

// nonceOf returns the nonce of record n.
func nonceOf(first []byte, n uint64) []byte {
	nonce := append([]byte(nil), first...)
	tail := nonce[len(nonce)-8:]
	binary.BigEndian.PutUint64(tail, binary.BigEndian.Uint64(tail)^n)
	return nonce
}
