// Package kafka is a transport over Apache Kafka (brokers 2.4 and later; tested on 4.3), on the client franz-go.
//
//	bus, err := kafka.Dial(ctx, "host:9092", kafka.Options{Bus: "shop", Replicas: 3, MinInSync: 2})
//
// # Topology
//
// A bus is one topic of Kafka, Options.Bus, for the messages of all topics of Waybill: the attribute ce_topic has
// their names. So messages of a key keep their order over all topics. A queue is a consumer group, {bus}.{queue}, with
// a topic for retries, {bus}.retry.{queue}, and a compacted one for parked messages, {bus}.parked.{queue}. The
// bindings of all queues are in the compacted topic {bus}.bindings. The transport makes what is missing, or, with
// Options.Passive, looks for it. A queue reads the whole bus and skips what it is not bound for.
//
// # Guarantees
//
//   - A nil result of Publish means that all replicas in sync have the message. Publishing is idempotent. Keys go to
//     partitions as Java's client sends them. A message without a queue yet is kept for the queues to come, for the
//     retention of the bus: nothing is unroutable.
//   - The client cannot take back what it has sent. So a Publish can return before the result is known. If the message
//     is published again meanwhile, or up to a minute after the result has come, it takes that of the first one: it
//     has one copy however often it is tried. It is stored again if a call that waited was told the result: that
//     publish is a new one, such as a redrive.
//   - A record that the brokers refuse fails all records of its batch. The transport sends each of them again alone,
//     one at a time. A message above max.message.bytes fails for good; the transport reads that limit again then.
//   - Messages of a key keep their order while one of them is in flight at a time, as a relay has it.
//   - A nil result of Settle means that the group's coordinator has stored it. A queue settles its messages in any
//     order: the offset of a partition is that of the first message that is not done, and its metadata says which
//     messages behind it are not done, and how often each was delivered. A retry and a rejection are copies that are
//     stored before the original is done. A crash in between makes a duplicate.
//   - The count of a delivery is stored before Receive returns it, so it survives a kill.
//   - A topic that was deleted is an error that names it. When it is made anew, publishers and receivers go on with the
//     new one, from its beginning. The messages of the old one are lost, but for those that wait in an outbox.
//   - Retries wait in their topic, as long as half of the retention, and stop no new messages.
//   - One receiver at a time has a partition, and so the messages of a key. A rebalance is cooperative: a partition
//     moves after its handlers have ended, or after Options.DrainFor; then they are told.
//
// # Concurrency
//
// A Transport and its receivers are safe for concurrent use, but for Receive, which one goroutine calls at a time.
// Calls of Publish share a connection. Settles at the same time share a commit. A receiver has two goroutines and a
// client with connections of its own.
//
// # Ownership
//
// The bytes of a delivery belong to its receiver. Envelopes that are published are not kept.
//
// # Limits
//
// The inbox stays the only proof of one effect. A relay that sends a message again, after a result that it did not
// learn, gives it another offset. So positions that are stored in the handler's transaction do not replace the inbox.
//
// Publishing is idempotent as long as the brokers know the producer. If they forget it, or say that a sequence number
// is missing, as after a loss of data, the client numbers its records anew under another epoch. A record that was
// stored before without an answer has a second copy then. None is lost.
//
// A max.message.bytes that was lowered has larger batches of small messages refused, too. They are sent alone until the
// program is restarted, which is slow.
//
// Receivers share partitions, not messages. A handler that is slow holds up its own partition. A receiver that is
// paused keeps its partitions, and their messages wait. More receivers than partitions have nothing to do.
//
// A relay has one message of a key in flight at a time, so a single key goes at the pace of round trips. More would not
// be safe: the client can have sent the next batch when the brokers refuse one.
//
// A queue that stands still for longer than the retention loses messages; the receiver says which. Brokers forget the
// positions of a queue without receivers after offsets.retention.minutes, seven days by default. Such a queue is
// refused then: it would receive everything again.
//
// A retry log keeps up to 20,000 waiting retries of a partition, or 16 MiB of them, in the memory of its receiver.
// Those behind wait until these are done, also if they are due. A partition has some hundred deliveries out at a time.
package kafka
