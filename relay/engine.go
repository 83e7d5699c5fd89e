package relay

import (
	"context"
	"log/slog"
	"time"

	"github.com/waybill-go/waybill/core"
)

const (
	// stopGrace is how long after the drain limit cancelled publishes may still report.
	stopGrace = time.Second
	// stopSettle bounds the settles after that.
	stopSettle = 5 * time.Second
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
	log      *slog.Logger
	observer *observer
	counts   Counts
	limiter  limiter

	routes map[string]*route
	order  []*route
	names  []string

	// Claiming.
	session     int64 // see core.ClaimRequest
	claiming    bool
	cancelClaim context.CancelFunc
	claimFails  int
	claimAt     time.Time // not before: back-off after an error
	units       []*unit
	nextUnit    int       // the unit whose turn it is
	heldAtClaim bool      // the last claim was made while keyed records were held, which may have hidden others
	solo        bool      // a suspect is held, alone
	batches     int       // claimed in this pass
	passed      Counts    // counts when the pass began
	claimedAt   time.Time // the latest answer
	downSince   time.Time // of the first failure in a row
	storeErr    string    // the latest failure
	waiter      core.Waiter
	waiting     bool
	waited      bool // it was woken, and has not claimed since
	cancelWait  context.CancelFunc
	waitFails   int
	waitAt      time.Time
	unawaited   int // routes that the wait is not about

	// What is held.
	held     int // claimed and not settled
	open     []*batch
	lanes    map[laneKey]lane // those of which something is held
	breaks   int              // broken records with a key that are held; the store must know of them before the next claim
	limbo    map[laneKey]int  // records in limbo by lane
	severed  map[laneKey]bool // lanes whose broken record was let go while a claim was in progress
	calls    map[*call]struct{}
	free     []*call
	openings uint64 // breakers opened so far

	// Settling.
	pending, settling settles
	busySettling      bool
	settleAt          time.Time // not before: back-off after an error
	settleBy          time.Time // what is pending may wait for more until then
	settleFails       int
	settleDown        bool
	settleSince       time.Time // of the first failure in a row
	extender          core.LeaseExtender
	extending         bool

	upkeep

	// Stopping.
	stopping  bool
	fatal     error
	stoppedAt time.Time
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
	unit      *unit
	kin       []*route // the lanes of its route, itself included
	busy      bool     // the latest claim left something behind; in weighted units only
	count     float64  // what it got, divided by its share
	got       int      // in the present claim
	paused    bool
	awaited   bool      // the latest wait is about it too
	sentAt    time.Time // of the latest confirm
	held      int       // claimed and not settled
	unsent    int       // of these, not yet sent
	calls     int       // Publish calls in progress
	ready     []*item   // heads of lanes, to be sent
	starved   bool      // left out of a claim for want of room
	breaker   breaker
	topics    map[string]*breaker
	unroute   core.Backoff // of unroutable records
	labels    routeLabels
}

func newEngine(ctx context.Context, r *Relay, once bool) *engine {
	e := &engine{
		Relay: r, once: once, log: r.log, results: make(chan func()), work: make(chan func() func()), asks: make(chan func()), gone: make(chan struct{}), now: time.Now(),
		routes: map[string]*route{}, lanes: map[laneKey]lane{}, limbo: map[laneKey]int{}, severed: map[laneKey]bool{}, calls: map[*call]struct{}{}, limiter: limiter{}, observer: newObserver(r.opts.Hooks, r.log),
	}
	e.newSession()
	e.base = context.WithoutCancel(ctx)
	e.sendCtx, e.stopSend = context.WithCancel(e.base)
	e.waiter, _ = core.As[core.Waiter](r.store)
	e.extender, _ = core.As[core.LeaseExtender](r.store)
	for _, o := range r.routes {
		t := o.Publisher.Traits()
		rt := &route{
			served: o, awaited: true, maxCall: r.opts.BatchSize, maxBody: t.MaxBodyBytes, pipelined: t.KeyOrder == core.KeyOrderPipelinedPrefix && !o.BlockAfterAbandon,
			topics: map[string]*breaker{}, transport: transportName(o.Publisher),
		}
		if t.MaxBatch > 0 {
			rt.maxCall = min(rt.maxCall, t.MaxBatch)
		}
		if rt.Backoff == nil {
			rt.Backoff = &core.Backoff{}
		}
		rt.unroute = unroutableBackoff(rt.Backoff)
		rt.checker, _ = core.As[core.Checker](o.Publisher)
		rt.labels = r.tel.routeLabels(o.Name, rt.transport)
		e.routes[o.Name] = rt
		e.order = append(e.order, rt)
		e.names = append(e.names, o.Name)
	}
	e.units = newUnits(e.order, r.limits)
	e.startUpkeep()
	return e
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
		if rt.unit.limit == nil {
			e.dispatch(rt)
		}
	}
	for _, u := range e.units {
		if u.limit != nil {
			next = earliest(next, e.pace(u))
		}
	}
	next = earliest(next, e.extendLeases())
	next = earliest(next, e.settle())
	next = earliest(next, e.claim())
	next = earliest(next, e.wait())
	return earliest(next, e.keepUp())
}

