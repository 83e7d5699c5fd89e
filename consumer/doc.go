// Package consumer runs handlers on what a [core.Subscriber] delivers: receive, check, lane of the key, middleware,
// handler, settle.
//
// # Guarantees
//
//   - A delivery is settled as done only after its handler returned nil. With package inbox that is after the commit.
//   - Nothing is dropped: what cannot be handled is parked with a reason, what failed comes again, what was not started
//     at a stop goes back at once.
//   - A message without a handler, one that expired, one that the transport marked as unusable, and one that was
//     delivered [core.Subscription].MaxDeliveries times without an outcome are parked without running a handler. From half
//     of that number on a message is a suspect and is handled alone: nothing else of its subscription runs, everything
//     else is given back first and nothing more is received, so that a message that kills its process cannot spend the
//     budget of others. A broker that pushes ahead of Receive still counts what it pushed; suspects are therefore
//     handled in random order.
//   - A handler's error decides: [core.Reject] parks, [core.RetryAfter] delays, [core.Outage] gives back at no cost and
//     pauses the subscription, any other (a panic too) is retried by the policy until its attempts are spent. A policy
//     that panics, answers nonsense or asks for more than the transport can hold parks the message.
//   - While a subscription is paused it gives back what it has not started, and probes with one message at a time after
//     1 s, doubled up to 30 s; the first that shows no outage ends the pause.
//   - Neither a message, nor a failed settle, nor a lost broker ends Run. Only an error of configuration before a
//     subscription's first success does, and then Run reports those of all subscriptions.
//   - When Run's context ends, every subscription at once stops receiving, gives back what it has not started, and lets
//     running handlers finish for Options.DrainTimeout; then it cancels their contexts, and what they give up goes back.
//
// # Concurrency
//
// Up to Subscription.Concurrency handlers of one subscription run at a time. Deliveries of one ordering key are handled
// one at a time in the order of their arrival; a message that is retried later or given back does not hold up the next
// of its key. There is no goroutine and no memory for a key that has nothing in progress.
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
// A handler may run as long as the transport leaves a delivery with its receiver; deliveries are not extended. A handler
// that does not return within 5 s after its context was cancelled is left behind and Run returns without it: its delivery
// goes back to the queue, and its late result settles nothing.
//
// While a subscription is paused a broker that pushes ahead of Receive may hold up to Prefetch messages for it; other
// consumers of the queue do not get these until the pause ends. A probe runs as long as its handler does. The policy for messages without a handler is to park them
// with [core.ReasonNoHandler].
package consumer
