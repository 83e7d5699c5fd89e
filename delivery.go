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
	// Handle belongs to the transport. Others must not touch it; [Native] reads it.
	Handle any
}

// Native returns the broker's own message behind d, with properties that an Envelope has no field for: an amqp.Delivery
// on RabbitMQ, a types.Message on SQS, a redis.XMessage on Redis Streams, a *nats.Msg on NATS, a *kgo.Record on Kafka.
// It reports false if M is another type, and if the transport has no such message, as the table queue.
//
// The message has no acknowledger, receipt or reply address: only the consumer settles it. Its maps and bytes belong to
// the transport: a handler must not change them, and reads them until it returns.
func Native[M any](d *Delivery) (message M, ok bool) {
	h, ok := d.Handle.(interface{ Native() M })
	if !ok {
		return message, false
	}
	return h.Native(), true
}
