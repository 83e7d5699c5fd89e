package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill/core"
)

// maxCalls bounds the Publish calls in progress of one route. Beyond it ready records gather for the next call.
const maxCalls = 16

// send publishes c on a goroutine of its own.
func (e *engine) send(c *call) {
	c.route.calls++
	e.calls[c] = struct{}{}
	ctx, cancel := e.timeout(e.sendCtx, min(e.opts.PublishTimeout, c.deadline.Sub(e.now)))
	e.async(func() func() {
		defer cancel()
		start := time.Now()
		ctx, trace := e.tel.startPublish(ctx, c)
		res := e.publish(ctx, c)
		trace.end(res)
		c.ask(res)
		took := time.Since(start)
		return func() { e.finish(c, res, took) }
	})
}

// publish calls the publisher and makes sure of one result a record. A panic is the record's fault if it was alone, so
// that it costs an attempt; else it is an outage, and the breaker's probe sends records alone.
func (e *engine) publish(ctx context.Context, c *call) (res core.Results) {
	n := len(c.envs)
	broken := func(what string) core.Results {
		e.log.Error("the publisher broke its contract", "event", "publisher_broken", "route", c.route.Name, "id", c.items[0].rec.Envelope.ID,
			"attempt", c.items[0].attempt(), "records", n, "error", what)
		class := core.ClassOutage
		if n == 1 {
			class = core.ClassUnknown
		}
		return core.AllFailed(n, &core.Error{Op: "waybill/relay: publish", Class: class, Err: errors.New(what)})
	}
	defer func() {
		if p := recover(); p != nil {
			res = broken(fmt.Sprintf("it panicked: %v", p))
		}
	}()
	if res = c.route.Publisher.Publish(ctx, c.envs); len(res) != n {
		return broken(fmt.Sprintf("it returned %d results for %d messages", len(res), n))
	}
	guardEach("an error of the publisher", res)
	return res
}

// ask asks a custom back-off about what failed: not on the loop, since it may take its time or call the relay.
func (c *call) ask(res core.Results) {
	policy := c.route.Backoff
	if policy.Kind != core.BackoffCustom {
		return
	}
	for i, err := range res {
		if err == nil || errors.Is(err, core.ErrBehind) || errors.Is(err, core.ErrUnroutable) {
			continue
		}
		if class := classify(err); class != core.ClassRejected && class != core.ClassUnknown {
			continue
		}
		if c.plans == nil {
			c.plans = map[*item]plan{}
		}
		var p plan
		p.in, p.again, p.broken = policy.Next(c.items[i].attempt(), err)
		c.plans[c.items[i]] = p
	}
}

// finish takes in the results of c.
func (e *engine) finish(c *call, res core.Results, took time.Duration) {
	if c.lost {
		e.running++ // was taken off when it was given up
		return
	}
	delete(e.calls, c)
	rt := c.route
	rt.calls--
	confirmed := 0
	for i, it := range c.items {
		if res[i] == nil {
			confirmed++
			e.published(it, c)
		}
	}
	if confirmed > 0 {
		e.worked.routes[rt.Name] = true
		rt.sentAt = e.now
	}
	for i, it := range c.items {
		switch err := res[i]; {
		case err == nil:
		case it.behind && classify(err) == core.ClassOutage, errors.Is(err, core.ErrBehind):
			e.releaseSent(it)
			e.cut(it)
		case it.behind:
			e.release(it)
			e.cut(it)
		default:
			e.failed(it, err, c)
		}
	}
	e.tel.published(e.base, rt, confirmed, took)
	e.freeCall(c)
}

func (e *engine) published(it *item, c *call) {
	e.counts.Published++
	e.tel.age(e.base, it.route, e.age(it))
	e.conclude(it, core.Published(it.rec))
	e.advance(it)
	e.sent(it, c.generation)
	if e.opts.Hooks.OnPublished != nil {
		e.observer.tell(e.opts.Hooks.OnPublished, it.event())
	}
}

// failed decides what an error means for it.
func (e *engine) failed(it *item, err error, c *call) {
	if n := it.next; n != nil && n.state == itemSent {
		n.behind = true // its error is ours
	}
	class := classify(err)
	e.tel.failed(e.base, it.route, class, err)
	if errors.Is(err, core.ErrMisconfigured) && !e.worked.routes[it.route.Name] {
		e.fail(core.Within("waybill/relay: route "+it.route.Name, err))
	}
	switch class {
	case core.ClassOutage:
		if !e.stopping {
			e.outage(it, err, c.generation)
		}
		e.releaseSent(it)
		e.cut(it)
	case core.ClassPermanent:
		reason := core.ReasonOf(err)
		if reason == core.ReasonNone {
			reason = core.ReasonRejected
		}
		e.abandon(it, reason, err)
	case core.ClassRejected, core.ClassUnknown:
		e.rejected(it, err, c)
	}
}

// classify is core.ClassOf with what only the relay knows: the end of a call's context is a result that never came, and
// what was once right and is now misconfigured will be right again.
func classify(err error) core.Class {
	class := core.ClassOf(err)
	switch {
	case errors.Is(err, core.ErrUnroutable) && class != core.ClassOutage:
		return core.ClassRejected
	case errors.Is(err, core.ErrMisconfigured):
		return core.ClassOutage
	case class == core.ClassUnknown && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, core.ErrClosed)):
		return core.ClassOutage
	}
	return class
}

// rejected plans the next attempt, or gives up.
func (e *engine) rejected(it *item, err error, c *call) {
	policy := it.route.Backoff
	if errors.Is(err, core.ErrUnroutable) {
		// After a long outage all that waited is old at its first attempt.
		if h := e.opts.UnroutableHorizon; h < 0 || e.age(it) >= h && it.attempt() >= core.DefaultBackoffAttempts {
			e.abandon(it, core.ReasonUnroutable, err)
			return
		}
		policy = &it.route.unroute
	}
	p, asked := c.plans[it]
	if !asked {
		p.in, p.again, p.broken = policy.Next(it.attempt(), err)
	}
	in, again, broken := p.in, p.again, p.broken
	if !again {
		e.abandon(it, core.ReasonAttempts, err)
		return
	}
	if broken != nil {
		e.warn(it, "backoff_broken", "retrying at the cap", broken)
	}
	var ce *core.Error
	if errors.As(err, &ce) && ce.After > 0 {
		in = ce.After
	}
	e.retry(it, err, in)
}

// age is the time since the record became due, as far as is known here.
func (e *engine) age(it *item) time.Duration { return it.rec.Age + e.now.Sub(it.batch.claimed) }

// unroutableBackoff spaces the attempts of unroutable records: as b, but without a bound of its own.
func unroutableBackoff(b *core.Backoff) core.Backoff {
	u := *b
	switch b.Kind {
	case core.BackoffExponential, core.BackoffLinear, core.BackoffConstant:
	case core.BackoffSchedule, core.BackoffNone, core.BackoffCustom:
		u = core.Backoff{}
	}
	u.Attempts = -1
	return u
}
