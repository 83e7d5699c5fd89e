package table

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/waybill-go/waybill/core"
)

var (
	_ core.Subscriber       = (*Transport)(nil)
	_ core.Receiver         = (*receiver)(nil)
	_ core.DeliveryExtender = (*receiver)(nil)
)

// glance is how long a wait for some queues lasts while others are busy: they join the next one.
const glance = 50 * time.Millisecond

// Transport hands out the records of a store. Make it with [New].
type Transport struct {
	store    core.OutboxStore
	waiter   core.Waiter        // nil if the store is none
	extender core.LeaseExtender // nil if the store is none
	opts     Options
	log      *slog.Logger

	callLimit time.Duration // of a settle: a quarter of the shortest lease, so that renewals come in time

	claimSlot chan struct{} // held during a claim, or the check at start
	checked   bool          // guarded by claimSlot
	writeSlot chan struct{} // held during a settle or a renewal
	stir      chan struct{} // ends the pause before a settle is tried again

	mu        sync.Mutex
	base      context.Context //nolint:containedctx // the values of the first Subscribe's context, without its end
	closed    bool
	receivers []*receiver
	pending   []*settling // what the next settle takes
	flushing  bool
	stats     Stats

	renewal *time.Timer // renews leases; nil before the first
	renewAt time.Time   // when it fires; zero = not set

	listening chan struct{} // closed when the wait in progress ends; nil = none
	hangUp    context.CancelFunc
	waitFails int
	waitAt    time.Time // no wait before then
}

// Stats counts what happened since [New].
type Stats struct {
	// Claims and Settles are calls to the store; Claimed the records that claims brought.
	Claims, Settles, Claimed int64
	// LostAtSettle, LostAtRetry and LostAtRenew count leases found lost, by phase: when settling a delivery that was
	// handled, given back or parked; when asking for its retry; when renewing.
	LostAtSettle, LostAtRetry, LostAtRenew int64
}

// New returns a transport over store, or an error that lists all problems of opts, those with the store's traits
// included.
func New(store core.OutboxStore, opts Options) (*Transport, error) {
	if core.IsNil(store) {
		return nil, core.Invalid("waybill/table", "store: is nil; give an outbox store")
	}
	traits := store.Traits()
	if err := core.Invalid("waybill/table: options", opts.problems(&traits)...); err != nil {
		return nil, err
	}
	if opts.Owner == "" {
		opts.Owner = DefaultOwner
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	t := &Transport{store: store, opts: opts, log: opts.Logger, claimSlot: make(chan struct{}, 1), writeSlot: make(chan struct{}, 1), stir: make(chan struct{}, 1)}
	t.callLimit = opts.base().Lease / 4
	for name := range opts.Queues {
		t.callLimit = min(t.callLimit, opts.queue(name).Lease/4)
	}
	t.waiter, _ = core.As[core.Waiter](store)
	t.extender, _ = core.As[core.LeaseExtender](store)
	return t, nil
}

// SubscriberTraits declares what receivers promise. KeyOrder and SingleActive hold where every queue has OrderPerKey.
func (t *Transport) SubscriberTraits() core.SubscriberTraits {
	perKey := t.opts.Order == core.OrderPerKey
	for _, q := range t.opts.Queues {
		perKey = perKey && q.Order == core.OrderPerKey
	}
	return core.SubscriberTraits{KeyOrder: perKey, SingleActive: perKey, RetryLater: true, Parks: true, CountsRedeliveries: true}
}

// Stats returns a copy of the counters.
func (t *Transport) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stats
}

// Subscribe opens a receiver of the route sub.Queue. It declares nothing: a route exists as soon as something is staged on
// it. The first call asks the store, if it is a core.Checker, whether it can work at all.
func (t *Transport) Subscribe(ctx context.Context, sub core.Subscription) (core.Receiver, error) {
	q := t.opts.queue(sub.Queue)
	if err := core.Invalid(fmt.Sprintf("waybill/table: subscription of queue %q", sub.Queue), check(&sub, &q)...); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, &core.Error{Op: "waybill/table: subscribe", Class: core.ClassOutage, Err: err}
	}
	if err := t.checkStore(ctx); err != nil {
		return nil, err
	}
	r := newReceiver(ctx, t, &sub, q)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		r.cancel()
		return nil, errClosed("subscribe")
	}
	if t.base == nil {
		t.base = context.WithoutCancel(ctx)
	}
	t.receivers = append(t.receivers, r)
	return r, nil
}

