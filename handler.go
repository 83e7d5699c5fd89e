package waybill

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/internal/enum"
)

// HandlerStatus says how a handler succeeded.
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

// HandleFunc handles one delivery. A nil error settles it as done. Otherwise the error decides: [Reject] parks,
// [RetryAfter] delays, [Outage] releases and pauses; after any other error the policy decides about a retry. It must
// return soon after ctx ends.
type HandleFunc func(ctx context.Context, d *Delivery) (HandlerStatus, error)

// Middleware wraps a handler.
type Middleware func(next HandleFunc) HandleFunc

// AnyMessage is the name of a handler that gets the messages for which the subscription has no other handler.
const AnyMessage = "#"

// Handler is a HandleFunc with the name of its messages. It gets a message if Name is the message's type, or else its
// topic.
type Handler struct {
	// Name is the topic or the CloudEvents type, or [AnyMessage].
	Name string
	// NameIsTopic says that Name is a topic, as [HandlerFor] knows. The subscription is then refused if it
	// has bindings and none of them matches Name: nothing would reach the handler. By default Name may be a type,
	// and nothing is checked.
	NameIsTopic bool
	// Handle does the work.
	Handle HandleFunc
	// Check, if not nil, reports before the first message whether everything that Handle needs is there, as
	// [core.Checker] does.
	Check func(ctx context.Context) error
	// Pool, if not nil, returns the connection pool of which every running Handle and Batch has a connection. The
	// runner warns at its start if it is smaller than the handlers that may run at a time.
	Pool func() Pool
	// Batch, if not nil, handles several deliveries at a time instead of Handle. It returns one status a delivery,
	// in input order. An error means that nothing had an effect. The runner then calls Handle for each delivery, so
	// that one bad message does not fail its neighbours; an outage releases all of them instead. Deliveries of one
	// key come in their order. No other handler has a delivery of that key at the same time. Middleware wraps
	// Handle only.
	Batch func(ctx context.Context, ds []*Delivery) ([]HandlerStatus, error)
	// BatchSize bounds the deliveries of a batch; default 100, at most the subscription's prefetch. BatchWait is
	// how long a delivery waits for its batch to fill; 0 = no wait: a batch holds the deliveries that are there
	// when a handler is free.
	BatchSize int
	BatchWait time.Duration
	// MaxRetryTime bounds the sum of the delays of the subscription's retry policy; 0 = no bound. After a longer
	// time an inbox has forgotten the message.
	MaxRetryTime time.Duration
	// Background, if not nil, is called once by every run of the runner, beside the handlers. It must return soon
	// after ctx ends. Returning earlier has no consequences.
	Background func(ctx context.Context)
}

// HandlerFor returns a handler that decodes topic's value for fn. It has no inbox: a redelivery runs fn again, so fn
// must be idempotent. With [inbox.Handler] fn has its effect exactly once.
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
