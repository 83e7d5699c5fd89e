package waybill

// Delivery is a message that arrived. It belongs to the caller of Receive until it is settled.
type Delivery struct {
	// Envelope is what arrived. Its Topic is the routing key the message was published with, after retries too. Source
	// falls back to the broker's application id; it may be empty on a foreign message.
	Envelope Envelope
	// Queue it came from.
	Queue string
	// Attempt is the number of this attempt, from 1. Retries by policy count; redeliveries do not.
	Attempt int
	// Redeliveries is how often it was delivered before without an outcome, as far as is known; -1 = unknown.
	Redeliveries int
	// Err is not nil if the message cannot be used as it is (two different ids, say). It is parked without reaching a
	// handler; ReasonOf(Err) is the reason.
	Err error
	// Handle is the transport's own. Nobody else touches it.
	Handle any
}
