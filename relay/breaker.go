package relay

import (
	"errors"
	"time"

	"github.com/waybill-go/waybill/core"
)

// maxTopicBreakers bounds the topics of one route that are skipped one by one; beyond it the whole route pauses.
const maxTopicBreakers = 32

// probes spaces the probes of an open breaker: 200 ms, doubled to 30 s, without end. A publisher that can be asked whether
// it works is asked at least every second before that, since it costs no record: a broker that is back is used at once.
var (
	probes = core.Backoff{Base: 200 * time.Millisecond, Cap: 30 * time.Second, Attempts: -1}
	checks = core.Backoff{Base: 200 * time.Millisecond, Cap: time.Second, Attempts: -1}
)

// breaker pauses a route or one topic of it. It is closed (the zero value), open until a time, or half open: records
// are claimed one by one until one is published.
type breaker struct {
	failures int       // outages in a row
	checks   int       // checks in a row that failed
	cause    string    // the latest
	since    time.Time // of the first
	told     time.Time // when the log said so
	until    time.Time // open before it
	half     bool
	trial    *item  // the record that is tried while half open
	opened   uint64 // the loop's count of openings when this one opened
}

func (b *breaker) closed() bool { return b.until.IsZero() && !b.half }

// bars reports whether an ordinary claim leaves out what the breaker guards, and barsProbe whether a probe's does.
func (b *breaker) bars() bool      { return !b.closed() }
func (b *breaker) barsProbe() bool { return !b.until.IsZero() || b.trial != nil }

// open opens the breaker after an outage, for longer each time.
func (b *breaker) open(now time.Time, cause error, generation uint64) time.Duration {
	if b.failures++; b.failures == 1 {
		b.since = now
	}
	b.told = now
	b.checks = 0
	b.cause = core.ErrorText(cause)
	d, _, _ := probes.Next(b.failures, cause)
	var e *core.Error
	if errors.As(cause, &e) && e.After > 0 {
		d = min(e.After, maxDuration)
	}
	b.until, b.half, b.trial, b.opened = now.Add(d), false, nil, generation
	return d
}

// rest closes the breaker without a success: the next outage opens it for longer than the last.
func (b *breaker) rest() { b.until, b.half, b.trial = time.Time{}, false, nil }

// outage notes that a call which began at generation met an outage, and opens the breaker concerned unless it opened
// after the call had begun.
func (e *engine) outage(it *item, err error, generation uint64) {
	rt, topic := it.route, it.rec.Envelope.Topic
	b := &rt.breaker
	var ce *core.Error
	if !errors.As(err, &ce) || !ce.TopicOnly || topic == "" {
		topic = ""
	} else if b = rt.topics[topic]; b == nil {
		if b = e.addTopic(rt, topic); b == nil {
			b, topic = &rt.breaker, ""
		}
	}
	if b.opened > generation {
		return
	}
	if b.failures == 0 {
		e.tel.breaker(e.base, rt, 1)
	}
	e.openings++
	d := b.open(e.now, err, e.openings)
	e.observer.tell(e.opts.Hooks.OnBreaker, Event{Route: rt.Name, Topic: topic, RetryIn: d, Err: err})
	e.warn(it, "breaker_open", "publishing is paused by an outage", err, "topic_only", topic != "", "probe_in", d)
}

// addTopic returns a breaker for topic, or nil if too many are open. It forgets one that rests if it must.
func (e *engine) addTopic(rt *route, topic string) *breaker {
	if len(rt.topics) >= maxTopicBreakers {
		for name, b := range rt.topics {
			if b.closed() {
				delete(rt.topics, name)
				e.tel.breaker(e.base, rt, -1)
				break
			}
		}
	}
	if len(rt.topics) >= maxTopicBreakers {
		return nil
	}
	b := &breaker{}
	rt.topics[topic] = b
	return b
}

