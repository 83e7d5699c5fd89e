package relay

import (
	"errors"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dispatch"
)

// A breaker pauses a route, or one topic of it, while the other side is away. So an outage costs no attempt. Its
// states:
//
//   state     | until | half  | trial | it leaves the state
//   ----------|-------|-------|-------|----------------------------------------------------------------
//   closed    | zero  | false | nil   | at an outage: open
//   open      | set   | false | nil   | when the time has come, and Check, if there is one, has no error: half open
//   half open | zero  | true  | nil   | when a record is handed out: on trial
//   on trial  | zero  | true  | set   | published: closed. An outage: open, for longer. Released: half open.
//             |       |       |       | Any other outcome: closed, but the next outage opens it for longer
//
// Several calls are under way when an outage begins, and each of them fails. Only the first may open the breaker, and a
// call that began before must not close it. So openings are numbered (publishes.openings): a call has the number at
// which it began (generation), a breaker that at which it opened (opened). A result counts for a breaker if opened ≤
// generation.

// ableFor is how long a breaker may be open before the route's partitions should go to a relay whose broker may work.
const ableFor = 5 * time.Second

// forgetAfter is how long a topic may have no record to try until its breaker is forgotten: its last records have
// expired, or were abandoned or cancelled, and health must not name the topic for ever.
const forgetAfter = time.Minute

// maxTopicBreakers bounds the topics of one route that are skipped separately; beyond it the whole route pauses.
const maxTopicBreakers = 32

// probes spaces the probes of an open breaker: 200 ms, doubled to 30 s, without end. A publisher with a check of its
// own is asked at least every second, since that costs no record. So a broker that is back is used at once. A topic
// that no queue is bound for is probed at least every five seconds.
var (
	probes     = waybill.Backoff{Base: 200 * time.Millisecond, Cap: 30 * time.Second, Attempts: -1}
	checks     = waybill.Backoff{Base: 200 * time.Millisecond, Cap: time.Second, Attempts: -1}
	unroutable = waybill.Backoff{Base: 200 * time.Millisecond, Cap: 5 * time.Second, Attempts: -1}
)

// breakers are the breakers of a route: its own, and those of its topics.
type breakers struct {
	route    breaker
	topics   map[string]*breaker // by topic: its breaker. A topic without one is not paused
	checker  core.Checker        // of the publisher; nil if it has none
	checking bool                // the publisher's Check is under way
}

// breaker pauses a route or one topic of it. It is closed (the zero value), open until a time, or half open: records
// are handed out one by one until one is published.
type breaker struct {
	failures int            // outages in a row; 0 = the breaker was never open since the latest success
	checks   int            // checks in a row that failed
	cause    string         // the latest
	since    time.Time      // of the first
	unbound  time.Time      // since when no queue is bound for the topic; zero = that is not why it is open
	warnedAt time.Time      // when the log said so
	until    time.Time      // open before it
	half     bool           // not open any more, and no record was published yet
	anyAt    time.Time      // half open: from when on any record may be on trial; zero = since it is half open
	idle     time.Time      // since when it could try a record, and had none; zero = it waits, or one is on trial
	trial    *dispatch.Item // the record on trial while half open
	opened   uint64         // the loop's count of openings when this one opened
}

func (b *breaker) closed() bool { return b.until.IsZero() && !b.half }

// open opens the breaker after an outage, for longer each time, as delays says.
func (b *breaker) open(now time.Time, cause error, delays *waybill.Backoff, generation uint64) time.Duration {
	if b.failures++; b.failures == 1 {
		b.since = now
	}
	b.warnedAt = now
	b.checks = 0
	b.cause = core.ErrorText(cause)
	d, _, _ := delays.Next(b.failures, cause)
	var e *waybill.Error
	if errors.As(cause, &e) && e.After > 0 {
		d = min(e.After, maxDuration)
	}
	b.until, b.half, b.trial, b.opened = now.Add(d), false, nil, generation
	return d
}

// close closes the breaker without a success: the next outage opens it for longer than the last.
func (b *breaker) close() { b.until, b.half, b.trial = time.Time{}, false, nil }

