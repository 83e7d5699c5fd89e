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
	// Publish sends batch and blocks until every message has a result or ctx ends. A nil result means that the
	// broker confirmed the message and routed it to at least one queue; a log stores it for the queues to come, see
	// PublisherTraits.KeepsUnread. Anything less is an error. A missing result (the connection died before the
	// confirm) is an outage, never success. Messages of one key must be sent in the order of the batch. Publish is
	// safe for concurrent use: calls in progress share the connection and are pipelined.
	//
	// A batch has no id twice: a broker that drops what it has seen before may take the second for the first.
	//
	// A message can come again with the same id on purpose: after an error, after an unknown result, by a redrive
	// or a replay. It must arrive then. A broker that drops what it has seen before (native deduplication) gets
	// another deduplication id each time, or none. But a repeat for lack of a result keeps its id until the result
	// is known, see PublisherTraits.TwoCopiesAtMost.
	//
	// A topic or a header name that the broker would interpret is escaped, and arrives as it was.
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
	// [waybill.ErrPredecessorFailed] unless it has an error of its own.
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
	// Durable: a confirmed message survives a crash of the broker's process, in queues as the transport declares
	// them by its options.
	Durable bool
	// Synced: it also survives the loss of one machine, or of its power: the broker confirms what is on the disk,
	// or on a majority of replicas.
	Synced bool
	// DetectsUnroutable: a message that no queue gets is an error that matches waybill.ErrUnroutable, not a
	// success.
	DetectsUnroutable bool
	// KeepsUnread: the broker is a log. It keeps a message that no queue gets yet, and a queue made within the
	// log's retention receives it. Nothing is unroutable then, so DetectsUnroutable is false.
	KeepsUnread bool
	// TwoCopiesAtMost: a message that one publisher sends again and again, since it learns no result, has two
	// copies at most, however often. It holds for as long as the broker remembers what it has seen, which is some
	// minutes, or the client holds the message; another process adds a copy of its own. Without it each try can
	// leave a copy. The inbox drops them all.
	TwoCopiesAtMost bool
	// MaxBatch bounds the messages of one Publish; 0 = unbounded. If the broker's own requests are smaller, make
	// several of them in one Publish instead of declaring it: the relay has a limited number of calls in progress.
	MaxBatch int
	// MaxBatchBytes bounds the sum of Envelope.Size over one Publish; 0 = unbounded. A message that is larger comes
	// alone.
	MaxBatchBytes int
	// MaxMessageBytes bounds Envelope.Size; 0 = unknown. A larger message is refused for good, as too large, before
	// it is sent. waybill.Limits.MaxMessageBytes is the bound at stage: set it to the least of the transports' in
	// use. A publisher also refuses what becomes larger than its broker allows by escaping or encoding.
	MaxMessageBytes int
}

// Subscriber opens subscriptions. It is the only part of a transport that a consumer needs.
type Subscriber interface {
	// Subscribe opens the subscription's queue, declares missing objects if that is allowed, and starts receiving.
	// If an object is missing, forbidden or declared with other arguments, it returns an error that matches
	// waybill.ErrMisconfigured and names the object, the cause and the cure. An empty queue name is
	// waybill.ErrInvalid. ctx is the receiver's life: its end closes the receiver, too.
	//
	// The bindings are added to those that the queue has; none is removed, since another release may need it during
	// a roll-out. An operator removes one with the broker's tools, or with the topology package of the transport. A
	// new queue starts with the messages that are published from now on, or with all that a log has kept.
	Subscribe(ctx context.Context, sub Subscription) (Receiver, error)
	// SubscriberTraits declares the subscriber's promises.
	SubscriberTraits() SubscriberTraits
}

// Wildcards says which wildcards bindings can hold. Topics are words between dots.
type Wildcards uint8

// The levels of wildcards. Each one includes those before it.
const (
	WildcardsNone Wildcards = iota
	WildcardsWord           // * stands for one word
	WildcardsTail           // # as the last word stands for any number of words, none included
	WildcardsAll            // # stands for any number of words anywhere
)

// String returns the name of the level.
func (w Wildcards) String() string {
	return enum.Name("Wildcards", w, 0, "none", "word", "tail", "all")
}

