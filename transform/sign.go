package transform

import (
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/waybill-go/waybill"
)

// The format of a signed body: the version, the length of the key's id, the id, the signature, and the body.
const (
	signVersion = 1
	signInfo    = "waybill-signed v1"
)

// SigningKey is a key of one kind: Secret, or Private and Public. It says how a message is signed, which a message from
// outside does not.
type SigningKey struct {
	// Secret is for HMAC with SHA-256 (RFC 2104): at least 32 random bytes. A service that can verify with it can
	// also sign.
	Secret []byte
	// Private signs with Ed25519 (RFC 8032). A consumer needs none.
	Private ed25519.PrivateKey
	// Public verifies what Private has signed. A relay needs none.
	Public ed25519.PublicKey
	// Sources are the only sources whose messages the key may sign; empty = all. Give a consumer the key of each
	// service with the sources of that service: otherwise each of them can write messages of the others.
	Sources []string
}

// SigningKeys returns the key with an id. It is called for each message and must be safe for concurrent use. The id of
// a message that arrives comes from outside. Return [ErrNoKey] if there is no such key: a message that names it is
// retried with the usual delays, and parked then. Any other error is an outage.
type SigningKeys func(ctx context.Context, id string) (SigningKey, error)

// StaticSigningKeys returns the keys of a map.
func StaticSigningKeys(keys map[string]SigningKey) SigningKeys {
	return func(_ context.Context, id string) (SigningKey, error) {
		if key, ok := keys[id]; ok {
			return key, nil
		}
		return SigningKey{}, ErrNoKey
	}
}

// Sign signs messages; its coding is waybill-signed. The signature is over id, source, topic, type, key, tenant, time,
// the codings before, and the body. A handler with Sign gets no message that was changed in one of these, and none that
// was not signed, unless AllowUnsigned is set: such a message is parked as undecodable, before an inbox marks it. The
// body stays readable behind the signature; docs/transform.md has the format.
type Sign struct {
	// KeyID is the id of the key to sign with, 1 to 255 bytes. A consumer needs none.
	KeyID string
	// Keys finds keys by their ids.
	Keys SigningKeys
	// AllowUnsigned lets a handler take messages without a signature: during a roll-out, while the relay does not
	// sign yet. As long as it is set, each program that may publish to the broker can forge messages.
	AllowUnsigned bool
}

// Coding returns waybill-signed.
func (Sign) Coding() string { return "waybill-signed" }

// Validate reports bad fields.
func (s Sign) Validate() error {
	var p []string
	if s.Keys == nil {
		p = append(p, "Keys: is nil; give SigningKeys, such as StaticSigningKeys")
	}
	if len(s.KeyID) > maxKeyID {
		p = append(p, fmt.Sprintf("KeyID: has %d bytes; at most %d fit", len(s.KeyID), maxKeyID))
	}
	return waybill.Invalid("sign", p...)
}

// LeftOut refuses a message that was not signed, unless AllowUnsigned is set.
func (s Sign) LeftOut() error {
	if s.AllowUnsigned {
		return nil
	}
	return Unreadable("the message is not signed, and the handler requires it; set Sign.AllowUnsigned while the relay does not sign yet")
}

// Do signs the message.
func (s Sign) Do(ctx context.Context, e *waybill.Envelope) ([]byte, bool, error) {
	if s.KeyID == "" {
		return nil, false, errors.New("KeyID is empty; set it where messages are published")
	}
	key, err := s.key(ctx, s.KeyID)
	if err != nil {
		return nil, false, err
	}
	if !key.signs(e.Source) {
		return nil, false, &waybill.Error{Class: waybill.ClassPermanent, Reason: waybill.ReasonRejected, Err: fmt.Errorf(
			"key %.80q is not for messages of source %.80q: add it to SigningKey.Sources, or sign with the key of that source", s.KeyID, e.Source)}
	}
	var signature []byte
	switch data := signed(s.KeyID, e, e.Body); {
	case key.Secret != nil:
		signature = sum(key.Secret, data)
	case key.Private != nil:
		signature = ed25519.Sign(key.Private, data)
	default:
		return nil, false, fmt.Errorf("key %.80q has neither Secret nor Private; a relay needs one of them", s.KeyID)
	}
	out := append(make([]byte, 0, 2+len(s.KeyID)+len(signature)+len(e.Body)), signVersion, byte(len(s.KeyID)))
	return append(append(append(out, s.KeyID...), signature...), e.Body...), true, nil
}