// outage notes that a call met an outage. It opens the breaker concerned, unless that opened after the call had begun:
// the call began at generation. The breaker is that of the topic if the error is about the topic alone, and there are
// not too many of these; else it is the route's. Records of a paused topic stay with the dispatcher; those that wait
// behind their key are released when the route is paused.
func (e *engine) outage(item *dispatch.Item, err error, generation uint64) {
	rt, topic := e.routes[item.Route()], item.Record.Envelope.Topic
	b := &rt.breakers.route
	var ce *waybill.Error
	if !errors.As(err, &ce) || !ce.TopicOnly || topic == "" {
		topic = ""
	} else if b = rt.breakers.topics[topic]; b == nil {
		if b = e.addTopic(rt, topic); b == nil {
			b, topic = &rt.breakers.route, ""
		}
	}
	if b.opened > generation {
		return
	}
	if b.failures == 0 {
		e.tel.breaker(e.base, rt, 1)
	}
	e.publishes.openings++
	d := b.open(e.now, err, &probes, e.publishes.openings)
	b.unbound = time.Time{}
	if topic != "" {
		e.d.PauseTopic(rt.Name, topic, true)
	} else {
		e.freeBehindKey(rt)
	}
	e.observer.tell(e.opts.Hooks.OnBreaker, Event{Route: rt.Name, Topic: topic, RetryIn: d, Err: err})
	e.warn(item, "relay.breaker_open", "publishing is paused by an outage", err, "topic_only", topic != "", "probe_in", d)
}

// addTopic returns a breaker for topic, or nil if too many are open. It forgets one that is closed if it must.
func (e *engine) addTopic(rt *route, topic string) *breaker {
	if len(rt.breakers.topics) >= maxTopicBreakers {
		for name, b := range rt.breakers.topics {
			if b.closed() {
				delete(rt.breakers.topics, name)
				e.tel.breaker(e.base, rt, -1)
				break
			}
		}
	}
	if len(rt.breakers.topics) >= maxTopicBreakers {
		return nil
	}
	b := &breaker{}
	rt.breakers.topics[topic] = b
	return b
}

// noteSent notes that a call published a record. Breakers that were open before the call began, at generation, are
// closed.
func (e *engine) noteSent(item *dispatch.Item, generation uint64) {
	rt, topic := e.routes[item.Route()], item.Record.Envelope.Topic
	if rt.breakers.route.failures > 0 && rt.breakers.route.opened <= generation {
		e.closeBreaker(rt, "", true)
		rt.breakers.route = breaker{opened: rt.breakers.route.opened}
	}
	if len(rt.breakers.topics) == 0 {
		return
	}
	if b := rt.breakers.topics[topic]; b != nil && b.opened <= generation {
		e.forgetTopic(rt, topic, !b.warnedAt.IsZero())
	}
}

// forgetTopic removes the breaker of a topic. say is whether the log says that publishing goes on.
func (e *engine) forgetTopic(rt *route, topic string, say bool) {
	delete(rt.breakers.topics, topic)
	e.d.PauseTopic(rt.Name, topic, false)
	e.closeBreaker(rt, topic, say)
}

// closeBreaker reports that the breaker of a route, or of one topic of it, is closed; the log does if say is set.
func (e *engine) closeBreaker(rt *route, topic string, say bool) {
	e.tel.breaker(e.base, rt, -1)
	e.observer.tell(e.opts.Hooks.OnBreaker, Event{Route: rt.Name, Topic: topic})
	if say {
		e.log.Info("publishing resumed", "event", "relay.breaker_closed", "route", rt.Name, "topic", topic)
	}
}

// handOutBlocked reports whether the route's records must not be handed out now.
func (rt *route) handOutBlocked() bool {
	return rt.paused || !rt.breakers.route.until.IsZero() || rt.breakers.route.half && rt.breakers.route.trial != nil
}

// blocked reports whether records of a topic may not be sent now.
func (rt *route) blocked(topic string) bool {
	b := rt.breakers.topics[topic]
	return b != nil && (!b.until.IsZero() || b.half && b.trial != nil)
}

