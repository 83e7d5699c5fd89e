package relay

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dispatch"
)

const (
	// stopGrace is how long after the drain limit cancelled publishes may still report.
	stopGrace = time.Second
	// stopSettle bounds the settles after that, and the leave.
	stopSettle = 5 * time.Second
	// minPause keeps the loop from spinning, whatever the dispatcher says.
	minPause = time.Millisecond
)

// engine is one Run or RunOnce. Everything in it belongs to the loop goroutine; blocking calls run in async and hand
// their result back as a function for the loop.
type engine struct {
	*Relay
	once     bool
	base     context.Context //nolint:containedctx // the engine lives for one Run: its context without the cancellation
	sendCtx  context.Context //nolint:containedctx // base, cancelled at the drain limit
	stopSend context.CancelFunc
	results  chan func()        // what calls came to, to be run by the loop
	work     chan func() func() // what an idle goroutine takes up; see async
	asks     chan func()        // what others want done on the loop
	gone     chan struct{}      // closed when nobody reads results any more
	running  int                // calls in progress
	now      time.Time          // of this turn of the loop
	began    time.Time          // what ages and lives of records count from; see timed
	log      *slog.Logger
	observer *observer
	counts   Counts
	limiter  limiter

	d      *dispatch.Dispatcher
	routes map[string]*route
	order  []*route
	names  []string
	groups []*group

	// Membership.
	session  core.Session // as the loop knows it
	lease    *lease
	failing  map[string]*trouble // by method of the store
	answered time.Time           // the latest answer of the store
	pass

	// Publishing.
	calls    map[*call]struct{}
	free     []*call
	openings uint64 // breakers opened so far

	waits
	presence presence
	upkeep

	// Stopping.
	stopping  bool
	noLeave   bool // the store did not take the leave
	fatal     error
	drainAt   time.Time // cancel publishes
	givenUpAt time.Time // stop waiting for them
	finalAt   time.Time // stop settling
}

// route is the state of one route, or of one lane of a route.
type route struct {
	served
	maxCall   int // records of one Publish
	maxBody   int
	pipelined bool
	transport string
	checker   core.Checker
	checking  bool
	kin       []*route // the lanes of its route, itself included
	count     float64  // what it got, divided by its share
	paused    bool
	awaited   bool      // the wait in progress is about it too
	counted   bool      // its units are known
	sentAt    time.Time // of the latest confirm
	out       int       // records in calls
	calls     int       // Publish calls in progress
	flying    map[string]int
	parked    map[string][]*dispatch.Item
	breaker   breaker
	topics    map[string]*breaker
	unroute   waybill.Backoff // of unroutable records
	labels    routeLabels
}

