// Package memory is a message broker inside the process: for tests, for programs that relay and consume in one process,
// and as the model that other transports are compared with. Topics are bound to named queues with the wildcards *
// (one word) and # (any number of words); every queue gets its own copy of a message, and the receivers of one queue
// share it.
//
// # Guarantees
//
// A nil result of Publish means that every queue that is bound for the topic holds the message. A message that no queue
// is bound for is an error ([waybill.ErrUnroutable]), and so is one for a full queue (an outage of that topic only): it
// then reached no queue at all. A delivery stays its receiver's until it is settled or the receiver is closed; then it
// goes back to its old place. A retry is held until it is due, keeps every field, and joins the end of the queue as the
// next attempt. A rejected delivery is parked with its reason and can be listed with [Transport.Parked]. A release
// costs nothing: neither an attempt nor a redelivery, and the message keeps its place. With
// [core.Subscription].InOrder one receiver of a queue at a time gets deliveries.
//
// # Concurrency
//
// A Transport and its receivers are safe for concurrent use. There are no background goroutines. No lock is held while
// anything waits, and all waiting is on channels and timers, so a testing/synctest bubble sees it and its clock rules.
//
// # Ownership
//
// Envelopes are copied on the way in and on the way out: no two users share a body or a map.
//
// # Limits
//
// One process only, and nothing outlives it: Close, or the end of the process, forgets every message, published ones
// and parked ones too. So a relay that publishes here keeps promise P2 only as long as the process lives, unless
// Options.ConfirmHandled makes a publish last until the message was handled: then what the process forgets is still in
// the outbox, retries and rejected messages included, a handler sees every attempt as the first, and messages of a key
// are handled one after the other. A queue holds at most Options.MaxMessages; parked messages do not count and are kept
// until Close. Expiry and priority travel, but the broker does not act on them.
package memory
