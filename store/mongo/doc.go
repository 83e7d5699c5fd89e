// Package mongo is an outbox and an inbox in a MongoDB database: a replica set, of one member at least, of MongoDB 5.0
// or later. Code that also uses the driver's package of the same name imports this one as mongostore.
//
//	store, err := mongostore.New(client.Database("shop"), mongostore.Options{Source: "/orders"})
//	unit, err := store.NewUnitOfWork()
//	err = unit.Do(ctx, func(ctx context.Context, tx *mongo.Session) error {
//		if _, err := orders.InsertOne(ctx, o); err != nil {
//			return err
//		}
//		return unit.Stage(ctx, orderPlaced.Message(o))
//	})
//
// A [Store] is a core.OutboxStore, a waybill.Stager[*mongo.Session] and a core.Inbox[*mongo.Session]. It has the
// capabilities core.Waiter, core.Checker, admin.Migrator, admin.DriftChecker, core.ClockSeeder, admin.Counter,
// core.Cleaner, admin.Inspector, waybill.Canceller[*mongo.Session], admin.Redriver, admin.Purger, admin.BlockedKeys,
// core.BatchInbox, core.Marker and core.InboxPurger. The page docs/mongodb.md tells how to set it up, and on which
// servers it was tested.
//
// # Guarantees
//
// Stage, Cancel and Mark write in the caller's transaction and refuse a session without one. The context carries the
// session, so business writes must use the context that WithTransaction, [Store.NewUnitOfWork] or [Store.Do] passes on:
// with another context the driver writes outside of the transaction.
//
// The numbers of records come from a counter that no transaction takes part in. A staging transaction inserts a ticket,
// and an entry in the counter's document names that ticket. So a page says exactly which transactions are open. One
// that was rolled back is told from one that runs by an attempt to insert its ticket. No clock and no time limit
// counts.
//
// A page is one transaction with one snapshot, kept by a majority. Each call of the engine that writes is a transaction
// that also writes a fence of its session: a session that was removed, or that lost the partition to another member,
// changes nothing.
//
// MongoDB does not wait for a document that another transaction has written. The transactions of the store run again,
// with back-off, until they get through or their context ends; an outcome, a hold or a removal that still meets a
// caller's open transaction is answered as busy or locked, alone. A conflict of the caller's own transaction ends that
// transaction. The error matches waybill.ErrRetryTx, and WithTransaction runs the function again.
//
// The inbox commits the mark with the handler's writes. A concurrent delivery of the same message tries again until the
// first has ended. A handler that swallows the error of a failed command is a failure: the server has ended the
// transaction.
//
// The settle deletes published records, and abandoned ones are kept with reason and error, unless Options.Retention
// says otherwise. Times of schedules, retries and retention come from the server's clock, in milliseconds.
//
// # Concurrency
//
// A Store is safe for concurrent use, and so is any number of stores on one database. A session is used by one
// goroutine at a time, as the driver says.
//
// # Ownership
//
// The client and its sessions belong to the caller, and there is nothing to close. A change stream lives as long as the
// Wait that opened it.
//
// # Limits
//
// A standalone server is refused at the start, and so is a server that accepts transactions and does not roll them
// back. Sharded collections are not supported: leave those of Waybill unsharded.
//
// Records that are inserted by other means than Stage are not found: they have no number. There is no presence, so
// after a killed process the others wait for its lease. There is no core.Limiter.
//
// Every Stage updates the counter's document, which bounds an outbox to some thousand Stage calls a second; the number
// of messages in a call does not matter.
//
// A business transaction must commit with the write concern majority, which is the default since MongoDB 5.0. With
// less, a fail-over can take it back after its messages were published.
package mongo
