// Package inbox gives handlers exactly one effect a message. [Handler] turns a typed function into a [waybill.Handler]
// that runs in one transaction with the mark that says the message was handled; a [core.Inbox] of a store keeps the
// marks.
//
// # Guarantees
//
//   - The handler's writes and the mark are committed together or not at all: a message that is delivered again after
//     the commit is a duplicate, one that is delivered again after a failure runs again.
//   - The mark's key is (consumer, source, id): the inbox's consumer name, the message's CloudEvents source (the queue
//     for a message without one), and its id, or what [Options.ID] returns. The ordering key is never used.
//   - A message without an id is refused with [waybill.ReasonNoID] before a transaction is begun, so that the consumer
//     parks it. So is a body that cannot be decoded, with [waybill.ReasonUndecodable].
//   - Messages staged in the transaction under the handler's context carry causation, correlation, tenant, run and
//     lineage of the message that is being handled. The stamps of the hybrid logical clock are merged by the consumer:
//     give its Options.Clock the clock of the outbox.
//   - [BatchHandler] does the same for many messages in one transaction. A batch that fails has no effect, and its
//     messages are handled one by one.
//   - Marks are deleted after [Options].Retention, 30 days by default, and with them the knowledge of the message: what
//     comes again later has its effect again. A retention that relay, broker or retry policy may outlast is refused, by
//     [New] and by the consumer. Replaying parked messages or redriving an outbox beyond it must be asked for
//     expressly: give the retention as [admin.RedriveRequest].InboxRetention, and look at [admin.Parked].At.
//   - [Inbox.Mark] marks in a transaction of the caller's own, for handlers that are not run by Waybill.
//
// Effects outside the transaction (mails, calls to other services) happen at least once.
//
// # Concurrency
//
// An [Inbox] and its handlers are safe for concurrent use, as far as their function is. Two deliveries of one message
// at a time: the second waits for the first, and then is a duplicate or, if the first rolled back, runs.
//
// # Ownership
//
// The transaction belongs to the inbox: a handler neither commits nor rolls it back, and does not keep it. The function
// may run again in a fresh transaction if the database asks for it (serialisation failure, deadlock), so it changes
// nothing outside the transaction that it cannot change twice.
//
// A consumer that runs a handler of an inbox also deletes its old marks, beside the handlers and as long as it runs, at
// an interval and in batches of 1,000, each a transaction of its own, with rests between them. Where no consumer runs,
// call [Inbox.Purge] or [Inbox.RunPurge]. There is no goroutine that nobody waits for.
//
// # Limits
//
// Consumer, source and id have at most 255 bytes each. Two handlers of one message need two consumer names; all
// handlers of one consumer may share an inbox, since a message reaches one of them only.
package inbox