// SubscriberTraits are a subscriber's promises. The zero value promises nothing.
type SubscriberTraits struct {
	// KeyOrder: deliveries of one key to a single receiver come in queue order, until a redelivery.
	KeyOrder bool
	// DelaysRetries: the broker holds the delivery of an AckRetry, so that it survives the consumer. Other messages
	// come meanwhile, however many wait.
	DelaysRetries bool
	// MaxRetryDelay bounds the delay of AckRetry; 0 = unbounded.
	MaxRetryDelay time.Duration
	// Parks: AckReject keeps the message in a place where it can be listed and replayed.
	Parks bool
	// BrokerParks: the broker parks by itself what it delivered too often by its own count, with the reason
	// waybill.ReasonDeliveries where it can have one. The transport sets the broker's limit above
	// Subscription.MaxDeliveries.
	BrokerParks bool
	// CountsRedeliveries: Delivery.Redeliveries is known and counts crashes.
	CountsRedeliveries bool
	// AttemptsAreDeliveries: the broker has one count. Delivery.Attempt is the number of this delivery from 1, and
	// Redeliveries is one less: retries, redeliveries and releases all raise both. So MaxDeliveries bounds the
	// attempts, too, and a long outage of a handler's database can park a message.
	AttemptsAreDeliveries bool
	// HoldFor is how long the broker leaves a delivery to a receiver; then another one gets it. 0 = for as long as
	// the receiver lives, or the receiver renews by itself. The consumer renews what it holds through
	// [DeliveryRenewer], every third of HoldFor. Without a DeliveryRenewer it warns of deliveries held for longer
	// than two thirds.
	HoldFor time.Duration
	// AckTimeout is after how long the broker takes a delivery back from a receiver that lives and holds it.
	// Nothing renews it. So with Subscription.InOrder, where a message waits in place for its retries, these must
	// end before. 0 = no bound.
	AckTimeout time.Duration
	// SingleActive: with Subscription.InOrder one receiver at a time gets the deliveries of a queue, or of a key,
	// in queue order. It may hold several of them, or one at a time. After a release or the end of that receiver
	// the next delivery of the key is its oldest message.
	SingleActive bool
	// SharesByPartition: receivers share the partitions of a queue, not its messages. What waits in a partition
	// comes to no other receiver while the one that has it lives, so a slow handler holds up its partition alone,
	// and a queue has at most as many receivers at work as partitions. Messages of different keys are in all of
	// them.
	SharesByPartition bool
	// Wildcards says which wildcards bindings can hold.
	Wildcards Wildcards
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
	// Bindings are the topics to receive, with wildcards as far as SubscriberTraits.Wildcards goes. Empty: the
	// queue is bound elsewhere.
	Bindings []string
	// Concurrency is how many handlers run at a time, and Prefetch bounds the deliveries held but not settled; 0 =
	// the transport decides. The consumer enforces Prefetch: it never asks Receive for more. Only a receiver that
	// the broker sends messages ahead, a [Pauser], has to bound what the broker sends.
	Concurrency, Prefetch int
	// MaxPrefetch, if not 0, says that the consumer adapts how many deliveries it holds. It begins with Prefetch,
	// and goes up to MaxPrefetch. It tells a [Pauser] by Resume, any other receiver by the limit of Receive.
	MaxPrefetch int
	// ReceiveBytes, if not 0, bounds the bodies that one Receive returns, in bytes: it ends with the delivery that
	// reaches the bound; see [Subscription.ReceiveCount]. The consumer cannot know how large the next bodies are. A
	// transport that takes messages before a Receive asks for them has a bound of its own for these.
	ReceiveBytes int
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

// outageDelay is a delay of a subscription whose policy has none that is as short.
const outageDelay = time.Minute

// SubscriptionOf returns sub for a transport; without a Retry it has no delays. Else at least one delay is a minute or
// shorter, for retries by [Ack.WithoutAttempt]. With InOrder a message waits in its place, and needs none.
func SubscriptionOf(sub *waybill.Subscription) Subscription {
	var delays []time.Duration
	if sub.Retry != nil {
		delays = sub.Retry.Tiers()
		if !sub.InOrder && (len(delays) == 0 || delays[0] > outageDelay) {
			delays = slices.Insert(delays, 0, outageDelay)
		}
	}
	return Subscription{
		Queue: sub.Queue, Bindings: slices.Clone(sub.Bindings), Concurrency: sub.Concurrency, Prefetch: sub.Prefetch,
		RetryDelays: delays, MaxDeliveries: sub.MaxDeliveries, InOrder: sub.InOrder, DropFailed: sub.DropFailed,
	}
}

// ReceiveCount returns how many of the deliveries that are ready one Receive returns: at most limit, and none behind
// the one with which their bodies reach ReceiveBytes.
func (s *Subscription) ReceiveCount(ready []*waybill.Delivery, limit int) int {
	n, bytes := 0, 0
	for n < min(limit, len(ready)) && (s.ReceiveBytes <= 0 || bytes < s.ReceiveBytes) {
		bytes += len(ready[n].Envelope.Body)
		n++
	}
	return n
}

// Receiver is an open subscription. One goroutine at a time calls Receive. Settle is called concurrently with Receive
// and with itself. A receiver may be a [Checker], which reports without a round trip whether its connection is lost:
// while all handlers are busy, no goroutine calls Receive.
type Receiver interface {
	// Receive blocks until there is at least one delivery, ctx ends, or the receiver is closed (waybill.ErrClosed),
	// and returns at most limit deliveries. A cancelled Receive loses nothing. After a lost connection it connects
	// again by itself. If that fails, or takes longer than a moment, it returns an error of class outage: the
	// caller reports it, backs off and calls again. Such a call may wait for long, and so be told at once when the
	// broker answers again: it returns nil then, even without a delivery.
	Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error)
	// Settle ends deliveries. A result that is an error means that the delivery was not settled. If it matches
	// [waybill.ErrLeaseLost] or [waybill.ErrClosed], the receiver does not hold the delivery any more, and the
	// delivery comes again. If it matches [waybill.ErrInvalid], the ack is wrong, and the delivery can still be
	// settled by a right one. After any other error the receiver still holds the delivery: the caller settles it
	// again, by the same verdict. A copy that the transport made for the failed settle can then arrive, too. An
	// error that matches [ErrLocked] is about one delivery, whose record another program has locked: the caller
	// settles it again in a call of its own, which waits for that program.
	//
	// A nil result means that the broker has answered; a settle that was only sent is not settled. A protocol can
	// have no answer, as AMQP 0-9-1 has none to basic.ack: there nil means that the settle was sent on a connection
	// that still worked, and the delivery may come again if that one breaks; a harness of package transporttest
	// declares it by SettlesUnanswered. Where the broker does not check who settles, nil after HoldFor can mean
	// that the delivery was another receiver's by then. So effects need an inbox.
	//
	// A release raises neither Attempt nor Redeliveries, unless AttemptsAreDeliveries. A broker that cannot tell a
	// release from a loss may count the first one as a redelivery; a harness declares that by ReleasesCountOnce.
	// Deliveries that are released in one call keep their order.
	Settle(ctx context.Context, acks []Ack) Results
	// Close stops receiving. Unsettled deliveries go back to the queue. It is idempotent.
	Close(ctx context.Context) error
}

