package core

import (
	"context"
	"time"
)

// HandlerStatus is how a handler succeeded.
type HandlerStatus uint8

// The statuses.
const (
	HandlerProcessed HandlerStatus = iota // it had its effect now
	HandlerDuplicate                      // it had had its effect before
)

// HandleFunc handles one delivery. A nil error settles it as done. The error decides otherwise: [Reject] parks,
// [RetryAfter] delays, [Outage] gives back and pauses; any other is retried by policy. It must return soon after ctx
// ends.
type HandleFunc func(ctx context.Context, d *Delivery) (HandlerStatus, error)

// Middleware wraps a handler.
type Middleware func(next HandleFunc) HandleFunc

// Handler is a HandleFunc with what it is for. A message reaches it if its type or else its topic equals Name.
type Handler struct {
	// Name is the topic or the CloudEvents type.
	Name string
	// Handle does the work.
	Handle HandleFunc
	// Check, if not nil, tells before the first message whether what Handle needs is there, as [Checker] does.
	Check func(ctx context.Context) error
	// Batch, if not nil, handles several deliveries at a time instead of Handle, which remains the fallback for a single
	// one. It returns one status and one result a delivery, in input order. BatchSize bounds them (at most the
	// subscription's prefetch); BatchWait is how long the runner waits for a batch to fill, 0 = not at all.
	Batch     func(ctx context.Context, ds []*Delivery) ([]HandlerStatus, Results)
	BatchSize int
	BatchWait time.Duration
}

// HandlerFor returns a handler that decodes topic's value for fn. It has no inbox: a redelivery runs fn again, so fn
// must be idempotent. Package inbox has the exactly-once one.
func HandlerFor[T any](topic Topic[T], fn func(ctx context.Context, v T) error) Handler {
	if fn == nil {
		return Handler{Name: topic.Name()} // without Handle: the consumer refuses it by name
	}
	return Handler{Name: topic.Name(), Handle: func(ctx context.Context, d *Delivery) (HandlerStatus, error) {
		v, err := topic.Decode(&d.Envelope)
		if err != nil {
			return HandlerProcessed, err
		}
		return HandlerProcessed, fn(ctx, v)
	}}
}
