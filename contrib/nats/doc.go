// Package nats is a transport over NATS JetStream (server 2.10 and later).
//
//	bus, err := nats.Dial(ctx, "nats://host:4222", nats.Options{Bus: "shop"})
//
// # Topology
//
// A bus is a stream with the retention "interest", which refuses messages beyond its bounds: Options.Bus, with the
// subjects {bus}.t.{topic} for published messages, and {bus}.q.{queue} for copies that one queue gets. A queue is a
// durable pull consumer of it. Its bindings stand in the consumer's metadata (waybill-bindings), and are its filter
// subjects. JetStream wants filters that do not overlap: where bindings do, the filter is wider, and the receiver drops
// a message that no binding fits. Parked messages are in a stream of their own, {bus}-parked. The transport declares
// all of this, or, with Options.Passive, looks for it.
//
// # Guarantees
//
//   - A nil result of Publish means that the server stored the message and that a queue was bound for its topic.
//     Without a queue it is waybill.ErrUnroutable. A message that is sent again arrives again. One that is
//     published again since its result is unknown has an id (Nats-Msg-Id) from the second try on. So two copies are
//     stored at most, however often it is tried; after the stream's duplicate window, two minutes by default, one more
//     can be.
//   - A nil result of Settle means that the server answered. A retry, a release and a rejection are a copy that was
//     stored before the original is acknowledged. A crash in between makes a duplicate.
//   - Retries wait in the server, as long as it takes, and stop no new messages. Attempts and redeliveries count apart.
//     A release raises neither.
//   - A delivery belongs to its receiver for Options.HoldFor, which it can renew. The server does not check who
//     acknowledges; the receiver itself refuses to settle what it has held for longer, or a delivery that came to it
//     again.
//   - A replayed message is removed from the parked ones after the server stored the copy. Two replays of one queue by
//     two processes at the same time can make duplicates.
//
// # Concurrency
//
// A Transport and its receivers are safe for concurrent use, but for Receive, which one goroutine calls at a time.
// Calls of Publish share the connection and are pipelined. A receiver has one goroutine that renews what was fetched.
//
// # Ownership
//
// Dial's transport closes its connection; New's leaves the caller's open. The bytes of a delivery belong to its
// receiver. Envelopes that are published are not kept.
//
// # Limits
//
// The server stores a message that no consumer wants as a success, and forgets it. So the publisher knows the queues:
// it asks for them when a topic has none, every few seconds, and when the server tells of a new or a deleted one. A
// message that is published in the moment after an operator has deleted its only queue can be lost.
//
// JetStream confirms before it syncs the disk, which it does every two minutes (sync_interval). A message survives a
// crash of the server's process. It survives a loss of power only if the servers have sync_interval: always; say so by
// Options.SyncAlways. Without it three replicas are not enough: if one loses power while another is restarted, messages
// that both of the first had confirmed can be gone. Streams and consumers that lose messages by their settings, such as
// storage in memory, max_age or inactive_threshold, are refused.
//
// A retry that was delivered once before it was due, and whose receiver crashed, can count one redelivery too few; a
// restart of the server while a retry waits can count one too many, and a server that was killed can forget counts. Two
// programs that add different bindings to a new queue at the same moment overwrite each other; a receiver repairs its
// own within a third of HoldFor. All processes of a bus use the same HoldFor. The name of a queue has at most 255 bytes
// after escaping. InOrder is not supported.
//
// A connection learns of another max_payload of the server when it connects. The client gives its connection up after a
// message above one that was lowered: with Dial the transport makes another one, with New it is closed. The results of
// that publish are unknown. The next one refuses the message for good. One that was raised needs a new connection.
//
// With New, the caller's connection should have ReconnectBufSize(-1): else a settle that failed while the connection
// was away can still happen later. A publish permission that is missing shows as an outage after a timeout.
package nats
