package core

import (
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/enum"
)

// Publisher sends messages to a broker. It is the only part of a transport that a relay needs.
type Publisher interface {
	// Publish sends batch and blocks until every message has a result or ctx ends. A nil slot means that the broker
	// confirmed the message and routed it to at least one queue. Anything less is an error. A missing result (the
	// connection died before the confirm) is an outage, never success. Messages of one key must be sent in the
	// order of the batch. Publish is safe for concurrent use: calls in progress share the connection and are
	// pipelined.
	Publish(ctx context.Context, batch []waybill.Envelope) Results
	// Traits declares the publisher's promises.
	Traits() PublisherTraits
}

// KeyOrder is a publisher's promise about messages of one key.
type KeyOrder uint8

// The kinds of key order.
const (
	// KeyOrderNone: messages of one key can arrive in any order.
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
	// DetectsUnroutable: a message without a bound queue is an error, not a success.
	DetectsUnroutable bool
	// MaxBatch bounds the messages of one Publish; 0 = unbounded.
	MaxBatch int
	// MaxBodyBytes bounds a body; 0 = unknown.
	MaxBodyBytes int
}

// Subscriber opens subscriptions. It is the only part of a transport that a consumer needs.
type Subscriber interface {
	// Subscribe opens the subscription's queue, declares missing objects if that is allowed, and starts receiving.
	// If an object is missing, forbidden or declared with other arguments, it returns an error that matches
	// waybill.ErrMisconfigured and names the object, the cause and the cure.
	Subscribe(ctx context.Context, sub Subscription) (Receiver, error)
	// SubscriberTraits declares the subscriber's promises.
	SubscriberTraits() SubscriberTraits
}

// SubscriberTraits are a subscriber's promises. The zero value promises nothing.
type SubscriberTraits struct {
	// KeyOrder: deliveries of one key to a single receiver come in queue order, until a redelivery.
	KeyOrder bool
	// RetryLater: the broker holds the delivery of an AckRetry, so that it survives the consumer.
	RetryLater bool
	// MaxRetryDelay bounds the delay of AckRetry; 0 = unbounded.
	MaxRetryDelay time.Duration
	// Parks: AckReject keeps the message in a place where it can be listed and replayed.
	Parks bool
	// CountsRedeliveries: Delivery.Redeliveries is known and counts crashes.
	CountsRedeliveries bool
	// SingleActive: with Subscription.InOrder one receiver at a time gets the deliveries of a queue, or of a key,
	// in queue order.
	SingleActive bool
	// Wildcards: bindings can hold * (one word) and # (any number of words).
	Wildcards bool
}

// Transport is a Publisher and a Subscriber that share a connection.
type Transport interface {
	Publisher
	Subscriber
	// Close ends receivers and publishes in progress, and closes what the transport opened. It is idempotent.
	Close(ctx context.Context) error
}

// Subscription is a [waybill.Subscription] that a consumer has completed for a transport.
type Subscription struct {
	// Queue is the queue's name, shared by all replicas of a service.
	Queue string
	// Bindings are the topics to receive, with wildcards if the transport has them. Empty: the queue is bound
	// elsewhere.
	Bindings []string
	// Concurrency is how many handlers run at a time, and Prefetch bounds the deliveries held but not settled; 0 =
	// the transport decides.
	Concurrency, Prefetch int
	// RetryDelays are the delays that the transport must be able to hold, ascending.
	RetryDelays []time.Duration
	// MaxDeliveries bounds the deliveries of a message without an outcome. The consumer parks a message that
	// exceeds it. 0 or less = no bound.
	MaxDeliveries int
	// InOrder: one receiver at a time gets the deliveries of a key, as SubscriberTraits.SingleActive says.
	InOrder bool
	// DropFailed: rejected deliveries are dropped, not parked.
	DropFailed bool
}

// SubscriptionOf returns sub for a transport; without a Retry it has no delays.
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

// Receiver is an open subscription. One goroutine at a time calls Receive. Settle is called concurrently with Receive
// and with itself. A receiver may be a [Checker], which says without asking anybody whether its connection is lost:
// while all handlers are busy, nobody calls Receive.
type Receiver interface {
	// Receive blocks until there is at least one delivery, ctx ends, or the receiver is closed (waybill.ErrClosed),
	// and returns at most limit deliveries. A cancelled Receive loses nothing. After a lost connection it connects
	// again by itself. If that fails, or takes longer than a moment, it returns an error of class outage: the
	// caller reports it, backs off and calls again. Such a call may wait for long, and so be told at once when the
	// broker answers again: it returns nil then, even without a delivery.
	Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error)
	// Settle ends deliveries. An error in a slot means that the delivery was not settled. If it matches
	// [waybill.ErrLeaseLost] or [waybill.ErrClosed], the receiver does not hold the delivery any more, and the
	// delivery comes again. If it matches [waybill.ErrInvalid], the ack is wrong. After any other error the
	// receiver still holds the delivery: the caller settles it again, by the same verdict. A copy that the
	// transport made for the failed settle can then arrive, too.
	Settle(ctx context.Context, acks []Ack) Results
	// Close stops receiving. Unsettled deliveries go back to the queue. It is idempotent.
	Close(ctx context.Context) error
}

// Pauser is a receiver that the broker sends messages ahead. Without it a paused consumer keeps what was sent.
type Pauser interface {
	// Pause stops the broker from sending, and releases what Receive has not returned, at no cost. What Receive has
	// returned stays the caller's. It is not called during a Receive.
	Pause(ctx context.Context) error
	// Resume lets the broker send again: what prefetch deliveries not settled allow, or 0 = Subscription.Prefetch.
	// It also changes that number while the broker sends. It is not called during a Receive.
	Resume(ctx context.Context, prefetch int) error
}

// LossTeller is a receiver that learns that a delivery it handed out is another's, such as after its process was taken
// for dead. Without it a consumer learns that when it settles.
type LossTeller interface {
	// WhenLost has fn called, on any goroutine, as soon as the receiver knows that it does not hold d any more and
	// that nobody settled it; before WhenLost returns, if it knows that already. fn does not block. A second call
	// replaces the first one's function.
	WhenLost(d *waybill.Delivery, fn func())
}

// DeliveryRenewer keeps deliveries invisible for longer. Without it the transport's limit bounds a handler's time.
type DeliveryRenewer interface {
	// RenewDeliveries extends the receiver's ownership of deliveries until d from now.
	RenewDeliveries(ctx context.Context, deliveries []*waybill.Delivery, d time.Duration) Results
}

// Verdict is the consumer's decision about a delivery.
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

// AckRetry asks for d again after delay, as its next attempt, or as the same one if it came before its NotBefore. The
// copy keeps every property. A transport with fixed delays rounds up to the next of Subscription.RetryDelays. If the
// delay is greater than the last one, the message comes after that with Delivery.NotBefore.
func AckRetry(d *waybill.Delivery, delay time.Duration, err error) Ack {
	return Ack{Delivery: d, Verdict: VerdictRetry, Delay: max(delay, 0), Err: ErrorText(err)}
}

// AckReject parks d with its reason.
func AckReject(d *waybill.Delivery, reason waybill.Reason, err error) Ack {
	return Ack{Delivery: d, Verdict: VerdictReject, Reason: reason, Err: ErrorText(err)}
}

// AckRelease releases d for anyone, at no cost.
func AckRelease(d *waybill.Delivery) Ack { return Ack{Delivery: d, Verdict: VerdictRelease} }
