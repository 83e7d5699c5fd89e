package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// maxHasty is how many claims in a row may bring nothing and follow each other at once. From then on they are PollMin
// apart, whoever asks for them: the wake-ups of a store, or timers of records that others are about to take.
const maxHasty = 4

// claim starts a claim if there is reason and room for one, and returns when to look again.
func (e *engine) claim() (next time.Time) {
	if e.stopping || e.claiming || e.settleDown || e.breaks > 0 {
		return time.Time{} // a result comes
	}
	if e.now.Before(e.claimAt) {
		return e.claimAt
	}
	req := core.ClaimRequest{Owner: e.opts.Name, Session: e.session, MaxRecords: e.opts.BatchSize, MaxBytes: max(e.opts.BatchBytes, 0), Lease: e.opts.Lease}
	if e.solo {
		if e.held > 0 {
			return time.Time{} // a suspect is on its way, alone
		}
		e.solo = false
	}
	if rt := e.nextProbe(); rt != nil {
		req.Routes, req.MaxRecords = []core.RouteOrder{rt.claimOrder((*breaker).barsProbe)}, 1
		e.startClaim(req, rt)
		return time.Time{}
	}
	if e.once && e.opts.MaxBatches > 0 && e.batches >= e.opts.MaxBatches {
		return time.Time{}
	}
	if e.now.Before(e.wakeAt) {
		return e.wakeAt
	}
	if e.alone {
		if e.held > 0 {
			return time.Time{} // drain first
		}
		req.Alone, req.MaxRecords = true, 1
	}
	if e.waiter == nil && !e.wakeAt.IsZero() && e.empties > 0 {
		e.tel.woke(e.base, core.WakePoll)
	}
	for _, rt := range e.order {
		if rt.starved = rt.held > (e.opts.Window-1)*e.opts.BatchSize; rt.starved || !rt.breaker.closed() {
			continue
		}
		req.Routes = append(req.Routes, rt.claimOrder((*breaker).bars))
	}
	if len(req.Routes) > 0 {
		e.startClaim(req, nil)
	}
	return time.Time{}
}

// newSession is for when the store may hold leases of this engine that the engine does not know of, or knows wrongly: they
// must hold back what follows them, as another relay's do.
func (e *engine) newSession() { e.session = rand.Int64() }

// nextProbe returns a route that wants to try one record.
func (e *engine) nextProbe() *route {
	for _, rt := range e.order {
		if rt.probing() {
			return rt
		}
	}
	return nil
}

// claimOrder is the route's part of a claim, without the topics whose breaker skips them.
func (rt *route) claimOrder(skip func(*breaker) bool) core.RouteOrder {
	o := core.RouteOrder{Route: rt.Name, Order: rt.Order, BlockAfterAbandon: rt.BlockAfterAbandon}
	for topic, b := range rt.topics {
		if skip(b) {
			o.SkipTopics = append(o.SkipTopics, topic)
		}
	}
	slices.Sort(o.SkipTopics)
	return o
}

// startClaim claims. The call outlives a stop for a moment, so that what it leased is known and handed back.
func (e *engine) startClaim(req core.ClaimRequest, probe *route) {
	ctx, cancel := e.timeout(e.base, e.opts.Lease/2)
	e.claiming, e.cancelClaim, e.heldAtClaim, e.wokenBy = true, cancel, e.held > 0, time.Time{}
	sent := e.now
	e.async(func() func() {
		defer cancel()
		var claim core.Claim
		err := guardErr("claim", func() (err error) {
			claim, err = e.store.Claim(ctx, req)
			return err
		})
		return func() { e.claimed(req, probe, claim, err, sent) }
	})
}

// claimed takes in the answer to a claim.
func (e *engine) claimed(req core.ClaimRequest, probe *route, claim core.Claim, err error, sent time.Time) {
	e.claiming, e.cancelClaim, e.waited = false, nil, false
	defer clear(e.severed)
	e.tel.claimed(e.base, e.now.Sub(sent))
	if err != nil {
		e.claimFailed(err)
		return
	}
	if e.claimFails > 0 {
		e.log.Info("the store answers again", "event", "store_available")
	}
	e.worked.claim, e.claimFails = true, 0
	n := len(claim.Records)
	e.counts.Claimed += n
	e.log.Debug("claimed", "event", "claim", "records", n, "more", claim.More, "alone", req.Alone, "next_in", claim.NextIn)
	if probe != nil {
		e.wakeAt = e.now
	} else {
		e.progress(n)
		e.alone, e.solo = claim.Suspects && !req.Alone, req.Alone && n > 0
		e.rest(&req, &claim, sent)
	}
	if n == 0 {
		if probe != nil {
			probe.probed(nil)
		}
		return
	}
	b := e.accept(claim.Records, sent, req.Session)
	if probe != nil {
		probe.probed(&b.items[0])
	}
}

