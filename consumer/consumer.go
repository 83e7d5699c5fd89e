package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/check"
)

// startWait bounds how long open subscriptions wait for the others before they begin.
const startWait = 10 * time.Second

// Consumer runs handlers on subscriptions. Register them with Handle, then call Run.
type Consumer struct {
	bus  core.Subscriber
	opts Options
	tel  *telemetry

	mu      sync.Mutex // guards the fields below
	subs    []*registration
	running bool
	runners []*runner // of the run that goes on
	lastErr error     // the error that ended the latest run
}

// registration is a subscription with its handlers.
type registration struct {
	sub        waybill.Subscription
	holding    holding
	asked      core.Subscription          // the request to the transport
	handlers   map[string]waybill.Handler // with middleware
	checks     []func(context.Context) error
	background []func(context.Context)
}

// New returns a consumer of bus, or an error that lists all problems of opts.
func New(bus core.Subscriber, opts Options) (*Consumer, error) {
	if check.Nil(bus) {
		return nil, waybill.Invalid("waybill/consumer", "bus: is nil; give a transport")
	}
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	opts = opts.withDefaults()
	tel, err := newTelemetry(&opts, bus)
	if err != nil {
		return nil, fmt.Errorf("waybill/consumer: metrics: %w", err)
	}
	tel.traits = bus.SubscriberTraits()
	return &Consumer{bus: bus, opts: opts, tel: tel}, nil
}

// Handle registers handlers for the messages of one queue. A message reaches the handler whose name is its CloudEvents
// type, or else the one whose name is its topic, or else that of [waybill.AnyMessage]. The error lists every problem of
// sub and handlers, those with the transport included; nothing is registered then. It opens nothing.
func (c *Consumer) Handle(sub waybill.Subscription, handlers ...waybill.Handler) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	sub, held := c.opts.complete(sub, handlers)
	p := subscriptionProblems(&sub, handlers, c.tel.traits, c.opts.Limiter)
	if c.running {
		p = append(p, "Run has been called already; register before")
	}
	if sub.Queue != "" && slices.ContainsFunc(c.subs, func(r *registration) bool { return r.sub.Queue == sub.Queue }) {
		p = append(p, "Queue: it has a subscription already; give all its handlers in one call")
	}
	if err := waybill.Invalid(fmt.Sprintf("waybill/consumer: subscription of queue %q", sub.Queue), p...); err != nil {
		return err
	}
	reg := &registration{sub: sub, holding: held, asked: held.request(&sub), handlers: make(map[string]waybill.Handler, len(handlers))}
	for _, h := range handlers {
		for _, m := range slices.Backward(c.opts.Middleware) {
			h.Handle = m(h.Handle)
		}
		reg.handlers[h.Name] = h
		if h.Check != nil {
			reg.checks = append(reg.checks, h.Check)
		}
		if h.Background != nil {
			reg.background = append(reg.background, h.Background)
		}
	}
	if checker, ok := core.As[core.Checker](c.opts.Limiter); ok && limited(&sub.Limit) {
		reg.checks = append(reg.checks, checker.Check)
	}
	c.subs = append(c.subs, reg)
	return nil
}

// Run receives and handles until ctx ends, or until there has been nothing to do for Options.IdleTimeout, then drains
// and returns nil. It returns an error only if nothing was registered, if it is running already, or if a subscription
// that never worked, or a need of its handlers, is misconfigured; the error then joins those of all subscriptions. It
// may be called again after it returned.
func (c *Consumer) Run(ctx context.Context) error {
	_, err := c.run(ctx, max(c.opts.IdleTimeout, 0), false)
	return err
}

// run is Run and RunOnce. It ends with ctx, when there was nothing to do for idle (0 = never), and with once at the
// first outage. The steps are numbered below: all subscriptions open, then all receive, then all have drained.
func (c *Consumer) run(ctx context.Context, idle time.Duration, once bool) (Counts, error) {
	c.mu.Lock()
	if c.running || len(c.subs) == 0 {
		defer c.mu.Unlock()
		if c.running {
			return Counts{}, errors.New("waybill/consumer: Run is running already")
		}
		return Counts{}, waybill.Invalid("waybill/consumer", "nothing to do: register handlers with Handle before Run")
	}
	c.running, c.lastErr = true, nil
	subs := c.subs
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.running = false
		c.mu.Unlock()
	}()

	c.warnOfPools(ctx, subs)
	run, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	begin, begun := make(chan struct{}), make(chan struct{})
	first := make(chan error, len(subs)) // one for each subscription: the result of its first attempt
	errs := make([]error, len(subs))
	runners := make([]*runner, len(subs))
	var wg, beside sync.WaitGroup
	// 1. Each subscription opens on a goroutine of its own, and tells the result of its first attempt.
	for i, reg := range subs {
		r := newRunner(run, c, reg)
		if once {
			r.trouble = func(err error) { cancel(&troubleError{queue: reg.sub.Queue, err: err}) }
		}
		runners[i] = r
		wg.Go(func() {
			if errs[i] = r.run(run, first, begin); errs[i] != nil {
				<-begun // let the others find their own problems
				cancel(nil)
			}
		})
	}
	c.keepRunners(runners, nil, once)
	// 2. When all have tried, and none is misconfigured, all of them receive at once. So no message is handled in a
	// process that cannot run.
	if awaitFirst(run, first, len(subs)) {
		close(begin)
		c.besides(run, &beside, subs)
		if idle > 0 {
			beside.Go(func() { awaitIdle(run, runners, idle); cancel(nil) })
		}
	} else {
		cancel(nil)
	}
	// 3. A misconfigured subscription waited for this: the others have told their own problems.
	close(begun)
	wg.Wait()
	cancel(nil)
	c.awaitBesides(ctx, &beside)
	// 4. All runners have drained. The error is theirs, or the outage that ended a RunOnce.
	var total Counts
	for _, r := range runners {
		r.counts.addTo(&total)
	}
	err := errors.Join(errs...)
	if trouble, ok := errors.AsType[*troubleError](context.Cause(run)); ok {
		err = errors.Join(err, trouble)
	}
	c.keepRunners(nil, err, once)
	return total, err
}

// awaitFirst waits for the first attempt of all n subscriptions, for startWait at most, and reports whether none of
// them is misconfigured.
func awaitFirst(ctx context.Context, first <-chan error, n int) bool {
	timer := time.NewTimer(startWait)
	defer timer.Stop()
	ok := true
	for range n {
		select {
		case err := <-first:
			ok = ok && err == nil
		case <-timer.C:
			return ok
		case <-ctx.Done():
			return false
		}
	}
	return ok
}
