package transporttest

import (
	"errors"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Messages that come again on purpose, or that no queue waits for.
var againChecks = []named{
	{"publish-unroutable-alone", ofPublisher, publishUnroutableAlone},
	{"unroutable-then-bound", ofPublisher, unroutableThenBound},
	{"keeps-unread", ofPublisher, keepsUnread},
	{"publish-same-id-again", ofPublisher, publishSameIDAgain},
	{"publish-expired", ofPublisher, publishExpired},
}

// A message that no queue gets is an error that matches ErrUnroutable, also alone in its batch.
func publishUnroutableAlone(k *kit) {
	k.needs(k.pub.DetectsUnroutable, "PublisherTraits.DetectsUnroutable")
	r, name := k.queue("bound")
	for i := range 3 {
		k.unroutable(message(name+".unbound", i))
		k.publish(message(name+".bound", i))
	}
	k.consume(r, 3)
}

// unroutable publishes m, alone, which no queue gets.
func (k *kit) unroutable(m waybill.Envelope) {
	switch err := k.send([]waybill.Envelope{m})[0]; {
	case err == nil:
		k.fail("a message that no queue is bound for was a success")
	case !errors.Is(err, waybill.ErrUnroutable):
		k.fail("the error of an unroutable message does not match waybill.ErrUnroutable: %w", err)
	}
}

// A message that was unroutable arrives when it is sent again after a queue was bound.
//
// The check does what a relay does while a queue is missing. A broker that remembers ids drops the second one.
func unroutableThenBound(k *kit) {
	k.needs(k.pub.DetectsUnroutable, "PublisherTraits.DetectsUnroutable")
	name := k.name()
	m := full(name + ".late")
	k.unroutable(m)
	k.unroutable(m)
	r := k.subscribe(name, name+".late")
	k.publish(m)
	k.same(m, k.consume(r, 1)[0].Envelope, "sent again after the queue was bound")
}

// A log keeps a message that no queue gets yet for the queues to come.
func keepsUnread(k *kit) {
	k.needs(k.pub.KeepsUnread, "PublisherTraits.KeepsUnread")
	k.failIf(k.pub.DetectsUnroutable, "PublisherTraits has both KeepsUnread and DetectsUnroutable, but nothing is unroutable for a log")
	name := k.name()
	want := messages(name+".late", 3)
	k.publish(want...)
	r := k.subscribe(name, name+".late")
	k.exactly(want, k.consume(r, len(want)))
}

// A message that is sent again with its id arrives again.
//
// The check sends a message again after it was done, after it was parked, and while it waits: as a relay does after an
// unknown result, and an operator after a mistake.
func publishSameIDAgain(k *kit) {
	r, name := k.queue("a")
	m := message(name+".a", 0)
	k.publish(m)
	k.consume(r, 1)
	k.publish(m)
	d := k.receive(r, 1)[0]
	k.failIf(d.Attempt != 1 || d.Redeliveries > 0,
		"sent again after it was done, the message came as attempt %d with %d redeliveries", d.Attempt, d.Redeliveries)
	k.settle(r, core.AckReject(d, waybill.ReasonRejected, errors.New("no good")))
	k.publish(m)
	k.exactly([]waybill.Envelope{m}, k.receive(r, 1)) // and it is held
	k.publish(m)
	k.exactly([]waybill.Envelope{m}, k.consume(r, 1))
}

// An expired message is not dropped as a success: it is an error, or it arrives.
func publishExpired(k *kit) {
	r, name := k.queue("a")
	m := message(name+".a", 0)
	m.Expires = time.Now().Add(-time.Minute).UTC().Truncate(time.Second)
	after := message(name+".a", 1)
	err := k.send([]waybill.Envelope{m})[0]
	k.publish(after)
	if err != nil {
		k.exactly([]waybill.Envelope{after}, k.consume(r, 1))
		return
	}
	k.exactly([]waybill.Envelope{m, after}, k.consume(r, 2))
}
