// Package consumer runs handlers for the messages of a [core.Subscriber]. A message takes this way: receive, check,
// queue of its key, middleware, handler, settle. The sections below answer one question each.
//
// # What happens to a message
//
//   - The consumer settles a delivery as done only after its handler returned nil. With package inbox that is after the
//     commit.
//   - No message is dropped. A message that cannot be handled is parked with a reason. A failed one comes again. One
//     that had not started at a stop is released at once.
//   - A message without a handler goes to the handler for [waybill.AnyMessage]. Without that it is parked, or dropped
//     with a warning if Options.Unknown says so.
//   - The consumer parks three kinds of messages without running a handler: expired ones, those that the transport
//     marked as unusable, and those delivered [waybill.Subscription].MaxDeliveries times without an outcome.
//   - From half of MaxDeliveries on a message is a suspect: it may kill its process, and must not spend the deliveries
//     of others. So the consumer releases everything else of the subscription, receives nothing more, and handles the
//     suspect alone. A broker that pushes ahead of Receive still counts the messages that it pushed. Suspects are
//     therefore handled in random order.
//   - A verdict that the transport cannot store is stored again; the handler does not run again for it. Its key waits
//     until a retry or a parking is stored. Meanwhile the subscription is paused as in an outage, and its health says
//     so. The handler can run again if the transport has lost the delivery, since the broker then delivers the message
//     again.
//   - A transport can say that another process has a message ([core.LeaseWatcher]). Then the context of the handler, or
//     of the batch, ends with the cause [waybill.ErrLeaseLost]. The consumer ignores the handler's result.
//   - The consumer renews deliveries that the broker would give away, as long as it holds them, if the transport can
//     ([core.DeliveryRenewer]); see [core.SubscriberTraits].HoldFor.
//
// # Failures and retries
//
//   - A handler's error decides. [waybill.Reject] parks. [waybill.RetryAfter] delays. [waybill.Outage] releases at no
//     cost and pauses the subscription. Any other error, and a panic, is retried by the policy until the attempts are
//     spent.
//   - A custom policy gets the error in hand. The message is parked if the policy panics, answers nonsense, does not
//     answer within 5 s, or asks for more than the transport can hold.
//   - A transport with fixed delays holds a message for the next declared delay that is not shorter, or else for the
//     last one. Declared are the delays of the policy before jitter. A custom policy declares its Delays, or without
//     any those of the default policy.
//   - A handler's context ends after [waybill.Subscription].Timeout, 15 min by default. A handler that fails then has
//     failed an attempt, also if it took the end of its context for an outage. A batch has one time limit as a whole.
//   - With Options.InProcess a failed handler is first repeated in the process, each time through all middleware and in
//     a new transaction of the inbox. The broker sees one attempt. The message keeps a handler's place meanwhile.
//   - A batch handler's batch that fails is handled one by one, through the ordinary path.
//
// # Order
//
// The handlers of one subscription run side by side, up to Subscription.Concurrency of them. A batch counts as one
// handler. Deliveries of one ordering key are handled one at a time in the order of their arrival. A message that is
// retried later or released does not hold up the next of its key. A key with nothing in progress has no goroutine and
// takes no memory.
//
// With [waybill.Subscription].InOrder a message of a key is handled only when the one before it is done or parked. That
// holds through failures, outages, stops and a take-over by another consumer. A retry waits in place: its key waits
// behind it, and other keys go on. Releases keep the order, too. A message that was handled may come again, and later
// ones of its key as well; the inbox absorbs them.
//
// Retries in place keep their message unsettled. Their delays together must stay below the time that the broker leaves
// a delivery with its receiver (RabbitMQ: consumer_timeout, 30 min), or the broker delivers it again. The process
// counts their attempts, and the count starts again with another process. A policy without an end blocks its key for
// good. While Prefetch messages wait in place, nothing else of the queue is received. InOrder promises nothing for a
// message without a key: such a message is retried later, as without InOrder.
//
// # Outages
//
//   - A paused subscription releases the messages that it has not started, and the broker sends it none. After 1 s,
//     doubled up to 30 s, it asks the handlers' checks and probes with one message. The first probe that shows no
//     outage ends the pause. A probe runs as long as its handler does.
//   - A message that has failed as a probe twice comes again after the next pause, as the same attempt, so that another
//     one probes. The broker has it meanwhile, for a minute at most. If it comes while others can probe, it goes away
//     once more. So all messages are handled within three minutes after an outage, and the time that they take.
//   - A message that meets an outage again, although one that began later was handled, does not pause the subscription.
//     It comes again later, at no cost, its key goes on unless InOrder is set, and it is parked after
//     Options.OutageLimit. Messages that are slow to fail come so seldom that together they take half of one handler's
//     time.
//   - With InOrder, or over a transport without core.Pauser, a paused subscription may hold up to Prefetch messages
//     that the broker has sent ahead. Other consumers of the queue do not get these until the pause ends.
//
// # Limits of concurrency and rate
//
//   - With [waybill.Subscription].Limit no more messages begin, and no more handlers run, over all processes than the
//     limit says. The other messages wait here. Without an answer of the limiter nothing begins, and the subscription
//     is paused as in any outage. A process that died loses its slots after 15 s. A process that waits for a slot gets
//     one in its turn.
//   - Such a limit counts a message when the consumer hands it to its handler. A suspect that waits for a limit holds
//     up everything else. A handler goes on when its process has lost the limiter for 15 s, although others can have
//     its slot by then.
//   - With [waybill.Subscription].PerGroup the same holds for each group within the process, but other groups go on.
//     The key of a message that waits for its group waits, too.
//
// # Start, stop and errors
//
//   - Neither a message, nor a failed settle, nor a lost broker ends Run. Only an error of configuration before a
//     subscription's first success does. Run then reports those of all subscriptions.
//   - When Run's context ends, each subscription stops receiving and releases the messages that it has not started.
//     Running handlers may finish for Options.DrainTimeout. Then Run cancels their contexts, and releases the messages
//     whose handlers give up.
//   - Run leaves a handler behind that does not return within 5 s after its context was cancelled. Its delivery is
//     released, and its late result settles nothing.
//   - Background functions of handlers ([waybill.Handler].Background; the inbox's purge is one) run while Run does,
//     each in a goroutine of its own. Run waits for them, for 5 s at most.
//
// Handle must not be called while Run runs. Run is called once at a time.
//
// # Ownership
//
// The consumer closes the receivers that it opened, not the transport. A delivery belongs to the consumer; handlers and
// middleware read it.
//
// # Telemetry of batches
//
// A batch has one span, linked to those of its messages, and one entry in the duration histogram. Middleware and
// in-process retries see the messages of a batch only when they are handled one by one.
package consumer
