package core

import (
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/enum"
)

// Publisher sends messages to a broker. A relay needs nothing else of a transport.
type Publisher interface {
	// Publish sends batch and blocks until every message has a result or ctx ends. A nil slot means that the broker
	// confirmed the message and routed it to at least one queue; anything less is an error. A result that never came
	// (the connection died before the confirm) is an outage, never success. Messages of one key must be sent in the
	// order of the batch. Safe for concurrent use: calls in progress share the connection and are pipelined.
	Publish(ctx context.Context, batch []waybill.Envelope) Results
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
	// KeyOrderPipelinedPrefix: a failure also fails every later message of that key in the call, with
	// [waybill.ErrBehind] unless it has an error of its own.
	KeyOrderPipelinedPrefix
)

// String returns the name of the kind.
func (k KeyOrder) String() string {
	return enum.Name("KeyOrder", k, 0, "none", "serial", "pipelined prefix")
}

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
	// an object that is missing, forbidden or declared with other arguments as waybill.ErrMisconfigured, naming the
	// object, the cause and the cure.
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
	// SingleActive: with Subscription.InOrder the deliveries of a queue, or of a key, go to one receiver at a time, in
	// queue order.
	SingleActive bool
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

// Subscription is what a transport is asked for: a [waybill.Subscription] that a consumer has completed.
type Subscription struct {
	// Queue is the queue's name, shared by all replicas of a service.
	Queue string
	// Bindings are the topics to receive; wildcards where the transport has them. Empty: the queue is bound elsewhere.
	Bindings []string
	// Concurrency is how many handlers run at a time, and Prefetch bounds the deliveries held but not settled; 0 = what
	// suits the transport.
	Concurrency, Prefetch int
	// RetryDelays are the delays that the transport must be able to hold, ascending.
	RetryDelays []time.Duration
	// MaxDeliveries is how often a message may be delivered without an outcome before the consumer parks it; not above
	// 0 = no bound.
	MaxDeliveries int
	// InOrder: one receiver at a time gets the deliveries of a key, as SubscriberTraits.SingleActive says.
	InOrder bool
	// DropFailed: what is rejected is dropped, and not parked.
	DropFailed bool
}

// SubscriptionOf returns what a transport is asked for on behalf of sub: without a Retry, no delays.
func SubscriptionOf(sub *waybill.Subscription) Subscription {
	var delays []time.Duration
	if sub.Retry != nil {
		delays = sub.Retry.Tiers()
	}
	return Subscription{
		Queue: sub.Queue, Bindings: slices.Clone(sub.Bindings), Concurrency: sub.Concurrency, Prefetch: sub.Prefetch,
		RetryDelays: delays, MaxDeliveries: sub.MaxDeliveries, InOrder: sub.InOrder, DropFailed: sub.DropFailed,
	}
}

// Receiver is an open subscription. Receive is called by one goroutine at a time; Settle concurrently with it and with
// itself.
type Receiver interface {
	// Receive blocks until there is at least one delivery, ctx ends, or the receiver is closed (waybill.ErrClosed), and
	// returns at most limit deliveries. A cancelled Receive loses nothing. After a lost connection it goes on by
	// itself; it returns an error of class outage if it wants the caller to back off and call again.
	Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error)
	// Settle ends deliveries. A slot with an error means that the delivery was not settled and will come again.
	Settle(ctx context.Context, acks []Ack) Results
	// Close stops receiving. Deliveries that were not settled go back to the queue. It is idempotent.
	Close(ctx context.Context) error
}

// DeliveryRenewer keeps deliveries invisible for longer. Without it the transport's limit bounds a handler's time.
type DeliveryRenewer interface {
	// RenewDeliveries makes deliveries stay the receiver's for d from now.
	RenewDeliveries(ctx context.Context, deliveries []*waybill.Delivery, d time.Duration) Results
}

// Verdict is what should become of a delivery.
type Verdict uint8

// The verdicts.
const (
	VerdictNone    Verdict = iota
	VerdictDone            // handled: forget it
	VerdictRetry           // deliver again later, to this queue only
	VerdictReject          // park it
	VerdictRelease         // deliver again at once, to anyone, at no cost
)

// String returns the name of the verdict.
func (v Verdict) String() string {
	return enum.Name("Verdict", v, 0, "none", "done", "retry", "reject", "release")
}

// Ack settles one delivery. Build it with [AckDone], [AckRetry], [AckReject] or [AckRelease].
type Ack struct {
	Delivery *waybill.Delivery
	Verdict  Verdict
	// Delay is how long to wait before the retry.
	Delay time.Duration
	// Reason and Err travel with a parked message; Err with a retried one too.
	Reason waybill.Reason
	Err    string
}

// AckDone settles d as handled.
func AckDone(d *waybill.Delivery) Ack { return Ack{Delivery: d, Verdict: VerdictDone} }

// AckRetry asks for d again after delay, as its next attempt. The copy keeps every property. A transport with fixed
// delays rounds up to the next of Subscription.RetryDelays, and down to the last.
func AckRetry(d *waybill.Delivery, delay time.Duration, err error) Ack {
	return Ack{Delivery: d, Verdict: VerdictRetry, Delay: max(delay, 0), Err: ErrorText(err)}
}

// AckReject parks d with its reason.
func AckReject(d *waybill.Delivery, reason waybill.Reason, err error) Ack {
	return Ack{Delivery: d, Verdict: VerdictReject, Reason: reason, Err: ErrorText(err)}
}

// AckRelease releases d for anyone, at no cost.
func AckRelease(d *waybill.Delivery) Ack { return Ack{Delivery: d, Verdict: VerdictRelease} }
