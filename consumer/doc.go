// Package consumer runs handlers on what a [core.Subscriber] delivers: receive, check, queue of the key,
// middleware, handler, settle.
//
// # Guarantees
//
//   - A delivery is settled as done only after its handler returned nil. With package inbox that is after the commit.
//   - Nothing is dropped: what cannot be handled is parked with a reason, what failed comes again, what was not started
//     at a stop is released at once.
//   - A message without a handler is parked, or handled by the one for [waybill.AnyMessage], or dropped with a warning
//     if Options.Unknown says so. One that expired, one that the transport marked as unusable, and one that was
//     delivered [waybill.Subscription].MaxDeliveries times without an outcome, are parked without running a handler.
//     From half of that number on a message is a suspect and is handled alone: nothing else of its subscription runs,
//     everything else is released first and nothing more is received, so that a message that kills its process cannot
//     spend the budget of others. A broker that pushes ahead of Receive still counts what it pushed; suspects are
//     therefore handled in random order.
//   - A handler's error decides: [waybill.Reject] parks, [waybill.RetryAfter] delays, [waybill.Outage] releases at no
//     cost and pauses the subscription, any other (a panic too) is retried by the policy until its attempts are spent.
//     A custom policy gets the error in hand. One that panics, answers nonsense, does not answer within 5 s, or asks
//     for more than the transport can hold parks the message. A transport with fixed delays holds one for the next
//     declared delay that is not shorter, or else for the last. Declared are the delays of the policy before jitter; of
//     a custom one its Delays, or the default policy's if it has none.
//   - A handler's context ends after [waybill.Subscription].Timeout, 15 min by default. A handler that fails then has
//     failed an attempt, also if it took the end of its context for an outage. A batch has one time limit as a whole.
//   - With Options.InProcess a failed handler is first repeated in the process, the inbox's transaction included, each
//     time through all middleware. The broker sees one attempt.
//   - A batch handler's batch that fails is handled one by one, through the ordinary path.
//   - With [waybill.Subscription].InOrder a message of a key is handled only when the one before it is done or parked,
//     also through failures, outages, stops and a take-over by another consumer: a retry waits in place, with its key
//     behind it and other keys going on, and what is released is released in order. A message that was handled may come
//     again, later ones of its key too: the inbox absorbs it.
//   - While a subscription is paused it releases what it has not started, and the broker sends it nothing. After 1 s,
//     doubled up to 30 s, it asks the handlers' checks and probes with one message; the first that shows no outage
//     ends the pause. A message that has failed as a probe twice waits aside, so that another one probes. When those
//     that could probe have done so in vain, nothing is held for a hundred probes.
//   - A message that meets an outage again, although one that began later was handled, pauses nobody: it waits aside at
//     no cost, its key goes on but with InOrder, and it is parked after Options.OutageLimit. Up to half of the prefetch
//     can wait aside.
//   - A verdict that the transport cannot store is stored again; the handler does not run again for it. Its key waits
//     until a retry or a parking is stored. Meanwhile the subscription is paused as above, and its health says so. The
//     handler can run again if the transport has lost the delivery, since the broker then delivers the message again.
//   - When a transport says that another process has a message ([core.LossTeller]), the context of its handler, or of
//     its batch, ends with the cause [waybill.ErrLeaseLost]. What the handler then says about the message is not used.
//   - With [waybill.Subscription].Limit no more messages begin, and no more handlers run, over all processes than the
//     limit says. What waits for it is held. Without an answer of the limiter nothing begins, and the subscription is
//     paused as in any outage. A process that died loses its slots after 15 s. A process that waits for a slot gets one
//     in its turn.
//   - With [waybill.Subscription].PerGroup the same holds for each group within the process, but other groups go on. A
//     key whose message waits waits with it.
//   - Neither a message, nor a failed settle, nor a lost broker ends Run. Only an error of configuration before a
//     subscription's first success does, and then Run reports those of all subscriptions.
//   - When Run's context ends, every subscription at once stops receiving, releases what it has not started, and lets
//     running handlers finish for Options.DrainTimeout; then it cancels their contexts, and what they give up is
//     released.
//
// # Concurrency
//
// Up to Subscription.Concurrency handlers of one subscription run at a time. Deliveries of one ordering key are handled
// one at a time in the order of their arrival; a message that is retried later or released does not hold up the next
// of its key. There is no goroutine and no memory for a key that has nothing in progress. A batch counts as one
// handler.
//
// Handle must not be called while Run runs. Run is called once at a time.
//
// # Ownership
//
// The consumer closes the receivers it opened, not the transport. A delivery belongs to the consumer; handlers and
// middleware read it.
//
// # Limits
//
// A handler may run as long as the transport leaves a delivery with its receiver; deliveries are not renewed. A
// handler that does not return within 5 s after its context was cancelled is left behind and Run returns without it:
// its delivery is released, and its late result settles nothing.
//
// A subscription that is paused with the order kept, or over a transport without core.Pauser, may hold up to Prefetch
// messages that the broker has sent ahead; other consumers of the queue do not get these until the pause ends. A probe
// runs as long as its handler does.
//
// A limit over all processes counts a message when it is handed to its handler. A suspect that waits for a limit holds
// up everything else. A handler that runs when its process has lost the limiter for 15 s goes on, beside what others
// begin.
//
// In-process retries take a handler's place while they wait. Retries in place keep their message unsettled: their
// delays together must stay below the time the broker leaves a delivery with its receiver (RabbitMQ: consumer_timeout,
// 30 min), or it is delivered again; their attempts are counted in the process and start again with it. A policy
// without an end blocks its key for good. While Prefetch messages wait in place nothing else of the queue is received.
// Without a key, InOrder promises nothing: such a message is retried later, as ever.
//
// A batch has one span, linked to those of its messages, and one entry in the duration histogram; middleware and
// in-process retries are not for the batch but for its messages one by one.
//
// Background functions of handlers ([waybill.Handler].Background; the inbox's purge is one) run while Run does, each in
// a goroutine of its own that Run waits for, for 5 s at most.
package consumer
