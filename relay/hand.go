package relay

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dispatch"
)

// maxCalls bounds the Publish calls in progress of one route. Beyond it ready records gather for the next call.
const maxCalls = 16

func attempt(item *dispatch.Item) int { return item.Record.Attempts + 1 }

func event(item *dispatch.Item) Event {
	m := &item.Record.Envelope
	return Event{Route: item.Route(), ID: m.ID, Topic: m.Topic, Key: m.Key, Attempt: attempt(item), Age: item.Record.Age}
}

// event is what hooks are told of it.
func (e *engine) event(item *dispatch.Item) Event {
	ev := event(item)
	ev.Age = e.age(item)
	return ev
}

// call is one Publish: records of a route, one of a key unless the publisher pipelines, then a run of it.
type call struct {
	route      *route
	items      []*dispatch.Item
	envs       []waybill.Envelope
	lease      *lease
	under      context.Context //nolint:containedctx // that of the lease when it began
	generation uint64          // breakers opened when it began
	lost       bool            // given up at the drain limit
	late       bool            // it did not begin: the lease had ended
	plans      map[*dispatch.Item]plan
}

// plan is what a custom back-off said.
type plan struct {
	in     time.Duration
	again  bool
	broken error
}

func (c *call) add(item *dispatch.Item) {
	c.items = append(c.items, item)
	c.envs = append(c.envs, item.Record.Envelope)
}

func (e *engine) newCall(rt *route) *call {
	if n := len(e.free); n > 0 {
		c := e.free[n-1]
		e.free = e.free[:n-1]
		c.route, c.generation, c.lease = rt, e.openings, e.lease
		return c
	}
	return &call{route: rt, generation: e.openings, lease: e.lease}
}

func (e *engine) freeCall(c *call) {
	clear(c.items)
	clear(c.envs)
	c.items, c.envs, c.plans, c.late = c.items[:0], c.envs[:0], nil, false
	e.free = append(e.free, c)
}

// mayHand reports whether records of the route may be sent now.
func (e *engine) mayHand(rt *route) bool {
	return !e.stopping && !rt.barred() && rt.calls < maxCalls && e.lease.holds()
}

// feed sends up to n records of a route that are ready, and returns how many it sent.
func (e *engine) feed(rt *route, n int) (sent int) {
	for sent < n && e.mayHand(rt) {
		c := e.newCall(rt)
		e.fill(c, min(n-sent, rt.maxCall))
		if len(c.items) == 0 {
			e.free = append(e.free, c)
			break
		}
		sent += len(c.items)
		e.send(c)
	}
	return sent
}

// fill moves what is ready into c. Records that must not be sent get their outcome instead.
func (e *engine) fill(c *call, limit int) {
	rt := c.route
	if rt.breaker.half {
		limit = 1
	}
	for len(rt.parked) > 0 && len(c.items) < limit {
		if !e.fillParked(c, limit) {
			break
		}
	}
	turned := map[string]bool{} // keys with a record that was not sent: what follows waits for it
	for len(c.items) < limit {
		items := e.d.Hand(e.now, rt.Name, limit-len(c.items))
		if len(items) == 0 {
			break
		}
		e.counts.Claimed += len(items)
		for _, item := range items {
			key := item.Record.Envelope.Key
			switch {
			case rt.pipelined && turned[key]:
				e.release(item, false)
			case !e.screen(item):
				turned[key] = turned[key] || key != "" && rt.blocked(item.Record.Envelope.Topic)
			case e.mustPark(c, item):
				rt.parked[item.Record.Envelope.Key] = append(rt.parked[item.Record.Envelope.Key], item)
			default:
				e.take(c, item)
			}
		}
	}
	if rt.breaker.half && len(c.items) > 0 {
		rt.breaker.trial = c.items[0]
	}
}

// take puts it into c.
func (e *engine) take(c *call, item *dispatch.Item) {
	rt := c.route
	c.add(item)
	if rt.pipelined && item.Record.Envelope.Key != "" {
		rt.flying[item.Record.Envelope.Key]++
	}
	if b := rt.topics[item.Record.Envelope.Topic]; b != nil && b.half && b.trial == nil {
		b.trial = item
		e.d.BlockTopic(rt.Name, item.Record.Envelope.Topic, true) // until it is known what becomes of it
	}
}

