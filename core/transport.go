package core

import (
	"context"
	"time"
)

// Publisher sends messages to a broker. A relay needs nothing else of a transport.
type Publisher interface {
	// Publish sends batch and blocks until every message has a result or ctx ends. A nil slot means that the broker
	// confirmed the message and routed it to at least one queue; anything less is an error. A result that never came
	// (the connection died before the confirm) is an outage, never success. Messages of one key must be sent in the
	// order of the batch. Safe for concurrent use: calls in progress share the connection and are pipelined.
	Publish(ctx context.Context, batch []Envelope) Results
	// Traits declares what the publisher promises.
	Traits() PublisherTraits
}

// KeyOrder is what a publisher promises about messages of one key.
type KeyOrder uint8

// The kinds of key order.
const (
	// KeyOrderNone: messages of one key may arrive in any order.
	KeyOrderNone KeyOrder = iota
	// KeyOrderSerial: order holds if one message of a key is in flight at a time.
	KeyOrderSerial
	// KeyOrderPipelinedPrefix: a failure also fails every later message of that key in flight.
	KeyOrderPipelinedPrefix
)

// PublisherTraits are a publisher's promises. The zero value promises nothing.
type PublisherTraits struct {
	// KeyOrder is the order of messages with one key.
	KeyOrder KeyOrder
	// Confirmed: a nil result means that the broker has taken responsibility for the message. Without it a relay
	// refuses the publisher.
	Confirmed bool
	// DetectsUnroutable: a message that no queue is bound for is an error, not a success.
	DetectsUnroutable bool
	// MaxBatch bounds the messages of one Publish; 0 = unbounded.
	MaxBatch int
	// MaxBodyBytes bounds a body; 0 = unknown.
	MaxBodyBytes int
}

// Subscriber opens subscriptions. A consumer needs nothing else of a transport.
type Subscriber interface {
	// Subscribe opens the subscription's queue, declaring what is missing and allowed, and starts receiving. It reports
	// an object that is missing, forbidden or declared with other arguments as ErrMisconfigured, naming the object, the
	// cause and the cure.
	Subscribe(ctx context.Context, sub Subscription) (Receiver, error)
	// SubscriberTraits declares what the subscriber promises.
	SubscriberTraits() SubscriberTraits
}

// SubscriberTraits are a subscriber's promises. The zero value promises nothing.
type SubscriberTraits struct {
	// KeyOrder: deliveries of one key to a single receiver come in queue order, until a redelivery.
	KeyOrder bool
	// RetryLater: AckRetry is held by the broker, so that it survives the consumer.
	RetryLater bool
	// MaxRetryDelay bounds the delay of AckRetry; 0 = unbounded.
	MaxRetryDelay time.Duration
	// Parks: AckReject keeps the message where it can be listed and replayed.
	Parks bool
	// CountsRedeliveries: Delivery.Redeliveries is known and counts crashes.
	CountsRedeliveries bool
	// Wildcards: bindings may hold * (one word) and # (any number of words).
	Wildcards bool
}

// Transport is both ends and what they share.
type Transport interface {
	Publisher
	Subscriber
	// Close ends receivers and publishes in progress, and closes what the transport opened. It is idempotent.
	Close(ctx context.Context) error
}

// Subscription says what to receive. The consumer completes it before it reaches a transport.
type Subscription struct {
	// Queue is the queue's name, shared by all replicas of a service. Required.
	Queue string
	// Bindings are the topics to receive; wildcards where the transport has them. Empty: the queue is bound elsewhere.
	Bindings []string
	// Concurrency is how many handlers run at a time; default 10.
	Concurrency int
	// Prefetch bounds the deliveries held but not settled; default twice Concurrency.
	Prefetch int
	// Retry decides about the next attempt after a failure; nil means the runner's default.
	Retry *Backoff
	// RetryDelays are the delays the transport must be able to hold, ascending; filled from Retry.
	RetryDelays []time.Duration
	// MaxDeliveries is how often a message may be delivered without an outcome before it is parked; default 20,
	// negative = off.
	MaxDeliveries int
	// Unparked: do not park what fails for good: drop it. The default is to park.
	Unparked bool
}

// Receiver is an open subscription. Receive is called by one goroutine at a time; Settle concurrently with it and with
// itself.
type Receiver interface {
	// Receive blocks until there is at least one delivery, ctx ends, or the receiver is closed (ErrClosed), and returns
	// at most limit deliveries. A cancelled Receive loses nothing. After a lost connection it goes on by itself; it
	// returns an error of class outage if it wants the caller to back off and call again.
	Receive(ctx context.Context, limit int) ([]*Delivery, error)
	// Settle ends deliveries. A slot with an error means that the delivery was not settled and will come again.
	Settle(ctx context.Context, acks []Ack) Results
	// Close stops receiving. Deliveries that were not settled go back to the queue. It is idempotent.
	Close(ctx context.Context) error
}

// DeliveryExtender keeps deliveries invisible for longer. Without it the transport's limit bounds a handler's time.
type DeliveryExtender interface {
	// ExtendDeliveries makes deliveries stay the receiver's for d from now.
	ExtendDeliveries(ctx context.Context, deliveries []*Delivery, d time.Duration) Results
}

// Delivery is a message that arrived. It belongs to the caller of Receive until it is settled.
type Delivery struct {
	// Envelope is what arrived. Its Topic is the routing key the message was published with, after retries too. Source
	// falls back to the broker's application id; it may be empty on a foreign message.
	Envelope Envelope
	// Queue it came from.
	Queue string
	// Attempt is the number of this attempt, from 1. Retries by policy count; redeliveries do not.
	Attempt int
	// Redeliveries is how often it was delivered before without an outcome, as far as is known; -1 = unknown.
	Redeliveries int
	// Err is not nil if the message cannot be used as it is (two different ids, say). It is parked without reaching a
	// handler; ReasonOf(Err) is the reason.
	Err error
	// Handle is the transport's own. Nobody else touches it.
	Handle any
}

// Verdict is what should become of a delivery.
type Verdict uint8

// The verdicts.
const (
	VerdictNone     Verdict = iota
	VerdictDone             // handled: forget it
	VerdictRetry            // deliver again later, to this queue only
	VerdictReject           // park it
	VerdictGiveBack         // deliver again at once, to anyone, at no cost
)

// Ack settles one delivery. Build it with [AckDone], [AckRetry], [AckReject] or [AckGiveBack].
type Ack struct {
	Delivery *Delivery
	Verdict  Verdict
	// Delay is how long to wait before the retry.
	Delay time.Duration
	// Reason and Err travel with a parked message; Err with a retried one too.
	Reason Reason
	Err    string
}

// AckDone settles d as handled.
func AckDone(d *Delivery) Ack { return Ack{Delivery: d, Verdict: VerdictDone} }

// AckRetry asks for d again after delay, as its next attempt. The copy keeps every property. A transport with fixed
// delays rounds up to the next of Subscription.RetryDelays, and down to the last.
func AckRetry(d *Delivery, delay time.Duration, err error) Ack {
	return Ack{Delivery: d, Verdict: VerdictRetry, Delay: max(delay, 0), Err: ErrorText(err)}
}

// AckReject parks d with its reason.
func AckReject(d *Delivery, reason Reason, err error) Ack {
	return Ack{Delivery: d, Verdict: VerdictReject, Reason: reason, Err: ErrorText(err)}
}

// AckGiveBack puts d back for anyone, at no cost.
func AckGiveBack(d *Delivery) Ack { return Ack{Delivery: d, Verdict: VerdictGiveBack} }
