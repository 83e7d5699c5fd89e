// Package topology describes what RabbitMQ must hold for a set of subscriptions: exchanges, queues, bindings, names and
// permissions. It needs no AMQP client, so that a command-line tool can use it.
//
//	shop, err := topology.New(topology.Options{Exchange: "shop"}, subscriptions...)
//	definitions, err := shop.Definitions("/", users)   // for rabbitmqctl import_definitions
//	hcl := shop.Terraform("/", users)
//	differences, err := broker.Compare(ctx, shop)      // with a live broker
//
// # Objects
//
// Messages go to one durable topic exchange, by topic. Each subscription has a queue, a dead-letter queue, and a delay
// queue for each distinct retry delay. {exchange} and {queue} include Options.Prefix, and {dlx} is {exchange}.dlx. and
// the name of the subscription's queue without the prefix:
//
//	exchange {exchange}            topic, durable
//	exchange {dlx}                 direct, durable
//
//	queue {queue}.delay_{d}        quorum; bound to {dlx} with its name; d is 500ms, 1m30s, ...
//	    x-message-ttl={d}
//	    x-dead-letter-exchange={dlx}, x-dead-letter-routing-key={queue}.return
//	    x-dead-letter-strategy=at-least-once, x-overflow=reject-publish, x-delivery-limit=1000000
//
//	queue {queue}                  quorum; bound to {exchange} with the subscription's bindings,
//	                               and to {dlx} with {queue}.return
//	    x-dead-letter-exchange={dlx}, x-dead-letter-routing-key={queue}
//	    x-dead-letter-strategy=at-least-once, x-overflow=reject-publish, x-delivery-limit=200
//	    x-single-active-consumer=true with Subscription.InOrder
//
//	queue {queue}.dlq              quorum; bound to {dlx} with {queue}
//	    x-overflow=reject-publish, x-delivery-limit=1000000
//
// Classic queues have x-queue-type, x-message-ttl, x-overflow and the dead-letter exchange and key only: the broker
// takes no more.
//
// A message that is to be retried is published to {dlx} with the name of the delay queue. When the delay is over the
// broker sends it back through {dlx} with {queue}.return. A retry without a delay, and a replay, have that key, too.
// So no role needs the permission to write to the default exchange, which reaches every queue, or to an exchange that
// leads to the queue of another subscription.
//
// With Options.SharedDelays there is one delay queue {exchange}.delay_{d} for all subscriptions, behind a fanout
// exchange of that name. A message is published to it with the name of its queue as routing key. The delay queue has
// no dead-letter routing key, so that the message goes on by its own key through the default exchange.
//
// # Guarantees
//
//   - The transport declares and verifies the same [Topology] that is exported and compared.
//   - Equal options and subscriptions make an equal topology, in the same order.
//   - The permissions match the names they are for, and no other name.
//   - Errors and exports hold no password and no part of the management URL.
//
// # Concurrency
//
// A Topology, a Names and a Broker are safe for concurrent use as long as a Topology's slices do not change.
//
// # Ownership
//
// The caller owns what New and the exports return. A Broker keeps no connection open between calls.
//
// # Limits
//
// The name of a subscription's queue may not end in ".return", or in ".delay_" and a word. Names of exchanges and
// queues, prefix included, have at most 200 bytes, and a delay is at most 49 days. [Broker.Compare] looks at policies
// with expires, message-ttl and delivery-limit, [Broker.Limits] at length limits. The management API knows the
// policies of a queue about ten seconds late.
package topology
