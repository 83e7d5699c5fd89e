// Package rabbitmq is the reference transport, on RabbitMQ 3.10 and later.
//
//	bus, err := rabbitmq.Dial(ctx, "amqp://user:password@host:5672/vhost", rabbitmq.Options{Exchange: "shop"})
//
// # Topology
//
// Package topology describes the exchanges, queues and bindings, with every argument. The transport declares them,
// or with Options.Passive looks for them, so that a user that may configure nothing will do.
//
// A retried message waits in a delay queue of its subscription, which dead-letters it to the one queue it came from.
// Its real routing key travels in a header. A message that goes back at once takes the dead-letter exchange, with
// {queue}.return.
//
// # Parked messages
//
// A Transport is an admin.ParkedQueue: depth, list, replay and purge of a dead-letter queue. See docs/rabbitmq.md.
//
// # Log
//
// Every line has an attribute "event": rabbitmq.connected, rabbitmq.lost, rabbitmq.blocked, rabbitmq.unblocked,
// rabbitmq.endpoint_failed, rabbitmq.credentials_failed, rabbitmq.credentials_renewed, rabbitmq.consumer_lost,
// rabbitmq.held_long, rabbitmq.assert_failed, rabbitmq.verify_failed, rabbitmq.unverified or rabbitmq.surplus.
// docs/metrics.md explains them.
//
// # Guarantees
//
//   - A nil result of Publish means that the broker confirmed the message and routed it. Unroutable is
//     waybill.ErrUnroutable; a message whose confirm did not come is an outage with an unknown result.
//   - A message that makes the broker close the channel is found: the messages in flight are sent again one at a time,
//     and only that one fails.
//   - A retry and a rejection are acknowledged only after the broker confirmed and routed the copy. The copy keeps
//     every property and header. If it cannot be published, the delivery stays with its receiver and can be settled
//     again.
//   - A batch of deliveries that are done is acknowledged with one frame if all deliveries before it are settled.
//   - With Subscription.InOrder one receiver at a time gets the messages of a queue, in queue order. A message that is
//     released is delivered first again.
//   - A replayed message is removed from its dead-letter queue after the broker confirmed and routed the copy.
//   - What a subscription holds unsettled follows the size of the bodies (Options.PrefetchBytes). With InOrder and no
//     Prefetch it is at most 64 messages, or one for each handler.
//   - Queues dead-letter at least once (quorum queues), and refuse what does not fit instead of dropping it.
//   - Connections, channels, topology and consumers come back by themselves after a loss, with a jittered back-off.
//     With Connection.Hosts every endpoint is tried before it.
//   - Errors and logs never hold the URL, nor what Connection.Credentials returned.
//
// # Concurrency
//
// A Transport is safe for concurrent use. Calls of Publish share PublishConnections channels, each on a connection
// of its own; on one channel they take turns in chunks of 64 messages. Receiving has another connection, so that a
// broker which blocks publishers still takes acknowledgements; or one for each subscription, with
// Connection.PerSubscription.
//
// # Ownership
//
// Dial's transport closes its connections. New's transport leaves the caller's connection open and cannot reconnect; it
// receives only on one that DialConfig opened.
// The bytes of a delivery belong to the receiver of it.
//
// # Limits
//
// Arguments and bindings, which AMQP cannot show, are verified only with Options.ManagementURL. Of policies, those
// that lose or park messages are, and length limits with Options.PipelineKeys. While parked messages are listed or
// replayed, other programs do not see them. With InOrder, up to RabbitMQ 4.2, the deliveries that a receiver holds
// when it is closed count as redelivered.
//
// A message whose headers nest deeper than 32 levels cannot be read by the driver: it is parked, and not replayed. The
// name of a subscription's queue may not end in ".return", or in ".delay_" and a word.
//
// Order of a key holds if one message of it is in flight at a time, or under the conditions of
// Options.PipelineKeys. A message that is released may go to the end of the queue. A delay is at most 49 days. What
// waits in a delay queue for a queue that is full or was deleted stays there until that queue takes messages again.
// Names, topics and ids have at most 255 bytes. A full or leaderless queue (basic.nack) is an outage of its topic.
package rabbitmq
