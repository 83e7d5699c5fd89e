package waybill

import "time"

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
	// DropFailed: do not park what fails for good: drop it. The default is to park.
	DropFailed bool
}
