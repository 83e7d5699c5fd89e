// Package redisstreams is a transport on Redis Streams, for Redis 7.0 and later, one server, a cluster or Sentinel.
//
//	bus, err := redisstreams.Dial(ctx, "redis://user:password@host:6379/0", redisstreams.Options{Bus: "shop"})
//
// # Keys
//
// Each queue is a stream with one consumer group. A publisher puts a message into the stream of every queue that is
// bound for its topic. A message that is done is deleted from the stream. So the stream holds the others, and nothing
// else trims it. Retries wait in a stream of their own with a sorted set of due times, parked messages in another
// stream. All keys of a bus begin with its name in braces: they are in one slot of a cluster, so that each step is one
// script or transaction. A bus is as large, and as fast, as one node; use several for more. docs/redis.md lists the
// keys.
//
// # Parked messages
//
// A Transport is an admin.ParkedQueue. A replay is one step: the message is either parked or in the queue.
//
// # Guarantees
//
//   - A nil result of Publish means that the server has stored the message in all queues that are bound at that moment,
//     and done what Options.Confirm asks for. With the default, ConfirmStored, a crash of the server can lose what its
//     settings do not keep.
//   - A message is in all queues that are bound for it, or in none. After a lost connection the result is unknown, and
//     the message can come twice.
//   - The server settles a delivery only for the receiver that holds it: after HoldFor without a renewal another one
//     does, and the settle is waybill.ErrLeaseLost. A retry or a rejection is copied and removed in one step; the copy
//     keeps every field.
//   - Attempt and Redeliveries are exact: a release counts as neither, a crash as a redelivery.
//   - The deliveries of a dead receiver come again HoldFor after its last renewal, oldest first, before new messages.
//   - A retry waits on the server for any delay. A waiting retry holds up nothing.
//   - With Subscription.InOrder one receiver at a time gets the messages of a queue, in queue order; a message that is
//     released or was held by a dead receiver comes first. Another receiver takes over when it closes, or HoldFor after
//     it stopped to receive and renew.
//   - A receiver whose connection was lost, or whose server was restarted, goes on by itself.
//   - Errors and logs never hold the URL.
//
// # Concurrency
//
// A Transport is safe for concurrent use. Calls of Publish share the client and its pool. Each call sends chunks of up
// to 500 messages or 1 MiB, one after the other, each a transaction of two round trips. Fewer than 32 messages, or with
// Options.MaxLen 128, are one call of a script. An open receiver uses a connection to wait.
//
// # Ownership
//
// Dial's transport closes its clients. New's transport leaves the caller's client open. The bytes of a delivery belong
// to the receiver of it.
//
// # Limits
//
// Replication is asynchronous: a failover can lose confirmed messages, unless Options.Confirm asks for more; even then
// it depends on which replica takes over. It can lose settles, and bindings until a receiver of the queue has noticed
// the failover. Redis keeps everything in memory. Priorities travel,
// and change nothing.
//
// Waiting retries come when a receiver of the queue is open. They go to the end of the queue. Options.MaxLen does not
// count them. While a queue is empty each receiver gets the first new message only to be woken. If the answer to a
// receive is lost, and the server executes it late, its messages come after HoldFor, counted as redelivered.
//
// Names and topics have at most 255 bytes, and a message at most 3,500 headers.
package redisstreams