func check(sub *core.Subscription, q *QueueOptions) []string {
	var p []string
	if sub.Queue == "" {
		p = append(p, "Queue: is empty; name the route that messages are staged on")
	} else if s := core.CheckName(sub.Queue); s != "" {
		p = append(p, "Queue: "+s)
	}
	for i, b := range sub.Bindings {
		if strings.ContainsAny(b, "*#") {
			p = append(p, fmt.Sprintf("Bindings[%d]: %q holds a wildcard; a table queue gets what is staged on its route: leave it out", i, b))
		}
	}
	if sub.Prefetch < 0 || sub.Concurrency < 0 {
		p = append(p, "Prefetch, Concurrency: must not be negative; leave them 0 for the defaults")
	}
	if sub.InOrder && q.Order != core.OrderPerKey {
		p = append(p, fmt.Sprintf("InOrder: needs Order OrderPerKey for the queue, not %s", q.Order))
	}
	return p
}

// checkStore asks the store until it has said yes once. Subscriptions that open at the same time ask one after the other.
func (t *Transport) checkStore(ctx context.Context) error {
	c, ok := core.As[core.Checker](t.store)
	if !ok {
		return nil
	}
	select {
	case t.claimSlot <- struct{}{}:
		defer func() { <-t.claimSlot }()
	case <-ctx.Done():
		return &core.Error{Op: "waybill/table: subscribe", Class: core.ClassOutage, Err: ctx.Err()}
	}
	if t.checked {
		return nil
	}
	if err := c.Check(ctx); err != nil {
		return core.Within("waybill/table: subscribe", err)
	}
	t.checked = true
	return nil
}

// Close closes all receivers. The store stays open. It is idempotent.
func (t *Transport) Close(ctx context.Context) error {
	t.mu.Lock()
	t.closed = true
	all := slices.Clone(t.receivers)
	t.mu.Unlock()
	var errs []error
	for _, r := range all {
		errs = append(errs, r.Close(ctx))
	}
	return errors.Join(errs...)
}

func errClosed(op string) error {
	return &core.Error{Op: "waybill/table: " + op, Class: core.ClassOutage, Err: core.ErrClosed}
}

// listen waits for news on behalf of all receivers that are asleep, unless somebody does already. mu is held.
func (t *Transport) listen() {
	if t.waiter == nil || t.listening != nil || time.Now().Before(t.waitAt) {
		return
	}
	var routes []string
	var asleep []*receiver
	limit := time.Duration(0)
	for _, r := range t.receivers {
		if r.asleep {
			asleep = append(asleep, r)
			limit = max(limit, r.opts.PollMax)
			if !slices.Contains(routes, r.route.Route) {
				routes = append(routes, r.route.Route)
			}
		}
	}
	if len(asleep) == 0 {
		return
	}
	if len(asleep) < len(t.receivers) {
		limit = glance
	}
	ctx, cancel := context.WithCancel(t.base)
	ended := make(chan struct{})
	t.listening, t.hangUp = ended, cancel
	go func() {
		began := time.Now()
		cause, err := t.waiter.Wait(ctx, routes, limit)
		stopped := ctx.Err() != nil
		cancel()
		t.mu.Lock()
		defer t.mu.Unlock()
		close(ended)
		t.listening = nil
		if stopped {
			return
		}
		news := cause != core.WakeStop && (cause != core.WakeTimer || time.Since(began) < limit)
		t.heard(asleep, news, err)
		t.listen()
	}()
}

// heard wakes those who were asleep, if there was news. mu is held.
func (t *Transport) heard(asleep []*receiver, news bool, err error) { //nolint:revive // a fact, not a mode
	if err != nil {
		t.waitFails++
		d, _, _ := (&core.Backoff{Base: t.opts.base().PollMin, Cap: time.Minute, Attempts: -1}).Next(t.waitFails, err)
		t.waitAt = time.Now().Add(d)
		t.log.Warn("the store cannot wake receivers; polling meanwhile", "event", "polling", "retry_in", d, "error", core.ErrorText(err))
	} else {
		t.waitFails = 0
		if !news {
			return
		}
	}
	for _, r := range asleep {
		if r.asleep {
			r.asleep = false
			r.wakeBy(r.floor(time.Now()))
		}
	}
}