// mustPark reports whether records of its key are in another call. It waits for their results: a pipelining publisher
// keeps the order inside a call only.
func (e *engine) mustPark(c *call, item *dispatch.Item) bool {
	key := item.Record.Envelope.Key
	if !c.route.pipelined || key == "" {
		return false
	}
	if len(c.route.parked[key]) > 0 {
		return true
	}
	return c.route.flying[key] > 0 && !slices.ContainsFunc(c.items, func(o *dispatch.Item) bool { return o.Record.Envelope.Key == key })
}

// fillParked moves what is parked of one key that may go on into c. It reports whether there was one.
func (e *engine) fillParked(c *call, limit int) bool {
	rt := c.route
	for key, items := range rt.parked {
		if rt.flying[key] > 0 {
			continue
		}
		n := min(limit-len(c.items), len(items))
		for _, item := range items[:n] {
			if e.screen(item) {
				e.take(c, item)
			}
		}
		if rest := items[n:]; len(rest) > 0 {
			rt.parked[key] = rest
		} else {
			delete(rt.parked, key)
		}
		return true
	}
	return false
}

// unpark hands back what is parked of some keys of a route, or of all if none is named.
func (e *engine) unpark(rt *route, keys ...string) {
	if len(rt.parked) == 0 {
		return
	}
	if len(keys) == 0 {
		keys = slices.Sorted(maps.Keys(rt.parked))
	}
	for _, key := range keys {
		items := rt.parked[key]
		delete(rt.parked, key)
		for _, item := range slices.Backward(items) {
			e.release(item, false)
		}
	}
}

// screen reports whether it may be sent; if not, it gives it its outcome.
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
	case rt.blocked(rec.Envelope.Topic):
		e.release(item, false)
	case e.expired(item):
		e.abandon(item, waybill.ReasonExpired, fmt.Errorf("expired at %s", rec.Envelope.Expires.Format(time.RFC3339)))
	case rt.maxBody > 0 && len(rec.Envelope.Body) > rt.maxBody:
		e.abandon(item, waybill.ReasonTooLarge, fmt.Errorf("the body has %d bytes; the publisher of route %s takes at most %d: raise its limit, "+
			"or store the content elsewhere and send a reference", len(rec.Envelope.Body), rt.Name, rt.maxBody))
	default:
		return true
	}
	return false
}

// conclude gives it its outcome.
func (e *engine) conclude(item *dispatch.Item, o core.Outcome) {
	rt := e.routes[item.Route()]
	e.tried(rt, item, o.Event() == core.EventReleased)
	e.d.Conclude(e.now, item, o)
}

// release hands it back. A retry of a blocked topic waits for the topic: it would come back at once.
func (e *engine) release(item *dispatch.Item, unknown bool) {
	e.counts.Released++
	in := time.Duration(0)
	if b := e.routes[item.Route()].topics[item.Record.Envelope.Topic]; b != nil && item.Record.Failed {
		in = max(b.until.Sub(e.now), e.opts.PollMin)
	}
	e.conclude(item, core.Release(&item.Record, in, unknown))
}

func (e *engine) retry(item *dispatch.Item, err error, in time.Duration) {
	e.counts.Failed++
	e.conclude(item, core.Retry(&item.Record, err, in))
	e.warn(item, "retry", "publishing failed; it will be tried again", err, "class", waybill.ClassOf(err).String(), "retry_in", in)
	if e.opts.Hooks.OnRetry != nil {
		ev := e.event(item)
		ev.Err, ev.RetryIn = err, in
		e.observer.tell(e.opts.Hooks.OnRetry, ev)
	}
}

// abandon gives it up. Its key goes on when that is stored, unless the route says that it blocks.
func (e *engine) abandon(item *dispatch.Item, reason waybill.Reason, err error) {
	e.counts.Abandoned++
	e.conclude(item, core.Abandon(&item.Record, reason, err))
	e.tel.abandoned(e.base, e.routes[item.Route()], reason)
	event := "abandoned"
	if reason == waybill.ReasonUndecodable {
		event = "undecodable"
	}
	e.log.Error("message abandoned", "event", event, "route", item.Route(), "id", item.Record.Envelope.ID, "attempt", attempt(item),
		"topic", item.Record.Envelope.Topic, "reason", string(reason), "error", core.ErrorText(err))
	if e.opts.Hooks.OnAbandoned != nil {
		ev := e.event(item)
		ev.Err, ev.Reason = err, reason
		e.observer.tell(e.opts.Hooks.OnAbandoned, ev)
	}
}
