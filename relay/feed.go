package relay

import (
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dispatch"
	"github.com/waybill-go/waybill/hlc"
)

// Ready records go from the dispatcher into Publish calls. Most of them pass through. Some get their outcome here,
// since no broker must see them: expired, unreadable, too large, or at the end of their crashes. With a publisher that
// pipelines keys, a record whose key is in another call waits in keys.behindKey until that call returns: two calls
// could overtake each other.

// maxCalls bounds the Publish calls in progress of one route. Beyond it ready records gather for the next call.
const maxCalls = 16

// mayHand reports whether records of the route may be sent now.
func (e *engine) mayHand(rt *route) bool {
	return !e.drain.begun && !rt.handOutBlocked() && rt.calls < maxCalls && e.member.lease.holds()
}

// feed sends up to n ready records of a route, and returns how many it sent.
func (e *engine) feed(rt *route, n int) (sent int) {
	for sent < n && e.mayHand(rt) {
		c := e.newCall(rt)
		e.fill(c, min(n-sent, rt.maxCall))
		if len(c.items) == 0 {
			e.publishes.free = append(e.publishes.free, c)
			break
		}
		sent += len(c.items)
		e.send(c)
	}
	return sent
}

// fill moves ready records into c. Records that must not be sent get an outcome instead. Those that waited behind their
// key go first, since they are the earlier ones of their keys. After an outage of the route one record goes alone, as
// the breaker's trial.
func (e *engine) fill(c *call, limit int) {
	rt := c.route
	if rt.breakers.route.half {
		limit = 1
	}
	for len(rt.keys.behindKey) > 0 && len(c.items) < limit {
		if !e.fillBehindKey(c, limit) {
			break
		}
	}
	refused := map[string]bool{} // keys with a record that was not sent: later ones wait for it
	for len(c.items) < limit {
		items := e.d.HandOut(e.now, rt.Name, limit-len(c.items))
		if len(items) == 0 {
			break
		}
		e.counts.HandedOut += len(items)
		for _, item := range items {
			key := item.Record.Envelope.Key
			switch {
			// the record would overtake the one before it, which goes back
			case rt.pipelined && refused[key]:
				e.release(item, false)
			case !e.screen(item):
				refused[key] = refused[key] || key != "" && rt.blocked(item.Record.Envelope.Topic)
			case e.mustWaitBehindKey(c, item):
				rt.keys.behindKey[item.Record.Envelope.Key] = append(rt.keys.behindKey[item.Record.Envelope.Key], item)
			default:
				e.take(c, item)
			}
		}
	}
	if rt.breakers.route.half && len(c.items) > 0 {
		rt.breakers.route.trial = c.items[0]
	}
}

// take puts an item into c.
func (e *engine) take(c *call, item *dispatch.Item) {
	rt := c.route
	c.add(item)
	if rt.pipelined && item.Record.Envelope.Key != "" {
		rt.keys.flying[item.Record.Envelope.Key]++
	}
	if b := rt.breakers.topics[item.Record.Envelope.Topic]; b != nil && b.half && b.trial == nil {
		b.trial = item
		e.d.PauseTopic(rt.Name, item.Record.Envelope.Topic, true) // until its outcome is known
	}
}

// fillBehindKey moves the waiting records of one key that may go on into c. It reports whether there was such a key.
func (e *engine) fillBehindKey(c *call, limit int) bool {
	rt := c.route
	for key, items := range rt.keys.behindKey {
		if rt.keys.flying[key] > 0 {
			continue
		}
		n := min(limit-len(c.items), len(items))
		for _, item := range items[:n] {
			if e.screen(item) {
				e.take(c, item)
			}
		}
		if rest := items[n:]; len(rest) > 0 {
			rt.keys.behindKey[key] = rest
		} else {
			delete(rt.keys.behindKey, key)
		}
		return true
	}
	return false
}

// screen reports whether an item may be sent. If not, the item gets its outcome. The order counts: a record of another
// member is not judged, an unreadable one has no time to compare, and an expired one does not wait for its topic.
func (e *engine) screen(item *dispatch.Item) bool {
	rt, rec := e.routes[item.Route()], &item.Record
	switch {
	case item.Lost():
		e.itemLost(item)
		e.conclude(item, core.Release(rec, 0, false))
	case rec.Err != nil:
		e.abandon(item, waybill.ReasonUndecodable, rec.Err)
	case rec.Crashes >= core.MaxCrashes:
		e.abandon(item, waybill.ReasonCrashed, fmt.Errorf("%d relays died while they had it", rec.Crashes))
	case e.expired(item): // whether its topic is paused or not: it is not sent
		e.abandon(item, waybill.ReasonExpired, fmt.Errorf("expired at %s", rec.Envelope.Expires.Format(time.RFC3339)))
	case rt.blocked(rec.Envelope.Topic):
		e.release(item, false)
	case rt.maxSize > 0 && rec.Envelope.Size() > rt.maxSize:
		e.abandon(item, waybill.ReasonTooLarge, fmt.Errorf("the message has %d bytes, its body %d; the publisher of route %s takes at most %d: raise its limit, "+
			"or store the content elsewhere and send a reference", rec.Envelope.Size(), len(rec.Envelope.Body), rt.Name, rt.maxSize))
	default:
		if rec.Envelope.HLC > hlc.MaxMark(e.now) {
			e.warn(item, "relay.stamp_ahead", "a stamp is too far ahead; the message is sent all the same", hlc.ErrDrift,
				"source", rec.Envelope.Source, "stamp", rec.Envelope.HLC, "stamped", rec.Envelope.HLC.Time())
		}
		return true
	}
	return false
}
