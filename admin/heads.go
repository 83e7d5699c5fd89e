package admin

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/internal/enum"
)

// BlockedKey is a key of a route with per-key order whose head waits, so that later messages wait behind it.
type BlockedKey struct {
	Route, Key string
	// Head is the record that blocks, without its body.
	Head Stored
	// Cause is "retry" or "abandoned".
	Cause string
	// Since is for how long it has been the head that blocks, by the store's clock.
	Since time.Duration
}

// HeadAction is what an operator decides about the head of a key.
type HeadAction uint8

// The decisions.
const (
	HeadSkip     HeadAction = 1 // give it up with reason skipped; the key goes on
	HeadSetAside HeadAction = 2 // give it up with reason set_aside, to be redriven some day; the key goes on
	HeadRequeue  HeadAction = 3 // pending at once, at its place, attempts and crashes reset
)

// String returns the name of the decision.
func (a HeadAction) String() string {
	return enum.Name("HeadAction", a, 0, "none", "skip", "set aside", "requeue")
}

// BlockedKeysRequest asks for the blocked keys of a route.
type BlockedKeysRequest struct {
	Route string
	// BlockAfterAbandon is that of the relay's route: with it an abandoned head blocks its key, too.
	BlockAfterAbandon bool
	// After is the last key of the page before.
	After string
	// Limit bounds the keys; default [DefaultPageLimit], at most [MaxPageLimit].
	Limit int
}

// KeyKeeper lists and frees blocked keys.
type KeyKeeper interface {
	// BlockedKeys returns keys of a route, in the order of keys, and whether there are more.
	BlockedKeys(ctx context.Context, req BlockedKeysRequest) (keys []BlockedKey, more bool, err error)
	// DecideHead does action with the head of key, if that is still the message with id. It answers waybill.ErrNotFound
	// if id is not the head, waybill.ErrInFlight if a relay holds it. HeadSkip and HeadSetAside also take the first
	// message of key that is due, which its relay may have out: that relay carries it out as soon as the message is not
	// out, and DecideHead waits for it, for up to ten seconds; then waybill.ErrInFlight says that the decision stands.
	// waybill.ErrNotFound says that the message was published meanwhile. Without a relay DecideHead does it alone.
	DecideHead(ctx context.Context, route, key, id string, action HeadAction) error
}
