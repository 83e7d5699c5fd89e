package core

import (
	"context"
	"fmt"
	"math"
	"slices"
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
	// KeyOrderPipelinedPrefix: a failure also fails every later message of that key in the call, with [ErrBehind]
	// unless it has an error of its own.
	KeyOrderPipelinedPrefix
)

// String returns the name of the kind.
func (k KeyOrder) String() string {
	return nameOf("KeyOrder", uint8(k), "none", "serial", "pipelined prefix")
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
	// InProcess, if not nil, repeats a failed handler in this process before the broker sees the failure, each time in
	// a fresh transaction if it has one; nil means the runner's. Of no interest to transports.
	InProcess *Backoff
	// RetryDelays are the delays the transport must be able to hold, ascending; filled from Retry.
	RetryDelays []time.Duration
	// MaxDeliveries is how often a message may be delivered without an outcome before it is parked; default 20,
	// negative = off.
	MaxDeliveries int
	// InOrder keeps the order of a key up to the handler: a failed message is retried in place while its key waits, and
	// one receiver at a time gets deliveries (single active consumer). Refused where SubscriberTraits.SingleActive is
	// not promised.
	InOrder bool
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

// Parked is a message that was given up at the consumer, as an operator sees it.
type Parked struct {
	// Envelope is the message. ListParked leaves out its Body.
	Envelope Envelope
	// Queue it was parked from.
	Queue string
	// Reason and Error are those it was parked with; Attempts how often it was tried; At when it was parked.
	Reason   Reason
	Error    string
	Attempts int
	At       time.Time
}

// ParkedFilter selects parked messages. Empty fields select everything; several values are alternatives.
type ParkedFilter struct {
	IDs     []string
	Topics  []string
	Reasons []Reason
}

// IsZero reports whether f selects everything.
func (f *ParkedFilter) IsZero() bool { return len(f.IDs)+len(f.Topics)+len(f.Reasons) == 0 }

// Matches reports whether p is selected.
func (f *ParkedFilter) Matches(p *Parked) bool {
	return (len(f.IDs) == 0 || slices.Contains(f.IDs, p.Envelope.ID)) &&
		(len(f.Topics) == 0 || slices.Contains(f.Topics, p.Envelope.Topic)) &&
		(len(f.Reasons) == 0 || slices.Contains(f.Reasons, p.Reason))
}

// ParkedRequest asks to replay or purge parked messages of a queue.
type ParkedRequest struct {
	Queue string
	// Filter selects. It must not be empty unless All.
	Filter ParkedFilter
	All    bool
	// Limit bounds the messages to change; 0 = no bound. Messages parked after the call began are left alone.
	Limit int
	// PerSecond bounds the rate; 0 = no bound.
	PerSecond float64
	// Progress, if not nil, is called on the caller's goroutine after each step with how many were looked at, of how
	// many that were parked at the beginning.
	Progress func(looked, total int)
}

// Problems returns everything that is wrong with r, for adapters.
func (r *ParkedRequest) Problems() []string {
	var p []string
	if r.Queue == "" {
		p = append(p, "Queue: is empty; name the subscription's queue")
	}
	if r.Filter.IsZero() && !r.All {
		p = append(p, "Filter: is empty; name ids, topics or reasons, or set All if everything is meant")
	}
	if r.Limit < 0 {
		p = append(p, fmt.Sprintf("Limit: %d is negative; leave it 0 for no bound", r.Limit))
	}
	if !(r.PerSecond >= 0) || math.IsInf(r.PerSecond, 0) { // not a number is refused too
		p = append(p, fmt.Sprintf("PerSecond: %v is not a rate; leave it 0 for no bound", r.PerSecond))
	}
	return p
}

// Pace returns how long to wait before the next message after done of them, since started. It keeps to PerSecond.
func (r *ParkedRequest) Pace(done int, started, now time.Time) time.Duration {
	if r.PerSecond <= 0 {
		return 0
	}
	due := min(float64(done)/r.PerSecond*float64(time.Second), float64(math.MaxInt64/2))
	return max(time.Duration(due)-now.Sub(started), 0)
}

// ParkedQueue lists, replays and purges what was parked.
type ParkedQueue interface {
	// ParkedDepth returns how many messages are parked for queue.
	ParkedDepth(ctx context.Context, queue string) (int, error)
	// ListParked returns up to limit parked messages that match, oldest first where the broker keeps the order. They
	// stay parked.
	ListParked(ctx context.Context, queue string, f ParkedFilter, limit int) ([]Parked, error)
	// ReplayParked puts messages back to the queue they were parked from, as first attempts, and returns how many. Each
	// is removed only after the queue confirmed it: a crash between makes a duplicate, which the inbox absorbs. An
	// expired message is left. An empty filter without All is an [*InvalidError].
	ReplayParked(ctx context.Context, req ParkedRequest) (int, error)
	// PurgeParked deletes messages and returns how many. An empty filter without All is an [*InvalidError].
	PurgeParked(ctx context.Context, req ParkedRequest) (int, error)
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

// String returns the name of the verdict.
func (v Verdict) String() string {
	return nameOf("Verdict", uint8(v), "none", "done", "retry", "reject", "give back")
}

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