// sent notes that a call which began at generation published a record: what was open before the call is closed.
func (e *engine) sent(it *item, generation uint64) {
	rt, topic := it.route, it.rec.Envelope.Topic
	if rt.breaker.failures > 0 && rt.breaker.opened <= generation {
		e.closeBreaker(rt, "")
		rt.breaker = breaker{opened: rt.breaker.opened}
	}
	if len(rt.topics) == 0 {
		return
	}
	if b := rt.topics[topic]; b != nil && b.opened <= generation {
		delete(rt.topics, topic)
		e.closeBreaker(rt, topic)
	}
}

func (e *engine) closeBreaker(rt *route, topic string) {
	e.wakeBy(rt.unit, e.now)
	e.tel.breaker(e.base, rt, -1)
	e.observer.tell(e.opts.Hooks.OnBreaker, Event{Route: rt.Name, Topic: topic})
	e.log.Info("publishing resumed", "event", "breaker_closed", "route", rt.Name, "topic", topic)
}

// blocked reports whether a record may not be sent now.
func (rt *route) blocked(topic string) bool {
	if rt.paused || !rt.breaker.until.IsZero() {
		return true
	}
	if len(rt.topics) > 0 {
		if b := rt.topics[topic]; b != nil {
			return !b.until.IsZero()
		}
	}
	return false
}

// tick makes breakers whose time has come half open, and returns when the next one comes.
func (e *engine) tick(rt *route) (next time.Time) {
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
	if b := &rt.breaker; due(b) && !rt.checking && !e.stopping {
		if rt.checker != nil {
			e.check(rt)
		} else {
			b.until, b.half = time.Time{}, true
		}
	}
	for _, b := range rt.topics {
		if due(b) {
			b.until, b.half = time.Time{}, true
		}
	}
	return next
}

// check asks the publisher whether it works again before anything is claimed for it.
func (e *engine) check(rt *route) {
	rt.checking = true
	e.async(func() func() {
		ctx, cancel := e.timeout(e.upkeepCtx, e.opts.PublishTimeout) // nothing is in flight that a stop would wait for
		defer cancel()
		err := guardErr("check", func() error { return rt.checker.Check(ctx) })
		return func() {
			rt.checking = false
			b := &rt.breaker
			if b.until.IsZero() {
				return
			}
			if err != nil {
				b.checks++
				b.cause = core.ErrorText(err)
				d, _, _ := checks.Next(b.checks, err)
				b.until = e.now.Add(d)
				if e.now.Sub(b.told) >= remindAfter {
					b.told = e.now
					e.log.Warn("publishing is still paused by an outage", "event", "breaker_open", "route", rt.Name, "for", round(e.now.Sub(b.since)), "error", b.cause)
				}
				return
			}
			b.until, b.half = time.Time{}, true
		}
	})
}

// probing reports whether the route wants to try a record.
func (rt *route) probing() bool {
	if rt.paused {
		return false
	}
	if !rt.breaker.closed() {
		return rt.breaker.half && rt.breaker.trial == nil
	}
	for _, b := range rt.topics {
		if b.half && b.trial == nil {
			return true
		}
	}
	return false
}

// probed notes the record that a probe's claim brought, or nil. If it says nothing about a half open breaker, that one
// rests.
func (rt *route) probed(it *item) {
	if rt.breaker.half {
		if it == nil || it.state == itemDone {
			rt.breaker.rest()
		} else {
			rt.breaker.trial = it
		}
	}
	for topic, b := range rt.topics {
		switch {
		case !b.half || b.trial != nil:
		case it == nil || it.state == itemDone || it.rec.Envelope.Topic != topic:
			b.rest()
		default:
			b.trial = it
		}
	}
}

// tried notes that it has an outcome. If it was on trial and neither published nor met an outage, the breaker rests: the
// other side answers at least.
func (rt *route) tried(it *item) {
	if rt.breaker.trial == it {
		rt.breaker.rest()
	}
	if len(rt.topics) > 0 {
		if b := rt.topics[it.rec.Envelope.Topic]; b != nil && b.trial == it {
			b.rest()
		}
	}
}

// openBreakers is how many breakers of the route count as open.
func (rt *route) openBreakers() int {
	n := len(rt.topics)
	if rt.breaker.failures > 0 {
		n++
	}
	return n
}
