package waybill

import "time"

// Subscription describes the messages that an application wants to receive, and how.
type Subscription struct {
	// Queue is the queue's name, shared by all replicas of a service. Required.
	Queue string
	// Bindings are the topics to receive. Where the transport has wildcards, * stands for one word and # for any
	// number of words, and a handler for a topic that no binding matches is refused. Empty: the queue is bound
	// elsewhere.
	Bindings []string
	// Concurrency is how many handlers run at a time; default 10.
	Concurrency int
	// Prefetch bounds the deliveries held but not settled. Default 0: the number adapts. It begins with one for
	// each handler, or a batch for each, and grows by the number that the handlers settle in a tenth of a second,
	// up to 1,000 or two full batches for each. When they become slow at once, deliveries that they cannot begin
	// within a tenth of a second go back at no cost, except those with a key. While a message that came again is
	// held, few are. With InOrder or PerGroup the default is twice Concurrency, or two full batches for each
	// handler; in order RabbitMQ sends at most 64 ahead, or one for each handler. With Limit.Rate it is at most a
	// minute's worth, since what waits for a permit is held. With any number the bodies held are bounded to 64 MiB,
	// about; a larger message goes alone.
	Prefetch int
	// Limit bounds the handlers of all processes together, by rate and by number. It needs
	// consumer.Options.Limiter.
	Limit SharedLimit
	// PerGroup bounds what each tenant, or other group, takes of one process. Messages that wait are held, so
	// Prefetch should be several times what one group brings at once. It is refused with batch handlers.
	PerGroup GroupLimit
	// Timeout limits one run of a handler; default 15 min, negative = no limit. The handler's context ends with it.
	// A handler that fails then has failed an attempt, with any error but a [Reject]. A handler that ignores its
	// context runs on.
	Timeout time.Duration
	// Retry decides about the next attempt after a failure; nil means the runner's default.
	Retry *Backoff
	// InProcess, if not nil, repeats a failed handler in this process before the broker sees the failure. Each try
	// has a fresh transaction if the handler has one. Nil means the runner's.
	InProcess *Backoff
	// MaxDeliveries bounds the deliveries of a message without an outcome. A message that exceeds it is parked.
	// Default 20, negative = no bound.
	MaxDeliveries int
	// InOrder keeps the order of a key up to the handler. A failed message is retried in place while its key waits,
	// and one receiver at a time gets deliveries (single active consumer). It is refused if the transport cannot do
	// that.
	InOrder bool
	// Sources, if not nil, says which sources may send, and which topics each; * and # stand for words as in
	// Bindings. Any other message is parked with [ReasonForbidden] before a handler or an inbox sees it. The source
	// "" stands for messages without one. A sender writes its source itself, so let the broker's topic permissions
	// bound the topics of each login: both together keep a service from speaking for another one.
	Sources map[string][]string
	// Foreign, if not nil, completes messages of producers that do not use Waybill, before anything else looks at
	// them: it sets the id, the source, the lineage and so on by which a message is known, from its headers or its
	// body. It sees every message each time that it comes, and leaves those of Waybill as they are. A message for
	// which it returns an error is parked with [ReasonUndecodable]. It must be safe for concurrent use, and must
	// not change the body. Package consumer/foreign has some.
	Foreign func(e *Envelope) error
	// DropFailed drops messages that fail for good, instead of parking them.
	DropFailed bool
}
