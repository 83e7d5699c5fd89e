package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dispatch"
	"github.com/waybill-go/waybill/internal/errtext"
)

// A Publish call takes records of one route, runs beside the loop, and returns one result for each. The relay trusts no
// publisher with that: a panic, a wrong number of results and a call that does not return have answers here. A result
// says nothing of a record whose session ended meanwhile: its outcome is refused by the store's fence.

// publishes knows the Publish calls in progress.
type publishes struct {
	inFlight map[*call]struct{}
	free     []*call   // calls that have returned, to be used again
	openings uint64    // breakers opened so far: the time of the breakers, see breaker.go
	lookAt   time.Time // when the next one should have returned; zero = none is in progress
}

// call is one Publish call with records of a route. It has one record of a key, or a run of them if the publisher
// pipelines.
type call struct {
	route      *route
	items      []*dispatch.Item
	envs       []waybill.Envelope
	lease      *lease
	under      context.Context         //nolint:containedctx // of the lease when it began
	generation uint64                  // publishes.openings when the call was made
	lost       bool                    // given up at the drain limit
	late       bool                    // it did not begin: the lease had ended
	dueAt      time.Time               // when it should have returned
	overdue    bool                    // that is over, and was said
	noting     bool                    // its messages are logged one by one
	plans      map[*dispatch.Item]plan // answers of a custom back-off about failed items; nil without one
}

// plan is the answer of a custom back-off.
type plan struct {
	in     time.Duration
	again  bool
	broken error
}

// add puts an item into the call.
func (c *call) add(item *dispatch.Item) {
	c.items = append(c.items, item)
	c.envs = append(c.envs, item.Record.Envelope)
}

// newCall returns an empty call.
func (e *engine) newCall(rt *route) *call {
	if n := len(e.publishes.free); n > 0 {
		c := e.publishes.free[n-1]
		e.publishes.free = e.publishes.free[:n-1]
		c.route, c.generation, c.lease = rt, e.publishes.openings, e.member.lease
		return c
	}
	return &call{route: rt, generation: e.publishes.openings, lease: e.member.lease}
}

// freeCall keeps a call to be used again.
func (e *engine) freeCall(c *call) {
	clear(c.items)
	clear(c.envs)
	c.items, c.envs, c.plans, c.late = c.items[:0], c.envs[:0], nil, false
	e.publishes.free = append(e.publishes.free, c)
}

// send publishes c on a goroutine of its own. The steps there:
//
//  1. The lease is asked again, with the clock of that moment: a process that was frozen in between must not send
//     records that another relay has sent since.
//  2. The publisher is called, with a context that ends with PublishTimeout, with the lease, and at the drain limit.
//  3. A custom back-off is asked about failures.
//  4. The loop takes in the results (finish).
func (e *engine) send(c *call) {
	c.route.calls++
	c.route.out += len(c.items)
	e.publishes.inFlight[c] = struct{}{}
	if c.noting = e.debug(); c.noting {
		for _, item := range c.items {
			e.note(item, "relay.handed_out", "message goes to the publisher")
		}
	}
	e.watch(c)
	c.under = c.lease.ctx
	ctx, cancel := e.timeout(c.under, e.opts.PublishTimeout)
	e.async(func() func() {
		defer cancel()
		start := time.Now()
		if !c.lease.holds() { // the process may have been stopped since the loop looked
			return func() {
				c.late = true
				e.finish(c, core.AllFailed(len(c.items), errLate), 0)
			}
		}
		spans := e.tel.startPublish(ctx, c)
		res := e.publish(ctx, c)
		spans.end(res)
		c.ask(res)
		took := time.Since(start)
		return func() { e.finish(c, res, took) }
	})
}

// publish calls the publisher and makes sure that each record has one result. A panic costs the record an attempt if it
// was alone. Otherwise the panic is an outage, and the breaker's probes send records alone.
func (e *engine) publish(ctx context.Context, c *call) (res core.Results) {
	n := len(c.envs)
	broken := func(what string) core.Results {
		e.log.Error("the publisher broke its contract", "event", "relay.publisher_broken", "route", c.route.Name, "id", c.items[0].Record.Envelope.ID,
			"attempt", attempt(c.items[0]), "records", n, "error", what)
		class := waybill.ClassOutage
		if n == 1 {
			class = waybill.ClassUnknown
		}
		return core.AllFailed(n, &waybill.Error{Op: "waybill/relay: publish", Class: class, Err: errors.New(what)})
	}
	defer func() {
		if p := recover(); p != nil {
			res = broken(fmt.Sprintf("it panicked: %v", p))
		}
	}()
	if res = c.publishParts(ctx); len(res) != n {
		return broken(fmt.Sprintf("it returned %d results for %d messages", len(res), n))
	}
	guardEach("an error of the publisher", res)
	return res
}

