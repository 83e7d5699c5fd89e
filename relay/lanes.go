package relay

import (
	"fmt"
	"time"

	"github.com/waybill-go/waybill/core"
)

// item is a claimed record on its way to its outcome.
type item struct {
	rec   *core.Record
	batch *batch
	route *route
	next  *item // the next record of its lane
	state itemState
	// broken: it was given an outcome without being sent, and is not out of the way: nothing that follows it in its lane
	// may be sent.
	broken bool
	// limbo: it was given up, and the store may not know yet: what follows it in its lane waits.
	limbo bool
	// behind: an earlier record of its lane failed in the same call.
	behind bool
	// lost: an extension found the lease gone.
	lost bool
}

type itemState uint8

const (
	itemWaiting itemState = iota // to be sent
	itemSent                     // in a Publish call
	itemDone                     // has an outcome
)

func (it *item) attempt() int { return it.rec.Attempts + 1 }

// batch is the records of one claim.
type batch struct {
	items    []item
	claimed  time.Time // before the claim was sent
	deadline time.Time // the lease's end by our own monotonic clock, counted from then
	renewAt  time.Time
	undone   int // items without an outcome
}

// laneKey names a lane: the records of one key on one route.
type laneKey struct{ route, key string }

// lane is what is held of a lane.
type lane struct {
	tail *item // the last record
	held int
}

func (it *item) lane() laneKey { return laneKey{it.route.Name, it.rec.Envelope.Key} }

// laneDepth is how many records of a lane may be held before claims leave its key alone: a lane goes one by one, and a hot
// one would fill the relay.
func (e *engine) laneDepth() int { return max(e.opts.BatchSize/8, 16) }

// deepLanes returns the keys of rt to be left by the next claim.
func (e *engine) deepLanes(rt *route) []string {
	limit := e.laneDepth()
	if rt.held < limit || rt.pipelined || rt.Order != core.OrderPerKey {
		return nil
	}
	var keys []string
	for key, l := range e.lanes {
		if l.held >= limit && key.route == rt.Name {
			keys = append(keys, key.key)
		}
	}
	return keys
}

// leaveLane takes one record out of a lane.
func (e *engine) leaveLane(key laneKey, rt *route) {
	l, ok := e.lanes[key]
	if !ok {
		return // of a route without order
	}
	if l.held--; l.held == 0 {
		delete(e.lanes, key)
		return
	}
	e.lanes[key] = l
	if l.held == e.laneDepth()/2 {
		e.wakeBy(rt.unit, e.now) // claims may take its key again
	}
}

// accept spreads the records of a claim over lanes, behind what they hold of earlier claims. The head of each is ready.
func (e *engine) accept(records []core.Record, sent time.Time, session int64) *batch {
	b := &batch{items: make([]item, len(records)), claimed: sent, deadline: sent.Add(e.opts.Lease)}
	for i := range records {
		rec, it := &records[i], &b.items[i]
		rt := e.routes[rec.Route]
		if rt == nil {
			it.state = itemDone
			e.log.Error("the store returned a record of a route that was not asked for", "event", "foreign_route", "route", rec.Route, "id", rec.Envelope.ID)
			continue
		}
		*it = item{rec: rec, batch: b, route: rt}
		if rem := rec.Lease.Remaining; rem > 0 && sent.Add(rem).Before(b.deadline) {
			b.deadline = sent.Add(rem)
		}
		rt.held++
		rt.unsent++
		e.held++
		b.undone++
		if rt.Order == core.OrderPerKey && rec.Envelope.Key != "" {
			key := it.lane()
			l := e.lanes[key]
			prev := l.tail
			e.lanes[key] = lane{tail: it, held: l.held + 1}
			if session != e.session || prev != nil && prev.broken || prev == nil && e.limbo[key] > 0 || e.severed[key] {
				e.release(it)
				continue
			}
			if prev != nil && (prev.state != itemDone || e.limbo[key] > 0) {
				prev.next = it
				continue
			}
		}
		rt.ready = append(rt.ready, it)
	}
	b.renewAt = sent.Add(b.deadline.Sub(sent) / 2)
	e.open = append(e.open, b)
	if e.stopping {
		for i := range b.items {
			if b.items[i].state == itemWaiting {
				e.release(&b.items[i])
			}
		}
		for _, rt := range e.order {
			rt.ready = nil
		}
	}
	return b
}

// call is one Publish: records of a route, at most one of a lane unless the publisher pipelines, then a run of one.
type call struct {
	route      *route
	items      []*item
	envs       []core.Envelope
	deadline   time.Time // of the first lease to end
	generation uint64    // breakers opened when it began
	lost       bool      // given up at the drain limit
	plans      map[*item]plan
}

