package relay

import (
	"context"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dispatch"
	"github.com/waybill-go/waybill/internal/obs"
)

// The files of this package are layers: a function calls what is in its own file or in one further down, and rarely
// anything further up. From the top: fleet, relay, health, pause, removedead, loop, once, idle, member, weights, feed,
// publish, unroutable, stop, wait, presence, upkeep, behindkey, bounds, overdue, outcome, breaker, engine, log, tasks,
// lease, telemetry, hooks, limit, unserved, record, options.

// engine is one Run or RunOnce. The loop goroutine owns everything in it. Blocking calls run as tasks; each returns its
// result as a function for the loop.
type engine struct {
	*Relay
	tasks
	once     bool
	base     context.Context //nolint:containedctx // the engine lives for one Run: its context without the cancellation
	now      time.Time       // of this step of the loop
	began    time.Time       // ages and lives of records count from then; see timed
	observer *observer
	limiter  obs.Limiter
	counts   Counts

	d      *dispatch.Dispatcher
	routes map[string]*route
	order  []*route // the same, in the order of the options
	groups []*group // routes that share tokens or a window; see weights.go

	member    member     // what the store says about this relay
	publishes publishes  // Publish calls
	waits     waits      // how the store wakes the relay
	presence  presence   // shows others that this process is there
	upkeep    upkeepWork // cleaning, and the look for unserved routes
	pass      pass       // the end of a RunOnce
	drain     drain      // the end of a run
}

// route is the state of one route, or of one lane of a route. Each lane is a route of its own to the store.
type route struct {
	served
	maxCall   int // records of one Publish, at most
	maxSize   int // of a message
	maxBytes  int // of the messages of one Publish; 0 = no limit
	pipelined bool
	transport string
	unroute   waybill.Backoff // of unroutable records
	labels    routeLabels
	lanes     []*route // the lanes of its route, itself included
	paused    bool
	awaited   bool      // the wait under way, or the latest one, includes it
	counted   bool      // its partitions are known
	queue     string    // a member that takes it for a queue
	sentAt    time.Time // of the latest confirm
	got       float64   // records sent in the limited group, divided by the weight: its virtual time
	out       int       // records in calls
	calls     int       // Publish calls in progress
	keys      keys
	breakers  breakers
	atBound   string // which bound of memory is reached; see noteBound
}

// held is how many records are in memory.
func (e *engine) held() (n int) {
	for _, rt := range e.order {
		st := e.d.Status(rt.Name)
		n += st.Ready + st.Out + st.Waiting
	}
	return n
}

// names are the names of the routes.
func (e *engine) names() []string {
	names := make([]string, len(e.order))
	for i, rt := range e.order {
		names[i] = rt.Name
	}
	return names
}

// newRoute returns the state of a route that has sent nothing.
func (e *engine) newRoute(o *served) *route {
	t := o.Publisher.Traits()
	rt := &route{
		served: *o, maxCall: e.opts.BatchSize, maxSize: t.MaxMessageBytes, maxBytes: t.MaxBatchBytes, transport: transportName(o.Publisher),
		pipelined: t.KeyOrder == core.KeyOrderPipelinedPrefix && !o.BlockAfterAbandon && o.Order == waybill.OrderPerKey,
		breakers:  breakers{topics: map[string]*breaker{}},
		keys:      keys{flying: map[string]int{}, behindKey: map[string][]*dispatch.Item{}},
	}
	if o.Order == waybill.OrderPerKey && !rt.pipelined { // a key goes on when the whole call has results
		rt.maxCall = max(rt.maxCall/2, 1)
	}
	if t.MaxBatch > 0 {
		rt.maxCall = min(rt.maxCall, t.MaxBatch)
	}
	if rt.Backoff == nil {
		rt.Backoff = &waybill.Backoff{}
	}
	rt.unroute = unroutableBackoff(rt.Backoff)
	rt.breakers.checker, _ = core.As[core.Checker](o.Publisher)
	rt.labels = e.tel.routeLabels(e.base, o.Name, rt.transport, core.DescriptionOf(o.Publisher))
	return rt
}

// timeout is context.WithTimeout, at least a millisecond.
func (e *engine) timeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, max(d, time.Millisecond))
}