// publishParts calls the publisher with parts of at most its MaxBatchBytes, one after the other. If it pipelines keys,
// nothing is sent behind a part with a failure, so that no key goes on behind a failed record. No part begins after the
// lease, which may have ended during the one before it.
func (c *call) publishParts(ctx context.Context) core.Results {
	rt := c.route
	if rt.maxBytes == 0 {
		return rt.Publisher.Publish(ctx, c.envs)
	}
	var res core.Results
	for from := 0; from < len(c.envs); {
		if from > 0 && !c.lease.holds() {
			return append(res, core.AllFailed(len(c.envs)-from, errLate)...)
		}
		to, size := from, 0
		for to < len(c.envs) && (to == from || size+c.envs[to].Size() <= rt.maxBytes) {
			size += c.envs[to].Size()
			to++
		}
		part := rt.Publisher.Publish(ctx, c.envs[from:to])
		if len(part) != to-from {
			return append(res, part...)
		}
		res, from = append(res, part...), to
		if rt.pipelined && part.FirstErr() != nil {
			return append(res, core.AllFailed(len(c.envs)-to, waybill.ErrPredecessorFailed)...)
		}
	}
	return res
}

// ask asks a custom back-off about failures. It does not run on the loop: the back-off may be slow, or call the relay.
func (c *call) ask(res core.Results) {
	policy := c.route.Backoff
	if policy.Kind != waybill.BackoffCustom {
		return
	}
	for i, err := range res {
		if err == nil || errors.Is(err, waybill.ErrPredecessorFailed) || errors.Is(err, waybill.ErrUnroutable) {
			continue
		}
		if class := classify(err); class != waybill.ClassRejected && class != waybill.ClassUnknown {
			continue
		}
		if c.plans == nil {
			c.plans = map[*dispatch.Item]plan{}
		}
		var p plan
		p.in, p.again, p.broken = policy.Next(attempt(c.items[i]), err)
		c.plans[c.items[i]] = p
	}
}

// finish takes in the results of c. A call that was given up at the drain limit changes nothing more: its records were
// released. First the published records get their outcome. Then the others, the last of a key first, since each one
// goes back in front of the later ones:
//
//	result                              | the record is
//	------------------------------------|-------------------------------------------------------------
//	errLate: the call did not begin     | released
//	behind the first failure of its key | released: the error is another one's. After an outage it may
//	                                    | have arrived
//	ErrPredecessorFailed, lease over    | released, and may have arrived
//	any other error                     | failed: the class decides
//
// The first failure of a key counts only with a publisher that pipelines keys. Records that wait behind such a key are
// released before the failed one is concluded.
func (e *engine) finish(c *call, res core.Results, took time.Duration) {
	rt := c.route
	rt.calls--
	rt.out -= len(c.items)
	e.returned(c, took)
	c.land()
	if c.lost {
		e.inProgress++ // it was uncounted when it was given up
		return
	}
	delete(e.publishes.inFlight, c)
	confirmed, answered := 0, false
	for i, item := range c.items {
		if item.Lost() {
			e.itemLost(item)
		}
		if res[i] == nil {
			confirmed++
			e.published(item, c)
		}
		class := classify(res[i])
		answered = answered || res[i] == nil || class == waybill.ClassRejected || class == waybill.ClassPermanent
	}
	if answered { // a refusal of a message is an answer: user and exchange were right
		e.worked.routes[rt.Name] = true
	}
	if confirmed > 0 {
		rt.sentAt = e.now
	}
	failed := c.failures(res)
	for i, item := range slices.Backward(c.items) {
		key := item.Record.Envelope.Key
		first, ok := failed[key]
		if ok && first == i {
			e.freeBehindKey(rt, key)
		}
		switch err := res[i]; {
		case err == nil:
		case errors.Is(err, errLate):
			e.release(item, false)
		case ok && first < i && classify(err) == waybill.ClassOutage, errors.Is(err, waybill.ErrPredecessorFailed), c.ended(err):
			e.release(item, true)
		case ok && first < i: // the error belongs to an earlier one
			e.release(item, false)
		default:
			e.failed(item, err, c)
		}
	}
	if !c.late {
		e.tel.published(e.base, rt, confirmed, took)
	}
	if c.noting {
		e.log.DebugContext(e.base, "batch published", "event", "relay.batch", "route", rt.Name, "confirmed", confirmed, "records", len(c.items), "took", took)
	}
	e.freeCall(c)
}

