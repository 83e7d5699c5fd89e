package waybill

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/internal/enum"
)

// HandlerStatus is how a handler succeeded.
type HandlerStatus uint8

// The statuses.
const (
	HandlerProcessed HandlerStatus = iota // it had its effect now
	HandlerDuplicate                      // it had had its effect before
	HandlerLeftOut                        // of a batch: nothing was done; the runner calls Handle for it
)

// String returns the name of the status.
func (s HandlerStatus) String() string {
	return enum.Name("HandlerStatus", s, 0, "processed", "duplicate", "left out")
}

// HandleFunc handles one delivery. A nil error settles it as done. The error decides otherwise: [Reject] parks,
// [RetryAfter] delays, [Outage] releases and pauses; any other is retried by policy. It must return soon after ctx
// ends.
type HandleFunc func(ctx context.Context, d *Delivery) (HandlerStatus, error)

// Middleware wraps a handler.
type Middleware func(next HandleFunc) HandleFunc

// AnyMessage is the name of a handler for every message of a subscription that no other handler is for.
const AnyMessage = "#"

// Handler is a HandleFunc with what it is for. A message reaches it if its type or else its topic equals Name.
type Handler struct {
	// Name is the topic or the CloudEvents type, or [AnyMessage].
	Name string
	// NameIsTopic says that Name is a topic, as [HandlerFor] knows. A subscription with bindings none of which matches
	// it is refused then: nothing would reach the handler. By default Name may be a type, and nothing is checked.
	NameIsTopic bool
	// Handle does the work.
	Handle HandleFunc
	// Check, if not nil, tells before the first message whether what Handle needs is there, as [core.Checker] does.
	Check func(ctx context.Context) error
	// Batch, if not nil, handles several deliveries at a time instead of Handle. It returns one status a delivery, in
	// input order. An error means that nothing had an effect: the runner then calls Handle for each, so that one bad
	// message does not fail its neighbours, unless the error is an outage, which releases all of them. Deliveries of
	// one key come in their order, and no other handler has one of that key at the time. Middleware wraps Handle only.
	Batch func(ctx context.Context, ds []*Delivery) ([]HandlerStatus, error)
	// BatchSize bounds the deliveries of a batch; default 100, at most the subscription's prefetch. BatchWait is how
	// long a delivery waits for its batch to fill; 0 = not at all: a batch is what is there when a handler is free.
	BatchSize int
	BatchWait time.Duration
	// MaxRetryTime bounds the sum of the delays of the subscription's retry policy; 0 = no bound. An inbox has
	// forgotten a message that comes again later.
	MaxRetryTime time.Duration
	// Background, if not nil, is called once by every run of the runner, beside the handlers. It returns soon after ctx
	// ends; that it returns before has no consequences.
	Background func(ctx context.Context)
}

// HandlerFor returns a handler that decodes topic's value for fn. It has no inbox: a redelivery runs fn again, so fn
// must be idempotent. Package inbox has the exactly-once one.
func HandlerFor[T any](topic Topic[T], fn func(ctx context.Context, v T) error) Handler {
	if fn == nil {
		return Handler{Name: topic.Name(), NameIsTopic: true} // without Handle: the consumer refuses it by name
	}
	return Handler{Name: topic.Name(), NameIsTopic: true, Handle: func(ctx context.Context, d *Delivery) (HandlerStatus, error) {
		v, err := topic.Decode(&d.Envelope)
		if err != nil {
			return HandlerProcessed, err
		}
		return HandlerProcessed, fn(ctx, v)
	}}
}