// Undo verifies the signature, and returns the body behind it.
func (s Sign) Undo(ctx context.Context, e *waybill.Envelope) ([]byte, error) {
	forged := Unreadable("the message was changed on its way, or is not signed by this package with the key that it names")
	if len(e.Body) < 2 || e.Body[0] != signVersion || e.Body[1] == 0 || len(e.Body) < 2+int(e.Body[1]) {
		return nil, forged
	}
	id, rest := string(e.Body[2:2+int(e.Body[1])]), e.Body[2+int(e.Body[1]):]
	key, err := s.key(ctx, id)
	switch {
	case errors.Is(err, ErrNoKey):
		return nil, Missing(err)
	case err != nil:
		return nil, err
	case !key.signs(e.Source):
		return nil, Unreadable(fmt.Sprintf("key %.80q is not for messages of source %.80q", id, e.Source))
	}
	size := sha256.Size
	if key.Secret == nil {
		size = ed25519.SignatureSize
	}
	if len(rest) < size {
		return nil, forged
	}
	signature, body := rest[:size], rest[size:]
	data := signed(id, e, body)
	switch {
	case key.Secret != nil && hmac.Equal(signature, sum(key.Secret, data)):
	case key.Secret == nil && len(key.Public) == 0:
		return nil, fmt.Errorf("key %.80q has neither Secret nor Public; a consumer needs one of them", id)
	case key.Secret == nil && ed25519.Verify(key.Public, data, signature):
	default:
		return nil, forged
	}
	return slices.Clone(body), nil
}

// key returns a key that can be used.
func (s Sign) key(ctx context.Context, id string) (SigningKey, error) {
	k, err := s.Keys(ctx, id)
	switch {
	case err != nil:
		err = fmt.Errorf("key %.80q: %w", id, err)
	case k.Secret != nil && (k.Private != nil || k.Public != nil):
		err = fmt.Errorf("key %.80q has a Secret and an Ed25519 key; it must have one kind", id)
	case k.Secret != nil && len(k.Secret) < minSecret:
		err = fmt.Errorf("key %.80q: the secret has %d bytes; it needs at least %d", id, len(k.Secret), minSecret)
	case k.Private != nil && len(k.Private) != ed25519.PrivateKeySize, k.Public != nil && len(k.Public) != ed25519.PublicKeySize:
		err = fmt.Errorf("key %.80q is no Ed25519 key: Private has %d bytes, and Public %d", id, ed25519.PrivateKeySize, ed25519.PublicKeySize)
	}
	return k, err
}

// signs reports whether the key may sign messages of a source.
func (k *SigningKey) signs(source string) bool {
	return len(k.Sources) == 0 || slices.Contains(k.Sources, source)
}

// sum is HMAC with SHA-256.
func sum(secret, data []byte) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write(data)
	return h.Sum(nil)
}

// signed returns the bytes to sign. Its first field keeps the bytes apart from those that the same secret signs for
// something else. The time is in microseconds, which every transport keeps.
func signed(keyID string, e *waybill.Envelope, body []byte) []byte {
	at := ""
	if !e.Time.IsZero() {
		at = string(binary.BigEndian.AppendUint64(nil, uint64(e.Time.UnixMicro())))
	}
	data := fields(signVersion, len(body), signInfo, keyID, codingList(e), e.ID, e.Source, e.Topic, e.Type, e.Key, e.Tenant, at)
	return append(data, body...)
}
