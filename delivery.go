package waybill

import "time"

// Delivery is a message that arrived. It belongs to the caller of Receive until it is settled.
type Delivery struct {
	// Envelope is the message. Its Topic is the routing key with which the message was published, after retries
	// too. Source falls back to the broker's application id. Source can be empty on a foreign message.
	Envelope Envelope
	// Queue is the queue that delivered it.
	Queue string
	// Attempt is the number of this attempt, from 1. Retries by policy raise it; redeliveries do not, unless the
	// transport has one count for both. A replay starts at 1 again.
	Attempt int
	// Redeliveries counts earlier deliveries that had no outcome; -1 = unknown. Retries, releases and replays do
	// not raise it, unless the transport has one count for all.
	Redeliveries int
	// NotBefore is when a retry is due that came early, since the transport holds a message for no longer at a
	// time. The consumer asks for the rest by another retry of the same attempt. Zero = it is due.
	NotBefore time.Time
	// Err is not nil if the message is unusable, for example because it has two different ids. Such a message is
	// parked with ReasonOf(Err) and reaches no handler.
	Err error
	// Handle belongs to the transport. Others must not touch it.
	Handle any
}