// land notes that the records of c are no longer on their way.
func (c *call) land() {
	if !c.route.pipelined {
		return
	}
	for _, item := range c.items {
		key := item.Record.Envelope.Key
		if key == "" {
			continue
		}
		if c.route.keys.flying[key]--; c.route.keys.flying[key] == 0 {
			delete(c.route.keys.flying, key)
		}
	}
}

// failures returns the first failed record of each key, if the publisher pipelines.
func (c *call) failures(res core.Results) map[string]int {
	var first map[string]int
	if !c.route.pipelined {
		return nil
	}
	for i, err := range res {
		key := c.items[i].Record.Envelope.Key
		if _, ok := first[key]; err == nil || key == "" || ok {
			continue
		}
		if first == nil {
			first = map[string]int{}
		}
		first[key] = i
	}
	return first
}

// ended reports whether err only says that the lease has ended.
func (c *call) ended(err error) bool {
	return c.under.Err() != nil && classify(err) == waybill.ClassOutage
}

// published notes that an item was published.
func (e *engine) published(item *dispatch.Item, c *call) {
	e.counts.Published++
	e.tel.age(e.base, c.route, e.age(item))
	e.conclude(item, core.Published(&item.Record))
	e.noteSent(item, c.generation)
	if c.noting {
		e.note(item, "relay.published", "message published", "age", round(e.age(item)))
	}
	if e.opts.Hooks.OnPublished != nil {
		e.observer.tell(e.opts.Hooks.OnPublished, e.event(item))
	}
}

// failed decides what an error means for an item. An outage opens a breaker and costs the record nothing; it may have
// arrived. A permanent error abandons the record. A rejected record is tried again, as long as its attempts last; a
// record that no queue is bound for has rules of its own (unroutable.go).
func (e *engine) failed(item *dispatch.Item, err error, c *call) {
	rt := c.route
	class := classify(err)
	e.tel.failed(e.base, rt, class, err)
	if errors.Is(err, waybill.ErrMisconfigured) && !e.worked.routes[rt.Name] {
		e.fail(errtext.Within("waybill/relay: route "+rt.Name, err))
	}
	switch class {
	case waybill.ClassOutage:
		if !e.drain.begun {
			e.outage(item, err, c.generation)
		}
		e.release(item, true)
	case waybill.ClassPermanent:
		reason := waybill.ReasonOf(err)
		if reason == waybill.ReasonNone {
			reason = waybill.ReasonRejected
		}
		e.abandon(item, reason, err)
	case waybill.ClassRejected, waybill.ClassUnknown:
		if errors.Is(err, waybill.ErrUnroutable) {
			e.unroutable(item, err, c)
			return
		}
		e.rejected(item, err, c)
	}
}

// rejected plans the next attempt, or gives up.
func (e *engine) rejected(item *dispatch.Item, err error, c *call) {
	p, asked := c.plans[item]
	if !asked {
		p.in, p.again, p.broken = c.route.Backoff.Next(attempt(item), err)
	}
	in, again, broken := p.in, p.again, p.broken
	if !again {
		e.abandon(item, waybill.ReasonAttempts, err)
		return
	}
	if broken != nil {
		e.warn(item, "relay.backoff_broken", "retrying at the cap", broken)
	}
	var ce *waybill.Error
	if errors.As(err, &ce) && ce.After > 0 {
		in = ce.After
	}
	e.retry(item, err, in)
	e.warn(item, "relay.retry", "publishing failed; it will be tried again", err, "class", waybill.ClassOf(err).String(), "retry_in", in)
}
