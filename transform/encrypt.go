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
	"strings"

	"github.com/waybill-go/waybill"
)

// The format of an encrypted body: the version, the length of the key's id, the id, the salt, and what
// cipher.NewGCMWithRandomNonce makes: nonce, ciphertext, tag.
const (
	sealVersion = 1
	saltBytes   = 16
	nonceBytes  = 12
	tagBytes    = 16
	minSecret   = 32
	maxKeyID    = 255
	sealInfo    = "waybill-aes256gcm v1 key"
)

// KeySource returns the secret with an id, of at least 32 random bytes. It is called for each message and must be safe
// for concurrent use; cache what a key service answers. The id of a message that arrives comes from outside. Return
// [ErrNoKey] if there is no such key: a message that names it is retried with the usual delays, and parked then. Any
// other error is an outage.
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

// Encrypt encrypts bodies with AES-256 in Galois/Counter Mode; its coding is waybill-aes256gcm. A new random salt for
// each message gives each its own key, by HKDF with SHA-256 from the secret, and the nonce is random as well. The body
// holds the id of the secret. docs/transform.md has the format, with its sources.
//
// A body is bound to its message: to id, source, topic, type, key, tenant, and to the codings before. A body that was
// changed, or that came with another message, is parked as undecodable. So is a message that was not encrypted, unless
// AllowPlain is set.
type Encrypt struct {
	// KeyID is the id of the key to encrypt with, 1 to 255 bytes. A consumer needs none.
	KeyID string
	// Keys finds secrets by their ids.
	Keys KeySource
	// AllowPlain lets a handler take messages that were not encrypted: during a roll-out, while the relay does not
	// encrypt yet. As long as it is set, each program that may publish to the broker can switch encryption off.
	AllowPlain bool
}

// Coding returns waybill-aes256gcm.
func (Encrypt) Coding() string { return "waybill-aes256gcm" }

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

// LeftOut refuses a message that was not encrypted, unless AllowPlain is set.
func (c Encrypt) LeftOut() error {
	if c.AllowPlain {
		return nil
	}
	return Unreadable("the message is not encrypted, and the handler requires it; " +
		"set Encrypt.AllowPlain while the relay does not encrypt yet")
}

// Do encrypts the body.
func (c Encrypt) Do(ctx context.Context, e *waybill.Envelope) ([]byte, bool, error) {
	if c.KeyID == "" {
		return nil, false, errors.New("KeyID is empty; set it where messages are published")
	}
	head := 2 + len(c.KeyID) + saltBytes
	out := make([]byte, 2, head+nonceBytes+len(e.Body)+tagBytes)
	out[0], out[1] = sealVersion, byte(len(c.KeyID))
	out = append(out, c.KeyID...)[:head]
	salt := out[head-saltBytes:]
	_, _ = rand.Read(salt) // it never fails
	aead, err := c.cipher(ctx, salt, c.KeyID)
	if err != nil {
		return nil, false, err
	}
	//nolint:gosec // no nonce is passed: the cipher makes a random one
	return aead.Seal(out, nil, e.Body, bound(c.KeyID, e)), true, nil
}

// Undo decrypts the body.
func (c Encrypt) Undo(ctx context.Context, e *waybill.Envelope) ([]byte, error) {
	damaged := Unreadable("the body was changed on its way, belongs to another message, or is not encrypted by this package")
	if len(e.Body) < 2 || e.Body[0] != sealVersion {
		return nil, damaged
	}
	head := 2 + int(e.Body[1]) + saltBytes
	if e.Body[1] == 0 || len(e.Body) < head+nonceBytes+tagBytes {
		return nil, damaged
	}
	id, salt := string(e.Body[2:head-saltBytes]), e.Body[head-saltBytes:head]
	aead, err := c.cipher(ctx, salt, id)
	switch {
	case errors.Is(err, ErrNoKey):
		return nil, Missing(err)
	case err != nil:
		return nil, err
	}
	body, err := aead.Open(nil, nil, e.Body[head:], bound(id, e))
	if err != nil {
		return nil, damaged
	}
	return body, nil
}

// cipher derives the cipher of a message, which puts its nonce before what it seals.
func (c Encrypt) cipher(ctx context.Context, salt []byte, id string) (cipher.AEAD, error) {
	secret, err := c.Keys(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("key %.80q: %w", id, err)
	}
	if len(secret) < minSecret {
		return nil, fmt.Errorf("key %.80q: the secret has %d bytes; it needs at least %d", id, len(secret), minSecret)
	}
	key, err := hkdf.Key(sha256.New, secret, salt, sealInfo, 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// bound returns the additional data, to which the body is bound: the key's id and the attributes of the message.
func bound(keyID string, e *waybill.Envelope) []byte {
	return fields(sealVersion, 0, keyID, codingList(e), e.ID, e.Source, e.Topic, e.Type, e.Key, e.Tenant)
}

// codingList names the codings of e, in lower case, with a comma between.
func codingList(e *waybill.Envelope) string { return strings.Join(codingsOf(e), ",") }

// fields returns a version and texts, with room for so many bytes more. Each text has its length before it, so no two
// lists give the same bytes.
func fields(version byte, room int, list ...string) []byte {
	size := 1 + room
	for _, f := range list {
		size += 4 + len(f)
	}
	data := append(make([]byte, 0, size), version)
	for _, f := range list {
		data = binary.BigEndian.AppendUint32(data, uint32(len(f)))
		data = append(data, f...)
	}
	return data
}