// Pauser is a receiver that the broker sends messages ahead. Without it a paused consumer keeps these messages.
type Pauser interface {
	// Pause stops the broker from sending, and releases what Receive has not returned, at no cost. What Receive has
	// returned stays the caller's. It is not called during a Receive.
	Pause(ctx context.Context) error
	// Resume lets the broker send again: what prefetch deliveries not settled allow, or 0 = Subscription.Prefetch.
	// It also changes that number while the broker sends: a greater one when that costs least, a smaller one at
	// once. A greater one counts although all that the broker may send is here. A smaller one releases what Receive
	// has not returned. It is not called during a Receive.
	Resume(ctx context.Context, prefetch int) error
}

// LeaseWatcher is a receiver that learns that a delivery it handed out is another's, such as after its process was
// taken for dead. Without it a consumer learns that when it settles.
type LeaseWatcher interface {
	// OnLost has fn called, on any goroutine, as soon as the receiver knows that it does not hold d any more and
	// that d was not settled; before OnLost returns, if it knows that already. fn does not block. A second call
	// replaces the first one's function.
	OnLost(d *waybill.Delivery, fn func())
}

// DeliveryRenewer is a receiver that keeps deliveries for longer than SubscriberTraits.HoldFor. Without it that limit
// bounds a handler's time.
type DeliveryRenewer interface {
	// RenewDeliveries extends the receiver's ownership of deliveries until d from now. A delivery whose result
	// matches [waybill.ErrLeaseLost] is another's; after any other error the caller tries again. It is called
	// concurrently with Receive and Settle, also for deliveries that are being settled: these results say nothing.
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
	// SameAttempt, of a retry: it costs no attempt. The next delivery is the same attempt. All other rules of a
	// retry hold. A broker with one count (SubscriberTraits.AttemptsAreDeliveries) counts it all the same.
	SameAttempt bool
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

// WithoutAttempt returns a, which [AckRetry] made, as one that costs no attempt: something that the handler of the
// message needs is down. Without an error the copy keeps that of an earlier attempt.
func (a Ack) WithoutAttempt() Ack {
	a.SameAttempt = true
	return a
}

// AckReject parks d with its reason.
func AckReject(d *waybill.Delivery, reason waybill.Reason, err error) Ack {
	return Ack{Delivery: d, Verdict: VerdictReject, Reason: storable(reason), Err: ErrorText(err)}
}

// AckRelease releases d for anyone, at no cost.
func AckRelease(d *waybill.Delivery) Ack { return Ack{Delivery: d, Verdict: VerdictRelease} }
