// Package waybill is what an application types: topics, messages, handlers and the errors that decide about them.
// Waybill is a transactional outbox and inbox. A service writes rows and messages in one transaction, a relay moves the
// messages to a broker, and a consumer gives each of them exactly one effect.
//
//	var OrderPlaced = waybill.NewTopic("orders.placed", waybill.JSON[Order]()) // used on both sides
//
//	// The producer stages a message in its transaction. outbox is a *postgres.Outbox.
//	_, err := outbox.Stage(ctx, tx, OrderPlaced.Message(order, waybill.Key(order.Customer)))
//
//	// The relay sends what was committed. bus is a *rabbitmq.Transport.
//	r, err := relay.New(outbox, bus, relay.Options{})
//	go r.Run(ctx)
//
//	// The consumer runs the handler and marks the message in one transaction. billing is an *inbox.Inbox.
//	c, err := consumer.New(bus, consumer.Options{})
//	err = c.Handle(waybill.Subscription{Queue: "billing.orders", Bindings: []string{"orders.*"}},
//		inbox.Handler(billing, OrderPlaced, func(ctx context.Context, tx pgx.Tx, o Order) error {
//			_, err := tx.Exec(ctx, `INSERT INTO bills (order_id) VALUES ($1)`, o.ID)
//			return err // or waybill.Reject(err), waybill.RetryAfter(err, time.Minute), waybill.Outage(err)
//		}))
//	err = c.Run(ctx)
//
// The program that belongs to it is in examples/readme. Adapters are in the folders store and transport. Who writes one
// reads package core; who operates a service reads package admin.
//
// # Words
//
// A [Message] is what the application stages: an [Envelope], which is everything that travels, and directives for the
// outbox. A topic is the routing key ("orders.placed"). A key is the ordering key. A route is a named part of an outbox
// ("default" if none), which a relay serves. docs/glossary.md has the rest.
//
// # Guarantees
//
// [ClassOf] is the one question about an error: outage, rejected, permanent or unknown. Bad input gets one
// [InvalidError] that lists all problems, and nothing is done.
//
// # Concurrency
//
// [Topic], [UnitOfWork] and codecs are safe for concurrent use. Values (Envelope, Message, options) are not
// synchronised: whoever holds one owns it.
//
// # Ownership
//
// A callee never keeps or changes a slice, map or byte slice that it was passed after it returned, unless its comment
// says so. What it returns belongs to the caller.
//
// # Limits
//
// [Limits] bounds what can be staged (sizes, counts, name lengths), by default to what every adapter can carry. Text is
// UTF-8 without NUL. Times are kept to the microsecond.
package waybill
