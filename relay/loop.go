package relay

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dispatch"
	"github.com/waybill-go/waybill/internal/chance"
)

// One goroutine owns the engine: all state that is not behind a lock of its own. It blocks in one select. Calls of the
// store, the publisher and the application run beside it, and hand back a function that the loop runs: so a result
// changes the state in one place, in one order, without a lock. After each event step starts everything that may start,
// and tells when time alone changes the answer.

// minPause keeps the loop from spinning if the dispatcher wants to go on at once.
const minPause = time.Millisecond

// newEngine returns the engine of one Run.
func newEngine(ctx context.Context, r *Relay, once bool) *engine {
	e := &engine{
		Relay: r, tasks: newTasks(), once: once, observer: newObserver(r.opts.Hooks, r.log), routes: map[string]*route{},
		member: member{lease: &lease{}, failing: map[dispatch.CallKind]*trouble{}}, publishes: publishes{inFlight: map[*call]struct{}{}},
	}
	e.now = time.Now()
	e.began = e.now
	e.base = context.WithoutCancel(ctx)
	e.drain.sendCtx, e.drain.stopSend = context.WithCancel(e.base)
	e.waits.waiter, _ = core.As[core.Waiter](r.store)
	e.presence.store, _ = core.As[core.Presence](r.store)
	window := r.opts.Window * r.opts.BatchSize
	o := dispatch.Options{
		Name: r.opts.Name, NewSession: func() core.Session { return core.Session(chance.N(int64(1<<62)) + 1) }, Lease: r.opts.Lease,
		LivesFrom: e.began, Window: window, Batch: min(window, maxRead),
		Bytes: r.opts.bytes(), PollMin: r.opts.PollMin, PollMax: r.opts.PollMax,
	}
	if r.opts.Pacing == PacingSaving && !once {
		o.ReadEvery, o.Gather = savingRead, savingSettle
	}
	for i := range r.routes {
		rt := e.newRoute(&r.routes[i])
		e.routes[rt.Name] = rt
		e.order = append(e.order, rt)
		dr := dispatch.Route{Name: rt.Name, Order: rt.Order, Blocks: rt.BlockAfterAbandon, Partitions: rt.Partitions}
		if rt.pipelined {
			dr.Pipelined = rt.maxCall
		}
		o.Routes = append(o.Routes, dr)
	}
	e.groups = newGroups(e.order, r.limits)
	e.d = dispatch.New(o)
	e.startUpkeep()
	return e
}

// run is the loop: it starts what may start, and then takes the next result, request or hint, the end of ctx, or the
// next point in time. The end of ctx counts once; the loop then goes on until the stop is finished.
func (e *engine) run(ctx context.Context) error {
	defer e.end()
	timer := time.NewTimer(0)
	defer timer.Stop()
	done := ctx.Done()
	for {
		e.now = time.Now()
		next := e.step()
		if e.finished() {
			return e.drain.fatal
		}
		var tick <-chan time.Time
		if !next.IsZero() {
			timer.Reset(max(time.Until(next), 0))
			tick = timer.C
		}
		select {
		case then := <-e.results:
			e.now = time.Now()
			e.inProgress--
			then()
		case f := <-e.requests:
			e.now = time.Now()
			f()
		case <-e.wakes:
			e.now = time.Now()
			e.hint(nil)
		case <-done:
			done = nil
			e.now = time.Now()
			e.stop()
		case <-tick:
		}
	}
}

// step starts everything that may start now and returns when to look again; zero = only after a result. The order:
//
//  1. The due steps of a stop.
//  2. Breakers: one that becomes half open lets a record go in this step. The dispatcher hears which routes are able.
//  3. Hand-outs: they make room in memory. The dispatcher hears which routes hand out nothing.
//  4. Calls of the store, with all that the steps before have changed.
//  5. The wait for a wake-up: only for routes that have no read due or under way, so it comes after the calls.
//  6. The token of the process, the end of a RunOnce, or of a relay that is idle, overdue calls, upkeep.
func (e *engine) step() (next time.Time) {
	if e.drain.begun {
		next = e.stopStep()
	}
	for _, rt := range e.order {
		next = earliest(next, e.stepBreakers(rt))
		e.noteBound(rt)
	}
	for _, g := range e.groups {
		at := e.handOut(g)
		next = earliest(next, at)
		for _, rt := range g.routes {
			e.d.SetHandingOut(rt.Name, !rt.handOutBlocked() && at.IsZero())
		}
	}
	next = earliest(next, e.callStore())
	next = earliest(next, e.wait())
	next = earliest(next, e.keepPresence())
	next = earliest(next, e.stepOnce())
	next = earliest(next, e.stepIdle())
	next = earliest(next, e.stepOverdue())
	return earliest(next, e.keepUp())
}

// finished reports whether the loop has nothing left to do: the member has left, or could not, and every call is back.
// At the final limit it does not wait for either.
func (e *engine) finished() bool {
	if !e.drain.begun {
		return false
	}
	return (e.d.Left() || e.drain.noLeave) && e.inProgress == 0 || !e.now.Before(e.drain.finalAt)
}

// end releases the run's resources, and reports the records that are left. Hooks get a moment to take the last events.
func (e *engine) end() {
	e.drain.stopSend()
	e.stopUpkeep()
	e.presence.leave()
	e.member.lease.end()
	close(e.closed)
	for _, rt := range e.order {
		e.tel.breaker(e.base, rt, -rt.openBreakers())
	}
	if n := e.d.Out() + e.d.Unsettled(); n > 0 {
		e.log.Warn("stopped with records unsettled; they come back when the lease ends", "event", "relay.stop_unsettled", "records", n)
	}
	e.observer.close(stopGrace)
	e.ended(e.drain.fatal, e.once)
}
