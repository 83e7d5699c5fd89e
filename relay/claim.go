package relay

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// maxHasty is how many claims in a row may bring nothing and follow each other at once. From then on they are PollMin
// apart, whoever asks for them: the wake-ups of a store, or timers of records that others are about to take.
const maxHasty = 4

// claim starts a claim if there is reason and room for one, and returns when to look again.
func (e *engine) claim() time.Time {
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
	rt, next := e.nextProbe()
	if rt != nil {
		req.Routes, req.MaxRecords = []core.RouteOrder{rt.claimOrder((*breaker).barsProbe)}, 1
		e.startClaim(req, rt.unit, rt)
		return time.Time{}
	}
	if e.once && e.opts.MaxBatches > 0 && e.batches >= e.opts.MaxBatches {
		return time.Time{}
	}
	for _, u := range e.units {
		if !u.suspects {
			continue
		}
		if at, ok := u.affords(e.now); !ok { // meanwhile it would hold up all others
			next = earliest(next, at)
			continue
		}
		if e.now.Before(u.wakeAt) {
			return u.wakeAt
		}
		if e.held > 0 {
			return time.Time{} // drain first
		}
		req.Alone, req.MaxRecords = true, 1
		if at := e.plan(u, &req); len(req.Routes) > 0 || !at.IsZero() {
			e.startPlanned(req, u)
			return at
		}
		u.suspects, req.Alone, req.MaxRecords = false, false, e.opts.BatchSize // all its routes are barred; the next claim sees it again
	}
	for i := range e.units { // in turn, so that none keeps the others from claiming
		u := e.units[(e.nextUnit+i)%len(e.units)]
		at := e.plan(u, &req)
		if e.startPlanned(req, u) {
			e.nextUnit = (e.nextUnit + i + 1) % len(e.units)
			return time.Time{}
		}
		req.MaxRecords = e.opts.BatchSize
		next = earliest(next, at)
	}
	return next
}

// startPlanned starts a planned claim, if there is anything to claim.
func (e *engine) startPlanned(req core.ClaimRequest, u *unit) bool {
	if len(req.Routes) == 0 {
		return false
	}
	if e.waiter == nil && !u.wakeAt.IsZero() && u.empties > 0 {
		e.tel.woke(e.base, core.WakePoll)
	}
	e.startClaim(req, u, nil)
	return true
}

// newSession is for when the store may hold leases of this engine that the engine does not know of, or knows wrongly: they
// must hold back what follows them, as another relay's do.
func (e *engine) newSession() { e.session = rand.Int64() }

