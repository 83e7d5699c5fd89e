package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dispatch"
	"github.com/waybill-go/waybill/internal/check"
	"github.com/waybill-go/waybill/internal/errtext"
)

// Relay moves messages from a store to publishers. Make one with New.
type Relay struct {
	store   core.OutboxStore
	opts    Options
	log     *slog.Logger
	tel     *telemetry
	running atomic.Bool
	checked bool           // a fleet has checked the publishers; the store says at the first call what is wrong
	routes  []served       // of opts, lanes spread out
	wanted  map[string]int // by name of a route of opts: the partitions asked for; absent = none were
	// cleanerName differs between relays.
	cleanerName string
	// limits are the token buckets of limited routes. Only a running engine touches them.
	limits map[string]*bucket

	wakes chan struct{} // see Wake

	mu      sync.Mutex      // guards paused, engine and lastErr
	paused  map[string]bool // by name of a served route
	engine  *engine         // the running one
	lastErr error           // the error that ended the latest run

	// worked notes what of the store and of the publishers has worked; see storeFails. Only a running engine
	// touches it.
	worked worked
}

// served is a route as the store knows it: a route of the options, or one of its lanes and sub-routes.
type served struct {
	Route
	base string // the name of the route in the options
	part int    // of the route, beside its other lanes and sub-routes
}

// spread returns routes as the store knows them.
func spread(routes []Route) []served {
	var out []served
	for _, r := range routes {
		names := []string{r.Name}
		for i := range r.SubRoutes {
			names = append(names, waybill.NthSubRoute(r.Name, i))
		}
		for _, name := range names {
			s := served{r, r.Name, 1}
			s.Name = name
			if !r.Lanes {
				out = append(out, s)
				continue
			}
			for _, l := range lanes[:] {
				s.Name, s.part = waybill.LaneRoute(name, l.lane), l.part
				out = append(out, s)
			}
		}
	}
	return out
}

// stored is how many routes the store knows for r.
func (r *Route) stored() int {
	n := 1 + min(max(r.SubRoutes, 0), waybill.MaxSubRoutes)
	if r.Lanes {
		n *= len(lanes)
	}
	return n
}

// worked has the methods of the store, and the publishers of routes, that have answered once.
type worked struct {
	store  map[dispatch.CallKind]bool
	routes map[string]bool
}

// Counts is what one pass did, in records.
type Counts struct {
	// HandedOut counts records that were taken up. Published counts confirms, Failed attempts that will be
	// repeated, Abandoned records given up, and Released records released at no cost.
	HandedOut, Published, Failed, Abandoned, Released int
}

// New returns a relay from store to publisher, or an [*waybill.InvalidError] that lists every problem of opts and every
// promise that the publishers do not make. publisher may be nil if every route has its own.
//
// Give a second relay of the process, or a table queue, a store value of its own, on the same pool: a [core.Waiter] has
// one waiter at a time.
func New(store core.OutboxStore, publisher core.Publisher, opts Options) (*Relay, error) {
	if check.Nil(store) {
		return nil, waybill.Invalid("waybill/relay: options", "store: is nil; give the outbox of a store")
	}
	wanted := map[string]int{}
	for i := range opts.Routes {
		if rt := &opts.Routes[i]; rt.Partitions != 0 {
			wanted[cmp.Or(rt.Name, waybill.DefaultRoute)] = rt.Partitions
		}
	}
	if _, wakes := core.As[core.Waiter](store); !wakes && opts.PollMin == 0 && opts.PollMax == 0 {
		opts.PollMin, opts.PollMax = UnwokenPollMin, UnwokenPollMax
	}
	opts = opts.withDefaults()
	for i := range opts.Routes {
		if check.Nil(opts.Routes[i].Publisher) {
			opts.Routes[i].Publisher = publisher
		}
	}
	opts.Logger = cmp.Or(opts.Logger, slog.Default())
	if err := waybill.Invalid("waybill/relay: options", append(opts.problems(), opts.promises()...)...); err != nil {
		return nil, err
	}
	// with the name only if it was set: the default one is different in every process
	tel, err := newTelemetry(&opts)
	if err != nil {
		return nil, fmt.Errorf("waybill/relay: metrics: %w", err)
	}
	if opts.Name == "" {
		opts.Name = ownerName(store, opts.Routes)
	}
	r := &Relay{
		store: store, opts: opts, log: opts.Logger.With("relay", opts.Name), tel: tel, worked: worked{map[dispatch.CallKind]bool{}, map[string]bool{}},
		routes: spread(opts.Routes), wanted: wanted, limits: map[string]*bucket{}, paused: map[string]bool{}, cleanerName: opts.Name + " " + waybill.NewID(), wakes: make(chan struct{}, 1),
	}
	for i := range opts.Routes {
		if rt := &opts.Routes[i]; rt.RatePerSecond > 0 {
			r.limits[rt.Name] = newBucket(rt.RatePerSecond)
		}
	}
	return r, nil
}

