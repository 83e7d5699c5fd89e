package dispatch

import (
	"cmp"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// A record of a paused topic is not handed out. It needs no place in memory for that. A route remembers of each paused
// topic only the first record that was passed, and a walk begins there when the topic opens. A key whose first record
// waits for its topic waits with it. A message that expires does not wait: it goes to its end.

const (
	// headsEvery and passedEvery are the least pauses between two looks for records that have expired while their
	// topic is paused: among keys in memory, and among records that must be read again.
	headsEvery  = time.Second
	passedEvery = 10 * time.Second
)

// topics are the paused topics of a route.
type topics struct {
	paused map[string]bool // by topic
	// passed has, by paused topic, the records that were passed and not remembered: those without a key, and heads
	// of keys that are forgotten.
	passed map[string]passed
	// heads is, by paused topic, when the first head of a key that is remembered expires.
	heads map[string]time.Time
	// walked is when passed records were read last.
	walked map[string]time.Time
}

// passed are records that were passed: the first one, and when one of them first expires; zero = never.
type passed struct {
	from int64
	ends time.Time
}

func newTopics() topics {
	return topics{map[string]bool{}, map[string]passed{}, map[string]time.Time{}, map[string]time.Time{}}
}

// pass notes that a record was passed because its topic is paused.
func (t *topics) pass(topic string, seq int64, ends time.Time) {
	p, ok := t.passed[topic]
	if !ok || seq < p.from {
		p.from = seq
	}
	p.ends = earliest(p.ends, ends)
	t.passed[topic] = p
}

// open forgets a topic, and returns its passed records.
func (t *topics) open(topic string) (p passed, ok bool) {
	p, ok = t.passed[topic]
	delete(t.paused, topic)
	delete(t.passed, topic)
	delete(t.heads, topic)
	delete(t.walked, topic)
	return p, ok
}

// pause notes that a key waits for the topic of its head, until that expires.
func (k *key) pause(topic string, ends time.Time) {
	k.topic, k.ends = topic, ends
	if t := &k.route.topics; !ends.IsZero() {
		t.heads[topic] = earliest(t.heads[topic], ends)
	}
}

// expiresAt returns when a record expires; zero = never.
func (rt *route) expiresAt(rec *core.Record) time.Time {
	if !rec.Expires {
		return time.Time{}
	}
	from := rt.opts.LivesFrom
	if from.IsZero() {
		from = rt.now
	}
	return from.Add(rec.ExpiresIn)
}

// isPast reports whether a time that can be zero has come.
func (rt *route) isPast(at time.Time) bool { return !at.IsZero() && !at.After(rt.now) }

// expiryDue returns when something may expire whose topic is paused; zero = never. It does not wait for the topic,
// since it would not be sent anyway.
func (rt *route) expiryDue() (at time.Time) {
	for _, ends := range rt.topics.heads {
		at = earliest(at, ends)
	}
	for topic, p := range rt.topics.passed {
		if !p.ends.IsZero() {
			at = earliest(at, later(p.ends, rt.topics.walked[topic].Add(passedEvery)))
		}
	}
	return at
}

// expire has the records read again that have expired while their topic was paused.
func (d *Dispatcher) expire(rt *route) {
	if !rt.isPast(rt.expiryDue()) {
		return
	}
	// Keys in memory whose head has expired: the key goes on, and its head is read and ends.
	for _, topic := range sortedNames(rt.topics.heads) {
		if !rt.isPast(rt.topics.heads[topic]) {
			continue
		}
		delete(rt.topics.heads, topic)
		for _, k := range rt.keysOf(topic) {
			if rt.isPast(k.ends) {
				k.topic = ""
				d.advance(k)
			} else if !k.ends.IsZero() {
				rt.topics.heads[topic] = earliest(rt.topics.heads[topic], later(k.ends, d.now.Add(headsEvery)))
			}
		}
	}
	// Passed records are known by their first number only: all from there on are read again.
	for _, topic := range sortedNames(rt.topics.passed) {
		p, walked := rt.topics.passed[topic], rt.topics.walked[topic]
		if !rt.isPast(p.ends) || d.now.Before(walked.Add(passedEvery)) {
			continue
		}
		delete(rt.topics.passed, topic)
		rt.topics.walked[topic] = d.now
		rt.walkFrom(p.from)
	}
}

// keysOf returns the keys whose head waits for a topic, in the order of their heads: records that are read and settled
// together are near each other in the store.
func (rt *route) keysOf(topic string) (keys []*key) {
	for _, k := range rt.keys {
		if k.topic == topic {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b *key) int { return cmp.Or(cmp.Compare(a.resume, b.resume), cmp.Compare(a.name, b.name)) })
	return keys
}

// walkFrom begins walks over all records from a sequence on that were passed.
func (rt *route) walkFrom(seq int64) {
	for _, g := range rt.groups {
		g.addWalk(seq-1, g.cursor)
	}
}

// PauseTopic stops the handing out of a topic's records, or allows it again. Records that expire meanwhile are handed
// out all the same.
func (d *Dispatcher) PauseTopic(route, topic string, paused bool) {
	rt := d.byName[route]
	if rt == nil || rt.topics.paused[topic] == paused {
		return
	}
	if paused {
		rt.topics.paused[topic] = true
		return
	}
	if p, ok := rt.topics.open(topic); ok {
		rt.walkFrom(p.from)
	}
	for _, k := range rt.keysOf(topic) {
		k.topic = ""
		d.advance(k)
	}
	rt.pace.readAt = d.now
}