// plan is what a custom back-off said.
type plan struct {
	in     time.Duration
	again  bool
	broken error
}

// dispatch sends what is ready on rt.
func (e *engine) dispatch(rt *route) {
	for len(rt.ready) > 0 && rt.calls < maxCalls {
		c := e.newCall(rt)
		e.fill(c, rt.maxCall)
		if len(c.items) == 0 {
			e.free = append(e.free, c)
			continue
		}
		e.send(c)
	}
}

// fill moves what is ready into c, limit records at most. Records that must not be sent get their outcome instead.
func (e *engine) fill(c *call, limit int) {
	rt := c.route
	taken := 0
	for ; taken < len(rt.ready) && len(c.items) < limit; taken++ { // screen may append to ready
		it := rt.ready[taken]
		if it.state != itemWaiting {
			continue
		}
		if e.screen(it) {
			c.add(it)
			for n := it.next; rt.pipelined && n != nil && n.state == itemWaiting && len(c.items) < limit && e.judge(n) == sendIt; n = n.next {
				c.add(n)
			}
		}
	}
	rest := copy(rt.ready, rt.ready[taken:])
	clear(rt.ready[rest:])
	rt.ready = rt.ready[:rest]
}

func (c *call) add(it *item) {
	it.state, it.behind = itemSent, false
	it.route.unsent--
	c.items = append(c.items, it)
	c.envs = append(c.envs, it.rec.Envelope)
	c.deadline = earliest(c.deadline, it.batch.deadline)
}

// fate is what should become of a record that is about to be sent.
type fate uint8

const (
	sendIt fate = iota
	handBack
	undecodable
	crashed
	expired
	tooLarge
)

// judge decides about one record.
func (e *engine) judge(it *item) fate {
	rec := it.rec
	switch {
	case !e.now.Before(it.batch.deadline.Add(-e.opts.margin())):
		return handBack // too late: the lease may end before the publish
	case rec.Err != nil:
		return undecodable
	case rec.Crashes >= core.MaxCrashes:
		return crashed
	case it.route.blocked(rec.Envelope.Topic):
		return handBack
	case rec.Envelope.Expired(e.now):
		return expired
	case it.route.maxBody > 0 && len(rec.Envelope.Body) > it.route.maxBody:
		return tooLarge
	}
	return sendIt
}

// screen reports whether it may be sent; if not, it gives it its outcome.
func (e *engine) screen(it *item) bool {
	switch e.judge(it) {
	case sendIt:
		return true
	case handBack:
		e.release(it)
		e.cut(it)
	case undecodable:
		e.abandon(it, core.ReasonUndecodable, it.rec.Err)
	case crashed:
		e.abandon(it, core.ReasonCrashed, fmt.Errorf("%d leases on it ended without an outcome: look for relays that died, or whose publishes take longer than Lease", it.rec.Crashes))
	case expired:
		e.abandon(it, core.ReasonExpired, fmt.Errorf("expired at %s", it.rec.Envelope.Expires.Format(time.RFC3339)))
	case tooLarge:
		e.abandon(it, core.ReasonTooLarge, fmt.Errorf("the body has %d bytes; the publisher of route %s takes at most %d: raise its limit, "+
			"or store the content elsewhere and send a reference", len(it.rec.Envelope.Body), it.route.Name, it.route.maxBody))
	}
	return false
}

// advance lets the lane of it go on after it.
func (e *engine) advance(it *item) {
	if n := it.next; n != nil && n.state == itemWaiting {
		it.route.ready = append(it.route.ready, n)
	}
}

// cut hands back what follows it in its lane, in the settle that it itself is part of. What is in flight behind it, in
// its own call, is decided when the call's results are read.
func (e *engine) cut(it *item) {
	for n := it.next; n != nil; n = n.next {
		switch n.state {
		case itemWaiting:
			e.release(n)
		case itemSent:
			n.behind = true
		case itemDone:
		}
	}
}

func (e *engine) newCall(rt *route) *call {
	if n := len(e.free); n > 0 {
		c := e.free[n-1]
		e.free = e.free[:n-1]
		c.route, c.generation = rt, e.openings
		return c
	}
	return &call{route: rt, generation: e.openings}
}

func (e *engine) freeCall(c *call) {
	clear(c.items)
	clear(c.envs)
	c.items, c.envs, c.deadline, c.plans = c.items[:0], c.envs[:0], time.Time{}, nil
	e.free = append(e.free, c)
}