// progress counts batches and reports every MaxBatches of them.
func (e *engine) progress(records int) {
	if records == 0 {
		return
	}
	if e.batches++; e.once || e.opts.MaxBatches <= 0 || e.batches < e.opts.MaxBatches {
		return
	}
	c, p := e.counts, e.passed
	e.log.Debug("progress", "event", "progress", "batches", e.batches, "claimed", c.Claimed-p.Claimed, "published", c.Published-p.Published,
		"failed", c.Failed-p.Failed, "abandoned", c.Abandoned-p.Abandoned, "released", c.Released-p.Released)
	e.batches, e.passed = 0, c
}

// rest decides when to claim next after claim.
func (e *engine) rest(req *core.ClaimRequest, claim *core.Claim, sent time.Time) {
	e.empties++
	switch gap := sent.Sub(e.lastClaim); {
	case len(claim.Records) > 0:
		e.empties, e.hasty = 0, 0
	case gap < e.opts.PollMin/2:
		e.hasty++
	case gap > 4*e.opts.PollMin:
		e.hasty = 0
	}
	e.lastClaim = sent
	floor := time.Duration(0)
	if e.hasty > maxHasty {
		floor = jitter(e.opts.PollMin)
	}
	pause := floor
	if !claim.More && !claim.Suspects && !req.Alone { // nothing is due
		pause = e.opts.PollMax
		if e.waiter == nil || e.waitFails > 0 {
			pause = min(e.opts.PollMin<<min(max(e.empties-1, 0), 20), e.opts.PollMax)
		}
		pause = jitter(pause)
		if claim.NextIn >= 0 {
			pause = min(pause, max(claim.NextIn, floor, time.Millisecond))
		}
	}
	e.wakeAt = e.now.Add(pause)
	if !e.wokenBy.IsZero() && e.wokenBy.Before(e.wakeAt) {
		e.wakeAt = e.wokenBy
	}
}

// jitter shortens d by up to a quarter, so that relays do not poll in step.
func jitter(d time.Duration) time.Duration { return d - rand.N(d/4+1) }

// wakeBy makes the next claim happen at t, if it was planned for later.
func (e *engine) wakeBy(t time.Time) {
	if t.Before(e.wakeAt) {
		e.wakeAt = t
	}
	if e.claiming { // its answer must not put this off
		e.wokenBy = earliest(e.wokenBy, t)
	}
}

func (e *engine) claimFailed(err error) {
	e.newSession() // it may have been committed
	if e.stopping {
		return
	}
	if e.once || errors.Is(err, core.ErrMisconfigured) && !e.worked.claim {
		e.fail(fmt.Errorf("waybill/relay: claim: %w", err))
		return
	}
	e.claimFails++
	backoff := core.Backoff{Base: 2 * e.opts.PollMin, Cap: max(e.opts.PollMax, 2*e.opts.PollMin), Attempts: -1}
	d, _, _ := backoff.Next(e.claimFails, err)
	e.claimAt, e.wakeAt = e.now.Add(d), time.Time{}
	e.warn(nil, "store_unavailable", "claiming failed; trying again", err, "class", core.ClassOf(err).String(), "retry_in", d)
}

// wait asks the store to wake the relay, if it is idle and the store can.
func (e *engine) wait() (next time.Time) {
	if e.waiter == nil || e.waiting || e.waited || e.once || e.stopping || e.claiming || e.settleDown || !e.now.Before(e.wakeAt) || e.now.Before(e.claimAt) {
		return time.Time{}
	}
	if e.now.Before(e.waitAt) {
		return e.waitAt
	}
	ctx, cancel := context.WithCancel(e.base)
	e.waiting, e.cancelWait = true, cancel
	until := e.wakeAt
	limit := until.Sub(e.now)
	e.async(func() func() {
		var cause core.WakeCause
		err := guardErr("wait", func() (err error) {
			cause, err = e.waiter.Wait(ctx, e.names, limit)
			return err
		})
		if ctx.Err() != nil {
			cause = core.WakeStop
		}
		cancel()
		return func() { e.woken(cause, err, until) }
	})
	return time.Time{}
}

func (e *engine) woken(cause core.WakeCause, err error, until time.Time) {
	e.waiting, e.cancelWait = false, nil
	if cause == core.WakeStop || e.stopping {
		return
	}
	if err != nil {
		e.waitFails++
		backoff := core.Backoff{Base: 2 * e.opts.PollMin, Cap: max(e.opts.PollMax, 2*e.opts.PollMin), Attempts: -1}
		d, _, _ := backoff.Next(e.waitFails, err)
		e.waitAt = e.now.Add(d)
		e.wakeBy(e.now.Add(jitter(e.opts.PollMin)))
		e.warn(nil, "polling", "the store cannot wake the relay; polling meanwhile", err)
		return
	}
	e.waitFails, e.waited = 0, e.now.Before(until)
	e.tel.woke(e.base, cause)
	switch {
	case cause == core.WakeTimer && !e.now.Before(until): // our own timer claims then, or did
	case e.hasty > maxHasty:
		e.wakeBy(e.now.Add(jitter(e.opts.PollMin)))
	default:
		e.wakeBy(e.now)
	}
}