// Run relays until ctx ends, then drains and returns nil. It returns an error only if store or publisher are
// misconfigured on first contact (matching waybill.ErrMisconfigured), or if the relay is running already.
func (r *Relay) Run(ctx context.Context) error {
	e, err := r.start(ctx, false)
	if err != nil {
		return err
	}
	counter, _ := core.As[admin.Counter](r.store)
	if stop, err := r.gauges(counter, e); err != nil {
		r.log.Warn("no gauges", "event", "relay.metrics_failed", "error", core.ErrorText(err))
	} else {
		defer stop()
	}
	r.log.Info("relay started", "event", "relay.start", "routes", e.names())
	if s, ok := core.As[interface{ Pool() waybill.Pool }](r.store); ok {
		if p := s.Pool(); p.Max > 0 && p.Max < p.Relay {
			r.log.Warn("the connection pool of the outbox is smaller than what the relay uses at a time, so its calls wait for each other "+
				"and its lease may end meanwhile; raise its size", "event", "relay.pool_small", "connections", p.Max, "needs", p.Relay)
		}
	}
	err = e.run(ctx)
	r.log.Info("relay stopped", "event", "relay.stop", "handed_out", e.counts.HandedOut, "published", e.counts.Published,
		"failed", e.counts.Failed, "abandoned", e.counts.Abandoned, "released", e.counts.Released)
	return err
}

// RunOnce relays until nothing is due, or ctx ends, and returns the counts of its work. It drains like Run. Due records
// that it cannot publish, because another relay owns them or because of an outage, are an error that counts them; a
// paused route is left out. Other errors are those of the store, which Run would have sat out, or a misconfiguration. A
// relay that died is waited for until its lease is over.
func (r *Relay) RunOnce(ctx context.Context) (Counts, error) {
	e, err := r.start(ctx, true)
	if err != nil {
		return Counts{}, err
	}
	err = e.run(ctx)
	return e.counts, err
}

// Wake says that something was staged, by a transaction that has committed. It never waits, may be called at any time
// from anywhere, and is a hint: without it the store's own wake-up or the next poll finds it.
func (r *Relay) Wake() {
	select {
	case r.wakes <- struct{}{}:
	default:
	}
}

// start checks store and publishers and returns an engine. The relay counts as running until the engine's run ends. The
// engine is published under the lock before it takes over the pauses: a Pause in between either is seen by applyPauses,
// or asks the loop.
func (r *Relay) start(ctx context.Context, once bool) (*engine, error) {
	if !r.running.CompareAndSwap(false, true) {
		return nil, errors.New("waybill/relay: already running; make a second relay to run two")
	}
	if err := r.check(ctx); err != nil {
		r.ended(err, once)
		return nil, err
	}
	e := newEngine(ctx, r, once)
	r.mu.Lock()
	r.engine, r.lastErr = e, nil
	r.mu.Unlock()
	e.applyPauses()
	return e, nil
}

// ended notes that a run is over. The error of a RunOnce is its caller's.
func (r *Relay) ended(err error, once bool) {
	r.mu.Lock()
	if r.engine = nil; !once {
		r.lastErr = err
	}
	r.mu.Unlock()
	r.running.Store(false)
}

// check asks store and publishers that have a Check whether they are usable, unless they have worked before. A
// misconfiguration ends the start. An outage does not: it is logged.
func (r *Relay) check(ctx context.Context) error {
	if r.checked {
		return nil
	}
	type part struct {
		name string
		v    any
	}
	var parts []part
	if len(r.worked.store) == 0 {
		parts = append(parts, part{"store", r.store})
	}
	for i := range r.opts.Routes {
		if rt := &r.opts.Routes[i]; !r.worked.routes[rt.Name] {
			parts = append(parts, part{"route " + rt.Name, rt.Publisher})
		}
	}
	for _, p := range parts {
		c, ok := core.As[core.Checker](p.v)
		if !ok {
			continue
		}
		err := guardErr("check", func() error {
			ctx, cancel := context.WithTimeout(ctx, r.opts.PublishTimeout)
			defer cancel()
			return c.Check(ctx)
		})
		switch {
		case errors.Is(err, waybill.ErrMisconfigured):
			return errtext.Within("waybill/relay: "+p.name, err)
		case err != nil:
			r.log.Warn("not reachable at start; trying on", "event", "relay.check_failed", "part", p.name, "error", core.ErrorText(err))
		}
	}
	return nil
}
