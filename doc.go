// Package waybill is the API for applications: topics, messages, handlers, and the errors by which a handler decides
// about a message. Waybill is a transactional outbox and inbox. A service writes rows and messages in one transaction.
// A relay sends the messages to a broker. A consumer gives each message exactly one effect.
//
//	var OrderPlaced = waybill.NewTopic("orders.placed", waybill.JSON[Order]()) // used on both sides
//
//	store, err := postgres.New(pool, postgres.Options{Source: "/orders"}) // the outbox and the inbox
//	bus, err := rabbitmq.Dial(ctx, url, rabbitmq.Options{Exchange: "shop"})
//
//	// The producer stages a message in the transaction that writes the order.
//	_, err = store.Stage(ctx, tx, OrderPlaced.Message(order, waybill.Key(order.Customer)))
//
//	// The handler's writes and the mark of the message are one transaction.
//	bill := func(ctx context.Context, tx pgx.Tx, o Order) error {
//		_, err := tx.Exec(ctx, `INSERT INTO bills (order_id) VALUES ($1)`, o.ID)
//		return err // or waybill.Reject(err), waybill.RetryAfter(err, time.Minute), waybill.Outage(err)
//	}
//	billing, err := inbox.New(store, "billing", inbox.Options{})
//	c, err := consumer.New(bus, consumer.Options{})
//	orders := waybill.Subscription{Queue: "billing.orders", Bindings: []string{"orders.*"}}
//	err = c.Handle(orders, inbox.Handler(billing, OrderPlaced, bill))
//
//	r, err := relay.New(store, bus, relay.Options{}) // sends committed messages
//	err = waybill.Run(ctx, c, r)                     // until ctx ends
//
// The complete program is in examples/readme. Adapters are in the folders store and transport. To write an adapter,
// read package core. To operate a service, read package admin.
//
// # Words
//
// A [Message] is an [Envelope], which travels with all its fields, and directives for the outbox. A topic is the
// routing key ("orders.placed"). A key is the ordering key. A route is a named part of an outbox ("default" if none is
// named); a relay serves routes. docs/glossary.md has the other words.
//
// # Guarantees
//
// [ClassOf] sorts every error into outage, rejected, permanent or unknown. Bad input gets one [InvalidError] that lists
// all problems, and nothing is done.
//
// # Concurrency
//
// [Topic], [UnitOfWork] and codecs are safe for concurrent use. Values (Envelope, Message, options) are not
// synchronised: the caller must not share one between goroutines without a lock.
//
// # Ownership
//
// A function never keeps or changes a slice, map or byte slice of its caller after it returned, unless its comment says
// so. Results belong to the caller.
//
// # Limits
//
// [Limits] bounds what can be staged (sizes, counts, name lengths), by default to what every adapter can carry. Text is
// UTF-8 without NUL. Times are kept to the microsecond.
package waybill