// finished reports whether the loop has nothing left to do.
func (e *engine) finished() bool {
	if e.stopping && !e.finalAt.IsZero() && !e.now.Before(e.finalAt) {
		return true
	}
	idle := e.running == 0 && e.pending.len() == 0
	if e.stopping {
		return idle
	}
	return e.once && idle && !e.saving() // a turn has just passed and started nothing
}

// async runs work beside the loop and then, on the loop, what it returns. It runs on a goroutine that has done so before, if
// one is idle: its stack has grown already.
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

// stop begins the end: nothing more is claimed or sent; what was not sent goes back.
func (e *engine) stop() {
	if e.stopping {
		return
	}
	e.stopping = true
	e.stoppedAt = e.now
	e.drainAt = e.now.Add(max(e.opts.DrainTimeout, 0))
	e.givenUpAt = e.drainAt.Add(stopGrace)
	e.finalAt = e.givenUpAt.Add(stopSettle)
	if e.cancelWait != nil {
		e.cancelWait()
	}
	e.stopUpkeep()
	for _, rt := range e.order {
		rt.ready = nil
	}
	for _, b := range e.open {
		for i := range b.items {
			if it := &b.items[i]; it.state == itemWaiting {
				e.release(it)
			}
		}
	}
}

// stopTurn does what is due while stopping and returns what comes next.
func (e *engine) stopTurn() time.Time {
	switch {
	case e.now.Before(e.drainAt):
		if e.cancelClaim != nil { // its records would only be released; but let a claim that works answer
			if limit := e.stoppedAt.Add(stopGrace); e.now.Before(limit) {
				return earliest(limit, e.drainAt)
			}
			e.cancelClaim()
		}
		return e.drainAt
	case e.now.Before(e.givenUpAt):
		e.stopSend()
		if e.cancelClaim != nil {
			e.cancelClaim()
		}
		return e.givenUpAt
	}
	for c := range e.calls { // no result came: not sent as far as is known
		for _, it := range c.items {
			if it.state == itemSent {
				e.releaseSent(it)
			}
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
	close(e.gone)
	for _, rt := range e.order {
		e.tel.breaker(e.base, rt, -rt.openBreakers())
	}
	if e.held > 0 {
		e.log.Warn("stopped with records unsettled; they come back when their leases end", "event", "stop_unsettled", "records", e.held)
	}
	e.observer.close(stopGrace)
	e.ended(e.fatal, e.once)
}

// warn logs a warning about it (nil = about no record in particular), unless there were too many like it of late.
func (e *engine) warn(it *item, event, text string, err error, more ...any) {
	key := event
	if it != nil {
		key += it.route.Name
	}
	suppressed, ok := e.limiter.allow(e.now, key)
	if !ok {
		return
	}
	args := []any{"event", event}
	if it != nil {
		args = append(args, "route", it.route.Name, "id", it.rec.Envelope.ID, "attempt", it.attempt(), "topic", it.rec.Envelope.Topic)
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
