// Package table makes the outbox itself the queue: it gives any [core.OutboxStore] to the consumer runner as a
// [core.Subscriber]. There is no broker and no relay; handlers, retry policies and the inbox are the same as elsewhere.
//
// A queue is a route: a subscription of queue "mails" receives the messages staged with waybill.Routes("mails").
// Staging decides the topics of a queue: Subscription.Bindings filter nothing. Leave them empty, or list topics as
// documentation; a wildcard is refused. A message of another topic reaches the handler of that topic or type, or is
// treated as a message without a handler. A priority lane is a queue of its own, see [waybill.LaneRoute]. A route
// belongs to one queue: run no relay on it.
//
// # Who gets a message
//
//   - A delivery is held in the database before it is handed out, and until it is settled, however long that takes.
//     Done deletes the row (or keeps it, as the store's retention says), a retry is a due time in the row, a release
//     ends the hold, which costs nothing. A rejected message is parked where it is: the row stays as abandoned, with
//     reason and error. The transport lists, replays and purges parked ones ([admin.ParkedQueue]).
//   - Messages without a key go to a receiver with a free handler, in staged order. No process takes more than it can
//     handle at once, so nothing waits behind a busy one.
//   - The keys are shared out between the receivers. A receiver whose handlers are all busy for longer than a quarter
//     of a second hands its keys on, but for those that are being handled.
//   - With OrderPerKey, the default, messages of one key are handed out one at a time, in staged order, to one receiver
//     of all processes: the next one only after the one before was settled as done, or parked. While one waits for its
//     retry, or is held, its key waits; other keys go on.
//   - A subscription with InOrder gets the due messages of a key at once, in order, and keeps the order itself. No
//     other receiver gets any of that key meanwhile. With BlockAfterAbandon it gets them one at a time, too: a parked
//     one blocks its key.
//   - A timer or a retry comes when it is due: the store says when the next one is. One that is staged meanwhile, or a
//     retry that another process asked for, is at most half a second late.
//
// # Settles, crashes and outages
//
//   - Delivery.Attempt counts retries; Delivery.Redeliveries counts deliveries that ended without an outcome: crashes,
//     processes that were silent for a lease, and receivers that were closed with the delivery in hand. From the second
//     on a message goes alone, when nothing else of its subscription is held, and nothing else is taken while it is.
//     Subscription.MaxDeliveries parks it in the end. With MaxDeliveries off it comes again for ever.
//   - A settle that comes too late, since others took the process for dead, changes nothing, and is
//     [waybill.ErrLeaseLost]. [Stats] counts it, and the consumer logs it (event=consumer.lease_lost).
//   - While it has receivers, a transport cleans the store as a relay does, if it is elected, and reports the gauges
//     of its queues.
//   - While the database is away nothing is lost and no attempt is spent: settles are tried again. An outage takes no
//     delivery away from its receiver, however long it lasts.
//   - A cancelled Receive loses nothing: the messages that were taken for it go to the next one, or back after a
//     quarter of a second.
//
// # Concurrency
//
// A [Transport] and its receivers are safe for concurrent use. Each receiver is a member of the outbox, from its first
// Receive until it is closed. One transport makes at most two calls to the store at a time, for any number of
// subscriptions and handlers, and one that waits. So a process needs at most three connections of the pool for them,
// and on Postgres two more outside of the pool, to LISTEN on and to show that it is there. Handlers with an inbox use
// one each while they run. A smaller pool delays, down to one connection; it never deadlocks, since no call waits for
// another while it holds a connection.
//
// A store value has one waiter at a time: give a relay, or a second transport, in the same process a store value of its
// own. New does not refuse a shared value: it cannot see who else has it, and some stores let several wait.
//
// # Ownership
//
// The store is the caller's; Close ends receivers and leaves it open. A [waybill.Delivery] belongs to the caller of
// Receive.
//
// # Limits
//
//   - A consumer without a Prefetch has as many deliveries in hand as it asks for. Otherwise a receiver has as many as
//     its subscription has handlers; a Prefetch of more than twice as many is taken as it is.
//   - Every replica of a queue must use the same Order.
//   - Records with a key are divided by partitions, and partitions between processes by their number, not by the work
//     in them; a process gives up first those without any. So on a queue with few keys a process that joins may get no
//     work while another has all of it.
//   - The deliveries of a process that was killed come again within two seconds if the store is a [core.Presence], else
//     when its lease ends, by the clock of those that are left.
//   - The effects of a handler outside of its transaction are not undone when its delivery is lost.
//   - A message that ended two processes waits until the process that took it has finished its other messages.
//   - Retries in place (InOrder) are not counted: neither Record.Attempts nor Delivery.Attempt of a parked message says
//     how many there were.
package table
