// Package table makes the outbox itself the queue: it gives any [core.OutboxStore] to the consumer runner as a
// [core.Subscriber]. There is no broker and no relay; handlers, retry policies and the inbox are the same as elsewhere.
//
// A queue is a route: what is staged with core.Routes("mails") is received by a subscription of queue "mails". Which
// topics a queue gets is decided at stage, not by the claim: Subscription.Bindings filter nothing. Leave them empty, or
// list topics as documentation; a wildcard is refused. A message of another topic reaches the handler of that topic or
// type, or is treated as one that no handler is for. A priority lane is a queue of its own, see [core.LaneRoute]. A route
// belongs to one queue: run no relay on it.
//
// # Guarantees
//
//   - A delivery is a claim with a lease. Done deletes the row (or keeps it, as the store's retention says), a retry is a
//     due time in the row, a give-back is a release, which costs nothing. A rejected message is parked where it is: the
//     row stays as abandoned, with reason and error, and can be listed and redriven like any other.
//   - Delivery.Attempt counts retries; Delivery.Redeliveries counts claims that ended without an outcome: crashes,
//     expired leases and receivers that were closed with the delivery in hand. From the second on a message is claimed
//     alone, when nothing else of its subscription is held, and nothing else is claimed while it is. Subscription.MaxDeliveries
//     parks it in the end. With MaxDeliveries off it comes again for ever.
//   - Every settle carries the claim's token. One that comes too late changes nothing, and is [core.ErrLeaseLost]: logged with
//     event lease_lost and its phase (settle, retry or renew), and counted in [Stats]. Leases are renewed at half time for as
//     long as a delivery is held, if the store is a [core.LeaseExtender]; else a handler must be done within one lease.
//   - With OrderPerKey, the default, messages of one key are handed out one at a time, in staged order, to one receiver of all
//     processes: the next one only after the one before was settled as done, or parked. While one waits for its retry, or is
//     held, its key waits; other keys go on. A subscription with InOrder gets what is due of a key at once, in order, and keeps
//     the order itself; nobody else gets of that key meanwhile. With BlockAfterAbandon it gets them one at a time, too: a parked one
//     blocks its key.
//   - A timer or a retry comes when it is due: the claim says when the next one is, and a store that is a [core.Waiter] wakes the
//     receiver for one that is staged meanwhile. A store without it is polled, and such a timer may be up to PollMax late.
//   - While the database is away nothing is lost and no attempt is spent: settles are tried again for as long as their caller
//     waits. A lease that ran out meanwhile counts as a redelivery.
//   - A cancelled Receive loses nothing: what its claim brings goes to the next one, or back when the receiver is closed.
//
// # Concurrency
//
// A [Transport] and its receivers are safe for concurrent use. One transport makes at most three calls to the store at a
// time, whatever the number of subscriptions and handlers: one claim; one settle or renewal, which takes along what other
// callers want to settle; and one wait. So a process needs at most three connections of the pool for them, and on Postgres one more
// outside of the pool to LISTEN on. Handlers with an inbox use one each while they run. A smaller pool delays, down to one
// connection; it never deadlocks, since no call waits for another while it holds a connection.
//
// A store value has one waiter at a time: give a relay, or a second transport, in the same process a store value of its own.
//
// # Ownership
//
// The store is the caller's; Close ends receivers and leaves it open. A [core.Delivery] belongs to the caller of Receive.
//
// # Limits
//
// Every replica of a queue must use the same Order. A replica that is idle learns of what another one gave back or lost when
// its wait ends: at once within a process; across processes when its store looks by itself (Postgres: 5 s at most), or at
// PollMax. What a handler did outside of its transaction is not undone when its lease is lost. Retries in place (InOrder) are not
// counted: neither Record.Attempts nor Delivery.Attempt of a parked message says how many there were.
package table
