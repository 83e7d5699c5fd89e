// Package content tells a message that comes again from another one with the same id, also when an operator has
// repaired its body in between.
package content

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"maps"
	"sync"

	"github.com/waybill-go/waybill"
)

// Header is the header of a message whose body was repaired: the hash of the body before.
const Header = "repaired-from"

// version begins what is hashed. Another version of this package that hashes something else has another one.
const version = "waybill content 1\x00"

// hashBytes is how much of the hash is kept.
const hashBytes = 16

// hasher is a hash, and room for the fields that it hashes beside the body. It is used again, since each message of an
// inbox needs one.
type hasher struct {
	hash hash.Hash
	room []byte
}

var hashers = sync.Pool{New: func() any { return &hasher{hash: sha256.New()} }}

// Hash returns a short hash of topic, type, key and tenant, each with its length before it, and of the body, unless
// any body will do.
func Hash(e *waybill.Envelope, anyBody bool) string {
	h := hashers.Get().(*hasher)
	defer hashers.Put(h)
	h.room = append(h.room[:0], version...)
	for _, field := range [...]string{e.Topic, e.Type, e.Key, e.Tenant} {
		h.room = append(binary.BigEndian.AppendUint64(h.room, uint64(len(field))), field...)
	}
	h.hash.Reset()
	_, _ = h.hash.Write(h.room) // it never fails
	if !anyBody {
		_, _ = h.hash.Write(e.Body)
	}
	h.room = h.hash.Sum(h.room[:0])
	return string(h.room[:hashBytes])
}

// Mark returns the value of [Header] that e gets when its body is replaced; "" if it gets none. After an earlier repair
// it has one. An encoded body has no hash here: its handler gets another one.
func Mark(e *waybill.Envelope) string {
	if _, again := e.Headers[Header]; again || e.Headers["content-encoding"] != "" {
		return ""
	}
	return hex.EncodeToString([]byte(Hash(e, false)))
}

// Repair gives e another body, and its [Mark]. The headers that e had are not changed.
func Repair(e *waybill.Envelope, body []byte) {
	if mark := Mark(e); mark != "" {
		if e.Headers = maps.Clone(e.Headers); e.Headers == nil {
			e.Headers = map[string]string{}
		}
		e.Headers[Header] = mark
	}
	e.Body = body
}

// Before returns the hash of what e was before its repair, as its sender says.
func Before(e *waybill.Envelope) (before string, ok bool) {
	b, err := hex.DecodeString(e.Headers[Header])
	return string(b), err == nil && len(b) == hashBytes
}
