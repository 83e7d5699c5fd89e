// Package inbox gives handlers exactly one effect a message. [Handler] turns a typed function into a [waybill.Handler].
//
//	billing, err := inbox.New(store, "billing", inbox.Options{}) // store is a *sqlite.Store, or a *postgres.Inbox
//	err = c.Handle(waybill.Subscription{Queue: "billing.orders", Bindings: []string{"orders.*"}},
//		inbox.Handler(billing, orderPlaced, func(ctx context.Context, tx *sql.Tx, o Order) error {
//			_, err := tx.ExecContext(ctx, "INSERT INTO bills (order_id) VALUES (?)", o.ID)
//			return err
//		}))
//
// The function runs in the same transaction as the mark, which records that the message was handled. A [core.Inbox] of
// a store keeps the marks.
//
// # Guarantees
//
//   - The handler's writes and the mark are committed together or not at all. A message that is delivered again after
//     the commit is a duplicate; one that is delivered again after a failure runs again.
//   - The mark's key is (consumer, source, id): the inbox's consumer name, the message's CloudEvents source (the queue
//     for a message without one), and its id, or the result of [Options.ID]. The ordering key is never used.
//   - The mark also keeps a hash of topic, type, key, tenant and body, as the handler gets them. Another message with
//     the source and id of one that was handled is no duplicate: the inbox refuses it with [waybill.ReasonIDConflict],
//     and the consumer parks it. See Options.AnyBody.
//   - A message without an id is refused with [waybill.ReasonNoID] before a transaction is begun, so that the consumer
//     parks it. A body that cannot be decoded is refused with [waybill.ReasonUndecodable].
//   - Messages staged in the transaction under the handler's context carry causation, correlation, tenant, run and
//     lineage of the handled message. The consumer merges the stamps of the hybrid logical clock: set its Options.Clock
//     to the clock of the outbox.
//   - [BatchHandler] does the same for many messages in one transaction. A batch that fails has no effect, and its
//     messages are handled one by one.
//   - Marks are deleted after [Options].Retention, 30 days by default. A message that comes again after that has its
//     effect again. [New] and the consumer refuse a retention that relay, broker or retry policy can outlast. Replaying
//     parked messages or redriving an outbox after a longer time must be asked for expressly: pass the retention as
//     [admin.RedriveRequest].InboxRetention, and check [admin.Parked].At.
//   - [Inbox.Mark] marks in a transaction of the caller, for handlers that Waybill does not run.
//   - [NewAtLeastOnce] is for effects that no transaction can hold: at least once, and not again after the mark.
//
// Effects outside the transaction (mails, calls to other services) happen at least once.
//
// # Concurrency
//
// An [Inbox] and its handlers are safe for concurrent use if their functions are. Of two deliveries of one message at a
// time the second waits for the first. Then it is a duplicate, or it runs if the first rolled back.
//
// # Ownership
//
// The transaction belongs to the inbox: a handler neither commits nor rolls it back, and does not keep it. The function
// can run again in a fresh transaction if the database asks for it (serialisation failure, deadlock). So it must not
// change anything outside the transaction that it cannot change twice.
//
// A consumer that runs a handler of an inbox also deletes the inbox's old marks: beside the handlers, at an interval,
// in batches of 1,000, each in a transaction of its own, with rests between them. Without a consumer, call
// [Inbox.Purge] or [Inbox.RunPurge]. The package leaves no goroutine behind.
//
// # Limits
//
// Consumer, source and id have at most 255 bytes each. Two handlers of one message need two consumer names. All
// handlers of one consumer can share an inbox, because a message reaches only one of them.
package inbox