// nextProbe returns a route that wants to try one record and may send it soon. If there is none, it returns when to look
// again.
func (e *engine) nextProbe() (probe *route, next time.Time) {
	for _, rt := range e.order {
		if !rt.probing() {
			continue
		}
		at, ok := rt.unit.affords(e.now)
		if ok {
			return rt, time.Time{}
		}
		next = earliest(next, at)
	}
	return nil, next
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
func (e *engine) startClaim(req core.ClaimRequest, u *unit, probe *route) {
	ctx, cancel := e.timeout(e.base, e.opts.Lease/2)
	e.claiming, e.cancelClaim, e.heldAtClaim, u.wokenBy = true, cancel, e.held > 0, time.Time{}
	sent := e.now
	e.async(func() func() {
		defer cancel()
		var claim core.Claim
		err := guardErr("claim", func() (err error) {
			claim, err = e.store.Claim(ctx, req)
			return err
		})
		return func() { e.claimed(req, u, probe, claim, err, sent) }
	})
}

// claimed takes in the answer to a claim.
func (e *engine) claimed(req core.ClaimRequest, u *unit, probe *route, claim core.Claim, err error, sent time.Time) {
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
	e.worked.claim, e.claimFails, e.claimedAt = true, 0, e.now
	n := len(claim.Records)
	e.counts.Claimed += n
	e.log.Debug("claimed", "event", "claim", "records", n, "more", claim.More, "alone", req.Alone, "next_in", claim.NextIn)
	if probe != nil {
		u.wakeAt = e.now
	} else {
		e.progress(n)
		u.suspects, e.solo = claim.Suspects && !req.Alone, req.Alone && n > 0
		e.rest(u, &req, &claim, sent)
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
func (e *engine) rest(u *unit, req *core.ClaimRequest, claim *core.Claim, sent time.Time) {
	u.empties++
	switch gap := sent.Sub(u.lastClaim); {
	case len(claim.Records) > 0:
		u.empties, u.hasty = 0, 0
	case gap < e.opts.PollMin/2:
		u.hasty++
	case gap > 4*e.opts.PollMin:
		u.hasty = 0
	}
	u.lastClaim = sent
	floor := time.Duration(0)
	if u.hasty > maxHasty {
		floor = jitter(e.opts.PollMin)
	}
	pause := floor
	if u.weighted && !req.Alone && e.account(req, claim) && !claim.Suspects {
		pause = jitter(e.opts.PollMin) // busy routes are claimed when they have room; this is for the others
	}
	if !claim.More && !claim.Suspects && !req.Alone { // nothing is due
		pause = e.opts.PollMax
		if e.waiter == nil || e.waitFails > 0 {
			pause = (&core.Backoff{Base: e.opts.PollMin, Cap: e.opts.PollMax}).Delay(u.empties)
		}
		pause = jitter(pause)
		if claim.NextIn >= 0 {
			pause = min(pause, max(claim.NextIn, floor, time.Millisecond))
		}
	}
	u.wakeAt = e.now.Add(pause)
	if !u.wokenBy.IsZero() && u.wokenBy.Before(u.wakeAt) {
		u.wakeAt = u.wokenBy
	}
}

// jitter shortens d by up to a quarter, so that relays do not poll in step.
func jitter(d time.Duration) time.Duration { return d - rand.N(d/4+1) }

func (e *engine) claimFailed(err error) {
	e.newSession() // it may have been committed
	if e.stopping {
		return
	}
	if e.once || errors.Is(err, core.ErrMisconfigured) && !e.worked.claim {
		e.fail(core.Within("waybill/relay: store", err))
		return
	}
	if e.claimFails++; e.claimFails == 1 {
		e.downSince = e.now
	}
	e.storeErr = core.ErrorText(err)
	backoff := core.Backoff{Base: 2 * e.opts.PollMin, Cap: max(e.opts.PollMax, 2*e.opts.PollMin), Attempts: -1}
	d, _, _ := backoff.Next(e.claimFails, err)
	e.claimAt = e.now.Add(d)
	for _, u := range e.units {
		u.wakeAt = time.Time{}
	}
	e.warn(nil, "store_unavailable", "claiming failed; trying again", err, "class", core.ClassOf(err).String(), "retry_in", d)
}

// wait asks the store to wake the relay, if it is idle and the store can.
func (e *engine) wait() (next time.Time) {
	if e.waiter == nil || e.waited || e.once || e.stopping || e.claiming || e.settleDown || e.now.Before(e.claimAt) {
		return time.Time{}
	}
	until, ok := e.idleUntil()
	if !ok || e.waiting {
		return time.Time{}
	}
	if e.now.Before(e.waitAt) {
		return e.waitAt
	}
	ctx, cancel := context.WithCancel(e.base)
	e.waiting, e.cancelWait = true, cancel
	limit := until.Sub(e.now)
	names := e.names
	if e.unawaited > 0 {
		names = make([]string, 0, len(e.order))
		for _, rt := range e.order {
			if rt.awaited {
				names = append(names, rt.Name)
			}
		}
	}
	e.async(func() func() {
		var cause core.WakeCause
		err := guardErr("wait", func() (err error) {
			cause, err = e.waiter.Wait(ctx, names, limit)
			return err
		})
		if ctx.Err() != nil {
			cause = core.WakeStop
		} else if cause == core.WakeStop { // nobody has stopped it
			cause = core.WakePoll
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
		e.wakeAll(e.now.Add(jitter(e.opts.PollMin)))
		e.warn(nil, "polling", "the store cannot wake the relay; polling meanwhile", err)
		return
	}
	e.waitFails, e.waited = 0, e.now.Before(until)
	e.tel.woke(e.base, cause)
	switch {
	case cause == core.WakeTimer && !e.now.Before(until): // our own timer claims then, or did
	default:
		for _, u := range e.units {
			if at := e.now; u.hasty > maxHasty {
				e.wakeBy(u, at.Add(jitter(e.opts.PollMin)))
			} else {
				e.wakeBy(u, at)
			}
		}
	}
}

// wakeAll makes the next claims happen at t, if they were planned for later.
func (e *engine) wakeAll(t time.Time) {
	for _, u := range e.units {
		e.wakeBy(u, t)
	}
}

// idleUntil returns until when nothing is to be claimed unless the store has news, or false if there is something to claim
// or nothing to wait for. It marks the routes to wait for; if a wait in progress lacks one of them, that wait is ended.
func (e *engine) idleUntil() (until time.Time, ok bool) {
	for _, u := range e.units {
		waits := u.limit == nil
		if !waits {
			n, _ := u.limit.room(e.now, u.unsent(), e.opts.BatchSize)
			waits = n > 0
		}
		some := false
		for _, rt := range u.routes {
			if !waits || !rt.idle() {
				if rt.awaited && !e.waiting {
					rt.awaited = false
					e.unawaited++
				}
				continue
			}
			some = true
			if rt.awaited {
				continue
			}
			if e.waiting {
				e.cancelWait()
				return time.Time{}, false
			}
			rt.awaited = true
			e.unawaited--
		}
		if some {
			if !e.now.Before(u.wakeAt) {
				return time.Time{}, false
			}
			until = earliest(until, u.wakeAt)
		}
	}
	return until, !until.IsZero()
}
