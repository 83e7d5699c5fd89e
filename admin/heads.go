package admin

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/internal/enum"
)

// BlockedKey is a key of a route with per-key order whose head waits, so that later messages of the key wait, too.
type BlockedKey struct {
	Route, Key string
	// Head is the record that blocks, without its body.
	Head Stored
	// Cause is "retry", "abandoned", or "topic": no queue is bound for the topic of the head, which is due.
	Cause string
	// Since is how long the head has blocked the key, by the store's clock; of a head that was not abandoned, since
	// it was first due.
	Since time.Duration
	// Behind is how many due messages of the key wait behind the head; counted up to [MaxPageLimit], which says
	// that there can be more.
	Behind int
}

// HeadAction is an operator's decision about the head of a key.
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
	// BlockAfterAbandon is the option of the relay's route. With it an abandoned head blocks its key, too.
	BlockAfterAbandon bool
	// After is the last key of the page before.
	After string
	// Limit bounds the keys; default [DefaultPageLimit], at most [MaxPageLimit].
	Limit int
}

// BlockedKeys lists and frees blocked keys.
type BlockedKeys interface {
	// BlockedKeys returns blocked keys of a route, ordered by key, and whether there are more. A key whose head is
	// due is among them if no queue is bound for the topic of the head, as [Hindrances] tells, and a message waits
	// behind it. While there is such a topic, the call goes through all keys of the route.
	BlockedKeys(ctx context.Context, req BlockedKeysRequest) (keys []BlockedKey, more bool, err error)
	// DecideHead does action with the head of key, if the head is still the message with id. It returns
	// waybill.ErrNotFound if id is not the head, and waybill.ErrInFlight if a relay holds it. HeadSkip and
	// HeadSetAside also apply to the first due message of key, which its relay can have out. That relay carries out
	// the decision as soon as the message is not out. DecideHead waits for it up to ten seconds. After that it
	// returns waybill.ErrInFlight, and the decision stands. It returns waybill.ErrNotFound if the message was
	// published meanwhile. If no relay runs, DecideHead carries out the decision alone.
	DecideHead(ctx context.Context, route, key, id string, action HeadAction) error
}