// able tells the dispatcher whether the route should have partitions, if another relay can have them. A relay that
// tries whether its broker works needs a record to try with.
func (e *engine) able(rt *route) (next time.Time) {
	b := &rt.breakers.route
	able := !rt.paused
	if !b.until.IsZero() {
		if at := b.since.Add(ableFor); e.now.Before(at) {
			next = at
		} else {
			able = false
		}
	}
	e.d.SetAble(rt.Name, able)
	return next
}

// stepBreakers makes breakers half open whose time has come, and tells the dispatcher whether the route is able. It
// returns when the next one is due. For each topic:
//
//  1. An open breaker whose time has come is half open.
//  2. At anyAt the topic is unblocked, and any of its records goes on trial: at once, or a second later if no queue
//     was bound for it. Until then only the retry of the record that found no queue does.
//  3. A breaker that found no record to try for forgetAfter is forgotten.
func (e *engine) stepBreakers(rt *route) (next time.Time) {
	defer func() { next = earliest(next, e.able(rt)) }()
	due := func(b *breaker) bool {
		if b.until.IsZero() {
			return false
		}
		if e.now.Before(b.until) {
			next = earliest(next, b.until)
			return false
		}
		return true
	}
	if b := &rt.breakers.route; due(b) && !rt.breakers.checking && !e.drain.begun {
		if rt.breakers.checker != nil {
			e.check(rt)
		} else {
			b.until, b.half = time.Time{}, true
		}
	}
	for topic, b := range rt.breakers.topics {
		if due(b) {
			b.until, b.half, b.anyAt = time.Time{}, true, e.now
			if !b.unbound.IsZero() {
				b.anyAt = e.now.Add(triedBy)
			}
		}
		switch {
		case !b.half || b.trial != nil || b.anyAt.IsZero():
		case e.now.Before(b.anyAt):
			next = earliest(next, b.anyAt)
		default:
			b.anyAt = time.Time{}
			e.d.PauseTopic(rt.Name, topic, false)
		}
		switch {
		case !b.until.IsZero() || b.trial != nil:
			b.idle = time.Time{}
		case b.idle.IsZero():
			b.idle = e.now
			next = earliest(next, e.now.Add(forgetAfter))
		case e.now.Before(b.idle.Add(forgetAfter)):
			next = earliest(next, b.idle.Add(forgetAfter))
		default:
			e.forgetTopic(rt, topic, false)
		}
	}
	return next
}

// check asks the publisher whether it works again, before records are sent to it.
func (e *engine) check(rt *route) {
	rt.breakers.checking = true
	e.async(func() func() {
		// a stop waits for nothing here
		ctx, cancel := e.timeout(e.upkeep.ctx, e.opts.PublishTimeout)
		defer cancel()
		err := guardErr("check", func() error { return rt.breakers.checker.Check(ctx) })
		return func() {
			rt.breakers.checking = false
			b := &rt.breakers.route
			if b.until.IsZero() {
				return
			}
			if err != nil {
				b.checks++
				b.cause = core.ErrorText(err)
				d, _, _ := checks.Next(b.checks, err)
				b.until = e.now.Add(d)
				if e.now.Sub(b.warnedAt) >= remindAfter {
					b.warnedAt = e.now
					e.log.Warn("publishing is still paused by an outage", "event", "relay.breaker_open", "route", rt.Name, "for", round(e.now.Sub(b.since)), "error", b.cause)
				}
				return
			}
			b.until, b.half = time.Time{}, true
		}
	})
}

// endTrial notes that an item has an outcome. If it was on trial, and was neither published nor met an outage, the
// breaker closes: the other side answers at least. If it was released, the next one is tried.
func (e *engine) endTrial(rt *route, item *dispatch.Item, back bool) {
	ended := func(b *breaker) {
		if b.trial = nil; !back {
			b.close()
		}
	}
	if rt.breakers.route.trial == item {
		ended(&rt.breakers.route)
	}
	if len(rt.breakers.topics) > 0 {
		topic := item.Record.Envelope.Topic
		if b := rt.breakers.topics[topic]; b != nil && b.trial == item {
			ended(b)
			e.d.PauseTopic(rt.Name, topic, false)
		}
	}
}

// openBreakers is how many breakers of the route count as open.
func (rt *route) openBreakers() int {
	n := len(rt.breakers.topics)
	if rt.breakers.route.failures > 0 {
		n++
	}
	return n
}
