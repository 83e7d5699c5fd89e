package relay

import (
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/dispatch"
)

// A message that no queue gets is no fault of the message: a consumer may bind its queue in a moment. So one message of
// the topic tries, and the others wait at no cost. The result of a try:
//
//   condition                                                        | the message
//   -----------------------------------------------------------------|---------------------------------------------
//   UnroutableTimeout is negative                                    | is abandoned at once
//   too many topics are paused                                       | is retried by its back-off, then abandoned
//   it is due for UnroutableTimeout, and its topic had no queue for  | is abandoned
//   an hour (less if the timeout is shorter)                         |
//   another message of the topic tries                               | is released
//   any other                                                        | pauses its topic, and tries again

// boundWithin is how long a relay looks for a queue before it abandons a message that is past its time: after a long
// outage all that wait are old when the broker comes back, and its queues may come later.
const boundWithin = time.Hour

// warnUnbound is after how many probes the log says that a topic has no queue: a consumer that starts beside the relay
// has bound its own by then.
const warnUnbound = 3

// triedBy is how long a topic waits for its record, after the time of the next try. Then any record of the topic may
// try, since another relay may have the first one.
const triedBy = time.Second

// unroutable gives a record up whose topic has had no queue for too long. Else it pauses the topic, and this record
// tries again: so the topic goes on within seconds after its queue was bound, and a waiting record costs no attempt.
func (e *engine) unroutable(item *dispatch.Item, err error, c *call) {
	h := e.opts.UnroutableTimeout
	b := c.route.breakers.topics[item.Record.Envelope.Topic]
	if b == nil && h >= 0 {
		b = e.addTopic(c.route, item.Record.Envelope.Topic)
	}
	switch {
	case h < 0:
		e.abandon(item, waybill.ReasonUnroutable, err)
	case b == nil: // too many topics are paused: the attempts count
		if e.age(item) >= h && attempt(item) >= waybill.DefaultBackoffAttempts {
			e.abandon(item, waybill.ReasonUnroutable, err)
			return
		}
		in, _, _ := c.route.unroute.Next(attempt(item), err)
		e.retry(item, err, in)
	case e.age(item) >= h && !b.unbound.IsZero() && e.now.Sub(b.unbound) >= min(h, boundWithin):
		e.abandon(item, waybill.ReasonUnroutable, err)
	case b.opened > c.generation: // another one tries
		e.release(item, false)
	default:
		e.retry(item, err, e.pauseUnbound(b, item, err))
	}
}

// pauseUnbound pauses the topic of a record, and returns when that tries again. The log hears of it at the third try in
// a row, and then every half an hour.
func (e *engine) pauseUnbound(b *breaker, item *dispatch.Item, err error) time.Duration {
	route, topic := item.Route(), item.Record.Envelope.Topic
	if b.failures == 0 {
		e.tel.breaker(e.base, e.routes[route], 1)
	}
	if b.unbound.IsZero() {
		b.unbound = e.now
	}
	e.publishes.openings++
	warnedAt := b.warnedAt
	in := b.open(e.now, err, &unroutable, e.publishes.openings)
	e.d.PauseTopic(route, topic, true)
	e.observer.tell(e.opts.Hooks.OnBreaker, Event{Route: route, Topic: topic, RetryIn: in, Err: err})
	if b.failures != warnUnbound && (b.failures < warnUnbound || e.now.Sub(warnedAt) < remindAfter) {
		b.warnedAt = warnedAt
		return in
	}
	e.log.Warn("no queue is bound for a topic: its messages wait", "event", "relay.unroutable", "route", route, "topic", topic,
		"for", round(e.now.Sub(b.unbound)), "probe_in", in, "error", b.cause)
	return in
}
