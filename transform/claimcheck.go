package transform

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/check"
)

// Blobs keeps bodies, such as in a bucket. It must be safe for concurrent use.
type Blobs interface {
	// Put stores body under name: 64 hexadecimal digits, made of the body. So what has the name already is the
	// same, and can stay or be overwritten. When Put returns nil, the blob is as durable as a message must be.
	Put(ctx context.Context, name string, body []byte) error
	// Get returns the body. Return [ErrNoBlob] if there is none with that name: the message is retried with the
	// usual delays, and parked then. Any other error is an outage.
	Get(ctx context.Context, name string) ([]byte, error)
}

// ErrNoBlob reports that there is no blob with a name.
var ErrNoBlob = errors.New("no such blob")

const defaultMinClaim = 256 << 10

// ClaimCheck keeps large bodies in Blobs, and publishes their name and size instead. Its coding is claim-check. Put it
// last, behind Gzip and Encrypt: then the blob is compressed and encrypted as well.
//
// Nothing here deletes blobs. Let the store of blobs delete them by age, later than any message can arrive, be parked
// or be replayed.
type ClaimCheck struct {
	// Blobs keeps the bodies.
	Blobs Blobs
	// MinBytes is the least size of a body that is kept there; default 256 KiB.
	MinBytes int
	// MaxBytes bounds bodies; default 32 MiB. Do refuses a larger one as too large, and Undo parks it as
	// undecodable.
	MaxBytes int
}

// claim is the body that is published.
type claim struct {
	Blob string `json:"blob"` // the SHA-256 of the body, in hexadecimal digits
	Size int    `json:"size"` // its bytes
}

// Coding returns claim-check.
func (ClaimCheck) Coding() string { return "claim-check" }

// Validate reports bad fields.
func (c ClaimCheck) Validate() error {
	p := sizes(c.MinBytes, c.MaxBytes)
	if check.Nil(c.Blobs) {
		p = append(p, "Blobs: is nil; say where bodies are kept")
	}
	return waybill.Invalid("claim check", p...)
}

// Do stores the body.
func (c ClaimCheck) Do(ctx context.Context, e *waybill.Envelope) ([]byte, bool, error) {
	if len(e.Body) < orDefault(c.MinBytes, defaultMinClaim) {
		return nil, false, nil
	}
	if err := fits("ClaimCheck", len(e.Body), c.MaxBytes); err != nil {
		return nil, false, err
	}
	name := nameOf(e.Body)
	if err := c.Blobs.Put(ctx, name, e.Body); err != nil {
		return nil, false, fmt.Errorf("store blob %s: %w", name, err)
	}
	body, err := json.Marshal(claim{Blob: name, Size: len(e.Body)})
	return body, true, err
}

// Undo fetches the body.
func (c ClaimCheck) Undo(ctx context.Context, e *waybill.Envelope) ([]byte, error) {
	var is claim
	if err := json.Unmarshal(e.Body, &is); err != nil || len(is.Blob) != hex.EncodedLen(sha256.Size) || is.Size < 0 {
		return nil, Unreadable("the body is not a claim")
	}
	if _, err := hex.DecodeString(is.Blob); err != nil { // it may become a part of a path
		return nil, Unreadable("the name of the blob is not hexadecimal")
	}
	if limit := orDefault(c.MaxBytes, defaultMaxBody); is.Size > limit {
		return nil, Unreadable(fmt.Sprintf("the blob has %d bytes, more than %d; raise ClaimCheck.MaxBytes and replay it", is.Size, limit))
	}
	body, err := c.Blobs.Get(ctx, is.Blob)
	switch {
	case errors.Is(err, ErrNoBlob):
		return nil, Missing(fmt.Errorf("fetch blob %s: %w", is.Blob, err))
	case err != nil:
		return nil, fmt.Errorf("fetch blob %s: %w", is.Blob, err)
	case nameOf(body) != is.Blob:
		return nil, Missing(errors.New("blob " + is.Blob + " has another content than was stored; bring it back"))
	case len(body) != is.Size:
		return nil, Unreadable("the blob has another size than the message says")
	}
	return body, nil
}

func nameOf(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}