func newEngine(ctx context.Context, r *Relay, once bool) *engine {
	e := &engine{
		Relay: r, once: once, log: r.log, results: make(chan func()), work: make(chan func() func()), asks: make(chan func()), gone: make(chan struct{}),
		routes: map[string]*route{}, calls: map[*call]struct{}{}, limiter: limiter{}, observer: newObserver(r.opts.Hooks, r.log), failing: map[string]*trouble{},
	}
	e.now = time.Now()
	e.began = e.now
	e.base = context.WithoutCancel(ctx)
	e.sendCtx, e.stopSend = context.WithCancel(e.base)
	e.lease = &lease{}
	e.waiter, _ = core.As[core.Waiter](r.store)
	e.presence.store, _ = core.As[core.Presence](r.store)
	o := dispatch.Options{
		Name: r.opts.Name, NewSession: func() core.Session { return core.Session(rand.Int64N(1<<62) + 1) }, Lease: r.opts.Lease,
		Window: r.opts.Window * r.opts.BatchSize, Batch: r.opts.BatchSize, Bytes: r.opts.bytes(), PollMin: r.opts.PollMin, PollMax: r.opts.PollMax,
	}
	for i := range r.routes {
		rt := e.newRoute(&r.routes[i])
		e.routes[rt.Name] = rt
		e.order = append(e.order, rt)
		e.names = append(e.names, rt.Name)
		dr := dispatch.Route{Name: rt.Name, Order: rt.Order, Blocks: rt.BlockAfterAbandon, Units: rt.Units}
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

func (e *engine) newRoute(o *served) *route {
	t := o.Publisher.Traits()
	rt := &route{
		served: *o, maxCall: e.opts.BatchSize, maxBody: t.MaxBodyBytes, transport: transportName(o.Publisher),
		pipelined: t.KeyOrder == core.KeyOrderPipelinedPrefix && !o.BlockAfterAbandon && o.Order == waybill.OrderPerKey,
		topics:    map[string]*breaker{}, flying: map[string]int{}, parked: map[string][]*dispatch.Item{},
	}
	if o.Order == waybill.OrderPerKey && !rt.pipelined { // a key goes on when the whole call has its results
		rt.maxCall = max(rt.maxCall/2, 1)
	}
	if t.MaxBatch > 0 {
		rt.maxCall = min(rt.maxCall, t.MaxBatch)
	}
	if rt.Backoff == nil {
		rt.Backoff = &waybill.Backoff{}
	}
	rt.unroute = unroutableBackoff(rt.Backoff)
	rt.checker, _ = core.As[core.Checker](o.Publisher)
	rt.labels = e.tel.routeLabels(e.base, o.Name, rt.transport, core.DescriptionOf(o.Publisher))
	return rt
}

// run is the loop: start what may start, then take the next result, the end of ctx, or the next point in time.
func (e *engine) run(ctx context.Context) error {
	defer e.end()
	timer := time.NewTimer(0)
	defer timer.Stop()
	done := ctx.Done()
	for {
		e.now = time.Now()
		next := e.turn()
		if e.finished() {
			return e.fatal
		}
		var tick <-chan time.Time
		if !next.IsZero() {
			timer.Reset(max(time.Until(next), 0))
			tick = timer.C
		}
		select {
		case then := <-e.results:
			e.now = time.Now()
			e.running--
			then()
		case f := <-e.asks:
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

// turn starts everything that may start now and returns when to look again; zero = only after a result.
func (e *engine) turn() (next time.Time) {
	if e.stopping {
		next = e.stopTurn()
	}
	for _, rt := range e.order {
		next = earliest(next, e.tick(rt))
	}
	for _, g := range e.groups {
		at := e.handOut(g)
		next = earliest(next, at)
		for _, rt := range g.routes {
			e.d.SetHanding(rt.Name, !rt.barred() && at.IsZero())
		}
	}
	next = earliest(next, e.callStore())
	next = earliest(next, e.wait())
	next = earliest(next, e.attend())
	next = earliest(next, e.endPass())
	return earliest(next, e.keepUp())
}

// finished reports whether the loop has nothing left to do.
func (e *engine) finished() bool {
	if !e.stopping {
		return false
	}
	return (e.d.Left() || e.noLeave) && e.running == 0 || !e.now.Before(e.finalAt)
}

// async runs work beside the loop and then, on the loop, what it returns. It runs on a goroutine that has done so
// before, if one is idle: its stack has grown already.
func (e *engine) async(work func() (then func())) {
	e.running++
	select {
	case e.work <- work:
	default:
		go e.worker(work)
	}
}

// worker runs work, and what else comes in e.work, until the engine is gone.
func (e *engine) worker(work func() (then func())) {
	for {
		then := work()
		select {
		case e.results <- then:
		case <-e.gone:
			return
		}
		select {
		case work = <-e.work:
		case <-e.gone:
			return
		}
	}
}

// timeout is context.WithTimeout, at least a millisecond.
func (e *engine) timeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, max(d, time.Millisecond))
}

// stop begins the end: nothing more is read or sent. When what is out has an outcome that is stored, the member leaves.
func (e *engine) stop() {
	if e.stopping {
		return
	}
	e.stopping = true
	e.drainAt = e.now.Add(max(e.opts.DrainTimeout, 0))
	e.givenUpAt = e.drainAt.Add(stopGrace)
	e.finalAt = e.givenUpAt.Add(stopSettle)
	e.endWait()
	e.stopUpkeep()
	e.d.Stop()
	for _, rt := range e.order {
		e.unpark(rt)
	}
}

// stopTurn does what is due while stopping and returns what comes next.
func (e *engine) stopTurn() time.Time {
	if len(e.calls) == 0 {
		e.finalAt = earliest(e.finalAt, e.now.Add(stopSettle))
	}
	switch {
	case e.now.Before(e.drainAt):
		return earliest(e.drainAt, e.finalAt)
	case e.now.Before(e.givenUpAt):
		e.stopSend()
		return earliest(e.givenUpAt, e.finalAt)
	}
	for c := range e.calls { // no result came: not sent as far as is known
		for _, item := range c.items {
			e.release(item, true)
		}
		delete(e.calls, c)
		e.running--
		c.lost = true
	}
	return e.finalAt
}

// fail ends the run with err.
func (e *engine) fail(err error) {
	if e.fatal == nil {
		e.fatal = err
	}
	e.stop()
}

func (e *engine) end() {
	e.stopSend()
	e.stopUpkeep()
	e.presence.leave()
	e.lease.end()
	close(e.gone)
	for _, rt := range e.order {
		e.tel.breaker(e.base, rt, -rt.openBreakers())
	}
	if n := e.d.Out() + e.d.Unsettled(); n > 0 {
		e.log.Warn("stopped with records unsettled; they come back when the lease ends", "event", "stop_unsettled", "records", n)
	}
	e.observer.close(stopGrace)
	e.ended(e.fatal, e.once)
}

// held is how many records are in memory.
func (e *engine) held() (n int) {
	for _, rt := range e.order {
		st := e.d.Status(rt.Name)
		n += st.Ready + st.Out + st.Waiting
	}
	return n
}

// warn logs a warning about it (nil = about no record in particular), unless there were too many like it of late.
func (e *engine) warn(item *dispatch.Item, event, text string, err error, more ...any) {
	key := event
	if item != nil {
		key += item.Route()
	}
	suppressed, ok := e.limiter.allow(e.now, key)
	if !ok {
		return
	}
	args := []any{"event", event}
	if item != nil {
		args = append(args, "route", item.Route(), "id", item.Record.Envelope.ID, "attempt", attempt(item), "topic", item.Record.Envelope.Topic)
	}
	args = append(append(args, more...), "error", core.ErrorText(err))
	if suppressed > 0 {
		args = append(args, "suppressed", suppressed)
	}
	e.log.Warn(text, args...)
}

// earliest returns the earlier of two times, where zero means never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
